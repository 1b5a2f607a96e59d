"""Take launches that write a value together for one launch, so that a pass can repeat them all.

A convolution may need several launches for its result: Winograd's algorithm for a piece of it at a time, in a workspace of limited size.
"""
from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ocaffe.ir.kernel import Kernel
from ocaffe.ir.launch import HOST, Access, Launch, Operand, Schedule
from ocaffe.ir.tensor import Ref

GROUP = Kernel("group")


@dataclass(eq=False)
class Group(Launch):
    """Consecutive launches of forward as one. Its operands are what `members` read from outside, then each root that they write. A copy has other operands.

    `given`: the operands of the members' group.
    """

    kernel: Kernel = GROUP
    members: tuple[Launch, ...] = ()
    given: tuple[Operand, ...] = field(default=())

    def expanded(self) -> Iterator[Launch]:
        """Yield the members, with the operands of this copy."""
        moved = {old.ref.root: new.ref.root for old, new in zip(self.given, self.operands) if old.ref.root is not new.ref.root}
        for member in self.members:
            made = member.moved(moved)
            made.phase, made.recomputed = (self.phase, self.recomputed) if made is not member else (made.phase, made.recomputed)
            yield made


def grouped(schedule: Schedule) -> Schedule:
    """The schedule in which launches of forward that write one value together are a Group."""
    touched: dict[Ref, list[int]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        for root in {operand.ref.root for operand in launch.operands}:
            touched[root].append(step)
    result: Schedule = []
    for _, run in itertools.groupby(enumerate(schedule), lambda entry: (entry[1].layer, entry[1].phase, isinstance(entry[1], HOST))):
        steps, launches = zip(*run)
        count = _together(launches)
        operands = _operands(launches[:count], range(steps[0], steps[0] + count), touched) if count > 1 else None
        if operands is not None:
            last, flops = launches[count - 1], sum(launch.flops for launch in launches[:count])
            members = launches[:count]
            result.append(Group(last.layer, "forward", operands, flops=flops, origin=last.origin or last, members=members, given=tuple(operands)))
            launches = launches[count:]
        result += launches
    return result


def expanded(schedule: Schedule) -> Schedule:
    """The schedule with the members of each Group in its place."""
    return [each for launch in schedule for each in (launch.expanded() if isinstance(launch, Group) else [launch])]


def _together(launches: tuple[Launch, ...]) -> int:
    """The number of launches up to the last one that changes what an earlier one has written."""
    written: set[Ref] = set()
    count = 0
    for index, launch in enumerate(launches, 1):
        if any(ref.root in written for ref in launch.writes):
            count = index
        written.update(ref.root for ref in launch.writes)
    return count


def _operands(launches: tuple[Launch, ...], steps: range, touched: dict[Ref, list[int]]) -> list[Operand] | None:
    """The operands of a Group of these launches; None: they cannot be repeated together."""
    if launches[0].phase != "forward" or isinstance(launches[0], HOST) or any(launch.kernel.can.side_effect for launch in launches):
        return None
    writes: dict[Ref, list[Ref]] = defaultdict(list)
    reads: dict[Ref, Operand] = {}
    for launch in launches:
        for operand in launch.operands:
            root = operand.ref.root
            if operand.access is Access.WRITE:
                writes[root].append(operand.ref)
            elif root not in writes:
                if operand.access is Access.MODIFY:
                    return None
                reads.setdefault(operand.ref, operand)
    if any(ref.root in writes for ref in reads) or any(
        root.persistent or touched[root][0] not in steps or not _whole(root, refs) for root, refs in writes.items()
    ):
        return None
    return [*reads.values(), *(Operand(root, Access.WRITE) for root in writes)]


def _whole(root: Ref, refs: list[Ref]) -> bool:
    """Whether these views write all of a root: one of them does, or they are different pieces that add up to it."""
    pieces = {(ref.root_offset, ref.shape, ref.batch_stride): ref.count for ref in refs}
    return any(ref.count == root.count for ref in refs) or sum(pieces.values()) == root.count
