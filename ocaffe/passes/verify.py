"""The verifier of schedules: checks after every pass that the schedule is still one that can be planned and run (OCAFFE_DEBUG=verify).

The rules, each a method of `_Check`:

* `shape`: a launch has a call or an expression, and as many operands and scalars as that says;
* `views`: a view lies inside its base and has its base's type;
* `roles`: forward precedes backward, constants are never written, parameters change in updates and by side effects alone;
* `origins`: every launch is a recorded one, or names the recorded one that it derives from;
* `extensions`: epilogue, mask, reduction and bfloat16 operands are where the kernel expects them;
* `layouts`: once images have their layouts, each launch knows those of its operands;
* `writers`: each element that a launch reads was written before, and still holds the value that was meant;
* `effects`: each launch with a side effect survives exactly once, and each persistent root that was written is still written;
* `overlaps`: a launch writes memory that it also reads only where it declares an in-place pair;
* `exchanges`: no launch accesses a bucket of gradients between the begin and the end of its exchange, and each exchange that begins ends;
* `transfers`: no launch writes a value while it is copied to the host, or accesses one that is fetched before the end of its copy; each copy that begins ends;
  no copy accesses memory of the host that another one is writing; a value that outlives the run is stored before it is fetched as in the recording;
* `graphs`: the launches of a task graph are neighbours of one phase, each of which may be part of one.
"""
from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from ocaffe.ir.kernel import REDUCED, Access, Order
from ocaffe.ir.launch import HOST, BeginExchange, BeginFetch, BeginStore, CopyRegion, EndExchange, EndFetch, EndStore, Launch, Operand, Schedule, Transfer
from ocaffe.ir.tensor import BFLOAT, FLOAT, Ref, Role, has_whole_blocks
from ocaffe.kernels.expression.expression import Pointwise, Reduce, in_domain, treats_alike
from ocaffe.passes.join_launches import may_join, may_lie_within

Interval = tuple[int, int]
_BEGINS: Mapping[type[Launch], type[Launch]] = {EndStore: BeginStore, EndFetch: BeginFetch}
PARAMETER_ALIGNMENT = 256  # elements (ocaffe/graph/parameters.py)
MAX_INTERVALS = 1 << 12  # of a view of many samples; a view with more is taken as one interval


class InvalidSchedule(Exception):
    """A pass broke a rule. The text names pass, launch and tensor: it is a bug in the pass, never a mistake of the user."""


class Verifier:
    """Checks schedules that derive from one recording."""

    def __init__(self, recorded: Schedule) -> None:
        self.recorded = {id(launch): launch for launch in recorded}  # the values keep the launches, and so their ids, alive
        self.persistent = {ref.root: launch for launch in recorded for ref in launch.writes if ref.persistent}
        self.stored = _stored(recorded)

    def check(self, schedule: Schedule, name: str, has_layouts: bool = True) -> None:
        """Check the schedule that pass `name` left. `has_layouts`: images have their layouts. Raises InvalidSchedule."""
        check = _Check(schedule, name, self.recorded.keys())
        check.run(has_layouts)
        check.effects(self.recorded.values(), self.persistent)
        for host, before in _stored(schedule).items():
            if before != self.stored.get(host, before):
                raise InvalidSchedule(f"after pass {name}: {host} is fetched after {before} stores of its values, in the recording after {self.stored[host]}")


class _Check:
    def __init__(self, schedule: Schedule, name: str, recorded: Iterable[int]) -> None:
        self.schedule, self.name, self.recorded = schedule, name, set(recorded)
        self.step = 0

    def fail(self, launch: Launch, fact: str) -> InvalidSchedule:
        where = f"step {self.step}, {launch.phase} of '{launch.layer}' ({launch.what or type(launch).__name__})"
        return InvalidSchedule(f"after pass {self.name}: {where}: {fact}")

    def run(self, has_layouts: bool) -> None:
        in_place = {id(ref) for launch in self.schedule for ref in _shared_in_place(launch)}
        state = _Memory(in_place)
        backward = False
        exchanged: dict[Ref, Launch] = {}  # the buckets whose exchange is in progress
        copied: dict[Ref, Launch] = {}  # the Refs of the host whose copies are in progress
        for step, launch in enumerate(self.schedule):
            self.step = step
            self.origins(launch)
            self.shape(launch)
            self.views(launch)
            backward = self.roles(launch, backward)
            self.extensions(launch)
            if has_layouts:
                self.layouts(launch)
            self.overlaps(launch)
            self.exchanges(launch, exchanged)
            self.transfers(launch, copied)
            self.writers(launch, state)
        for ref, launch in exchanged.items():
            raise self.fail(launch, f"the exchange of {ref} never ends")
        for ref, launch in copied.items():
            raise self.fail(launch, f"the copy of {ref} never ends")
        self.graphs()

    def transfers(self, launch: Launch, copied: dict[Ref, Launch]) -> None:
        if isinstance(launch, Transfer):
            begun, wanted = copied.pop(launch.host, None), _BEGINS.get(type(launch))
            if type(begun) is not (wanted or type(None)):
                fact = "begins while another copy of it is in progress" if wanted is None else "ends, and it never began"
                raise self.fail(launch, f"the copy of {launch.host} {fact}")
        for host, begun in copied.items():
            fetched = isinstance(begun, BeginFetch)
            if isinstance(launch, Transfer) and launch.host.overlaps(host) and not (fetched and isinstance(launch, (BeginFetch, EndFetch))):
                raise self.fail(launch, f"accesses {launch.host} while {host}, the same memory of the host, is copied")
            for operand in launch.operands:
                if operand.ref.root is begun.operands[fetched].ref.root and (fetched or operand.access is not Access.READ):
                    raise self.fail(launch, f"accesses {operand.ref} while it is copied {'from' if fetched else 'to'} {host}")
        if isinstance(launch, (BeginStore, BeginFetch)):
            copied[launch.host] = launch

    def graphs(self) -> None:
        members: dict[int, list[int]] = defaultdict(list)
        for step, launch in enumerate(self.schedule):
            if launch.graph is not None:
                members[launch.graph].append(step)
        for graph, steps in members.items():
            for self.step in range(steps[0], steps[-1] + 1):
                launch = self.schedule[self.step]
                if launch.phase != self.schedule[steps[0]].phase:
                    raise self.fail(launch, f"task graph {graph} has launches of another phase")
                if launch.graph == graph and not may_join(launch):
                    raise self.fail(launch, f"cannot be part of task graph {graph}")
                if launch.graph != graph and not may_lie_within(launch):
                    raise self.fail(launch, f"lies within task graph {graph}, which it is not part of")

    def exchanges(self, launch: Launch, exchanged: dict[Ref, Launch]) -> None:
        for operand in launch.operands:
            begun = exchanged.pop(operand.ref.root, None)
            if isinstance(launch, BeginExchange) and begun is None:
                exchanged[operand.ref.root] = launch
            elif isinstance(launch, EndExchange) != (begun is not None):
                fact = "ends, and it never began" if begun is None else "is in progress"
                raise self.fail(launch, f"the exchange of {operand.ref} {fact}")

    def effects(self, recorded: Iterable[Launch], persistent: Mapping[Ref, Launch]) -> None:
        """Check that no effect of the recording is lost or doubled."""
        found = Counter(id(launch.origin or launch) for launch in self.schedule if launch.kernel.can.side_effect and not launch.recomputed)
        for launch in recorded:
            count = found[id(launch)]
            if launch.kernel.can.side_effect and not launch.recomputed and count != 1:
                raise InvalidSchedule(f"after pass {self.name}: {launch.phase} of '{launch.layer}' ({launch.what}) has a side effect and runs {count} times")
        if len({id(launch) for launch in self.schedule}) < len(self.schedule):
            raise InvalidSchedule(f"after pass {self.name}: the schedule lists one launch twice")
        written = {ref.root for launch in self.schedule for ref in launch.writes}
        for root, launch in persistent.items():
            if root not in written and root.base is None:
                raise InvalidSchedule(
                    f"after pass {self.name}: no launch writes {root}, which outlives the run; '{launch.layer}' ({launch.what}) wrote it in the recording"
                )

    def origins(self, launch: Launch) -> None:
        origin = launch.origin or launch
        if id(origin) not in self.recorded:
            fact = "a new launch without an origin" if launch.origin is None else f"its origin, '{origin.layer}' ({origin.what}), was not recorded"
            raise self.fail(launch, f"{fact}; set Launch.origin to the recorded launch that it derives from")

    def shape(self, launch: Launch) -> None:
        if isinstance(launch, HOST):
            return
        if (launch.call is None) == (launch.lower is None):
            raise self.fail(launch, "a launch needs either a call or an expression")
        if isinstance(launch.lower, (Pointwise, Reduce)):
            wanted, names = launch.lower.names, tuple(operand.name for operand in launch.operands)
            if names != wanted:
                raise self.fail(launch, f"the expression has the operands {', '.join(wanted)}, the launch {', '.join(names)}")

    def views(self, launch: Launch) -> None:
        for operand in launch.operands:
            ref: Ref = operand.ref
            seen: set[int] = set()
            while ref.base is not None:
                if id(ref) in seen:
                    raise self.fail(launch, f"{operand.ref} is a view of itself")
                seen.add(id(ref))
                if ref.dtype != ref.base.dtype:
                    raise self.fail(launch, f"{ref} is {ref.dtype}, its base {ref.base} is {ref.base.dtype}")
                ref = ref.base
            if ref.count and operand.ref.count and not 0 <= operand.ref.root_offset <= operand.ref.root_end <= ref.count:
                extent = f"elements {operand.ref.root_offset} to {operand.ref.root_end}"
                raise self.fail(launch, f"view {operand.ref} has {extent}, its base {ref} has {ref.count}")

    def roles(self, launch: Launch, backward: bool) -> bool:
        """Returns whether backward began."""
        if launch.phase == "forward" and backward:
            raise self.fail(launch, "a forward launch after the first backward launch")
        if launch.recomputed and launch.phase != "backward":
            raise self.fail(launch, f"a recomputed launch in phase {launch.phase}")
        for ref in launch.writes:
            role = ref.root.role
            if role is Role.CONSTANT:
                raise self.fail(launch, f"writes {ref}, a constant")
            if role is Role.PARAMETER and launch.phase != "update" and not launch.kernel.can.side_effect:
                raise self.fail(launch, f"writes {ref} outside of an update, without a side effect")
        return backward or launch.phase == "backward"

    def extensions(self, launch: Launch) -> None:
        if launch.call is None:
            return
        scalars, operands, defines = launch.call.scalars, launch.operands, dict(launch.call.defines)
        if launch.epilogue is not None:
            epilogue = launch.epilogue
            wanted = {"bias": epilogue.bias, "accumulate": epilogue.accumulate} | {f"activation {i}": at for i, at in enumerate(epilogue.activation)}
            for name, index in wanted.items():
                if not 0 <= index < len(scalars):
                    raise self.fail(launch, f"epilogue scalar {name} is number {index}, the call has {len(scalars)} scalars")
            if scalars[epilogue.bias] != 0 and not any(operand.access is Access.READ for operand in operands):
                raise self.fail(launch, "the epilogue adds a bias, but no operand is read")
        declared = [slot.name for slot in launch.kernel.slots if not slot.optional or launch.get(slot.name) is not None]
        if declared != [operand.name for operand in operands]:
            names = ", ".join(operand.name for operand in operands)
            raise self.fail(launch, f"the kernel declares the operands {', '.join(declared)}, the launch has {names}")
        if ("FUSED_RELU" in defines) != (launch.mask is not None):
            raise self.fail(launch, "a fused ReLU backward needs both its define and its mask")
        if ("CHANNEL_REDUCTION" in defines) != (launch.get(REDUCED.name) is not None):
            raise self.fail(launch, "a fused channel reduction needs both its define and an operand to write to")
        for operand in operands:
            slot = launch.slot(operand)
            if operand.ref.in_bf16 and (slot is None or not slot.bf16 or defines.get(f"{slot.bf16}_T") != "bfloat"):
                raise self.fail(launch, f"operand {operand.name}, {operand.ref}, is bfloat16, which the kernel does not read")

    def layouts(self, launch: Launch) -> None:
        blocked = [operand.ref.root.blocked for operand in launch.operands]
        alike = treats_alike(launch) and all(blocked)
        either = launch.kernel.can.in_blocks is not None and any(slot.order is Order.EITHER for slot in launch.kernel.slots)
        in_blocks = either and any(blocked)  # with one layout for all operands
        for index, operand in enumerate(launch.operands):
            ref, slot = operand.ref, launch.slot(operand)
            order = Order.EITHER if alike or in_domain(launch, index) else Order.PLANES if slot is None else slot.order
            if in_blocks or (launch.kernel.needs_blocks and operand is launch.mask):
                order = Order.BLOCKS
            one_pixel = len(ref.shape) > 1 and math.prod(ref.shape[2:]) == 1 and ref.dtype in (FLOAT, BFLOAT)  # its memory is the same in both
            known = order is Order.EITHER or one_pixel or ref.root.blocked == (order is Order.BLOCKS)
            if ref.root.blocked and not one_pixel and ref.dtype in (FLOAT, BFLOAT) and not has_whole_blocks(ref):
                raise self.fail(launch, f"operand {operand.name}, {ref}, is a view of {ref.root}, and has no whole blocks of its channels")
            if not known:
                have = "channels in blocks" if ref.root.blocked else "Caffe's order"
                raise self.fail(launch, f"operand {operand.name}, {ref}, has {have}, which the kernel does not know")

    def overlaps(self, launch: Launch) -> None:
        if isinstance(launch, HOST):
            return
        for written in launch.operands:
            if written.access is not Access.WRITE or not written.ref.count:
                continue
            for read in launch.operands:
                shares = read is not written and read.ref is not written.ref and read.ref.root is written.ref.root and read.ref.count > 0
                pair = read.name, written.name
                if shares and pair not in launch.inplace and _intersect(_touched(launch, read), _touched(launch, written)):
                    fact = f"writes operand {written.name}, {written.ref}, into memory of operand {read.name}, {read.ref}"
                    raise self.fail(launch, f"{fact}, without an in-place pair ({', '.join(pair)})")

    def writers(self, launch: Launch, state: _Memory) -> None:
        written = {id(operand.ref) for operand in launch.operands if operand.access is Access.WRITE}
        for operand in launch.operands:
            unused = operand.access is Access.READ and id(operand.ref) in written  # an optional operand that is absent is bound to another one
            if operand.access is not Access.WRITE and operand.ref.count and not unused:
                fault = state.read(operand, _touched(launch, operand))
                if fault:
                    raise self.fail(launch, f"reads {operand.ref}, {fault}")
        for operand in launch.operands:
            if operand.access is not Access.READ and operand.ref.count:
                state.write(operand, _touched(launch, operand))


Generation = frozenset[tuple[int, int]]  # ids of views that reuse storage, each with the id of its base


class _Memory:
    """The elements of each recycled root that were written so far, and through which views that reuse storage.

    Such a view ends the value of its base when it is written: later reads that go through the base, but not through the view, are wrong.
    """

    def __init__(self, in_place: set[int]) -> None:
        self.in_place = in_place
        self.written: dict[Ref, list[tuple[int, int, Generation]]] = defaultdict(list)  # begin, end; disjoint

    def generation(self, ref: Ref) -> Generation:
        return frozenset((id(each), id(each.base)) for each in _chain(ref) if each.base is not None and (each.reuses_storage or id(each) in self.in_place))

    def read(self, operand: Operand, intervals: list[Interval]) -> str | None:
        """Why the read is wrong; None if it is right."""
        ref, root = operand.ref, operand.ref.root
        if root.persistent:
            return None
        own, known, chain = self.generation(ref), self.written[root], {id(each) for each in _chain(ref)}
        first_change = operand.access is Access.MODIFY and all(generation != own for _, _, generation in known)  # it turns the old value into its own
        for begin, end in intervals:
            at = begin
            for first, last, generation in sorted(known):
                if last <= at or first >= end:
                    continue
                if first > at and not _is_padding(root, at, first):
                    break
                ended = any(base in chain and view not in chain for view, base in generation)
                if ended and not first_change:
                    return f"but a launch wrote another value into its memory, elements {first} to {last} of {root}"
                at = last
            if at < end and not _is_padding(root, at, end):
                return f"but no launch writes elements {at} to {end} of {root} before it"
        return None

    def write(self, operand: Operand, intervals: list[Interval]) -> None:
        ref, root = operand.ref, operand.ref.root
        if root.persistent:
            return
        generation = self.generation(ref)
        begin, end = intervals[0][0], intervals[-1][1]
        kept = []
        for first, last, other in self.written[root]:
            if last <= begin or first >= end:
                kept.append((first, last, other))
            else:
                kept += [(a, b, other) for a, b in _without((first, last), intervals)]
        self.written[root] = _joined([*kept, *((a, b, generation) for a, b in intervals)])


def _stored(schedule: Schedule) -> dict[Ref, int]:
    """For each fetch of a value that outlives the run, by its Ref of the host: the number of earlier stores into the same memory."""
    result: dict[Ref, int] = {}
    stores: dict[Ref, list[Ref]] = defaultdict(list)
    for launch in schedule:
        if isinstance(launch, Transfer) and launch.host.persistent:
            if isinstance(launch, BeginStore):
                stores[launch.host.root].append(launch.host)
            elif isinstance(launch, BeginFetch):
                result[launch.host] = sum(launch.host.overlaps(other) for other in stores[launch.host.root])
    return result


def _is_padding(root: Ref, begin: int, end: int) -> bool:
    """Whether no launch needs to write these elements: the padding between the gradients of two parameters, which begin at multiples of an alignment."""
    return root.role is Role.GRADIENT and begin % PARAMETER_ALIGNMENT != 0 and end - begin < PARAMETER_ALIGNMENT


def _chain(ref: Ref) -> Iterator[Ref]:
    """The Ref, its base, the base of that, up to the root."""
    current: Ref | None = ref
    while current is not None:
        yield current
        current = current.base


def _shared_in_place(launch: Launch) -> Iterator[Ref]:
    """Outputs of a launch that a pass made views of its inputs."""
    for first, second in launch.inplace:
        source, result = launch.operand(first), launch.operand(second)
        shares = result.ref.base is not None and result.ref.root is source.ref.root and _intersect(_touched(launch, source), _touched(launch, result))
        if result.access is Access.WRITE and shares:
            yield result.ref


def _touched(launch: Launch, operand: Operand) -> list[Interval]:
    """The elements that a launch reads or writes of an operand, in its root, as sorted disjoint intervals. A copy touches a region."""
    ref, region = operand.ref, launch.details
    samples, elements = range(ref.shape[0] if ref.shape else 1), range(ref.dense_stride)
    if isinstance(region, CopyRegion):
        axis, size = region.axis, region.size
        start = region.source_start if operand.access is Access.READ else region.target_start
        inner = math.prod(ref.shape[axis + 1 :])
        if axis == 0:
            samples = range(start, start + size)
        elif math.prod(ref.shape[1:axis]) == 1:
            elements = range(start * inner, (start + size) * inner)
    begin, stride = ref.root_offset + elements.start, ref.batch_stride
    if len(elements) == stride or len(samples) == 1:
        return [(begin + samples.start * stride, begin + samples.start * stride + (len(samples) - 1) * stride + len(elements))]
    if len(samples) > MAX_INTERVALS:
        return [(begin + samples.start * stride, begin + (samples.stop - 1) * stride + len(elements))]
    return [(begin + sample * stride, begin + sample * stride + len(elements)) for sample in samples]


def _intersect(a: list[Interval], b: list[Interval]) -> bool:
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][0] < b[j][1] and b[j][0] < a[i][1]:
            return True
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return False


def _without(interval: Interval, others: list[Interval]) -> list[Interval]:
    """The parts of an interval that none of the others, sorted, covers."""
    begin, end = interval
    parts = []
    for first, last in others:
        if last <= begin or first >= end:
            continue
        if first > begin:
            parts.append((begin, first))
        begin = max(begin, last)
    if begin < end:
        parts.append((begin, end))
    return parts


def _joined(pieces: list[tuple[int, int, Generation]]) -> list[tuple[int, int, Generation]]:
    """Neighbours of one generation as one piece."""
    result: list[tuple[int, int, Generation]] = []
    for begin, end, generation in sorted(pieces, key=lambda piece: piece[:2]):
        if result and result[-1][1] == begin and result[-1][2] == generation:
            result[-1] = result[-1][0], end, generation
        else:
            result.append((begin, end, generation))
    return result
