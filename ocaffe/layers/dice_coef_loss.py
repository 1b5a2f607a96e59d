"""DiceCoefLoss: the overlap of a predicted and a true mask."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.layers.loss import check_batch


@register("DiceCoefLoss")
class DiceCoefLoss(Layer):
    """1 - the mean over samples of (2 sum of a b + smooth) / (sum of a^2 + sum of b^2 + smooth), for bottoms a and b with equally many values.

    Both bottoms get a gradient. As in the fork, it is that of the sum over samples, which is N times that of the mean. The fork adds the magnitudes of
    the quotients; none is negative where a and b are not. EAST nets have the layer too. Source: ZhiwenShao/JAANet, src/dice_coef_loss_layer.cpp.
    """

    origin = "JAA-Net"
    bottoms = 2
    is_loss = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        a, b = bottoms
        check_batch(self, a, b)
        fact = f"bottom 0 is {shape_text(a)}, bottom 1 is {shape_text(b)}: they must have equally many values"
        self.check(math.prod(a) == math.prod(b), fact, f"give bottom 1 the shape {shape_text(a)}, as bottom 0 is")
        self.rows: Shape = (a[0], math.prod(a[1:])) if a else (1, 1)
        self.smooth = float(self.own().smooth)
        return [()]

    def force_backward(self, bottom: int) -> bool:
        return True

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        keep = rec.saved if rec.train else rec.scratch
        self.quotient: Ref = keep("quotient", (self.rows[0], 1))
        self.divisor: Ref = keep("divisor", (self.rows[0], 1))
        reduce(
            rec, "v0 = x0 * x1; v1 = x0 * x0 + x1 * x1", reads=[bottom.data.view(self.rows) for bottom in bottoms], writes=[self.quotient, self.divisor],
            axes=[1], finish="t = v1 + smooth; y0 = (2 * v0 + smooth) / t; y1 = t", scalars={"smooth": self.smooth},
        )  # fmt: skip
        scalars = {"n": float(max(self.rows[0], 1))}
        reduce(rec, "v0 = x0", reads=[self.quotient], writes=[tops[0].data], axes=[0, 1], finish="y0 = 1 - v0 / n", scalars=scalars)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        terms = [f"g * (x2 * x{own} - x{1 - own})" for own, wanted in enumerate(propagate) if wanted]
        writes = [bottom.diff.view(self.rows) for bottom, wanted in zip(bottoms, propagate) if wanted and bottom.diff is not None]
        if not writes:
            return
        reads: list[Read] = [*(bottom.data.view(self.rows) for bottom in bottoms), (self.quotient, 0), (self.divisor, 0), (tops[0].diff.view(()), 0)]
        text = "; ".join(["g = 2 * x4 / x3", *(f"y{i} = {term}" for i, term in enumerate(terms))])
        pointwise(rec, text, reads=reads, writes=writes)
