"""Recurrent nets exported by PyTorch: outputs, and gradients of all weights and inputs, compared with PyTorch's."""
from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocaffe
from ocaffe import log
from ocaffe.convert.import_model import convert
from tests.convert.exporters import export, gradients_of_both
from tests.tiers import rest_is_long

torch = pytest.importorskip("torch", reason="PyTorch makes the nets")
pytest.importorskip("onnx")
from torch import nn  # noqa: E402

pytestmark = pytest.mark.unoptimised


class Reader(nn.Module):
    """A reader of text lines: convolutions, then two bidirectional LSTM layers over the columns."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.AdaptiveAvgPool2d((1, None)))
        self.lstm, self.classes = nn.LSTM(8, 7, num_layers=2, bidirectional=True), nn.Linear(14, 5)

    def forward(self, x: Any) -> Any:
        return self.classes(self.lstm(self.image(x).squeeze(2).permute(2, 0, 1))[0])


class Last(nn.Module):
    """The last step of two GRU layers, with the batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.classes = nn.GRU(5, 6, num_layers=2, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.classes(self.gru(x)[0][:, -1])


class Translator(nn.Module):
    """The last states of an LSTM are the first states of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.classes = nn.LSTM(5, 6), nn.LSTM(5, 6), nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.classes(self.decoder(x, self.encoder(x)[1])[0])


class Summary(nn.Module):
    """The last states of both directions of a GRU without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.classes = nn.GRU(5, 6, bidirectional=True, bias=False), nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        return self.classes(self.gru(x)[1].transpose(0, 1).flatten(1))


NETS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {  # the net and the shape of its input
    "reader": (Reader, (2, 1, 8, 12)), "last": (Last, (3, 7, 5)), "translator": (Translator, (6, 2, 5)), "summary": (Summary, (6, 2, 5)),
}  # fmt: skip
ORDER = {nn.LSTM: [0, 1, 3, 2], nn.GRU: [1, 0, 2]}  # PyTorch's gates i, f, g, o and r, z, n in Caffe's order


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("dynamo", rest_is_long([True, False], 1), ids=["dynamo", "script"])
def test_gradients(device: Any, tmp_path: Path, name: str, dynamo: bool) -> None:
    log.quiet()
    torch.manual_seed(0)
    make, shape = NETS[name]
    net, x = make(), torch.randn(*shape)
    imported, message, pairs = gradients_of_both(device, tmp_path, net, x, dynamo)
    for values, expected in pairs:
        near(values, expected)
    wanted = [blobs for module in net.modules() for blobs in gradients(module)]
    layers = [layer.name for layer in message.layer if layer.type in ("Convolution", "InnerProduct", "LSTM", "GRU")]
    assert len(layers) == len(wanted)
    for layer, blobs in zip(layers, wanted):
        for blob, gradient in zip(imported.params[layer], blobs):
            if gradient is not None:
                near(blob.diff, gradient)


def gradients(module: Any) -> Iterator[list[Any]]:
    """Iterate over the layers that a module becomes: the gradients of each layer's blobs, None for a blob that PyTorch lacks."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        yield [module.weight.grad, module.bias.grad]
    elif isinstance(module, nn.LSTM | nn.GRU):
        for number, suffix in itertools.product(range(module.num_layers), ("", "_reverse")[: 1 + module.bidirectional]):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            found = [getattr(module, f"{name}_l{number}{suffix}", None) for name in names]
            order = ORDER[type(module)]
            gates = [None if array is None else [array.grad.chunk(len(order))[gate] for gate in order] for array in found]
            weight, product, bias, _ = [None if parts is None else torch.cat(parts) for parts in gates]
            if isinstance(module, nn.LSTM):
                yield [weight, bias, product]
            else:
                yield [weight, bias, *gates[1], None if gates[3] is None else gates[3][2]]


def near(values: np.ndarray, expected: Any) -> None:
    expected = expected.numpy()
    assert np.abs(values.reshape(expected.shape) - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name, axis", [("reader", 0), ("translator", 1)])
def test_other_batch(device: Any, tmp_path: Path, name: str, axis: int) -> None:
    """The net takes another number of sequences than the model had."""
    log.quiet()
    torch.manual_seed(0)
    make, shape = NETS[name]
    net, x = make(), torch.randn(*shape)
    export(net, x, tmp_path / "net.onnx", 17, False)
    convert(tmp_path / "net.onnx", tmp_path / "net.prototxt", tmp_path / "net.caffemodel")
    imported = ocaffe.Net(str(tmp_path / "net.prototxt"), ocaffe.TEST, weights=str(tmp_path / "net.caffemodel"), device=device)
    x = torch.cat([x, -x, 2 * x], axis)
    imported.blobs["input"].reshape(*x.shape)
    near(imported.forward(input=x.numpy())["output"], net(x).detach())
