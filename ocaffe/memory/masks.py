"""One bit per element where backward wants to know no more of a value than its sign: ReLU's output, where no other layer reads it in backward."""
from __future__ import annotations

from collections import defaultdict
from typing import Any

from ocaffe.graph.ir import Access, Launch, Ref, Role, Schedule
from ocaffe.memory.gates import use_bits
from ocaffe.ops.sign_mask import mask_of, pack, relu_backward
from ocaffe.target import Target

LEAST = 1 << 20  # bytes; smaller values are not worth two launches


def use_masks(schedule: Schedule, target: Target, everywhere: bool = False) -> Schedule:
    """The schedule in which such values die in forward and leave a mask. `everywhere`: also where others read the value, so that it can die sooner."""
    writer: dict[Ref, int] = {}
    readers: dict[Ref, list[Launch]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        if launch.phase == "forward":
            writer.update({ref.root: step for ref in launch.writes})
        else:
            for root in {ref.root for ref in launch.reads}:
                readers[root].append(launch)
    packs: dict[int, list[Launch]] = defaultdict(list)
    replaced: dict[int, Launch] = {}
    for root, launches in readers.items():
        signs = [launch for launch in launches if _wants_sign(launch, root)]
        if root not in writer or not signs or (len(signs) < len(launches) and not everywhere):
            continue
        maker = schedule[writer[root]]
        masks: dict[tuple[int, ...], Ref] = {}  # one for each part that is a view of its own (bottoms of a Concat)
        for launch in signs:
            sign = launch.operands[_place(launch) or 0].ref
            part = sign.root_offset, sign.shape[0], sign.count
            if part not in masks:
                masks[part] = mask_of(sign)
                packs[writer[root]].append(pack(maker.layer, sign, masks[part], target))
                packs[writer[root]][-1].before = maker
            if launch.gated:
                use_bits(launch, masks[part])
                continue
            dy, dx = launch.operands[0].ref, launch.operands[2]
            expression: Any = launch.lower
            replaced[id(launch)] = relu_backward(launch.layer, dy, masks[part], dx, float(dict(expression.scalars)["slope"]), target)
            replaced[id(launch)].before = launch
    result: Schedule = []
    for step, launch in enumerate(schedule):
        result.append(replaced.get(id(launch), launch))
        result += packs[step]
    return result


def _place(launch: Launch) -> int | None:
    """The operand of which no more than the sign is wanted."""
    if launch.gated:
        return launch.gate
    return getattr(launch.lower, "sign_of", None)


def _wants_sign(launch: Launch, root: Ref) -> bool:
    """Whether a launch does the backward pass of a ReLU and reads of `root`, a large enough value, no more than signs."""
    place = _place(launch)
    if place is None or root.persist or root.role is not Role.ACTIVATION or root.nbytes < LEAST:
        return False
    readers = [index for index, operand in enumerate(launch.operands) if operand.access is Access.READ and operand.ref.root is root]
    return readers == [place] and (launch.gated or len({operand.ref.shape[:1] for operand in launch.operands}) == 1)
