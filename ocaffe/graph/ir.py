"""The words of the pipeline: Ref, Blob, Parameter, Node, Graph, Launch, Schedule. Plain data; nothing here touches a device.

A `Ref` is a virtual tensor that the planner will place; a `Launch` is one kernel call on Refs; a `Schedule` is the flat list of
launches that *optimise*, *plan* and *bind* work on (DESIGN §2, §3).
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ocaffe.errors import Place

if TYPE_CHECKING:
    from ocaffe.layers.base import Layer

Shape = tuple[int, ...]
FLOAT = np.dtype(np.float32)
BFLOAT = np.dtype(np.uint16)  # bfloat16, the upper half of a float, which numpy does not have (ocaffe/memory/storage.py)
NO_ACTIVATION = (1.0, -math.inf, math.inf)  # scalars of an epilogue that does nothing: a ReLU's slope and bounds (kernels/epilogue.h)


class Role(Enum):
    """What a Ref is for; it decides whether the planner may recycle its memory."""

    INPUT = "input"  # written from outside before a run: Input blobs, diffs that the user sets
    ACTIVATION = "activation"
    DIFF = "diff"
    PARAMETER = "parameter"
    GRADIENT = "gradient"
    HISTORY = "history"
    SAVED = "saved"  # written in forward for backward of the same layer
    SCRATCH = "scratch"
    OUTPUT = "output"  # read by the host after a run: losses and net outputs
    STATE = "state"  # survives from one run to the next: running statistics, hidden state
    STAGING = "staging"  # a batch on its way from the host, one copy per slot of the ring
    CONSTANT = "constant"


HALVED = frozenset({Role.ACTIVATION, Role.DIFF})  # what may stand in memory in 16 bits
PERSISTENT = frozenset({Role.INPUT, Role.PARAMETER, Role.HISTORY, Role.OUTPUT, Role.STATE, Role.STAGING, Role.CONSTANT})


@dataclass(eq=False)
class Ref:
    """A virtual tensor. A view names its `base` and the offset in elements; `stride` is the distance between two samples in elements.

    `value` is what a persistent Ref holds before the first run (a scalar fills it). `persist` gives a recyclable Ref memory of its own: blobs that a
    script looks at, gradients summed over several passes. `slots` > 1 makes a ring: run number i uses copy i % slots.
    """

    name: str
    shape: Shape
    role: Role
    dtype: np.dtype = FLOAT
    base: Ref | None = None
    offset: int = 0
    stride: int | None = None
    value: np.ndarray | float | None = None
    persist: bool = False
    slots: int = 1
    takes_over: bool = False  # of a view: writing it ends what the base held

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def halved(self) -> bool:
        """Whether it is a blob or diff that stands in memory as bfloat16."""
        return self.dtype == BFLOAT and self.role in HALVED

    @property
    def root(self) -> Ref:
        """The Ref that owns the storage."""
        ref = self
        while ref.base is not None:
            ref = ref.base
        return ref

    @property
    def root_offset(self) -> int:
        """Offset in elements from the start of the root."""
        return self.offset + (self.base.root_offset if self.base is not None else 0)

    @property
    def dense_stride(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def batch_stride(self) -> int:
        """Distance in elements between consecutive samples; a view of the same batch inherits its base's."""
        if self.stride is not None:
            return self.stride
        if self.base is not None and not self.base.is_dense:
            assert self.shape[:1] == self.base.shape[:1], f"{self} is a view of other samples than the strided {self.base}"
            return self.base.batch_stride
        return self.dense_stride

    @property
    def root_end(self) -> int:
        """Where its last element ends in the root, in elements; of a part of samples that lie apart, where they end."""
        if self.base is not None and self.stride is None and not self.base.is_dense and self.shape[:1] != self.base.shape[:1]:
            return self.base.root_end
        return self.root_offset + ((self.shape[0] - 1) * self.batch_stride + self.dense_stride if self.shape else 1)

    def overlaps(self, other: Ref) -> bool:
        """Whether what one holds may change by writing the other: their extents meet."""
        return self.root is other.root and self.root_offset < other.root_end and other.root_offset < self.root_end

    @property
    def is_dense(self) -> bool:
        return not self.shape or self.shape[0] == 1 or self.batch_stride == self.dense_stride

    @property
    def persistent(self) -> bool:
        root = self.root
        return root.persist or root.role in PERSISTENT

    def view(self, shape: Shape, offset: int = 0, stride: int | None = None, name: str | None = None) -> Ref:
        """The same memory seen with another shape, from `offset` elements on."""
        return Ref(name or self.name, tuple(shape), self.role, self.dtype, base=self, offset=offset, stride=stride)

    def __repr__(self) -> str:
        return f"<{self.role.value} {self.name} {'x'.join(map(str, self.shape)) or 'scalar'}>"


@dataclass(eq=False)
class Blob:
    """One value of a named blob. A layer that works in place makes a new Blob of the same name (single assignment)."""

    name: str
    shape: Shape
    producer: Node | None = None
    consumer: Node | None = None  # splits make it one at the most
    data: Ref = None  # type: ignore[assignment]  # set when the net is recorded
    diff: Ref | None = None
    loss_weight: float = 0.0

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(eq=False)
class Parameter:
    """A learnable (or running) blob of a layer; layers that name the same ParamSpec share one."""

    layer: str  # the owner
    index: int
    shape: Shape
    filler: Any  # FillerParameter
    name: str = ""  # ParamSpec name, empty if not shared
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    propagate: bool = True  # whether a gradient is wanted (Caffe: param_propagate_down)
    users: list[tuple[str, int, Shape]] = field(default_factory=list)  # layer, index and shape there
    explicit: set[str] = field(default_factory=set)  # multipliers that the prototxt states
    place: Place | None = None
    data: Ref = None  # type: ignore[assignment]
    diff: Ref | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def learned(self) -> bool:
        return self.lr_mult != 0

    def __str__(self) -> str:
        return f"{self.layer}/{self.index}"


@dataclass(eq=False)
class Node:
    """A layer in its place in the net."""

    name: str
    type: str
    layer: Layer
    bottoms: list[Blob]
    tops: list[Blob]
    params: list[Parameter] = field(default_factory=list)
    propagate: list[bool] = field(default_factory=list)  # which bottoms get a diff
    backward: bool = False
    place: Place | None = None

    def __repr__(self) -> str:
        return f"<{self.type} {self.name}>"


@dataclass(eq=False)
class Graph:
    """The net of one phase with its shapes; `blobs` maps each name to its last value, in order of first appearance."""

    message: Any  # the NetParameter with splits, as a snapshot writes it
    phase: int
    nodes: list[Node]
    blobs: dict[str, Blob]
    first: dict[str, Blob]  # each name's first value: what the user writes to, and what its diff is after backward
    inputs: list[Blob]
    outputs: list[Blob]  # sorted by name, as Caffe's std::set of available blobs is (quirk 24)
    params: list[Parameter]  # owners, in the order of Caffe's learnable_params
    held: dict[tuple[str, Shape], Ref] = field(default_factory=dict)  # what is set from outside: the same Ref in every recording
    prepared: dict[Any, Ref] = field(default_factory=dict)  # what is made of the weights alone (ocaffe/memory/prepared.py), likewise


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
    """How a launch can collect sums of what it writes (kernels/moments.h): where their operands go in then, of how many parts, and whether it knows sums for
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
    `epilogue`: what follows can be merged into this launch (ocaffe/memory/epilogues.py).
    `gate`: the ReLU before it can be merged into this launch (ocaffe/memory/gates.py, kernels/gate.h).
    `moments`: BatchNorm's sums can be merged into this launch (ocaffe/memory/moments.py).
    `stored`: names of the operands, in order, that may be kept in 16 bits ("": floats alone), as kernels/stored.h declares them; what is not named is floats.
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
    stored: tuple[str, ...] = ()  # which operands may be kept in 16 bits (ocaffe/memory/storage.py)
    cheap: bool = False  # pure, and one pass over memory: it may be run again instead of keeping what it writes
    flops: int = 0  # floating point operations of the direct algorithm, where they are what takes the time
    again: bool = False  # in backward, what forward did already
    copies: tuple[int, int, int, int] | None = None  # of a copy: axis, where it begins in operand 0 and in operand 1, size along the axis
    prepares: bool = False  # makes of the weights what outlives the run (ocaffe/memory/prepared.py): left out while they stay the same
    before: Launch | None = None  # of a launch that an optimisation put in: the recorded one that it serves

    @property
    def gated(self) -> bool:
        """Whether a ReLU's backward pass was merged into this launch."""
        return self.call is not None and any(name == "GATE" for name, _ in self.call.defines)

    def merge(self, place: int, operand: Operand, *scalars: np.generic, stored: str = "", **defines: int | str) -> None:
        """Make it a variant of its kernel that has one operand more, at `place`, and perhaps scalars, the last ones. `stored`: its name there, if any."""
        if self.gated and self.gate is not None and place <= self.gate:
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
    """Host step that runs Python between device work (Python layers): `run(tape)`."""

    run: Callable[..., None] | None = None


@dataclass(eq=False)
class Measure(Launch):
    """Host step that asks for the extent of a layer whose top shapes depend on data: what follows may have to be recorded again."""

    measured: Any = None  # the Layer
    run: Callable[..., tuple[Any, ...]] | None = None  # (tape) -> extent


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


def widened(array: np.ndarray) -> np.ndarray:
    """Floats of what stood in memory as bfloat16."""
    return (array.astype(np.uint32) << 16).view(np.float32)


def split_axes(shape: Sequence[int], axis: int, end: int | None = None) -> tuple[int, int, int]:
    """Sizes before, from `axis` up to `end` (default axis + 1), and after: the (outer, middle, inner) form of most layers."""
    end = axis + 1 if end is None else end
    return math.prod(shape[:axis]), math.prod(shape[axis:end]), math.prod(shape[end:])
