"""The scores of the classes in a test, as a JSON file: `ocaffe test --scores` writes it, and `ocaffe plot` reads it. docs/solvers.md has its fields."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ocaffe.errors import Place
from ocaffe.formats.json_file import Each, read_json
from ocaffe.layers.seg_accuracy import figures
from ocaffe.solver.average_precision import VERSIONS, Detections, Points, average_precision
from ocaffe.support.parsing import parsing


class Detected(NamedTuple):
    """The scores of a detector. `classes`: name and points of each class."""

    version: str
    classes: list[tuple[str, Points]]


class Segmented(NamedTuple):
    """The scores of a segmentation. `classes`: name and IoU of each class, NaN for one that does not occur."""

    mean: float
    classes: list[tuple[str, float]]


def class_scores(
    detections: Mapping[str, Detections], segmentations: Mapping[str, np.ndarray], labels: Mapping[int, str], classes: Sequence[str] = ()
) -> bytes:
    """Return the file. `segmentations`: pixels by true and predicted class; both by the name of the output.

    `labels`: names of the labels of detections. `classes`: names of the classes of pixels. Classes without a name get their number.
    """
    found: dict[str, Any] = {}
    for output, each in detections.items():
        rows = [_record(labels.get(label, str(label)), points, each.version) for label, points in each.points().items()]
        found[output] = {"ap_version": each.version, "mean": each.mean, "classes": rows}
    for output, counts in segmentations.items():
        whole = figures(counts)
        names = [*classes[: len(counts)], *map(str, range(len(classes), len(counts)))]
        shares = [None if np.isnan(iou) else float(iou) for iou in whole.iou]
        rows = [{"name": name, "pixels": int(pixels), "iou": iou} for name, pixels, iou in zip(names, counts.sum(1), shares)]
        found[output] = {"mean": whole.mean_iou, "classes": rows}
    return (json.dumps(found) + "\n").encode()


def _record(name: str, points: Points, version: str) -> dict[str, Any]:
    columns = {field: getattr(points, field).tolist() for field in ("score", "recall", "precision")}
    return {"name": name, "boxes": points.boxes, "detections": points.detections, "ap": average_precision(points, version), **columns}


# the types of a record
_RECORD = {"ap_version?": str, "mean?": object, "classes": [{"name": str, "boxes?": int, "detections?": int}]}
_FIX = "give a file that `ocaffe test --scores` has written; logs have other extensions than .json"


def read_class_scores(path: str) -> dict[str, Detected | Segmented]:
    """Return the scores in a file by the names of the outputs. Raise Error if it is none of `ocaffe test --scores`."""
    records = read_json(path, Each(_RECORD), "a file of scores", _FIX)
    with parsing("is not a file of scores", Place(path), _FIX):
        found = {output: _scores(record) for output, record in records.items()}
        if not all(each.classes for each in found.values()) or not found:
            raise ValueError("it has no classes")
        return found


def _scores(record: Mapping[str, Any]) -> Detected | Segmented:
    if "ap_version" not in record:
        return Segmented(float(record["mean"]), [(str(each["name"]), np.nan if each["iou"] is None else float(each["iou"])) for each in record["classes"]])
    if record["ap_version"] not in VERSIONS:
        raise ValueError(f"ap_version is {record['ap_version']!r}")
    return Detected(record["ap_version"], [(str(each["name"]), _points(each)) for each in record["classes"]])


def _points(record: Mapping[str, Any]) -> Points:
    score, recall, precision = (np.array(record[field], float) for field in ("score", "recall", "precision"))
    if not len(score) == len(recall) == len(precision):
        raise ValueError(f"class {record['name']!r} has {len(score)} scores, {len(recall)} recalls and {len(precision)} precisions")
    return Points(int(record["boxes"]), int(record["detections"]), score, recall, precision)
