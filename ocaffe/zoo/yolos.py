"""YOLOv3 detectors of the zoo: a net that computes two maps of features, and predictions for three anchors in each cell of both.

Layer names, anchors and settings of `mobilenet_yolov3_lite` are those of eric612/MobileNet-YOLO (models/yolov3 at 90c78bb), so that its weights load by
name. `yolo_shapes` is a small net of ocaffe for the scenes of `ocaffe dataset shapes`.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ocaffe.zoo.detectors import LEAST_SCORE, NMS, SHAPES, VOC, Data, annotated, mobilenet, separable, stages, unit
from ocaffe.zoo.net import XAVIER, Fields, Net

BOX = 5  # values of a prediction before the scores of classes: centre, sides, objectness
SIDES = ((10, 14), (23, 27), (37, 58), (81, 82), (135, 169), (344, 319))  # width and height in images of 416 pixels; those of YOLOv3-tiny
SHAPES_SIDES = ((10, 16), (15, 23), (22, 34), (30, 47), (42, 65), (60, 87))  # of such scenes in images of 128 pixels
IGNORED = 0.6  # overlap above which a prediction without an object of its own is not trained


class Grid(NamedTuple):
    """Predictions on one blob by the convolution `name`: pixels of a cell, and the numbers of the anchors."""

    source: str
    name: str
    cell: int
    mask: Sequence[int]


def predict(net: Net, grids: Sequence[Grid], sides: Sequence[tuple[int, int]], classes: int) -> None:
    """Add the predictions, their losses in TRAIN, and the detections in TEST. The classes are without the background."""
    biases = [side for pair in sides for side in pair]
    for number, (source, name, cell, mask) in enumerate(grids, 1):
        net.conv(name, source, len(mask) * (BOX + classes), kernel_size=1, pad=0, stride=1, weight=XAVIER, bias=0)
        if not net.deploy:
            loss: Fields = {
                "num_class": classes, "num": len(mask), "object_scale": 5, "noobject_scale": 1, "class_scale": 1, "coord_scale": 1, "thresh": IGNORED,
                "anchors_scale": cell, "use_logic_gradient": False, "biases": biases, "mask": list(mask),
            }  # fmt: skip
            net.layer("Yolov3", f"Yolov3Loss{number}", [name, "label"], f"det_loss{number}", include={"phase": "TRAIN"}, loss_weight=1, yolov3_param=loss)
    test: Fields = {} if net.deploy else {"include": {"phase": "TEST"}}
    output: Fields = {
        "num_classes": classes, "num_box": len(grids[0].mask), "confidence_threshold": LEAST_SCORE, "nms_threshold": NMS, "biases": biases,
        "anchors_scale": [grid.cell for grid in grids], "mask_group_num": len(grids), "mask": [anchor for grid in grids for anchor in grid.mask],
    }  # fmt: skip
    x = net.layer("Yolov3DetectionOutput", "detection_out", [grid.name for grid in grids], yolov3_detection_output_param=output, **test)
    if not net.deploy:
        evaluate: Fields = {"num_classes": classes + 1, "background_label_id": 0, "overlap_threshold": 0.5, "evaluate_difficult_gt": False}
        net.layer("DetectionEvaluate", "detection_eval", [x, "label"], detection_evaluate_param=evaluate, **test)


def mobilenet_yolov3_lite(net: Net) -> None:
    """MobileNet-YOLOv3-Lite of eric612, for images of 416 pixels. The fork trains with sizes of 320 to 608 pixels in turn."""
    data = Data(416, VOC, "trainval", "test", "data/VOC0712/labelmap_voc.prototxt", 7, 8, {"scale": 0.007843, "mean_value": [127.5, 127.5, 127.5]})
    x = separable(net, "conv15", mobilenet(net, annotated(net, data, yolo_data_type=1)), 1024, 1024)
    # each pixel four times, and a sum of two channels: zeros between the pixels, then the largest of 2 x 2
    kernel: Fields = {"num_output": 512, "group": 512, "kernel_size": 1, "stride": 2, "pad": 0, "bias_term": False}
    fixed: Fields = {} if net.deploy else {"param": {"lr_mult": 0, "decay_mult": 0}}
    filler: Fields = {} if net.deploy else {"weight_filler": {"type": "constant", "value": 1}}
    x = net.layer("Deconvolution", "upsample", x, **fixed, convolution_param={**kernel, **filler})
    x = net.pool("maxpool", x, "MAX", kernel_size=2, stride=1, pad=1)
    x = net.layer("Eltwise", "conv17/sum", [x, separable(net, "conv17", "conv11", 512, 512)])
    x = unit(net, "conv18_new", unit(net, "conv18/dw", x, 512, pad=1, kernel_size=3, group=512), 1024, kernel_size=1)
    predict(net, (Grid("conv15", "conv19", 32, (3, 4, 5)), Grid(x, "conv20", 16, (0, 1, 2))), SIDES, 20)


def yolo_shapes(net: Net) -> None:
    """A small YOLOv3 for images of 128 pixels: maps of 8 x 8 and 16 x 16. CPUs train it in minutes."""
    data = Data(128, SHAPES, "train", "val", "examples/shapes/labelmap_voc.prototxt", 32, 50, {"scale": 0.0078125, "mean_value": [128, 128, 128]})
    # windows that leave out at most a fifth of each side, in place of SSD's crops
    x = annotated(net, data, mirror=False, expand=1.25, batch_sampler=[], yolo_data_type=1, yolo_data_jitter=0.2, train_diffcult=True)
    stages(net, x, ((16, 1), (32, 1), (64, 2), (96, 2), (128, 2)))
    deep = unit(net, "conv6", "conv5_2", 128, pad=1, kernel_size=3)
    x = unit(net, "conv7", deep, 96, kernel_size=1)
    x = net.layer("Upsample", "upsample", x, upsample_param={"scale": 2})
    x = net.layer("Concat", "concat", [x, "conv4_2"])
    x = unit(net, "conv8", x, 96, pad=1, kernel_size=3)
    predict(net, (Grid(deep, "conv9", 16, (3, 4, 5)), Grid(x, "conv10", 8, (0, 1, 2))), SHAPES_SIDES, 10)
