"""Launch and Schedule: kernel calls on Refs, and the flat list of them that passes rewrite. Plain data; nothing here touches a device."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from ocaffe.ir.tensor import Ref

NO_ACTIVATION = (1.0, -math.inf, math.inf)  # scalars of an epilogue that does nothing: a ReLU's slope and bounds (kernels/epilogue.h)
class Access(Enum):
    READ = "r"
    WRITE = "w"
    MODIFY = "rw"


@dataclass(frozen=True, eq=False)
class Operand:
    ref: Ref
    access: Access


@dataclass(frozen=True)
class Call:
    """A launch brought to its final form: which function of which program, over how many work-items."""

    program: str  # kernel family (file) or, for generated text, the text itself
    function: str
    defines: tuple[tuple[str, str], ...]
    scalars: tuple[np.generic, ...]
    size: tuple[int, ...]
    local: tuple[int, ...] | None
    generated: bool = False


class Collects(NamedTuple):
    """How a launch can collect sums of what it writes (kernels/channel_reduction.h): where their operands go in then, of how many parts, and whether it knows sums for
    BatchNorm's backward pass, too."""

    place: int
    parts: int
    gradients: bool = True


@dataclass(eq=False)
class Launch:
    """One step of a schedule. Arguments of the kernel are the operands in order (buffer, offset, batch stride each), then the scalars.

    `lower` turns a symbolic launch (an expression) into its call late, when views are known; else `call` is final from the start.
    `inplace` lists pairs (i, j) of operands: operand j may be written into operand i's memory.
    `side_effect`: running it twice differs from running it once (running statistics, counters); never replayed.
    `epilogue`: what follows can be merged into this launch (ocaffe/passes/epilogue_fusion.py).
    `gate`: the ReLU before it can be merged into this launch (ocaffe/passes/relu_backward_fusion.py, kernels/fused_relu.h).
    `moments`: BatchNorm's sums can be merged into this launch (ocaffe/passes/channel_reduction_fusion.py).
    `stored`: names of the operands, in order, that may be kept in 16 bits ("": floats alone), as kernels/bf16_operands.h declares them; what is not named is floats.
    """

    layer: str
    phase: str  # 'forward', 'backward', 'update'
    operands: list[Operand]
    call: Call | None = None
    lower: Callable[[Launch], Call] | None = None
    inplace: tuple[tuple[int, int], ...] = ()
    side_effect: bool = False
    what: str = ""  # kernel name or expression, for people
    epilogue: int | None = None  # index of NO_ACTIVATION in the scalars, or of its slope alone; before it whether the last read is a bias, and whether it adds
    gate: int | None = None  # it can do a ReLU's backward pass on what it writes: where the operand of signs goes in then, or stands if it does
    moments: Collects | None = None  # it can collect sums of what it writes
    stored: tuple[str, ...] = ()  # which operands may be kept in 16 bits (ocaffe/passes/bf16.py)
    cheap: bool = False  # pure, and one pass over memory: it may be run again instead of keeping what it writes
    flops: int = 0  # floating point operations of the direct algorithm, where they are what takes the time
    recomputed: bool = False  # in backward, what forward did already
    copies: tuple[int, int, int, int] | None = None  # of a copy: axis, where it begins in operand 0 and in operand 1, size along the axis
    prepacks_weights: bool = False  # makes of the weights what outlives the run (ocaffe/passes/prepacked_weights.py): left out while they stay the same
    origin: Launch | None = None  # of a launch that an optimisation put in: the recorded one that it serves

    @property
    def has_fused_relu(self) -> bool:
        """Whether a ReLU's backward pass was merged into this launch."""
        return self.call is not None and any(name == "FUSED_RELU" for name, _ in self.call.defines)

    def merge(self, place: int, operand: Operand, *scalars: np.generic, stored: str = "", **defines: int | str) -> None:
        """Make it a variant of its kernel that has one operand more, at `place`, and perhaps scalars, the last ones. `stored`: its name there, if any."""
        if self.has_fused_relu and self.gate is not None and place <= self.gate:
            self.gate += 1
        self.define(*scalars, **defines)
        names = (*self.stored, *[""] * (len(self.operands) - len(self.stored)))
        self.stored = (*names[:place], stored, *names[place:])
        self.operands = [*self.operands[:place], operand, *self.operands[place:]]
        self.inplace = tuple((i + (i >= place), j + (j >= place)) for i, j in self.inplace)

    def define(self, *scalars: np.generic, **defines: int | str) -> None:
        """Make it a variant of its kernel with these defines, and perhaps more scalars."""
        assert self.call is not None
        named = tuple(sorted({**dict(self.call.defines), **{name: str(value) for name, value in defines.items()}}.items()))
        self.call = replace(self.call, defines=named, scalars=(*self.call.scalars, *scalars))

    def final(self) -> Call:
        if self.call is not None:
            return self.call
        assert self.lower is not None
        return self.lower(self)

    def refs(self, *access: Access) -> Iterator[Ref]:
        return (operand.ref for operand in self.operands if operand.access in access)

    @property
    def reads(self) -> list[Ref]:
        return list(self.refs(Access.READ, Access.MODIFY))

    @property
    def writes(self) -> list[Ref]:
        return list(self.refs(Access.WRITE, Access.MODIFY))


@dataclass(eq=False)
class Upload(Launch):
    """Host step: the next batch of `source` goes to operand 0, a staging Ref with slots."""

    source: Any = None


@dataclass(eq=False)
class HostCall(Launch):
    """Host step that runs Python between device work (Python layers): `run(commands)`."""

    run: Callable[..., None] | None = None


@dataclass(eq=False)
class Measure(Launch):
    """Host step that asks for the extent of a layer whose top shapes depend on data: what follows may have to be recorded again."""

    measured: Any = None  # the Layer
    run: Callable[..., tuple[Any, ...]] | None = None  # (commands) -> extent


@dataclass(eq=False)
class Empty(Launch):
    """A launch over no elements: nothing runs, but it keeps its place, so that schedules of different extents stay alike."""


Schedule = list[Launch]
def roots(schedule: Schedule) -> dict[Ref, tuple[int, int]]:
    """Every root Ref of the schedule with its first and last step, in order of first appearance."""
    result: dict[Ref, tuple[int, int]] = {}
    for step, launch in enumerate(schedule):
        for operand in launch.operands:
            root = operand.ref.root
            result[root] = (result[root][0] if root in result else step, step)
    return result
