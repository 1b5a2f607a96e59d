"""TripletLoss: an anchor is nearer to a positive sample than to a negative one, by a margin."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register


@register("TripletLoss")
class TripletLoss(Layer):
    """Half the mean of max(0, margin + |a - p|^2 - |a - n|^2) over the samples; bottoms are anchors a, positive p and negative n samples, N x K.

    A fourth bottom has a weight for each sample. Source: happynear/caffe-windows, src/caffe/layers/triplet_loss_layer.cpp.
    """

    origin = "caffe-windows and face recognition forks"
    bottoms = (3, 4)
    is_loss = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        a = bottoms[0]
        texts = ", ".join(f"bottom {i} is {shape_text(each)}" for i, each in enumerate(bottoms))
        self.check(a, f"{texts}: bottom 0 has no axes", "give bottoms 0, 1 and 2 as N x K: samples and features")
        self.check_filled(a)
        self.check(all(each == a for each in bottoms[1:3]), texts, f"give bottoms 1 and 2 the shape {shape_text(a)}, as bottom 0 is")
        self.check(all(math.prod(each) == a[0] for each in bottoms[3:]), texts, f"give {a[0]} weights as bottom 3, one for each sample")
        self.shape = (a[0], math.prod(a[1:]))
        return [()]

    def force_backward(self, bottom: int) -> bool:
        return bottom < 3

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        weights: list[Read] = [(bottom.data.view((self.shape[0],)), 0) for bottom in bottoms[3:]]
        self.excess = (rec.saved if rec.train else rec.scratch)("excess", (self.shape[0],))
        reads: list[Read] = [bottom.data.view(self.shape) for bottom in bottoms[:3]]
        text = "p = x0 - x1; n = x0 - x2; v0 = p * p - n * n"
        finish, scalars = "m = margin + v0; y0 = m < 0 ? 0 : m", {"margin": float(self.own().margin)}
        reduce(rec, text, reads=reads, writes=[self.excess], axes=[1], finish=finish, scalars=scalars)
        term = "x0 * x1" if weights else "x0"
        reduce(rec, f"v0 = {term}", reads=[self.excess, *weights], writes=[tops[0].data.view(())], axes=[0], finish="y0 = v0 / count",
               scalars={"count": 2.0 * self.shape[0]})  # fmt: skip

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        for bottom, wanted in zip(bottoms[3:], propagate[3:]):
            if wanted:
                pointwise(rec, "y0 = 0", writes=[rec.diff_of(bottom)])
        slopes = ("x2 - x1", "x1 - x0", "x0 - x2")
        chosen = [i for i in range(3) if propagate[i]]
        if not chosen:
            return
        column = (self.shape[0], 1)
        reads: list[Read] = [bottom.data.view(self.shape) for bottom in bottoms[:3]]
        reads += [(tops[0].diff.view(()), 0), (self.excess.view(column), 0), *((bottom.data.view(column), 0) for bottom in bottoms[3:])]
        text = f"g = x4 > 0 ? x3 / count{' * x5' if len(bottoms) > 3 else ''} : 0; " + "; ".join(f"y{k} = g * ({slopes[i]})" for k, i in enumerate(chosen))
        writes = [rec.diff_of(bottoms[i]).view(self.shape) for i in chosen]
        pointwise(rec, text, reads=reads, writes=writes, scalars={"count": float(self.shape[0])})
