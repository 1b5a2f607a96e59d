"""Lower to bf16: with `--math bf16`, blobs and diffs are bfloat16 in memory if every launch that touches them supports it (bf16_operands.h).

Products round their operands to bfloat16 anyway. Other launches compute with floats and round their results. This halves the memory and its traffic.
Blobs that a script reads, inputs, outputs, parameters, gradients and statistics stay float.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from ocaffe.ir.launch import Launch, Measure, Schedule
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BF16_ROLES, BFLOAT, FLOAT, Ref
from ocaffe.kernels.expression.expression import Pointwise, Reduce

MIN_VALUE_BYTES = 1 << 20  # bytes as floats; smaller values are not worth another kernel
TYPE = "bfloat"
Program = tuple[str, tuple[tuple[str, str], ...]]  # its name and defines


def lower_to_bf16(schedule: Schedule, target: Target, inputs: Collection[Ref] = ()) -> Schedule:
    """Change the type of such Refs, and the defines of the launches that touch them.

    It skips float16, whose range is too small for diffs. Values with their channels in blocks are bfloat16 always (Target.block_type), but the words of masks.
    The pass skips nets whose shapes depend on data: their values are copied from one recording to the next.
    `inputs`: blobs and diffs to lower although they come from outside (ocaffe/profiling/tune.py); another schedule may have lowered them already.
    """
    if target.is_cpu or target.math != "bf16" or any(isinstance(launch, Measure) for launch in schedule):
        return schedule
    uses: dict[Ref, list[tuple[Launch, int]]] = defaultdict(list)
    for launch in schedule:
        for index, operand in enumerate(launch.operands):
            uses[operand.ref.root].append((launch, index))
    named: dict[int, dict[str, str]] = defaultdict(dict)  # id of a launch -> types of its operands
    for root, own in uses.items():
        if root.blocked:
            for launch, index in own:
                if launch.operands[index].ref.dtype == FLOAT:
                    launch.operands[index].ref.narrow()
                if (name := _type_of(launch, index)) and launch.operands[index].ref.dtype == BFLOAT:
                    named[id(launch)][name] = TYPE
            continue
        recycled = root.role in BF16_ROLES and not root.persistent and root.slots == 1 and root.dtype == FLOAT
        if (not recycled and root not in inputs) or root.count * FLOAT.itemsize < MIN_VALUE_BYTES:
            continue
        known = all(_knows(launch, index) for launch, index in own)
        assert known or root.dtype == FLOAT, f"{root} is in 16 bits, which {own[0][0].what} does not know"
        if known:
            for launch, index in own:
                launch.operands[index].ref.narrow()
                if name := _type_of(launch, index):
                    named[id(launch)][name] = TYPE
    _define(schedule, named)
    return schedule


def _define(schedule: Schedule, named: dict[int, dict[str, str]]) -> None:
    """Set the type defines of the launches.

    Helper kernels of a product reuse the product's defines, which avoids another build of its program. A product gets the types of its own operands
    alone: it may write partial sums as floats, which a helper adds up and stores as bfloat16.
    """
    shared: dict[Program, dict[str, str]] = {}
    for launch in schedule:
        if launch.call is not None and named[id(launch)]:
            shared.setdefault((launch.call.program, launch.call.defines), named[id(launch)])
    for launch in schedule:
        if launch.call is not None:
            types = named[id(launch)]
            if not types and launch.kernel.can.helper:
                types = shared.get((launch.call.program, launch.call.defines), {})
                if types.keys() & {_type_of(launch, index) for index in range(len(launch.operands))}:
                    continue
            if types:
                launch.define(**types)


def _knows(launch: Launch, index: int) -> bool:
    """Whether a launch can read or write operand `index` as bfloat16."""
    if isinstance(launch.lower, Pointwise):
        return True
    if isinstance(launch.lower, Reduce):
        return index < launch.lower.counts[0]
    return _type_of(launch, index) != ""


def _type_of(launch: Launch, index: int) -> str:
    """The define with the type of operand `index`; "": it is a float, or the kernel is generated."""
    slot = launch.slot(launch.operands[index])
    return f"{slot.bf16}_T" if slot is not None and slot.bf16 else ""
