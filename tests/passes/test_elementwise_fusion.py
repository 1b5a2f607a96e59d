"""Fused expressions give the bits of separate launches, and values that other launches read are still written."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import pointwise, reduce
from ocaffe.passes.elementwise_fusion import fuse_elementwise
from tests.harness import execute


def act(name: str, *shape: int, role: Role = Role.ACTIVATION) -> Ref:
    return Ref(name, shape, role)


def scale_relu(rec: Recorder) -> tuple[list[Ref], list[Ref], int]:
    """Record normalisation, Scale and ReLU, with a later reader of the first value. Return inputs, results and launches after fusion."""
    x, mean, scale, y1, y2, y3, total = act("x", 3, 5, 7), act("m", 5), act("s", 5), act("y1", 3, 5, 7), act("y2", 3, 5, 7), act("y3", 3, 5, 7), act("t", 5)
    pointwise(rec, "d = x0 - x1; y0 = d * k", reads=[x, (mean, 1)], writes=[y1], scalars={"k": 0.5})
    pointwise(rec, "y0 = x0 * x1 + k", reads=[y1, (scale, 1)], writes=[y2], scalars={"k": 0.25})
    pointwise(rec, "y0 = x0 > 0 ? x0 : 0", reads=[y2], writes=[y3])
    reduce(rec, "v0 = x0", reads=[y1], writes=[total], axes=(0, 2))
    return [x, mean, scale], [y1, y3, total], 2


def same_input_twice(rec: Recorder) -> tuple[list[Ref], list[Ref], int]:
    x, y, z = act("x", 40), act("y", 40), act("z", 40)
    pointwise(rec, "y0 = x0 * x0", reads=[x], writes=[y])
    pointwise(rec, "y0 = x0 * x1 + x2", reads=[y, y, x], writes=[z])
    return [x], [z], 1


def read_before(rec: Recorder) -> tuple[list[Ref], list[Ref], int]:
    """A reduction in between reads the value, so there is no fusion."""
    x, y, z, t = act("x", 4, 6), act("y", 4, 6), act("z", 4, 6), act("t", 6)
    pointwise(rec, "y0 = x0 + 1", reads=[x], writes=[y])
    reduce(rec, "v0 = x0", reads=[y], writes=[t], axes=(0,))
    pointwise(rec, "y0 = x0 * x1", reads=[y, (t, 1)], writes=[z])
    return [x], [z], 3


def two_writes_of_one_diff(rec: Recorder) -> tuple[list[Ref], list[Ref], int]:
    """The second launch adds to another result of the first, so they are not fused."""
    x, dx, y = act("x", 30), act("dx", 30, role=Role.DIFF), act("y", 30)
    rec.enter("a", "backward")
    pointwise(rec, "y0 = x0; y1 = 2 * x0", reads=[x], writes=[y, dx])
    rec.enter("b", "backward")
    pointwise(rec, "y0 = x0 * x0", reads=[y], writes=[dx])
    return [x], [dx], 2


def _neighbour_changes(rec: Recorder, offset: int, launches: int) -> tuple[list[Ref], list[Ref], int]:
    """A launch in between writes eight parameters from `offset` on. The first launch reads five parameters from 6 on."""
    x, all_params, y, z = act("x", 3, 5, 7), act("p", 20), act("y", 3, 5, 7), act("z", 3, 5, 7)
    pointwise(rec, "y0 = x0 * x1", reads=[x, (all_params.view((5,), 6), 1)], writes=[y])
    pointwise(rec, "y0 = x0 + 1", reads=[all_params.view((8,), offset)], writes=[all_params.view((8,), offset)])
    pointwise(rec, "y0 = x0 > 0 ? x0 : 0", reads=[y], writes=[z])
    return [x, all_params], [z, all_params], launches


def statistics_follow(rec: Recorder) -> tuple[list[Ref], list[Ref], int]:
    """Other parameters change in between, like BatchNorm's statistics."""
    return _neighbour_changes(rec, 11, 2)


def a_parameter_changes(rec: Recorder) -> tuple[list[Ref], list[Ref], int]:
    return _neighbour_changes(rec, 10, 3)


def what_it_also_writes_is_written_again(rec: Recorder) -> tuple[list[Ref], list[Ref], int]:
    """Fusion must not write the older value last."""
    x, y, z, other = act("x", 30), act("y", 30), act("z", 30), act("other", 30)
    pointwise(rec, "y0 = x0 + 1; y1 = x0", reads=[x], writes=[y, other])
    pointwise(rec, "y0 = 0", writes=[other.view((20,), 10)])
    pointwise(rec, "y0 = x0 * 2", reads=[y], writes=[z])
    return [x], [z, other], 3


MAKERS = [
    scale_relu, same_input_twice, read_before, two_writes_of_one_diff, what_it_also_writes_is_written_again, statistics_follow, a_parameter_changes
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_chain(make: Any, device: Any) -> None:
    results = []
    for fuse in (False, True):
        rec = Recorder(device.target, train=True)
        rec.enter("layer", "forward")
        inputs, outputs, launches = make(rec)
        if fuse:
            rec.launches = fuse_elementwise(rec.launches)
            assert len(rec.launches) == launches
        rng = np.random.default_rng(5)
        results.append(execute(rec, device.context, {ref: rng.standard_normal(ref.shape) for ref in inputs}, outputs))
    for plain, fused in zip(*results):
        assert plain.tobytes() == fused.tobytes()
