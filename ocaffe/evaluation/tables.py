"""Tables of the classes of detectors and segmentations."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from ocaffe import proto
from ocaffe.evaluation.confusion import lines_of, percent
from ocaffe.evaluation.deploy import class_names
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.layers.base import layer_type
from ocaffe.layers.seg_accuracy import figures
from ocaffe.tools.datasets.annotations import shown_names


def detection_table(classes: Mapping[int, tuple[int, int, float]], names: Mapping[int, str]) -> list[str]:
    """Return the lines of a table: true boxes, detections and average precision (AP) of each class, and their mean. `classes`: these by label."""
    rows = [("class", "true boxes", "detections", "AP")]
    for label, (boxes, found, precision) in classes.items():
        rows.append((names.get(label, str(label)), str(boxes), str(found), percent(precision)))
    sums = np.sum(list(classes.values()), axis=0)
    rows.append(("all", f"{sums[0]:.0f}", f"{sums[1]:.0f}", percent(sums[2] / len(classes))))
    return lines_of(rows)


def segmentation_table(counts: np.ndarray, names: Sequence[str] = ()) -> list[str]:
    """Return the lines of a table: pixels, right pixels, their share, and intersection over union (IoU) of each class, and the means of both.

    `counts`: pixels by true and predicted class. Classes that do not occur do not count in the means. `names`: of the classes, as far as they are known.
    """
    right, true, found = counts.diagonal(), counts.sum(1), figures(counts)
    rows = [("class", "pixels", "right", "accuracy", "IoU")]
    for c, iou in enumerate(found.iou):
        rows.append((names[c] if c < len(names) else str(c), str(true[c]), str(right[c]), percent(right[c] / true[c] if true[c] else np.nan), percent(iou)))
    rows.append(("all", str(true.sum()), str(right.sum()), percent(found.class_accuracy), percent(found.mean_iou)))
    return lines_of(rows)


def label_map_names(net: str) -> dict[int, str]:
    """Return the names of the labels of the TEST net's images with boxes, from a label map or from beside the database; none if there is no such file."""
    message = filter_net(upgrade_net(read_net(net)), proto.NetState(phase=proto.TEST))
    for layer in message.layer:
        if layer_type(layer) == "RoIData":
            return dict(enumerate(class_names(layer)))
        path = layer.annotated_data_param.label_map_file
        if layer.type == "AnnotatedData" and path and os.path.exists(path):
            return shown_names(path)
    return {}
