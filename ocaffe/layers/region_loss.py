"""RegionLoss: the loss of YOLOv2."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.yolo.yolo_loss import Form, Settings, YoloLoss
from ocaffe.layers.base import register, stated
from ocaffe.layers.loss import refuse_smoothing
from ocaffe.layers.yolo import YoloLossLayer, check_biases, check_grid, check_labels, pairs

WARM_IMAGES = 12800  # darknet's number


@register("RegionLoss")
class RegionLoss(YoloLossLayer):
    """YOLOv2's loss: each true box trains the anchor of its cell with the most similar sides; the objectness of other predictions is trained to 0.

    Bottom 0 has N x num (5 + num_class) x H x W predictions; biases are the sides of the num anchors in cells. Bottom 1 has N x 1 x G x 5 boxes (class
    from 0 on, centre x, centre y, width, height; the first row with 0 ends the list), or the 1 x 1 x G x 8 rows of AnnotatedData with labels from 1 on.
    The two forks that define the layer differ, and the shape of bottom 1 selects the fork.

    Boxes N x 1 x G x 5 (MobileNet-YOLO): rescore makes the overlap the target of the objectness. Without bias_match, boxes are assigned by the predicted
    sides. In the TRAIN phase, while the iteration is below 12800 / N, predictions without a true box are drawn to their anchors.
    Rows of 8 (caffe-yolo9000): differences of centres and sides are limited to 1. That of the objectness has the factor 2 (1 - objectness)^2. rescore has
    no effect, the first iterations are like the others, and the loss is not divided by N.

    The loss is the sum of the squares of the gradients' terms (docs/quirks.md). side, softmax, jitter, absolute and random have no effect, as there.

    Source: eric612/MobileNet-YOLO, src/caffe/layers/region_loss_layer.cpp at 0229409; choasup/caffe-yolo9000, the same file at 03cf7cb.
    """

    origin = "YOLOv2 (MobileNet-YOLO, caffe-yolo9000)"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, label) = self.own(), bottoms
        refuse_smoothing(self)
        self.check(p.coords == 4, stated(p, "coords"), "write coords: 4, the numbers of a box")
        check_grid(self, 0, x, p.num, p.num_class, "num and num_class")
        check_biases(self, p.biases, p.num, f"num: {p.num}")
        for field in ("softmax_tree", "class_map"):
            self.check(not getattr(p, field), f"{field} (YOLO9000) is not supported", f"remove {field}, and give labels from 1 to {p.num_class}")
        has_rows, most = check_labels(self, x, label, p.num_class)
        form = Form.YOLO9000 if has_rows else Form.REGION
        warm = WARM_IMAGES // x[0] if form is Form.REGION and self.phase == proto.TRAIN else 0
        settings = Settings(
            form, p.num_class, p.thresh, p.object_scale, p.noobject_scale, p.class_scale, p.coord_scale,
            matches_predictions=not p.bias_match, rescores=bool(p.rescore), warm=warm,
        )  # fmt: skip
        anchors = pairs(p.biases[: 2 * p.num], x[3], x[2])
        self.loss = YoloLoss(settings, anchors, tuple(range(p.num)), has_rows, most, 1 if has_rows else x[0])
        return [()]
