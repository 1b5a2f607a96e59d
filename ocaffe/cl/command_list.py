"""A command list: a schedule bound to a device. Kernel arguments are set once; a run is a loop of enqueues.

Data that changes from run to run is on the device: the step buffer, the staging slots, the outputs. `clSetKernelArg` does
not keep a buffer alive, so the session owns all buffers while the command list exists.
"""
from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.cl.feed import complete
from ocaffe.cl.first_launches import MARGIN, FirstLaunch
from ocaffe.cl.limits import check_group
from ocaffe.cl.program import ProgramKey
from ocaffe.cl.session import POISON, Arena, Session
from ocaffe.cl.shared_memory import read_shared, write_shared
from ocaffe.cl.task_graph import Member, TaskGraph, graphs, member_of
from ocaffe.cl.timeline import Timeline
from ocaffe.data.prefetch import Prefetcher
from ocaffe.ir.launch import HOST, Access, BeginExchange, Call, Empty, EndExchange, HostCall, Launch, Measure, Schedule, Upload, roots
from ocaffe.ir.recorder import STEP
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import MemoryPlan

RING = 4  # number of runs that the host may be ahead of the device
OUTPUT_ALIGNMENT = 64  # in bytes, of each output in the common buffer
OUTPUT_SLOTS, OUTPUT_BYTES = 16, 1 << 14  # maximum number of runs whose outputs stay on the device, and their maximum size
LATE = 0.05  # seconds after which outputs are sent to the host although slots are free


class CommandList:
    """A schedule on a session. `prefetchers` supplies the uploads; `run` enqueues and returns at once.

    `apart`: a run may start or end at any launch and leave outputs as an earlier run wrote them. `joined`: neighbouring launches run as task graphs.
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
        joined: bool = False,
    ) -> None:
        self.session = session
        self.arena = arena or session.arena
        self.schedule = schedule
        self.poison = poison
        self.plan = plan
        self.step = step
        self.runs = 0
        self.prefetchers: dict[Any, Prefetcher] = {}
        used = roots(schedule)
        self.outputs = OutputRing(session, [ref for ref in used if ref.role is Role.OUTPUT], 1 if apart or not _made_anew(schedule) else OUTPUT_SLOTS)
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
        self._streams: list[_StreamAction] = []
        self._last: Any = None  # the event of the last run's last launch
        self._reads = self._words_read()
        self._words = np.zeros(step.count, np.uint32)
        self._sent: dict[str, float | int] = {}  # words in `_reads`, with the values in the step buffer
        self._sendings: deque[Any] = deque()  # events; they keep the host arrays alive
        self.graphs: list[TaskGraph] = list(graphs(self._neighbours(), self)) if joined and not poison and not apart else []
        self._joined = {member.step: member for graph in self.graphs for member in graph.members}
        # Steps at which no run may start or stop.
        self._inside = frozenset(step for graph in self.graphs for step in range(graph.members[0].step + 1, graph.members[-1].step + 1))
        self._single: list[Any] = []  # the actions without graphs, which profiling needs

    def _neighbours(self) -> Iterator[list[Member]]:
        """Yield runs of neighbouring launches that can be part of a graph. Prepacking may run before all of them."""
        run: list[Member] = []
        for step, (launch, call) in enumerate(zip(self.schedule, self._calls)):
            member = None if call is None else member_of(step, launch, call, self.session.device.target.device_fence)
            if run and run[-1].launch.phase != launch.phase:  # a script may run forward and backward separately
                yield run
                run = []
            if member is not None:
                run.append(member)
            elif not launch.prepacks_weights and not isinstance(launch, Empty):
                yield run
                run = []
        yield run

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
        replaced: dict[int, Any] = dict.fromkeys(self._joined, _nothing)
        replaced |= {graph.members[-1].step: graph.bind() for graph in self.graphs}
        self._actions = [replaced.get(step) or self._bind(step, launch, call) for step, (launch, call) in enumerate(zip(self.schedule, self._calls))]
        if self.poison:
            dying: dict[int, list[Ref]] = {}
            for life in self.plan.lives:
                dying.setdefault(life.last, []).append(life.ref)
            self._actions = [_PoisonAction(self, action, dying.get(step, [])) for step, action in enumerate(self._actions)]

    def _bind(self, step: int, launch: Launch, call: Call | None, key: ProgramKey | None = None) -> Any:
        if isinstance(launch, Upload):
            if not self.session.device.target.streams(launch.operands[0].ref.root.nbytes):
                return _UploadAction(self, launch)
            self._streams.append(_StreamAction(self, launch))
            return self._streams[-1]
        if isinstance(launch, HostCall):
            return _HostAction(self, launch)
        if isinstance(launch, Measure):
            return _MeasureAction(self, launch, step)
        if isinstance(launch, BeginExchange):
            return _BeginExchangeAction(self, launch)
        if isinstance(launch, EndExchange):
            return _EndExchangeAction(self, launch)
        if isinstance(launch, Empty):
            return _nothing
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
            return _PrepackAction(self, launch.writes[0].root, (kernels[0], size, local))
        return (kernels, size, local) if slots > 1 else (kernels[0], size, local)

    def slots(self, launch: Launch) -> int:
        """Return the number of runs after which a launch has the same operands again."""
        used = {operand.ref.root for operand in launch.operands}
        return math.lcm(*(self.outputs.slots if root in self.outputs.offsets else root.slots for root in used))

    def home(self, ref: Ref) -> Hashable:
        """Return a key of the buffer of a Ref: the outputs, a tensor of its own, or a slab."""
        root = ref.root
        if root in self.outputs.offsets:
            return "outputs"
        return root if root.persistent else self.plan.places[root][0]

    def locate(self, ref: Ref, slot: int = 0) -> tuple[Any, int]:
        if ref.root in self.outputs.offsets:
            return self.outputs.buffer, self.outputs.place(ref, slot) // ref.dtype.itemsize
        return self.session.locate(ref, self, slot)

    # -- running -----------------------------------------------------------------------------------------------------

    def set_step(self, **words: float | int) -> None:
        """Write words of the step buffer (STEP) for the next run: RATE and SCALE as float, the others as unsigned integers.

        If no word that launches read has changed, nothing is sent: a transfer stalls the device for as long as several
        small kernels take.
        """
        read = {name: value for name, value in words.items() if name in self._reads}
        if read.items() <= self._sent.items():
            return
        self._sent |= read
        for name, value in words.items():
            self._words[STEP[name]] = np.float32(value).view(np.uint32) if name in ("RATE", "SCALE") else np.uint32(int(value) & 0xFFFFFFFF)
        if len(self._sendings) == RING:
            self._sendings.popleft().wait()
        device, buffer = self.session.device, self.session.buffers(self.step)[0]
        self._sendings.append(device.cl.enqueue_copy(device.queue, buffer, self._words.copy(), is_blocking=False))

    def run(self, start: int = 0, stop: int | None = None, slot: int | None = None) -> None:
        """Enqueue the launches [start, stop). The first run after a bind may start anywhere. `slot`: the number of an earlier run to continue."""
        assert len(self._actions) == len(self.schedule), "the command list is not bound"
        assert start not in self._inside and stop not in self._inside, "a part of a graph"
        queue = self.session.device.queue
        enqueue = self.session.device.cl.enqueue_nd_range_kernel
        going_on = slot is not None
        slot = self.runs if slot is None else slot
        self.outputs.turn(slot)
        for root in self._learned:
            self.session.note(root)
        event = None
        if self.session.timeline is not None:
            self._run_timed(self.session.timeline, start, stop, slot)
            start = len(self._actions)
        end = len(self._actions) if stop is None else min(stop, len(self._actions))
        actions = iter(self._actions[start:end])
        try:
            for action in actions:
                if type(action) is tuple:
                    kernel, size, local = action
                    if type(kernel) is list:
                        kernel = kernel[slot % len(kernel)]
                    event = enqueue(queue, kernel, size, local)
                else:
                    event = action(slot)
        except BaseException as problem:
            event = self._completed_after(problem, end - length_hint(actions) - 1, end, slot)
        self._last = event
        self._reached(end)
        if not going_on and end == len(self._actions):
            self.runs += 1
        queue.flush()
        for stream in self._streams:
            stream.ahead(slot)
        if self.plan.slabs:
            self.arena.commands, self.arena.reached = self, end

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
                event = _enqueue(session.device, action, slot)
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
        return self.outputs.fetch(self._last)

    def _run_timed(self, timeline: Timeline, start: int, stop: int | None, slot: int) -> None:
        """Run the launches and add each to the timeline. A step on the host is timed by the clock, between waits."""
        device = self.session.device
        if self.graphs and not self._single:
            self._single = self._bind_single()
        for launch, action in zip(self.schedule[start:stop], (self._single or self._actions)[start:stop]):
            if not isinstance(launch, (HostCall, Measure, BeginExchange, EndExchange)):
                timeline.add(launch, _enqueue(device, action, slot))
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

    def read(self, ref: Ref, slot: int = 0) -> np.ndarray:
        """Return a dense copy of a Ref of this command list. Waits. `slot` selects the copy of a ring."""
        if not ref.count:
            return np.empty(ref.shape, ref.dtype)
        if ref.root in self.outputs.offsets:
            return self.outputs.read(ref)
        return self.session.read(ref, self, slot)

    def write(self, ref: Ref, array: np.ndarray, slot: int = 0) -> None:
        """Write an array to a Ref of this command list. Waits."""
        if ref.root in self.outputs.offsets:
            self.outputs.write(ref, array)
        elif ref.count:
            if ref.root is self.step:
                self._sent = {}
            self.session.write(ref, array, self, slot)


def _made_anew(schedule: Schedule) -> bool:
    """Return whether every run writes all outputs before it reads them. Then runs need not share an output slot."""
    first: dict[Ref, Access] = {}
    for launch in schedule:
        for operand in launch.operands:
            if operand.ref.root.role is Role.OUTPUT:
                first.setdefault(operand.ref.root, operand.access)
    return all(access is Access.WRITE for access in first.values())


class OutputRing:
    """One small buffer for losses and net outputs, with a slot for each of several runs. One transfer copies all slots to the host.

    Most runs then have no transfer, which would stall the device for as long as several small kernels take. `slots` is the
    maximum number of slots.
    """

    def __init__(self, session: Session, refs: list[Ref], slots: int) -> None:
        self.session = session
        self.offsets: dict[Ref, int] = {}
        size = 0
        for ref in refs:
            self.offsets[ref] = size
            size += -(-ref.nbytes // OUTPUT_ALIGNMENT) * OUTPUT_ALIGNMENT
        self._size = max(size, OUTPUT_ALIGNMENT)
        self.slots = slots if slots * self._size <= OUTPUT_BYTES else 1
        self._slot = 0  # of the last run
        self._transfer = Transfer()  # the next transfer
        self._fetched: set[int] = set()  # slots that the next transfer copies for a Fetched
        self._sent = 0.0  # time of the last transfer
        cl = session.device.cl
        self.buffer = session.allocate(self.slots * self._size, "the outputs", shared=True)
        cl.enqueue_fill_buffer(session.device.queue, self.buffer, np.uint32(0), 0, self.slots * self._size)

    def place(self, ref: Ref, slot: int | None = None) -> int:
        """Return the offset in bytes of an output in the buffer. `slot` None: that of the last run."""
        slot = self._slot if slot is None else slot % self.slots
        return slot * self._size + self.offsets[ref.root] + ref.root_offset * ref.dtype.itemsize

    def turn(self, run: int) -> None:
        """Select the slot of run number `run`, which is enqueued next."""
        self._slot = run % self.slots
        if self._slot in self._fetched:
            self.send()

    @property
    def late(self) -> bool:
        """Return whether the last transfer was so long ago that outputs are sent although slots are free."""
        return time.monotonic() - self._sent > LATE

    def fetch(self, last: Any) -> Fetched:
        """Return the outputs of the last run. Later runs may share their transfer. `last`: the event of the run's last launch."""
        fetched = Fetched(self, self._transfer, self._slot, last)
        self._fetched.add(self._slot)
        if len(self._fetched) == self.slots or self.late:
            self.send()
        return fetched

    def send(self) -> None:
        """Start the transfer of the fetched outputs. Does not wait."""
        host = np.empty(self.slots * self._size, np.uint8)
        device = self.session.device
        self._transfer.host, self._transfer.event = host, device.cl.enqueue_copy(device.queue, host, self.buffer, is_blocking=False)
        self._transfer, self._sent = Transfer(), time.monotonic()
        self._fetched.clear()

    def write(self, ref: Ref, array: np.ndarray) -> None:
        """Set one output of the last run. Waits."""
        data, device = np.ascontiguousarray(array, ref.dtype), self.session.device
        if not write_shared(device, self.buffer, self.place(ref), data):
            device.cl.enqueue_copy(device.queue, self.buffer, data, dst_offset=self.place(ref), is_blocking=True)

    def read(self, ref: Ref) -> np.ndarray:
        """Return a copy of one output of the last run. Waits."""
        result, device = np.empty(ref.shape, ref.dtype), self.session.device
        if not read_shared(device, self.buffer, self.place(ref), result):
            device.cl.enqueue_copy(device.queue, result, self.buffer, src_offset=self.place(ref), is_blocking=True)
        return result


@dataclass
class Transfer:
    """The transfer of the outputs of some runs to the host."""

    host: np.ndarray | None = None  # None: not sent yet
    event: Any = None  # None: not sent yet, or complete


@dataclass
class Fetched:
    """The outputs of one run. `value` waits for them."""

    ring: OutputRing
    transfer: Transfer
    slot: int
    last: Any

    def finish(self) -> None:
        """Wait for the run, not for its outputs."""
        if self.last is not None:
            self.last.wait()
            self.last = None

    @property
    def arrived(self) -> bool:
        """Return whether `value` need not wait. Starts the transfer if it is late."""
        transfer = self.transfer
        if transfer.host is None and self.ring.late:
            self.ring.send()
        if transfer.event is not None and complete(self.ring.session.device.cl, transfer.event):
            transfer.event = None
        return transfer.host is not None and transfer.event is None

    def value(self, ref: Ref) -> np.ndarray:
        """Return a copy of one output."""
        transfer = self.transfer
        if transfer.host is None:
            self.ring.send()
        if transfer.event is not None:
            transfer.event.wait()
            transfer.event = None
        assert transfer.host is not None
        begin = self.ring.place(ref, self.slot)
        return transfer.host[begin : begin + ref.nbytes].view(ref.dtype).reshape(ref.shape).copy()


class _UploadAction:
    """Send the next batch of the prefetcher to its slot. Waits only for data, or for the oldest upload if the ring is full."""

    def __init__(self, commands: CommandList, launch: Upload) -> None:
        self.commands = commands
        self.source = launch.source
        self.buffers = commands.session.buffers(launch.operands[0].ref.root)
        self.open: deque[tuple[Any, Any]] = deque()

    def __call__(self, slot: int) -> Any:
        device = self.commands.session.device
        prefetcher = self.commands.prefetchers[self.source]
        while self.open and (len(self.open) >= len(self.buffers) or complete(device.cl, self.open[0][0])):
            event, batch = self.open.popleft()
            event.wait()
            prefetcher.recycle(batch)
        batch = prefetcher.get()
        buffer = self.buffers[slot % len(self.buffers)]
        self.open.append((device.cl.enqueue_copy(device.queue, buffer, batch.block, is_blocking=False), batch))
        return self.open[-1][0]


class _StreamAction:
    """Send large batches to a device with its own memory. The transfer overlaps with the kernels of the previous run."""

    def __init__(self, commands: CommandList, launch: Upload) -> None:
        self.commands = commands
        self.source = launch.source
        self.buffers = commands.session.buffers(launch.operands[0].ref.root)

    def __call__(self, slot: int) -> Any:
        session = self.commands.session
        feed, prefetcher = session.feed(self.source), self.commands.prefetchers[self.source]
        return feed.take(session.device, prefetcher, self.buffers[slot % len(self.buffers)], timed=session.timeline is not None)

    def ahead(self, slot: int) -> None:
        """Send the next batch ahead, after run `slot` or a part of it was enqueued."""
        session, prefetcher = self.commands.session, self.commands.prefetchers.get(self.source)
        if prefetcher is not None and session.timeline is None:
            now, following = (self.buffers[number % len(self.buffers)] for number in (slot, slot + 1))
            session.feed(self.source).send_ahead(session.device, prefetcher, now, following)


class _PrepackAction:
    """Pack or transform weights if parameters have changed since the last time."""

    def __init__(self, commands: CommandList, made: Ref, action: tuple[Any, ...]) -> None:
        self.session, self.made, self.action = commands.session, made, action

    def __call__(self, slot: int) -> None:
        if self.session.prepacked.get(self.made) != self.session.written:
            self.session.device.cl.enqueue_nd_range_kernel(self.session.device.queue, *self.action)
            self.session.prepacked[self.made] = self.session.written


class _HostAction:
    """Wait for the device, then run a Python step on the host."""

    def __init__(self, commands: CommandList, launch: HostCall) -> None:
        self.commands, self.launch = commands, launch

    def __call__(self, slot: int) -> None:
        assert self.launch.run is not None
        self.commands.session.device.queue.finish()
        self.launch.run(self.commands)


class _BeginExchangeAction:
    """Let the exchange of a bucket begin once the launches before have run. Does not wait."""

    def __init__(self, commands: CommandList, launch: BeginExchange) -> None:
        self.session, self.bucket, self.exact = commands.session, launch.operands[0].ref, launch.exact
        self.buffer, self.offset = commands.locate(self.bucket)

    def __call__(self, slot: int) -> None:
        exchange, device = self.session.exchange, self.session.device
        assert exchange is not None
        filled = device.cl.enqueue_marker(device.queue)
        device.queue.flush()
        exchange.begin(filled, self.buffer, self.offset, self.bucket.count, self.exact)


class _EndExchangeAction:
    """Wait until a bucket holds the average over all ranks."""

    def __init__(self, commands: CommandList, launch: EndExchange) -> None:
        self.session = commands.session
        self.buffer, self.offset = commands.locate(launch.operands[0].ref)

    def __call__(self, slot: int) -> None:
        assert self.session.exchange is not None
        self.session.device.queue.flush()  # the launches since the begin run during the exchange
        self.session.exchange.end(self.buffer, self.offset)


class Measured(Exception):
    """A layer's top shapes differ from those that the command list was recorded for. The run stopped after `step`."""

    def __init__(self, step: int, layer: Any, extent: tuple[Any, ...]) -> None:
        super().__init__(step, layer, extent)
        self.step, self.layer, self.extent = step, layer, extent


class _MeasureAction:
    """Wait for the device. Compare the measured extent with the one that the command list was recorded for."""

    def __init__(self, commands: CommandList, launch: Measure, step: int) -> None:
        self.commands, self.launch, self.step = commands, launch, step

    def __call__(self, slot: int) -> None:
        assert self.launch.run is not None
        self.commands.session.device.queue.finish()
        extent = self.launch.run(self.commands)
        if extent != self.launch.measured.extent:
            raise Measured(self.step, self.launch.measured, extent)


def _enqueue(device: Device, action: Any, slot: int) -> Any:
    """Perform one action. Return the event of the command that it enqueued, if any."""
    if type(action) is not tuple:
        return action(slot)
    kernel, size, local = action
    return device.cl.enqueue_nd_range_kernel(device.queue, kernel[slot % len(kernel)] if type(kernel) is list else kernel, size, local)


def _nothing(slot: int) -> None:
    """Action of a launch over no elements."""


class _PoisonAction:
    """Perform an action, then fill all Refs that no later launch reads with NaN (OCAFFE_POISON=1)."""

    def __init__(self, commands: CommandList, action: Any, dying: list[Ref]) -> None:
        self.commands, self.action = commands, action
        self.places = [(*commands.locate(ref), ref) for ref in dying]

    def __call__(self, slot: int) -> Any:
        device = self.commands.session.device
        event = _enqueue(device, self.action, slot)
        for buffer, offset, ref in self.places:
            if ref.nbytes >= 4:
                device.cl.enqueue_fill_buffer(device.queue, buffer, POISON, offset * ref.dtype.itemsize, ref.nbytes // 4 * 4)
        return event
