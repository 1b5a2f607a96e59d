"""Channels in blocks: values that convolutions by wgmma use lie in memory as N, C / 8, spatial axes, 8 (kernels/convolution/blocks_gpu/tile_wgmma.h).

They are in bfloat16, or for math tf32 in float.

Such a convolution requires this order (`Slot.blocks`). Expressions know every order. Sign masks, poolings and LRN know both, if all their operands have the
same (`Can.in_blocks`). For all other launches the value is converted to Caffe's order and back, by copies that elementwise fusion may merge into other
expressions.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ocaffe.ir.kernel import SIGN, Access
from ocaffe.ir.launch import Launch, Operand, Schedule
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BF16_ROLES, BFLOAT, BLOCK, FLOAT, Ref, Role
from ocaffe.kernels.convolution.blocks_gpu import conv_blocks
from ocaffe.kernels.expression.expression import POINTWISE, Pointwise, Reduce, expressed

ROLES = BF16_ROLES | {Role.SCRATCH}  # scratch: the pixels that a strided convolution reads
Use = tuple[Launch, int]  # a launch and the index of its operand


class NoBlocksError(Exception):
    """A schedule that cannot have channels in blocks: bits of a mask cannot be converted, an image has no axis of channels, or shapes depend on data.

    It must be recorded without wgmma.
    """


def lower_to_blocks(schedule: Schedule, target: Target) -> Schedule:
    """Change the order of such values, and insert the copies. Without convolutions that require it, the schedule stays as it is.

    Raises NoBlocksError, before any change.
    """
    if not any(launch.kernel.needs_blocks for launch in schedule):
        return schedule
    uses: dict[Ref, list[Use]] = defaultdict(list)
    for launch in schedule:
        for index, operand in enumerate(launch.operands):
            uses[operand.ref.root].append((launch, index))
    wanted = {launch.operands[index].ref.root for launch in schedule for index in _in_blocks(launch)}
    free = _free(schedule)
    tied = _tied(free)
    for group in tied:
        if wanted & group:
            wanted |= group
    wanted |= _companions(uses, wanted, free)
    changed = [root for root in uses if root in wanted and all(_may_change(other, uses[other], free) for other in _group(root, tied))]
    required = [launch.operands[index].ref for launch in schedule for index in _in_blocks(launch)]
    if not all(_is_image(ref) if ref.root.dtype == FLOAT else ref.root in changed for ref in required):
        raise NoBlocksError
    for root in changed:
        root.blocked = True
        for launch, index in uses[root] if root.dtype == FLOAT and target.block_type == BFLOAT else []:  # the words of masks stay words
            launch.operands[index].ref.narrow()
    for launch in schedule:
        if launch in free and any(root.blocked for root in _ordered(launch)) and (call := launch.in_blocks()) is not launch.call:
            launch.call = call
            launch.define(**conv_blocks.block_defines(target))
    converter, result = _Converter(target, free), Schedule()
    for launch in schedule:
        result += converter.around(launch)
    return result


def not_in_blocks(schedule: Schedule) -> list[Launch]:
    """Return the launches that would read or write another order than they know."""
    return [launch for launch in schedule if not all(launch.operands[index].ref.root.blocked for index in _in_blocks(launch))]


def _companions(uses: Mapping[Ref, Sequence[Use]], wanted: set[Ref], free: set[Launch]) -> set[Ref]:
    """Return values that only expressions use, one of them together with a wanted value: an expression of one order needs no transposition.

    A launch for both orders may use them, too, if it has no other operand in either, as a pooling of whole planes.
    """
    found: set[Ref] = set()

    def knows(launch: Launch, index: int) -> bool:
        return _knows(launch, index) or (launch in free and _ordered(launch) == {launch.operands[index].ref.root})

    able = [root for root in uses if root not in wanted and all(knows(launch, index) for launch, index in uses[root])]
    while more := {root for root in able if root not in found and any(_beside(launch, root, wanted | found) for launch, _ in uses[root])}:
        found |= more
    return found


def _beside(launch: Launch, root: Ref, wanted: set[Ref]) -> bool:
    """Whether a launch uses a wanted value of the shape of another one, `root`."""
    others = [operand.ref for index, operand in enumerate(launch.operands) if operand.ref.root is not root and _knows(launch, index)]
    return any(ref.root in wanted and ref.shape == root.shape for ref in others)


def _in_blocks(launch: Launch) -> list[int]:
    """Return the operands of a launch that must be in blocks: images, and with them the mask of a fused ReLU backward."""
    if not launch.kernel.needs_blocks:
        return []
    slots = [launch.slot(operand) for operand in launch.operands]
    return [index for index, slot in enumerate(slots) if slot is not None and (slot.blocks or slot.name == SIGN.name)]


def _free(schedule: Schedule) -> set[Launch]:
    """Return the launches that work in both orders. A mask that a kernel for Caffe's order reads leaves no choice to those that use it."""
    either = [launch for launch in schedule if launch.in_blocks() is not None]
    planes = {launch.mask.ref.root for launch in schedule if launch.mask is not None and not launch.kernel.needs_blocks and launch not in either}
    return {launch for launch in either if not planes & {operand.ref.root for operand in launch.operands}}


def _tied(free: Iterable[Launch]) -> list[set[Ref]]:
    """Return the sets of values that must have one order: sign masks with their values, the operands of a pooling."""
    groups: list[set[Ref]] = []
    for launch in free:
        merged = _ordered(launch)
        for group in [group for group in groups if group & merged]:
            merged |= group
            groups.remove(group)
        groups.append(merged)
    return groups


def _ordered(launch: Launch) -> set[Ref]:
    """Return the operands whose elements have another order in blocks. Images of one pixel have not: a kernel takes them as they are."""
    return {operand.ref.root for operand in launch.operands if len(operand.ref.shape) < 3 or math.prod(operand.ref.shape[2:]) > 1}


def _group(root: Ref, tied: Iterable[set[Ref]]) -> set[Ref]:
    return next((group for group in tied if root in group), {root})


def _may_change(root: Ref, uses: Iterable[Use], free: set[Launch]) -> bool:
    """Whether only launches of a run see the value, and every use of it is a range of whole blocks of channels, or a mask."""
    if root.persistent or root.slots > 1:
        return False
    if root.dtype != FLOAT:
        return all(launch in free or launch.kernel.needs_blocks for launch, _ in uses)  # bits of a mask, or places of maxima
    return root.role in ROLES and all(_is_range(launch.operands[index].ref) for launch, index in uses)


def _is_image(ref: Ref) -> bool:
    """Whether axis 1 has whole blocks of channels, and pixels follow it."""
    return len(ref.shape) >= 3 and ref.shape[1] % BLOCK == 0


def _is_range(ref: Ref) -> bool:
    """Whether a view is a range of whole blocks of channels of its root."""
    root, plane = ref.root, math.prod(ref.shape[2:])
    if not (_is_image(ref) and _is_image(root)) or ref.shape[0] != root.shape[0] or plane != math.prod(root.shape[2:]):
        return False
    return ref.root_offset % (plane * BLOCK) == 0 and ref.batch_stride == root.batch_stride


class _Converter:
    """Inserts copies around launches that do not know the order of an operand."""

    def __init__(self, target: Target, free: set[Launch]) -> None:
        self._target, self._free = target, free
        self._copies: dict[Ref, dict[Any, Ref]] = defaultdict(dict)  # root -> place -> its value in the other order

    def around(self, launch: Launch) -> list[Launch]:
        """Return the launch, with the copies before and after it."""
        before, after = [], []
        required = set(_in_blocks(launch))
        written = [ref.root for ref in launch.writes]
        for index, operand in enumerate(launch.operands):
            ref = operand.ref
            if ref.root.blocked == (index in required) or (ref.root.blocked and (launch in self._free or _knows(launch, index))):
                continue
            copies, place = self._copies[ref.root], (ref.root_offset, ref.shape, launch.phase)  # no copy outlives forward
            other = copies.get(place) if operand.access is Access.READ else None
            if other is None:
                other = self._like(ref, blocked=not ref.root.blocked)
                if operand.access is not Access.WRITE:
                    before.append(self._copy(launch, ref, other))
            if operand.access is Access.READ:
                copies[place] = other
            else:
                after.append(self._copy(launch, other, ref))
            launch.operands[index] = replace(operand, ref=other)
        for root in written:
            self._copies.pop(root, None)
        return [*before, launch, *after]

    def _like(self, ref: Ref, blocked: bool) -> Ref:
        return Ref(f"{ref.name}.{'blocks' if blocked else 'planes'}", ref.shape, ref.role, self._target.block_type if blocked else FLOAT, blocked=blocked)

    def _copy(self, launch: Launch, source: Ref, result: Ref) -> Launch:
        expression = Pointwise("y0 = x0", source.shape, (None,), (1, 1, 0), (), self._target)
        operands = [Operand(source, Access.READ), Operand(result, Access.WRITE)]
        return expressed(launch.layer, launch.phase, operands, expression, POINTWISE, launch.origin or launch)


def _knows(launch: Launch, index: int) -> bool:
    """Whether a launch can read or write operand `index` in blocks."""
    ref = launch.operands[index].ref
    if isinstance(launch.lower, Pointwise):
        reads = launch.lower.counts[0]
        place = launch.lower.places[index] if index < reads else None
        return place is None and ref.shape == launch.lower.domain
    if isinstance(launch.lower, Reduce):
        return index < launch.lower.counts[0] and launch.lower.places[index] is None and ref.shape == launch.lower.domain
    return False
