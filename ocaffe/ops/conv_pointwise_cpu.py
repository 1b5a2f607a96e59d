"""Convolution with a 1 x 1 window over every pixel on CPU runtimes (kernels/conv_pointwise_cpu.cl)."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.launch import EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.ops import gemm_cpu
from ocaffe.ops.conv_geometry import ConvGeometry
from ocaffe.ops.conv_parts_cpu import even, filter_slices, pack, sliced
from ocaffe.ops.gemm_cpu import ITEMS_PER_CORE, ONE, ceil, columns, share_out

WIDE, ROWS, LINE = 2, 128, 400  # see the kernel
MAX_WIDE = 16  # panels of columns, of few channels: results are written in runs of 2 KiB then
IMAGE = 8  # panels in an image for each that is taken at once: the rows of small images follow each other closely as it is
OUTPUTS = 64  # fewer are not worth taking the columns once more
STREAM_ABOVE = 8 << 20  # bytes of a result that is written past the caches: a line is not read before it is overwritten then
ITEMS = 16  # work-items per core where there is enough for them: cores need not be equally fast


def multiply(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, steps: Sequence[int]) -> None:
    """y = filters times x, forward or backward: `steps` tells `pack` how the filters lie."""
    defines = _defines(rec, g)
    if g.depth <= defines["KC"] and y.nbytes > STREAM_ABOVE:  # nothing is added up in y
        defines |= {"STREAM": 1}
    panels, deep = ceil(g.batch * g.positions, columns(defines)), even(g.depth, defines["KC"])
    blocks = ceil(g.group_outputs, OUTPUTS)
    wide = max(1, min(MAX_WIDE, WIDE * defines["KC"] // deep, g.positions // (IMAGE * columns(defines))))
    while wide > 1 and ceil(panels, wide) * g.group * blocks < ITEMS_PER_CORE * rec.target.compute_units:
        wide -= 1
    wide, near = even(panels, wide), defines["KC"] // deep  # panels between which the rows of the filters change: their lines stay near
    parts = ceil(panels, wide)
    share = ceil(parts, ITEMS * rec.target.compute_units)
    block = even(g.group_outputs, ceil(g.group_outputs, share_out(rec, ceil(parts, share) * g.group, blocks)), defines["MR"])
    packed = pack(rec, g, w, defines["MR"], g.group_outputs, g.group_outputs, g.depth, steps)
    args = [*_sizes(g), deep, wide * columns(defines), near * columns(defines), share, block, EpilogueScalars(bias is not None, rec.accumulates(y))]
    rec.launch(
        "conv_pointwise_cpu.forward",
        reads=[x, packed, bias or packed],
        writes=[y],
        args=args,
        size=(ceil(parts, share), ceil(g.group_outputs, block), g.group),
        local=ONE,
        defines=defines,
    )


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw, summed over batch and pixels."""
    channels = even(g.group_channels, ROWS)
    blocks = ceil(g.group_channels, channels)
    slices = filter_slices(rec, g, blocks)
    sliced(rec, "conv_pointwise_cpu.backward_filter", g, [x, dy], dw, _defines(rec, g), slices, (blocks, g.group), [*_sizes(g), channels])


def _defines(rec: Recorder, g: ConvGeometry) -> dict[str, int]:
    return gemm_cpu.tile(rec.target, g.group_outputs) | {"WIDE": WIDE, "ROWS": ROWS, "LINE": LINE}


def _sizes(g: ConvGeometry) -> list[int]:
    """IMAGES of the kernels."""
    return [g.batch, g.group_channels, g.group_outputs, g.positions]
