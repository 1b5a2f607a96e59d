"""ContrastiveLoss of siamese nets."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register


@register("ContrastiveLoss")
class ContrastiveLoss(Layer):
    """Half the mean over pairs of d^2 (similar pairs) or max(margin - d, 0)^2 (others); d is the distance between rows of bottoms 0 and 1.

    Bottom 2 is truncated to an integer; 0 means dissimilar. legacy_version replaces max(margin - d, 0)^2 by max(margin - d^2, 0).
    Bottom 2 has no gradient. As in Caffe, `propagate_down: true` for it is no mistake, and its diff is 0.
    """

    bottoms = 3
    is_loss = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        a, b, similar = bottoms
        fact = f"bottoms 0 and 1 are {shape_text(a)} and {shape_text(b)}"
        self.check_axes(a, "N x C x ..")
        self.check(
            a[:2] == b[:2],
            f"{fact}: the first two axes must agree",
            f"give bottom 1 the shape {shape_text(a)}: the same batch size and num_output as bottom 0",
        )
        self.check(all(n == 1 for n in (*a[2:], *b[2:])), f"{fact}: axes beyond the second must be 1", "add a Flatten layer before each of the two bottoms")
        self.check(
            similar[:1] == a[:1] and math.prod(similar) == a[0],
            f"bottom 2 is {shape_text(similar)}, there are {a[0]} pairs",
            f"give {a[0]} numbers as bottom 2, one for each pair: 1 similar, 0 not",
        )
        return [()]

    def force_backward(self, bottom: int) -> bool:
        return bottom < 2

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        n, c = bottoms[0].shape[:2]
        a, b = (bottom.data.view((n, c)) for bottom in bottoms[:2])
        self.distance = (rec.saved if rec.train else rec.scratch)("distance", (n,))  # squared
        reduce(rec, "d = x0 - x1; v0 = d * d", reads=[a, b], writes=[self.distance], axes=[1])
        apart = "m = margin - x0; m < 0 ? 0 : m" if self.own().legacy_version else "m = margin - sqrt(x0); m < 0 ? 0 : m * m"
        *first, apart = apart.split("; ")
        text = "; ".join([*first, f"v0 = fabs(x1) >= 1 ? x0 : {apart}"])
        reduce(
            rec, text, reads=[self.distance, bottoms[2].data.view((n,))], writes=[tops[0].data], axes=[0], finish="y0 = v0 / n",
            scalars={"margin": float(self.own().margin), "n": 2.0 * max(n, 1)},
        )  # fmt: skip

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        n, c = bottoms[0].shape[:2]
        writes = [(sign, bottom.diff.view((n, c))) for sign, bottom, wanted in zip(("", "-"), bottoms, propagate) if wanted and bottom.diff is not None]
        if not writes:
            return
        assert tops[0].diff is not None
        a, b = (bottom.data.view((n, c)) for bottom in bottoms[:2])
        away = "-(margin - sqrt(x2)) / (sqrt(x2) + 0.0001) * d"  # Caffe adds 1e-4 against the distance 0
        apart = "margin - x2 > 0 ? -d : 0" if self.own().legacy_version else f"margin - sqrt(x2) > 0 ? {away} : 0"
        text = f"d = x0 - x1; apart = {apart}; g = x4 / n * (fabs(x3) >= 1 ? d : apart); "
        text += "; ".join(f"y{i} = {sign}g" for i, (sign, _) in enumerate(writes))
        reads: list[Read] = [a, b, (self.distance.view((n, 1)), 0), (bottoms[2].data.view((n, 1)), 0), (tops[0].diff.view(()), 0)]
        pointwise(rec, text, reads=reads, writes=[ref for _, ref in writes], scalars={"margin": float(self.own().margin), "n": float(max(n, 1))})
