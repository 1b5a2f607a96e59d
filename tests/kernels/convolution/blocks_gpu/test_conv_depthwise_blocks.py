"""Depthwise convolution on channels in blocks: kernels/convolution/blocks_gpu/conv_depthwise_blocks.cl against float64."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BLOCKS_GPU, Ref, Role
from ocaffe.kernels.convolution.blocks_gpu import conv_depthwise_blocks
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from tests.harness import execute, loaded, of_kind, stored
from tests.kernels.expression.test_channel_blocks import draw

GEOMETRIES = {
    "3x3": ((3, 16, 9, 10), 3, 1, 1, 1),  # shape, kernel, stride, pad, dilation
    "3x3/2": ((2, 24, 11, 8), 3, 2, 1, 1),
    "3x3, small": ((40, 8, 4, 4), 3, 1, 1, 1),
    "2x2/2, no pad": ((2, 8, 7, 5), 2, 2, 0, 1),
    "3x3, dilation": ((2, 8, 9, 7), 3, 1, 2, 2),
}


def results(g: ConvGeometry, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return y, dx and dw in float64."""
    (sy, sx), (py, px), (ey, ex) = g.stride[1:], g.pad[1:], g.dilation[1:]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (py, py), (px, px)))
    back, y, dw = np.zeros_like(padded), np.zeros(dy.shape), np.zeros(w.shape)
    for i in range(g.kernel[1]):
        for j in range(g.kernel[2]):
            place = np.s_[:, :, i * ey : i * ey + (dy.shape[2] - 1) * sy + 1 : sy, j * ex : j * ex + (dy.shape[3] - 1) * sx + 1 : sx]
            y += padded[place] * w[:, 0, i, j].reshape(1, -1, 1, 1)
            back[place] += dy * w[:, 0, i, j].reshape(1, -1, 1, 1)
            dw[:, 0, i, j] = (padded[place] * dy).sum((0, 2, 3))
    return y, back[:, :, py : py + x.shape[2], px : px + x.shape[3]], dw


@pytest.mark.parametrize("last_block", [True, False])
@pytest.mark.parametrize("math, error", [("bf16", 0.004), ("tf32", 1e-6)])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_directions(device: Any, name: str, math: str, error: float, last_block: bool) -> None:
    (n, c, h, w_), kernel, stride, pad, dilation = GEOMETRIES[name]
    oh, ow = ((size + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1 for size in (h, w_))
    pair = lambda value: (1, value, value)  # noqa: E731
    g = ConvGeometry(n, c, c, c, (1, h, w_), (1, oh, ow), pair(kernel), pair(stride), (0, pad, pad), pair(dilation))
    target = replace(of_kind(device.target, "gpu"), wgmma=True, math=math)
    if not last_block:
        target = replace(target, device_fence="")
    elif not target.last_block_reduction:
        pytest.skip("the device has no fence for it")
    rec = Recorder(target, train=True)
    rec.enter("conv", "forward")
    assert conv_depthwise_blocks.possible(rec.target, g)
    x, dx = (Ref(key, (n, c, h, w_), role, target.block_type, layout=BLOCKS_GPU) for key, role in (("x", Role.ACTIVATION), ("dx", Role.DIFF)))
    y, dy = (Ref(key, (n, c, oh, ow), role, target.block_type, layout=BLOCKS_GPU) for key, role in (("y", Role.ACTIVATION), ("dy", Role.DIFF)))
    w, bias, dw = Ref("w", g.weight_shape, Role.PARAMETER), Ref("bias", (c,), Role.PARAMETER), Ref("dw", g.weight_shape, Role.GRADIENT)
    a, f, b, d = draw(x.shape), draw((c, 1, kernel, kernel), 1), draw((c,), 2), draw(y.shape, 3)
    conv_depthwise_blocks.forward(rec, g, x, w, bias, y)
    conv_depthwise_blocks.backward_data(rec, g, dy, w, dx)
    conv_depthwise_blocks.backward_filter(rec, g, x, dy, dw)
    got_y, got_dx, got_dw = execute(rec, device.context, {x: stored(a, x), w: f, bias: b, dy: stored(d, dy)}, [y, dx, dw])
    wanted_y, wanted_dx, wanted_dw = results(g, a, f, d)
    for got, wanted in ((loaded(got_y), wanted_y + b.reshape(-1, 1, 1)), (loaded(got_dx), wanted_dx)):
        assert np.abs(got - wanted).max() <= error * np.abs(wanted).max()
    assert np.abs(got_dw.reshape(wanted_dw.shape) - wanted_dw).max() <= 1e-5 * np.abs(wanted_dw).max()
