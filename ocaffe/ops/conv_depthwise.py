"""Direct depthwise convolution in two dimensions on both device classes (kernels/conv_depthwise_cpu.cl, conv_depthwise_gpu.cl).

On CPUs, conv_narrow_cpu.py computes narrow outputs, on Hopper conv_depthwise_blocks.py channels in blocks.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ocaffe.ir.launch import NO_ACTIVATION, RELU_MASK, SLOPE_ONLY, EpilogueScalars, Read, ReductionSlot
from ocaffe.ir.recorder import MAX_COMPLETION_COUNTERS, Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.ops import conv_blocks, conv_depthwise_blocks, conv_narrow_cpu
from ocaffe.ops.conv_geometry import ConvGeometry
from ocaffe.ops.conv_window import plane_window
from ocaffe.ops.gemm_gpu import sum_splits
from ocaffe.ops.pooling import STRIP_GROUP, strip_counts

PIXELS_EACH = 8192  # minimum pixels per CPU work-item, if there are enough; a work-item costs a few tenths of a microsecond
OUTPUTS = 8  # maximum outputs whose sums a CPU work-item of backward_filter keeps
ITEMS = 256  # work-items of a group of backward_filter on GPUs
GROUPS_PER_UNIT = 4  # groups per compute unit that keep a device busy
MAX_TAPS = 81  # maximum taps of a window, which the kernels unroll in registers (see also conv_depthwise_*.cl)
STORED = ("SOURCE", "", "", "RESULT")  # bf16 operands of forward and backward_data on GPUs
BLOCK = (8, 64)  # ROWS and COLUMNS of conv_depthwise_cpu.cl
BLOCK_FLOATS = 1 << 15  # maximum floats of the image for such a block


def reads(rec: Recorder, g: ConvGeometry) -> bool:
    """Whether forward supports this window. On CPUs it keeps the part of the image that a block of the result needs."""
    if not rec.target.is_cpu:
        return True
    _, height, width = ((n - 1) * s + (k - 1) * d + s for n, k, s, d in zip((1, *BLOCK), g.kernel, g.stride, g.dilation))
    return g.taps <= MAX_TAPS and height * width <= BLOCK_FLOATS


def sums(rec: Recorder, g: ConvGeometry) -> bool:
    """Whether backward_filter supports this window. It also keeps a sum for each tap."""
    return g.taps <= MAX_TAPS and reads(rec, g)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    """y = x * w (+ bias per output)."""
    if rec.target.is_cpu and conv_narrow_cpu.wins(rec, g):
        conv_narrow_cpu.forward(rec, g, x, w, bias, y)
        return
    if conv_blocks.pays(rec, g) and conv_depthwise_blocks.possible(rec.target, g):
        conv_depthwise_blocks.forward(rec, g, x, w, bias, y)
        return
    epilogue = EpilogueScalars(bias is not None, rec.accumulates(y), _no_activation(rec))
    if rec.target.is_cpu:
        _by_plane(rec, g, "forward", [x, w, w if bias is None else bias], y, epilogue, g.out, (1, 1), g.num_output)
        return
    strips, columns = strip_counts((g.out[1], g.out[2]), (1, 1))
    most = rec.target.group(STRIP_GROUP)
    pieces = -(-strips * columns // most)  # groups per plane; if 1, `together` planes share a group
    together = 1 if pieces > 1 else most // (strips * columns)
    items = -(-strips * columns // pieces) * together
    rec.launch(
        "conv_depthwise_gpu.forward",
        reads=[x, w, ReductionSlot(g.batch * pieces, gradients=False), w if bias is None else bias],
        writes=[y],
        args=[*_sizes(g), strips, pieces, together, epilogue],
        bf16_operands=STORED,
        size=(-(-g.num_output // together) * pieces * items, g.batch),
        local=(items, 1),
        defines=_defines(rec, g),
    )


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    """dx = the gradient of the input (+ bias per channel of dx)."""
    if rec.target.is_cpu and conv_narrow_cpu.wins(rec, g):
        conv_narrow_cpu.backward_data(rec, g, dy, w, dx, bias)
        return
    if conv_depthwise_blocks.possible(rec.target, g):
        conv_depthwise_blocks.backward_data(rec, g, dy, w, bias, dx)
        return
    epilogue = EpilogueScalars(bias is not None, rec.accumulates(dx), _no_activation(rec))
    reads = [dy, w, None if rec.target.is_cpu else RELU_MASK, w if bias is None else bias]
    _by_plane(rec, g, "backward_data", reads, dx, epilogue, g.size, g.stride[1:], g.channels)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw = the gradient of the filters. The batch is divided into slices if the outputs alone would leave the device idle."""
    if rec.target.is_cpu and conv_narrow_cpu.wins(rec, g):
        conv_narrow_cpu.backward_filter(rec, g, x, dy, dw)
        return
    if conv_depthwise_blocks.possible(rec.target, g):
        conv_depthwise_blocks.backward_filter(rec, g, x, dy, dw)
        return
    each = min(OUTPUTS, _planes_each(rec, g, g.positions, g.num_output))
    items = -(-g.num_output // each)
    slices = min(g.batch, -(-GROUPS_PER_UNIT * rec.target.compute_units // items))
    part = -(-g.batch // slices)
    slices = -(-g.batch // part)
    in_last_block = rec.target.last_block_reduction and slices > 1 and items <= MAX_COMPLETION_COUNTERS
    once = slices == 1 or in_last_block
    group = 1 if rec.target.is_cpu else rec.target.group(ITEMS)
    to = dw if once else rec.scratch("slices", (slices, dw.count))
    rec.launch(
        f"{_family(rec)}.backward_filter",
        reads=[x, dy, *([rec.completion_counters.view((items,))] if in_last_block else [])],
        writes=[to, *([rec.scratch("slices", (items, slices, g.taps))] if in_last_block else [])],
        args=[*_sizes(g), each, part, once and rec.accumulates(dw)],
        bf16_operands=("SOURCE", "GIVEN"),
        size=(items * group, slices, 1),
        local=(group, 1, 1),
        defines=_defines(rec, g) | ({"ITEMS": group} if 1 < group < ITEMS else {}) | ({"DEVICE_FENCE": rec.target.device_fence} if in_last_block else {}),
    )
    if not once:
        sum_splits(rec, _family(rec), _defines(rec, g), to, None, dw)


def _by_plane(
    rec: Recorder,
    g: ConvGeometry,
    kernel: str,
    reads: Sequence[Read],
    to: Ref,
    epilogue: EpilogueScalars,
    size: tuple[int, ...],
    step: tuple[int, ...],
    channels: int,
) -> None:
    """Record a kernel over the result's planes of `size`. A work-item computes a strip on GPUs, several whole planes on CPUs."""
    if rec.target.is_cpu:
        each = _planes_each(rec, g, math.prod(size), channels)
        items, local = (-(-channels // each), g.batch), (1, 1)
    else:
        each, columns = strip_counts((size[1], size[2]), (step[0], step[1]))
        items, local = (channels * each * columns, g.batch), (rec.target.group(STRIP_GROUP), 1)
    rec.launch(
        f"{_family(rec)}.{kernel}",
        reads=reads,
        writes=[to],
        args=[*_sizes(g), each, epilogue],
        bf16_operands=STORED,
        size=items,
        local=local,
        defines=_defines(rec, g),
    )


def _no_activation(rec: Recorder) -> tuple[float, ...]:
    """Return the activation scalars of the epilogue. The GPU kernels support only slopes."""
    return NO_ACTIVATION if rec.target.is_cpu else SLOPE_ONLY


def _planes_each(rec: Recorder, g: ConvGeometry, pixels: int, channels: int) -> int:
    """Return the planes per CPU work-item: enough work for one work-item, and enough work-items for all cores."""
    if not rec.target.is_cpu:
        return 1
    busy = g.batch * channels // (GROUPS_PER_UNIT * rec.target.compute_units)
    return max(1, min(channels, PIXELS_EACH // pixels, busy))


def _sizes(g: ConvGeometry) -> list[int]:
    """Return the arguments of the macro SIZES."""
    return [g.batch, g.num_output, g.num_output // g.channels, *g.size[1:], *g.out[1:]]


def _family(rec: Recorder) -> str:
    return f"conv_depthwise_{rec.target.kind}"


def _defines(rec: Recorder, g: ConvGeometry) -> dict[str, Any]:
    own = {"VECTOR": 16 if rec.target.vector_width >= 16 else 8, "OUTPUTS": OUTPUTS} if rec.target.is_cpu else {}
    return own | plane_window(g)
