"""Layouts on GPUs: values that convolutions by wgmma use lie in memory as N, C / 8, spatial axes, 8 (kernels/convolution/blocks_gpu/tile_wgmma.h).

With math bf16 they become bfloat16 (bf16.py), with tf32 they stay float.

Such a convolution requires this layout (Order.BLOCKS). Expressions know every layout. Sign masks, poolings and LRN know both, if all their operands have the
same (`Can.in_blocks`). For all other launches the value is copied to Caffe's order and back. Elementwise fusion may merge these copies into other
expressions.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ocaffe.ir.kernel import SIGN, Access, Order
from ocaffe.ir.launch import Call, CopyRegion, Launch, Measure, Operand, Schedule
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BF16_ROLES, BLOCK, BLOCKS_GPU, FLOAT, Ref, Role
from ocaffe.kernels.convolution.blocks_gpu import conv_blocks
from ocaffe.kernels.expression.expression import POINTWISE, Pointwise, expressed, in_domain

ROLES = BF16_ROLES | {Role.SCRATCH}  # scratch: the pixels that a strided convolution reads
Use = tuple[Launch, int]  # a launch and the index of its operand


def choose(schedule: Schedule, target: Target) -> ChosenOnGpu | None:
    """The values in blocks; None if no convolution requires them."""
    if not any(launch.kernel.needs_blocks for launch in schedule):
        return None
    assert not any(isinstance(launch, Measure) for launch in schedule), "values that are carried over to a net of other shapes are in Caffe's order"
    required = _required(schedule)
    uses: dict[Ref, list[Use]] = defaultdict(list)
    for launch in schedule:
        for index, operand in enumerate(launch.operands):
            uses[operand.ref.root].append((launch, index))
    wanted = {launch.operands[index].ref.root for launch, indices in required.items() for index in indices}
    free = _free(schedule) - required.keys()
    tied = _tied(free)
    for group in tied:
        if wanted & group:
            wanted |= group
    wanted |= _companions(uses, wanted, free)
    can_change = {root: _may_change(root, uses[root], free, required) for root in uses}
    roots = [root for root in uses if root in wanted and all(can_change[other] for other in _group(root, tied))]
    return ChosenOnGpu(target, set(roots), required, free)


class ChosenOnGpu:
    """The values in blocks (layouts.Chosen). `required`: operands that must be in blocks. `free`: launches that know both layouts."""

    def __init__(self, target: Target, roots: set[Ref], required: Mapping[Launch, Sequence[int]], free: set[Launch]) -> None:
        self._target, self.roots, self._required, self._free = target, roots, required, free

    def fits(self, launch: Launch, index: int) -> bool:
        blocked = launch.operands[index].ref.root.blocked
        if index in self._required.get(launch, ()):
            return blocked
        return not blocked or launch in self._free or in_domain(launch, index)

    def copied(self, ref: Ref) -> Ref:
        return ref

    def copy(self, source: Ref, result: Ref, launch: Launch) -> Launch:
        expression = Pointwise("y0 = x0", source.shape, (None,), (1, 1, 0), (), self._target)
        operands = [Operand(source, Access.READ), Operand(result, Access.WRITE)]
        return expressed(launch.layer, launch.phase, operands, expression, POINTWISE, launch.origin or launch)

    def run(self, launch: Launch) -> list[Launch]:
        if launch in self._free and any(root.blocked for root in _ordered(launch)):
            call = launch.in_blocks(BLOCKS_GPU)
            assert isinstance(call, Call)
            if call is not launch.call:
                launch.call = call
                launch.define(**conv_blocks.block_defines(self._target))
        return [launch]


def _required(schedule: Schedule) -> dict[Launch, list[int]]:
    """Return the operands that must be in blocks: images, and the mask of a fused ReLU backward. Bits of a mask are packed from a value in blocks.

    A mask of another shape becomes a view in the shape of the image that the launch writes.
    """
    found: dict[Launch, list[int]] = {}
    packed: dict[Ref, Ref] = {}  # bits -> the image whose elements they mask
    for launch in schedule:
        if not launch.kernel.needs_blocks:
            continue
        slots = [launch.slot(operand) for operand in launch.operands]
        found[launch] = [index for index, slot in enumerate(slots) if slot is not None and (slot.order is Order.BLOCKS or slot.name == SIGN.name)]
        if launch.mask is not None:
            result = launch.writes[0]
            if launch.mask.ref.dtype == FLOAT:
                launch.put(SIGN.name, _as_image(launch.mask.ref, result))
            else:
                packed[launch.mask.ref.root] = result
    for launch in schedule:
        for mask in [ref.root for ref in launch.writes if ref.root in packed]:
            assert isinstance(launch.in_blocks(BLOCKS_GPU), Call), f"{launch.what} writes bits of planes"
            launch.operands = [replace(operand, ref=_as_image(operand.ref, packed[mask])) if operand.ref.root is not mask else operand
                               for operand in launch.operands]  # fmt: skip
            found[launch] = [index for index, operand in enumerate(launch.operands) if operand.ref.root in _ordered(launch)]
    return found


def _as_image(ref: Ref, image: Ref) -> Ref:
    """A value with as many elements as an image, in its shape."""
    return ref if _is_image(ref) else ref.view(image.shape)


def _companions(uses: Mapping[Ref, Sequence[Use]], wanted: set[Ref], free: set[Launch]) -> set[Ref]:
    """Return values that only expressions use, one of them together with a wanted value. An expression whose operands have one layout transposes nothing.

    A launch that knows both layouts may use them, too, if no other operand has another order in blocks, as a pooling of whole planes.
    """
    found: set[Ref] = set()

    def knows(launch: Launch, index: int) -> bool:
        return in_domain(launch, index) or (launch in free and _ordered(launch) == {launch.operands[index].ref.root})

    able = [root for root in uses if root not in wanted and all(knows(launch, index) for launch, index in uses[root])]
    while more := {root for root in able if root not in found and any(_beside(launch, root, wanted | found) for launch, _ in uses[root])}:
        found |= more
    return found


def _beside(launch: Launch, root: Ref, wanted: set[Ref]) -> bool:
    """Whether a launch uses a wanted value of the shape of another one, `root`."""
    others = [operand.ref for index, operand in enumerate(launch.operands) if operand.ref.root is not root and in_domain(launch, index)]
    return any(ref.root in wanted and ref.shape == root.shape for ref in others)


def _free(schedule: Schedule) -> set[Launch]:
    """Return the launches that work in both layouts. A mask that a kernel for Caffe's order reads leaves no choice to those that use it."""
    either = [launch for launch in schedule if isinstance(launch.in_blocks(BLOCKS_GPU), Call)]
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


def _may_change(root: Ref, uses: Sequence[Use], free: set[Launch], required: Mapping[Launch, Sequence[int]]) -> bool:
    """Whether only launches of a run see the value, and every use of it is a range of whole blocks of channels, or a mask.

    A launch that writes a region of its operand, such as a copy of a Concat, must write it in place: a copy of the operand has no other values.
    """
    if root.persistent or root.slots > 1 or any(isinstance(launch.details, CopyRegion) and launch.operands[i].access is not Access.READ for launch, i in uses):
        return False
    if root.dtype != FLOAT:
        return all(launch in free or launch in required for launch, _ in uses)  # bits of a mask, or places of maxima
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
