"""Sum bias gradients before MAX pooling's backward pass scatters them.

Each gradient goes to one pixel of its own channel, masked by the sign of that pixel. So the sum of the scattered gradients is the sum of the incoming ones,
which are a quarter or a ninth of the elements. A window of NaN alone scatters nothing; here its gradient counts.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ocaffe.ir.launch import Access, Launch, Operand, Schedule
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.expression.expression import Reduce, reexpressed
from ocaffe.kernels.pooling.pooling import chosen
from ocaffe.passes.channel_reduction_fusion import first_channel, is_by_channel
from ocaffe.passes.relu_backward_fusion import TOP


def sum_before_scatter(schedule: Schedule) -> Schedule:
    """The schedule in which such sums, or their first stages, read the gradient of the pooling's output. The masks stay as they are."""
    writer: dict[Ref, int] = {}
    result: Schedule = []
    for step, launch in enumerate(schedule):
        own = launch.lower
        made = writer.get(launch["x0"].root) if isinstance(own, Reduce) and own.is_plain_sum and is_by_channel(launch) else None
        result.append(launch if made is None else _given(launch, schedule[made], schedule[made + 1 : step]) or launch)
        writer.update((ref.root, step) for ref in launch.writes)
    return result


def _given(launch: Launch, pooling: Launch, meanwhile: Sequence[Launch]) -> Launch | None:
    """The sum of the incoming gradient of `pooling`, the last launch that writes the summed diff.

    None if the pooling does more than scatter that gradient, or if the gradient is overwritten before the sum.
    """
    own, call, written = launch.lower, pooling.call, pooling.operands[-1]
    assert isinstance(own, Reduce)
    if call is None or chosen(pooling) is None or written.access is not Access.WRITE or own.counts[0] != 1 or "slope" in dict(own.scalars):
        return None
    mask = dict(call.defines).get("FUSED_RELU")
    if mask not in (None, str(TOP)):
        return None  # its mask has the layout of the bottom
    first, refs = first_channel(launch["x0"], written.ref), [pooling["dy"]]
    if pooling.mask is not None:
        refs.append(pooling.mask.ref)
    if first is None or any(ref.shape[:2] != written.ref.shape[:2] or ref.shape != refs[0].shape for ref in refs):
        return None
    if any(ref.overlaps(other) for between in meanwhile for other in between.writes for ref in refs):
        return None
    domain = (*own.domain[:2], *refs[0].shape[2:])
    reads = [Operand(ref.view(domain, first * (ref.dense_stride // ref.shape[1]), ref.batch_stride), Access.READ) for ref in refs]
    if mask is not None:
        own = replace(own, text="v0 = x1 > 0 ? x0 : slope * x0", scalars=(*own.scalars, ("slope", call.scalars[-1])))
    lower = replace(own, domain=domain, reduced=(0, *range(2, len(domain))), places=(None,) * len(reads), counts=(len(reads), *own.counts[1:]))
    lower.check()
    operands = [*reads, *launch.operands[1:]]
    return reexpressed(launch, operands, lower)
