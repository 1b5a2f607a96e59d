"""LabelSpecificAdd and CombinedMargin: margins on the cosine or the score of the label's class."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.layers.base import TEST_PHASE, Layer, register
from ocaffe.onnx.graph import OnnxGraph


class LabelMargin(Layer):
    """Base: scores N x C.. and N labels. In TRAIN, and with transform_test in TEST, the label's score changes. A negative label changes nothing."""

    bottoms = 2
    always = False  # in TEST too

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, labels = bottoms
        self.check_axes(x, "N x C x ..")
        self.check(
            math.prod(labels) == x[0],
            f"bottom 1 is {shape_text(labels)}, bottom 0 is {shape_text(x)}",
            f"give {x[0]} labels as bottom 1, one for each sample",
        )
        self.grid = x[0], math.prod(x[1:])
        self.active = self.always or self.phase == proto.TRAIN or bool(self.own().transform_test)
        return [x]

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def own_score(self, rec: Recorder, bottoms: list[Blob]) -> list[Read]:
        """Return the reads of the labels and of the numbers of the classes; they are equal at the label's score."""
        numbers = rec.constant("classes", np.arange(self.grid[1], dtype=np.float32))
        return [(bottoms[1].data.view((self.grid[0], 1)), 0), (numbers, 1)]

    def no_label_gradient(self, propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "labels"})


@register("LabelSpecificAdd")
class LabelSpecificAdd(LabelMargin):
    """Adds `bias` to the label's score where the score is above -bias: with a negative bias, the margin of AM-Softmax.

    In TEST the top is the bottom, unless transform_test is true. With bias_base the bias is bias_base + (1 + bias_gamma it)^bias_power - 1, at least bias_min
    and at most bias_max; `it` counts forward passes from `iteration` on. A second top has the bias. The newest code of the fork never changes scores in
    TEST. Source: happynear/caffe-windows, src/caffe/layers/label_specific_add.cu.
    """

    origin = "AMSoftmax, OpenVINO"
    tops = (1, 2)
    passes: Ref | None = None  # the number of forward passes

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        return [*super().infer(*bottoms), (1,)][: max(1, len(self.param.top))]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p = self.own()
        bias = tops[1].data if len(tops) > 1 else rec.scratch("bias", (1,))
        if not self.active:
            pointwise(rec, "y0 = x0", reads=[bottoms[0].data], writes=[tops[0].data])
            if len(tops) > 1:
                pointwise(rec, "y0 = 0", writes=[bias])
            return
        if p.HasField("bias_base"):
            if self.passes is None:
                self.passes = Ref(f"{self.param.name}.passes", (1,), Role.STATE, value=float(p.iteration))
            text = "y0 = fmin(fmax(base + pow(1 + gamma * m0, power) - 1, least), most); m0 = m0 + 1"
            scalars = {"base": p.bias_base, "gamma": p.bias_gamma, "power": p.bias_power, "least": p.bias_min, "most": p.bias_max}
            pointwise(rec, text, writes=[bias], modifies=[self.passes], scalars=scalars, side_effect=True)
        else:
            pointwise(rec, "y0 = bias", writes=[bias], scalars={"bias": float(p.bias)})
        reads = [bottoms[0].data.view(self.grid), *self.own_score(rec, bottoms), (bias.view(()), 0)]
        text = "y0 = trunc(x1) == x2 && x0 > -x3 ? x0 + x3 : x0"
        pointwise(rec, text, reads=reads, writes=[tops[0].data.view(self.grid)])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.active or len(tops) > 1:
            raise graph.refused(
                "it has a second top, or is in the TRAIN phase, in which it changes the scores of labels",
                f"{TEST_PHASE}, and without a second top",
            )
        graph.op("Identity", bottoms[0], to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_label_gradient(propagate)
        assert tops[0].diff is not None and bottoms[0].diff is not None
        pointwise(rec, "y0 = x0", reads=[tops[0].diff], writes=[bottoms[0].diff])


@register("CombinedMargin")
class CombinedMargin(LabelMargin):
    """The label's cosine c becomes cos(m1 acos(c) + m2) - m3: m1 is the margin of SphereFace, m2 that of ArcFace, m3 that of CosFace.

    A negative label changes nothing. The fork reads transform_test and does not use it: TEST is as TRAIN.
    Source: gehaocool/CombinedMargin-caffe, combined_margin_layer.cu.
    """

    origin = "CombinedMargin-caffe, arcface-caffe"

    always = True

    def _scalars(self) -> dict[str, float]:
        p = self.own()
        return {"m1": float(p.m1), "m2": float(p.m2), "m3": float(p.m3)}

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        reads: list[Read] = [bottoms[0].data.view(self.grid), *self.own_score(rec, bottoms)]
        text = "c = fmin(fmax(x0, -1), 1); y0 = trunc(x1) == x2 ? cos(m1 * acos(c) + m2) - m3 : x0"
        pointwise(rec, text, reads=reads, writes=[tops[0].data.view(self.grid)], scalars=self._scalars())

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_label_gradient(propagate)
        assert tops[0].diff is not None and bottoms[0].diff is not None
        dy, dx = tops[0].diff.view(self.grid), bottoms[0].diff.view(self.grid)
        reads: list[Read] = [bottoms[0].data.view(self.grid), *self.own_score(rec, bottoms), dy]
        text = "s = sqrt(fmax(1 - x0 * x0, 1e-12)); c = fmin(fmax(x0, -1), 1); y0 = trunc(x1) == x2 ? x3 * m1 * sin(m1 * acos(c) + m2) / s : x3"
        scalars = {name: value for name, value in self._scalars().items() if name != "m3"}
        pointwise(rec, text, reads=reads, writes=[dx], scalars=scalars)
