"""Convolution on channels in blocks, emulated: kernels/convolution/blocks_gpu/conv_blocks.cl against float64."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BLOCKS_GPU, Ref, Role
from ocaffe.kernels.convolution.blocks_gpu import conv_blocks
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from tests.harness import blocks, execute, loaded, of_kind, stored
from tests.kernels.expression.test_channel_blocks import draw

ONE = (1, 1, 1)


def geometry(n: int, c: int, k: int, h: int, w: int, kh: int, kw: int, stride: int = 1) -> ConvGeometry:
    out = 1, -(-h // stride), -(-w // stride)
    return ConvGeometry(n, c, k, 1, (1, h, w), out, (1, kh, kw), (1, stride, stride), (0, kh // 2, kw // 2), ONE)


def padded(g: ConvGeometry, *pad: int) -> ConvGeometry:
    out = (size + 2 * both - kernel + 1 for size, both, kernel in zip(g.size[1:], pad, g.kernel[1:]))
    return replace(g, pad=(0, *pad), out=(1, *out))


GEOMETRIES = {
    "1x1": geometry(3, 32, 48, 5, 7, 1, 1),
    "3x3": geometry(2, 16, 32, 9, 6, 3, 3),
    "3x3, small": geometry(5, 32, 16, 3, 3, 3, 3),
    "3x3, wide": geometry(1, 16, 16, 2, 70, 3, 3),
    "3x3/2": geometry(2, 24, 16, 9, 6, 3, 3, 2),
    "3x3/2, even": geometry(3, 16, 40, 4, 10, 3, 3, 2),
    "1x5": geometry(2, 16, 144, 4, 9, 1, 5),
    "3x3, odd blocks": geometry(2, 24, 40, 5, 6, 3, 3),
    "7x1": geometry(2, 16, 16, 9, 4, 7, 1),
    "5x5": geometry(1, 32, 16, 5, 7, 5, 5),
    "1x20": padded(geometry(1, 16, 16, 2, 22, 1, 20), 0, 9),
    "4x2, other paddings": padded(geometry(2, 16, 24, 7, 6, 4, 2), 0, 1),
    "3x3, other paddings": padded(geometry(2, 8, 16, 5, 6, 3, 3), 2, 0),
    "3x3, two groups": replace(geometry(2, 80, 96, 5, 6, 3, 3), group=2),
    "1x1, three groups": replace(geometry(3, 120, 96, 5, 7, 1, 1), group=3),
    "5x5, two groups": replace(geometry(1, 64, 64, 4, 5, 5, 5), group=2),
    "3x3/2, two groups": replace(geometry(2, 80, 96, 9, 6, 3, 3, 2), group=2),
}


def windows_of(g: ConvGeometry, x: np.ndarray) -> np.ndarray:
    """Return N x C x OH x OW x KH x KW."""
    wider = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *((pad, pad) for pad in g.pad[1:])))
    return np.lib.stride_tricks.sliding_window_view(wider, g.kernel[1:], (2, 3))[:, :, :: g.stride[1], :: g.stride[2]]


def of_groups(function: Any, g: ConvGeometry, axes: tuple[int, int, int], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return `function` of each group of channels. `axes`: those of the channels in `a`, in `b` and in the result."""
    one = replace(g, channels=g.group_channels, num_output=g.group_outputs, group=1)
    parts = zip(np.split(a, g.group, axes[0]), np.split(b, g.group, axes[1]))
    return np.concatenate([function(one, *operands) for operands in parts], axes[2])


def convolved(g: ConvGeometry, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    if g.group > 1:
        return of_groups(convolved, g, (1, 0, 1), x, w)
    return np.einsum("nchwyx,kcyx->nkhw", windows_of(g, x), w.astype(np.float64))


def filters(g: ConvGeometry, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    if g.group > 1:
        return of_groups(filters, g, (1, 1, 0), x, dy)
    return np.einsum("nchwyx,nkhw->kcyx", windows_of(g, x), dy.astype(np.float64))


def back(g: ConvGeometry, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the gradient of x: between the elements of dy are stride - 1 zeros."""
    if g.group > 1:
        return of_groups(back, g, (1, 0, 1), dy, w)
    turned = np.ascontiguousarray(w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))
    places = (size + 2 * pad - kernel + 1 for size, pad, kernel in zip(g.size[1:], g.pad[1:], g.kernel[1:]))
    apart = np.zeros((g.batch, g.num_output, *places), np.float64)
    apart[:, :, :: g.stride[1], :: g.stride[2]] = dy
    turned_pad = (0, *(kernel - 1 - pad for kernel, pad in zip(g.kernel[1:], g.pad[1:])))
    same = replace(g, channels=g.num_output, num_output=g.channels, stride=ONE, size=(1, *apart.shape[2:]), pad=turned_pad, out=g.size)
    return convolved(same, apart, turned)


def recorder(device: Any, math: str, phase: str = "forward") -> Recorder:
    rec = Recorder(replace(of_kind(device.target, "gpu"), wgmma=True, math=math), train=True)
    rec.enter("conv", phase)
    return rec


# CPU runtimes compile each for seconds.
FEW = ("1x1", "3x3", "3x3, odd blocks", "3x3/2", "7x1", "4x2, other paddings", "3x3, two groups")


@pytest.mark.parametrize("math, error", [("bf16", 0.004), ("tf32", 3e-6)])
@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.sweep) for name in GEOMETRIES if name not in FEW)])
def test_directions(device: Any, name: str, math: str, error: float) -> None:
    g = GEOMETRIES[name]
    rec = recorder(device, math)

    def image(name: str, size: tuple[int, ...], channels: int, role: Role = Role.ACTIVATION) -> Ref:
        return Ref(name, (g.batch, channels, *size[1:]), role, rec.target.block_type, layout=BLOCKS_GPU)

    assert all(conv_blocks.possible(rec.target, g, direction) for direction in ("forward", "backward_data", "backward_filter"))
    x, y, dx = image("x", g.size, g.channels), image("y", g.out, g.num_output), image("dx", g.size, g.channels, Role.DIFF)
    w, bias, dw = Ref("w", g.weight_shape, Role.PARAMETER), Ref("bias", (g.num_output,), Role.PARAMETER), Ref("dw", g.weight_shape, Role.GRADIENT)
    a, f, b, d = draw(x.shape), draw((g.num_output, g.group_channels, *g.kernel[1:]), 1), draw((g.num_output,), 2), draw(y.shape, 3)
    dy = image("dy", g.out, g.num_output, Role.DIFF)
    conv_blocks.forward(rec, g, x, w, bias, y)
    conv_blocks.backward_data(rec, g, dy, w, dx)
    conv_blocks.backward_filter(rec, g, x, dy, dw)
    got_y, got_dx, got_dw = execute(rec, device.context, {x: stored(a, x), w: f, bias: b, dy: stored(d, dy)}, [y, dx, dw])
    for got, expected in (
        (loaded(got_y), convolved(g, a, f) + b.reshape(-1, 1, 1)),
        (loaded(got_dx), back(g, d, f)),
    ):
        assert np.abs(got - expected).max() <= error * np.abs(expected).max()
    expected = filters(g, a, d)
    assert np.abs(got_dw.reshape(expected.shape) - expected).max() <= 2e-5 * np.abs(expected).max()


def to_tf32(values: np.ndarray) -> np.ndarray:
    """Return the nearest TF32 values, halves away from zero."""
    return ((np.ascontiguousarray(values, np.float32).view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)


def test_tf32_is_rounded_not_truncated_and_inf_and_nan_stay(device: Any) -> None:
    """wgmma ignores the low bits of its operands; NVIDIA's own NaN has all bits set, so that adding half a unit would make it a number."""
    g, rng = GEOMETRIES["3x3"], np.random.default_rng(0)
    rec = recorder(device, "tf32")
    x, y, dx, dy = (
        Ref(name, (g.batch, channels, *g.size[1:]), role, layout=BLOCKS_GPU)
        for name, channels, role in (("x", g.channels, Role.ACTIVATION), ("y", g.num_output, Role.ACTIVATION), ("dx", g.channels, Role.DIFF),
                                     ("dy", g.num_output, Role.DIFF))
    )  # fmt: skip
    w, dw = Ref("w", g.weight_shape, Role.PARAMETER), Ref("dw", g.weight_shape, Role.GRADIENT)
    a, d = (rng.standard_normal(ref.shape).astype(np.float32) for ref in (x, dy))
    f = rng.standard_normal((g.num_output, g.channels, *g.kernel[1:])).astype(np.float32)
    conv_blocks.forward(rec, g, x, w, None, y)
    conv_blocks.backward_data(rec, g, dy, w, dx)
    conv_blocks.backward_filter(rec, g, x, dy, dw)
    got = execute(rec, device.context, {x: blocks(a), w: f, dy: blocks(d)}, [y, dx, dw])
    ra, rf, rd = to_tf32(a), to_tf32(f), to_tf32(d)
    for found, expected in zip((loaded(got[0]), loaded(got[1]), got[2].reshape(f.shape)), (convolved(g, ra, rf), back(g, rd, rf), filters(g, ra, rd))):
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    a[1, 0, 4, 3] = d[1, 0, 4, 3] = np.inf
    found_y, found_dx, _ = execute(rec, device.context, {x: blocks(a), w: f, dy: blocks(d)}, [y, dx, dw])
    assert np.isinf(loaded(found_y)[1, :, 3:6, 2:5]).all() and np.isinf(loaded(found_dx)[1, :, 3:6, 2:5]).all()
    a[1, 0, 4, 3] = d[1, 0, 4, 3] = 1
    a.view(np.uint32)[0, 3, 2, 2] = d.view(np.uint32)[0, 5, 4, 4] = 0x7FFFFFFF
    found_y, found_dx, found_dw = execute(rec, device.context, {x: blocks(a), w: f, dy: blocks(d)}, [y, dx, dw])
    assert np.isnan(loaded(found_y)[0, :, 1:4, 1:4]).all() and np.isnan(loaded(found_dx)[0, :, 3:6, 3:6]).all()
    found_dw = found_dw.reshape(f.shape)
    assert np.isnan(found_dw[:, 3]).all() and np.isnan(found_dw[5]).all() and not np.isnan(found_dw[:5, :3]).any()
