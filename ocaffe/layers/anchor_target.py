"""AnchorTarget: the training targets of a region proposal network."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.kernel import Kernel, read, reads, write, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.regions.anchors import over, thin
from ocaffe.kernels.expression.expression import reduce
from ocaffe.layers.anchors import ANCHORS, TRUE_BOXES, Configured, check_anchors, check_one_image, check_rows
from ocaffe.layers.base import register

OVERLAPS = Kernel("anchor_target.overlaps", read("anchors"), read("truth"), read("info"), write("overlaps"))
LABEL = Kernel("anchor_target.label", *reads("anchors", "info", "overlaps", "best", "step"), *writes("labels", "matches", "tickets"))
TARGETS = Kernel("anchor_target.targets", *reads("anchors", "truth", "matches", "labels", "counts"), *writes("targets", "inside", "outside"))

MAX_ANCHORS = 1 << 24  # PLACED in anchor_target.cl
DEFAULTS = ANCHORS | {
    "allowed_border": 0,
    "positive_overlap": 0.7,
    "negative_overlap": 0.3,
    "clobber_positives": False,
    "fg_fraction": 0.5,
    "batch_size": 256,
    "positive_weight": -1.0,
    "bbox_inside_weights": [1.0, 1.0, 1.0, 1.0],
}


@register("AnchorTarget")
class AnchorTarget(Configured):
    """Labels and box targets for the anchors of a region proposal network.

    An anchor is positive (1) if its overlap with a true box is at least positive_overlap (0.7), or is the largest overlap that this box has.
    It is negative (0) if its largest overlap is below negative_overlap (0.3). Other anchors, and anchors outside the image, have label -1.
    At most batch_size labels, and fg_fraction * batch_size positive ones, are kept; the others are chosen at random and set to -1. If no anchor
    overlaps a true box, all anchors inside the image become positive, as in py-faster-rcnn. The settings are in python_param { param_str }.

    Bottoms: rpn_cls_score 1 x 2A x H x W (only its size is used), gt_boxes G x 5 (x1, y1, x2, y2, label; negative labels are padding), im_info,
    and optionally the data. Tops: labels 1 x 1 x AH x W, then bbox_targets, inside weights and outside weights, each 1 x 4A x H x W.
    """

    origin = "Faster R-CNN, R-FCN"
    message = ""
    bottoms = (3, 4)
    tops = 4

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.settings = self.read_settings(DEFAULTS)
        check_anchors(self, p)
        check_one_image(self, bottoms[0], 2, bottoms[2])
        check_rows(self, 1, bottoms[1], TRUE_BOXES)
        self.check(p.batch_size > 0, f"batch_size is {p.batch_size:g}", "set batch_size to the number of anchors of a step, 1 or more (256 in Faster R-CNN)")
        self.check(0 <= p.fg_fraction <= 1, f"fg_fraction is {p.fg_fraction:g}", "set fg_fraction to a share of batch_size from 0 to 1 (0.5 in Faster R-CNN)")
        self.check(
            p.positive_weight < 1,
            f"positive_weight is {p.positive_weight}",
            "set positive_weight to a number above 0 and below 1, or to -1 for equal weights",
        )
        self.check(
            len(p.bbox_inside_weights) == 4,
            f"bbox_inside_weights has {len(p.bbox_inside_weights)} numbers: {p.bbox_inside_weights}",
            "give bbox_inside_weights 4 numbers, for x, y, width and height",
        )
        self.anchors = self.cell_anchors(p)
        height, width = bottoms[0][2:]
        count = len(self.anchors) * height * width
        self.check(count < MAX_ANCHORS, f"bottom 0 ({shape_text(bottoms[0])}) has {count:,} anchors, at most {MAX_ANCHORS - 1:,} are possible",
                   "scale the images to fewer pixels in the data layer, or list fewer ratios and scales")  # fmt: skip
        boxes = (1, 4 * len(self.anchors), height, width)
        return [(1, 1, len(self.anchors) * height, width), boxes, boxes, boxes]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, (scores, truth, info) = self.settings, [bottom.data for bottom in bottoms[:3]]
        labels, targets, inside, outside = (top.data for top in tops)
        count, truths = labels.count, truth.shape[0]
        grid = (count, *scores.shape[2:], float(p.feat_stride))
        anchors = rec.constant("anchors", self.anchors)
        overlaps, best = rec.scratch("overlaps", (truths, count)), rec.scratch("best", (truths,))
        over(rec, OVERLAPS(anchors=anchors, truth=truth, info=info, overlaps=overlaps), (count, truths), *grid, float(p.allowed_border))
        reduce(rec, "v0 = x0", reads=[overlaps], writes=[best], axes=[1], op="max")
        matches, tickets, counts = rec.scratch("matches", (count,), "int32"), rec.scratch("tickets", (count,), "uint32"), rec.scratch("counts", (2,), "int32")
        limits = float(p.allowed_border), truths, float(p.positive_overlap), float(p.negative_overlap), p.clobber_positives
        over(
            rec,
            LABEL(anchors=anchors, info=info, overlaps=overlaps, best=best, step=rec.step, labels=labels, matches=matches, tickets=tickets),
            (count,), *grid, *limits, *rec.key("sample"),
        )
        thin(rec, tickets, counts, labels, math.floor(p.fg_fraction * p.batch_size), int(p.batch_size))
        weights = float(p.positive_weight), *map(float, p.bbox_inside_weights)
        over(
            rec,
            TARGETS(anchors=anchors, truth=truth, matches=matches, labels=labels, counts=counts, targets=targets, inside=inside, outside=outside),
            (count,), *grid, *weights,
        )
