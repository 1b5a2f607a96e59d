"""Yolov3DetectionOutput: the detections of YOLOv3."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.yolo.yolo_detection import Grid, YoloDetection, below
from ocaffe.layers.base import register, stated, times
from ocaffe.layers.yolo import YoloOutputLayer, check_biases, check_grid


def _scale(index: int, bottoms: Sequence[Shape], scales: Sequence[int]) -> str:
    """Return the remedy for an anchors_scale of 0: the number that gives the image of another bottom."""
    rows = bottoms[index][2]
    for i, (x, scale) in enumerate(zip(bottoms, scales)):
        pixels = x[2] * scale
        if pixels and rows and pixels % rows == 0:
            return f"write anchors_scale: {pixels // rows} in its place: bottom {i} gives an image of {pixels} rows, bottom {index} has {rows} rows of cells"
    return f"write the pixels of a cell: the height of the image divided by {rows}"


@register("Yolov3DetectionOutput")
class Yolov3DetectionOutput(YoloOutputLayer):
    """The detections of YOLOv3, from several grids: the best class of each prediction, and non-maximum suppression over all classes.

    Bottom i has N x num_box (5 + num_classes) x H x W predictions, for the anchors in part i of mask, which has mask_group_num equal parts. biases are
    the sides of all anchors in pixels, and anchors_scale the pixels of a cell of each bottom. The score is the objectness times the sigmoid of the class,
    above confidence_threshold. Of two boxes with an overlap of at least nms_threshold, that with the lower score is dropped, whatever its class; so a
    prediction has one class at most. Top 1 x 1 x n x 7: image, label from 1 on, score, xmin, ymin, xmax, ymax, by image and descending score. Images
    without detections have no row; if no image has a detection, each has one row: its number and then -1.

    Boxes are not clipped. Source: eric612/MobileNet-YOLO, src/caffe/layers/yolov3_detection_output_layer.cpp at 846a4db. There, the boxes of all images
    of a batch suppress each other and get the number 0.
    """

    bottoms = (1, None)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.check(
            p.HasField("num_classes"),
            "num_classes is missing",
            f"{self.written('num_classes: N')}, where N is the number of classes without a background",
        )
        self.check_thresholds(p.nms_threshold)
        fact = f"{len(bottoms)} bottoms are given, and {stated(p, 'mask_group_num')}"
        self.check(len(bottoms) == p.mask_group_num, fact, f"write mask_group_num: {len(bottoms)}")
        fact = f"anchors_scale is given {times(len(p.anchors_scale))} for {len(bottoms)} bottoms"
        self.check(len(p.anchors_scale) == len(bottoms), fact, f"write anchors_scale {times(len(bottoms))}, one for each bottom")
        for i, x in enumerate(bottoms):
            self.check(
                len(x) == 4,
                f"bottom {i} is {shape_text(x)}, it must be N x C x H x W",
                f"give the output of a Convolution as bottom {i}",
            )
            self.check(p.anchors_scale[i] > 0, f"anchors_scale of bottom {i} is {p.anchors_scale[i]}", _scale(i, bottoms, p.anchors_scale))
        part = len(p.mask) // len(bottoms)
        needed = part * (len(bottoms) - 1) + p.num_box
        self.check(
            len(p.mask) >= needed,
            f"mask has {len(p.mask)} anchors, num_box is {p.num_box}, and {len(bottoms)} bottoms are given",
            f"write mask {times(p.num_box * len(bottoms))}: {p.num_box} anchors for each bottom",
        )
        check_biases(self, p.biases, max(p.mask) + 1, f"mask: {max(p.mask)}")
        grids = []
        for i, (x, scale) in enumerate(zip(bottoms, p.anchors_scale)):
            check_grid(self, i, x, p.num_box, p.num_classes, "num_box and num_classes")
            self.check(x[0] == bottoms[0][0], f"bottom 0 has {bottoms[0][0]} images, bottom {i} has {x[0]}", "give all the same batch size")
            own = p.mask[i * part : i * part + p.num_box]
            anchors = tuple((p.biases[2 * k] / (x[3] * scale), p.biases[2 * k + 1] / (x[2] * scale)) for k in own)
            grids.append(Grid(anchors, x[2], x[3]))
        self.detection = YoloDetection(tuple(grids), p.num_classes, True, float(p.confidence_threshold), below(p.nms_threshold))
        return self.listed(bottoms[0][0])
