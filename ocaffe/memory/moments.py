"""Sums over all pixels of a channel are collected while a convolution writes it: BatchNorm's statistics, and gradients of biases. Its work-groups have the
values in registers, and nobody reads them for that once more.

Each work-group writes, for each of its channels, how many values it has, their mean and the sum of the squares of what they differ from that mean, so that
nothing cancels; the reduction that was recorded then puts the groups together, in order (Chan, Golub and LeVeque, "Algorithms for computing the sample
variance", 1983). Deviations are taken from the mean of the first group.
"""
from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from ocaffe.graph.ir import Access, Launch, Operand, Ref, Role, Schedule
from ocaffe.memory.gates import parts_of
from ocaffe.ops.expression import Reduce, without


@dataclass(frozen=True)
class _Form:
    """What a reduction makes of counts, means and squares: a text over the first `reads` of them, and what it shifts by if it `shifts`."""

    text: str
    reads: int
    shifts: bool


FORMS = {
    "d = x0 - x1; v0 = d; v1 = d * d": _Form("d = x1 - x3; v0 = x0 * d; v1 = x2 + x0 * d * d", 3, True),
    "v0 = x0": _Form("v0 = x0 * x1", 2, False),
}


def merge_moments(schedule: Schedule) -> Schedule:
    """The schedule in which such sums are computed from those of the convolution's work-groups."""
    writers: dict[Ref, list[int]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        for root in {ref.root for ref in launch.writes}:
            writers[root].append(step)
    collected: dict[int, Ref] = {}  # by the last step of a product
    result: list[Launch | None] = list(schedule)
    for step, launch in enumerate(schedule):
        if not _is_by_channel(launch):
            continue
        x, before = launch.reads[0], [other for other in writers[launch.reads[0].root] if other < step]
        if not before or schedule[before[-1]].moments is None:
            continue
        written = next(operand.ref for operand in schedule[before[-1]].operands if operand.access is not Access.READ and operand.ref.root is x.root)
        first = _first_channel(x, written)
        if first is None:
            continue
        if before[-1] not in collected:
            collected[before[-1]] = _collect([schedule[part] for part in sorted(parts_of(schedule, before))], written)
        assert isinstance(launch.lower, Reduce)
        last = step + (launch.lower.chunks > 1 and not launch.lower.meet)  # the stage that finishes
        result[last] = _finish(launch, schedule[last], collected[before[-1]], first)
        if last > step:
            result[step] = None
    return [launch for launch in result if launch is not None]


def _is_by_channel(launch: Launch) -> bool:
    """Whether a launch is such a sum, or its first stage, over all axes but that of channels."""
    own = launch.lower
    return isinstance(own, Reduce) and own.text in FORMS and own.op == "sum" and own.reduced == (0, *range(2, len(own.domain))) and len(own.domain) > 1


def _first_channel(x: Ref, written: Ref) -> int | None:
    """Where the channels of x begin in what was written; None: x is something else."""
    if len(written.shape) < 2 or x.shape[0] != written.shape[0] or x.batch_stride != written.batch_stride:
        return None
    plane = written.dense_stride // written.shape[1]
    first, rest = divmod(x.root_offset - written.root_offset, plane)
    return first if not rest and x.dense_stride == plane * x.shape[1] and 0 <= first <= written.shape[1] - x.shape[1] else None


def _collect(products: list[Launch], written: Ref) -> Ref:
    """Let the parts of an operation write statistics of what they make; returns where: [counts, means, squares][channel][part]."""
    assert products[0].moments is not None
    place, parts = products[0].moments
    statistics = Ref(f"{products[0].layer}.moments", (3, written.shape[1], parts), Role.SCRATCH)
    for number, product in enumerate(products):
        product.merge(place, Operand(statistics, Access.MODIFY if number else Access.WRITE), MOMENTS=1)
    return statistics


def _finish(first: Launch, final: Launch, statistics: Ref, channel: int) -> Launch:
    """What `final`, the last stage of a reduction that began with `first`, makes of the statistics from a channel on."""
    begin, own = first.lower, final.lower
    assert isinstance(begin, Reduce) and isinstance(own, Reduce)
    form = FORMS[begin.text]
    channels, all_channels, parts = begin.domain[1], *statistics.shape[1:]
    starts = [(number * all_channels + channel) * parts for number in range(form.reads)]
    reads: list[tuple[Ref, int | None]] = [(statistics.view((channels, parts), start), None) for start in starts]
    if form.shifts:
        reads.append((statistics.view((channels,), starts[1], parts), 0))
    skipped = (1 if final is first else len(own.values)) + form.shifts  # the values, or their sums, and what they were shifted by
    rest = [(operand.ref, place) for operand, place in zip(final.operands[skipped : own.counts[0]], own.places[skipped:])]
    names = {f"x{skipped - form.shifts + i}": f"x{form.reads + i}" for i in range(len(rest) + form.shifts)}
    finish = re.sub(r"\bx\d+\b", lambda match: names[match[0]], own.finish)
    reads += [without(pair, own.domain, own.reduced) for pair in rest] if final is first else rest
    places, counts = tuple(place for _, place in reads), (len(reads), *own.counts[1:])
    lower = replace(own, text=form.text, finish=finish, domain=(channels, parts), reduced=(1,), places=places, counts=counts, chunks=1, meet=False)
    lower.check()
    operands = [*(Operand(ref, Access.READ) for ref, _ in reads), *final.operands[own.counts[0] : sum(own.counts)]]
    return replace(final, operands=operands, lower=lower, what=f"sum: {form.text} | {finish}", before=final.before or final)
