"""Depthwise convolution on CPU runtimes with channels in blocks (conv_depthwise_blocked_cpu.cl)."""
from __future__ import annotations

from functools import partial

from ocaffe.ir.kernel import JOIN, BlockedForm, Kernel, Order, read, reads, write
from ocaffe.ir.launch import EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul import gemm_cpu
from ocaffe.kernels.matmul.gemm_cpu import ONE, ceil, share_out

FORWARD = Kernel(
    "conv_depthwise_blocked_cpu.forward", read("x", order=Order.BLOCKS), *reads("packed", "bias"), write("y", order=Order.BLOCKS), can=JOIN,
)  # fmt: skip
MAX_TAPS = 81  # maximum taps of a window, whose lines are unrolled


def form(rec: Recorder, g: ConvGeometry, w: Ref) -> BlockedForm | None:
    """Return how `forward` of this geometry runs with channels in blocks, or None if it cannot."""
    possible = g.channels == g.num_output and g.channels % rec.channel_block == 0 and g.taps <= MAX_TAPS
    return BlockedForm(partial(_record, g=g, w=w)) if possible else None


def _record(rec: Recorder, x: Ref, y: Ref, blocked: bool, *, g: ConvGeometry, w: Ref) -> None:
    assert blocked, "a depthwise convolution mixes no channels, so that x is as y"
    width = rec.channel_block
    blocks = g.channels // width
    packed = rec.scratch("packed", (blocks, g.taps, width))
    gemm_cpu.pack(rec, w, packed, g.channels, g.channels, g.taps, [0, g.taps, g.taps, g.taps, 1, 0], width)
    defines = {"V": width}
    for axis, kernel, stride, dilation in zip("HW", g.kernel[1:], g.stride[1:], g.dilation[1:], strict=True):
        defines |= {f"K{axis}": kernel, f"S{axis}": stride, f"D{axis}": dilation}
    rows = ceil(g.out[1], share_out(rec, blocks * g.batch, g.out[1]))
    rec.launch(
        FORWARD(x=x, packed=packed, bias=packed, y=y),
        args=[*g.size[1:], *g.out[1:], *g.pad[1:], rows, EpilogueScalars(False, False)],
        size=(ceil(g.out[1], rows), blocks, g.batch),
        local=ONE,
        defines=defines,
    )
