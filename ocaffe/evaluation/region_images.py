"""Images for detectors of regions (Faster R-CNN, R-FCN), as py-faster-rcnn prepares them; and the detections at the end of their nets."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ocaffe import proto
from ocaffe.data.decoding.decode import MAX_PIXELS, Color, open_image, planes
from ocaffe.data.sources.rois import resized, scaled
from ocaffe.errors import Error, shape_text
from ocaffe.formats.param_str import read_settings, settings_text
from ocaffe.graph.build import build
from ocaffe.layers.base import layer_type
from ocaffe.layers.roi_data import DEFAULTS

ROIS, SCORES, BOXES = "rois", "cls_prob", "bbox_pred"  # the blobs that py-faster-rcnn reads
NMS, KEPT, LEAST_SCORE = 0.3, 100, 0.05  # TEST.NMS, and tools/test_net.py


@dataclass(frozen=True)
class RegionImages:
    """The settings. `side`: pixels of the shorter side; `longest`: of the longer one at most. `mean`: blue, green, red."""

    side: int
    longest: int
    mean: np.ndarray
    scale: ClassVar[float] = 1.0
    batch: ClassVar[int] = 1  # images of a run

    def __call__(self, content: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the data for an image file, 3 x height x width, and im_info: height, width, scale. Raise Error without a place."""
        image = planes(open_image(content, MAX_PIXELS), Color.COLOR).transpose(1, 2, 0).astype(np.float32) - self.mean
        scale, size = scaled(image.shape[:2], self.side, self.longest)
        return resized(image, scale, size).transpose(2, 0, 1), np.array([*size, scale], np.float32)

    @staticmethod
    def of(layer: Any = None) -> RegionImages:
        """Return the settings of a RoIData layer, those of py-faster-rcnn without one."""
        own = DEFAULTS | (read_settings(layer.python_param.param_str) if layer is not None else {})
        return RegionImages(int(own["scales"][0]), int(own["max_size"]), np.array(own["pixel_means"], np.float32))


def is_region_detector(net: Any) -> bool:
    """Return whether a net (NetParameter of today's format) proposes regions, and ends with their scores and boxes."""
    tops = {top for layer in net.layer for top in layer.top}
    return tops.issuperset((ROIS, SCORES, BOXES)) and any(layer_type(layer) == "Proposal" for layer in net.layer)


def with_detections(net: Any) -> Any:
    """Return the net of a region detector with a DetectionOutput of its regions at the end. Raise Error if scores and boxes do not fit together."""
    made = type(net)()
    made.CopyFrom(net)
    if any(layer.type == "DetectionOutput" for layer in made.layer):
        return made
    info = next((layer.bottom[2] for layer in made.layer if layer_type(layer) == "Proposal"), "")
    blobs = build(made, proto.TEST, lambda source, text: None).blobs
    scores, boxes = blobs[SCORES].shape, blobs[BOXES].shape
    classes, values = int(np.prod(scores[1:])), int(np.prod(boxes[1:]))
    if values not in (4 * classes, 8):
        fact = f"{SCORES} is {shape_text(scores)} and {BOXES} {shape_text(boxes)}"
        raise Error(fact, fix=f"set num_output of the layer of {BOXES} to {4 * classes}, four for each class; or to 8 if all classes share the boxes")
    output = proto.DetectionOutputParameter(num_classes=classes, share_location=values != 4 * classes, keep_top_k=KEPT, confidence_threshold=LEAST_SCORE)
    output.nms_param.nms_threshold = NMS
    made.layer.add(name="detection_out", type="DetectionOutput", bottom=[BOXES, SCORES, ROIS, info], top=["detection_out"], detection_output_param=output)
    return made


def with_images(net: Any, imdb: str, classes: int, rows: str = "", images: RegionImages | None = None) -> Any:
    """Return the net with a database of annotated images in the place of its inputs data and im_info. `rows`: the blob of their boxes for DetectionEvaluate.

    `images`: how the training prepared them, None for py-faster-rcnn's settings. Raise Error for other inputs.
    """
    inputs = [layer for layer in net.layer if layer.type == "Input"]
    tops = [top for layer in inputs for top in layer.top]
    shapes = [shape for layer in inputs for shape in layer.input_param.shape]
    if len(tops) != 2 or len(shapes) != 2:
        raise Error(f"the net has the inputs {', '.join(tops) or 'none'}", fix="give a test.prototxt with the inputs data and im_info")
    data = proto.LayerParameter(name="input-data", type="RoIData", top=[*(tops if len(shapes[0].dim) == 4 else tops[::-1]), "gt_boxes"])
    data.top.extend([rows] if rows else [])
    own = {"scales": [images.side], "max_size": images.longest, "pixel_means": images.mean.tolist()} if images is not None else {}
    data.python_param.param_str = settings_text({"num_classes": classes, "source": imdb, **own})
    silence = proto.LayerParameter(name="no-boxes", type="Silence", bottom=["gt_boxes"])
    made = type(net)()
    made.CopyFrom(net)
    del made.layer[:]
    made.layer.extend([data, silence, *(layer for layer in net.layer if layer.type != "Input")])
    return made


def with_test(net: Any, imdb: str, images: RegionImages | None = None) -> Any:
    """Return the net of a region detector with a database of annotated images in the place of its inputs, and DetectionEvaluate at its end. Raise Error.

    `images`: how the training prepared them, None for py-faster-rcnn's settings.
    """
    made = with_detections(net)
    output = next(layer for layer in made.layer if layer.type == "DetectionOutput")
    classes = output.detection_output_param.num_classes
    made = with_images(made, imdb, classes, "label", images)
    evaluate = proto.DetectionEvaluateParameter(num_classes=classes, evaluate_difficult_gt=False)
    made.layer.add(name="detection_eval", type="DetectionEvaluate", bottom=[output.top[0], "label"], top=["detection_eval"], detection_evaluate_param=evaluate)
    return made
