"""Convert the predictions of YOLO to detections: decode, suppress, list, compare with true boxes (yolo_detection.cl, kernels/detection/nms.cl)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ocaffe.ir.kernel import JOIN, Kernel, modify, read, reads, write, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.detection.boxes import over
from ocaffe.kernels.detection.nms import rank, suppress
from ocaffe.kernels.detection.yolo.yolo_loss import list_boxes
from ocaffe.kernels.expression.expression import pointwise

DECODE = Kernel("yolo_detection.decode", *reads("x", "anchors"), *writes("boxes", "scores", "labels"))
ROWS = Kernel("yolo_detection.rows", *reads("boxes", "scores", "labels", "kept", "offsets"), write("y"))
EVALUATE = Kernel("yolo_detection.evaluate", *reads("boxes", "scores", "labels", "kept", "kept_counts", "truth", "counts"), write("used"), modify("y"))

OFFSETS = Kernel("detection.offsets", read("counts"), write("offsets"), write("extent"), can=JOIN)

PRODUCT = 2  # EvalDetectionParameter.ScoreType: objectness times probability


def below(value: float) -> float:
    """Return the next smaller float32: x >= value if and only if x > below(value)."""
    return float(np.nextafter(np.float32(value), np.float32(-np.inf)))


@dataclass(frozen=True)
class Grid:
    """The predictions of one bottom: anchors (sides relative to the image) of each of height x width cells."""

    anchors: tuple[tuple[float, float], ...]
    height: int
    width: int

    @property
    def slots(self) -> int:
        return len(self.anchors) * self.height * self.width


@dataclass(frozen=True)
class YoloDetection:
    """Settings. Each slot (an anchor of a cell) gives one candidate, of its best class; suppression ignores the class.

    independent: the probability of a class is a sigmoid, not by a softmax. threshold: candidates have a higher score. nms_threshold: candidates whose
    overlap with a better one is higher are dropped; None drops none. score: EvalDetectionParameter.ScoreType.
    """

    grids: tuple[Grid, ...]
    classes: int
    independent: bool
    threshold: float
    nms_threshold: float | None
    score: int = PRODUCT

    @property
    def slots(self) -> int:
        return sum(grid.slots for grid in self.grids)

    def find(self, rec: Recorder, bottoms: Sequence[Ref]) -> FoundBoxes:
        """Record the launches that find the detections of each image, by descending score."""
        images, slots = bottoms[0].shape[0], self.slots
        boxes, scores = rec.scratch("boxes", (images, slots, 4)), rec.scratch("scores", (images, slots, 1))
        labels = rec.scratch("labels", (images, slots), np.int32)
        first = 0
        for number, (x, grid) in enumerate(zip(bottoms, self.grids)):
            anchors = rec.constant(f"anchors{number}", np.array(grid.anchors, np.float32))
            args = (first, self.classes, grid.width, grid.height, self.independent, self.score)
            kernel = DECODE.adding("boxes", "scores", "labels") if number else DECODE
            over(rec, kernel(x=x, anchors=anchors, boxes=boxes, scores=scores, labels=labels), (grid.slots, images), *args)
            first += grid.slots
        order, counts = rec.scratch("order", (images, 1, slots), np.int32), rec.scratch("counts", (images, 1), np.int32)
        rank(rec, scores, order, counts, threshold=self.threshold)
        kept, kept_counts = order, counts
        if self.nms_threshold is not None:
            kept, kept_counts = rec.scratch("kept", order.shape, np.int32), rec.scratch("kept_counts", counts.shape, np.int32)
            suppress(rec, boxes, order, counts, kept, kept_counts, threshold=self.nms_threshold)
        return FoundBoxes(self, boxes, scores, labels, kept, kept_counts)


@dataclass(frozen=True)
class FoundBoxes:
    """The detections, on the device."""

    detection: YoloDetection
    boxes: Ref
    scores: Ref
    labels: Ref
    kept: Ref
    counts: Ref

    def offsets(self, rec: Recorder) -> tuple[Ref, Ref]:
        """Return where the rows of each image begin, and (1) the number of rows: at least one, an image each if there are no detections."""
        images = self.counts.shape[0]
        offsets, extent = rec.scratch("offsets", (images + 1,), np.int32), rec.scratch("extent", (1,), np.int32)
        rec.launch(OFFSETS(counts=self.counts, offsets=offsets, extent=extent), args=[images], size=(1,), local=(1,))
        return offsets, extent

    def rows(self, rec: Recorder, offsets: Ref, y: Ref) -> None:
        """y (rows x 7) = image, label from 1 on, score, xmin, ymin, xmax, ymax."""
        over(rec, ROWS(boxes=self.boxes, scores=self.scores, labels=self.labels, kept=self.kept, offsets=offsets, y=y), (y.shape[0],), self.counts.shape[0])

    def evaluate(self, rec: Recorder, label: Ref, has_rows: bool, most: int, threshold: float, y: Ref) -> None:
        """y (N x (classes + 4 slots)) = true boxes of each class; then label, score, true positive, false positive of each detection."""
        images, classes = self.counts.shape[0], self.detection.classes
        truth, counts, _ = list_boxes(rec, label, images, has_rows, most, classes)
        used = rec.scratch("used", (images, max(most, 1)), np.int32)
        pointwise(rec, "y0 = 0", writes=[y])
        over(
            rec,
            EVALUATE(
                boxes=self.boxes, scores=self.scores, labels=self.labels, kept=self.kept, kept_counts=self.counts, truth=truth, counts=counts,
                used=used, y=y,
            ),
            (classes, images), threshold,
        )
