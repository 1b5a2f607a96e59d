"""Direct depthwise convolution in two dimensions on both device classes (conv_depthwise_cpu.cl, conv_depthwise_gpu.cl).

On CPUs, conv_narrow_cpu.py is for narrow outputs, on Hopper conv_depthwise_blocks.py for channels in blocks.
"""
from __future__ import annotations

import math
from typing import Any

from ocaffe.ir.kernel import COUNTERS, JOIN, PARTS, REDUCTION, SIGN, Can, Kernel, own_form, own_parts, read, reads, write
from ocaffe.ir.launch import NO_ACTIVATION, SLOPE_ONLY, EpilogueScalars
from ocaffe.ir.recorder import MAX_COMPLETION_COUNTERS, Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.geometry.conv_window import plane_window
from ocaffe.kernels.matmul.gemm_gpu import sum_splits
from ocaffe.kernels.pooling.pooling import STRIP_GROUP, strip_counts

FORWARD = Kernel(
    "conv_depthwise_gpu.forward", read("x", bf16="SOURCE"), read("filter"), *REDUCTION, read("bias"), write("y", bf16="RESULT"),
    can=Can(parts=own_parts, sums_gradients=False),
)  # fmt: skip
BACKWARD_DATA = Kernel("conv_depthwise_gpu.backward_data", read("dy", bf16="SOURCE"), read("filter"), SIGN, read("bias"), write("dx", bf16="RESULT"))
BACKWARD_FILTER = Kernel("conv_depthwise_gpu.backward_filter", read("x", bf16="SOURCE"), read("dy", bf16="GIVEN"), COUNTERS, write("dw"), PARTS)
FORWARD_CPU = Kernel("conv_depthwise_cpu.forward", *reads("x", "filter", "bias"), write("y"), can=Can(join=True, in_blocks=own_form))
BACKWARD_DATA_CPU = Kernel("conv_depthwise_cpu.backward_data", *reads("dy", "filter", "bias"), write("dx"), can=JOIN)
BACKWARD_FILTER_CPU = Kernel("conv_depthwise_cpu.backward_filter", *reads("x", "dy"), write("dw"), can=JOIN)
PIXELS_EACH = 8192  # minimum pixels per CPU work-item, if there are enough; a work-item costs a few tenths of a microsecond
OUTPUTS = 8  # maximum outputs whose sums a CPU work-item of backward_filter keeps
ITEMS = 256  # work-items of a group of backward_filter on GPUs
GROUPS_PER_UNIT = 4  # groups per compute unit that keep a device busy
MAX_TAPS = 81  # maximum taps of a window, which the kernels unroll in registers (see also conv_depthwise_*.cl)
BLOCK = (8, 64)  # ROWS and COLUMNS of conv_depthwise_cpu.cl
BLOCK_FLOATS = 1 << 15  # maximum floats of the image for such a block


def possible(rec: Recorder, g: ConvGeometry, direction: str) -> bool:
    """Whether the kernel of `direction` has this window. backward_filter keeps a sum for each tap.

    On CPUs, it and forward keep the part of the image that a block of the result needs.
    """
    if direction == "backward_data":
        return True
    if not rec.target.is_cpu:
        return direction == "forward" or g.taps <= MAX_TAPS
    _, height, width = ((n - 1) * s + (k - 1) * d + s for n, k, s, d in zip((1, *BLOCK), g.kernel, g.stride, g.dilation))
    return g.taps <= MAX_TAPS and height * width <= BLOCK_FLOATS


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    """y = x * w (+ bias per output)."""
    epilogue = EpilogueScalars(bias is not None, rec.accumulates(y), _no_activation(rec))
    if rec.target.is_cpu:
        _by_plane(rec, g, FORWARD_CPU, epilogue, g.out, (1, 1), g.num_output, x=x, filter=w, bias=w if bias is None else bias, y=y)
        return
    strips, columns = strip_counts((g.out[1], g.out[2]), (1, 1))
    most = rec.target.group(STRIP_GROUP)
    pieces = -(-strips * columns // most)  # groups per plane; if 1, `together` planes share a group
    together = 1 if pieces > 1 else most // (strips * columns)
    items = -(-strips * columns // pieces) * together
    rec.launch(
        FORWARD(x=x, filter=w, bias=w if bias is None else bias, y=y),
        details=g.batch * pieces,
        args=[*_sizes(g), strips, pieces, together, epilogue],
        size=(-(-g.num_output // together) * pieces * items, g.batch),
        local=(items, 1),
        defines=_defines(rec, g),
    )


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    """dx = the gradient of the input (+ bias per channel of dx)."""
    epilogue = EpilogueScalars(bias is not None, rec.accumulates(dx), _no_activation(rec))
    kernel = BACKWARD_DATA_CPU if rec.target.is_cpu else BACKWARD_DATA
    _by_plane(rec, g, kernel, epilogue, g.size, g.stride[1:], g.channels, dy=dy, filter=w, bias=w if bias is None else bias, dx=dx)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw = the gradient of the filters. The batch is divided into slices if the outputs alone would leave the device idle."""
    each = min(OUTPUTS, _planes_each(rec, g, g.positions, g.num_output))
    items = -(-g.num_output // each)
    slices = min(g.batch, -(-GROUPS_PER_UNIT * rec.target.compute_units // items))
    part = -(-g.batch // slices)
    slices = -(-g.batch // part)
    in_last_block = rec.target.last_block_reduction and slices > 1 and items <= MAX_COMPLETION_COUNTERS
    once = slices == 1 or in_last_block
    group = 1 if rec.target.is_cpu else rec.target.group(ITEMS)
    to = dw if once else rec.scratch("slices", (slices, dw.count))
    kernel = BACKWARD_FILTER_CPU if rec.target.is_cpu else BACKWARD_FILTER
    rec.launch(
        kernel(
            x=x, dy=dy, counters=rec.completion_counters.view((items,)) if in_last_block else None, dw=to,
            parts=rec.scratch("slices", (items, slices, g.taps)) if in_last_block else None,
        ),
        args=[*_sizes(g), each, part, once and rec.accumulates(dw)],
        size=(items * group, slices, 1),
        local=(group, 1, 1),
        defines=_defines(rec, g) | ({"ITEMS": group} if 1 < group < ITEMS else {}) | ({"DEVICE_FENCE": rec.target.device_fence} if in_last_block else {}),
    )
    if not once:
        sum_splits(rec, kernel.file, _defines(rec, g), to, None, dw)


def _by_plane(
    rec: Recorder,
    g: ConvGeometry,
    kernel: Kernel,
    epilogue: EpilogueScalars,
    size: tuple[int, ...],
    step: tuple[int, ...],
    channels: int,
    **operands: Ref,
) -> None:
    """Record a kernel over the result's planes of `size`. A work-item computes a strip on GPUs, several whole planes on CPUs."""
    if rec.target.is_cpu:
        each = _planes_each(rec, g, math.prod(size), channels)
        items, local = (-(-channels // each), g.batch), (1, 1)
    else:
        each, columns = strip_counts((size[1], size[2]), (step[0], step[1]))
        items, local = (channels * each * columns, g.batch), (rec.target.group(STRIP_GROUP), 1)
    rec.launch(kernel(**operands), args=[*_sizes(g), each, epilogue], size=items, local=local, defines=_defines(rec, g))


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


def _defines(rec: Recorder, g: ConvGeometry) -> dict[str, Any]:
    own = {"VECTOR": 16 if rec.target.vector_width >= 16 else 8, "OUTPUTS": OUTPUTS} if rec.target.is_cpu else {}
    return own | plane_window(g)
