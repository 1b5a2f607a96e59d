"""Proposal: the boxes that a region proposal network predicts."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.kernel import JOIN, Kernel, reads, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.nms import rank, suppress
from ocaffe.kernels.detection.regions.anchors import over
from ocaffe.kernels.rearrange.copy import copy
from ocaffe.layers.anchors import ANCHORS, Configured, check_anchors, check_one_image, readers
from ocaffe.layers.base import register
from ocaffe.layers.detection_output import DetectionOutput, is_evaluated
from ocaffe.layers.proposal_target import ProposalTarget
from ocaffe.onnx.detection import propose
from ocaffe.onnx.graph import OnnxGraph

CANDIDATES = Kernel("proposal.candidates", *reads("x", "deltas", "info", "anchors"), *writes("boxes", "scores"), can=JOIN)
CHOSEN = Kernel("proposal.chosen", *reads("kept", "extent", "boxes", "scores"), *writes("rois", "values"), can=JOIN)

# py-faster-rcnn's settings. The defaults of proposal_param are those of the TEST phase.
DEFAULTS = {
    proto.TRAIN: ANCHORS | {"min_size": 16, "pre_nms_topn": 12000, "post_nms_topn": 2000, "nms_thresh": 0.7},
    proto.TEST: ANCHORS | {"min_size": 16, "pre_nms_topn": 6000, "post_nms_topn": 300, "nms_thresh": 0.7},
}


def skip_padding(rois: Blob) -> bool:
    """Return whether rows of padding have no effect on the net. Each number of rows would compile the net again."""
    found = list(readers(rois))
    if any(isinstance(node.layer, DetectionOutput) and is_evaluated(node.tops[0]) for node in found):
        return True
    return bool(found) and all(isinstance(node.layer, ProposalTarget) for node in found)


@register("Proposal")
class Proposal(Configured):
    """The boxes with the highest scores of a region proposal network after non-maximum suppression.

    The boxes are anchors moved by predicted deltas and clipped to the image. Boxes with a side below min_size pixels of the unscaled image are
    dropped. The settings are in proposal_param, or in param_str of the Python layer rpn.proposal_layer, which proposes more boxes in TRAIN.

    Bottoms: rpn_cls_prob_reshape 1 x 2A x H x W (background scores, then foreground scores), rpn_bbox_pred 1 x 4A x H x W, im_info (height, width,
    scale). Tops: rois n x 5 (image, x1, y1, x2, y2) by descending score, and optionally scores n x 1. n is at most post_nms_topn. Where ProposalTarget
    is the only reader, or the net ends with DetectionEvaluate, the tops have all possible rows, and the image is -1 in those without a proposal.
    """

    origin = "Faster R-CNN, R-FCN, OpenCV"
    message = "proposal_param"
    bottoms = 3
    tops = (1, 2)
    extent_axis = 0

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.settings = self.read_settings(DEFAULTS[self.phase])
        scores, deltas, info = bottoms
        check_anchors(self, p)
        check_one_image(self, scores, 2, info)
        self.anchors = self.cell_anchors(p)
        count = len(self.anchors)
        for index, (shape, values) in enumerate(((scores, 2 * count), (deltas, 4 * count))):
            wanted = (1, values, *scores[2:])
            fact = f"bottom {index} is {shape_text(shape)}, {count} anchors ({len(p.ratios)} ratios, {len(p.scales)} scales) need {shape_text(wanted)}"
            self.check(shape == wanted, fact, f"set num_output of the layer of bottom {index} to {values}, or correct ratios and scales")
        for name in ("pre_nms_topn", "post_nms_topn"):
            self.check(getattr(p, name) > 0, f"{name} is {getattr(p, name)}", f"set {name} to the number of boxes that are left, 1 or more")
        self.listed = min(int(p.pre_nms_topn), count * scores[2] * scores[3])
        self.most = min(int(p.post_nms_topn), self.listed)
        (rows,) = self.extent or (self.most,)
        return [(rows, 5), (rows, 1)][: max(1, len(self.param.top))]

    def measures(self, tops: Sequence[Blob]) -> bool:
        return not skip_padding(tops[0])

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, (scores, deltas, info) = self.settings, [bottom.data for bottom in bottoms]
        count = scores.count // 2
        boxes, values = rec.scratch("boxes", (1, count, 4)), rec.scratch("values", (1, count, 1))
        anchors = rec.constant("anchors", self.anchors)
        over(
            rec,
            CANDIDATES(x=scores, deltas=deltas, info=info, anchors=anchors, boxes=boxes, scores=values),
            (count,), count, *scores.shape[2:], float(p.feat_stride), float(p.min_size),
        )
        order, listed = rec.scratch("order", (1, 1, self.listed), np.int32), rec.scratch("listed", (1, 1), np.int32)
        kept, extent = rec.scratch("kept", (1, 1, self.most), np.int32), rec.scratch("extent", (1, 1), np.int32)
        rank(rec, values, order, listed)
        suppress(rec, boxes, order, listed, kept, extent, threshold=p.nms_thresh, most=self.most, pixels=True)
        found = [rec.scratch("rois", (self.most, 5)), rec.scratch("scores", (self.most, 1))]
        over(
            rec,
            CHOSEN(kept=kept, extent=extent, boxes=boxes, scores=values, rois=found[0], values=found[1]),
            (self.most,), self.most,
        )
        if self.measures(tops):
            rec.measure(self, extent)
        for some, top in zip(found, tops):
            copy(rec, some, top.data, 0, top.shape[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        propose(graph, self.settings, self.anchors, self.listed, self.most, bottoms, tops)
