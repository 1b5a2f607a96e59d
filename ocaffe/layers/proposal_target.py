"""ProposalTarget: the sample of proposals for training a detector."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.kernel import JOIN, Kernel, reads, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.regions.anchors import over
from ocaffe.layers.anchors import ROIS, TRUE_BOXES, Configured, check_rows, readers
from ocaffe.layers.base import register

MATCH = Kernel("proposal_target.match", *reads("rois", "truth", "step"), *writes("kinds", "matches", "tickets"), can=JOIN)
RESULTS = "chosen", "labels", "targets", "inside", "outside"
SAMPLED = Kernel("proposal_target.sampled", *reads("rois", "truth", "matches", "sources", "positives", "extent", "normal"), *writes(*RESULTS), can=JOIN)
RANK = Kernel("proposal_target.rank", *reads("kinds", "tickets"), *writes("sources", "extent", "positives"), can=JOIN)

DEFAULTS = {
    "num_classes": 0,
    "batch_size": 128,
    "fg_fraction": 0.25,
    "fg_thresh": 0.5,
    "bg_thresh_hi": 0.5,
    "bg_thresh_lo": 0.1,
    "bbox_normalize_means": [0.0, 0.0, 0.0, 0.0],
    "bbox_normalize_stds": [0.1, 0.1, 0.2, 0.2],
    "bbox_inside_weights": [1.0, 1.0, 1.0, 1.0],
    "agnostic": False,
}


def box_normal(means: Sequence[float], deviations: Sequence[float], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of the targets of all classes, from those of the four targets."""
    return np.tile(np.asarray(means, np.float32), classes), np.tile(np.asarray(deviations, np.float32), classes)


def skip_padding(rois: Blob, labels: Blob) -> bool:
    """Return whether inverted boxes have no effect, because BoxAnnotatorOHEM leaves them out. Each number of rows would compile the net again."""
    kinds = {node.type for node in readers(labels)}
    return "BoxAnnotatorOHEM" in kinds & {node.type for node in readers(rois)} and kinds <= {"BoxAnnotatorOHEM", "SoftmaxWithLossOHEM"}


@register("ProposalTarget")
class ProposalTarget(Configured):
    """A random sample of proposals and true boxes with labels and box targets, for training a detector.

    A candidate is foreground if its largest overlap with a true box is at least fg_thresh (0.5). It is background if this overlap is at least
    bg_thresh_lo (0.1) and below bg_thresh_hi (0.5). The sample has n = batch_size (128) rows, or fewer if there are too few candidates. At most
    fg_fraction of batch_size are foreground; they come first. batch_size -1 takes all candidates; where BoxAnnotatorOHEM chooses among them, the tops
    have all possible rows, and those without a candidate are inverted boxes. agnostic puts all targets into class 1 (R-FCN).
    The settings are in python_param { param_str }.

    Bottoms: rois R x 5 (image, x1, y1, x2, y2), gt_boxes G x 5 (x1, y1, x2, y2, label), which are candidates too. Tops with n rows each: rois, labels
    (0 for background), and bbox_targets, inside weights and outside weights with 4 num_classes columns. Rois of the image -1 and true boxes with a
    negative label are padding.
    """

    origin = "Faster R-CNN, R-FCN"
    message = ""
    bottoms = 2
    tops = 5

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.settings = self.read_settings(DEFAULTS)
        self.check(
            p.num_classes >= 2,
            f"num_classes is {p.num_classes}",
            "write 'num_classes': N in param_str, the number of classes, with the background among them",
        )
        self.check(
            p.batch_size > 0 or p.batch_size == -1,
            f"batch_size is {p.batch_size:g}",
            "set batch_size to the number of regions of a step, 1 or more (128 in Faster R-CNN), or to -1 for all",
        )
        self.check(0 <= p.fg_fraction <= 1, f"fg_fraction is {p.fg_fraction:g}", "set fg_fraction to a share of batch_size from 0 to 1 (0.25 in Faster R-CNN)")
        for name in ("bbox_normalize_means", "bbox_normalize_stds", "bbox_inside_weights"):
            self.check(
                len(getattr(p, name)) == 4,
                f"{name} has {len(getattr(p, name))} numbers: {getattr(p, name)}",
                f"give {name} 4 numbers, for x, y, width and height",
            )
        self.box_normal = box_normal(p.bbox_normalize_means, p.bbox_normalize_stds, 2 if p.agnostic else int(p.num_classes))
        check_rows(self, 0, bottoms[0], ROIS)
        check_rows(self, 1, bottoms[1], TRUE_BOXES)
        candidates = bottoms[0][0] + bottoms[1][0]
        self.most = candidates if p.batch_size == -1 else int(p.batch_size)
        self.most_positives = candidates if p.batch_size == -1 else int(np.rint(p.fg_fraction * p.batch_size))
        (count,) = self.extent or (min(self.most, candidates),)
        boxes = (count, 4 * int(p.num_classes))
        return [(count, 5), (count,), boxes, boxes, boxes]

    def measures(self, tops: Sequence[Blob]) -> bool:
        return not (self.settings.batch_size == -1 and skip_padding(tops[0], tops[1]))

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, rois, truth = self.settings, bottoms[0].data, bottoms[1].data
        regions, truths = rois.shape[0], truth.shape[0]
        count = regions + truths
        kinds, matches, sources, extent, positives = (
            rec.scratch(name, (size,), np.int32)
            for name, size in (("kinds", count), ("matches", count), ("sources", min(self.most, count)), ("extent", 1), ("positives", 1))
        )
        tickets = rec.scratch("tickets", (count,), np.uint32)
        limits = float(p.fg_thresh), float(p.bg_thresh_lo), float(p.bg_thresh_hi)
        over(
            rec,
            MATCH(rois=rois, truth=truth, step=rec.step, kinds=kinds, matches=matches, tickets=tickets),
            (count,), regions, truths, *limits, *rec.key("sample"),
        )
        over(rec, RANK(kinds=kinds, tickets=tickets, sources=sources, extent=extent, positives=positives), (count,), count, self.most_positives, self.most)
        if self.measures(tops):
            rec.measure(self, extent)
        normal = rec.constant("normal", np.array([p.bbox_normalize_means, p.bbox_normalize_stds, p.bbox_inside_weights], np.float32))
        rows, classes = tops[0].shape[0], int(p.num_classes)
        results = {name: top.data for name, top in zip(RESULTS, tops)}
        over(
            rec,
            SAMPLED(rois=rois, truth=truth, matches=matches, sources=sources, positives=positives, extent=extent, normal=normal, **results),
            (classes, rows), rows, classes, regions, p.agnostic,
        )
