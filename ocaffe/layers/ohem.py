"""Online hard example mining of R-FCN: losses per region, and the selection of the regions that are trained."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.kernel import JOIN, Kernel, read, reads, write, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape, split_axes
from ocaffe.kernels.detection.regions.anchors import over
from ocaffe.kernels.expression.expression import pointwise, reduce
from ocaffe.layers.anchors import ROIS, WithoutGradient, check_rows
from ocaffe.layers.base import Layer, register
from ocaffe.layers.loss import check_batch, normalizer, refuse_smoothing
from ocaffe.layers.softmax_loss import SoftmaxWithLoss

ANNOTATE = Kernel("ohem.annotate", *reads("rois", "first", "second", "labels", "weights"), *writes("kept", "kept_weights"), can=JOIN)

LOSSES = Kernel("ohem.losses", read("prob"), read("label"), write("loss"), can=JOIN)


@register("SoftmaxWithLossOHEM")
class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """SoftmaxWithLoss with a third top: the loss of each label, 0 for ignored labels.

    Only the first top passes a gradient.
    """

    origin = "R-FCN"
    tops = (1, 3)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        if len(self.param.top) > 2:
            refuse_smoothing(self)
        labels = bottoms[1]
        shapes = [*super().infer(*bottoms)[:2], labels if len(labels) > 1 else (*labels, 1, 1, 1)]  # as SmoothL1LossOHEM's second top: nets add both
        return shapes[: max(1, len(self.param.top))]

    def each(self, rec: Recorder, bottoms: list[Blob], y: Ref) -> None:
        labels = bottoms[1].data
        outer, classes, inner = split_axes(bottoms[0].shape, self.class_axis)
        args = [classes, inner, outer // bottoms[0].shape[0] if self.class_axis else 0, labels.dense_stride, *self.ignore]
        over(rec, LOSSES(prob=self.prob, label=labels, loss=y), (outer * inner,), outer * inner, *args)


@register("SmoothL1LossOHEM")
class SmoothL1LossOHEM(Layer):
    """Sum of smooth L1 of w (a - b) over all values, divided by the normalizer; a second top has the sum of each region.

    Bottoms: a, b and optionally w. Smooth L1 of d is d^2 / 2 for |d| < 1, else |d| - 1/2. Only the first top passes a gradient, to a and b.
    """

    origin = "R-FCN"
    message = ""
    bottoms = (2, 3)
    tops = (1, 2)
    is_loss = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x = bottoms[0]
        self.check(len(x) >= 2, f"bottom 0 is {shape_text(x)}, it must be R x C or R x C x H x W", "give the predictions of R regions, R x C, as bottom 0")
        check_batch(self, *bottoms[:2])
        for index, other in enumerate(bottoms[1:], 1):
            fact = f"bottom 0 is {shape_text(x)}, bottom {index} is {shape_text(other)}"
            self.check(math.prod(other) == math.prod(x), fact, f"give {math.prod(x)} values as bottom {index}, as bottom 0 has")
        regions, _, inner = split_axes(x, 1)
        self.divisor = max(1.0, normalizer(self, regions, inner) or float(regions * inner))
        return [(), (regions, 1, *x[2:], *[1] * (4 - len(x)))][: max(1, len(self.param.top))]

    @staticmethod
    def operands(bottoms: list[Blob]) -> tuple[list[Ref], str]:
        """Return the bottoms as R x C x H W, and the text that computes d from them."""
        shape = split_axes(bottoms[0].shape, 1)
        return [bottom.data.view(shape) for bottom in bottoms], f"d = {'x2 * ' if len(bottoms) > 2 else ''}(x0 - x1)"

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        reads, text = self.operands(bottoms)
        text += "; a = fabs(d); v0 = a < 1 ? 0.5 * d * d : a - 0.5"
        reduce(rec, text, reads=reads, writes=[tops[0].data], axes=[0, 1, 2], finish="y0 = v0 / n", scalars={"n": self.divisor})
        if len(tops) > 1:
            reduce(rec, text, reads=reads, writes=[tops[1].data], axes=[1])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, dict.fromkeys(range(2, len(propagate)), "weights"))
        reads, text = self.operands(bottoms)
        assert tops[0].diff is not None
        for bottom, wanted, sign in zip(bottoms, propagate, (1, -1)):
            if wanted:
                assert bottom.diff is not None
                slope = f"{text}; y0 = s * x{len(reads)} * {'x2 * ' if len(reads) > 2 else ''}fmin(fmax(d, -1), 1)"
                write = bottom.diff.view(reads[0].shape)
                pointwise(rec, slope, reads=[*reads, (tops[0].diff.view(()), 0)], writes=[write], scalars={"s": sign / self.divisor})

    def force_backward(self, bottom: int) -> bool:
        return bottom < 2


@register("BoxAnnotatorOHEM")
class BoxAnnotatorOHEM(WithoutGradient):
    """Labels and box weights of the roi_per_img regions with the largest losses in each image; other regions get ignore_label and weight 0.

    Bottoms: rois R x 5 (image, x1, y1, x2, y2; swapped corners are padding), the loss of each region (or two losses, which are added),
    labels, and weights R x C.
    """

    origin = "R-FCN, Intel Caffe"
    bottoms = (4, 5)
    tops = 2

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        rois, *singles, weights = bottoms
        check_rows(self, 0, rois, ROIS)
        self.positive(self.own(), {"roi_per_img": "the number of regions of an image that are trained (128 in R-FCN)"})
        for index, shape in enumerate(singles, 1):
            fact = f"bottom {index} is {shape_text(shape)}, bottom 0 is {shape_text(rois)}"
            self.check(shape[:1] == rois[:1] and math.prod(shape) == rois[0], fact, f"give it {rois[0]} values, one for each region of bottom 0")
        self.check(
            weights[:1] == rois[:1],
            f"the last bottom is {shape_text(weights)}, bottom 0 is {shape_text(rois)}",
            f"give it {rois[0]} rows of weights, one for each region",
        )
        return [(rois[0], 1, 1, 1), (rois[0], math.prod(weights[1:]), 1, 1)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, (regions, channels) = self.own(), tops[1].shape[:2]
        rois, first, *second, labels, weights = (bottom.data for bottom in bottoms)
        over(
            rec,
            ANNOTATE(
                rois=rois, first=first, second=second[0] if second else rec.constant("no_second_loss", np.zeros(regions, np.float32)), labels=labels,
                weights=weights, kept=tops[0].data, kept_weights=tops[1].data,
            ),
            (regions,), regions, channels, int(p.roi_per_img), float(p.ignore_label),
        )
