"""Sign masks: one bit per element replaces a ReLU's output in backward, if no other launch of backward reads that output.

MAX pooling needs no mask if another launch reads its output in backward. Its gradient goes to the pixel that has the output's value, so the output has the
same sign.
"""
from __future__ import annotations

from collections import defaultdict

from ocaffe.ir.kernel import SIGN, Access
from ocaffe.ir.launch import Launch, Operand, Schedule
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.common.sign_mask import mask_of, pack, relu_backward
from ocaffe.kernels.pooling.pooling import chosen
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
            readers[launch[SIGN.name].root].remove(launch)
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
            operand = _signs(launch)
            assert operand is not None
            sign = operand.ref
            view = sign.root_offset, sign.shape[0], sign.count, launch.kernel.needs_blocks  # a mask has one order of elements
            if view not in masks:
                masks[view] = mask_of(sign)
                packs[writer[root]].append(pack(maker.layer, sign, masks[view], target))
                packs[writer[root]][-1].origin = maker
            if launch.mask is not None:
                replace_mask(launch, masks[view], BITS)
                continue
            dy, dx = launch["x0"], launch.operand("y0")
            means = relu_backward_of(launch)
            assert means is not None
            replaced[id(launch)] = relu_backward(launch.layer, dy, masks[view], dx, means.slope, target)
            replaced[id(launch)].origin = launch
    result: Schedule = []
    for step, launch in enumerate(schedule):
        result.append(replaced.get(id(launch), launch))
        result += packs[step]
    return result


def _signs(launch: Launch) -> Operand | None:
    """The operand whose sign is all that the launch needs; None: there is none."""
    return launch.mask or (launch.operand("x1") if relu_backward_of(launch) is not None else None)


def _top(launch: Launch, schedule: Schedule, writer: dict[Ref, int]) -> Ref | None:
    """The output of MAX pooling, if `launch` is its backward pass with a fused ReLU and can read the output's sign instead of a mask.

    The mask must cover the whole bottom, and the diff must hold this gradient alone. An output that a script reads does not count: the script may change it.
    """
    index = chosen(launch)
    if index is None or launch.mask is None or index.root not in writer or launch.operand("dx").access is not Access.WRITE:
        return None
    pooling, sign = schedule[writer[index.root]], launch.mask.ref
    x, y = pooling["x"], pooling["y"]
    same = x.root is sign.root and (x.root_offset, x.shape[0], x.count, x.batch_stride) == (sign.root_offset, sign.shape[0], sign.count, sign.batch_stride)
    return y if same and not (x.root.persistent or y.root.persistent) else None


def _wants_sign(launch: Launch, root: Ref) -> bool:
    """Whether a launch is a ReLU backward and reads from `root`, a large enough value, only signs."""
    operand = _signs(launch)
    if operand is None or root.persist or root.role is not Role.ACTIVATION or root.nbytes < MIN_VALUE_BYTES:
        return False
    readers = [each for each in launch.operands if each.access is Access.READ and each.ref.root is root]
    return readers == [operand] and (launch.mask is not None or len({each.ref.shape[:1] for each in launch.operands}) == 1)
