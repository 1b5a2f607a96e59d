"""Join neighbouring launches on a CPU to task graphs, each of which runs as one kernel (ocaffe/cl/task_graph.py, docs/adr/0019).

The launches stay in the schedule, and `Launch.graph` numbers the graph that they are part of. So values that die within a graph share memory, and a
profile measures each launch.
"""
from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

from ocaffe.ir.launch import Empty, Launch, Schedule
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import lifetimes

FEWEST = 4  # launches of a graph: few launches wait little, and a graph is one more program
MOST_ROUTINES = 32  # of one graph: compilers take longer for one large function than for two small ones
OTHER_ARGUMENTS = 64  # bytes of the kernel's arguments that are no buffers
SCALARS = frozenset({"i4", "u4", "f4", "u8"})  # numpy's codes of the types that the table of a graph holds


def join_launches(schedule: Schedule, target: Target, fewest: int = FEWEST, most_routines: int = MOST_ROUTINES) -> Schedule:
    """Number the graphs. This is the last pass: no views change after it.

    Each graph has at least `fewest` launches, at most `most_routines` routines, and at most as many buffers as a kernel may have arguments.
    """
    most, slabs = (target.argument_bytes - OTHER_ARGUMENTS) // 8, _slabs(schedule, target)
    number = 0
    for run in _runs(schedule):
        for graph in _divided(run, most, slabs, most_routines):
            if len(graph) >= fewest:
                for launch in graph:
                    launch.graph = number
                number += 1
    return schedule


def may_join(launch: Launch) -> bool:
    """Whether a launch may be part of a graph: its work-groups are single work-items, and it changes nothing that a snapshot saves."""
    if not launch.kernel.can.join or launch.prepacks_weights or any(ref.root.role in (Role.PARAMETER, Role.HISTORY) for ref in launch.writes):
        return False
    call = launch.final()
    single = call.local is not None and math.prod(call.local) == 1 and math.prod(call.size) < 2**31
    return single and all(scalar.dtype.str[1:] in SCALARS for scalar in call.scalars)


def may_lie_within(launch: Launch) -> bool:
    """Whether a launch that is not part of a graph may lie between its launches: prepacking may run before the whole graph."""
    return launch.prepacks_weights or isinstance(launch, Empty)


def _runs(schedule: Schedule) -> Iterator[list[Launch]]:
    """Yield runs of neighbouring launches of one phase that may join."""
    run: list[Launch] = []
    for launch in schedule:
        if run and run[-1].phase != launch.phase:  # a script may run forward and backward separately
            yield run
            run = []
        if may_join(launch):
            run.append(launch)
        elif not may_lie_within(launch):
            yield run
            run = []
    yield run


def _routine(launch: Launch) -> Hashable:
    """Launches with equal routines share one function of the graph."""
    call = launch.final()
    return call.program, call.defines, call.function, len(launch.operands), tuple(scalar.dtype.str for scalar in call.scalars)


def _slabs(schedule: Schedule, target: Target) -> int:
    """Return the most slabs that a plan can have. The planner opens a slab only for a Ref that fits into none: all slabs but one are more than half full."""
    size = sum(life.size for life in lifetimes(schedule, target.alignment))
    return 1 if size <= target.max_allocation else 1 + 2 * size // target.max_allocation


def _divided(run: Sequence[Launch], most: int, slabs: int, most_routines: int) -> Iterator[list[Launch]]:
    """Divide a run into graphs with at most `most` buffers and `most_routines` routines."""
    graph: list[Launch] = []
    buffers, routines = _Buffers(slabs), set[Hashable]()
    for launch in run:
        routine = _routine(launch)
        if graph and (buffers.count(launch) > most or len(routines | {routine}) > most_routines):
            yield graph
            graph, buffers, routines = [], _Buffers(slabs), set()
        graph.append(launch)
        buffers.add(launch)
        routines.add(routine)
    yield graph


class _Buffers:
    """The buffers with operands of a graph. Outputs share one, and recycled values share the slabs."""

    def __init__(self, slabs: int) -> None:
        self.slabs, self.roots = slabs, set[Ref]()
        self.outputs = self.recycled = 0

    def add(self, launch: Launch) -> None:
        new = self._new(launch)
        self.roots |= new
        self.outputs += sum(root.role is Role.OUTPUT for root in new)
        self.recycled += sum(not root.persistent for root in new)

    def count(self, launch: Launch) -> int:
        """Return their number if the graph gets this launch too."""
        new = self._new(launch)
        outputs = self.outputs + sum(root.role is Role.OUTPUT for root in new)
        recycled = self.recycled + sum(not root.persistent for root in new)
        return len(self.roots) + len(new) - outputs + min(outputs, 1) - recycled + min(recycled, self.slabs)

    def _new(self, launch: Launch) -> set[Ref]:
        return {operand.ref.root for operand in launch.operands} - self.roots
