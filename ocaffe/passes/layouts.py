"""Layouts: give images their channels in blocks, and convert them for launches that do not know that.

Files of the device classes choose the images: layouts_gpu.py those that convolutions by wgmma require so, layouts_cpu.py those for which blocks are faster.
The pass gives them their layout (Ref.layout), lets each launch run in its form for blocks, and inserts copies around the others.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from ocaffe.ir.kernel import Access
from ocaffe.ir.launch import Launch, Schedule
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import PLANES, Ref, Role, Shape
from ocaffe.passes import layouts_cpu, layouts_gpu


class Chosen(Protocol):
    """The images of a schedule that have their channels in blocks. It knows how launches run then, and how values are copied."""

    @property
    def roots(self) -> Collection[Ref]:
        """The Refs that get the layout Target.blocks."""

    def fits(self, launch: Launch, index: int) -> bool:
        """Whether a launch, as it will run, knows operand `index` in the layout of its root."""

    def copied(self, ref: Ref) -> Ref:
        """The Ref that is copied into the other layout: `ref`, or its root if `ref` has no whole blocks."""

    def copy(self, source: Ref, result: Ref, launch: Launch) -> Launch:
        """A launch that copies values into the other layout, for `launch`."""

    def run(self, launch: Launch) -> list[Launch]:
        """A launch, as it runs on the layouts of its operands."""


def layouts(schedule: Schedule, target: Target) -> Schedule:
    """The schedule with channels in blocks where that is required or faster. Without such images it stays as it is."""
    chosen: Chosen | None = (layouts_cpu if target.is_cpu else layouts_gpu).choose(schedule, target)
    if chosen is None:
        return schedule
    for root in chosen.roots:
        root.layout = target.blocks
    converter, result = _Converter(chosen, target), Schedule()
    for launch in schedule:
        before, after = converter.around(launch)
        result += [*before, *chosen.run(launch), *after]
    return _without_unread(result)


class _Converter:
    """Makes the copies around launches that do not know the layout of an operand."""

    def __init__(self, chosen: Chosen, target: Target) -> None:
        self._chosen, self._target = chosen, target
        self._copies: dict[Ref, dict[tuple[int, Shape, str], Ref]] = defaultdict(dict)  # root -> place -> its value in the other layout

    def around(self, launch: Launch) -> tuple[list[Launch], list[Launch]]:
        """Let a launch access copies where it must. Return the launches that make them, and those that store what it writes.

        `Chosen.run` sees the copies: it gets the launch afterwards.
        """
        before, after = [], []
        written = [ref.root for ref in launch.writes]
        misfits = [index for index in range(len(launch.operands)) if not self._chosen.fits(launch, index)]
        for index in misfits:
            operand = launch.operands[index]
            ref, source = operand.ref, self._chosen.copied(operand.ref)
            copies, place = self._copies[ref.root], (source.root_offset, source.shape, launch.phase)  # no copy outlives forward
            other = copies.get(place) if operand.access is Access.READ else None
            if other is None:
                other = self._other(source)
                if operand.access is not Access.WRITE:
                    before.append(self._chosen.copy(source, other, launch))
            if operand.access is Access.READ:
                copies[place] = other
            else:
                after.append(self._chosen.copy(other, source, launch))
            launch.operands[index] = replace(operand, ref=other if source.shape == ref.shape else other.view(ref.shape))
        for root in written:
            self._copies.pop(root, None)
        return before, after

    def _other(self, ref: Ref) -> Ref:
        """A Ref for the same values in the other layout."""
        layout = PLANES if ref.root.blocked else self._target.blocks
        return Ref(f"{ref.name}.{'planes' if layout == PLANES else 'blocks'}", ref.shape, ref.role, layout=layout)


def _without_unread(schedule: Schedule) -> Schedule:
    """The schedule without the launches that pack filters for launches that are gone."""
    read = {ref.root for launch in schedule for ref in launch.reads}

    def used(launch: Launch) -> bool:
        return launch.kernel.can.side_effect or not launch.writes or any(ref.root.role is not Role.SCRATCH or ref.root in read for ref in launch.writes)

    return [launch for launch in schedule if used(launch)]
