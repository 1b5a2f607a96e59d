"""A value whose axes are those of a blob in another order or grouping, without a layer that moves it.

The blob is divided into atoms: factors of its axes, in the order of the memory. An axis of the view is a list of atoms. Permute reorders axes, Reshape
regroups atoms, and both need no layer, until one reads the value that needs the blob in the order of the axes.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ocaffe.ir.tensor import Shape


@dataclass(eq=False)
class Atom:
    """A factor of the size of an axis. It is compared by identity."""

    size: int


Atoms = tuple[Atom, ...]


def size_of(atoms: Sequence[Atom]) -> int:
    return math.prod(atom.size for atom in atoms)


@dataclass(frozen=True)
class View:
    """`memory`: all atoms of `blob` in the order of the memory. `axes`: the same atoms by axis. Atoms of size 1 are left out."""

    blob: str
    memory: Atoms
    axes: tuple[Atoms, ...]

    @classmethod
    def of(cls, blob: str, shape: Shape) -> View:
        atoms = [Atom(size) for size in shape]
        return cls(blob, tuple(atom for atom in atoms if atom.size != 1), tuple((atom,) if atom.size != 1 else () for atom in atoms))

    @property
    def shape(self) -> Shape:
        return tuple(map(size_of, self.axes))

    @property
    def order(self) -> Atoms:
        return tuple(atom for axis in self.axes for atom in axis)

    @property
    def in_order(self) -> bool:
        """Whether the memory has the order of the axes, so that a Reshape gives the value."""
        return self.order == self.memory

    def permuted(self, order: Sequence[int]) -> View:
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def reshaped(self, shape: Shape) -> View | None:
        """Return the view with these axes. None if they divide an atom where its size is not divisible."""
        if self.in_order:
            return View.of(self.blob, shape)
        view, axes = self, list[Atoms]()
        rest = list(self.order)
        for size in shape:
            axis, filled = list[Atom](), 1
            while filled < size:
                if not rest:
                    return None
                atom, need = rest.pop(0), size // filled
                if size % filled or (need < atom.size and atom.size % need) or (need >= atom.size and need % atom.size):
                    return None
                if need < atom.size:
                    major, minor = Atom(need), Atom(atom.size // need)
                    view = replace(view, memory=_divided(view.memory, atom, major, minor))
                    rest.insert(0, minor)
                    atom = major
                axis.append(atom)
                filled *= atom.size
            axes.append(tuple(axis))
        return None if rest else replace(view, axes=tuple(axes))

    def place(self, atoms: Sequence[Atom], axis: int = -1) -> tuple[Atoms, Atoms, Atoms] | None:
        """Return the memory before these atoms, the atoms in the order of the memory, and the memory after them. None if others lie between.

        Without atoms that is the place of `axis`, if the memory has the order of the axes, else the end.
        """
        wanted = set(map(id, atoms))
        places = [index for index, atom in enumerate(self.memory) if id(atom) in wanted]
        if not places:
            count = sum(map(len, self.axes[:axis])) if axis >= 0 and self.in_order else len(self.memory)
            return self.memory[:count], (), self.memory[count:]
        first, end = places[0], places[-1] + 1
        return (self.memory[:first], self.memory[first:end], self.memory[end:]) if end - first == len(places) else None

    def replaced(self, blob: str, old: Sequence[Atom], size: int, axis: int, drop: Sequence[int] = ()) -> View:
        """Return the view of another blob, whose memory has `size` values in the place of the atoms `old`. They form `axis`; the axes `drop` go."""
        gone, new = set(map(id, old)), (Atom(size),) if size != 1 else ()
        parts = self.place(old, axis)
        assert parts is not None
        before, _, after = parts
        axes = [new if number == axis else tuple(atom for atom in atoms if id(atom) not in gone) for number, atoms in enumerate(self.axes)]
        return View(blob, (*before, *new, *after), tuple(atoms for number, atoms in enumerate(axes) if number not in drop))

    def runs(self) -> tuple[list[int], list[int]]:
        """Return sizes of the memory's parts that stay together, and the order in which the axes have them."""
        order, parts = self.order, list[list[Atom]]()
        follows = {id(one): id(two) for one, two in itertools.pairwise(order)}
        for atom in self.memory:
            if parts and follows.get(id(parts[-1][-1])) == id(atom):
                parts[-1].append(atom)
            else:
                parts.append([atom])
        at = {id(part[0]): number for number, part in enumerate(parts)}
        return [size_of(part) for part in parts], [at[id(atom)] for atom in order if id(atom) in at]

    def layout(self) -> tuple[Shape, tuple[tuple[int, ...], ...]]:
        """Return a description of the memory and the axes that is equal for views whose values lie alike."""
        owner = {id(atom): number for number, axis in enumerate(self.axes) for atom in axis}
        order = {id(atom): number for number, atom in enumerate(self.order)}
        parts = list[list[Atom]]()
        for atom in self.memory:
            last = parts[-1][-1] if parts else None
            if last is not None and owner[id(last)] == owner[id(atom)] and order[id(last)] + 1 == order[id(atom)]:
                parts[-1].append(atom)
            else:
                parts.append([atom])
        at = {id(part[0]): number for number, part in enumerate(parts)}
        return tuple(map(size_of, parts)), tuple(tuple(at[id(atom)] for atom in axis if id(atom) in at) for axis in self.axes)


def _divided(memory: Atoms, atom: Atom, major: Atom, minor: Atom) -> Atoms:
    at = next(index for index, each in enumerate(memory) if each is atom)
    return (*memory[:at], major, minor, *memory[at + 1 :])
