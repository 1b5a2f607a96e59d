"""A session: the buffers that nets share on one device, such as those of a solver, and the command lists bound to them.

Persistent Refs (parameters, history, inputs, staging, constants) have their own buffers while the session exists.
Recycled Refs are in an arena. Its slabs are as large as the largest plan of its command lists.
Thus the TEST net of a solver uses the TRAIN net's memory.
"""
from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.cl.feed import Feed
from ocaffe.cl.first_launches import FirstLaunch
from ocaffe.cl.host_memory import host_buffer
from ocaffe.cl.pinned import Staging, is_pinned
from ocaffe.cl.program import ProgramKey, Programs, generated_programs
from ocaffe.cl.rates import rates_of
from ocaffe.cl.shared_memory import can_share, read_shared, shared_buffer, write_shared
from ocaffe.cl.timeline import Timeline
from ocaffe.errors import NoRoom, shape_text
from ocaffe.ir.launch import Schedule, roots
from ocaffe.ir.rates import GENERIC_CPU
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import MemoryPlan
from ocaffe.memory.report import kept_on_host, size_text
from ocaffe.shown import Lines
from ocaffe.support.process_memory import PIECE, return_heaps

POISON = np.uint32(0xFFFFFFFF)  # a NaN as float
GENERATED_SIZE = 32 << 10  # characters of a program of generated kernels on a GPU. One with all of ResNet-50's took 4 s of its first start on an H100
FEWEST_APART = 3  # for fewer programs the start of another process, 0.4 s, takes too long
LAYERS_PER_PROGRAM = 5  # of large nets, about: ResNet-50 has 229 layers and 49 programs on an H100
_SMALLER = "set a smaller batch_size in the data layer, or choose a device with more memory: `ocaffe device_query` lists them"
COMPILER_SHARE = 8  # the contexts of compilers may take an eighth of the free memory of the device, unless the user limits memory
SMALL, SENT = 1 << 16, 8  # maximum bytes of an array that is sent without waiting; maximum number of such transfers in progress


class CommandList(Protocol):
    """The interface of a command list that a session uses (ocaffe/cl/command_list.py)."""

    arena: Arena
    schedule: Schedule
    plan: MemoryPlan
    poison: bool  # fill values with NaN after their last use
    generated: Mapping[str, ProgramKey]

    @property
    def texts(self) -> set[str]:
        """The texts of the generated kernels."""

    @property
    def keys(self) -> set[ProgramKey]:
        """The programs that `bind` needs."""

    def first_launches(self) -> Iterator[tuple[ProgramKey, FirstLaunch]]:
        """Yield launches of one work-group, in the order of the schedule, with their programs."""

    @property
    def completed(self) -> bool:
        """Whether no launch of the last run is waiting, running or failed, as far as the event of the last one tells."""

    def bind(self) -> None:
        """Create the kernels and set their arguments."""


class Exchange(Protocol):
    """The average of buckets over all ranks of a training (ocaffe/parallel): of gradients, and of BatchNorm's statistics.

    All ranks begin and end the same buckets in the same order.
    """

    def begin(self, filled: Any, buffer: Any, offset: int, count: int, exact: bool = False) -> None:
        """Begin with `count` floats of `buffer` from element `offset` on, once the event `filled` is complete. Does not wait.

        `exact`: send floats, whatever the number of bits of gradients.
        """

    def end(self, buffer: Any, offset: int) -> None:
        """Wait until the bucket that has begun at element `offset` of `buffer` holds the average. Raises Error if the exchange failed."""


class Memory(Protocol):
    """Makes the slab for gradients (Target.gradient_slab) in memory that an exchange can access too (ocaffe/cl/cuda_memory.py)."""

    def allocate(self, size: int) -> Any:
        """Return a buffer of at least `size` bytes. Raises Error."""

    def free(self, buffer: Any) -> None:
        """Release a buffer that no command uses."""


def room_of_first_start(device: Device) -> int:
    """Return the bytes of a GPU's own memory that compilers may take without a memory limit, whatever the plan takes (docs/adr/0018)."""
    return device.info.target.free_memory // COMPILER_SHARE


class Arena:
    """The slabs of recycled Refs. Nets that take turns can share an arena; each run then overwrites the others' values."""

    def __init__(self) -> None:
        self.slabs: list[Any] = []
        self.host_slabs: list[Any] = []  # in the host's memory
        self.commands: CommandList | None = None  # the one that ran last
        self.reached = 0  # the launch at which its last run stopped


class Session:
    """Owner of all buffers. Command lists and nets look them up by Ref."""

    def __init__(self, device: Device, limit: float | None = None, apart: int = FEWEST_APART) -> None:
        """`limit`: bytes that the nets of the session may take, infinite if that is not known yet; None: there is no limit.

        `apart`: from this number on, a CPU's programs are built in other processes alone.
        """
        self.device, self.limited = device, limit is not None
        if limit is not None and not device.target.unified_memory and device.target.rates is GENERIC_CPU:
            device.target = replace(device.target, rates=rates_of(device, limit))
        self.programs: Programs = device.programs or Programs(device, apart=apart if device.info.target.is_cpu else 0)
        self.command_lists: list[CommandList] = []
        self.arena = Arena()  # for nets without their own arena
        self.touched: list[Any] = []  # mirrors that scripts may have written to, of all nets of the session (ocaffe/api/blob.py)
        self.watched: list[Any] = []  # mirrors whose arrays scripts hold
        self.mirrors: dict[Any, Any] = {}  # of parameters, which several nets may share
        self.exchange: Exchange | None = None  # None: there is one rank
        self.memory: Memory | None = None  # makes the first slab of each arena; None: OpenCL does
        self.timeline: Timeline | None = None  # records the launches of command lists while profiling
        self.written = 0  # number of changes of parameters
        self.updates = 0  # complete runs of command lists with a solver's update
        self.changed = False  # whether parameters or history were changed since the last of these runs
        self.refused: list[Exception] | None = None  # a list: complete an iteration although a launch was refused, and put the errors here
        self.prepacked: dict[Ref, int] = {}  # prepacked weights, with the value of `written` at that time
        self.feeds: dict[Any, Feed] = {}  # by source
        self._staging = Staging(device)
        self._persistent: dict[Ref, list[Any]] = {}
        self._on_host: set[Ref] = set()  # those of them in the host's memory
        self._sent: deque[Any] = deque()  # events; they keep the host arrays alive
        self._cl = device.cl
        self._shares = can_share(device)

    # -- binding -----------------------------------------------------------------------------------------------------

    def expect(self, layers: int) -> None:
        """Start compilers for a net of so many layers before it is planned, on a GPU with its own memory.

        With a memory limit they do not start, since only the plan tells how much they may take.
        """
        if self.device.context_bytes and not self.limited:
            self.programs.expect(layers // LAYERS_PER_PROGRAM, room_of_first_start(self.device))

    def bind(self, command_lists: Iterable[CommandList]) -> None:
        """Bind those of the command lists that are not bound to the device: build all programs together, grow the arenas, set arguments.

        Raises Error if the device has too little memory.
        """
        fresh = [commands for commands in command_lists if commands not in self.command_lists]
        if not fresh:
            return
        self.command_lists += fresh
        try:
            moved = self._settle()
            needed, on_host = self._needed_slabs(), self._needed_slabs(on_host=True)
            grown = {arena for arena in needed if not (_hold(arena.slabs, needed[arena]) and _hold(arena.host_slabs, on_host[arena]))}
            if grown:
                self.check_room(sum(map(sum, needed.values())))
            generated = self._programs_of({text for commands in fresh for text in commands.texts})
            for commands in fresh:
                commands.generated = generated
            # Before the slabs exist, so that the compilers' contexts can take their memory.
            self.programs.build_all(sorted({key for commands in fresh for key in commands.keys}), self._room_of_compilers(needed))
            for arena in grown:
                arena.host_slabs = []
                arena.host_slabs = [host_buffer(self.device, size) for size in on_host[arena]]
                self._make_slabs(arena, needed[arena], any(commands.poison for commands in fresh))
            for commands in self.command_lists:
                if commands.arena in grown or commands in fresh or moved:
                    commands.bind()
            self.programs.compile_ahead(launch for commands in fresh for launch in commands.first_launches())
            return_heaps()
        except BaseException:
            self.command_lists = [commands for commands in self.command_lists if commands not in fresh]  # the next bind does not need their memory
            raise

    def build(self, command_lists: Sequence[CommandList], room: int) -> None:
        """Build the programs of command lists that are bound one by one later. `room`: bytes of device memory that compilers may use."""
        for commands in command_lists:
            commands.generated = self._programs_of(commands.texts)
        self.programs.build_all(sorted({key for commands in command_lists for key in commands.keys}), room)

    def _programs_of(self, texts: set[str]) -> dict[str, ProgramKey]:
        """Return the programs of generated kernels. A CPU has few compilers, and one program takes less of their time than several."""
        return generated_programs(texts, sys.maxsize if self.device.target.is_cpu else GENERATED_SIZE)

    def settled(self) -> bool:
        """Wait for the device. Return whether it has carried out the last run of every command list, as far as the driver tells."""
        self.device.queue.finish()
        return all(commands.completed for commands in self.command_lists)

    def release(self, commands: CommandList) -> None:
        """Release a command list and the buffers that only it uses. Parameters, history and gradients stay."""
        if commands in self.command_lists:  # not if its bind failed
            self.command_lists.remove(commands)
        used = {root for other in self.command_lists for root in roots(other.schedule)}
        for root in roots(commands.schedule):
            if root not in used and root.role not in (Role.PARAMETER, Role.HISTORY, Role.GRADIENT):
                self._persistent.pop(root, None)
                self.prepacked.pop(root, None)

    def adopt(self, other: Session) -> None:
        """Take over the persistent buffers and the scripts' arrays of a session of the same context."""
        other.device.queue.finish()  # its transfers may still be in progress
        self._persistent.update(other._persistent)
        self._on_host |= other._on_host
        self.written += 1
        self.touched += other.touched
        self.watched += other.watched
        other.touched, other.watched = [], []

    def dispose(self) -> None:
        """Release all buffers and command lists."""
        for source in list(self.feeds):
            self.end_feed(source)
        self._staging.close()
        for commands in self.command_lists:
            commands.arena.slabs.clear()
            commands.arena.host_slabs.clear()
        for kept in (self.command_lists, self.touched, self.watched, self.mirrors, self.prepacked, self._persistent, self._sent):
            kept.clear()

    def feed(self, source: Any) -> Feed:
        """Return the Feed that sends large batches of `source` to a device with its own memory."""
        if source not in self.feeds:
            self.feeds[source] = Feed()
        return self.feeds[source]

    def end_feed(self, source: Any) -> None:
        """Close the feed of a source whose prefetcher is closed."""
        if source in self.feeds:
            self.feeds.pop(source).close()

    @contextmanager
    def timed(self) -> Iterator[Timeline]:
        """Context in which the timeline records every launch of every command list. Waits for the device before and after."""
        device = self.device
        own = device.queue
        own.finish()
        device.queue = self._cl.CommandQueue(device.context, device.cl_device, properties=self._cl.command_queue_properties.PROFILING_ENABLE)
        self.timeline = Timeline()
        try:
            yield self.timeline
        finally:
            self.timeline = None
            device.queue.finish()
            device.queue = own

    def _needed_slabs(self, on_host: bool = False) -> dict[Arena, list[int]]:
        """Return the sizes of the slabs that the plans of all command lists need, per arena: on the device, or in the host's memory."""
        needed: dict[Arena, list[int]] = {}
        for commands in self.command_lists:
            slabs = commands.plan.host_slabs if on_host else commands.plan.slabs
            sizes = zip_longest(needed.get(commands.arena, []), slabs, fillvalue=0)
            needed[commands.arena] = [max(pair) for pair in sizes]
        return needed

    def _make_slabs(self, arena: Arena, sizes: list[int], poison: bool) -> None:
        if self.memory is not None and arena.slabs:
            self.device.queue.finish()
            self.memory.free(arena.slabs[0])
        arena.slabs, arena.commands = [], None
        for index, size in enumerate(sizes):
            slab = self.allocate(size, "blobs and gradients", exchanged=index == 0)
            if poison:
                self._cl.enqueue_fill_buffer(self.device.queue, slab, POISON, 0, size // 4 * 4)
            arena.slabs.append(slab)

    def _persistent_roots(self) -> set[Ref]:
        """Those on the device."""
        return {root for commands in self.command_lists for root in roots(commands.schedule) if root.persistent} - self._on_host

    @property
    def planned_bytes(self) -> int:
        """Bytes on the device that the plans of all command lists take together."""
        return sum(ref.nbytes * ref.slots for ref in self._persistent_roots()) + sum(map(sum, self._needed_slabs().values()))

    @property
    def host_bytes(self) -> int:
        """Bytes of the plans in the host's memory."""
        return sum(root.nbytes for root in self._on_host) + sum(map(sum, self._needed_slabs(on_host=True).values()))

    def _room_of_compilers(self, needed: dict[Arena, list[int]]) -> int:
        """Return the bytes of device memory that the contexts of compilers may take (docs/adr/0018)."""
        unallocated = self._unallocated(needed)
        return unallocated if self.limited else max(unallocated, room_of_first_start(self.device))

    def _unallocated(self, needed: dict[Arena, list[int]]) -> int:
        """Return the bytes of the session's plan that no buffer takes yet."""
        planned = self.planned_bytes
        here = (buffers for root, buffers in self._persistent.items() if root not in self._on_host)
        taken = [buffer.size for buffers in here for buffer in buffers] + [slab.size for arena in needed for slab in arena.slabs]
        return max(0, planned - sum(taken))

    def check_room(self, arena: int) -> None:
        """Raise Error, naming the largest tensors, if the nets do not fit on the device. Runs before slabs are allocated."""
        persistent = self._persistent_roots()
        fixed = sum(ref.nbytes * ref.slots for ref in persistent)
        target = self.device.target
        limit = target.available_memory
        if fixed + arena <= limit:
            return
        commands = max(self.command_lists, key=lambda commands: commands.plan.total)
        lives = [life.ref for life in commands.plan.live_at(commands.plan.peak_step)]
        largest = sorted({*lives, *persistent}, key=lambda ref: -ref.nbytes * ref.slots)[:5]
        names = ", ".join(f"{ref.name} ({shape_text(ref.shape)}, {size_text(ref.nbytes * ref.slots)})" for ref in largest)
        share = (limit - fixed) / max(arena, 1)
        fix = f"lower batch_size to {100 * share:.0f} % of what it is" if share > 0.01 else "use a device with more memory"
        raise NoRoom(
            Lines(
                f"the net needs {size_text(fixed + arena)}, '{self.device.name}' has {size_text(limit)} free",
                f"  parameters, solver history and input buffers {size_text(fixed)}, blobs and gradients {size_text(arena)}; largest: {names}",
            ),
            fix=fix,
        )

    def allocate(self, size: int, what: str, exchanged: bool = False, shared: bool = False) -> Any:
        """Return a new buffer. Raises Error if the device cannot have it.

        `exchanged`: it is the slab for gradients, which the exchange accesses too. `shared`: host and device share it, if they can.
        """
        cl, limit = self._cl, self.device.info.target.available_memory  # a runtime may allow more, and the first use then fails
        if size > limit:
            raise NoRoom(
                f"{what} needs a buffer of {size_text(size)}, '{self.device.name}' has {size_text(limit)} free",
                fix=_SMALLER,
            )
        if exchanged and self.memory is not None:
            return self.memory.allocate(max(size, 4))
        try:
            if shared and self._shares:
                return shared_buffer(self.device, max(size, 4))
            return cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE, max(size, 4))
        except (cl.MemoryError, cl.RuntimeError, cl.LogicError) as reason:
            raise NoRoom(
                f"'{self.device.name}' refused a buffer of {size_text(size)} for {what} ({reason})",
                fix=_SMALLER,
            ) from reason

    # -- Refs --------------------------------------------------------------------------------------------------------

    def buffers(self, root: Ref) -> list[Any]:
        """Return the buffers of a persistent root Ref, one per slot. The first call allocates them and writes the first value."""
        if root not in self._persistent:
            self._persistent[root] = made = self._made(root)
            for buffer in made:
                self._fill(buffer, root)
        return self._persistent[root]

    def _made(self, root: Ref) -> list[Any]:
        if root in self._on_host:
            return [host_buffer(self.device, root.nbytes) for _ in range(root.slots)]
        return [self.allocate(root.nbytes, root.name, shared=root.role is Role.INPUT) for _ in range(root.slots)]

    def _settle(self) -> bool:
        """Put persistent Refs into the memory where the command lists need them. Return whether one has moved between device and host."""
        wanted = kept_on_host(commands.schedule for commands in self.command_lists)
        moved = [root for root in wanted ^ self._on_host if root in self._persistent]
        self._on_host = wanted
        for root in moved:
            before = self._persistent[root]
            self._persistent[root] = self._made(root)
            for source, target in zip(before, self._persistent[root]):
                self._cl.enqueue_copy(self.device.queue, target, source, byte_count=root.nbytes).wait()
        return bool(moved)

    def _fill(self, buffer: Any, ref: Ref) -> None:
        value = ref.value if ref.value is not None else 0
        if (array := self._view_at(buffer, 0, ref)) is not None:
            # Intel's runtime takes up to 62 MiB of its own for a command that fills.
            array[...] = value.reshape(ref.shape) if isinstance(value, np.ndarray) else value
        elif isinstance(value, np.ndarray):
            self._cl.enqueue_copy(self.device.queue, buffer, np.ascontiguousarray(value, ref.dtype), is_blocking=True)
        elif ref.count:
            self._cl.enqueue_fill_buffer(self.device.queue, buffer, ref.dtype.type(value), 0, ref.nbytes)

    def note(self, root: Ref) -> None:
        """Record that a following command changes `root`."""
        self.written += root.role is Role.PARAMETER

    def clear(self, root: Ref) -> None:
        """Enqueue a fill of a persistent root Ref with zeros. Does not wait."""
        self.note(root)
        self._zero(self.buffers(root)[0], root.nbytes)

    def clear_arena(self, arena: Arena) -> None:
        """Enqueue a fill of an arena's slabs with zeros. Does not wait."""
        for slab in arena.slabs:
            self._zero(slab, slab.size)

    def _zero(self, buffer: Any, size: int) -> None:
        """Enqueue a fill of `size` bytes with zeros: on a CPU in pieces, since its runtime may take as much memory as a command fills."""
        step = PIECE if self.device.target.is_cpu else max(size, 1)
        for start in range(0, size, step):
            self._cl.enqueue_fill_buffer(self.device.queue, buffer, np.uint8(0), start, min(step, size - start))

    def locate(self, ref: Ref, slot: int = 0) -> tuple[Any, int]:
        """Return buffer and offset in elements of a persistent Ref or a view of one."""
        assert ref.root.persistent, f"{ref.name} is recycled"
        buffers = self.buffers(ref.root)
        return buffers[slot % len(buffers)], ref.root_offset

    def view(self, ref: Ref) -> np.ndarray | None:
        """Return an array over the memory of a dense persistent Ref, on a CPU; else None. Waits for the device.

        Drop the array before the next run. A caller that writes parameters to it calls `note`.
        """
        return self._view_at(*self.locate(ref), ref)

    def _view_at(self, buffer: Any, offset: int, ref: Ref) -> np.ndarray | None:
        if not (self.device.target.is_cpu and ref.is_dense and ref.count):
            return None
        cl = self._cl
        flags = cl.map_flags.READ | cl.map_flags.WRITE
        array, _ = cl.enqueue_map_buffer(self.device.queue, buffer, flags, offset * ref.dtype.itemsize, ref.shape, ref.dtype, is_blocking=True)
        return array  # its base unmaps the memory when the array is dropped

    def values(self, ref: Ref) -> np.ndarray:
        """Return the present value of a persistent Ref without a copy if `view` has it, else a copy. Drop the array before the next run."""
        view = self.view(ref)
        return self.read(ref) if view is None else view

    def read(self, ref: Ref) -> np.ndarray:
        """Return a dense copy of the present value of a persistent Ref. Waits for the device."""
        return self.read_at(*self.locate(ref), ref)

    def write(self, ref: Ref, array: np.ndarray) -> None:
        """Write an array of the Ref's shape to a persistent Ref. Waits for the device if the array is large or the buffer shared."""
        self.write_at(*self.locate(ref), ref, array)

    def read_at(self, buffer: Any, offset: int, ref: Ref) -> np.ndarray:
        """Return a dense copy of a Ref that begins at element `offset` of a buffer. Waits for the device."""
        item = ref.dtype.itemsize
        if ref.is_dense or not ref.count:
            result = np.empty(ref.shape, ref.dtype)
            if ref.count and not read_shared(self.device, buffer, offset * item, result):
                self._cl.enqueue_copy(self.device.queue, result, buffer, src_offset=offset * item, is_blocking=True)
            return result
        span = (ref.shape[0] - 1) * ref.batch_stride + ref.dense_stride
        flat = np.empty(span, ref.dtype)
        self._cl.enqueue_copy(self.device.queue, flat, buffer, src_offset=offset * item, is_blocking=True)
        rows = np.lib.stride_tricks.as_strided(flat, (ref.shape[0], ref.dense_stride), (ref.batch_stride * item, item))
        return rows.reshape(ref.shape).copy()

    def write_at(self, buffer: Any, offset: int, ref: Ref, array: np.ndarray) -> None:
        """Write an array of the Ref's shape to the Ref, which begins at element `offset` of a buffer."""
        self.note(ref.root)
        item = ref.dtype.itemsize
        data = np.ascontiguousarray(array, ref.dtype)
        if data.size != ref.count:
            raise ValueError(f"{ref.name} has {ref.count} elements, {data.size} given")
        if ref.is_dense:
            if data.size and write_shared(self.device, buffer, offset * item, data):
                return
            if 0 < data.nbytes <= SMALL:  # copying it takes less time than waking a thread, 50 us
                if len(self._sent) == SENT:
                    self._sent.popleft().wait()
                self._sent.append(self._cl.enqueue_copy(self.device.queue, buffer, data.copy(), dst_offset=offset * item, is_blocking=False))
            elif self.device.target.streams(data.nbytes) and self._staging.helps and not is_pinned(data):
                self._staging.send(buffer, offset * item, data)
            elif data.size:
                self._cl.enqueue_copy(self.device.queue, buffer, data, dst_offset=offset * item, is_blocking=True)
            return
        for sample, row in enumerate(data.reshape(ref.shape[0], -1)):
            self._cl.enqueue_copy(self.device.queue, buffer, row, dst_offset=(offset + sample * ref.batch_stride) * item, is_blocking=True)


def _hold(slabs: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Return whether there is a slab for each size, and each is large enough."""
    return len(slabs) == len(sizes) and all(slab.size >= size for slab, size in zip(slabs, sizes))
