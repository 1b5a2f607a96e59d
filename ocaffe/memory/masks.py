"""One bit per element where backward wants to know no more of a value than its sign: ReLU's output, where no other layer reads it in backward."""
from __future__ import annotations

from collections import defaultdict
from typing import Any

from ocaffe.graph.ir import Launch, Ref, Role, Schedule
from ocaffe.ops.sign_mask import mask_of, pack, relu_backward

LEAST = 1 << 20  # bytes; smaller values are not worth two launches


def use_masks(schedule: Schedule, everywhere: bool = False) -> Schedule:
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
        masks: dict[tuple[int, int], Ref] = {}  # one for each part that is a view of its own (bottoms of a Concat)
        for launch in signs:
            (dy, sign), dx = (operand.ref for operand in launch.operands[:2]), launch.operands[2]
            expression: Any = launch.lower
            part = sign.root_offset, sign.count
            if part not in masks:
                masks[part] = mask_of(sign)
                packs[writer[root]].append(pack(maker.layer, sign, masks[part], expression.target))
                packs[writer[root]][-1].before = maker
            slope = float(dict(expression.scalars)["slope"])
            replaced[id(launch)] = relu_backward(launch.layer, dy, masks[part], dx, slope, expression.target)
            replaced[id(launch)].before = launch
    result: Schedule = []
    for step, launch in enumerate(schedule):
        result.append(replaced.get(id(launch), launch))
        result += packs[step]
    return result


def _wants_sign(launch: Launch, root: Ref) -> bool:
    """Whether a launch is the backward pass of a ReLU that reads of `root`, a large enough value, no more than signs."""
    if getattr(launch.lower, "sign_of", None) != 1 or root.persist or root.role is not Role.ACTIVATION or root.nbytes < LEAST:
        return False
    dy, sign, dx = (operand.ref for operand in launch.operands)
    return sign.root is root and dy.root is not root and len({ref.shape[:1] for ref in (dy, sign, dx)}) == 1
