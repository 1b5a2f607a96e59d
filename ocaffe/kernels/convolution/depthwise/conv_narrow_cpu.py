"""Depthwise convolution whose outputs are narrower than a vector, on CPU runtimes (conv_narrow_cpu.cl)."""
from __future__ import annotations

import bisect

from ocaffe.ir.kernel import JOIN, Can, Kernel, own_form, reads, write
from ocaffe.ir.launch import EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.geometry.conv_window import plane_window
from ocaffe.kernels.matmul.gemm_cpu import ITEMS_PER_CORE, ONE, ceil, tile
from ocaffe.kernels.matmul.gemm_gpu import sum_splits

FORWARD = Kernel("conv_narrow_cpu.forward", *reads("x", "filter", "bias"), write("y"), can=Can(join=True, in_blocks=own_form))
BACKWARD_DATA = Kernel("conv_narrow_cpu.backward_data", *reads("dy", "filter", "bias"), write("dx"), can=JOIN)
BACKWARD_FILTER = Kernel("conv_narrow_cpu.backward_filter", *reads("x", "dy"), write("dw"), can=JOIN)
SOURCE, RESULT = 1 << 15, 1 << 14  # floats of a block of the source and of the result, which fit the second-level cache
MAX_TAPS = 81  # maximum taps of a window, which is unrolled
EACH = 1024  # minimum pixels of the result per work-item, times the planes of a vector
GROUPS = 8  # see the kernel


def wins(rec: Recorder, g: ConvGeometry) -> bool:
    """Whether a row of outputs is shorter than a vector, and a block has room for at least one row of windows in all directions."""
    lanes = tile(rec.target)["V"]
    rooms = (_room(g, 1, back) for back in (False, True))
    return g.out[2] < lanes and g.taps <= MAX_TAPS and all(source <= SOURCE // lanes and result <= RESULT // lanes for source, result in rooms)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    _by_block(rec, g, FORWARD, y, bias is not None, g.num_output, x=x, filter=w, bias=bias or w, y=y)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    _by_block(rec, g, BACKWARD_DATA, dx, bias is not None, g.channels, dy=dy, filter=w, bias=bias or w, dx=dx)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw = the gradient of the filters, in slices of the batch if the groups of planes alone would leave cores idle."""
    groups, busy = ceil(g.num_output, tile(rec.target)["V"]), ITEMS_PER_CORE * rec.target.compute_units
    each = max(1, min(GROUPS, EACH // g.positions, groups * g.batch // busy))
    part = ceil(g.batch, min(g.batch, ceil(busy, ceil(groups, each))))
    slices = ceil(g.batch, part)
    to = dw if slices == 1 else rec.scratch("slices", (slices, dw.count))
    rec.launch(
        BACKWARD_FILTER(x=x, dy=dy, dw=to),
        args=[*_sizes(g), _rows(rec, g, g.out[1], 1, False), each, part, slices == 1 and rec.accumulates(dw)],
        size=(ceil(groups, each), slices, 1),
        local=ONE,
        defines=_defines(rec, g),
    )
    if slices > 1:
        sum_splits(rec, "conv_narrow_cpu", _defines(rec, g), to, None, dw)


def _by_block(rec: Recorder, g: ConvGeometry, kernel: Kernel, to: Ref, has_bias: bool, planes: int, **operands: Ref) -> None:
    back = kernel is BACKWARD_DATA
    lines = (g.size[1] - 1 + g.pad[1]) // g.stride[1] + 1 - g.pad[1] // g.stride[1] if back else g.out[1]  # rows of windows; backward: quotients q
    groups, busy = ceil(planes, tile(rec.target)["V"]), ITEMS_PER_CORE * rec.target.compute_units
    rows = _rows(rec, g, lines, ceil(busy, g.batch * groups), back)
    blocks = ceil(lines, rows)
    pixels = _room(g, rows, back)[1]
    each = max(1, min(EACH // pixels, g.batch * groups * blocks // busy))
    args = [*_sizes(g), rows, each, EpilogueScalars(has_bias, rec.accumulates(to))]
    rec.launch(kernel(**operands), args=args, size=(blocks, ceil(groups, each), g.batch), local=ONE, defines=_defines(rec, g))


def _rows(rec: Recorder, g: ConvGeometry, lines: int, parts: int, back: bool) -> int:
    """Return the rows of windows per block: as many as fit, in at least `parts` blocks of equal size."""
    lanes = tile(rec.target)["V"]

    def too_large(rows: int) -> bool:
        return any(pixels > most // lanes for pixels, most in zip(_room(g, rows, back), (SOURCE, RESULT)))

    largest = bisect.bisect_left(range(1, lines + 1), True, key=too_large)  # the number of sizes from 1 on that fit
    return ceil(lines, max(min(parts, lines), ceil(lines, largest)))


def _room(g: ConvGeometry, rows: int, back: bool) -> tuple[int, int]:
    """Return the pixels of source and result in a block with `rows` rows of windows, as in the kernel."""
    h, w, out_w, pad_w = *g.size[1:], g.out[2], g.pad[2]
    (stride_h, stride_w), (reach_h, reach_w) = g.stride[1:], ((k - 1) * d for k, d in zip(g.kernel[1:], g.dilation[1:]))
    if back:
        end = (w - 1 + pad_w) // stride_w + 1
        pitch = max(0, reach_w // stride_w - pad_w // stride_w) + max(out_w, end)
        return (rows + reach_h // stride_h) * pitch, min(h, rows * stride_h) * w
    return ((rows - 1) * stride_h + reach_h + 1) * max(pad_w + w, (out_w - 1) * stride_w + reach_w + 1), rows * out_w


def _sizes(g: ConvGeometry) -> list[int]:
    """Return the arguments SIZES of the kernels, without the rows of a block."""
    return [g.batch, g.num_output, g.num_output // g.channels, *g.size[1:], *g.out[1:]]


def _defines(rec: Recorder, g: ConvGeometry) -> dict[str, int]:
    lanes = tile(rec.target)["V"]
    return {"V": lanes, "SOURCE": SOURCE // lanes, "RESULT": RESULT // lanes, "GROUPS": GROUPS} | plane_window(g)
