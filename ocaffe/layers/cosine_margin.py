"""CosinAddm and AdaCosAddmScale: an additive angular margin on the cosine of the label's class."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register, stated

# l: whether the class is the label's; far: whether its angle + m is beyond 180 degrees
ANGLE = "l = x1 == x2; c = fmin(x0, 1); s = sqrt(fmax(1 - c * c, 0)); far = c <= threshold"
MARGIN = f"{ANGLE}; y = l ? (far ? c - step : c * cos_m - s * sin_m) : x0"
SLOPE = f"{ANGLE}; d = l && !far && s > 0 ? cos_m + sin_m * c / s : 1"


class CosineMargin(Layer):
    """Base: cosines N x C and labels. The label's cosine c becomes cos(angle + m), or c - m sin m if the angle + m exceeds 180 degrees."""

    bottoms = 2
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, labels = bottoms
        self.check_axes(x, "N x C x ..")
        self.check(
            math.prod(labels) == x[0],
            f"bottom 1 is {shape_text(labels)}, bottom 0 is {shape_text(x)}",
            f"give {x[0]} labels as bottom 1, one for each sample",
        )
        self.grid = x[0], math.prod(x[1:])
        m = float(self.own().m)
        self.check(math.isfinite(m), f"m is {m:g}", "set m to a finite number: the angle of the margin")
        self.scalars = {"threshold": math.cos(math.pi - m), "step": math.sin(math.pi - m) * m, "cos_m": math.cos(m), "sin_m": math.sin(m)}
        return [x]

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def operands(self, rec: Recorder, bottoms: list[Blob]) -> list[Read]:
        """Return the cosines, the labels, and the numbers of the classes."""
        numbers = rec.constant("classes", np.arange(self.grid[1], dtype=np.float32))
        whole = rec.scratch("labels", (self.grid[0], 1))
        pointwise(rec, "y0 = trunc(x0)", reads=[bottoms[1].data], writes=[whole])
        return [bottoms[0].data.view(self.grid), (whole, 0), (numbers, 1)]

    def used(self, text: str) -> dict[str, float]:
        """Return the scalars that a text names."""
        return {name: value for name, value in self.scalars.items() if name in text}

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "labels"})
        assert tops[0].diff is not None and bottoms[0].diff is not None
        dy, dx = tops[0].diff.view(self.grid), bottoms[0].diff.view(self.grid)
        text, more = self.slope()
        text = f"{SLOPE}; {text}"
        pointwise(rec, text, reads=[*self.operands(rec, bottoms), dy, *more], writes=[dx], scalars=self.used(text))

    def slope(self) -> tuple[str, list[Read]]:
        """Return the text that computes y0 from d (the margin's derivative) and x3 (the top's diff), and the reads x4, .. of it."""
        raise NotImplementedError


@register("CosinAddm")
class CosinAddm(CosineMargin):
    """The label's cosine c becomes cos(angle + m) (ArcFace), or c - m sin m beyond 180 degrees; other cosines stay as they are.

    With t above 1 (SV-X-Softmax), other cosines y that exceed the label's new one become t y + t - 1. A negative label changes nothing. The layer is
    the same in TRAIN and TEST: transform_test has no effect in the fork. Sources: xialuxi/arcface-caffe, cosin_add_m_layer.cpp at ca273bf and
    SV_X_Softmax/sv-x-softmax.cpp at af3447d.
    """

    origin = "arcface-caffe"
    message = "cosin_add_m_param"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        self.scalars["t"] = float(self.own().t)
        self.mines = self.scalars["t"] != 1
        return tops

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        reads, top = self.operands(rec, bottoms), tops[0].data.view(self.grid)
        if not self.mines:
            pointwise(rec, f"{MARGIN}; y0 = y", reads=reads, writes=[top], scalars=self.used(MARGIN))
            return
        self.own_cosine = (rec.saved if rec.train else rec.scratch)("own", (self.grid[0], 1))
        reduce(rec, f"{MARGIN}; v0 = l ? y : 0", reads=reads, writes=[self.own_cosine], axes=[1], scalars=self.used(MARGIN))
        text = f"{MARGIN}; y0 = x1 >= 0 && !l && y > x3 ? y * t + t - 1 : y"
        pointwise(rec, text, reads=[*reads, (self.own_cosine, 0)], writes=[top], scalars=self.used(text))

    def slope(self) -> tuple[str, list[Read]]:
        if not self.mines:
            return "y0 = d * x3", []
        return "y0 = x3 * (x1 >= 0 && !l && x0 > x4 ? t : d)", [(self.own_cosine, 0)]


@register("AdaCosAddmScale")
class AdaCosAddmScale(CosineMargin):
    """CosinAddm, followed by AdaCos's scale s, which each forward pass adapts: s = log(B / N) / cos(min(45 degrees, mean angle)).

    B is the sum of exp(s cosine) over the samples and the classes other than the label's, plus 1 per sample as in the fork, with the previous s. It
    starts as sqrt(2) log(num_classes - 1). The mean is over all angles, not the median of the paper. The gradient treats s as a constant. Source:
    xialuxi/arcface-caffe, AdaCos/adacos_add_m_scale_layer.cpp at 44d61a2. transform_test has no effect there.
    """

    origin = "arcface-caffe"
    message = "adacos_add_m_scale_param"
    scale: Ref | None = None  # s, carried from run to run

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        classes = float(self.own().num_classes)
        self.check(
            classes > 2,
            stated(self.own(), "num_classes"),
            "set num_classes to the number of classes, 3 or more"
            if self.own().HasField("num_classes")
            else f"{self.written('num_classes: N')}, where N is the number of classes, 3 or more",
        )
        self.start = math.sqrt(2) * math.log(classes - 1)
        return tops

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.scale is None:
            self.scale = Ref(f"{self.param.name}.scale", (1,), Role.STATE, value=self.start)
        sums = rec.scratch("sums", (2,))
        text = "v0 = acos(fmin(fmax(x0, -1), 1)); v1 = exp(x3 * (x1 == x2 ? 0 : x0))"
        reads = self.operands(rec, bottoms)
        parts = [sums.view((1,)), sums.view((1,), 1)]
        reduce(rec, text, reads=[*reads, (self.scale.view(()), 0)], writes=parts, axes=[0, 1], finish="y0 = v0; y1 = v1")
        self.applied = (rec.saved if rec.train else rec.scratch)("applied", (1,))
        text = "m0 = log(x1 / samples) / cos(fmin(x0 / count, M_PI_F / 4)); y0 = m0"
        scalars = {"samples": float(self.grid[0]), "count": float(math.prod(self.grid))}
        pointwise(rec, text, reads=parts, writes=[self.applied], modifies=[self.scale], scalars=scalars, side_effect=True)
        text = f"{MARGIN}; y0 = x3 * y"
        pointwise(rec, text, reads=[*reads, (self.applied.view(()), 0)], writes=[tops[0].data.view(self.grid)], scalars=self.used(text))

    def slope(self) -> tuple[str, list[Read]]:
        return "y0 = d * x3 * x4", [(self.applied.view(()), 0)]
