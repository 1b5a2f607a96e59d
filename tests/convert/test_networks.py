"""Image networks exported by PyTorch, at full size: they are imported, run and trained, and compared with PyTorch and onnxruntime."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocaffe
from ocaffe import log, proto
from ocaffe.convert.import_model import convert
from tests.convert.exporters import export, trained

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch", reason="PyTorch makes the networks")

pytestmark = pytest.mark.unoptimised

SMALL = {"squeezenet1_0"}  # tested in every run; the others need `pytest -m sweep`
# Networks by (opset, dynamo): both exporters of PyTorch, all opsets that issue 5 names.
EXPORTS = {
    "alexnet": (11, False), "vgg16": (12, False), "resnet18": (13, False), "resnext50_32x4d": (14, False), "wide_resnet50_2": (15, False),
    "efficientnet_b0": (16, False), "efficientnet_b4": (17, False), "regnet_y_400mf": (18, True), "squeezenet1_0": (11, False),
    "mobilenet_v2": (12, False), "mobilenet_v3_large": (18, True), "mobilenet_v3_small": (13, False), "densenet121": (14, False),
    "densenet161": (17, False), "googlenet": (16, False), "inception_v3": (17, False), "shufflenet_v2_x1_0": (18, True), "mnasnet1_0": (11, False),
}  # fmt: skip
NETWORKS = [pytest.param(name, *how, marks=() if name in SMALL else pytest.mark.sweep, id=name) for name, how in EXPORTS.items()]


def relative(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference divided by the largest magnitude."""
    return float(np.abs(actual.astype(np.float64) - expected).max() / np.abs(expected).max())


def ends(net: Any) -> tuple[Any, Any]:
    """Return the weights of the first and the last layer."""
    weights = [parameter for parameter in net.parameters() if parameter.ndim > 1 and parameter.grad is not None]
    return weights[0], weights[-1]


@pytest.mark.parametrize("name, opset, dynamo", NETWORKS)
def test_network(device: Any, tmp_path: Path, name: str, opset: int, dynamo: bool) -> None:
    from tests.convert.decisions import Decided, without_dropout
    from tests.convert.torch_nets import NETS, build

    log.quiet()
    files = [str(tmp_path / file) for file in ("net.prototxt", "net.caffemodel")]
    net, size = build(name), NETS[name].size
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    export(net, x[:1], tmp_path / "net.onnx", opset, dynamo)
    deploy = convert(tmp_path / "net.onnx", *files)
    nodes = len(onnx.load(str(tmp_path / "net.onnx")).graph.node)
    print(f"{name}: {nodes} nodes of opset {opset} ({'dynamo' if dynamo else 'TorchScript'}), {len(deploy.layer)} layers", end=", ")

    # Forward, with the model's batch size.
    (expected,) = onnxruntime.InferenceSession(str(tmp_path / "net.onnx")).run(None, {"input": x[:1].numpy()})
    imported = ocaffe.Net(files[0], ocaffe.TEST, weights=files[1], keep=["input", "output"], device=device)
    forward = relative(imported.forward(input=x[:1].numpy())["output"], expected)
    print(f"forward {forward:.1e}", end=", ")
    assert forward <= 1e-4

    # Gradients with another batch size, with the statistics of that batch.
    labels = torch.tensor([3, 911])
    solver = ocaffe.SGDSolver(proto.SolverParameter(net_param=trained(deploy, 2, "output"), lr_policy="fixed", base_lr=1, momentum=0), device=device)
    solver.net.copy_from(files[1])
    solver.net.blobs["input"].data[...] = x.numpy()
    solver.net.blobs["label"].data[...] = labels.numpy()
    solver.net.forward()
    before = float(solver.net.blobs["loss"].data)
    with Decided(solver.net, deploy):
        outputs = without_dropout(net).double().train()(x.double())
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    loss.backward()
    assert relative(np.array(before), loss.item()) <= 1e-4
    solver.net.backward()
    layers = [layer.name for layer in deploy.layer if layer.name in solver.net.params and solver.net.params[layer.name][0].data.ndim > 1]
    errors = []
    for layer, weight in zip((layers[0], layers[-1]), ends(net)):
        errors.append(relative(solver.net.params[layer][0].diff.reshape(weight.shape), weight.grad.numpy()))
    print("gradients", *(f"{error:.1e}" for error in errors), end=", ")
    assert max(errors) <= 1e-3

    # A step that would reduce the loss by a tenth if it were linear.
    square = sum(float((blob.diff.astype(np.float64) ** 2).sum()) for blobs in solver.net.params.values() for blob in blobs)
    solver.param.base_lr = 0.1 * before / square
    solver.step(1)
    solver.net.forward()
    after = float(solver.net.blobs["loss"].data)
    print(f"loss {before:.4f} -> {after:.4f}")
    assert after < before


@pytest.mark.parametrize("name, opset, dynamo", NETWORKS)
def test_round_trip(tmp_path: Path, name: str, opset: int, dynamo: bool) -> None:
    """An imported net, exported again, computes the same as the original model."""
    exporter = pytest.importorskip("ocaffe.convert.export", reason="there is no exporter yet")
    from tests.convert.torch_nets import NETS, build

    log.quiet()
    files = [str(tmp_path / file) for file in ("net.prototxt", "net.caffemodel")]
    x = torch.randn(1, 3, NETS[name].size, NETS[name].size, generator=torch.Generator().manual_seed(1))
    export(build(name), x, tmp_path / "net.onnx", opset, dynamo)
    convert(tmp_path / "net.onnx", *files)
    exported = exporter.export(*files).model.SerializeToString()
    models = [str(tmp_path / "net.onnx"), exported]
    first, second = (onnxruntime.InferenceSession(model).run(["output"], {"input": x.numpy()})[0] for model in models)
    assert relative(second, first) <= 1e-4


FORMS = [(11, False, False), (11, False, True), (14, False, True), (17, False, False), (18, False, True), (18, True, True), (18, True, False)]


@pytest.mark.sweep
@pytest.mark.parametrize("opset, dynamo, norms", FORMS)
@pytest.mark.parametrize("name", ["efficientnet_b0", "mobilenet_v3_small", "regnet_y_400mf", "shufflenet_v2_x1_0"])
def test_other_forms(device: Any, tmp_path: Path, name: str, opset: int, dynamo: bool, norms: bool) -> None:
    """The same networks from other opsets and exporters: norms folded or not, the batch dynamic or not."""
    from ocaffe.convert.import_model import to_caffe
    from ocaffe.convert.import_verify import comparable
    from ocaffe.convert.importer.read import read_model
    from ocaffe.convert.verify import random_inputs, verify
    from tests.convert.torch_nets import NETS, build

    log.quiet()
    export(build(name), torch.randn(1, 3, NETS[name].size, NETS[name].size), tmp_path / "net.onnx", opset, dynamo, norms=norms, open_batch=not dynamo)
    model = read_model(tmp_path / "net.onnx")
    result = comparable(model, *to_caffe(model, "net.onnx"), shapes={}, outputs=[])
    assert verify(result, [random_inputs(result.graph)], device).worst <= 1e-4
