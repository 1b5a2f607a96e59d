"""Records the launches that fill a top with random values."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ocaffe.formats.fillers import Draw, draw_of, fill
from ocaffe.ir.kernel import Can, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.expression.expression import pointwise, reduce

DRAW = Kernel("filler.draw", read("block"), write("y"), can=Can(recompute=True))

EACH = 4  # values that a work-item draws
GPU_GROUP = 64


def random_fill(rec: Recorder, filler: Any, batch: Ref, top: Ref, what: str) -> None:
    """Fill `top` from the FillerParameter. `batch`: the staged number of the batch. `what` names the random stream. Raise Error without a place."""
    draw = draw_of(filler, top.shape)
    if draw is None:  # the values are the same in each pass
        constant = fill(filler, top.shape, np.random.default_rng(0))
        pointwise(rec, "y0 = x0", reads=[rec.constant(f"{what}.values", constant)], writes=[top])
    elif draw.normalised:
        rows = top.view((top.shape[0], math.prod(top.shape[1:])) if top.shape else (1, 1))
        values, sums = rec.scratch(f"{what}.values", rows.shape), rec.scratch(f"{what}.sums", rows.shape[:1])
        _draw(rec, draw, batch, values, what)
        reduce(rec, "v0 = x0", reads=[values], writes=[sums], axes=(1,))
        pointwise(rec, "y0 = x0 / x1", reads=[values, (sums, 0)], writes=[rows])
    else:
        _draw(rec, draw, batch, top, what)


def _draw(rec: Recorder, draw: Draw, batch: Ref, top: Ref, what: str) -> None:
    samples = top.shape[0] if top.shape else 1
    count = math.prod(top.shape[1:])
    kept = 1.0 if draw.kept is None else draw.kept
    rec.launch(
        DRAW(block=batch, y=top),
        args=[*rec.key(what), count, draw.start, draw.width, kept],
        size=(-(-count // EACH), samples),
        local=None if rec.target.is_cpu else (GPU_GROUP, 1),
        defines={"NORMAL": int(draw.normal), "SPARSE": int(draw.kept is not None)},
    )
