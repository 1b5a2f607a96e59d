"""SegAccuracy: scores of a segmentation."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.loss.argmax import argmax
from ocaffe.layers.base import Layer, register


class Figures(NamedTuple):
    """Figures of a confusion matrix of pixels. `iou`: of each class, NaN if neither a label nor a prediction names it."""

    accuracy: float
    class_accuracy: float
    iou: np.ndarray

    @property
    def mean_iou(self) -> float:
        """The mean over the classes that occur; 0 if none does."""
        occurs = ~np.isnan(self.iou)
        return float(self.iou[occurs].mean()) if occurs.any() else 0.0


def figures(counts: np.ndarray) -> Figures:
    """Return the figures of `counts`: pixels by true class (rows) and predicted class. A share of nothing is 0."""
    right, true, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    union = true + predicted - right
    recall = right[true > 0] / true[true > 0]
    iou = np.divide(right, union, out=np.full(len(counts), np.nan), where=union > 0)
    return Figures(right.sum() / max(counts.sum(), 1), recall.mean() if len(recall) else 0.0, iou)


@register("SegAccuracy")
class SegAccuracy(Layer):
    """Share of right pixels, mean of this share over the classes, and mean intersection over union (IoU).

    Bottoms: scores N x C x H x W, labels N x 1 x H x W. With one channel, a score above 0.5 is class 1, else class 0 (PSPNet). The top has three
    values. The second is the mean over the classes with labels. The third is the mean over all classes; a class that is in neither labels nor
    predictions counts as 1, as in DeepLab. Of equal scores the last class wins. The figures are those of one batch; with `reset: false` they are those of
    all batches so far. `metric` has no effect, as in the forks. A label that is neither a class nor an ignore_label is an error. A pixel whose scores are
    NaN counts as wrong.

    The device waits while the host counts. Tests also print the mean IoU of all their batches (docs/solvers.md).
    """

    origin = "DeepLab, PSPNet"
    bottoms = 2
    has_backward = False
    inplace_top = False
    whole: np.ndarray  # the confusion matrix of all passes since `restart`
    counts: np.ndarray | None = None  # the confusion matrix of the top

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        scores, labels = ((*shape, 1, 1, 1)[:4] for shape in bottoms)  # as Caffe's num(), channels(), height() and width()
        self.check(
            max(map(len, bottoms)) <= 4 and labels == (scores[0], 1, *scores[2:]),
            f"the scores are {shape_text(bottoms[0])}, the labels {shape_text(bottoms[1])}",
            f"give labels of {shape_text((scores[0], 1, *scores[2:]))}; Interp or Crop gives both the same height and width",
        )
        self.scores = scores
        self.classes = max(2, scores[1])
        if self.counts is None:
            self.counts = np.zeros((self.classes, self.classes), np.int64)
            self.restart()
        return [(1, 1, 1, 3)]

    def restart(self) -> None:
        """Begin to count the passes of a test."""
        self.whole = np.zeros((self.classes, self.classes), np.int64)

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        scores, labels, output = bottoms[0].data, bottoms[1].data, tops[0].data
        predicted = rec.scratch("predicted", (self.scores[0], 1, *self.scores[2:]))
        if self.scores[1] == 1:
            pointwise(rec, "y0 = x0 > 0.5 ? 1 : 0", reads=[scores.view(predicted.shape)], writes=[predicted])
        else:
            argmax(rec, scores.view(self.scores), predicted, 1, 1, index_at=0, value_at=None)

        def run(commands: Any) -> None:
            commands.write(output, self.measured(*(commands.read(ref).reshape(-1).astype(np.int64) for ref in (labels, predicted))).reshape(output.shape))

        reads: list[Ref] = [labels, predicted]
        rec.host(run, reads=reads, writes=[output], what="SegAccuracy")

    def measured(self, labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Return the values of the top for the classes of all pixels, and count them."""
        p = self.own()
        kept = ~np.isin(labels, p.ignore_label)
        labels, predicted = labels[kept], predicted[kept]
        predicted = np.where(predicted < 0, (labels + 1) % self.classes, predicted)
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if len(wrong):
            fact = f"a label is {wrong[0]}, the scores have {self.classes} classes"
            raise self.error(fact, f"give labels from 0 to {self.classes - 1}, or write seg_accuracy_param {{ ignore_label: {wrong[0]} }}")
        counts = np.bincount(labels * self.classes + predicted, minlength=self.classes**2).reshape(self.classes, -1)
        assert self.counts is not None
        if not self.repeats:
            self.counts = counts if p.reset else self.counts + counts
            self.whole = self.whole + counts
        found = figures(self.counts)
        return np.array([found.accuracy, found.class_accuracy, np.nan_to_num(found.iou, nan=1.0).mean()], np.float32)
