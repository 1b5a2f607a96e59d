"""HingeLoss and MultinomialLogisticLoss: losses of scores with one label per sample."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.layers.loss import check_batch, check_labels, refuse_smoothing

MOST_CLASSES = 1 << 24


class LabelledScores(Layer):
    """Base of losses with scores N x .. (bottom 0, flattened to N x classes) and one label per sample (bottom 1).

    Only the scores get a gradient. Fractions of labels are cut off. A label outside the classes makes the loss NaN.
    """

    bottoms = 2
    is_loss = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        scores, labels = bottoms
        check_batch(self, scores, labels)
        self.rows = scores[0] if scores else 1
        self.classes = math.prod(scores) // max(self.rows, 1)
        fact = f"there are {self.classes:,} scores per label; a label is a float, exact up to {MOST_CLASSES:,}"
        self.check(self.classes <= MOST_CLASSES, fact, f"give at most {MOST_CLASSES:,} scores for each label")
        check_labels(self, scores, labels, self.rows)
        self.labels = {1: LabelRange(self.title, self.classes)}
        refuse_smoothing(self)
        return [()]

    def operands(self, rec: Recorder, bottoms: list[Blob]) -> list[Read]:
        """Return the scores (rows x classes), the labels, and the index of each class."""
        numbers = rec.constant("classes", np.arange(self.classes, dtype=np.float32))
        return [bottoms[0].data.view((self.rows, self.classes)), (bottoms[1].data.view((self.rows, 1)), 0), (numbers, 1)]

    def total(self, rec: Recorder, bottoms: list[Blob], top: Ref, value: str) -> None:
        """Record top = the sum of `value` over all scores, divided by the batch size."""
        good = "x1 > -1 && x1 < classes"
        scalars = {"n": float(max(self.rows, 1)), "classes": float(self.classes)}
        text = f"v0 = {good} ? {value} : NAN"
        reduce(rec, text, reads=self.operands(rec, bottoms), writes=[top], axes=[0, 1], finish="y0 = v0 / n", scalars=scalars)

    def spread(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool], slope: str) -> None:
        """Record the scores' diff: `slope` times the loss weight, divided by the batch size."""
        self.no_gradient(propagate, {1: "labels"})
        if not propagate[0]:
            return
        assert tops[0].diff is not None and bottoms[0].diff is not None
        reads = [*self.operands(rec, bottoms), (tops[0].diff.view(()), 0)]
        dx = bottoms[0].diff.view((self.rows, self.classes))
        pointwise(rec, f"y0 = ({slope}) * x3 / n", reads=reads, writes=[dx], scalars={"n": float(max(self.rows, 1))})


@register("HingeLoss")
class HingeLoss(LabelledScores):
    """Mean over the batch of max(0, 1 - x) for the label's score plus max(0, 1 + x) for every other score x; norm: L2 squares each term."""

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        margin = "fmax(0, 1 + (trunc(x1) == x2 ? -x0 : x0))"
        self.total(rec, bottoms, tops[0].data, f"{margin} * {margin}" if self.own().norm == self.own().L2 else margin)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        sign, margin = "(trunc(x1) == x2 ? -1 : 1)", "fmax(0, 1 + (trunc(x1) == x2 ? -x0 : x0))"
        slope = f"2 * {margin} * {sign}" if self.own().norm == self.own().L2 else f"({margin} > 0 ? {sign} : 0)"
        self.spread(rec, tops, bottoms, propagate, slope)


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(LabelledScores):
    """Mean of -log p over the samples; p is the probability of the label in bottom 0, at least 1e-20."""

    message = ""

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.total(rec, bottoms, tops[0].data, "(trunc(x1) == x2 ? -log(x0 < 1e-20 ? 1e-20 : x0) : 0)")

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.spread(rec, tops, bottoms, propagate, "trunc(x1) == x2 ? -1 / (x0 < 1e-20 ? 1e-20 : x0) : 0")
