"""Depthwise convolution in two dimensions, directly, on both machine classes (kernels/conv_depthwise.cl)."""
from __future__ import annotations

from typing import TYPE_CHECKING

from ocaffe.graph.ir import Ref
from ocaffe.graph.recorder import Recorder
from ocaffe.ops.gemm_gpu import sum_splits

if TYPE_CHECKING:
    from ocaffe.ops.convolution import ConvGeometry

PIXELS_AND_CHANNELS = (64, 4, 1)  # a work-group on a GPU: small planes fill few lanes, so it takes several
ITEMS = 256  # work-items of a group of backward_filter there
GROUPS_PER_UNIT = 4  # that keep a device busy


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    """y = x * w (+ bias per output)."""
    accumulate = rec.accumulates(y)
    args = [*_sizes(g), bias is not None, accumulate, 1.0]
    _launch(rec, g, "forward", [x, w, w if bias is None else bias], y, args, (g.positions, g.num_output, g.batch), 9)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref) -> None:
    """dx = the gradient of the input."""
    _launch(rec, g, "backward_data", [dy, w], dx, [*_sizes(g), rec.accumulates(dx)], (g.pixels, g.channels, g.batch))


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw = the gradient of the filters; in slices of the batch where the outputs alone would leave the device idle."""
    slices = min(g.batch, -(-GROUPS_PER_UNIT * rec.target.compute_units // g.num_output))
    part = -(-g.batch // slices)
    slices = -(-g.batch // part)
    once = slices == 1
    items = 1 if rec.target.is_cpu else ITEMS
    to = dw if once else rec.scratch("slices", (slices, dw.count))
    rec.launch(
        "conv_depthwise.backward_filter",
        reads=[x, dy],
        writes=[to],
        args=[*_sizes(g), part, once and rec.accumulates(dw)],
        size=(g.num_output * items, slices, 1),
        local=(items, 1, 1),
        defines=_defines(rec, g),
    )
    if not once:
        sum_splits(rec, "conv_depthwise", _defines(rec, g), to, None, dw)


def _launch(
    rec: Recorder,
    g: ConvGeometry,
    kernel: str,
    reads: list[Ref],
    to: Ref,
    args: list[float],
    result: tuple[int, int, int],
    slope_arg: int | None = None,
) -> None:
    """A kernel over the pixels, channels and samples of its result; on CPUs a work-item takes a whole plane."""
    size, local = ((result[1], result[2], 1), (1, 1, 1)) if rec.target.is_cpu else (result, PIXELS_AND_CHANNELS)
    rec.launch(
        f"conv_depthwise.{kernel}", reads=reads, writes=[to], args=args, size=size, local=local, defines=_defines(rec, g), slope_arg=slope_arg
    )


def _sizes(g: ConvGeometry) -> list[int]:
    """The macro SIZES of the kernels."""
    return [g.batch, g.num_output, g.num_output // g.channels, *g.size[1:], *g.out[1:]]


def _defines(rec: Recorder, g: ConvGeometry) -> dict[str, int]:
    result = {"VECTOR": (16 if rec.target.vector_width >= 16 else 8) if rec.target.is_cpu else 0}
    for i, axis in enumerate("HW", 1):
        result |= {f"KERNEL_{axis}": g.kernel[i], f"STRIDE_{axis}": g.stride[i], f"PAD_{axis}": g.pad[i], f"DILATION_{axis}": g.dilation[i]}
    return result
