"""Convolution over a few channels by wgmma, emulated: kernels/convolution/blocks_gpu/conv_blocks_first.cl and conv_blocks.cl against float64."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.tensor import BFLOAT, Ref, Role
from ocaffe.kernels.convolution.blocks_gpu import conv_blocks_first
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.passes.bf16 import lower_to_bf16
from ocaffe.passes.layouts import layouts
from tests.harness import execute, loaded, narrowed, stored, treat_as_large
from tests.kernels.convolution.blocks_gpu.test_conv_blocks import ONE, convolved, filters, recorder
from tests.kernels.expression.test_channel_blocks import draw


def geometry(n: int, c: int, k: int, h: int, w: int, kernel: tuple[int, int], stride: int, pad: int) -> ConvGeometry:
    out = ((size + 2 * pad - side) // stride + 1 for size, side in zip((h, w), kernel))
    return ConvGeometry(n, c, k, 1, (1, h, w), (1, *out), (1, *kernel), (1, stride, stride), (0, pad, pad), ONE)


GEOMETRIES = {  # and whether x is in bfloat16
    "7x7/2": (geometry(2, 3, 16, 12, 15, (7, 7), 2, 3), False),
    "7x7/2, odd": (geometry(2, 3, 72, 13, 9, (7, 7), 2, 3), True),
    "11x11/4": (geometry(2, 3, 24, 27, 32, (11, 11), 4, 0), False),
    "11x11/4, padded": (geometry(1, 3, 16, 23, 21, (11, 11), 4, 2), True),
    "3x3": (geometry(2, 3, 16, 6, 9, (3, 3), 1, 1), True),
    "3x3/2": (geometry(3, 3, 32, 8, 7, (3, 3), 2, 1), False),
    "3x3/2, no padding": (geometry(3, 4, 16, 9, 8, (3, 3), 2, 0), False),
    "5x5": (geometry(2, 1, 16, 8, 7, (5, 5), 1, 2), False),
    "2x5/3, six channels": (geometry(2, 6, 16, 8, 12, (2, 5), 3, 1), False),
    "1x1": (geometry(2, 3, 16, 5, 6, (1, 1), 1, 0), False),
}
FEW = ("7x7/2", "11x11/4, padded", "3x3")  # CPU runtimes compile each for seconds


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.sweep) for name in GEOMETRIES if name not in FEW)])
@pytest.mark.parametrize("math, error", [("bf16", 0.004), ("tf32", 3e-6)])
def test_directions(device: Any, monkeypatch: pytest.MonkeyPatch, name: str, math: str, error: float) -> None:
    g, narrow = GEOMETRIES[name]
    narrow &= math == "bf16"
    if narrow:
        treat_as_large(monkeypatch, 1)
    rec = recorder(device, math, "backward")
    ways = {way: conv_blocks_first.possible(rec.target, g, way) for way in ("forward", "backward_data", "backward_filter")}
    assert ways == {"forward": True, "backward_data": False, "backward_filter": True}
    x, y = Ref("x", (g.batch, g.channels, *g.size[1:]), Role.ACTIVATION), Ref("y", (g.batch, g.num_output, *g.out[1:]), Role.ACTIVATION)
    dy = Ref("dy", y.shape, Role.DIFF)
    w, bias, dw = Ref("w", g.weight_shape, Role.PARAMETER), Ref("bias", (g.num_output,), Role.PARAMETER), Ref("dw", g.weight_shape, Role.GRADIENT)
    a, f, b, d = draw(x.shape), draw((g.num_output, g.channels, *g.kernel[1:]), 1), draw((g.num_output,), 2), draw(y.shape, 3)
    conv_blocks_first.forward(rec, g, x, w, bias, y)
    conv_blocks_first.backward_filter(rec, g, x, dy, dw)
    rec.enter("again", "backward")
    conv_blocks_first.backward_filter(rec, g, x, dy, dw)  # adds
    rec.launches = lower_to_bf16(layouts(rec.launches, rec.target), rec.target)
    assert (x.blocked, y.blocked, dy.blocked, x.dtype == BFLOAT) == (False, True, True, narrow)
    got_y, got_dw = execute(rec, device.context, {x: narrowed(a) if narrow else a, w: f, bias: b, dy: stored(d, dy)}, [y, dw])
    expected = convolved(g, a, f) + b.reshape(-1, 1, 1)
    assert np.abs(loaded(got_y) - expected).max() <= error * np.abs(expected).max()
    expected = 2 * filters(g, a, d)
    assert np.abs(got_dw.reshape(expected.shape) - expected).max() <= 2e-5 * np.abs(expected).max()


def test_geometries_of_other_kernels(device: Any) -> None:
    """Outputs must fill blocks. Groups, dilated windows and many channels are for other kernels."""
    g, target = GEOMETRIES["7x7/2"][0], recorder(device, "bf16").target
    far = geometry(2, 3, 16, 20, 20, (3, 3), 1, 2)
    others = [replace(g, num_output=20), replace(g, channels=8), replace(g, channels=2, group=2), replace(far, dilation=(1, 2, 2), out=(1, 20, 20))]
    assert not any(conv_blocks_first.possible(target, other, "forward") for other in others)
    assert not conv_blocks_first.possible(replace(target, wgmma=False), g, "forward")
