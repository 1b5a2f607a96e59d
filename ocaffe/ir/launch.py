"""Launch and Schedule: kernel calls on Refs, and the flat list of them that passes rewrite. Plain data; nothing here touches a device."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ocaffe.ir.kernel import SIGN, Access, BlockedForm, Can, Kernel, Slot
from ocaffe.ir.tensor import Layout, Ref

NO_ACTIVATION = (1.0, -math.inf, math.inf)  # slope, lower and upper bound of an epilogue that changes nothing (kernels/matmul/epilogue.h)
SLOPE_ONLY = NO_ACTIVATION[:1]  # the same in kernels without bounds
UPLOAD, MEASURE, EMPTY = Kernel("upload"), Kernel("measure"), Kernel("empty")
BEGIN_STORE, END_STORE, BEGIN_FETCH, END_FETCH = (Kernel(name) for name in ("store begin", "store end", "fetch begin", "fetch end"))
BEGIN_EXCHANGE, END_EXCHANGE = (Kernel(name, can=Can(side_effect=True)) for name in ("exchange begin", "exchange end"))


@dataclass(frozen=True, eq=False)
class Operand:
    """A Ref that a launch accesses. `name`: that of the kernel's parameter."""

    ref: Ref
    access: Access
    name: str = ""


@dataclass(frozen=True)
class Call:
    """The final form of a launch: a function of a program, its arguments, and the number of work-items."""

    program: str  # kernel family (file) or, for generated text, the text itself
    function: str
    defines: tuple[tuple[str, str], ...]
    scalars: tuple[np.generic, ...]
    size: tuple[int, ...]
    local: tuple[int, ...] | None
    generated: bool = False


class Bias(IntEnum):
    """The content of the operand BIAS of a product: the scalar `has_bias` of kernels/matmul/epilogue.h."""

    NONE = 0
    OFFSETS = 1  # one offset per channel
    TABLE = 2  # offsets of all channels, then factors of all channels


@dataclass(frozen=True)
class EpilogueScalars:
    """The scalars of a product's epilogue, as an operation passes them to `Recorder.launch` among `args`.

    `activation`: NO_ACTIVATION, or its slope alone for kernels without bounds. `fusable`: passes may change these scalars. `bounds`: with the define BOUNDS
    the kernel has the bounds, too, as its last scalars.
    """

    has_bias: bool
    accumulate: bool
    activation: tuple[float, ...] = NO_ACTIVATION
    fusable: bool = True
    bounds: bool = False


class Epilogue(NamedTuple):
    """Indices into `Call.scalars` of the epilogue's scalars, by name. `activation`: slope, or slope, lower and upper bound."""

    bias: int
    accumulate: int
    activation: tuple[int, ...]
    bounds: bool = False  # as in EpilogueScalars


class CopyRegion(NamedTuple):
    """The region of a copy: `size` entries along `axis`, from `source_start` of operand 0 to `target_start` of operand 1."""

    axis: int
    source_start: int
    target_start: int
    size: int


@dataclass(eq=False)
class Launch:
    """One step of a schedule. The kernel's arguments are the operands in order (buffer, offset, batch stride each), then the scalars.

    `kernel` declares the operands and the abilities that passes use. `lower` makes the call of a symbolic launch (an expression) when views, and with
    them strides, are known. Otherwise `call` is final. `inplace` lists pairs of operands: the second may be written into the first one's memory.
    `details`: data of this launch that abilities of its kernel need, such as the region of a copy or the window of a pooling.
    """

    layer: str
    phase: str  # 'forward', 'backward', 'update'
    operands: list[Operand]
    kernel: Kernel
    call: Call | None = None
    lower: Callable[[Launch], Call] | None = None
    inplace: tuple[tuple[str, str], ...] = ()
    epilogue: Epilogue | None = None  # passes may fuse an epilogue into this kernel (ocaffe/passes/epilogue_fusion.py)
    details: Any = None
    flops: int = 0  # floating point operations of the direct algorithm, for products
    recomputed: bool = False  # a backward launch that repeats a forward launch
    prepacks_weights: bool = False  # its results depend on weights alone and outlive the run (ocaffe/passes/prepacked_weights.py)
    origin: Launch | None = None  # the recorded launch that it derives from; required of every launch that a pass adds or replaces
    graph: int | None = None  # the number of the task graph that it is part of (ocaffe/passes/join_launches.py)

    @property
    def what(self) -> str:
        """The name of the kernel or the text of the expression, for people."""
        return self.kernel.name if self.lower is None else str(self.lower)

    def place(self, name: str) -> int | None:
        """The index of an operand; None: the launch has none of this name."""
        return next((index for index, operand in enumerate(self.operands) if operand.name == name), None)

    def get(self, name: str) -> Operand | None:
        """The operand of this name, if there is one."""
        return next((operand for operand in self.operands if operand.name == name), None)

    def operand(self, name: str) -> Operand:
        """The operand of this name."""
        return next(operand for operand in self.operands if operand.name == name)

    def __getitem__(self, name: str) -> Ref:
        """The Ref of the operand of this name."""
        return self.operand(name).ref

    def put(self, name: str, ref: Ref, access: Access | None = None) -> None:
        """Set a declared operand. One that the launch lacks goes to its place in the declaration."""
        slot = self.kernel.slot(name)
        assert slot is not None, f"{self.kernel.name} has no operand {name}"
        operand, present = Operand(ref, access or slot.access, name), self.place(name)
        order = self.kernel.order
        index = sum(order[other.name] < order[name] for other in self.operands) if present is None else present
        self.operands = [*self.operands[:index], operand, *self.operands[index + (present is not None) :]]

    def slot(self, operand: Operand) -> Slot | None:
        """The declaration of one of its operands; None: the kernel is generated."""
        return self.kernel.slot(operand.name)

    def in_blocks(self, layout: Layout) -> Call | BlockedForm | None:
        """How the operation runs on channels in blocks (Can.in_blocks); None: it knows Caffe's order alone."""
        form = self.kernel.can.in_blocks
        return None if form is None else form(self, layout)

    @property
    def mask(self) -> Operand | None:
        """The mask of a ReLU's backward pass that was fused into this launch, if there is one."""
        return self.get(SIGN.name)

    def define(self, *scalars: np.generic, **defines: int | str) -> None:
        """Change to the kernel variant with these defines, and perhaps more scalars."""
        assert self.call is not None
        named = tuple(sorted({**dict(self.call.defines), **{name: str(value) for name, value in defines.items()}}.items()))
        self.call = replace(self.call, defines=named, scalars=(*self.call.scalars, *scalars))

    def scalar(self, index: int) -> np.generic:
        """One scalar of the call."""
        assert self.call is not None
        return self.call.scalars[index]

    def set_scalar(self, index: int, value: np.generic) -> None:
        """Replace one scalar of the call."""
        assert self.call is not None
        scalars = list(self.call.scalars)
        scalars[index] = value
        self.call = replace(self.call, scalars=tuple(scalars))

    def final(self) -> Call:
        if self.call is not None:
            return self.call
        assert self.lower is not None
        return self.lower(self)

    def refs(self, *access: Access) -> Iterator[Ref]:
        return (operand.ref for operand in self.operands if operand.access in access)

    def moved(self, moved: Mapping[Ref, Ref]) -> Launch:
        """The same launch with views of the roots that replace others in `moved`; itself, if it accesses none of them."""
        if not any(operand.ref.root in moved for operand in self.operands):
            return self
        refs = {operand.ref: operand.ref.on(moved) for operand in self.operands}  # an operand that repeats another one still does
        return replace(self, operands=[replace(operand, ref=refs[operand.ref]) for operand in self.operands], origin=self.origin or self)

    @property
    def reads(self) -> list[Ref]:
        return list(self.refs(Access.READ, Access.MODIFY))

    @property
    def writes(self) -> list[Ref]:
        return list(self.refs(Access.WRITE, Access.MODIFY))


@dataclass(eq=False)
class Upload(Launch):
    """Host step: the next batch of `source` goes to operand 0, a staging Ref with slots."""

    kernel: Kernel = UPLOAD
    source: Any = None


@dataclass(eq=False)
class HostCall(Launch):
    """Host step that runs Python between device work (Python layers): `run(commands)`."""

    run: Callable[..., None] | None = None


@dataclass(eq=False)
class Measure(Launch):
    """Host step that reads the extent of a layer whose top shapes depend on data. The rest of the net may have to be recorded again."""

    kernel: Kernel = MEASURE
    measured: Any = None  # the Layer
    run: Callable[..., tuple[Any, ...]] | None = None  # (commands) -> extent


@dataclass(eq=False)
class BeginExchange(Launch):
    """Host step: begin to average operand 0, a bucket, over all ranks: gradients, or statistics of BatchNorm.

    `begin`: the first element of gradients in the parameter group. `exact`: ranks send each other floats, also with --gradient-bits 16.
    No launch may access the bucket until the EndExchange of the same bucket.
    """

    kernel: Kernel = BEGIN_EXCHANGE
    begin: int = 0
    exact: bool = False


@dataclass(eq=False)
class EndExchange(Launch):
    """Host step: operand 0, a bucket, holds the average over all ranks for the launches that follow."""

    kernel: Kernel = END_EXCHANGE
    begin: int = 0


@dataclass(eq=False)
class Transfer(Launch):
    """Host step: the begin or the end of a copy from operand 0 to operand 1, of which one is in the host's memory. The end has the operands of the begin."""

    @property
    def host(self) -> Ref:
        """The Ref in the host's memory: the target of a store, the source of a fetch."""
        return self.operands[isinstance(self, (BeginStore, EndStore))].ref


@dataclass(eq=False)
class BeginStore(Transfer):
    """Begin to copy to the host. No launch may write operand 0 until the EndStore."""

    kernel: Kernel = BEGIN_STORE


@dataclass(eq=False)
class EndStore(Transfer):
    """The launches that follow run after the copy. Operand 0 may die here."""

    kernel: Kernel = END_STORE


@dataclass(eq=False)
class BeginFetch(Transfer):
    """Begin to copy from the host. No launch may access operand 1 until the EndFetch."""

    kernel: Kernel = BEGIN_FETCH


@dataclass(eq=False)
class EndFetch(Transfer):
    """The launches that follow run after the copy."""

    kernel: Kernel = END_FETCH


def transfer(kind: Callable[..., Transfer], layer: str, phase: str, source: Ref, target: Ref, origin: Launch | None = None) -> Transfer:
    """Return the begin or the end of a copy from `source` to `target`."""
    access = Access.WRITE if kind in (BeginStore, BeginFetch) else Access.MODIFY
    return kind(layer, phase, [Operand(source, Access.READ), Operand(target, access)], origin=origin)


@dataclass(eq=False)
class Empty(Launch):
    """A launch over no elements. Nothing runs, but it keeps its step, so that schedules of different extents stay alike."""

    kernel: Kernel = EMPTY


HOST = (Upload, HostCall, Measure, BeginExchange, EndExchange, Transfer, Empty)  # launches without a kernel
Schedule = list[Launch]


def roots(schedule: Schedule) -> dict[Ref, tuple[int, int]]:
    """Every root Ref of the schedule with its first and last step, in order of first appearance."""
    result: dict[Ref, tuple[int, int]] = {}
    for step, launch in enumerate(schedule):
        for operand in launch.operands:
            root = operand.ref.root
            result[root] = (result[root][0] if root in result else step, step)
    return result
