"""SoftmaxWithLoss."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape, split_axes
from ocaffe.kernels.expression.expression import reduce
from ocaffe.kernels.loss.softmax import soft_loss, soft_loss_backward, softmax_loss, softmax_loss_backward
from ocaffe.layers.base import Layer, LayerClass, register
from ocaffe.layers.loss import check_batch, check_labels, ignored, is_soft, label_bottom, label_smoothing, normalizer, segnet_default
from ocaffe.layers.probability_loss import NormalizedLoss, WeightedSoftmaxWithLoss


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(Layer):
    """Cross-entropy of the softmax of bottom 0 with the integer labels of bottom 1; a second top holds the probabilities.

    Only bottom 0 gets a gradient, and the diff of the probabilities is ignored, as in Caffe. With loss_param { label_smoothing: s }, the target of a
    position is 1 - s for its label, plus s spread evenly over all classes.

    Bottom 1 may also have the shape of bottom 0: then it holds the probabilities of the classes (soft labels, as mixup makes them), which sum to 1 at
    each position. The loss is the sum of -p log q, divided as otherwise. Caffe refuses this shape.

    A third top, of the shape of bottom 1, has the loss of each position before it is divided; its diff is ignored (R-FCN).
    """

    origin = "BVLC Caffe, R-FCN"
    bottoms = 2
    tops = (1, 3)
    is_loss = True
    message = "softmax_param"

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        """Return the weighted loss if weight_by_label_freqs is set, as in SegNet's fork, and the normalized loss for another normalize_type."""
        if param.softmax_param.normalize_type != "Softmax":
            return NormalizedLoss
        return WeightedSoftmaxWithLoss if param.loss_param.weight_by_label_freqs else cls

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        scores, labels = bottoms
        self.class_axis = self.axis(self.param.softmax_param.axis, scores)
        outer, _, inner = split_axes(scores, self.class_axis)
        check_batch(self, scores, labels)
        self.soft = is_soft(scores, labels, self.class_axis)
        self.smoothing = label_smoothing(self)
        self.ignore = ignored(self.param.loss_param)
        if self.soft:
            fact = f"ignore_label is {self.ignore[1]}, and bottom 1 is {shape_text(labels)}: probabilities of the classes"
            self.check(
                not self.ignore[0],
                fact,
                f"remove ignore_label, or give labels of {shape_text([*scores[: self.class_axis], *scores[self.class_axis + 1 :]])}, whole numbers",
            )
            fact = f"a third top is given, and bottom 1 is {shape_text(labels)}: probabilities of the classes"
            self.check(len(self.param.top) < 3, fact, "remove the third top, or give labels that are whole numbers")
        else:
            check_labels(self, scores, labels, outer * inner)
            self.labels = label_bottom(self, scores[self.class_axis])
        self.normalizer = normalizer(self, outer, inner, segnet_default(self))
        fact = "a third top and label_smoothing are given, which are of different forks"
        self.check(len(self.param.top) < 3 or not self.smoothing, fact, "remove the third top, or label_smoothing from loss_param")
        return [(), scores, labels][: max(1, len(self.param.top))]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        keep = rec.saved if rec.train else rec.scratch
        self.prob: Ref = tops[1].data if len(tops) > 1 else keep("prob", bottoms[0].shape)
        if self.soft:
            of = bottoms[0].data, bottoms[1].data, self.prob, tops[0].data
            soft_loss(rec, *of, self.class_axis, normalizer=self.normalizer, smoothing=self.smoothing)
            return
        self.sums = keep("sums", (2,))
        softmax_loss(
            rec,
            bottoms[0].data,
            bottoms[1].data,
            self.prob,
            self.sums,
            tops[0].data,
            self.class_axis,
            ignore=self.ignore,
            normalizer=self.normalizer,
            smoothing=self.smoothing,
        )
        if len(tops) > 2:
            self.each(rec, bottoms, tops[2].data)

    def each(self, rec: Recorder, bottoms: list[Blob], y: Ref) -> None:
        """Record the launch that writes the loss of each position to y."""
        outer, classes, inner = folded = split_axes(bottoms[0].shape, self.class_axis)
        numbers = rec.constant("classes", np.arange(classes, dtype=np.float32))
        has, ignored = self.ignore
        finish = f"y0 = {'trunc(x1) == ignored ? 0 : ' if has else ''}-log(v0 < FLT_MIN ? FLT_MIN : v0)"
        reduce(
            rec, "v0 = trunc(x1) == x2 ? x0 : 0", reads=[self.prob.view(folded), (bottoms[1].data.view((outer, 1, inner)), 0), (numbers, 1)],
            writes=[y.view((outer, inner))], axes=[1], finish=finish, scalars={"ignored": float(ignored)} if has else {},
        )  # fmt: skip

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "labels"})
        if not propagate[0]:
            return
        assert tops[0].diff is not None and bottoms[0].diff is not None
        if self.soft:
            to = self.prob, bottoms[1].data, tops[0].diff, bottoms[0].diff
            soft_loss_backward(rec, *to, self.class_axis, normalizer=self.normalizer, smoothing=self.smoothing)
            return
        softmax_loss_backward(
            rec,
            self.prob,
            bottoms[1].data,
            self.sums,
            tops[0].diff,
            bottoms[0].diff,
            self.class_axis,
            ignore=self.ignore,
            normalizer=self.normalizer,
            smoothing=self.smoothing,
        )
