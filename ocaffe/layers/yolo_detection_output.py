"""YoloDetectionOutput: the detections of YOLOv2."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.yolo.yolo_detection import Grid, YoloDetection, below
from ocaffe.layers.base import register, stated
from ocaffe.layers.yolo import YoloOutputLayer, check_biases, check_grid, pairs


@register("YoloDetectionOutput")
class YoloDetectionOutput(YoloOutputLayer):
    """The detections of YOLOv2: the best class of each prediction, and non-maximum suppression over all classes.

    Each bottom has N x num_box (5 + num_classes) x H x W predictions; biases are the sides of the num_box anchors in cells, for each bottom. The score is
    the objectness times the softmax of the classes, at least confidence_threshold. Of two boxes with an overlap of at least nms_threshold, that with
    the lower score is dropped, whatever its class. Top 1 x 1 x n x 7: image, label from 1 on, score, xmin, ymin, xmax, ymax, by image and descending
    score. Images without detections have no row; if no image has a detection, each has one row: its number and then -1.

    Boxes are not clipped. side has no effect, and label_map_file is not read. Source: eric612/MobileNet-YOLO,
    src/caffe/layers/yolo_detection_output_layer.cpp at 092f8df. There, the boxes of all images of a batch suppress each other and get the number 0.
    """

    bottoms = (1, 2)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.check(
            p.HasField("num_classes"),
            "num_classes is missing",
            f"{self.written('num_classes: N')}, where N is the number of classes without a background",
        )
        self.check(p.coords == 4, stated(p, "coords"), "write coords: 4, the numbers of a box")
        check_biases(self, p.biases, p.num_box, f"num_box: {p.num_box}")
        self.check_thresholds(p.nms_threshold)
        for i, x in enumerate(bottoms):
            check_grid(self, i, x, p.num_box, p.num_classes, "num_box and num_classes")
            self.check(x[0] == bottoms[0][0], f"bottom 0 has {bottoms[0][0]} images, bottom {i} has {x[0]}", "give both the same batch size")
        grids = tuple(Grid(pairs(p.biases[: 2 * p.num_box], x[3], x[2]), x[2], x[3]) for x in bottoms)
        self.detection = YoloDetection(grids, p.num_classes, False, below(p.confidence_threshold), below(p.nms_threshold))
        return self.listed(bottoms[0][0])
