"""AlignedBoxLoss: the loss of detectors without anchors."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe import proto
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.aligned import Aligned, Settings
from ocaffe.layers.base import register, stated
from ocaffe.layers.box_loss import BoxLoss
from ocaffe.layers.detection_output import check_predictions
from ocaffe.layers.loss import normalization, refuse_smoothing


@register("AlignedBoxLoss")
class AlignedBoxLoss(BoxLoss):
    """The loss of detectors without anchors: each true box trains the priors whose scores and boxes fit it best; their overlap is the target of the score.

    Its bottoms are those of MultiBoxLoss: locations N x 4P, scores N x P num_classes before their Sigmoid, priors 1 x 2 x 4P with one box of each cell,
    true boxes 1 x 1 x G x 8. The box of a cell is only the unit of its prediction: no overlap with it decides anything. DetectionOutput reads the same
    bottoms, with a Sigmoid of the scores.

    A prior whose centre lies in a true box has the alignment score ^ score_power x overlap ^ overlap_power, where score is that of the true class, and
    overlap is the intersection over union of the predicted box. The top_k priors with the largest alignments are trained. A true box that is narrower
    than a prior counts as wide as that. A prior of several true boxes belongs to the one that it overlaps most. The target of its score is its
    alignment divided by the largest one of that true box, times the largest overlap (Feng and others, TOOD, arXiv 2108.07755).

    Loss = (classes + loc_weight x boxes) / the sum of all targets, at least 1. Classes: the cross-entropy of each score, times |target - score| ^ gamma
    (Li and others, Generalized focal loss, arXiv 2006.04388). Boxes: 1 - CIoU, times the target (Zheng and others, arXiv 1911.08287). Targets and the
    weight of the aspect in CIoU have no gradient. The scores of the background are not trained. A true box of no class makes the loss NaN.
    """

    origin = "ocaffe"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        loc, conf, priors, truth = bottoms
        p = self.own()
        count = check_predictions(self, loc, conf, priors, p.num_classes, own_boxes=False)
        self.check_truth(truth)
        refuse_smoothing(self)
        mode = proto.LossParameter
        fact = "this loss is divided by the sum of its targets"
        self.check(normalization(self.param.loss_param, mode.VALID) == mode.VALID, fact, "remove normalization and normalize from loss_param")
        self.positive(p, {"top_k": "the most priors that a true box trains; 10 are usual"})
        for name in ("score_power", "overlap_power", "gamma", "loc_weight"):
            self.check(getattr(p, name) >= 0 and math.isfinite(getattr(p, name)), stated(p, name), f"set {name} to a number from 0 on, or remove it")
        self.labels = {3: LabelRange(self.title, p.num_classes, excluded=p.background_label_id)}
        settings = Settings(p.num_classes, p.background_label_id, p.code_type, p.score_power, p.overlap_power, p.gamma, p.loc_weight)
        self.kernels = Aligned(settings, count, min(p.top_k, count), p.use_difficult_gt)
        return [()]
