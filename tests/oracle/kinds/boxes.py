"""Layers of detectors."""
from __future__ import annotations

from typing import Any

from tests.oracle.draft import Draft, kind

VARIANCES = (0.1, 0.1, 0.2, 0.2)


@kind("PriorBox")
def prior_box(net: Draft) -> None:
    least = [net.random.randint(2, 9) for _ in range(net.pick(1, 1, 2))]
    fields: dict[str, Any] = {"min_size": least}
    if net.chance(0.6):
        fields["max_size"] = [size + net.random.randint(1, 9) for size in least]
    fields |= net.some(0.5, flip=[True, False], clip=[True, False], variance=[[0.1], list(VARIANCES)], offset=[0.5, 0, 0.3])
    fields |= net.some(aspect_ratio=[[2], [2, 3], [0.5, 1.5, 1]])
    fields |= net.pick({}, {"img_h": 30, "img_w": 20}, {"img_size": 25}) | net.pick({}, {"step": 4}, {"step_h": 3, "step_w": 8.5})
    images = net.input((1, 3, net.random.randint(10, 40), net.random.randint(10, 40)))
    net.add("PriorBox", [net.blob(4), images], open=False, prior_box_param=fields)


@kind("DetectionOutput", weight=3)
def detection_output(net: Draft) -> None:
    priors, classes, images, shared = net.pick(1, 3, 8), net.pick(2, 3), net.pick(1, 2), net.chance(0.7)
    suppression = {"nms_threshold": net.pick(0.3, 0.45, 0.7), "top_k": net.pick(2, 5, 100)} | net.some(0.2, eta=[0.9])
    fields = {"num_classes": classes, "share_location": shared, "nms_param": suppression, "background_label_id": net.pick(0, 0, 1)}
    fields |= net.some(code_type=["CORNER", "CENTER_SIZE", "CORNER_SIZE"], keep_top_k=[-1, 3, 10], confidence_threshold=[0.01, 0.3, 0.5])
    fields |= net.some(0.3, variance_encoded_in_target=[True, False])
    location = net.input((images, priors * 4 * (1 if shared else classes)), ("normal", 0.5), "location")
    scores = net.input((images, priors * classes), ("distinct",), "scores")
    boxes = net.input((1, 2, 4 * priors), ("priors", *VARIANCES), "priors")
    (found,) = net.add("DetectionOutput", [location, scores, boxes], open=False, detection_output_param=fields)
    if net.chance(0.3):
        evaluate(net, found, images, classes)


@kind("DetectionEvaluate")
def detection_evaluate(net: Draft) -> None:
    images, classes = net.pick(1, 2), net.pick(2, 3)
    evaluate(net, net.input((1, 1, net.pick(1, 3, 6), 7), ("detections", images, classes), "found"), images, classes)


def evaluate(net: Draft, found: str, images: int, classes: int) -> None:
    truths = net.input((1, 1, net.pick(1, 3, 5), 8), ("truths", images, classes), "truths")
    fields = {"num_classes": classes, "background_label_id": 0} | net.some(overlap_threshold=[0.3, 0.5], evaluate_difficult_gt=[True, False])
    net.add("DetectionEvaluate", [found, truths], open=False, detection_evaluate_param=fields)


@kind("ROIPooling")
def roi_pooling(net: Draft) -> None:
    """As many regions as images: the vendor's layer computes no others (tables)."""
    name = net.blob(4)
    images = net.shapes[name][0]
    rois = net.input((images, 5, 1, 1), ("rois", images, 12), "rois")
    fields = {"pooled_h": net.random.randint(1, 4), "pooled_w": net.random.randint(1, 4)} | net.some(spatial_scale=[1, 0.5, 0.25, 0.0625])
    tops = net.add("ROIPooling", [name, rois], roi_pooling_param=fields)
    net.closed.update(tops)
    net.read.update(tops)  # double precision has no rule, and takes Caffe's values after the pass


def grid(net: Draft, boxes: int) -> tuple[int, int, int, int, str]:
    """The images, boxes of a cell, classes and side of a YOLO head, and a blob with true boxes."""
    images, classes, side = net.pick(1, 2), net.pick(1, 2, 3), net.pick(2, 3)
    return images, boxes, classes, side, net.input((1, 1, net.pick(1, 3, 4), 8), ("truths", images, classes + 1), "truths")


@kind("RegionLoss", weight=1)
def region_loss(net: Draft) -> None:
    images, boxes, classes, side, truths = grid(net, net.pick(1, 2, 5))
    fields = {"side": side, "num_class": classes, "num": boxes, "biases": [net.pick(0.5, 1, 2) for _ in range(2 * boxes)]}
    fields |= net.some(0.4, bias_match=[0, 1], rescore=[0, 1], thresh=[0.2, 0.6], object_scale=[1, 5])
    fields |= net.some(0.4, noobject_scale=[1, 0.5], class_scale=[1, 2], coord_scale=[1, 5])
    predictions = net.input((images, boxes * (5 + classes), side, side), ("normal", 1.0))
    net.add("RegionLoss", [predictions, truths], open=False, region_loss_param=fields)


@kind("EvalDetection", weight=1)
def eval_detection(net: Draft) -> None:
    images, boxes, classes, side, truths = grid(net, 5)  # the fork has five anchors, whatever num_object says
    fields = {"side": side, "num_class": classes, "num_object": boxes, "biases": [1] * (2 * boxes), "nms": net.pick(0.3, 0.5)}
    fields |= net.some(threshold=[0.3, 0.5], score_type=["OBJ", "MULTIPLY", "PROB"][: 2 + (classes > 1)])
    predictions = net.input((images, boxes * (5 + classes), side, side), ("normal", 1.0))  # no equal scores: the fork's sort is not stable
    net.add("EvalDetection", [predictions, truths], open=False, eval_detection_param=fields)
