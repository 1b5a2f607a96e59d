"""Layouts on CPUs: images between convolutions are [block][pixel][channel of the block], as oneDNN's nChw16c, where that is faster.

A block is one vector. An image whose last block is not full gets memory for whole blocks, which is another Ref. An operation says how it runs on blocks
(`Can.in_blocks`). Expressions that treat all elements alike run either way, and so do readers for which no order counts (`Order.EITHER`). Images that
outlive the run stay as they are. An operation that does not say how it runs on blocks reads a copy in Caffe's order, and so does one whose view of an image
has no whole blocks.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from ocaffe.ir.kernel import BIAS, Access, BlockedForm, Order
from ocaffe.ir.launch import Epilogue, Launch, Measure, Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import FLOAT, PLANES, Ref, Role, has_whole_blocks
from ocaffe.kernels.convolution.blocks_cpu import channel_blocks_cpu
from ocaffe.kernels.expression.expression import treats_alike

ROLES = frozenset({Role.ACTIVATION, Role.SCRATCH})
MIN_FLOPS_PER_BYTE = 100  # FLOPs of the convolutions that make an image, per byte of its copies in Caffe's order, from which on blocks save time
LAUNCH_BYTES = 1 << 16  # bytes that a core copies while it would start one more launch


def choose(schedule: Schedule, target: Target) -> ChosenOnCpu | None:
    """The images in blocks; None if there is none. There is none in a net with backward, and none if shapes depend on data."""
    if target.blocks == PLANES or any(launch.phase != "forward" or isinstance(launch, Measure) for launch in schedule):
        return None
    images = _Images(schedule, Recorder(target, train=False, prepack_weights=True))
    return ChosenOnCpu(images) if images.divided and any(images.form(launch) is not None for launch in schedule) else None


class _Images:
    """The roots whose channels are in blocks: the largest set of which every launch can write each, and whose copies in Caffe's order are worth it."""

    def __init__(self, schedule: Schedule, rec: Recorder) -> None:
        self.rec, self.width = rec, rec.channel_block
        self._forms: dict[Launch, BlockedForm | None] = {}
        self.writers: dict[Ref, list[Launch]] = defaultdict(list)
        self.readers: dict[Ref, list[tuple[Launch, Ref]]] = defaultdict(list)
        self.gain: dict[Ref, int] = defaultdict(int)  # FLOPs of the convolutions that make the image, perhaps through pooling
        unfit: set[Ref] = set()
        for launch in schedule:
            for operand in launch.operands:
                root = operand.ref.root
                if operand.access is not Access.READ:
                    self.writers[root].append(launch)
                    self.gain[root] += launch.flops or sum(self.gain[ref.root] for ref in launch.reads if ref.root is not root)
                if operand.access is not Access.WRITE:
                    self.readers[root].append((launch, operand.ref))
                if not self.is_part(operand.ref) and (operand.access is not Access.READ or operand.ref.count != root.count):
                    unfit.add(root)
        self.divided = {root for root in self.writers if self._fits(root) and root not in unfit}
        while wrong := {root for root in self.divided if not self._right(root)}:
            self.divided -= wrong

    def form(self, launch: Launch) -> BlockedForm | None:
        """How the operation of a launch runs with the channels of its result in blocks; None: it does not."""
        if launch not in self._forms:
            form = launch.in_blocks(self.rec.target.blocks)
            self._forms[launch] = form if isinstance(form, BlockedForm) else None
        return self._forms[launch]

    def _fits(self, root: Ref) -> bool:
        return (
            root.role in ROLES and not root.persistent and root.dtype == FLOAT and root.slots == 1
            and len(root.shape) == 4 and self.rec.blocked_channels(root.shape[1]) > 0 and math.prod(root.shape[2:]) > 1
        )  # fmt: skip

    def is_part(self, ref: Ref) -> bool:
        """Whether a view consists of whole blocks of all or some samples of its root, with the same axes."""
        return ref.shape[2:] == ref.root.shape[2:] and has_whole_blocks(ref, self.rec.target.blocks)

    def copied(self, ref: Ref) -> Ref:
        """The Ref that a copy in Caffe's order has: `ref`, or its root if `ref` has no whole blocks."""
        return ref if self.is_part(ref) else ref.root

    def _right(self, root: Ref) -> bool:
        """Whether `root` may be in blocks, and should be, given the others."""
        if not all(self.runs(launch) for launch in self.writers[root]):
            return False
        if root.shape[1] % self.width and not all(ref.shape == root.shape for _, ref in self.readers[root]):
            return False
        sources = [self.copied(ref) for launch, ref in self.readers[root] if self.needs_plain(launch, ref)]
        copied = {(ref.root_offset, ref.count) for ref in sources}
        return self.gain[root] >= MIN_FLOPS_PER_BYTE * sum(LAUNCH_BYTES + FLOAT.itemsize * count for _, count in copied)

    def either(self, ref: Ref) -> bool:
        """Whether the memory is the same with blocks and without: one pixel per channel, in Caffe's order."""
        return ref.root not in self.divided and len(ref.shape) > 1 and ref.shape[1] % self.width == 0 and math.prod(ref.shape[2:]) == 1

    def runs(self, launch: Launch) -> bool:
        """Whether a launch writes its result in blocks."""
        form = self.form(launch)
        if form is None:
            refs = [operand.ref for operand in launch.operands]
            return treats_alike(launch) and all(ref.root in self.divided and ref.root.shape[1] % self.width == 0 and self.is_part(ref) for ref in refs)
        x, y = launch.reads[0], launch.writes[0]
        if not form.fills and any(ref.root in self.divided and ref.root.shape[1] % self.width for ref in (x, y)):
            return False
        blocks = x.root in self.divided and form.takes_blocks and self.is_part(x)
        if y.root in self.divided:
            return blocks or form.takes_plain or self.either(x)
        return blocks and not form.takes_plain and self.either(y)

    def reads_blocks(self, launch: Launch) -> bool:
        """Whether a launch that runs in its form for blocks reads its image in blocks."""
        form, x = self.form(launch), launch.reads[0]
        assert form is not None
        return form.takes_blocks and ((x.root in self.divided and self.is_part(x)) or (self.either(x) and not form.takes_plain))

    def needs_plain(self, launch: Launch, ref: Ref) -> bool:
        """Whether a launch needs a copy of an image in Caffe's order."""
        if self.is_part(ref) and ref.root.shape[1] % self.width == 0 and _takes_any_order(launch, ref):
            return False
        if not self.runs(launch):
            return True
        return self.form(launch) is not None and ref is launch.reads[0] and not self.reads_blocks(launch)


def _takes_any_order(launch: Launch, ref: Ref) -> bool:
    """Whether the operation needs no form for blocks of this operand."""
    slots = [launch.slot(operand) for operand in launch.operands if operand.ref is ref]
    return launch.kernel.can.in_blocks is None and all(slot is not None and slot.order is Order.EITHER for slot in slots)


class ChosenOnCpu:
    """The images in blocks (layouts.Chosen)."""

    def __init__(self, images: _Images) -> None:
        self._images, self._rec = images, images.rec
        self._filled = {root: self._with_empty(root) for root in images.divided if root.shape[1] % images.width}  # images with empty channels: their memory
        self.roots: Collection[Ref] = {*images.divided, *self._filled.values()}

    def fits(self, launch: Launch, index: int) -> bool:
        operand = launch.operands[index]
        plain = operand.access is Access.READ and operand.ref.root in self._images.divided and self._images.needs_plain(launch, operand.ref)
        return not plain

    def copied(self, ref: Ref) -> Ref:
        return self._images.copied(ref)

    def copy(self, source: Ref, result: Ref, launch: Launch) -> Launch:
        self._rec.enter(launch.layer, launch.phase)
        channel_blocks_cpu.join(self._rec, self._filled.get(source.root, source), result)
        return self._taken(launch)[0]

    def run(self, launch: Launch) -> list[Launch]:
        images = self._images
        form = images.form(launch) if images.runs(launch) else None
        in_blocks = form is not None and images.reads_blocks(launch)
        launch.operands = [replace(each, ref=self._filled.get(each.ref.root, each.ref)) for each in launch.operands]
        if form is None:
            return [launch]
        self._rec.enter(launch.layer, launch.phase)
        form.record(self._rec, launch.reads[0], launch.writes[0], in_blocks)
        made = self._taken(launch)
        _finish_as(made[-1], launch)
        return made

    def _taken(self, launch: Launch) -> list[Launch]:
        """The launches that were recorded since the last call. They derive from `launch`."""
        made, self._rec.launches = self._rec.launches, []
        for each in made:
            each.origin = launch.origin or launch
        return made

    def _with_empty(self, root: Ref) -> Ref:
        """Memory for an image whose last block is not full."""
        channels = self._rec.blocked_channels(root.shape[1])
        return Ref(root.name, (root.shape[0], channels, *root.shape[2:]), root.role)


def _finish_as(made: Launch, launch: Launch) -> None:
    """Give the launch `made`, which replaces `launch`, the same result, with the same epilogue and operands of the epilogue."""
    made.flops = launch.flops
    result = next(operand for operand in launch.operands if operand.access is not Access.READ)
    made.operands = [replace(operand, access=result.access) if operand.ref is result.ref else operand for operand in made.operands]
    given, wanted = launch.epilogue, made.epilogue
    if given is None or wanted is None:
        return
    if launch.scalar(given.bias):
        made.put(BIAS, launch[BIAS])
    for to, source in zip(_scalars(wanted), _scalars(given), strict=True):
        made.set_scalar(to, launch.scalar(source))


def _scalars(epilogue: Epilogue) -> tuple[int, ...]:
    return epilogue.bias, epilogue.accumulate, *epilogue.activation
