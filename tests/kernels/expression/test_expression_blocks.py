"""Expressions on channels in blocks (Ref.blocked) on the GPU class against the same expressions in Caffe's order, which test_expression.py covers."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BLOCKS_GPU, FLOAT, PLANES, Ref, Role, Shape, widened
from ocaffe.kernels.expression.expression import pointwise, reduce
from tests.harness import execute, loaded, narrowed, of_kind, stored
from tests.kernels.expression.test_channel_blocks import draw

SHAPES = {
    "one row of a work-item": (2, 8, 1, 3), "several samples": (5, 24, 7, 7), "chunks": (9, 16, 40, 13), "several runs": (3, 8, 256, 150),
    "a run ends within a row": (40, 16, 30, 31),
}  # fmt: skip


def results(device: Any, shape: Shape, math: str, wgmma: bool) -> list[np.ndarray]:
    """Return a normalized image, its gradient accumulated, and the sums of BatchNorm's backward pass. `math`: that of values in blocks, or empty."""
    blocked = bool(math)
    rec = Recorder(replace(of_kind(device.target, "gpu"), wgmma=wgmma, math=math or "ieee", compute_units=4), train=True)
    rec.enter("bn", "backward")
    dtype = rec.target.block_type if blocked else FLOAT
    x, dy, y, more = (Ref(name, shape, Role.ACTIVATION, dtype, layout=BLOCKS_GPU if blocked else PLANES) for name in ("x", "dy", "y", "more"))
    mean, scale, sums, products = (Ref(name, (shape[1],), Role.ACTIVATION) for name in ("mean", "scale", "sums", "products"))
    pointwise(rec, "h = (x0 - x1) * x2; y0 = h > 0 ? h : slope * h", reads=[x, (mean, 1), (scale, 1)], writes=[y], scalars={"slope": 0.25})
    rec._written.add(more)
    pointwise(rec, "y0 = x0 * x1", reads=[dy, (scale, 1)], writes=[more])
    reads = [dy, x, (mean, 1), (scale, 1)]
    reduce(rec, "v0 = x0; v1 = x0 * (x1 - x2) * x3", reads=[(r, None) if isinstance(r, Ref) else r for r in reads], writes=[sums, products], axes=[0, 2, 3],
           finish="y0 = v0; y1 = v1")  # fmt: skip
    feeds = {x: draw(shape), dy: draw(shape, 1), more: draw(shape, 2), mean: draw((shape[1],), 3), scale: draw((shape[1],), 4)}
    feeds = {ref: stored(values, ref) if ref.blocked else widened(narrowed(values)) if len(values.shape) > 1 else values for ref, values in feeds.items()}
    got = execute(rec, device.context, feeds, [y, more, sums, products])
    return [*(loaded(values) for values in got[:2]), *got[2:]] if blocked else got


@pytest.mark.parametrize("math, wgmma, error", [("bf16", True, 0.004), ("bf16", False, 0.004), ("tf32", True, 1e-6)])
@pytest.mark.parametrize("name", SHAPES)
def test_as_in_planes(device: Any, name: str, math: str, wgmma: bool, error: float) -> None:
    """With `wgmma` sums are divided into more chunks."""
    shape = SHAPES[name]
    for got, expected in zip(results(device, shape, math, wgmma), results(device, shape, "", False)):
        bound = error * np.abs(expected).max() if got.ndim > 1 else 1e-5 * shape[0] * shape[2] * shape[3] ** 0.5
        assert np.abs(got - expected).max() <= bound
