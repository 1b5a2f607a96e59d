"""Run launches that a pass has joined as one kernel, a task graph (ocaffe/passes/join_launches.py, docs/adr/0019, kernels/common/task_graph.h).

Between two launches a runtime waits for all cores, and wakes its threads again. That takes 5 to 30 us, and cores are idle while the last work-groups
of a launch end. In a task graph a core goes on to the next launch as soon as its operands are complete.

The text of the kernel has the text of each program once, as a *routine*: the names that it marks get a prefix, and its kernels become functions that take
their work-item's number as an argument (marks.py, kernels/common/part.h). A table in a buffer has the arguments of each launch.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ocaffe.cl.first_launches import FirstLaunch
from ocaffe.cl.marks import as_routine
from ocaffe.cl.program import ProgramKey, marked_text
from ocaffe.cl.session import Session
from ocaffe.ir.launch import Access, Call, Launch, Schedule
from ocaffe.ir.tensor import Ref

WORDS, LINE = 6, 16  # words of a launch before its arguments, and ints between two counters, as in kernels/common/task_graph.h
GROUPS = 2  # work-groups per core: PoCL gives two work-groups to one thread
# Polls that a work-group may wait, in all: a fortieth of the graph's time on one core, at 100 GFLOP/s, 10 GB/s and 2 ns for a poll, or more. MobileNet-v2
# is fast with 30,000 and gets 160,000. If two threads share a core, one waits in vain while the other could compute.
WORK_PER_POLL, FLOPS_PER_BYTE, FEWEST_POLLS = 8000, 10, 30_000

_READ = {"i4": "(int)launch[{}]", "u4": "(uint)launch[{}]", "f4": "as_float((uint)launch[{}])", "u8": "launch[{}]"}


class Routine(NamedTuple):
    """A kernel of a graph. `scalars`: numpy's codes of their types."""

    key: ProgramKey
    function: str
    operands: int
    scalars: tuple[str, ...]


class Member(NamedTuple):
    """A launch of a graph, with its step in the schedule."""

    step: int
    launch: Launch
    call: Call

    @property
    def key(self) -> ProgramKey:
        return ProgramKey.generated([self.call.program]) if self.call.generated else ProgramKey(self.call.program, self.call.defines)

    @property
    def routine(self) -> Routine:
        return Routine(self.key, self.call.function, len(self.launch.operands), tuple(scalar.dtype.str[1:] for scalar in self.call.scalars))


class Commands(Protocol):
    """The command list of a graph."""

    session: Session

    def locate(self, ref: Ref, slot: int = 0) -> tuple[Any, int]: ...

    def home(self, ref: Ref) -> Hashable: ...

    def slots(self, launch: Launch) -> int: ...


def joined(schedule: Schedule, calls: Sequence[Call | None]) -> list[list[Member]]:
    """Return the launches of each graph. `calls`: those of all launches."""
    found: dict[int, list[Member]] = defaultdict(list)
    for step, (launch, call) in enumerate(zip(schedule, calls)):
        if launch.graph is not None:
            assert call is not None
            found[launch.graph].append(Member(step, launch, call))
    return list(found.values())


class TaskGraph:
    """The graph of some launches of a command list, in the order of the schedule. `key` is its program; `bind` makes the action that runs it."""

    function = "task_graph"

    def __init__(self, members: Sequence[Member], commands: Commands) -> None:
        self.members, self.commands = members, commands
        self.routines = {routine: number for number, routine in enumerate(dict.fromkeys(member.routine for member in members))}
        self.homes = homes_of(members, commands)
        fence = commands.session.device.target.device_fence
        texts = [routine_text(number, routine, fence) for routine, number in self.routines.items()]
        names = [f"b{number}" for number in range(len(self.homes))]
        calls = " ".join(f"case {number}: {_call(number, routine)}; break;" for routine, number in self.routines.items())
        defines = [f"#define BUFFERS {''.join(f', global void* {name}' for name in names)}", f"#define LIST {', '.join(names)}", f"#define CALLS {calls}"]
        self.key = ProgramKey.generated(['#include "part.h"', *texts, *defines, '#include "task_graph.h"'])

    @property
    def empty_launch(self) -> FirstLaunch:
        """A launch of the kernel without members. It touches only the first counter."""
        return FirstLaunch(self.function, (1,), ("r", "rw", *[np.int32(0)] * 5, *["rw"] * len(self.homes)), 4)

    @property
    def patience(self) -> int:
        """The polls that a work-group may wait."""
        work = sum(member.launch.flops + FLOPS_PER_BYTE * sum(operand.ref.nbytes for operand in member.launch.operands) for member in self.members)
        return min(max(FEWEST_POLLS, work // WORK_PER_POLL), 2**31 - 1)

    def bind(self) -> tuple[Any, tuple[int], tuple[int]]:
        """Create the kernels, one per slot, and set their arguments. Return them with the number of work-items, as an action of the command list."""
        commands, session = self.commands, self.commands.session
        slots, cores = math.lcm(*(commands.slots(member.launch) for member in self.members)), session.device.target.compute_units
        tables = [self._table(slot) for slot in range(slots)]
        table = session.allocate(sum(made.nbytes for made in tables), "the table of a task graph")
        counters = session.allocate(4 * LINE * (1 + len(self.members) * (1 + cores)), "the counters of a task graph")
        cl, queue = session.device.cl, session.device.queue
        cl.enqueue_copy(queue, table, np.concatenate(tables), is_blocking=True)
        cl.enqueue_fill_buffer(queue, counters, np.int32(0), 0, counters.size)
        kernels, width = [], tables[0].shape[1]
        for slot in range(slots):
            buffers: dict[Hashable, Any] = {}
            for ref in _refs(self.members):
                buffers.setdefault(commands.home(ref), commands.locate(ref, slot)[0])
            kernel = cl.Kernel(session.programs[self.key], self.function)
            scalars = map(np.int32, (len(self.members), width, slot * tables[0].size, cores, self.patience))
            kernel.set_args(table, counters, *scalars, *(buffers[home] for home in self.homes))
            kernels.append(kernel)
        self._alive = table, counters  # clSetKernelArg keeps no buffer alive
        return (kernels if slots > 1 else kernels[0]), (GROUPS * cores,), (1,)

    def _table(self, slot: int) -> np.ndarray:
        """Return the words of all launches, a row for each."""
        places, rows, spans = {home: number for number, home in enumerate(self.homes)}, [], []
        for member in self.members:
            call, size = member.call, (*member.call.size, 1, 1)[:3]
            operands = [(self.commands.home(operand.ref), self.commands.locate(operand.ref, slot)[1], operand) for operand in member.launch.operands]
            spans.append([Span.of(home, offset, operand.ref, operand.access) for home, offset, operand in operands])
            arguments = [word for home, offset, operand in operands for word in (places[home], offset, operand.ref.batch_stride)]
            scalars = [int(scalar.view(np.uint32)) if scalar.dtype.itemsize == 4 else int(scalar) for scalar in call.scalars]
            rows.append([math.prod(size), *size, self.routines[member.routine], 0, *arguments, *scalars])
        for words, count in zip(rows, needed(spans)):
            words[WORDS - 1] = count
        table = np.zeros((len(rows), max(map(len, rows))), np.uint64)
        for row, words in zip(table, rows):
            row[: len(words)] = words
        return table


class Span(NamedTuple):
    """The bytes of an operand in its buffer."""

    home: Hashable
    begin: int
    end: int
    writes: bool

    @classmethod
    def of(cls, home: Hashable, offset: int, ref: Ref, access: Access) -> Span:
        size = ref.dtype.itemsize
        return cls(home, offset * size, (offset + ref.root_end - ref.root_offset) * size, access is not Access.READ)


def needed(spans: Sequence[Sequence[Span]]) -> list[int]:
    """Return for each launch how many launches from the first one on must be complete before it begins. `spans`: the operands of each launch."""
    homes: dict[Hashable, int] = {}
    rows = [(homes.setdefault(span.home, len(homes)), span.begin, span.end, span.writes, index) for index, each in enumerate(spans) for span in each]
    home, begin, end, writes, launch = np.array(rows, np.int64).reshape(-1, 5).T.copy()  # all earlier spans at a time: a graph may have 20,000 launches
    result, done = [], 0
    for each in spans:
        least = 0
        for span in each:
            same = (home[:done] == homes[span.home]) & (begin[:done] < span.end) & (end[:done] > span.begin)
            conflicts = np.flatnonzero(same if span.writes else same & (writes[:done] != 0))
            least = max(least, int(launch[conflicts[-1]]) + 1 if conflicts.size else 0)
        result.append(least)
        done += len(each)
    return result


def homes_of(members: Sequence[Member], commands: Commands) -> list[Hashable]:
    """Return the buffers of all operands, in the order of their first use, by the keys of `Commands.home`."""
    return list(dict.fromkeys(commands.home(ref) for ref in _refs(members)))


def _refs(members: Sequence[Member]) -> Iterator[Ref]:
    return (operand.ref for member in members for operand in member.launch.operands)


def _call(number: int, routine: Routine) -> str:
    """Return the call of a routine: with three words for each operand, then the scalars."""
    operands = [f"buffers[launch[{place}]], launch[{place + 1}], launch[{place + 2}]" for place in range(WORDS, WORDS + 3 * routine.operands, 3)]
    scalars = [_READ[code].format(place) for place, code in enumerate(routine.scalars, WORDS + 3 * routine.operands)]
    return f"part{number}_{routine.function}({', '.join(['(float16)0', 'id', 'size', *operands, *scalars])})"


def routine_text(number: int, routine: Routine, fence: str = "") -> str:
    """Return the text of a routine's program for a graph."""
    text = marked_text(routine.key, fence)
    if routine.key.family == "generated":  # it has one kernel, and nothing else to mark
        text = text.replace(f"void {routine.function}(", f"void ENTRY({routine.function})(")
    return as_routine(text, f"part{number}_")
