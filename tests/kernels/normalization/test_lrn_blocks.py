"""LRN on channels in blocks (kernels/normalization/lrn_blocks.cl) against the kernels for Caffe's order, which tests/layers compares with Caffe."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BLOCKS_GPU, FLOAT, PLANES, Ref, Role, Shape
from ocaffe.kernels.normalization.lrn import Response
from tests.harness import execute, in_blocks, of_kind
from tests.kernels.expression.test_channel_blocks import draw

RESPONSES = {"five": Response(5, 0.5, 0.75, 1.0), "nine": Response(9, 2.0, 0.6, 2.0), "one": Response(1, 1.0, 0.75, 1.0)}


def results(device: Any, response: Response, shape: Shape, math: str) -> list[np.ndarray]:
    """Return y, dx, and dx after a second, accumulating backward pass, in Caffe's order. `math`: that of values in blocks, or empty."""
    rec, blocked = Recorder(replace(of_kind(device.target, "gpu"), math=math or "ieee"), train=True), bool(math)
    rec.enter("lrn", "forward")
    dtype = rec.target.block_type if blocked else FLOAT
    x, y = (Ref(name, shape, Role.ACTIVATION, dtype, layout=BLOCKS_GPU if blocked else PLANES) for name in ("x", "y"))
    dy, dx, more = (Ref(name, shape, Role.DIFF, dtype, layout=BLOCKS_GPU if blocked else PLANES) for name in ("dy", "dx", "more"))
    response.across(rec, x, y)
    rec.enter("lrn", "backward")
    response.across_backward(rec, x, dy, dx)
    rec._written.add(more)
    response.across_backward(rec, x, dy, more)
    feeds = {x: draw(shape), dy: draw(shape, 1), more: draw(shape, 2)}
    return (in_blocks if blocked else execute)(rec, device.context, feeds, [y, dx, more])


@pytest.mark.parametrize("math, error", [("bf16", 0.004), ("tf32", 1e-6)])
@pytest.mark.parametrize("name", RESPONSES)
def test_lrn(device: Any, name: str, math: str, error: float) -> None:
    for shape in ((2, 8, 3, 5), (2, 40, 5, 7)):  # one block; chunks of several
        for got, expected in zip(results(device, RESPONSES[name], shape, math), results(device, RESPONSES[name], shape, "")):
            assert np.abs(got - expected).max() <= error * np.abs(expected).max()


def test_wide_windows_keep_caffes_order(device: Any) -> None:
    rec, shape = Recorder(of_kind(device.target, "gpu"), train=True), (2, 16, 3, 5)
    rec.enter("lrn", "forward")
    Response(11, 1.0, 0.75, 1.0).across(rec, Ref("x", shape, Role.ACTIVATION), Ref("y", shape, Role.ACTIVATION))
    assert rec.launches[0].in_blocks(BLOCKS_GPU) is None
