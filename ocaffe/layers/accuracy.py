"""Accuracy."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape, split_axes
from ocaffe.kernels.loss.argmax import argmax
from ocaffe.kernels.loss.softmax import accuracy
from ocaffe.layers.base import Layer, register
from ocaffe.layers.loss import check_labels, ignored, is_soft


@register("Accuracy")
class Accuracy(Layer):
    """Fraction of labels (bottom 1) that are among the `top_k` highest scores (bottom 0); a second top has the accuracy of each class.

    Scores equal to the label's score count against it, as in Caffe. NaN scores also count against it, so that a diverged net does not look perfect.

    Bottom 1 may have the shape of bottom 0, with the probabilities of the classes (soft labels). Then the label is the most probable class, of equal
    ones the last.
    """

    bottoms = 2
    tops = (1, 2)
    has_backward = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        scores, labels = bottoms
        self.class_axis = self.axis(self.own().axis, scores)
        outer, classes, inner = split_axes(scores, self.class_axis)
        self.soft = is_soft(scores, labels, self.class_axis)
        if not self.soft:
            check_labels(self, scores, labels, outer * inner)
        self.check(1 <= self.own().top_k <= classes, f"top_k is {self.own().top_k}, there are {classes} classes", f"set top_k to a number from 1 to {classes}")
        return [(), (classes,)][: len(self.param.top)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        labels = bottoms[1].data
        if self.soft:
            shape, axis = bottoms[1].shape, self.class_axis
            labels = rec.scratch("labels", (*shape[:axis], 1, *shape[axis + 1 :]))
            argmax(rec, bottoms[1].data, labels, axis, 1, index_at=0, value_at=None)
        accuracy(
            rec,
            bottoms[0].data,
            labels,
            tops[0].data,
            tops[1].data if len(tops) > 1 else None,
            self.class_axis,
            ignore=ignored(self.own()),
            top_k=self.own().top_k,
        )
