"""The plans of a step's nets under any memory limit, as points of a curve (ocaffe/memory/curve.py)."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ocaffe.compiler.compile import CompiledNet
from ocaffe.ir.launch import Schedule
from ocaffe.ir.rates import Rates
from ocaffe.ir.target import SIXTEEN_BITS, Target
from ocaffe.memory.curve import Plans, Point
from ocaffe.memory.report import bytes_beside, fixed_bytes, host_bytes


class NetOfStep(NamedTuple):
    """A net under a limit. `nearest`: compiles it with a limit and the bytes that other nets keep beside it (compile.nearest_net).

    `runs`: so many times it runs in a step; 0 for a TEST net.
    """

    nearest: Callable[[int | None, int], CompiledNet]
    runs: int


def plans_of(nets: Sequence[NetOfStep], target: Target, rates: Rates, others: Sequence[Schedule] = ()) -> Plans:
    """Return the function from a limit to the plan of all nets together. It makes each plan once.

    `others`: schedules of a step that recycle no memory, such as a separate update.
    """
    free = [net.nearest(None, 0) for net in nets]
    beside = bytes_beside([*(made.recording.schedule for made in free), *others])

    @functools.cache
    def plans(limit: int | None) -> Point:
        found = free if limit is None else [net.nearest(limit, size) for net, size in zip(nets, beside)]
        recomputed, split = _recomputed(found), _split(found)
        seconds = sum(net.runs * made.predicted(rates).seconds for net, made in zip(nets, found)) + sum(map(rates.step, others))
        host = host_bytes([*(made.recording.schedule for made in found), *others], [made.plan for made in found])
        rounds = target.math in SIXTEEN_BITS and recomputed != _recomputed(free)  # a value is not rounded within the launch that recomputes it
        return Point(
            limit, all(made.keeps_limit for made in found), fixed_bytes([*(made.recording.schedule for made in found), *others]) + _recycled(found),
            host, seconds, recomputed, split, split == 1 and not rounds,
        )  # fmt: skip

    return plans


def _recycled(nets: Sequence[CompiledNet]) -> int:
    """Bytes of the slabs, which the nets share."""
    return max(made.plan.total for made in nets)


def _recomputed(nets: Sequence[CompiledNet]) -> int:
    """The launches that compute a value again."""
    return sum(launch.recomputed for made in nets for launch in made.recording.schedule)


def _split(nets: Sequence[CompiledNet]) -> int:
    """The largest number of microbatches."""
    return max(made.microbatch.count if made.microbatch else 1 for made in nets)
