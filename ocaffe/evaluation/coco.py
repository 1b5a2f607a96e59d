"""COCO's score of a detector: the average precision over several overlaps, by pycocotools (the extra `coco`)."""
from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.errors import Error
from ocaffe.formats.filter import filter_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.layers.detection_evaluate import NOTHING

OVERLAPS = np.linspace(0.5, 0.95, 10)
SHOWN = {"AP, overlap 0.50:0.95": slice(None), "AP, overlap 0.50": slice(0, 1), "AP, overlap 0.75": slice(5, 6)}


@dataclass
class Boxes:
    """The boxes of all batches in COCO's format, relative to their images."""

    images: int = 0
    detections: list[dict[str, Any]] = field(default_factory=list)
    truth: list[dict[str, Any]] = field(default_factory=list)

    def add(self, detections: np.ndarray, truth: np.ndarray, crowds: bool) -> None:
        """Add the boxes of a batch: rows of DetectionOutput (n x 7), and of AnnotatedData (m x 8). `crowds`: difficult boxes are COCO's crowds."""
        for image, label, score, *corners in detections:
            if NOTHING not in (image, label):
                self.detections.append({**self._box(image, label, corners), "score": score})
        for image, label, _, *corners, difficult in truth:
            if image != NOTHING:
                box = self._box(image, label, corners)
                self.truth.append({**box, "id": len(self.truth) + 1, "area": box["bbox"][2] * box["bbox"][3], "iscrowd": int(crowds and difficult != 0)})
        self.images += 1 + int(max(detections[:, 0].max(), truth[:, 0].max()))

    def _box(self, image: float, label: float, corners: list[float]) -> dict[str, Any]:
        x, y, right, bottom = map(float, corners)
        return {"image_id": self.images + int(image), "category_id": int(label), "bbox": [x, y, right - x, bottom - y]}


def coco_scores(boxes: Boxes) -> dict[str, float]:
    """Return the mean over the classes that have true boxes, by name. Raises Error without pycocotools."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as reason:
        raise Error(f"pycocotools cannot be imported: {reason}", place="ocaffe test --coco", fix="pip install pycocotools") from None
    if not boxes.truth or not boxes.detections:
        return dict.fromkeys(SHOWN, 0.0)
    true = COCO()
    true.dataset = {
        "images": [{"id": image} for image in range(boxes.images)], "annotations": boxes.truth,
        "categories": [{"id": label} for label in sorted({box["category_id"] for box in boxes.truth})],
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        true.createIndex()
        found = COCOeval(true, true.loadRes(boxes.detections), "bbox")
        found.params.iouThrs, found.params.areaRng, found.params.areaRngLbl = OVERLAPS, [[0, 1e10]], ["all"]
        found.evaluate()
        found.accumulate()
    precision = found.eval["precision"][..., -1]  # overlap, recall, class, area; for the largest number of detections of an image, 100
    counted = precision[:, :, (precision >= 0).all((0, 1, 3))]  # without classes that have crowds alone
    return {name: float(counted[part].mean()) if counted.size else 0.0 for name, part in SHOWN.items()}


def detections_scored(net: Any, place: str) -> Any:
    """Return the first DetectionEvaluate layer of a TEST net (NetParameter). Raises Error if it has none."""
    message = filter_net(upgrade_net(net), proto.NetState(phase=proto.TEST))
    layer = next((layer for layer in message.layer if layer.type == "DetectionEvaluate"), None)
    if layer is None:
        raise Error("the TEST net has no DetectionEvaluate layer", place=place, fix="remove --coco, or add a DetectionEvaluate layer")
    return layer


def evaluate_coco(net: Any, place: str, weights: str, device: Device, batches: int) -> dict[str, float]:
    """Return COCO's scores of the first DetectionEvaluate layer of a TEST net (NetParameter). Raises Error if it has none."""
    layer = detections_scored(net, place)
    names, boxes = list(layer.bottom), Boxes()
    with Net(net, phase=proto.TEST, weights=weights, keep=names, device=device) as made:
        for _ in range(batches):
            made.forward()
            detections, truth = (np.array(made.blobs[name].data).reshape(made.blobs[name].shape[2:]) for name in names)
            boxes.add(detections, truth, not layer.detection_evaluate_param.evaluate_difficult_gt)
    return coco_scores(boxes)
