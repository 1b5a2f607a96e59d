"""A small net through both exporters of PyTorch, with all their habits: merged or separate norms, an open batch, every opset."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocaffe
from ocaffe import log
from ocaffe.onnx.importer import convert
from tests.onnx.exporters import export

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch", reason="PyTorch makes the net")


def small() -> Any:
    """What image networks are made of, once each."""
    from torch import nn

    from tests.onnx.torch_nets import Residual, Shuffled, SqueezeExcite, cba, pooled

    torch.manual_seed(0)
    net = nn.Sequential(
        cba(3, 8, 3, 2, act=nn.Hardswish), nn.MaxPool2d(3, 2, ceil_mode=True), Shuffled(8, 8, 1), SqueezeExcite(8, 4, nn.SiLU, nn.Hardsigmoid),
        Residual(cba(8, 8, 3, 1, 8, nn.GELU), act=nn.ReLU6), nn.Conv2d(8, 6, (1, 3), padding=(0, 1)), nn.Upsample(scale_factor=2),
        pooled(nn.Dropout(0.2), nn.Linear(6, 5), nn.LogSoftmax(1)),
    )  # fmt: skip
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.8, 1.6)
    return net


@pytest.mark.parametrize(
    "opset, dynamo, norms, open_batch",
    [(11, False, True, True), (12, False, False, False), (13, False, False, True), (15, False, True, False), (17, False, False, True),
     (18, True, True, False), (18, True, False, True), (20, True, False, False)],
)  # fmt: skip
def test_exporters(device: Any, tmp_path: Path, opset: int, dynamo: bool, norms: bool, open_batch: bool) -> None:
    """The file's batch, and another."""
    log.quiet()
    x = torch.randn(2, 3, 21, 18, generator=torch.Generator().manual_seed(1))
    export(small(), x, tmp_path / "net.onnx", opset, dynamo, norms=norms, open_batch=open_batch)
    files = str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel")
    message = convert(tmp_path / "net.onnx", *files)
    types = [layer.type for layer in message.layer]
    assert {"HardSwish", "Swish", "Gelu", "ReLU6", "ShuffleChannel", "Upsample", "HardSigmoid"} <= set(types) and "Permute" not in types
    assert ("BatchNorm" in types) == norms and message.layer[0].input_param.shape[0].dim[0] == (1 if open_batch else 2)
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    imported = ocaffe.Net(files[0], ocaffe.TEST, weights=files[1], device=device)
    for batch in (2, 1):
        imported.blobs["input"].reshape(batch, 3, 21, 18)
        rows = x.numpy()[:batch]
        (expected,) = session.run(None, {"input": rows if open_batch else x.numpy()})
        np.testing.assert_allclose(imported.forward(input=rows)["output"], expected[:batch], rtol=0, atol=1e-4 * np.abs(expected).max())


def test_running_statistics(device: Any, tmp_path: Path) -> None:
    """A step of training moves the running statistics as PyTorch moves them."""
    log.quiet()
    net, x = small(), torch.randn(2, 3, 21, 18, generator=torch.Generator().manual_seed(1))
    export(net, x, tmp_path / "net.onnx", 17, False)
    message = convert(tmp_path / "net.onnx", tmp_path / "net.prototxt", tmp_path / "net.caffemodel.h5")
    train = ocaffe.Net(str(tmp_path / "net.prototxt"), ocaffe.TRAIN, weights=str(tmp_path / "net.caffemodel.h5"), device=device)
    train.forward(input=x.numpy())
    net.train()(x)
    norms = [module for module in net.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    names = [layer.name for layer in message.layer if layer.type == "BatchNorm"]
    assert len(norms) == len(names) > 3
    for module, name in zip(norms, names):
        mean, variance, weight = (blob.data for blob in train.params[name])
        np.testing.assert_allclose(mean / weight, module.running_mean.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(variance / weight, module.running_var.numpy(), rtol=1e-4, atol=1e-5)
