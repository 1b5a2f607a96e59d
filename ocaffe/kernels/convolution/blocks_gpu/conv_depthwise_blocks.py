"""Depthwise convolution on channels in blocks of 8 (conv_depthwise_blocks.cl), between convolutions by wgmma (conv_blocks.py)."""
from __future__ import annotations

from typing import TYPE_CHECKING

from ocaffe.ir.kernel import COUNTERS, PARTS, REDUCTION, SIGN, Can, Kernel, own_parts, read, write
from ocaffe.ir.launch import SLOPE_ONLY, EpilogueScalars
from ocaffe.ir.recorder import MAX_COMPLETION_COUNTERS, Recorder
from ocaffe.ir.tensor import BLOCK, Ref
from ocaffe.kernels.convolution.blocks_gpu.conv_blocks import block_defines, image, result
from ocaffe.kernels.convolution.geometry.conv_window import plane_window
from ocaffe.kernels.matmul.gemm_gpu import sum_splits
from ocaffe.kernels.pooling.pooling import strip_counts

if TYPE_CHECKING:
    from ocaffe.ir.target import Target
    from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry

MAX_TAPS = 9  # backward_filter keeps eight sums for each in registers
ITEMS = 128  # work-items of a group
GROUPS_PER_UNIT = 6  # of backward_filter, which keep a device busy
FORWARD = Kernel(
    "conv_depthwise_blocks.forward", image("x", "SOURCE"), read("filter"), *REDUCTION, read("bias"), result("y"),
    can=Can(parts=own_parts, sums_gradients=False),
)  # fmt: skip
BACKWARD_DATA = Kernel("conv_depthwise_blocks.backward_data", image("dy", "SOURCE"), read("filter"), SIGN, read("bias"), result("dx"))
BACKWARD_FILTER = Kernel("conv_depthwise_blocks.backward_filter", image("x", "SOURCE"), image("dy", "GIVEN"), COUNTERS, write("dw"), PARTS)


def possible(target: Target, g: ConvGeometry) -> bool:
    """Whether the kernels compute the geometry on this device. `g`: depthwise, of two axes."""
    return target.wgmma and g.channels == g.num_output and g.channels % BLOCK == 0 and g.taps <= MAX_TAPS


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    groups = _groups(g, (g.out[1], g.out[2]), (1, 1))
    _gather(rec, g, FORWARD, groups, w, bias, y, x=x, y=y)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    groups = _groups(g, (g.size[1], g.size[2]), (g.stride[1], g.stride[2]))
    _gather(rec, g, BACKWARD_DATA, groups, w, bias, dx, dy=dy, dx=dx)


def _gather(rec: Recorder, g: ConvGeometry, kernel: Kernel, groups: int, w: Ref, bias: Ref | None, to: Ref, **images: Ref) -> None:
    rec.launch(
        kernel(filter=w, bias=w if bias is None else bias, **images),
        details=groups,
        args=[*_sizes(g), EpilogueScalars(bias is not None, rec.accumulates(to), SLOPE_ONLY, bounds=True)],
        size=(groups * ITEMS, g.channels // BLOCK),
        local=(ITEMS, 1),
        defines=_defines(rec.target, g),
    )


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    blocks, groups = g.channels // BLOCK, _groups(g, (g.out[1], g.out[2]), (1, 1))
    slices = min(groups, -(-GROUPS_PER_UNIT * rec.target.compute_units // blocks))
    part = -(-groups // slices) * ITEMS
    slices = -(-groups * ITEMS // part)
    in_last_block = rec.target.last_block_reduction and slices > 1 and blocks <= MAX_COMPLETION_COUNTERS
    once = slices == 1 or in_last_block
    to = dw if once else rec.scratch("slices", (slices, dw.count))
    rec.launch(
        BACKWARD_FILTER(
            x=x, dy=dy, counters=rec.completion_counters.view((blocks,)) if in_last_block else None, dw=to,
            parts=rec.scratch("slices", (blocks, slices, BLOCK * g.taps)) if in_last_block else None,
        ),
        args=[*_sizes(g), part, once and rec.accumulates(dw)],
        size=(slices * ITEMS, blocks),
        local=(ITEMS, 1),
        defines=_defines(rec.target, g) | ({"DEVICE_FENCE": rec.target.device_fence} if in_last_block else {}),
    )
    if not once:
        sum_splits(rec, "conv_depthwise_blocks", _defines(rec.target, g), to, None, dw)


def _defines(target: Target, g: ConvGeometry) -> dict[str, int]:
    return {**plane_window(g), **block_defines(target)}


def _groups(g: ConvGeometry, size: tuple[int, int], step: tuple[int, int]) -> int:
    """Return the groups over the strips of all samples of a block."""
    strips, columns = strip_counts(size, step)
    return -(-g.batch * strips * columns // ITEMS)


def _sizes(g: ConvGeometry) -> list[int]:
    """Return the arguments of the macro SIZES."""
    return [g.batch, g.channels, *g.size[1:], *g.out[1:]]
