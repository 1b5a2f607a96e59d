"""BatchNorm's statistics are collected while the convolution writes: its work-groups have the values in registers, and nobody reads them for that once more.

Each work-group writes, for each of its channels, how many values it has, their mean and the sum of the squares of what they differ from that mean, so that
nothing cancels; the reduction that BatchNorm recorded then puts the groups together, in order (Chan, Golub and LeVeque, "Algorithms for computing the sample
variance", 1983). Deviations are taken from the mean of the first group.
"""
from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace

import numpy as np

from ocaffe.graph.ir import Access, Launch, Operand, Ref, Role, Schedule
from ocaffe.ops.expression import Reduce, without

TOGETHER = "d = x1 - x3; v0 = x0 * d; v1 = x2 + x0 * d * d"  # counts, means, squares, and what deviations are taken from
OWN_READS = 4


def merge_moments(schedule: Schedule) -> Schedule:
    """The schedule in which such statistics are computed from those of the convolution's work-groups."""
    writers: dict[Ref, list[int]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        for root in {ref.root for ref in launch.writes}:
            writers[root].append(step)
    result: list[Launch | None] = list(schedule)
    for step, launch in enumerate(schedule):
        if not isinstance(launch.lower, Reduce) or not launch.lower.moments:
            continue
        x = launch.reads[0]
        products = [schedule[other] for other in writers[x.root] if other < step]
        if not products or not all(_collects(product, products[0], x) for product in products):
            continue
        last = step + (launch.lower.chunks > 1)  # the stage that finishes
        result[last] = _finish(launch, schedule[last], _collect(products, x))
        if last > step:
            result[step] = None
    return [launch for launch in result if launch is not None]


def _collects(product: Launch, first: Launch, x: Ref) -> bool:
    """Whether a launch makes x, or as one of several parts of an operation with `first` does, and is free to collect statistics of it."""
    if product.moments is None or product.call is None or product.epilogue is None or (product.layer, product.what) != (first.layer, first.what):
        return False
    written = next(operand.ref for operand in product.operands if operand.access is not Access.READ)
    same = (written.root_offset, written.count, written.shape[:2]) == (x.root_offset, x.count, x.shape[:2])
    return same and not product.call.scalars[product.moments[1]] and not product.call.scalars[product.epilogue - 1]


def _collect(products: list[Launch], x: Ref) -> Ref:
    """Let the parts of an operation write statistics of what they make; returns where: [counts, means, squares][channel][part]."""
    assert products[0].moments is not None
    place, scalar, parts = products[0].moments
    statistics = Ref(f"{products[0].layer}.moments", (3, x.shape[1], parts), Role.SCRATCH)
    for number, product in enumerate(products):
        assert product.call is not None
        scalars = list(product.call.scalars)
        scalars[scalar] = np.int32(parts)
        product.call = replace(product.call, scalars=tuple(scalars))
        access = Access.MODIFY if number else Access.WRITE
        product.operands = [*product.operands[:place], Operand(statistics, access), *product.operands[place + 1 :]]
    return statistics


def _finish(first: Launch, final: Launch, statistics: Ref) -> Launch:
    """What `final`, the last stage of a reduction that began with `first`, makes of the statistics."""
    own = final.lower
    assert isinstance(own, Reduce)
    _, channels, parts = statistics.shape
    counts, means, squares = (statistics.view((channels, parts), number * channels * parts) for number in range(3))
    shift = statistics.view((channels,), channels * parts, parts)
    skipped = 2 if final is first else len(own.values) + 1  # the values, or their sums, and what they were shifted by
    rest = [(operand.ref, place) for operand, place in zip(final.operands[skipped : own.counts[0]], own.places[skipped:])]
    if final is first:
        rest = [without(pair, own.domain, own.reduced) for pair in rest]
    names = {f"x{skipped - 1 + i}": f"x{OWN_READS - 1 + i}" for i in range(len(rest) + 1)}
    finish = re.sub(r"\bx\d+\b", lambda match: names[match[0]], own.finish)
    places = (None, None, None, 0, *(place for _, place in rest))
    domain = (channels, parts)
    lower = replace(
        own, text=TOGETHER, finish=finish, domain=domain, reduced=(1,), places=places, counts=(len(places), *own.counts[1:]), chunks=1, moments=False
    )
    lower.check()
    reads = [Operand(ref, Access.READ) for ref in (counts, means, squares, shift, *(ref for ref, _ in rest))]
    return replace(final, operands=[*reads, *final.operands[own.counts[0] :]], lower=lower, what=f"sum: {TOGETHER} | {finish}", before=final.before or final)
