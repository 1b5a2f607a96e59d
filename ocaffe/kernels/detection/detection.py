"""Convert the predictions of a detector to a list of detections: decode, suppress, select (detection.cl, region_boxes.cl, nms.cl)."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ocaffe.ir.kernel import JOIN, Kernel, read, reads, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.detection.boxes import over
from ocaffe.kernels.detection.nms import ALL, rank, suppress
from ocaffe.kernels.expression.expression import pointwise

DECODE = Kernel("detection.decode", read("loc"), read("priors"), write("boxes"), can=JOIN)
MOVED = Kernel("region_boxes.moved", read("loc"), read("rois"), read("info"), write("boxes"))
SCORES = Kernel("detection.scores", read("conf"), read("kept"), read("counts"), write("scores"), can=JOIN)

ROWS = Kernel("detection.rows", *reads("conf", "boxes", "kept", "chosen", "offsets"), write("y"), can=JOIN)
OFFSETS = Kernel("detection.offsets", read("counts"), write("offsets"), write("extent"), can=JOIN)

NOTHING = float("inf")  # a threshold that no score exceeds


@dataclass(frozen=True)
class Detection:
    """Settings for images with `priors` priors and `classes` classes. The fields are SSD's (DetectionOutputParameter)."""

    priors: int
    classes: int
    own_boxes: bool  # each class has separate boxes (not share_location)
    background: int  # the class that is not reported
    threshold: float  # a detection needs a higher score
    top_k: int | None  # number of best boxes per class that enter suppression
    nms_threshold: float
    eta: float
    keep_top_k: int | None  # number of best boxes per image that are reported
    code: int
    variance_in_target: bool
    size: tuple[int, int] = (1, 1)  # width and height in the unit of the priors

    @property
    def listed(self) -> int:
        """Entries per class, at least one even if top_k is 0."""
        return max(1, self.priors if self.top_k is None else min(self.top_k, self.priors))

    @property
    def most(self) -> int:
        """Maximum number of rows per image."""
        room = self.classes * self.listed
        return max(1, room if self.keep_top_k is None else min(self.keep_top_k, room))

    @property
    def classes_with_boxes(self) -> int:
        return self.classes if self.own_boxes else 1

    @property
    def units(self) -> np.ndarray:
        """The divisors of the priors and of their variances, 2 x 1 x 4."""
        return np.array([[self.size * 2], [(1,) * 4]], np.float32)

    def find(self, rec: Recorder, loc: Ref, conf: Ref, priors: Ref) -> Found:
        """Record all launches up to the computation of the number of rows."""
        images, own = conf.shape[0], self.classes_with_boxes
        boxes = rec.scratch("boxes", (images, self.priors, own, 4))
        if self.size != (1, 1):
            relative, units = rec.scratch("priors", (2, self.priors, 4)), rec.constant("units", self.units)
            pointwise(rec, "y0 = x0 / x1", reads=[priors.view(relative.shape), (units, 0)], writes=[relative])
            priors = relative.view(priors.shape)
        over(rec, DECODE(loc=loc, priors=priors, boxes=boxes), (self.priors * own, images), own, self.code, self.variance_in_target)
        return self._chosen(rec, conf, boxes)

    def find_in_regions(self, rec: Recorder, loc: Ref, conf: Ref, rois: Ref, info: Ref) -> Found:
        """The same for the regions of one image. loc: R x columns, conf: R x classes, rois: R x 5, info: height and width of the image."""
        boxes = rec.scratch("boxes", (1, self.priors, self.classes_with_boxes, 4))
        over(rec, MOVED(loc=loc, rois=rois, info=info, boxes=boxes), (boxes.count // 4,), self.classes_with_boxes, loc.count // self.priors)
        return self._chosen(rec, conf.view((1, conf.count)), boxes)

    def _chosen(self, rec: Recorder, conf: Ref, boxes: Ref) -> Found:
        """Record the launches that select among all boxes."""
        images = conf.shape[0]
        lists, classes = (images, self.classes, self.listed), (images, self.classes)
        order, kept = (rec.scratch(name, lists, np.int32) for name in ("order", "kept"))
        counts, kept_counts = (rec.scratch(name, classes, np.int32) for name in ("counts", "kept_counts"))
        scores = conf.view((images, self.priors, self.classes))
        rank(rec, scores, order, counts, threshold=NOTHING if self.top_k == 0 else self.threshold, skipped=self.background)
        shaped = boxes if self.own_boxes else boxes.view((images, self.priors, 4))
        suppress(rec, shaped, order, counts, kept, kept_counts, threshold=self.nms_threshold, eta=self.eta)
        # Select the best boxes of an image over all classes. The lists are already ordered by class and descending score.
        room = self.classes * self.listed
        best = rec.scratch("best", (images, room, 1))
        over(rec, SCORES(conf=conf, kept=kept, counts=kept_counts, scores=best), (room, images), self.classes, self.listed)
        chosen, numbers = rec.scratch("chosen", (images, 1, self.most), np.int32), rec.scratch("numbers", (images, 1), np.int32)
        rank(rec, best, chosen, numbers, threshold=NOTHING if self.keep_top_k == 0 else ALL, sort=False)
        offsets, extent = rec.scratch("offsets", (images + 1,), np.int32), rec.scratch("extent", (1,), np.int32)
        rec.launch(OFFSETS(counts=numbers, offsets=offsets, extent=extent), args=[images], size=(1,), local=(1,))
        return Found(self, conf, boxes, kept, chosen, offsets, extent)


@dataclass(frozen=True)
class Found:
    """The detections, on the device. `extent` (1) is the number of rows."""

    detection: Detection
    conf: Ref
    boxes: Ref
    kept: Ref
    chosen: Ref
    offsets: Ref
    extent: Ref

    def rows(self, rec: Recorder, y: Ref) -> None:
        """y (rows x 7) = image, label, score, xmin, ymin, xmax, ymax.

        If there are no detections at all, each image has one row with -1 in all columns but the first.
        """
        d, conf = self.detection, self.conf
        over(
            rec,
            ROWS(conf=conf, boxes=self.boxes, kept=self.kept, chosen=self.chosen, offsets=self.offsets, y=y),
            (y.shape[0],), conf.shape[0], d.classes, d.classes_with_boxes, d.listed,
        )
