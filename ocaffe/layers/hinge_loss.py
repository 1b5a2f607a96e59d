"""HingeLoss and MultinomialLogisticLoss: losses of scores and one label for each sample."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.layers.base import Layer, register
from ocaffe.layers.loss import check_batch, check_labels, refuse_smoothing
from ocaffe.ops.expression import Read, pointwise, reduce


class LabelledScores(Layer):
    """Bottom 0: scores of all that a sample has behind its first axis; bottom 1: one label for each sample. Only the scores get a gradient.

    A label that is no class makes the loss NaN.
    """

    bottoms = 2
    is_loss = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        scores, labels = bottoms
        check_batch(self, scores, labels)
        self.rows = scores[0] if scores else 1
        self.classes = math.prod(scores) // max(self.rows, 1)
        check_labels(self, scores, labels, self.rows)
        refuse_smoothing(self)
        return [()]

    def operands(self, rec: Recorder, bottoms: list[Blob]) -> list[Read]:
        """Scores as rows x classes; labels; the number of each class."""
        numbers = rec.constant("classes", np.arange(self.classes, dtype=np.float32))
        return [bottoms[0].data.view((self.rows, self.classes)), (bottoms[1].data.view((self.rows, 1)), 0), (numbers, 1)]

    def total(self, rec: Recorder, bottoms: list[Blob], top: Ref, value: str) -> None:
        """top = the sum of `value` over all scores, divided by the batch size."""
        good = "x1 >= 0 && x1 < classes && floor(x1) == x1"
        scalars = {"n": float(max(self.rows, 1)), "classes": float(self.classes)}
        text = f"v0 = {good} ? {value} : NAN"
        reduce(rec, text, reads=self.operands(rec, bottoms), writes=[top], axes=[0, 1], finish="y0 = v0 / n", scalars=scalars)

    def spread(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool], slope: str) -> None:
        """The scores' diff: `slope` times loss weight over batch size."""
        self.check(not propagate[1], "there is no gradient for labels", "propagate_down: true  propagate_down: false")
        if not propagate[0]:
            return
        assert tops[0].diff is not None and bottoms[0].diff is not None
        reads = [*self.operands(rec, bottoms), (tops[0].diff.view(()), 0)]
        dx = bottoms[0].diff.view((self.rows, self.classes))
        pointwise(rec, f"y0 = ({slope}) * x3 / n", reads=reads, writes=[dx], scalars={"n": float(max(self.rows, 1))})


@register("HingeLoss")
class HingeLoss(LabelledScores):
    """Sum of max(0, 1 - x) for the scores of the labels and max(0, 1 + x) for all others (norm: L2: of their squares), divided by the batch size."""

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        margin = "fmax(0, 1 + (x1 == x2 ? -x0 : x0))"
        self.total(rec, bottoms, tops[0].data, f"{margin} * {margin}" if self.own().norm == self.own().L2 else margin)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        sign, margin = "(x1 == x2 ? -1 : 1)", "fmax(0, 1 + (x1 == x2 ? -x0 : x0))"
        slope = f"2 * {margin} * {sign}" if self.own().norm == self.own().L2 else f"({margin} > 0 ? {sign} : 0)"
        self.spread(rec, tops, bottoms, propagate, slope)


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(LabelledScores):
    """Mean of -log of the probability that bottom 0 gives to each label, probabilities kept above 1e-20."""

    message = ""

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.total(rec, bottoms, tops[0].data, "(x1 == x2 ? -log(fmax(x0, 1e-20)) : 0)")

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.spread(rec, tops, bottoms, propagate, "x1 == x2 ? -1 / fmax(x0, 1e-20) : 0")
