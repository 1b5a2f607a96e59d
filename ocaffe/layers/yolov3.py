"""Yolov3: the loss of YOLOv3."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.yolo.yolo_loss import MSE, Form, Settings, YoloLoss
from ocaffe.layers.base import register, stated, times
from ocaffe.layers.loss import refuse_smoothing
from ocaffe.layers.yolo import YoloLossLayer, check_biases, check_grid, check_labels, pairs


@register("Yolov3")
class Yolov3(YoloLossLayer):
    """YOLOv3's loss on one grid: true boxes train the anchor with the most similar sides if `mask` names it; other objectness is trained to 0.

    Bottom 0 has N x num (5 + num_class) x H x W predictions for the num anchors of `mask`. biases are the sides of all anchors, in pixels of an image of
    anchors_scale W x anchors_scale H. Bottom 1 has N x 1 x G x 5 boxes (class from 0 on, centre x, centre y, width, height; the first row with 0 ends the
    list), or the 1 x 1 x G x 8 rows of AnnotatedData with labels from 1 on. Boxes that share an anchor of a cell add their classes; the last one has the
    location. A class that does not exist makes the loss NaN.

    iou_loss: MSE (default) trains centres and logarithms of sides; IOU and GIOU train the overlap, with the weight iou_normalizer (0.25). The newest
    version of the fork has the default GIOU, the versions before have MSE alone. The loss is the sum of the squares of the gradients' terms, and for IOU
    and GIOU of 1 - GIOU (docs/quirks.md). With use_logic_gradient, gradients include the derivative of the sigmoid, and object_scale counts.
    side and noobject_scale have no effect, as in the fork.

    Source: eric612/MobileNet-YOLO, src/caffe/layers/yolov3_layer.cpp at 69262dc. Two mistakes of IOU and GIOU are not kept. Where
    boxes do not overlap, the fork multiplies negative sides. With use_logic_gradient, it takes the derivative of the sigmoid at the wrong value.
    """

    origin = "MobileNet-YOLO"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, label) = self.own(), bottoms
        refuse_smoothing(self)
        check_grid(self, 0, x, p.num, p.num_class, "num and num_class")
        self.check(p.anchors_scale > 0, stated(p, "anchors_scale"), f"set anchors_scale to the pixels of a cell: the height of the image divided by {x[2]}")
        self.check(len(p.mask) >= p.num, f"mask has {len(p.mask)} anchors, num is {p.num}", f"write mask {times(p.num)}: the anchors of this layer")
        mask = tuple(p.mask[: p.num])
        check_biases(self, p.biases, max(mask) + 1, f"mask: {max(mask)}")
        has_rows, most = check_labels(self, x, label, p.num_class)
        settings = Settings(
            Form.YOLOV3, p.num_class, p.thresh, p.object_scale, p.noobject_scale, p.class_scale, p.coord_scale, logic_gradient=p.use_logic_gradient,
            focal=p.use_focal_loss, iou_loss=p.iou_loss if p.HasField("iou_loss") else MSE, iou_scale=p.iou_normalizer,
        )  # fmt: skip
        self.loss = YoloLoss(settings, pairs(p.biases, x[3] * p.anchors_scale, x[2] * p.anchors_scale), mask, has_rows, most, x[0])
        return [()]
