"""Convolution with a 1 x 1 window and stride 1 on CPU runtimes (conv_pointwise_cpu.cl)."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.kernel import JOIN, Can, Kernel, own_form, reads, write
from ocaffe.ir.launch import EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.dense_cpu.conv_parts_cpu import filter_slices, mirrored_steps, pack, plain_steps, sliced
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul import gemm_cpu
from ocaffe.kernels.matmul.gemm_cpu import ITEMS_PER_CORE, ONE, ceil, columns, even, share_out

FORWARD = Kernel("conv_pointwise_cpu.forward", *reads("x", "packed", "bias"), write("y"), can=Can(join=True, in_blocks=own_form))
BACKWARD_FILTER = Kernel("conv_pointwise_cpu.backward_filter", *reads("x", "dy"), write("dw"), can=JOIN)
WIDE, ROWS, LINE = 2, 128, 400  # see the kernel
MAX_WIDE = 16  # maximum panels of columns if there are few channels: results are then written in runs of 2 KiB
IMAGE = 8  # minimum panels per image for each panel processed at once: the rows of small images are close in memory anyway
OUTPUTS = 64  # with fewer outputs, copying the columns again does not pay
STREAM_ABOVE = 8 << 20  # larger results (bytes) bypass the caches, so that a cache line is not read before it is overwritten
ITEMS = 16  # work-items per core if there is enough work, because cores may differ in speed


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    _multiply(rec, g, x, w, bias, y, plain_steps(g))


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    _multiply(rec, g.turned, dy, w, bias, dx, mirrored_steps(g))


def _multiply(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, steps: Sequence[int]) -> None:
    """y = filters times x, forward or backward. `steps` are the strides and the offset of the filters for `pack`."""
    defines = _defines(rec, g)
    if g.depth <= defines["KC"] and y.nbytes > STREAM_ABOVE:  # y holds no partial sums
        defines |= {"STREAM": 1}
    panels, deep = ceil(g.batch * g.positions, columns(defines)), even(g.depth, defines["KC"])
    blocks = ceil(g.group_outputs, OUTPUTS)
    wide = max(1, min(MAX_WIDE, WIDE * defines["KC"] // deep, g.positions // (IMAGE * columns(defines))))
    while wide > 1 and ceil(panels, wide) * g.group * blocks < ITEMS_PER_CORE * rec.target.compute_units:
        wide -= 1
    wide, near = even(panels, wide), defines["KC"] // deep  # all outputs are computed for `near` panels before the next ones, so the panels stay in the caches
    parts = ceil(panels, wide)
    share = ceil(parts, ITEMS * rec.target.compute_units)
    block = even(g.group_outputs, ceil(g.group_outputs, share_out(rec, ceil(parts, share) * g.group, blocks)), defines["MR"])
    packed = pack(rec, g, w, defines["MR"], g.group_outputs, g.group_outputs, g.depth, steps)
    args = [*_sizes(g), deep, wide * columns(defines), near * columns(defines), share, block, EpilogueScalars(bias is not None, rec.accumulates(y))]
    rec.launch(
        FORWARD(x=x, packed=packed, bias=bias or packed, y=y),
        args=args,
        size=(ceil(parts, share), ceil(g.group_outputs, block), g.group),
        local=ONE,
        defines=defines,
    )


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw = the gradient of the filters, summed over batch and pixels."""
    channels = even(g.group_channels, ROWS)
    blocks = ceil(g.group_channels, channels)
    slices = filter_slices(rec, g, blocks)
    sliced(rec, BACKWARD_FILTER, g, dw, _defines(rec, g), slices, (blocks, g.group), [*_sizes(g), channels], x=x, dy=dy)


def _defines(rec: Recorder, g: ConvGeometry) -> dict[str, int]:
    return gemm_cpu.tile(rec.target, g.group_outputs) | {"WIDE": WIDE, "ROWS": ROWS, "LINE": LINE}


def _sizes(g: ConvGeometry) -> list[int]:
    """Return the arguments IMAGES of the kernels."""
    return [g.batch, g.group_channels, g.group_outputs, g.positions]
