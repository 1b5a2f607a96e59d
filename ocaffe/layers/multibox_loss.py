"""MultiBoxLoss."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.multibox import HARD_EXAMPLE, MAX_NEGATIVE, NO_MINING, MultiBox, Settings, Suppression
from ocaffe.layers.base import register, stated
from ocaffe.layers.box_loss import BoxLoss
from ocaffe.layers.detection_output import check_predictions
from ocaffe.layers.loss import COUNTED, normalization, refuse_smoothing

MINING = "write mining_type: NONE; or share_location: true, with num_output of the location layers divided by num_classes"


@register("MultiBoxLoss")
class MultiBoxLoss(BoxLoss):
    """SSD's loss: locations and classes of the priors matched with true boxes, and the background class of mined unmatched priors.

    loss = (loc_weight * location loss + confidence loss) / normalizer. The normalizer is the number of matches by default. A term is omitted if its
    bottom has propagate_down: false. A true box whose label is the background or no class makes the loss NaN.

    Bottoms: locations N x 4P (N x 4P num_classes without share_location), confidences N x P num_classes, priors 1 x 2 x 4P, and true boxes
    1 x 1 x G x 8 (image, label, instance, xmin, ymin, xmax, ymax, difficult). True boxes of image -1 are skipped.
    """

    origin = "SSD"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        loc, conf, priors, truth = bottoms
        p = self.own()
        count = check_predictions(self, loc, conf, priors, p.num_classes, not p.share_location)
        self.check_truth(truth)
        self._check_mining()
        self.labels = {3: LabelRange(self.title, 1 << 31 if p.map_object_to_agnostic else p.num_classes, excluded=p.background_label_id)}
        if p.map_object_to_agnostic:
            self.check(
                p.num_classes == 2,
                f"map_object_to_agnostic is true, and num_classes is {p.num_classes}",
                "write num_classes: 2, for background and object, or remove map_object_to_agnostic",
            )
        mode = proto.LossParameter
        divisors = {mode.FULL: loc[0] * count, mode.VALID: COUNTED, mode.BATCH_SIZE: loc[0], mode.NONE: 1}
        refuse_smoothing(self)
        chosen = normalization(self.param.loss_param, mode.VALID)
        weight = (*self.param.loss_weight, 1.0)[0] / (self.param.loss_param.pre_fixed_normalizer or 1)
        self.check(
            chosen in divisors,
            "normalization: PRE_FIXED is not supported by MultiBoxLoss",
            f"write normalization: NONE without pre_fixed_normalizer, and loss_weight: {weight:g} "
            "in the layer, which divides the loss as much",
        )
        counts = list(self.param.propagate_down[:2]) or [True, True]
        settings = Settings(
            p.num_classes, p.share_location, p.use_prior_for_matching, p.background_label_id, p.use_difficult_gt, p.ignore_cross_boundary_bbox,
            p.match_type == p.PER_PREDICTION, p.overlap_threshold, p.code_type, p.encode_variance_in_target, p.mining_type, p.neg_pos_ratio, p.neg_overlap,
            p.sample_size, p.map_object_to_agnostic, p.bp_inside, p.loc_loss_type == p.L2, p.conf_loss_type == p.LOGISTIC, p.loc_weight,
            divisors[chosen], *counts,
        )  # fmt: skip
        # If nms_param has no top_k, SSD uses 0, not all.
        nms = Suppression(p.nms_param.nms_threshold, p.nms_param.top_k, p.use_prior_for_nms) if p.HasField("nms_param") else None
        self.kernels = MultiBox(settings, count, nms if nms is not None and nms.threshold > 0 else None)
        return [()]

    def _check_mining(self) -> None:
        p = self.own()
        assert (p.NONE, p.MAX_NEGATIVE, p.HARD_EXAMPLE) == (NO_MINING, MAX_NEGATIVE, HARD_EXAMPLE)
        mines = p.mining_type != NO_MINING
        if p.HasField("do_neg_mining"):
            fact = f"do_neg_mining is {str(p.do_neg_mining).lower()}, and {stated(p, 'mining_type')}"
            self.check(
                p.do_neg_mining == mines,
                fact,
                f"write mining_type: {'NONE' if mines else 'MAX_NEGATIVE'}, or remove do_neg_mining",
            )
        self.check(not mines or p.share_location, f"{stated(p, 'mining_type')}, but share_location is false", MINING)
        self.check(
            p.mining_type != HARD_EXAMPLE or p.sample_size > 0,
            f"mining_type is HARD_EXAMPLE, and {stated(p, 'sample_size')}",
            "set sample_size to the number of priors of an image that are trained, 1 or more",
        )
