"""Filter."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.rearrange.rows import gather, select
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Filter")
class Filter(Layer):
    """The samples of each bottom for which the selector (the last bottom) is not 0; the tops may have 0 samples.

    Samples that are not selected have a zero diff. The selector has no gradient.
    """

    bottoms = (2, None)
    tops = (1, None)
    message = ""
    inplace_top = False
    extent_axis = 0

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        *data, selector = bottoms
        self.check(len(self.param.top) == len(data), f"{len(bottoms)} bottoms and {len(self.param.top)} tops are given; the last bottom selects and has no top",
                   f"give {len(data)} tops, one for each bottom but the last")  # fmt: skip
        self.check(
            selector and set(selector[1:]) <= {1},
            f"the selector (bottom {len(data)}) is {shape_text(selector)}, it must hold one value for each sample",
            "give a selector of N x 1 as the last bottom",
        )
        for i, x in enumerate(data):
            self.check(
                x[:1] == selector[:1],
                f"bottom {i} is {shape_text(x)}, the selector (bottom {len(data)}) is {shape_text(selector)}",
                "give both the same batch size",
            )
        chosen = selector[:1] if self.extent is None else self.extent
        return [(*chosen, *x[1:]) for x in data]

    def force_backward(self, bottom: int) -> bool:
        return bottom < len(self.param.bottom) - 1

    def measures(self, tops: Sequence[Blob]) -> bool:
        return True

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        samples = bottoms[-1].shape[0]
        chosen, extent = rec.scratch("chosen", (samples,), np.int32), rec.scratch("extent", (1,), np.int32)
        self.places = (rec.saved if rec.train else rec.scratch)("places", (samples,), np.int32)
        select(rec, bottoms[-1].data, chosen, self.places, extent)
        rec.measure(self, extent)
        for bottom, top in zip(bottoms, tops):
            gather(rec, bottom.data, chosen.view(top.shape[:1]), top.data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        chosen = graph.cast(graph.reshape(bottoms[-1], (-1,)), np.bool_)
        for bottom, top in zip(bottoms, tops):
            graph.op("Compress", bottom, chosen, to=top, axis=0)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {len(tops): "the selector"})
        for top, bottom, wanted in zip(tops, bottoms, propagate):
            if not wanted:
                continue
            assert top.diff is not None and bottom.diff is not None
            if top.count:
                gather(rec, top.diff, self.places, bottom.diff, fill=0.0)
            else:
                rec.empty([self.places], [])  # backward of other extents reads `places`, so this recording must keep it for them
                pointwise(rec, "y0 = 0", writes=[bottom.diff])
