"""Backward pass of layers that move no data: the diff of the bottom is the diff of the top."""
from __future__ import annotations

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.kernels.expression.expression import pointwise


def alias_diff(rec: Recorder, bottom: Blob, top: Blob) -> None:
    """Make the diff of `bottom` a view of the diff of `top`. If `bottom` already has a diff, record a launch that adds to it."""
    assert top.diff is not None
    if bottom.diff is None:
        bottom.diff = top.diff.view(bottom.shape, name=f"{bottom.name}.diff")
        rec.holds_values(top.diff)
    else:
        pointwise(rec, "y0 = x0", reads=[top.diff.view(bottom.shape)], writes=[bottom.diff])
