"""SigmoidCrossEntropyLoss."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.layers.loss import COUNTED, check_batch, ignored, normalizer, refuse_smoothing


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(Layer):
    """Sum of the cross-entropies of sigmoid(bottom 0) with targets between 0 and 1 (bottom 1), divided by the normalizer (default: batch size).

    Targets get no gradient. Targets whose whole part is ignore_label add nothing to the loss and are not counted.
    """

    bottoms = 2
    is_loss = True
    message = "sigmoid_param"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, target = bottoms
        check_batch(self, x, target)
        refuse_smoothing(self)
        self.check(
            math.prod(x) == math.prod(target),
            f"bottom 0 is {shape_text(x)}, bottom 1 is {shape_text(target)}: they must have equally many values",
            f"give bottom 1 the shape {shape_text(x)}: one target for each value",
        )
        outer = x[0] if x else 1
        has, label = ignored(self.param.loss_param)
        self.scalars = {"ignored": float(label)} if has else {}
        self.valid = "trunc(x1) != ignored" if has else "1"
        self.divisor = normalizer(self, outer, math.prod(x) // max(outer, 1), proto.LossParameter.BATCH_SIZE)
        return [()]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        shape = bottoms[0].shape or (1,)
        keep = rec.saved if rec.train else rec.scratch
        self.total = keep("divisor", ())
        text = f"valid = {self.valid}; v0 = valid * (fmax(x0, 0) - x0 * x1 + log1p(exp(-fabs(x0)))); v1 = valid"
        total = "v1" if self.divisor == COUNTED else "n"
        reduce(
            rec, text, reads=[bottoms[0].data.view(shape), bottoms[1].data.view(shape)], writes=[tops[0].data, self.total], axes=range(len(shape)),
            finish=f"n = fmax({total}, 1); y0 = v0 / n; y1 = n" if total == "v1" else "m = fmax(n, 1); y0 = v0 / m; y1 = m",
            scalars={**self.scalars, **({} if total == "v1" else {"n": self.divisor})},
        )  # fmt: skip

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "targets"})
        if not propagate[0]:
            return
        shape = bottoms[0].shape or (1,)
        assert tops[0].diff is not None and bottoms[0].diff is not None
        text = f"valid = {self.valid}; y0 = valid * (1 / (1 + exp(-x0)) - x1) * x2 / x3"
        reads: list[Read] = [bottoms[0].data.view(shape), bottoms[1].data.view(shape), (tops[0].diff.view(()), 0), (self.total, 0)]
        pointwise(rec, text, reads=reads, writes=[bottoms[0].diff.view(shape)], scalars=self.scalars)
