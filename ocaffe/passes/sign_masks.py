"""Sign masks: one bit per element replaces a ReLU's output in backward, if no other launch of backward reads that output.

MAX pooling needs no mask if another launch reads its output in backward. Its gradient goes to the pixel that has the output's value, so the output has the
same sign.
"""
from __future__ import annotations

from collections import defaultdict

from ocaffe.ir.launch import Access, Launch, Schedule
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.ops.pooling import chosen
from ocaffe.ops.sign_mask import mask_of, pack, relu_backward
from ocaffe.passes.relu_backward_fusion import BITS, TOP, relu_backward_of, replace_mask

MIN_VALUE_BYTES = 1 << 20  # smaller values are not worth two launches


def pack_sign_masks(schedule: Schedule, target: Target, everywhere: bool = False) -> Schedule:
    """The schedule in which such values die in forward and leave a mask.

    `everywhere`: also where other launches read the value, so that it can die earlier.
    """
    writer: dict[Ref, int] = {}
    readers: dict[Ref, list[Launch]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        if launch.phase == "forward":
            writer.update({ref.root: step for ref in launch.writes})
        else:
            for root in {ref.root for ref in launch.reads}:
                readers[root].append(launch)
    for launch in schedule:
        top = _top(launch, schedule, writer)
        if top is not None and not all(_wants_sign(other, top.root) for other in readers[top.root]):
            readers[launch.operands[_place(launch) or 0].ref.root].remove(launch)
            replace_mask(launch, top, TOP)
    packs: dict[int, list[Launch]] = defaultdict(list)
    replaced: dict[int, Launch] = {}
    for root, launches in readers.items():
        signs = [launch for launch in launches if _wants_sign(launch, root)]
        if root not in writer or not signs or (len(signs) < len(launches) and not everywhere):
            continue
        maker = schedule[writer[root]]
        masks: dict[tuple[int, ...], Ref] = {}  # one for each view (bottoms of a Concat)
        for launch in signs:
            sign = launch.operands[_place(launch) or 0].ref
            part = sign.root_offset, sign.shape[0], sign.count, launch.blocks  # a mask has one order of elements
            if part not in masks:
                masks[part] = mask_of(sign)
                packs[writer[root]].append(pack(maker.layer, sign, masks[part], target))
                packs[writer[root]][-1].origin = maker
            if launch.has_fused_relu:
                replace_mask(launch, masks[part], BITS)
                continue
            dy, dx = launch.operands[0].ref, launch.operands[2]
            means = relu_backward_of(launch)
            assert means is not None
            replaced[id(launch)] = relu_backward(launch.layer, dy, masks[part], dx, means.slope, target)
            replaced[id(launch)].origin = launch
    result: Schedule = []
    for step, launch in enumerate(schedule):
        result.append(replaced.get(id(launch), launch))
        result += packs[step]
    return result


def _place(launch: Launch) -> int | None:
    """The index of the operand whose sign is all that the launch needs; None: there is none."""
    if launch.has_fused_relu:
        return launch.relu_mask
    return 1 if relu_backward_of(launch) is not None else None


def _top(launch: Launch, schedule: Schedule, writer: dict[Ref, int]) -> Ref | None:
    """The output of MAX pooling, if `launch` is its backward pass with a fused ReLU and can read the output's sign instead of a mask.

    The mask must cover the whole bottom, and the diff must hold this gradient alone. An output that a script reads does not count: the script may change it.
    """
    index, place = chosen(launch), _place(launch)
    if index is None or place is None or index.root not in writer or launch.operands[-1].access is not Access.WRITE:
        return None
    (x, y), sign = (operand.ref for operand in schedule[writer[index.root]].operands[:2]), launch.operands[place].ref
    same = x.root is sign.root and (x.root_offset, x.shape[0], x.count, x.batch_stride) == (sign.root_offset, sign.shape[0], sign.count, sign.batch_stride)
    return y if same and not (x.root.persistent or y.root.persistent) else None


def _wants_sign(launch: Launch, root: Ref) -> bool:
    """Whether a launch is a ReLU backward and reads from `root`, a large enough value, only signs."""
    place = _place(launch)
    if place is None or root.persist or root.role is not Role.ACTIVATION or root.nbytes < MIN_VALUE_BYTES:
        return False
    readers = [index for index, operand in enumerate(launch.operands) if operand.access is Access.READ and operand.ref.root is root]
    return readers == [place] and (launch.has_fused_relu or len({operand.ref.shape[:1] for operand in launch.operands}) == 1)
