"""EuclideanLoss, L1Loss and SmoothL1Loss: sums of elementwise distances of two bottoms."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape, split_axes
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Arity, Layer, LayerClass, register
from ocaffe.layers.flow_loss import FlowL1Loss
from ocaffe.layers.loss import check_batch


class Distance(Layer):
    """Sum of a function of d = bottom 0 - bottom 1, divided by the batch size. Both bottoms get a gradient.

    `value` is the function and `slope` its derivative, as texts in d and the names in `scalars`. `divisor` and `total` divide the gradient and the sum.
    """

    bottoms: ClassVar[Arity] = 2
    is_loss = True
    message = ""
    value: str
    slope: str
    difference = "x0 - x1"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        check_batch(self, *bottoms[:2])
        for index, other in enumerate(bottoms[1:], 1):
            fact = f"bottom 0 is {shape_text(bottoms[0])}, bottom {index} is {shape_text(other)}: they must have equally many values"
            self.check(
                math.prod(other) == math.prod(bottoms[0]),
                fact,
                f"give bottom {index} the shape {shape_text(bottoms[0])}, for example by num_output of its layer",
            )
        self.scalars: dict[str, float] = {}
        self.divisor = self.total = float(max(bottoms[0][0], 1)) if bottoms[0] else 1.0
        return [()]

    def force_backward(self, bottom: int) -> bool:
        return bottom < 2

    def flat(self, bottoms: list[Blob]) -> list[Read]:
        """Return the bottoms as views of bottom 0's shape."""
        shape = bottoms[0].shape or (1,)
        return [bottom.data.view(shape) for bottom in bottoms]

    def weighted(self, count: int) -> str:
        """Return the factor of the value as a text, such as "x3 * ", for `count` bottoms."""
        return ""

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        reads = self.flat(bottoms)
        text = f"d = {self.difference}; v0 = {self.weighted(len(reads))}({self.value})"
        axes = range(len(bottoms[0].shape or (1,)))
        scalars = {**self.scalars, "n": self.total}
        reduce(rec, text, reads=reads, writes=[tops[0].data], axes=axes, finish="y0 = v0 / n", scalars=scalars)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        for bottom, wanted in zip(bottoms[2:], propagate[2:]):  # weights have a diff if a layer with backward writes them; the fork computes none
            if wanted and bottom.diff is not None:
                pointwise(rec, "y0 = 0", writes=[bottom.diff])
        reads = self.flat(bottoms)
        weight: Ref | None = tops[0].diff
        assert weight is not None
        writes, signs = [], []
        for sign, bottom, wanted in zip(("", "-"), bottoms, propagate):
            if wanted:
                assert bottom.diff is not None
                writes.append(bottom.diff.view(bottoms[0].shape or (1,)))
                signs.append(sign)
        if not writes:
            return
        inner = "".join(f"x{i} * " for i in self.inside(len(reads)))
        text = f"d = {self.difference}; g = x{len(reads)} / n * {self.weighted(len(reads))}{inner}({self.slope}); "
        text += "; ".join(f"y{i} = {sign}g" for i, sign in enumerate(signs))
        pointwise(rec, text, reads=[*reads, (weight.view(()), 0)], writes=writes, scalars={**self.scalars, "n": self.divisor})

    def inside(self, count: int) -> Sequence[int]:
        """Return the indices of the bottoms that are factors of d."""
        return ()


@register("EuclideanLoss")
class EuclideanLoss(Distance):
    """Half the sum of the squared differences, divided by the batch size.

    A third bottom (the OpenCL branch) multiplies the differences. As in the fork, the gradient has this factor once, which is right for weights of 0 and 1.
    """

    origin = "BVLC Caffe, the OpenCL branch"
    bottoms = (2, 3)
    value = "0.5 * d * d"
    slope = "d"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.difference = "x2 * (x0 - x1)" if len(bottoms) > 2 else "x0 - x1"
        return super().infer(*bottoms)


@register("MTCNNEuclideanLoss")
class MTCNNEuclideanLoss(EuclideanLoss):
    """EuclideanLoss; with loss_param { ignore_label } half the sum of the squared differences of the samples whose label (bottom 2) is another one.

    As in the fork, this sum is not divided by the batch size N, but its gradient is. Source: dlunion/CC4.0,
    src/caffe/layers/mtcnn_euclidean_loss_layer.cpp at 1225991.
    """

    origin = "MTCNN forks"
    bottoms = (2, 3)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        loss, labelled = self.param.loss_param, len(bottoms) == 3
        fact = f"{len(bottoms)} bottoms are given, and ignore_label is {loss.ignore_label if loss.HasField('ignore_label') else 'not set'}"
        self.check(
            labelled == loss.HasField("ignore_label"),
            fact,
            "remove bottom 2, or write loss_param { ignore_label }" if labelled else "give the labels as bottom 2, or remove ignore_label",
        )
        tops = super().infer(*bottoms[:2])
        if labelled:
            fact, samples = f"bottom 2 is {shape_text(bottoms[2])}, bottom 0 is {shape_text(bottoms[0])}", math.prod(bottoms[0][:1])
            self.check(math.prod(bottoms[2]) == samples, fact, f"give {samples} labels as bottom 2, one for each sample")
            self.scalars["ignored"] = float(loss.ignore_label)
            self.total = 1.0
        return tops

    def flat(self, bottoms: list[Blob]) -> list[Read]:
        return [*super().flat(bottoms[:2]), *((bottom.data.view((bottom.count,)), 0) for bottom in bottoms[2:])]

    def weighted(self, count: int) -> str:
        return "(trunc(x2) != ignored) * " if count == 3 else ""


@register("L1Loss")
class L1Loss(Distance):
    """Sum of the absolute differences, divided by the batch size; the derivative at 0 is 0.

    With l1_loss_param, or with one bottom, it is FlowNet's: NaN counts as 0. l2_per_location gives the sum over pixels of sqrt(sum over channels of d^2 +
    epsilon), with l2_prescale_by_channels of the mean over channels; smaller values than `plateau` count as 0. normalize_by_num_entries divides by the
    number of values that are not NaN, divided by the channels. Source: lmb-freiburg/flownet2, src/caffe/layers/l1loss_layer.cu.
    """

    origin = "NVCaffe, FlowNet"
    message = "l1_loss_param"
    bottoms = (1, 2)

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        return FlowL1Loss if param.HasField("l1_loss_param") or len(param.bottom) == 1 else cls

    value = "fabs(d)"
    slope = "sign(d)"


@register("SmoothL1Loss")
class SmoothL1Loss(Distance):
    """Sum of (sigma d)^2 / 2 where |d| < 1 / sigma^2, else |d| - 1 / (2 sigma^2), divided by the batch size.

    Bottoms: a and b, with d = a - b; or a, b and w_in, with d = w_in (a - b); or a, b, w_in and w_out, with each term multiplied by w_out as well.
    SSD, and Fast R-CNN of 2015, have two or three bottoms and sigma 1. They leave the factor w_in out of the gradient. Here it has that factor,
    which is the same for weights of 0 and 1.

    A second top (N x 1 x H x W) has the sum of the terms over the channels; its diff is ignored (R-FCN).
    """

    origin = "Fast R-CNN, SSD, R-FCN"
    message = "smooth_l1_loss_param"
    bottoms = (2, 4)
    tops = (1, 2)
    value = "fabs(d) < 1 / sigma2 ? 0.5 * sigma2 * d * d : fabs(d) - 0.5 / sigma2"
    slope = "fabs(d) < 1 / sigma2 ? sigma2 * d : sign(d)"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        sigma = float(self.own().sigma)
        self.check(sigma != 0, "sigma is 0, and the loss divides by it", "set sigma to another number than 0, or remove it for 1")
        self.scalars["sigma2"] = sigma * sigma
        self.difference = "x2 * (x0 - x1)" if len(bottoms) > 2 else "x0 - x1"
        if len(self.param.top) == 1:
            return tops
        x = bottoms[0]
        self.check(2 <= len(x) <= 4, f"bottom 0 is {shape_text(x)}, and a second top is given", "remove the second top, or give bottom 0 as N x C x H x W")
        self.folded: Shape = split_axes(x, 1)
        return [*tops, (x[0], 1, *x[2:], *(1,) * (4 - len(x)))]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        super().forward(rec, bottoms, tops)
        if len(tops) > 1:
            reads: list[Read] = [bottom.data.view(self.folded) for bottom in bottoms]
            text = f"d = {self.difference}; v0 = {self.weighted(len(reads))}({self.value})"
            write = tops[1].data.view((self.folded[0], self.folded[2]))
            reduce(rec, text, reads=reads, writes=[write], axes=[1], scalars=self.scalars)

    def weighted(self, count: int) -> str:
        return "x3 * " if count == 4 else ""

    def inside(self, count: int) -> Sequence[int]:
        return (2,) if count > 2 else ()
