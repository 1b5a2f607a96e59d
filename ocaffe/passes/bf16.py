"""Blobs and diffs in 16 bits: with `--math bf16` what only kernels see stands in memory as bfloat16, where all that read and write it can (kernels/bf16_operands.h).

Products round their operands to bfloat16 anyway; the rest computes with floats and rounds what it writes. Half the memory, and half of what goes through it.
Blobs that somebody looks at, inputs, outputs, parameters, gradients and statistics stay floats.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from ocaffe.ir.launch import Launch, Measure, Operand, Schedule
from ocaffe.ir.recorder import PRODUCTS
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BF16_ROLES, BFLOAT, FLOAT, Ref
from ocaffe.ops.expression import Pointwise, Reduce

MIN_VALUE_BYTES = 1 << 20  # bytes as floats; what is smaller is not worth a kernel of its own
TYPE = "bfloat"
Program = tuple[str, tuple[tuple[str, str], ...]]  # its name and defines


def lower_to_bf16(schedule: Schedule, target: Target, inputs: Collection[Ref] = ()) -> Schedule:
    """Give such Refs the type, and their launches the kernels that know it. Not for float16, whose range is not that of diffs, and not where shapes depend on
    data: there values go from one recording to the next. `inputs`: blobs and diffs, too, though they come from outside (ocaffe/profiling/tune.py), and may have the type
    from another schedule."""
    if target.is_cpu or target.math != "bf16" or any(isinstance(launch, Measure) for launch in schedule):
        return schedule
    uses: dict[Ref, list[tuple[Launch, int]]] = defaultdict(list)
    for launch in schedule:
        for index, operand in enumerate(launch.operands):
            uses[operand.ref.root].append((launch, index))
    named: dict[int, dict[str, str]] = defaultdict(dict)  # by the launch, the types of its operands
    for root, own in uses.items():
        recycled = root.role in BF16_ROLES and not root.persistent and root.slots == 1 and root.dtype == FLOAT
        if (not recycled and root not in inputs) or root.count * FLOAT.itemsize < MIN_VALUE_BYTES:
            continue
        known = all(_knows(launch, index) for launch, index in own)
        assert known or root.dtype == FLOAT, f"{root} is in 16 bits, which {own[0][0].what} does not know"
        if known:
            for launch, index in own:
                _retype(launch.operands[index])
                if launch.call is not None:
                    named[id(launch)][f"{launch.bf16_operands[index]}_T"] = TYPE
    _define(schedule, named)
    return schedule


def _define(schedule: Schedule, named: dict[int, dict[str, str]]) -> None:
    """What serves a product, and shared its program, shares it still: another one would be the whole product once more for the compiler. A product has its own
    types alone: it may write floats, parts of sums, where what adds them up writes 16 bits."""
    shared: dict[Program, dict[str, str]] = {}
    for launch in schedule:
        if launch.call is not None and named[id(launch)]:
            shared.setdefault((launch.call.program, launch.call.defines), named[id(launch)])
    for launch in schedule:
        if launch.call is not None:
            types = named[id(launch)]
            if not types and launch.call.function not in PRODUCTS:
                types = shared.get((launch.call.program, launch.call.defines), {})
                if types.keys() & {f"{name}_T" for name in launch.bf16_operands}:
                    continue
            if types:
                launch.define(**types)


def _knows(launch: Launch, index: int) -> bool:
    """Whether a launch can read or write operand `index` in 16 bits."""
    if isinstance(launch.lower, Pointwise):
        return True
    if isinstance(launch.lower, Reduce):
        return index < launch.lower.counts[0]
    return launch.call is not None and index < len(launch.bf16_operands) and launch.bf16_operands[index] != ""


def _retype(operand: Operand) -> None:
    """The operand's Ref and all that it is a view of."""
    ref: Ref | None = operand.ref
    while ref is not None:
        ref.dtype = BFLOAT
        ref = ref.base
