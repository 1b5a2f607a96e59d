"""Nets that read values at computed places, exported by PyTorch: outputs and the gradient of the input compared with PyTorch's."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocaffe import log
from tests.convert.exporters import gradients_of_both
from tests.tiers import rest_is_long

torch = pytest.importorskip("torch", reason="PyTorch makes the nets")
pytest.importorskip("onnx")
from torch import nn  # noqa: E402

pytestmark = pytest.mark.unoptimised


class Warped(nn.Module):
    """An image at places that a convolution of it moves."""

    def __init__(self, mode: str, padding: str, corners: bool) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        self.moves = nn.Conv2d(3, 2, 3, padding=1)
        rows, columns = torch.meshgrid(torch.linspace(-1, 1, 6), torch.linspace(-1, 1, 7), indexing="ij")
        self.register_buffer("places", torch.stack([columns, rows], -1)[None])

    def forward(self, x: Any) -> Any:
        return nn.functional.grid_sample(x, self.places + 0.3 * self.moves(x).tanh().permute(0, 2, 3, 1), **self.options)


class Best(nn.Module):
    """The largest values along an axis, and other values at their places."""

    def forward(self, x: Any) -> Any:
        values, places = x.topk(3, 2)
        smallest = x.topk(2, 3, largest=False)[0]
        return values * (x * x).gather(2, places) + smallest.sum(3, keepdim=True)[:, :, :3]


class Rotated(nn.Module):
    """Pairs of values rotated by angles, every second value, and the reversed sequence."""

    def forward(self, x: Any) -> Any:
        even, odd = x[..., ::2], x[..., 1::2]
        size = min(even.shape[-1], odd.shape[-1])
        even, odd = even[..., :size], odd[..., :size]
        angle = x.mean((2, 3), keepdim=True)
        turned = torch.cat([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1)
        return torch.where(turned > 0.1, turned, turned.flip(1) * 0.5)


NETS: dict[str, Any] = {
    "bilinear": lambda: Warped("bilinear", "zeros", False), "border": lambda: Warped("bilinear", "border", True),
    "nearest": lambda: Warped("nearest", "zeros", True), "best": Best, "rotated": Rotated,
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("dynamo", rest_is_long([True, False], 1), ids=["dynamo", "script"])
def test_gradient(device: Any, tmp_path: Path, name: str, dynamo: bool) -> None:
    log.quiet()
    torch.manual_seed(0)
    net, x = NETS[name](), torch.randn(2, 3, 6, 7)
    _, _, pairs = gradients_of_both(device, tmp_path, net, x, dynamo)
    for values, tensor in pairs:
        wanted = tensor.numpy()
        assert np.abs(values - wanted).max() <= 1e-4 * np.abs(wanted).max()
