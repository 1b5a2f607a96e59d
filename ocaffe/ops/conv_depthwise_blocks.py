"""Depthwise convolution on channels in blocks of 8 (kernels/conv_depthwise_blocks.cl), between convolutions by wgmma (conv_blocks.py)."""
from __future__ import annotations

from typing import TYPE_CHECKING

from ocaffe.ir.launch import RELU_MASK, SLOPE_ONLY, EpilogueScalars, Read, ReductionSlot
from ocaffe.ir.recorder import MAX_COMPLETION_COUNTERS, Recorder
from ocaffe.ir.tensor import BLOCK, Ref
from ocaffe.ops.conv_blocks import block_defines
from ocaffe.ops.conv_window import plane_window
from ocaffe.ops.gemm_gpu import sum_splits
from ocaffe.ops.pooling import strip_counts

if TYPE_CHECKING:
    from ocaffe.ir.target import Target
    from ocaffe.ops.conv_geometry import ConvGeometry

MAX_TAPS = 9  # backward_filter keeps eight sums for each in registers
ITEMS = 128  # work-items of a group
GROUPS_PER_UNIT = 6  # of backward_filter, which keep a device busy
STORED = ("SOURCE", "", "", "RESULT")  # operands in blocks of forward and backward_data


def possible(target: Target, g: ConvGeometry) -> bool:
    """Whether the kernels compute the geometry on this device. `g`: depthwise, of two axes."""
    return target.wgmma and g.channels == g.num_output and g.channels % BLOCK == 0 and g.taps <= MAX_TAPS


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    groups = _groups(g, (g.out[1], g.out[2]), (1, 1))
    _gather(rec, g, "forward", groups, x, w, ReductionSlot(groups, gradients=False), bias, y)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, bias: Ref | None, dx: Ref) -> None:
    groups = _groups(g, (g.size[1], g.size[2]), (g.stride[1], g.stride[2]))
    _gather(rec, g, "backward_data", groups, dy, w, RELU_MASK, bias, dx)


def _gather(rec: Recorder, g: ConvGeometry, direction: str, groups: int, source: Ref, w: Ref, slot: Read, bias: Ref | None, to: Ref) -> None:
    rec.launch(
        f"conv_depthwise_blocks.{direction}",
        reads=[source, w, slot, w if bias is None else bias],
        writes=[to],
        args=[*_sizes(g), EpilogueScalars(bias is not None, rec.accumulates(to), SLOPE_ONLY, bounds=True)],
        bf16_operands=STORED,
        blocks=True,
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
        "conv_depthwise_blocks.backward_filter",
        reads=[x, dy, *([rec.completion_counters.view((blocks,))] if in_last_block else [])],
        writes=[to, *([rec.scratch("slices", (blocks, slices, BLOCK * g.taps))] if in_last_block else [])],
        args=[*_sizes(g), part, once and rec.accumulates(dw)],
        bf16_operands=("SOURCE", "GIVEN"),
        blocks=True,
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
