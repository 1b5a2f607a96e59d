"""A command list: a schedule bound to a device. Kernel arguments are set once; a run is a loop of enqueues.

Data that changes from run to run is on the device: the step buffer, the staging slots, the outputs. `clSetKernelArg` does
not keep a buffer alive, so the session owns all buffers while the command list exists.
"""
from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from operator import length_hint
from typing import Any

import numpy as np

from ocaffe.cl.actions import ON_HOST, PoisonAction, PrepackAction, StreamAction, UploadAction, enqueue, nothing
from ocaffe.cl.feed import complete
from ocaffe.cl.first_launches import MARGIN, FirstLaunch
from ocaffe.cl.limits import check_group
from ocaffe.cl.outputs import Fetched, OutputRing
from ocaffe.cl.program import ProgramKey
from ocaffe.cl.session import Arena, Session
from ocaffe.cl.task_graph import TaskGraph, joined
from ocaffe.cl.timeline import Timeline
from ocaffe.cl.transfers import ON_COPY_QUEUES
from ocaffe.data.prefetch import Prefetcher
from ocaffe.ir.launch import HOST, Access, Call, Empty, Launch, Schedule, Transfer, Upload, roots
from ocaffe.ir.recorder import STEP, STEP_FLOATS
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import MemoryPlan

RING = 4  # number of runs that the host may be ahead of the device


class CommandList:
    """A schedule on a session. `prefetchers` supplies the uploads; `run` enqueues and returns at once.

    `apart`: a run may start or end at any launch and leave outputs as an earlier run wrote them.
    """

    def __init__(
        self,
        session: Session,
        schedule: Schedule,
        plan: MemoryPlan,
        step: Ref,
        poison: bool = False,
        arena: Arena | None = None,
        apart: bool = False,
    ) -> None:
        self.session = session
        self.arena = arena or session.arena
        self.schedule = schedule
        self.poison = poison
        self.plan = plan
        self.step = step
        self.runs = 0  # runs that have begun; the number of the last one
        self.prefetchers: dict[Any, Prefetcher] = {}
        used = roots(schedule)
        self.outputs = OutputRing(session, [ref for ref in used if ref.role is Role.OUTPUT], apart or not _made_anew(schedule))
        self._learned = [ref.root for launch in schedule for ref in launch.writes if ref.root.role is Role.PARAMETER][:1]
        # Launches that change what a snapshot saves. Those of "exchange" swap weights and their average, which the caller keeps track of.
        state = Role.PARAMETER, Role.HISTORY
        self._changes = [
            index for index, launch in enumerate(schedule)
            if launch.phase != "exchange" and any(ref.root.role in state for ref in launch.writes)
        ]  # fmt: skip
        self._updates = any(schedule[index].phase == "update" for index in self._changes)
        self._calls = [None if isinstance(launch, HOST) else launch.final() for launch in schedule]
        self.generated: Mapping[str, ProgramKey] = {}  # the programs of the generated kernels, by text; set by the session
        self._actions: list[Any] = []
        self._streams: list[StreamAction] = []
        self._last: Any = None  # the event of the last run's last launch
        self._reads = self._words_read()
        self._words = np.zeros(step.count, np.uint32)
        self._sent: dict[str, float | int] = {}  # words in `_reads`, with the values in the step buffer
        self._sendings: deque[Any] = deque()  # events; they keep the host arrays alive
        self.copies: dict[Ref, Any] = {}  # the events of copies to or from the host that no launch waits for yet, by Ref of the host
        self.graphs = [TaskGraph(members, self) for members in joined(schedule, self._calls)]
        assert not (self.graphs and (poison or apart)), "the launches of a task graph run together"
        self._joined = {member.step: member for graph in self.graphs for member in graph.members}
        # Steps at which no run may start or stop.
        self._inside = frozenset(step for graph in self.graphs for step in range(graph.members[0].step + 1, graph.members[-1].step + 1))
        self._single: list[Any] = []  # the actions without graphs, which profiling needs

    @property
    def texts(self) -> set[str]:
        """The texts of the generated kernels."""
        return {call.program for step, call in enumerate(self._calls) if call is not None and call.generated and step not in self._joined}

    @property
    def keys(self) -> set[ProgramKey]:
        """The programs that `bind` needs."""
        return {key for key, _, _ in self.kernels()}

    def kernels(self) -> Counter[tuple[ProgramKey, str, tuple[int, ...] | None]]:
        """Return the kernels as (program, function, work-group), with their numbers of launches."""
        calls = (call for step, call in enumerate(self._calls) if call is not None and step not in self._joined)
        found = Counter((self._key(call), call.function, call.local) for call in calls)
        found.update((graph.key, graph.function, (1,)) for graph in self.graphs)
        return found

    def first_launches(self) -> Iterator[tuple[ProgramKey, FirstLaunch]]:
        """Yield launches of one work-group, in the order of the schedule, with their programs."""
        for step, (launch, call) in enumerate(zip(self.schedule, self._calls)):
            if call is not None and call.local is not None and step not in self._joined:
                arguments: list[Any] = []
                for operand in launch.operands:
                    arguments += [operand.access.value, np.uint64(MARGIN // operand.ref.dtype.itemsize), np.uint64(operand.ref.batch_stride)]
                size = max((operand.ref.dtype.itemsize * (operand.ref.root_end - operand.ref.root_offset) for operand in launch.operands), default=0)
                yield self._key(call), FirstLaunch(call.function, call.local, (*arguments, *call.scalars), size)
        for graph in self.graphs:
            yield graph.key, graph.empty_launch

    def _words_read(self) -> frozenset[str]:
        """Return the words of the step buffer that launches read.

        The defines of a kernel name its words. Generated kernels name none, so for them all words count as read.
        """
        words: set[str] = set()
        for launch, call in zip(self.schedule, self._calls):
            if any(operand.ref.root is self.step for operand in launch.operands):
                named = dict(call.defines) if call is not None else {}
                words.update({word for word in STEP if f"STEP_{word}" in named} or STEP)
        return frozenset(words)

    def _key(self, call: Call) -> ProgramKey:
        return self.generated[call.program] if call.generated else ProgramKey(call.program, call.defines)

    # -- binding -----------------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Create the kernels and set their arguments. Programs must be built. The session calls this again when the arena moves."""
        self._streams = []
        self._sent = {}  # the step buffer may be a new one
        self._single = []
        replaced: dict[int, Any] = dict.fromkeys(self._joined, nothing)
        replaced |= {graph.members[-1].step: graph.bind() for graph in self.graphs}
        self._actions = [replaced.get(step) or self._bind(step, launch, call) for step, (launch, call) in enumerate(zip(self.schedule, self._calls))]
        if self.poison:
            dying: dict[int, list[Ref]] = {}
            for life in self.plan.lives:
                dying.setdefault(life.last, []).append(life.ref)
            self._actions = [PoisonAction(self, action, dying.get(step, [])) for step, action in enumerate(self._actions)]

    def _bind(self, step: int, launch: Launch, call: Call | None, key: ProgramKey | None = None) -> Any:
        if isinstance(launch, Upload):
            if not self.session.device.target.streams(launch.operands[0].ref.root.nbytes):
                return UploadAction(self, launch)
            self._streams.append(StreamAction(self, launch))
            return self._streams[-1]
        if type(launch) in ON_HOST:
            return ON_HOST[type(launch)](self, launch, step)
        if isinstance(launch, Transfer):
            return ON_COPY_QUEUES[type(launch)](self, launch, step)
        if isinstance(launch, Empty):
            return nothing
        assert call is not None
        local = call.local
        size = call.size if local is None else tuple(-(-n // m) * m for n, m in zip(call.size, local))
        slots = self.slots(launch)
        program = self.session.programs[key or self._key(call)]
        kernels = []
        for slot in range(slots):
            kernel = self.session.device.cl.Kernel(program, call.function)
            if slot == 0:
                check_group(self.session.device, kernel, launch, call)
            args: list[Any] = []
            for operand in launch.operands:
                buffer, offset = self.locate(operand.ref, slot)
                args += [buffer, np.uint64(offset), np.uint64(operand.ref.batch_stride)]
            # With these types pyopencl need not try the possible types of each scalar, which takes 15 us.
            kernel.set_scalar_arg_dtypes([getattr(arg, "dtype", None) for arg in (*args, *call.scalars)])
            kernel.set_args(*args, *call.scalars)
            kernels.append(kernel)
        if launch.prepacks_weights:
            return PrepackAction(self, launch.writes[0].root, (kernels[0], size, local))
        return (kernels, size, local) if slots > 1 else (kernels[0], size, local)

    def slots(self, launch: Launch) -> int:
        """Return the number of runs after which a launch has the same operands again."""
        homes = {self.home(operand.ref) for operand in launch.operands}
        return math.lcm(*(1 if isinstance(home, int) else home.slots for home in homes))

    def home(self, ref: Ref) -> OutputRing | Ref | int:
        """Return where the value of a Ref is: in the ring of outputs, in the buffers of its root, or in the slab of this number."""
        root = ref.root
        if self.outputs.holds(ref):
            return self.outputs
        return root if root.persistent else self.plan.places[root][0]

    def locate(self, ref: Ref, slot: int = 0) -> tuple[Any, int]:
        """Return buffer and offset in elements. `slot`: the number of the run, where several runs have buffers of their own."""
        home = self.home(ref)
        if isinstance(home, OutputRing):
            return home.locate(ref, slot)
        if isinstance(home, Ref):
            return self.session.locate(ref, slot)
        slabs = self.arena.host_slabs if ref.root.role is Role.HOST else self.arena.slabs
        return slabs[home], self.plan.places[ref.root][1] // ref.dtype.itemsize + ref.root_offset

    # -- running -----------------------------------------------------------------------------------------------------

    def set_step(self, **words: float | int) -> None:
        """Write words of the step buffer (STEP) for the next run: those of STEP_FLOATS as float, the others as unsigned integers.

        If no word that launches read has changed, nothing is sent: a transfer stalls the device for as long as several
        small kernels take.
        """
        read = {name: value for name, value in words.items() if name in self._reads}
        if read.items() <= self._sent.items():
            return
        self._sent |= read
        for name, value in words.items():
            self._words[STEP[name]] = np.float32(value).view(np.uint32) if name in STEP_FLOATS else np.uint32(int(value) & 0xFFFFFFFF)
        if len(self._sendings) == RING:
            self._sendings.popleft().wait()
        device, buffer = self.session.device, self.session.buffers(self.step)[0]
        self._sendings.append(device.cl.enqueue_copy(device.queue, buffer, self._words.copy(), is_blocking=False))

    def run(self, start: int = 0, stop: int | None = None) -> None:
        """Enqueue the launches [start, stop). From the first launch on this is a new run; from a later one it continues the last run."""
        assert len(self._actions) == len(self.schedule), "the command list is not bound"
        assert start not in self._inside and stop not in self._inside, "a part of a graph"
        queue = self.session.device.queue
        launch = self.session.device.cl.enqueue_nd_range_kernel
        end = len(self._actions) if stop is None else min(stop, len(self._actions))
        slot = self.runs + (start == 0 < end)
        self.go_on(slot)
        for root in self._learned:
            self.session.note(root)
        event = None
        if self.session.timeline is not None:
            self._run_timed(self.session.timeline, start, stop, slot)
            start = len(self._actions)
        actions = iter(self._actions[start:end])
        try:
            for action in actions:
                if type(action) is tuple:
                    kernel, size, local = action
                    if type(kernel) is list:
                        kernel = kernel[slot % len(kernel)]
                    event = launch(queue, kernel, size, local)
                else:
                    event = action(slot)
        except BaseException as problem:
            event = self._completed_after(problem, end - length_hint(actions) - 1, end, slot)
        self._last = event
        self._reached(end)
        queue.flush()
        for stream in self._streams:
            stream.ahead(slot)
        if self.plan.slabs:
            self.arena.commands, self.arena.reached = self, end

    def go_on(self, run: int) -> None:
        """Go on with run number `run`, whose buffers `read` and `write` then use."""
        self.runs = run
        self.outputs.turn(run)

    def _reached(self, end: int) -> None:
        """Note in the session what the launches up to `end` have changed."""
        session = self.session
        if self._updates and end == len(self._actions):
            session.updates, session.changed = session.updates + 1, False
        elif self._changes and self._changes[0] < end:
            session.changed = True

    def _completed_after(self, problem: BaseException, failed: int, end: int, slot: int) -> Any:
        """Complete a run whose launch `failed` raised `problem`, if that makes an iteration whole. Return the last event, or raise `problem`.

        OpenCL does not carry out a kernel that it refuses to enqueue. If the launches before it have changed parameters, these belong to no
        iteration. So the rest is enqueued a second time, after the commands before have freed their resources.
        """
        session, is_kernel, event = self.session, type(self._actions[failed]) is tuple, None
        session.changed |= bool(self._changes) and self._changes[0] < failed + (not is_kernel)  # a step on the host may have changed some
        if not (is_kernel and isinstance(problem, session.device.cl.Error) and session.changed and session.refused is not None):
            raise problem
        try:
            session.device.queue.finish()
            for action in self._actions[failed:end]:
                event = enqueue(session.device, action, slot)
        except session.device.cl.Error:
            raise problem from None
        session.refused.append(problem)
        return event

    @property
    def changes_before_update(self) -> bool:
        """Whether a run changes parameters, such as running statistics, before the solver's update."""
        return any(self.schedule[index].phase != "update" for index in self._changes)

    @property
    def completed(self) -> bool:
        return self._last is None or complete(self.session.device.cl, self._last)

    def fetch(self) -> Fetched:
        """Return the outputs of the last run, which later runs do not change. Does not wait."""
        return self.outputs.fetch(self.runs, self._last, self.read)

    def _run_timed(self, timeline: Timeline, start: int, stop: int | None, slot: int) -> None:
        """Run the launches and add each to the timeline. A step on the host is timed by the clock, between waits."""
        device = self.session.device
        if self.graphs and not self._single:
            self._single = self._bind_single()
        for launch, action in zip(self.schedule[start:stop], (self._single or self._actions)[start:stop]):
            if type(launch) not in ON_HOST:
                timeline.add(launch, enqueue(device, action, slot))
                continue
            device.queue.finish()
            begin = time.perf_counter()
            try:
                action(slot)
            finally:
                timeline.add(launch, time.perf_counter() - begin)

    def _bind_single(self) -> list[Any]:
        """Return the actions of all launches, none of them in a graph. Builds the programs that only this needs."""
        actions, joined = list(self._actions), self._joined.values()
        self.session.programs.build_all(sorted({member.key for member in joined}))
        for member in joined:
            actions[member.step] = self._bind(member.step, member.launch, member.call, member.key)
        return actions

    def read(self, ref: Ref) -> np.ndarray:
        """Return a dense copy of a Ref, as the last run has left it. Waits."""
        return self.session.read_at(*self.locate(ref, self.runs), ref) if ref.count else np.empty(ref.shape, ref.dtype)

    def write(self, ref: Ref, array: np.ndarray) -> None:
        """Write an array to a Ref where the last run has it. Waits if the array is large or the buffer shared."""
        if ref.root is self.step:
            self._sent = {}
        if ref.count:
            self.session.write_at(*self.locate(ref, self.runs), ref, array)


def _made_anew(schedule: Schedule) -> bool:
    """Return whether every run writes all outputs before it reads them. Then runs need not share an output slot."""
    first: dict[Ref, Access] = {}
    for launch in schedule:
        for operand in launch.operands:
            if operand.ref.root.role is Role.OUTPUT:
                first.setdefault(operand.ref.root, operand.access)
    return all(access is Access.WRITE for access in first.values())
