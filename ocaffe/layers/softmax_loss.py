"""SoftmaxWithLoss."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape, split_axes
from ocaffe.layers.base import Layer, LayerClass, register
from ocaffe.layers.loss import check_batch, check_labels, ignored, label_bottom, label_smoothing, normalizer, segnet_default
from ocaffe.layers.probability_loss import WeightedSoftmaxWithLoss
from ocaffe.ops.softmax import softmax_loss, softmax_loss_backward


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(Layer):
    """Cross-entropy of the softmax of bottom 0 with the integer labels of bottom 1; a second top holds the probabilities.

    Only bottom 0 gets a gradient, and the diff of the probabilities is ignored, as in Caffe. With loss_param { label_smoothing: s }, the target of a
    position is 1 - s for its label, plus s spread evenly over all classes.
    """

    bottoms = 2
    tops = (1, 2)
    is_loss = True
    message = "softmax_param"

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        """Return the weighted loss if weight_by_label_freqs is set, as in SegNet's fork."""
        return WeightedSoftmaxWithLoss if param.loss_param.weight_by_label_freqs else cls

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        scores, labels = bottoms
        self.class_axis = self.axis(self.param.softmax_param.axis, scores)
        outer, _, inner = split_axes(scores, self.class_axis)
        check_batch(self, scores, labels)
        check_labels(self, scores, labels, outer * inner)
        self.smoothing = label_smoothing(self)
        self.ignore = ignored(self.param.loss_param)
        self.labels = label_bottom(self, scores[self.class_axis])
        self.normalizer = normalizer(self, outer, inner, segnet_default(self))
        return [(), scores][: max(1, len(self.param.top))]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        keep = rec.saved if rec.train else rec.scratch
        self.prob: Ref = tops[1].data if len(tops) > 1 else keep("prob", bottoms[0].shape)
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

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.check(not propagate[1], "there is no gradient for labels", "propagate_down: true  propagate_down: false")
        if not propagate[0]:
            return
        assert tops[0].diff is not None and bottoms[0].diff is not None
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
