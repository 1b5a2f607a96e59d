"""DetectionOutput."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.detection import Detection
from ocaffe.kernels.detection.nms import ALL
from ocaffe.kernels.rearrange.copy import copy
from ocaffe.layers.anchors import ROIS, check_rows
from ocaffe.layers.base import Layer, register, stated
from ocaffe.onnx.detection import detect
from ocaffe.onnx.graph import OnnxGraph

NOTHING = np.array([[0, *[-1] * 6]], np.float32)  # the row of an image without a detection


def check_predictions(layer: Layer, loc: Shape, conf: Shape, priors: Shape, classes: int, own_boxes: bool) -> int:
    """Return the number of priors. Raise the layer's error unless locations, confidences, priors and classes fit together."""
    layer.positive(layer.own(), {"num_classes": "the number of classes, with the background among them"})
    fits = len(priors) == 3 and priors[1] == 2 and priors[2] % 4 == 0
    layer.check(
        fits,
        f"bottom 2 is {shape_text(priors)}, it must be 1 x 2 x 4P",
        "give the top of a PriorBox layer as bottom 2, or of a Concat of several with axis: 2",
    )
    count = priors[2] // 4
    layer.check(loc[:1] == conf[:1], f"bottom 0 is {shape_text(loc)}, bottom 1 is {shape_text(conf)}: their batches differ", "give both the same batch size")
    told = stated(layer.own(), "share_location") if "share_location" in layer.own().DESCRIPTOR.fields_by_name else "a box is 4 numbers"
    both = (
        (0, loc, 4 * (classes if own_boxes else 1), "locations", told),
        (1, conf, classes, "confidences", stated(layer.own(), "num_classes")),
    )
    for i, shape, each, what, told in both:
        layer.check(
            math.prod(shape[1:]) == count * each,
            f"bottom {i} is {shape_text(shape)}: {math.prod(shape[1:])} {what} of an image, {count} priors need {count} x {each}",
            f"set num_output of each layer of {what} to the priors of a cell times {each}, because {told}",
        )
    return count


def check_regions(layer: Layer, bottoms: Sequence[Shape]) -> int:
    """Return the number of regions. Raise the layer's error unless the predictions for them and the number of classes fit together."""
    (loc, conf, rois, info), classes = bottoms, layer.own().num_classes
    layer.positive(layer.own(), {"num_classes": "the number of classes, with the background among them"})
    check_rows(layer, 2, rois, ROIS)
    count = rois[0]
    widths = (4, 8) if layer.own().share_location else (4 * classes,)
    for i, shape, allowed in ((0, loc, widths), (1, conf, (classes,))):
        fact = f"bottom {i} is {shape_text(shape)}, bottom 2 is {shape_text(rois)}"
        layer.check(shape[:1] == (count,), f"{fact}: the numbers of regions differ", f"give {count} rows as bottom {i}, one for each region of bottom 2")
        fact = f"bottom {i} is {shape_text(shape)}: {math.prod(shape[1:])} values of a region, with {stated(layer.own(), 'num_classes')}"
        fact += f" and {stated(layer.own(), 'share_location')}" if i == 0 else ""
        layer.check(math.prod(shape[1:]) in allowed, fact, f"set num_output of the layer before to {' or '.join(map(str, allowed))}, or correct num_classes")
    layer.check(math.prod(info) == 3, f"bottom 3 is {shape_text(info)}, it must be 1 x 3: height, width and scale of the image", "give im_info as bottom 3")
    return count


def is_evaluated(detections: Blob) -> bool:
    """Return whether DetectionEvaluate alone reads the rows. It skips empty ones, and each number of rows would compile the net again."""
    return detections.consumer is not None and detections.consumer.type == "DetectionEvaluate"


@register("DetectionOutput")
class DetectionOutput(Layer):
    """Detected boxes: decoded from priors, filtered by non-maximum suppression in each class, and limited to keep_top_k per image.

    Bottoms: locations N x 4P (N x 4P num_classes without share_location), confidences N x P num_classes, priors 1 x 2 x 4P. The confidences are used
    without a softmax. Top 1 x 1 x n x 7: image, label, score, xmin, ymin, xmax, ymax, ordered by image, label and descending score. Images without
    detections have no row. If no image has a detection, each image has one row: its number and then -1. Where DetectionEvaluate is the only reader, the
    top has all possible rows, and -1 in those without a detection.

    Priors in pixels are divided by input_width and input_height (OpenVINO).

    SSD draws detections into a fourth bottom, the images, with `visualize`. It is not read here.

    With rois in place of priors and a fourth bottom the boxes are those of a detector of regions (Faster R-CNN, R-FCN) in one image: locations
    R x 4 num_classes (R x 4, or R-FCN's R x 8, with share_location), confidences R x num_classes, rois R x 5, im_info 1 x 3. They are shares of
    the image that im_info tells. Rows of padding, whose image is -1, must have confidences of NaN, as ROIPooling gives.
    """

    origin = "SSD"
    bottoms = (3, 4)
    has_backward = False
    inplace_top = False
    extent_axis = 2

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        loc, conf, priors, *more = bottoms
        self.regions = bool(more) and len(priors) != 3
        count = check_regions(self, bottoms) if self.regions else check_predictions(self, loc, conf, priors, p.num_classes, not p.share_location)
        nms = p.nms_param
        self.check(
            nms.nms_threshold >= 0,
            f"nms_threshold is {nms.nms_threshold:g}",
            "set nms_param { nms_threshold } to an overlap of 0 or more; SSD has 0.45",
        )
        self.check(0 < nms.eta <= 1, f"eta is {nms.eta:g}", "set nms_param { eta } above 0 and at most 1, or remove it; 1 leaves nms_threshold as it is")
        meaning = "the {} of the image in pixels, if the priors are in pixels; or remove it"
        self.positive(p, {"input_width": meaning.format("width"), "input_height": meaning.format("height")})
        if p.save_output_param.output_directory or p.visualize:
            self.notes = [("detection_output_layer.cpp:31", "save_output_param and visualize are ignored: detections are the top")]
        self.detection = Detection(
            count,
            p.num_classes,
            not p.share_location,
            p.background_label_id,
            p.confidence_threshold if p.HasField("confidence_threshold") else ALL,
            nms.top_k if nms.HasField("top_k") and nms.top_k >= 0 else None,
            nms.nms_threshold,
            nms.eta,
            p.keep_top_k if p.keep_top_k >= 0 else None,
            p.code_type,
            p.variance_encoded_in_target,
            (p.input_width, p.input_height),
        )
        images = 1 if self.regions else loc[0]
        (rows,) = (1,) if not count else self.extent or (images * self.detection.most,)
        return [(1, 1, rows, 7)]

    def measures(self, tops: Sequence[Blob]) -> bool:
        return bool(self.detection.priors) and not is_evaluated(tops[0])

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        loc, conf, priors, *more = (bottom.data for bottom in bottoms)
        if not self.detection.priors:  # the layer Proposal has found no region
            copy(rec, rec.constant("nothing", NOTHING), tops[0].data.view((1, 7)), 0, 1)
            return
        found = self.detection.find_in_regions(rec, loc, conf, priors, *more) if self.regions else self.detection.find(rec, loc, conf, priors)
        if self.measures(tops):
            rec.measure(self, found.extent)
        found.rows(rec, tops[0].data.view((tops[0].shape[2], 7)))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.regions:
            raise graph.refused("a DetectionOutput of regions cannot be exported to ONNX", "end the net with rois, cls_prob and bbox_pred")
        if self.detection.eta != 1:
            fact = f"nms_param {{ eta: {self.detection.eta:g} }}, a decreasing threshold, cannot be exported to ONNX"
            raise graph.refused(fact, "use --raw-detection, which ends the model before this layer")
        detect(graph, self.detection, bottoms[:3], tops[0])
