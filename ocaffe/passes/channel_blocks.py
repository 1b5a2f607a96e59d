"""Channels in blocks: on CPUs, images between convolutions are [block][pixel][channel of the block], as oneDNN's nChw16c, where that is faster.

A block is one vector. A Ref keeps its shape and its size, so that the planner needs to know nothing: the channels of an image in blocks are a multiple
of a block. An operation says how it runs with blocks (`Can.blocked`). Expressions that treat all elements alike run either way. Images that outlive
the run stay as they are. Where a launch without such a form reads an image in blocks, the pass inserts a copy without blocks.
"""
from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from ocaffe.ir.kernel import BIAS, Access, BlockedForm
from ocaffe.ir.launch import Epilogue, Launch, Measure, Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import FLOAT, Ref, Role
from ocaffe.kernels.convolution.blocks_cpu import channel_blocks_cpu
from ocaffe.kernels.expression.expression import Pointwise

ROLES = frozenset({Role.ACTIVATION, Role.SCRATCH})
MIN_FLOPS_PER_BYTE = 100  # FLOPs of the convolutions that make an image, per byte of its copies without blocks, from which on blocks save time
LAUNCH_BYTES = 1 << 16  # bytes that a core copies while it would start one more launch


def divide_channels(schedule: Schedule, target: Target) -> Schedule:
    """The schedule with channels in blocks where that is faster. The same schedule if there is backward, or if shapes depend on data."""
    if any(launch.phase != "forward" or isinstance(launch, Measure) for launch in schedule):
        return schedule
    rec = Recorder(target, train=False, prepack_weights=True)
    if not rec.channel_block or not any(_blocked_form(rec, launch) is not None for launch in schedule):
        return schedule
    images = _Images(schedule, rec)
    return _without_unread(_Divided(images, rec).schedule(schedule)) if images.divided else schedule


class _Images:
    """The roots whose channels are in blocks: the largest set of which every launch can write each, and whose copies without blocks are worth it."""

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
                if not self._part(operand.ref) and (operand.access is not Access.READ or operand.ref.count != root.count):
                    unfit.add(root)
        self.divided = {root for root in self.writers if self._fits(root) and root not in unfit}
        while wrong := {root for root in self.divided if not self._right(root)}:
            self.divided -= wrong

    def form(self, launch: Launch) -> BlockedForm | None:
        """How the operation of a launch runs with the channels of its result in blocks; None: it does not."""
        if launch not in self._forms:
            self._forms[launch] = _blocked_form(self.rec, launch)
        return self._forms[launch]

    def _fits(self, root: Ref) -> bool:
        return (
            root.role in ROLES and not root.persistent and root.dtype == FLOAT and root.slots == 1
            and len(root.shape) == 4 and self.rec.blocked_channels(root.shape[1]) > 0 and math.prod(root.shape[2:]) > 1
        )  # fmt: skip

    def _part(self, ref: Ref) -> bool:
        """Whether a view consists of whole blocks of all or some samples of its root."""
        root = ref.root
        if ref is root or (ref.shape == root.shape and not ref.root_offset):
            return True
        pixels = math.prod(root.shape[2:])
        same = len(ref.shape) == len(root.shape) == 4 and ref.shape[2:] == root.shape[2:] and ref.dtype == root.dtype
        return same and ref.shape[1] % self.width == 0 and ref.root_offset % (self.width * pixels) == 0

    def _right(self, root: Ref) -> bool:
        """Whether `root` may be in blocks, and should be, given the others."""
        if not all(self.runs(launch) for launch in self.writers[root]):
            return False
        if root.shape[1] % self.width and not all(ref.shape == root.shape for _, ref in self.readers[root]):
            return False
        copied = {(ref.root_offset, ref.count) for launch, ref in self.readers[root] if self.needs_plain(launch, ref)}
        return self.gain[root] >= MIN_FLOPS_PER_BYTE * sum(LAUNCH_BYTES + FLOAT.itemsize * count for _, count in copied)

    def either(self, ref: Ref) -> bool:
        """Whether the memory is the same with blocks and without: one pixel per channel."""
        return len(ref.shape) > 1 and ref.shape[1] % self.width == 0 and math.prod(ref.shape[2:]) == 1

    def runs(self, launch: Launch) -> bool:
        """Whether a launch writes its result in blocks."""
        form = self.form(launch)
        if form is None:
            whole = all(operand.ref.root in self.divided and operand.ref.root.shape[1] % self.width == 0 for operand in launch.operands)
            return whole and self._alike(launch)
        x, y = launch.reads[0], launch.writes[0]
        if not form.fills and any(ref.root in self.divided and ref.root.shape[1] % self.width for ref in (x, y)):
            return False
        blocks = x.root in self.divided and form.takes_blocks and self._part(x)
        if y.root in self.divided:
            return blocks or form.takes_plain or self.either(x)
        return blocks and not form.takes_plain and self.either(y)

    def takes_blocks(self, launch: Launch) -> bool:
        """Whether a launch that runs in its form for blocks reads its image in blocks."""
        form, x = self.form(launch), launch.reads[0]
        assert form is not None
        return form.takes_blocks and (x.root in self.divided or (self.either(x) and not form.takes_plain))

    def needs_plain(self, launch: Launch, ref: Ref) -> bool:
        """Whether a launch needs a copy of an image in blocks without them."""
        if not self.runs(launch):
            return True
        return self.form(launch) is not None and ref is launch.reads[0] and not self.takes_blocks(launch)

    @staticmethod
    def _alike(launch: Launch) -> bool:
        """Whether a launch treats all elements alike, so that their order does not matter."""
        expression = launch.lower
        return (
            isinstance(expression, Pointwise) and expression.key is None and all(place is None for place in expression.places)
            and len({operand.ref.shape for operand in launch.operands}) == 1
        )  # fmt: skip


class _Divided:
    """The launches of the schedule with channels in blocks."""

    def __init__(self, images: _Images, rec: Recorder) -> None:
        self.images, self.rec = images, rec
        self.copies: dict[tuple[Ref, int, tuple[int, ...]], Ref] = {}  # without blocks, while they are as the image
        self.filled = {root: self._filled(root) for root in images.divided if root.shape[1] % images.width}  # images with empty channels, and their memory

    def schedule(self, schedule: Schedule) -> Schedule:
        for launch in schedule:
            first = len(self.rec.launches)
            self.rec.enter(launch.layer, launch.phase)
            self._launch(launch)
            for made in self.rec.launches[first:]:
                if made is not launch:
                    made.origin = launch.origin or launch
            written = {ref.root for ref in launch.writes}
            self.copies = {key: copy for key, copy in self.copies.items() if key[0] not in written}
        return self.rec.launches

    def _launch(self, launch: Launch) -> None:
        images = self.images
        runs, plain = images.runs(launch), [ref for ref in launch.refs(Access.READ) if ref.root in images.divided and images.needs_plain(launch, ref)]
        form = images.form(launch)
        takes_blocks = form is not None and images.takes_blocks(launch)
        launch.operands = [
            replace(each, ref=self._plain(each.ref) if each.ref in plain and each.access is Access.READ else self.filled.get(each.ref.root, each.ref))
            for each in launch.operands
        ]  # fmt: skip
        if form is None or not runs:
            self.rec.add(launch)
            return
        form.record(self.rec, launch.reads[0], launch.writes[0], takes_blocks)
        _finish_alike(self.rec.launches[-1], launch)

    def _filled(self, root: Ref) -> Ref:
        """Memory for an image whose last block is not full."""
        channels = self.rec.blocked_channels(root.shape[1])
        return Ref(root.name, (root.shape[0], channels, *root.shape[2:]), root.role)

    def _plain(self, ref: Ref) -> Ref:
        """A copy of an image in blocks without them."""
        source = ref if self.images._part(ref) else ref.root
        key = ref.root, source.root_offset, source.shape
        if key not in self.copies:
            self.copies[key] = Ref(ref.root.name, source.shape, Role.SCRATCH)
            channel_blocks_cpu.join(self.rec, self.filled.get(ref.root, source), self.copies[key])
        copy = self.copies[key]
        return copy if source.shape == ref.shape else copy.view(ref.shape)


def _blocked_form(rec: Recorder, launch: Launch) -> BlockedForm | None:
    """How the operation of a launch runs with the channels of its result in blocks; None: it does not."""
    form = launch.kernel.can.blocked
    return None if form is None else form(rec, launch)


def _finish_alike(made: Launch, launch: Launch) -> None:
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


def _without_unread(schedule: Schedule) -> Schedule:
    """The schedule without the launches that pack filters for launches that are gone."""
    read = {ref.root for launch in schedule for ref in launch.reads}

    def used(launch: Launch) -> bool:
        return launch.kernel.can.side_effect or not launch.writes or any(ref.root.role is not Role.SCRATCH or ref.root in read for ref in launch.writes)

    return [launch for launch in schedule if used(launch)]
