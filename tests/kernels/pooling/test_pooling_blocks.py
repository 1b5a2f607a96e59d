"""Pooling on channels in blocks (kernels/pooling/pooling_blocks.cl) against the kernels for Caffe's order, which tests/layers compares with Caffe."""
from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BFLOAT, BLOCKS_GPU, FLOAT, PLANES, Ref, Role, Shape
from ocaffe.kernels.pooling.pooling import AVE, MAX, Pool
from tests.harness import execute, in_blocks, of_kind
from tests.kernels.expression.test_channel_blocks import draw

POOLS = {
    "max 2x2": Pool(MAX, (2, 2), (2, 2), (0, 0), (7, 9), (4, 5)),
    "max 3x3 padded": Pool(MAX, (3, 3), (2, 2), (1, 1), (8, 9), (5, 5)),
    "max 3x3 stride 1": Pool(MAX, (3, 3), (1, 1), (1, 1), (6, 5), (6, 5)),
    "ave 3x3 padded": Pool(AVE, (3, 3), (2, 2), (1, 1), (8, 9), (5, 5)),
    "whole": Pool(AVE, (7, 5), (1, 1), (0, 0), (7, 5), (1, 1)),
    "one pixel": Pool(AVE, (1, 1), (2, 2), (0, 0), (8, 9), (4, 5)),
}


def results(device: Any, pool: Pool, shape: Shape, math: str) -> list[np.ndarray]:
    """Return y, dx, and dx after a second, accumulating backward pass, in Caffe's order. `math`: that of values in blocks, or empty."""
    rec, blocked = Recorder(replace(of_kind(device.target, "gpu"), math=math or "ieee"), train=True), bool(math)
    rec.enter("pool", "forward")
    out = (*shape[:2], *pool.outputs)
    ordered = blocked and prod(pool.outputs) > 1  # an image of one pixel has one order, and stays in float
    dtype, result = (rec.target.block_type if yes else FLOAT for yes in (blocked, ordered))
    layouts = {True: BLOCKS_GPU, False: PLANES}
    x = Ref("x", shape, Role.ACTIVATION, dtype, layout=layouts[blocked])
    y = Ref("y", out, Role.ACTIVATION, result, layout=layouts[ordered])
    dy, dx, more = (Ref(name, size, Role.DIFF, kind, layout=layouts[yes]) for name, size, kind, yes in
                    (("dy", out, result, ordered), ("dx", shape, dtype, blocked), ("more", shape, dtype, blocked)))  # fmt: skip
    index = Ref("index", out, Role.SAVED, np.dtype(pool.index_dtype)) if pool.method == MAX else None
    pool.forward(rec, x, y, index)
    rec.enter("pool", "backward")
    pool.backward(rec, dy, index, dx)
    rec._written.add(more)
    pool.backward(rec, dy, index, more)
    for launch in rec.launches:
        types = {slot.bf16: operand.ref.dtype for operand in launch.operands if (slot := launch.slot(operand)) is not None and slot.bf16}
        launch.define(**{f"{name}_T": "bfloat" for name, dtype in types.items() if dtype == BFLOAT})
    feeds = {x: draw(shape), dy: draw(out, 1), more: draw(shape, 2)}
    return (in_blocks if blocked else execute)(rec, device.context, feeds, [y, dx, more])


@pytest.mark.parametrize("math, error", [("bf16", 0.004), ("tf32", 1e-6)])
@pytest.mark.parametrize("name", POOLS)
def test_pooling(device: Any, name: str, math: str, error: float) -> None:
    pool = POOLS[name]
    shape = (3, 16, *pool.image)
    for got, expected in zip(results(device, pool, shape, math), results(device, pool, shape, "")):
        assert np.abs(got - expected).max() <= error * np.abs(expected).max()
