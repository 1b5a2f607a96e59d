"""Nets of torchvision, timm and transformers (tests/convert/modern_nets.py): import, verification, and the gradient of the first layer.

The nets have fresh weights. The statistics of normalization are fixed, and dropout is off, in both programs.
"""
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocaffe
from ocaffe import log
from ocaffe.convert.import_model import import_net, write
from ocaffe.convert.import_verify import by_sample, comparable, pixels
from ocaffe.convert.importer.read import read_model
from ocaffe.convert.verify import opened, random_inputs, verify
from tests.convert.exporters import export

pytestmark = [pytest.mark.sweep, pytest.mark.filterwarnings("ignore")]  # the packages warn of names and functions of their own
torch = pytest.importorskip("torch")
for package in ("torchvision", "timm", "transformers", "onnxruntime"):
    pytest.importorskip(package, reason="pip install '.[test-modern]'")

from tests.convert.decisions import Decided  # noqa: E402
from tests.convert.modern_nets import NETS  # noqa: E402
from tests.convert.test_networks import relative  # noqa: E402

FIXED = {"botnet26t_256": "pos_embed/Expand"}  # nets whose export has the batch as a number, and the node that has it


@pytest.mark.parametrize("name", NETS)
def test_modern_net(device: Any, tmp_path: Path, name: str) -> None:
    log.quiet()
    torch.manual_seed(0)
    task = NETS[name]()
    net, x = task.net.eval(), task.x
    for parameter in net.parameters():
        if parameter.ndim != 1 and not parameter.any():  # a last layer of zeros lets no gradient pass
            torch.nn.init.normal_(parameter, std=0.02)
    file, *files = (str(tmp_path / made) for made in ("net.onnx", "net.prototxt", "net.caffemodel"))
    export(net, x, Path(file), 18 if task.dynamo else 17, task.dynamo)
    model = read_model(file)
    imported = import_net(model, file)
    message, blobs = imported.net, imported.blobs
    exported = comparable(model, message, blobs, shapes={}, outputs=[])
    with opened(exported, device, None) as opened_net:
        forward = verify(exported, [random_inputs(exported.graph, pixels=pixels(model))], device, net=opened_net).worst
        if name in FIXED:
            assert FIXED[name] in imported.fixed
        else:
            assert not imported.fixed and not by_sample(exported, imported.batch, imported.outputs, opened_net)  # it takes any batch
    write(message, blobs, file, *files)
    print(f"{name}: {len(message.layer)} layers, forward {forward:.1e}", end=", ", flush=True)

    message.force_backward = True
    for layer in message.layer:
        if layer.type == "BatchNorm":
            layer.batch_norm_param.use_global_stats = True
    caffe = ocaffe.Net(message, ocaffe.TRAIN, weights=files[1], device=device)
    (source,), (output,) = caffe.inputs, caffe.outputs
    y = caffe.forward(**{source: x.numpy().astype(np.float32)})[output]
    upstream = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)
    caffe.backward(**{output: upstream})
    double = net.double()
    with Decided(caffe, message):
        result = double(x.double() if x.is_floating_point() else x)
    assert relative(y, result.detach().numpy()) <= 1e-4
    (result * torch.from_numpy(upstream).double()).sum().backward()
    layer, blob, parameter = first_weights(caffe, message, double)
    tied = sum(other.diff for blobs in caffe.params.values() for other in blobs if np.array_equal(other.data, blob.data))  # gpt2 embeds and classifies with it
    error = relative(tied.reshape(parameter.shape), parameter.grad.numpy())
    print(f"gradient of {layer} {error:.1e}")
    assert error <= 1e-4


def first_weights(caffe: Any, message: Any, net: Any) -> tuple[str, Any, Any]:
    """Return the name and blob of the first layer with more than one axis of learned weights, and PyTorch's parameter with the same values."""
    parameters = [parameter for parameter in net.parameters() if parameter.ndim > 1]
    for layer in message.layer:
        blobs = caffe.params.get(layer.name, [])
        if not blobs or blobs[0].data.ndim < 2 or layer.type == "Parameter":
            continue
        same = [p for p in parameters if p.numel() == math.prod(blobs[0].data.shape) and np.array_equal(p.detach().numpy().ravel(), blobs[0].data.ravel())]
        if same:
            return layer.name, blobs[0], same[0]
    raise AssertionError("no layer has the values of a parameter")
