"""Fuse ReLU backward into the launch that writes its gradient: the last writer applies the slope where the ReLU's output is not positive.

Several ReLUs may each read a region of one diff, as behind a Concat. Then the launch applies all of them (kernels/common/fused_relu.h).
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ocaffe.ir.kernel import SIGN, Access
from ocaffe.ir.launch import Launch, Operand, Schedule
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import Pointwise, ReluBackward

SIGNS, BITS, TOP = 1, 2, 3  # values of the define FUSED_RELU


def fuse_relu_backward(schedule: Schedule) -> Schedule:
    """The schedule without the fused ReLU backward launches. Their results become views of the diff that they read."""
    uses: dict[Ref, list[tuple[int, Operand]]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        for operand in launch.operands:
            uses[operand.ref.root].append((step, operand))
    gone: set[int] = set()
    for step, launch in enumerate(schedule):
        if launch.kernel.slot(SIGN.name) is None or launch.phase != "backward" or launch.mask is not None:
            continue
        target = launch.writes[0]
        after = sorted({other for other, _ in uses[target.root] if other > step})
        relus = [schedule[other] for other in after]
        if not relus or not all(_may_go(relu, target.root, uses) for relu in relus) or len({relu_backward_of(relu) for relu in relus}) > 1:
            continue
        relu_backward = relu_backward_of(relus[0])
        assert relu_backward is not None
        sign, steps = _signs(target, relus), steps_of_result(schedule, _writers(uses[target.root], step))
        if sign is None or any(other >= min(steps) for other in _writers(uses[sign.root], len(schedule))):
            continue
        result = target.view(target.shape)
        result.reuses_storage = True
        for each in steps:
            _fuse(schedule[each], result, sign, relu_backward.slope)
        for other, relu in zip(after, relus):
            dy, dx = relu["x0"], relu["y0"]
            dx.base, dx.offset, dx.stride = result, dy.root_offset - result.root_offset, None if dy.is_dense else dy.batch_stride
            uses[target.root] += uses.pop(dx)
            gone.add(other)
        uses[target.root] = [use for use in uses[target.root] if use[0] not in gone]
    return [launch for step, launch in enumerate(schedule) if step not in gone]


def replace_mask(launch: Launch, ref: Ref, kind: int) -> None:
    """Replace the mask of a fused ReLU backward: packed bits, or the output of the pooling whose backward the launch is."""
    launch.put(SIGN.name, ref)
    launch.define(FUSED_RELU=kind)


def _fuse(launch: Launch, result: Ref, sign: Ref, slope: float) -> None:
    launch.operands = [replace(operand, ref=result) if operand.access is not Access.READ and operand.ref.root is result.root else operand
                       for operand in launch.operands]  # fmt: skip
    if launch.epilogue is not None:
        launch.set_scalar(launch.epilogue.activation[0], np.float32(slope))
    scalars = [np.float32(slope)] if launch.epilogue is None else []
    launch.put(SIGN.name, sign)
    launch.define(*scalars, FUSED_RELU=SIGNS)


def relu_backward_of(launch: Launch) -> ReluBackward | None:
    """Of a launch that is the backward pass of a ReLU: its slope. x0 is the gradient, x1 the ReLU's output."""
    means = launch.lower.means if isinstance(launch.lower, Pointwise) else None
    return means if isinstance(means, ReluBackward) else None


def _may_go(relu: Launch, root: Ref, uses: dict[Ref, list[tuple[int, Operand]]]) -> bool:
    """Whether a launch is the backward pass of a ReLU, reads its gradient from `root`, and may write its result there."""
    if relu_backward_of(relu) is None:
        return False
    dy, sign, dx = relu["x0"], relu["x1"], relu["y0"]
    own = {sign.root, dx.root}
    free = dx.base is None and dx.role in (Role.DIFF, Role.SCRATCH) and not dx.persist and not root.persistent and root.slots == dx.slots == 1
    if dy.root is not root or root in own or len(own) < 2 or not free or dx.dtype != root.dtype or relu.operand("y0").access is not Access.WRITE:
        return False
    first = uses[dx][0][1] is relu.operand("y0")
    return first and (dy.is_dense or (dx.shape[:1] == dy.shape[:1] and all(operand.ref.follows(dx) for _, operand in uses[dx])))


def _signs(target: Ref, relus: Sequence[Launch]) -> Ref | None:
    """A Ref with the ReLU output for each element of `target`; None if there is none."""
    pairs = sorted(((relu["x0"], relu["x1"]) for relu in relus), key=lambda pair: pair[0].root_offset)
    if len(pairs) == 1:
        dy, sign = pairs[0]
        same = dy.root_offset == target.root_offset and dy.count == target.count
        if not same or not ((dy.is_dense and target.is_dense) or (dy.shape[:1], dy.batch_stride) == (target.shape[:1], target.batch_stride)):
            return None
        if sign.shape[:1] == target.shape[:1]:
            return sign
        return sign.view(target.shape) if sign.is_dense else None
    first = pairs[0][1]
    end, distance = target.root_offset, first.root_offset - target.root_offset
    for dy, sign in pairs:
        if (
            dy.root_offset != end or dy.shape[:1] != target.shape[:1] or dy.batch_stride != target.batch_stride
            or sign.root is not first.root or sign.root_offset != dy.root_offset + distance
            or sign.shape[:1] != target.shape[:1] or sign.batch_stride != first.batch_stride
        ):  # fmt: skip
            return None
        end += dy.dense_stride
    if end != target.root_offset + target.dense_stride:
        return None
    return first.root.view(target.shape, first.root_offset, first.batch_stride)


def _writers(uses: Sequence[tuple[int, Operand]], end: int) -> list[int]:
    """The steps up to `end` that write, in order."""
    return sorted({step for step, operand in uses if step <= end and operand.access is not Access.READ})


def steps_of_result(schedule: Schedule, writers: Sequence[int]) -> list[int]:
    """The last step that writes a diff, and the earlier steps that compute other regions of the same result."""
    steps: dict[Any, int] = {}
    last = schedule[writers[-1]]
    for step in reversed(writers):
        launch = schedule[step]
        if launch.call is None or last.call is None or (launch.layer, launch.phase, launch.kernel.name) != (last.layer, last.phase, last.kernel.name):
            break
        if launch is not last and launch.epilogue is None:
            break  # only products are computed in steps; each pooling of a pyramid adds to the whole diff
        if launch.call.scalars in steps or (launch.epilogue and launch.scalar(launch.epilogue.accumulate) != last.scalar(launch.epilogue.accumulate)):
            break  # another bottom of the layer adds to the same diff
        steps[launch.call.scalars] = step
    return list(steps.values())
