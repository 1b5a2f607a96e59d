"""CenterLoss."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import pointwise, reduce
from ocaffe.kernels.rearrange.rows import gather, gather_adjoint
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.layers.loss import check_batch, check_labels


@register("CenterLoss")
class CenterLoss(Layer):
    """Half the squared distance of each sample's features to the center of its class, summed and divided by the batch size.

    Blob 0: the centers (num_output, K). Their diff is not the derivative: it is the sum of (center - features) over the n samples of a class,
    divided by n + 1, independent of the loss weight. A label outside the classes makes the loss NaN.
    """

    origin = "ydwen/caffe-face"
    bottoms = 2
    is_loss = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, labels = bottoms
        p = self.own()
        self.positive(p, {"num_output": "the number of classes"})
        axis = self.axis(p.axis, x)
        self.rows, self.features, self.classes = math.prod(x[:axis]), math.prod(x[axis:]), p.num_output
        check_batch(self, x, labels)
        check_labels(self, x, labels, self.rows)
        self.labels = {1: LabelRange(self.title, self.classes)}
        return [()]

    def parameters(self) -> Sequence[ParamBlob]:
        return [ParamBlob((self.classes, self.features), self.own().center_filler)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        shape = self.rows, self.features
        own = rec.scratch("centers", shape)
        gather(rec, self.params[0].data, bottoms[1].data.view((self.rows,)), own)
        self.difference = (rec.saved if rec.train else rec.scratch)("difference", shape)
        pointwise(rec, "y0 = x0 - x1", reads=[bottoms[0].data.view(shape), own], writes=[self.difference])
        n = {"n": 2.0 * max(self.rows, 1)}
        reduce(rec, "v0 = x0 * x0", reads=[self.difference], writes=[tops[0].data], axes=[0, 1], finish="y0 = v0 / n", scalars=n)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "labels"})
        centers = self.params[0].diff
        if centers is not None:
            labels = bottoms[1].data.view((self.rows,))
            sums, counts, ones = rec.scratch("sums", centers.shape), rec.scratch("counts", (self.classes, 1)), rec.scratch("ones", (self.rows, 1))
            pointwise(rec, "y0 = 1", writes=[ones])
            gather_adjoint(rec, self.difference, labels, sums)
            gather_adjoint(rec, ones, labels, counts)
            pointwise(rec, "y0 = -x0 / (1 + x1)", reads=[sums, (counts, 0)], writes=[centers])
        if propagate[0]:
            assert tops[0].diff is not None and bottoms[0].diff is not None
            dx: Ref = bottoms[0].diff.view((self.rows, self.features))
            reads = [self.difference, (tops[0].diff.view(()), 0)]
            pointwise(rec, "y0 = x0 * x1 / n", reads=reads, writes=[dx], scalars={"n": float(max(self.rows, 1))})  # type: ignore[arg-type]
