"""EvalDetection: true and false positives of the detections of YOLOv2."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.yolo.yolo_detection import Grid, YoloDetection, below
from ocaffe.layers.base import Layer, register, stated
from ocaffe.layers.yolo import check_biases, check_grid, check_labels, pairs

LEAST = 0.005  # detections need a higher score, as in darknet


@register("EvalDetection")
class EvalDetection(Layer):
    """The detections of YOLOv2 compared with true boxes, for average precision: the numbers of true boxes, then four values for each detection.

    Bottom 0 has N x num_object (5 + num_class) x side x side predictions; biases are the sides of the anchors in cells. Bottom 1 has N x 1 x G x 5 boxes
    (class from 0 on, centre x, centre y, width, height; the first row with 0 ends the list), or the 1 x 1 x G x 8 rows of AnnotatedData with labels from
    1 on. A third bottom is not read.

    Top N x (num_class + 4 side side num_object). A row begins with the numbers of true boxes of the classes. Each detection follows with label (from 0
    on), score, true positive, false positive, by class and descending score; the rest are zeros. The score is that of score_type, above 0.005. A box is
    dropped if its overlap with a better one of any class is at least nms; below 0 all boxes are kept. A detection is compared with the true box of its
    class with the largest overlap. From threshold on it is a true positive, or a false one if a better detection has this box. Below threshold it is
    neither, as in the fork. A detection of a class without true boxes is a false positive.

    Source: choasup/caffe-yolo9000, src/caffe/layers/eval_detection_layer.cpp at e8a476c; MobileNet-YOLO's predecessor
    eric612/Caffe-YOLOv3-Windows has the same at 7b19988, for boxes N x 30 x 5. Both report no detection if nms is below 0, and have five anchors
    whatever num_object says; neither is kept. The layer of this name for YOLOv1 (yeahkun/caffe-yolo) is another one.
    """

    origin = "YOLOv2 (caffe-yolo9000)"
    bottoms = (2, 3)
    has_backward = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, label) = self.own(), bottoms[:2]
        first = p.side * p.side * (p.num_class + 5 * p.num_object)
        fact = f"bottom 0 is {shape_text(x)}: predictions of YOLOv1 (yeahkun/caffe-yolo), which are not supported"
        self.check(
            p.num_object == 1 or math.prod(x[1:]) != first,
            fact,
            f"give predictions of YOLOv2: N x {p.num_object * (5 + p.num_class)} x {p.side} x {p.side}",
        )
        check_grid(self, 0, x, p.num_object, p.num_class, "num_object and num_class")
        self.check(
            x[2:] == (p.side, p.side),
            f"bottom 0 is {shape_text(x)}, {stated(p, 'side')}",
            f"write side: {x[2]}" if x[2] == x[3] else "give a square image",
        )
        check_biases(self, p.biases, p.num_object, f"num_object: {p.num_object}")
        self.check(p.nms < 0 or 0 < p.nms <= 1, f"nms is {p.nms:g}", "set nms to an overlap above 0 and at most 1, or to -1 for no suppression")
        self.has_rows, self.most = check_labels(self, x, label, p.num_class)
        grid = Grid(pairs(p.biases[: 2 * p.num_object], p.side, p.side), p.side, p.side)
        self.detection = YoloDetection((grid,), p.num_class, False, LEAST, below(p.nms) if p.nms >= 0 else None, p.score_type)
        return [(x[0], p.num_class + 4 * grid.slots)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        found = self.detection.find(rec, [bottoms[0].data])
        found.evaluate(rec, bottoms[1].data, self.has_rows, self.most, float(self.own().threshold), tops[0].data)
