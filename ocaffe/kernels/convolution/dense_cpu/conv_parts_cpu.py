"""Parts that the convolutions on CPU runtimes share (kernels/matmul/product_parts_cpu.cl): packed filters, and sums over slices of the batch."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.kernel import Can, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul import gemm_cpu
from ocaffe.kernels.matmul.gemm_cpu import ONE, ceil, even, share_out

ADD_SLICES = Kernel("product_parts_cpu.add_slices", read("part"), write("sum"), can=Can(join=True, helper=True))
SLICES = 1 << 20  # maximum floats of partial filter gradients; two slices are always allowed


def pack(
    rec: Recorder, g: ConvGeometry, w: Ref, height: int, total: int, rows: int, depth: int, steps: Sequence[int]
) -> Ref:
    """Pack the filters of each group, `total` x `depth`, as panels of `height` rows in blocks of `rows`.

    `steps` are the strides and the offset in w.
    """
    panels = ceil(total, rows) * ceil(rows, height)
    packed = rec.scratch("packed", (g.group, panels, depth, height))
    gemm_cpu.pack(rec, w, packed, total, rows, depth, [g.group_outputs * g.depth, *steps], height)
    return packed


def plain_steps(g: ConvGeometry) -> list[int]:
    """Return the steps of `pack` for the filters of forward."""
    return [g.depth, g.taps, g.taps, 1, 0]


def mirrored_steps(g: ConvGeometry) -> list[int]:
    """Return the steps of `pack` for the mirrored filters of backward_data as the convolution `g.turned`."""
    return [g.taps, g.taps, g.depth, -1, g.taps - 1]


def filter_slices(rec: Recorder, g: ConvGeometry, blocks: int) -> int:
    """Return the number of slices of the batch for the gradient of `blocks` blocks of a group's filters."""
    return min(share_out(rec, blocks * g.group, g.batch), max(2, SLICES // (g.num_output * g.depth)))


def sliced(
    rec: Recorder, kernel: Kernel, g: ConvGeometry, to: Ref, defines: dict[str, int], slices: int, size: tuple[int, int], args: list[int], **operands: Ref,
) -> None:  # fmt: skip
    """Record a sum over the batch in at most `slices` slices. A second launch adds them if there is more than one. `operands`: the ones that it reads."""
    samples = ceil(g.batch, slices)
    slices = ceil(g.batch, samples)
    accumulate = rec.accumulates(to)
    part = rec.scratch("slices", (slices, to.count)) if slices > 1 else to
    args = [*args, samples, accumulate and slices == 1]
    rec.launch(kernel(**operands, **{kernel.slots[-1].name: part}), args=args, size=(size[0], slices, size[1]), local=ONE, defines=defines)
    if slices > 1:
        share = even(to.count, max(1024, ceil(to.count, share_out(rec, 1, to.count))), gemm_cpu.tile(rec.target)["V"])
        args = [slices, to.count, share, accumulate]
        defines, items = gemm_cpu.tile(rec.target), ceil(to.count, share)
        rec.launch(ADD_SLICES(part=part, sum=to), args=args, size=(items, 1, 1), local=ONE, defines=defines)
