"""Kernel: the declaration of an OpenCL function, beside its source. It names the operands and the abilities that passes use. Plain data."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from ocaffe.ir.tensor import Layout, Ref


class Access(Enum):
    READ = "r"
    WRITE = "w"
    MODIFY = "rw"


class Order(Enum):
    """The layouts in which a kernel knows an operand."""

    PLANES = "Caffe's order"
    BLOCKS = "channels in blocks"
    EITHER = "both; the kernel has a define for them, or takes all elements alike"


@dataclass(frozen=True)
class Slot:
    """A declared operand. Its name is that of the parameter in the source.

    `optional`: a launch may lack it; the source declares it by a macro. `bf16`: the prefix of the define with its type, if it may be bfloat16
    (bf16_operands.h); "": float only. `order`: its layouts. On GPUs, blocks are in Target.block_type.
    """

    name: str
    access: Access
    optional: bool = False
    bf16: str = ""
    order: Order = Order.PLANES


def read(name: str, *, bf16: str = "", order: Order = Order.PLANES, optional: bool = False) -> Slot:
    """An operand that the kernel reads."""
    return Slot(name, Access.READ, optional, bf16, order)


def write(name: str, *, bf16: str = "", order: Order = Order.PLANES, optional: bool = False) -> Slot:
    """An operand that the kernel writes. If it is a diff or a gradient that holds a sum already, the launch modifies it."""
    return Slot(name, Access.WRITE, optional, bf16, order)


def modify(name: str, *, optional: bool = False) -> Slot:
    """An operand that the kernel reads and writes."""
    return Slot(name, Access.MODIFY, optional)


def reads(*names: str) -> tuple[Slot, ...]:
    """Operands that the kernel reads as floats or integers."""
    return tuple(read(name) for name in names)


def writes(*names: str) -> tuple[Slot, ...]:
    """Operands that the kernel writes as floats or integers."""
    return tuple(write(name) for name in names)


# Operands that passes add. A kernel that declares them has the macros of fused_relu.h and channel_reduction.h at these places.
SIGN = read("sign", bf16="SIGN", optional=True)  # the mask of a fused ReLU backward
REDUCED = write("reduced", optional=True)  # partial channel reductions of the result
NORMALIZED = tuple(read(name, optional=True) for name in ("mean", "inverse", "scale", "shift"))
REDUCTION = (REDUCED, read("normal", bf16="NORMAL", optional=True), *NORMALIZED)
# Operands of a last-block reduction (docs/kernels.md).
COUNTERS, PARTS = read("counters", optional=True), write("parts", optional=True)
BIAS = "bias"  # the operand with offsets, or offsets and factors, of a kernel with an epilogue


@dataclass(frozen=True)
class BlockedForm:
    """How an operation on an image runs on CPUs if the channels of its result are in blocks (ocaffe/passes/layouts_cpu.py).

    `record(rec, x, y, blocked)` records it. The last launch reads x first and writes y first. `blocked`: the channels of x are in blocks.
    `takes_plain`, `takes_blocks`: x may be without blocks, with blocks. `fills`: x and y may have channels that fill no whole block; the rest of the
    last block is 0.
    """

    record: Callable[..., None]
    takes_plain: bool = False
    takes_blocks: bool = True
    fills: bool = False


def own_parts(launch: Any) -> int:
    """The number of partial results in the details of a launch."""
    return int(launch.details or 0)


def own_form(launch: Any, layout: Layout) -> BlockedForm | None:
    """The form in the details of a launch: of a kernel that several operations use."""
    form: BlockedForm | None = launch.details
    return form


@dataclass(frozen=True)
class Can:
    """The abilities of a kernel, and the facts that passes need about its launches.

    `helper`: it packs, transforms or adds up for a product, whose program and operand types it shares. `recompute`: it is pure and takes one pass over
    memory, so that its result may be computed again instead of kept. `side_effect`: running it twice differs from running it once (running statistics,
    counters), so that it is never recomputed. `jobs`: one launch may do the work of several (jobs.h). `scatters`: it distributes the gradients of windows
    over the pixels of an image. `join`: on CPUs it may be part of a task graph (ocaffe/passes/join_launches.py). The source of such a kernel has no local
    arrays, and marks its names (docs/kernels.md).

    `in_blocks(launch, layout)`: how the operation runs on channels in blocks. A Call replaces that of the launch, if all its operands have this layout. A
    BlockedForm records other launches. None: this launch knows Caffe's order alone.
    `parts(launch)`: partial results per channel, of a kernel with REDUCTION; 0: this launch has no place for them. `sums_gradients`: it also has the two
    sums of BatchNorm's backward pass.
    """

    helper: bool = False
    recompute: bool = False
    side_effect: bool = False
    in_blocks: Callable[[Any, Layout], Any] | None = None  # the types of launches and calls would make a cycle of imports
    parts: Callable[[Any], int] | None = None
    sums_gradients: bool = True
    jobs: bool = False
    scatters: bool = False
    join: bool = False


JOIN = Can(join=True)


@dataclass(frozen=True, init=False)
class Kernel:
    """An OpenCL function, "file.function", or the name of a step that has none. `slots`: its operands in the order of its arguments."""

    name: str
    slots: tuple[Slot, ...]
    can: Can

    def __init__(self, name: str, *slots: Slot, can: Can = Can()) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "slots", slots)
        object.__setattr__(self, "can", can)

    def __call__(self, **refs: Ref | None) -> Given:
        """The kernel on these operands, by name. An optional one may be missing or None."""
        given = {name: ref for name, ref in refs.items() if ref is not None}
        unknown = given.keys() - self.order.keys()
        assert not unknown, f"{self.name} has no operands {', '.join(sorted(unknown))}"
        return Given(self, given)

    @cached_property
    def order(self) -> dict[str, int]:
        """The places of the operands, by name."""
        return {slot.name: index for index, slot in enumerate(self.slots)}

    def slot(self, name: str) -> Slot | None:
        """The declaration of an operand; None: the kernel has no such operand."""
        index = self.order.get(name)
        return None if index is None else self.slots[index]

    @cached_property
    def needs_blocks(self) -> bool:
        """Whether some operand must have its channels in blocks."""
        return any(slot.order is Order.BLOCKS for slot in self.slots)

    def without(self, *names: str) -> Kernel:
        """The same function, to which passes cannot add these operands."""
        return Kernel(self.name, *(slot for slot in self.slots if slot.name not in names), can=self.can)

    def in_floats(self, *names: str) -> Kernel:
        """The same function, which reads and writes these operands as floats alone."""
        return Kernel(self.name, *(replace(slot, bf16="") if slot.name in names else slot for slot in self.slots), can=self.can)

    def adding(self, *names: str) -> Kernel:
        """The same function, which adds to these operands instead of overwriting them."""
        slots = (replace(slot, access=Access.MODIFY) if slot.name in names else slot for slot in self.slots)
        return Kernel(self.name, *slots, can=self.can)

    @property
    def file(self) -> str:
        """The name of the file of the function, without its ending."""
        return self.name.split(".")[0]


@dataclass(frozen=True)
class Given:
    """A kernel with the Refs of its operands, by name."""

    kernel: Kernel
    refs: dict[str, Ref]
