"""A small net from both exporters of PyTorch, in all their variants: folded or separate norms, dynamic batch, every opset."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocaffe
from ocaffe import log
from ocaffe.convert.import_model import convert
from tests.convert.exporters import export, gradients_of_both, trained

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript", reason="PyTorch's exporter needs it")
torch = pytest.importorskip("torch", reason="PyTorch makes the net")

pytestmark = pytest.mark.unoptimised


def small() -> Any:
    """Return a net with each building block of image networks."""
    from torch import nn

    from tests.convert.torch_nets import Residual, Shuffled, SqueezeExcite, cba, pooled

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
    """Compare with the model's batch size and with another one."""
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


def composed() -> Any:
    """Return a net of smooth operations that need several Caffe layers each.

    They are asymmetric pads, attention, norms over other axes, and resizing by fractions.
    """
    from torch import nn
    from torch.nn import functional as F

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.instance = nn.Conv2d(3, 8, 3, 2), nn.InstanceNorm2d(8, affine=True)
            self.up, self.group = nn.ConvTranspose2d(8, 6, 3, 2, 1, output_padding=1), nn.GroupNorm(2, 6)
            self.gamma, self.layer, self.mix = nn.Parameter(torch.rand(6, 1, 1) + 0.5), nn.LayerNorm(6), nn.Linear(6, 4)
            self.last = nn.Linear(4 * 11 * 7, 5)

        def forward(self, x: Any) -> Any:
            x = F.gelu(self.instance(self.first(F.pad(x, (0, 1, 0, 1)))))
            x = self.up(F.pad(x, (1, 2, 0, 1), mode="reflect"))
            x = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)
            x = F.interpolate(x, scale_factor=1.5, mode="bilinear")
            x = self.gamma * x * torch.sigmoid(x.mean(1, keepdim=True)) + x.mean((2, 3), keepdim=True)
            x = F.silu(self.group(x)) - F.softplus(x) / 3
            x = self.mix(F.gelu(self.layer(x.permute(0, 2, 3, 1)), approximate="tanh")).permute(0, 3, 1, 2)
            a, b = x.split([1, 3], 1)
            return self.last(torch.cat([b, a * a], 1)[:, :, 1:, ::2].flatten(1))

    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("opset, dynamo", [(13, False), (18, True)])
def test_gradients_of_what_is_composed(device: Any, tmp_path: Path, opset: int, dynamo: bool) -> None:
    """Every parameter of the model gets PyTorch's gradient. No other blob is a learned parameter."""
    log.quiet()
    net, x = composed(), torch.randn(2, 3, 12, 10, generator=torch.Generator().manual_seed(1))
    export(net, x, tmp_path / "net.onnx", opset, dynamo)
    files = str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel")
    message = trained(convert(tmp_path / "net.onnx", *files), 2, "output")
    train = ocaffe.Net(message, ocaffe.TRAIN, weights=files[1], device=device)
    y = net.double()(x.double())
    torch.nn.functional.cross_entropy(y, torch.tensor([3, 1])).backward()
    train.forward(input=x.numpy(), label=np.array([3, 1], np.float32))
    y = y.detach().numpy()
    np.testing.assert_allclose(train.blobs["output"].data, y, rtol=0, atol=1e-4 * np.abs(y).max())
    train.backward()
    slopes = [blob.diff.ravel() for blobs in train.params.values() for blob in blobs if blob.diff.any()]
    for name, parameter in net.named_parameters():
        expected = parameter.grad.numpy().ravel()
        if name != "first.bias":  # the instance norm removes its effect
            error = min(np.abs(slope - expected).max() for slope in slopes if slope.size == expected.size)
            assert error <= 1e-3 * np.abs(expected).max(), name
    assert len(slopes) == len(list(net.parameters()))


def test_running_statistics(device: Any, tmp_path: Path) -> None:
    """A training step updates the running statistics as in PyTorch."""
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


def replaced(x: Any) -> Any:
    """Assign to parts of one axis and of two axes, and at places that are no part."""
    y = 2 * x
    y[..., :2] = torch.sigmoid(x[..., 2:4])
    y[:, 1:3, :, 3:5] = x[:, :2, :, :2] * x[:, 1:3, :, 1:3]
    y[:, [2, 0]] = x[:, [1, 3]] + 1
    return y


FUNCTIONS: dict[str, Any] = {
    "assigned slices": replaced,
    "rows": lambda x: torch.nn.functional.avg_pool1d(torch.nn.functional.max_pool1d(x.flatten(2), 3, 2, 1), 4, 3, 1),
    "logarithm of sums": lambda x: torch.logsumexp(x, 1),
    "products": lambda x: x.prod(2),
    "running sums": lambda x: x.cumsum(3),
}


@pytest.mark.parametrize("dynamo", [False, True], ids=["TorchScript", "dynamo"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_their_gradients(device: Any, tmp_path: Path, name: str, dynamo: bool) -> None:
    """Compare with PyTorch at another batch than that of the export."""
    log.quiet()

    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return FUNCTIONS[name](x)

    x = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    _, _, pairs = gradients_of_both(device, tmp_path, Net(), x, dynamo, open_batch=True)
    for found, expected in pairs:
        assert np.abs(found - expected.numpy()).max() <= 1e-5 * np.abs(expected.numpy()).max()


PLACES: dict[str, Any] = {  # index arithmetic
    "floor": lambda i: (i - 4) // 3,
    "floor by tensors": lambda i: (i - 4) // (i[:, :1] + 1),
    "rest": lambda i: (i - 4) % 3,
    "torch.div": lambda i: torch.div(i * 41, 41, rounding_mode="floor") + torch.div(i - 4, 3, rounding_mode="trunc"),
    "divided floats": lambda i: (i * 41 / 41).long() + (i * 47 / 47).floor() + torch.ceil((i - 4) / 3),
}


@pytest.mark.parametrize("dynamo", [False, True], ids=["TorchScript", "dynamo"])
@pytest.mark.parametrize("name", PLACES)
def test_places(device: Any, tmp_path: Path, name: str, dynamo: bool) -> None:
    """Quotients of whole numbers are whole, also where a product with a reciprocal is smaller. TorchScript's exporter rounds // towards 0."""
    log.quiet()

    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return PLACES[name](x.argmax(1)).float()

    x = torch.randn(2, 50, 30, generator=torch.Generator().manual_seed(1))
    export(Net(), x, tmp_path / "net.onnx", 18 if dynamo else 13, dynamo)
    files = str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel")
    convert(tmp_path / "net.onnx", *files)
    found = ocaffe.Net(files[0], ocaffe.TEST, weights=files[1], device=device).forward(input=x.numpy())["output"]
    (expected,) = onnxruntime.InferenceSession(str(tmp_path / "net.onnx")).run(None, {"input": x.numpy()})
    assert np.array_equal(found, expected)
