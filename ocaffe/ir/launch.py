"""Launch and Schedule: kernel calls on Refs, and the flat list of them that passes rewrite. Plain data; nothing here touches a device."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import numpy as np

from ocaffe.ir.tensor import Ref

NO_ACTIVATION = (1.0, -math.inf, math.inf)  # slope, lower and upper bound of an epilogue that changes nothing (kernels/epilogue.h)
SLOPE_ONLY = NO_ACTIVATION[:1]  # the same in kernels without bounds
PRODUCT_FUNCTIONS = frozenset({"gemm", "forward", "backward_data", "backward_filter", "product"})  # of kernel files


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
    """The final form of a launch: a function of a program, its arguments, and the number of work-items."""

    program: str  # kernel family (file) or, for generated text, the text itself
    function: str
    defines: tuple[tuple[str, str], ...]
    scalars: tuple[np.generic, ...]
    size: tuple[int, ...]
    local: tuple[int, ...] | None
    generated: bool = False

    @property
    def is_product(self) -> bool:
        """Whether it computes products. The other kernels of an operation pack, transform or add up."""
        return not self.generated and self.function in PRODUCT_FUNCTIONS


class Bias(IntEnum):
    """The content of a product's last read operand: the scalar `has_bias` of kernels/epilogue.h."""

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


@dataclass(frozen=True)
class ReductionSlot:
    """A place among the operands of a kernel that can write partial channel reductions of its result (kernels/channel_reduction.h).

    An operation puts it into the `reads` of `Recorder.launch`, where the kernel declares REDUCTION_OPERANDS. `parts`: partial results per channel.
    `gradients`: the kernel also supports the two sums of BatchNorm's backward pass. `index`: the operand's index; the recorder sets it.
    """

    parts: int
    gradients: bool = True
    index: int = -1


class _ReluMaskSlot:
    """The type of RELU_MASK."""


# A place among the `reads` of `Recorder.launch` where the kernel declares SIGN: the mask of a fused ReLU backward (kernels/fused_relu.h).
RELU_MASK = _ReluMaskSlot()
Read = Ref | ReductionSlot | _ReluMaskSlot | None


@dataclass(frozen=True)
class BlockedForm:
    """How an operation on an image runs on CPUs if the channels of its result are in blocks (ocaffe/passes/channel_blocks.py).

    `record(rec, x, y, blocked)` records it. The last launch reads x first and writes y first. `blocked`: the channels of x are in blocks.
    `takes_plain`, `takes_blocks`: x may be without blocks, with blocks. `fills`: x and y may have channels that fill no whole block; the rest of the
    last block is 0.
    """

    record: Callable[..., None]
    takes_plain: bool = False
    takes_blocks: bool = True
    fills: bool = False


class CopyRegion(NamedTuple):
    """The region of a copy: `size` entries along `axis`, from `source_start` of operand 0 to `target_start` of operand 1."""

    axis: int
    source_start: int
    target_start: int
    size: int


@dataclass(eq=False)
class Launch:
    """One step of a schedule. The kernel's arguments are the operands in order (buffer, offset, batch stride each), then the scalars.

    `lower` makes the call of a symbolic launch (an expression) when views, and with them strides, are known. Otherwise `call` is final.
    `inplace` lists pairs (i, j) of operands: operand j may be written into operand i's memory.
    `side_effect`: running it twice differs from running it once (running statistics, counters); it is never recomputed.
    """

    layer: str
    phase: str  # 'forward', 'backward', 'update'
    operands: list[Operand]
    call: Call | None = None
    lower: Callable[[Launch], Call] | None = None
    inplace: tuple[tuple[int, int], ...] = ()
    side_effect: bool = False
    what: str = ""  # kernel name or expression, for people
    epilogue: Epilogue | None = None  # passes may fuse an epilogue into this kernel (ocaffe/passes/epilogue_fusion.py)
    relu_mask: int | None = None  # index of the mask operand: where it goes (passes/relu_backward_fusion.py), or where it is if `has_fused_relu`
    reduction: ReductionSlot | None = None  # passes may fuse a channel reduction into this kernel (ocaffe/passes/channel_reduction_fusion.py)
    bf16_operands: tuple[str, ...] = ()  # names in kernels/bf16_operands.h of the operands that may be bfloat16; "" or missing: float only
    any_order: bool = False  # its operands may have any order of elements in memory, if all have the same
    in_blocks: Callable[[Call], Call] | None = None  # with any_order: makes the call for channels in blocks; None: it is the same
    blocks: bool = False  # its operands that may be bfloat16 must have channels in blocks, in Target.block_type (ocaffe/passes/blocks.py)
    from_planes: bool = False  # with `blocks`: operand 0 is in Caffe's order, as a float or in bfloat16
    cheap: bool = False  # pure, one pass over memory: its result may be recomputed instead of kept
    flops: int = 0  # floating point operations of the direct algorithm, for products
    recomputed: bool = False  # a backward launch that repeats a forward launch
    copy: CopyRegion | None = None  # of a copy
    block_form: BlockedForm | None = None  # the same operation for a result with its channels in blocks
    prepacks_weights: bool = False  # its results depend on weights alone and outlive the run (ocaffe/passes/prepacked_weights.py)
    origin: Launch | None = None  # the recorded launch that it derives from; required of every launch that a pass adds or replaces

    @property
    def has_fused_relu(self) -> bool:
        """Whether a ReLU's backward pass was fused into this launch."""
        return self.call is not None and any(name == "FUSED_RELU" for name, _ in self.call.defines)

    def insert_operand(self, index: int, operand: Operand, *scalars: np.generic, bf16_name: str = "", **defines: int | str) -> None:
        """Change to the kernel variant with one more operand at `index`, perhaps more defines, and perhaps more scalars at the end."""
        if self.has_fused_relu and self.relu_mask is not None and index <= self.relu_mask:
            self.relu_mask += 1
        self.define(*scalars, **defines)
        names = (*self.bf16_operands, *[""] * (len(self.operands) - len(self.bf16_operands)))
        self.bf16_operands = (*names[:index], bf16_name, *names[index:])
        self.operands = [*self.operands[:index], operand, *self.operands[index:]]
        self.inplace = tuple((i + (i >= index), j + (j >= index)) for i, j in self.inplace)

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
    """Host step that reads the extent of a layer whose top shapes depend on data. The rest of the net may have to be recorded again."""

    measured: Any = None  # the Layer
    run: Callable[..., tuple[Any, ...]] | None = None  # (commands) -> extent


@dataclass(eq=False)
class BeginExchange(Launch):
    """Host step: begin to average operand 0, a bucket, over all ranks: gradients, or statistics of BatchNorm.

    `begin`: the first element of gradients in the parameter group. `exact`: ranks send each other floats, also with --gradient-bits 16.
    No launch may access the bucket until the EndExchange of the same bucket.
    """

    begin: int = 0
    exact: bool = False


@dataclass(eq=False)
class EndExchange(Launch):
    """Host step: operand 0, a bucket, holds the average over all ranks for the launches that follow."""

    begin: int = 0


@dataclass(eq=False)
class Empty(Launch):
    """A launch over no elements. Nothing runs, but it keeps its step, so that schedules of different extents stay alike."""


HOST = (Upload, HostCall, Measure, BeginExchange, EndExchange, Empty)  # launches without a kernel
Schedule = list[Launch]


def roots(schedule: Schedule) -> dict[Ref, tuple[int, int]]:
    """Every root Ref of the schedule with its first and last step, in order of first appearance."""
    result: dict[Ref, tuple[int, int]] = {}
    for step, launch in enumerate(schedule):
        for operand in launch.operands:
            root = operand.ref.root
            result[root] = (result[root][0] if root in result else step, step)
    return result
