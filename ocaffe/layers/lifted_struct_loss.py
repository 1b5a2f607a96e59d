"""LiftedStructSimilaritySoftmaxLoss: a loss on the distances between all samples of a batch."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.layers.base import Layer, register
from ocaffe.layers.loss import check_batch

FARTHEST = "x1 != x2 ? margin - x0 : -FLT_MAX"  # the term of a negative pair with the distance x0; no term of a positive pair is the largest


@register("LiftedStructSimilaritySoftmaxLoss")
class LiftedStructSimilaritySoftmaxLoss(Layer):
    """Lifted structured loss of features (N x C) with one label each: half the mean of max(0, J)^2 over the pairs i < j with equal labels.

    J = D(i, j) + log(sum of exp(margin - D(i, k)) + sum of exp(margin - D(j, l))) over the samples k, l with other labels than i, j; D is the distance.
    A batch without such pairs, for which the fork divides by 0, has the loss 0. So has a pair without samples of other labels. Equal samples get no
    gradient from their pair. It is in no deploy net.
    Source: rksltnl/Caffe-Deep-Metric-Learning-CVPR16, src/caffe/layers/lifted_struct_similarity_softmax_layer.cpp.
    """

    origin = "Lifted structure"
    message = "lifted_struct_sim_softmax_loss_param"
    bottoms = 2
    is_loss = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, labels = bottoms
        check_batch(self, x, labels)
        self.check(len(x) >= 2 and math.prod(x[2:]) == 1, f"bottom 0 is {shape_text(x)}", "put a Flatten layer before this one, which makes features N x C")
        fact = f"bottom 1 is {shape_text(labels)}, bottom 0 {shape_text(x)}"
        self.check(math.prod(labels) == x[0], fact, f"give bottom 1 {x[0]} values, one label for each sample")
        self.count, self.channels = x[:2]
        self.scalars = {"margin": float(self.own().margin)}
        return [()]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        keep, n = (rec.saved if rec.train else rec.scratch), self.count
        x = bottoms[0].data.view((n, self.channels))
        square: Shape = (n, n)
        products, norms = rec.scratch("products", square), rec.scratch("norms", (n,))
        gemm(rec, x, x, products, trans_b=True, mergeable=False)
        reduce(rec, "v0 = x0 * x0", reads=[x], writes=[norms], axes=[1])
        self.distances: Ref = keep("distances", square)
        pointwise(rec, "y0 = sqrt(fmax(x1 + x2 - 2 * x0, 0))", reads=[products, *self.both(norms)], writes=[self.distances])
        self.largest, sums = keep("largest", (n,)), rec.scratch("sums", (n,))
        reduce(rec, f"v0 = {FARTHEST}", reads=self.pairs(bottoms), writes=[self.largest], axes=[1], op="max", scalars=self.scalars)
        text = "v0 = x1 != x2 ? exp(margin - x0 - x3) : 0"
        reduce(rec, text, reads=[*self.pairs(bottoms), (self.largest.view((n, 1)), 0)], writes=[sums], axes=[1], scalars=self.scalars)
        # `hinge` has max(0, J) of the positive pairs in both orders, `peak` the logarithm in J of all pairs.
        self.hinge, self.peak, self.matching = keep("hinge", square), keep("peak", square), keep("matching", ())
        numbers = rec.constant("numbers", np.arange(n, dtype=np.float32))
        reads: list[Read] = [*self.pairs(bottoms), *self.both(self.largest), *self.both(sums), *self.both(numbers)]
        text = (
            "m = fmax(x3, x4); s = x5 * exp(x3 - m) + x6 * exp(x4 - m); none = s == 0; y1 = none ? 0 : log(s) + m; "
            "y0 = x1 == x2 && x7 != x8 && !none ? fmax(x0 + y1, 0) : 0"
        )
        pointwise(rec, text, reads=reads, writes=[self.hinge, self.peak])
        counted: list[Read] = [self.hinge, *self.both(self.labels_of(bottoms)), *self.both(numbers)]
        text = "v0 = x0 * x0; v1 = x1 == x2 && x3 != x4"  # each pair counts in both orders
        reduce(rec, text, reads=counted, writes=[tops[0].data, self.matching], axes=[0, 1], finish="m = fmax(v1, 1); y0 = v0 / m / 2; y1 = m")

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.check(not propagate[1], "there is no gradient for labels", "write in this layer: propagate_down: true propagate_down: false")
        if not propagate[0]:
            return
        assert tops[0].diff is not None and bottoms[0].diff is not None
        n = self.count
        share, slopes = rec.scratch("share", (n,)), rec.scratch("slopes", (n, n), role=Role.DIFF)
        reduce(rec, "v0 = x0 * exp(x1 - x2)", reads=[self.hinge, (self.largest.view((n, 1)), 0), self.peak], writes=[share], axes=[1])
        reads: list[Read] = [*self.pairs(bottoms), self.hinge, *self.both(self.largest), *self.both(share), (tops[0].diff.view(()), 0), (self.matching, 0)]
        text = (
            "apart = exp(margin - x0 - x4) * x6 + exp(margin - x0 - x5) * x7; g = x1 == x2 ? x3 : -apart; "
            "y0 = x0 > 0 ? 2 * x8 / x9 * g / x0 : 0"
        )
        pointwise(rec, text, reads=reads, writes=[slopes], scalars=self.scalars)
        x, moved = bottoms[0].data.view((n, self.channels)), rec.scratch("moved", (n, self.channels), role=Role.DIFF)
        total = rec.scratch("total", (n, 1))
        reduce(rec, "v0 = x0", reads=[slopes], writes=[total], axes=[1])
        gemm(rec, slopes, x, moved, mergeable=False)
        pointwise(rec, "y0 = x0 * x1 - x2", reads=[x, (total, 0), moved], writes=[bottoms[0].diff.view((n, self.channels))])

    def labels_of(self, bottoms: list[Blob]) -> Ref:
        return bottoms[1].data.view((self.count,))

    def both(self, values: Ref) -> list[Read]:
        """Return the values (N) as reads of the rows and of the columns of a matrix."""
        return [(values.view((self.count, 1)), 0), (values.view((self.count,)), 1)]

    def pairs(self, bottoms: list[Blob]) -> list[Read]:
        """Return the reads x0, x1, x2 of a matrix: the distances, and the labels of both samples."""
        return [self.distances, *self.both(self.labels_of(bottoms))]
