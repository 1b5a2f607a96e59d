"""Export detections and Proposal as TopK, NonMaxSuppression and Gather.

Compare ocaffe/kernels/detection/detection.py, ocaffe/kernels/detection/yolo/yolo_detection.py and ocaffe/layers/proposal.py.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.kernels.detection.detection import Detection
from ocaffe.kernels.detection.yolo.yolo_detection import YoloDetection
from ocaffe.kernels.detection.yolo.yolo_loss import CHANNELS
from ocaffe.onnx.graph import OnnxGraph, Value

CORNER, CORNER_SIZE = 1, 3  # PriorBoxParameter.CodeType, as in kernels/detection/boxes.h
FAR = 1e5  # a coordinate beyond all boxes, which are shares of the image
LOWEST, LARGEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


def detect(graph: OnnxGraph, d: Detection, bottoms: Sequence[Blob], to: Blob) -> None:
    """Write the nodes of DetectionOutput; the top is 1 x 1 x n x 7."""
    loc, conf, priors = bottoms
    labels = [label for label in range(d.classes) if label != d.background]
    nothing = _nothing(graph, conf)
    if not labels:
        graph.reshape(nothing, (1, 1, -1, 7), to)
        return
    boxes = _decoded(graph, d, loc, priors)  # N x P x classes with boxes x 4
    scores = graph.op("Transpose", graph.reshape(conf, (-1, d.priors, d.classes)), perm=[0, 2, 1])
    if len(labels) < d.classes:
        scores = graph.op("Gather", scores, labels, axis=1)
    if d.own_boxes:
        boxes = graph.op("Transpose", boxes, perm=[0, 2, 1, 3])
        boxes = graph.op("Gather", boxes, labels, axis=1) if len(labels) < d.classes else boxes
        flat, candidates = graph.reshape(boxes, (-1, d.priors, 4)), graph.reshape(scores, (-1, 1, d.priors))
    else:
        boxes = flat = graph.reshape(boxes, (-1, d.priors, 4))
        candidates = scores
    if d.top_k is not None and 0 < d.top_k < d.priors:
        candidates = _best(graph, candidates, d.top_k, 2)
    threshold = LARGEST if d.top_k == 0 or d.keep_top_k == 0 else max(d.threshold, LOWEST)
    limit = np.array([d.priors], np.int64)
    kept = graph.op("NonMaxSuppression", _solid(graph, d.priors, flat), candidates, limit, _one(min(d.nms_threshold, 1)), _one(threshold))
    # TopK puts the rows in Caffe's order: image, class, descending score.
    left = _left(graph, candidates, kept)
    if d.keep_top_k is not None and 0 < d.keep_top_k < d.priors * len(labels):
        left = _best(graph, graph.reshape(left, (-1, len(labels) * d.priors)), d.keep_top_k, 1)
    left = graph.reshape(left, (-1, len(labels), d.priors))
    most = min(count for count in (d.priors, d.top_k or d.priors, d.keep_top_k or d.priors))
    values, places = graph.ops("TopK", left, [most], to=[None, None], axis=2)
    where = _found(graph, values)
    prior = _column(graph, graph.op("GatherND", places, where))
    image, label = graph.part(where, 1, 0, 1), graph.part(where, 1, 1, 2)
    box = graph.op("GatherND", boxes, graph.op("Concat", *([image, label] if d.own_boxes else [image]), prior, axis=1))
    named = graph.op("Gather", np.array(labels, np.float32), label)
    score = _column(graph, graph.op("GatherND", values, where))
    _listed(graph, graph.op("Concat", graph.cast(image, np.float32), named, score, box, axis=1), nothing, to)


def _solid(graph: OnnxGraph, count: int, boxes: str) -> str:
    """Return the boxes (n x count x 4) with squares far from all others in place of those that have no area, because in Caffe these overlap no box.

    Runtimes swap the corners back if the first is behind the second. OpenCV 5.0 takes any two boxes without an area for equal.
    """
    sides = graph.op("Sub", graph.part(boxes, 2, 2, 4), graph.part(boxes, 2, 0, 2))
    places = FAR + 2 * np.arange(count, dtype=np.float32)[:, None]
    squares = np.concatenate([places, places, places + 1, places + 1], 1)
    return graph.op("Where", graph.op("Greater", graph.reduce("ReduceMin", sides, [2]), 0.0), boxes, squares)


def detect_yolo(graph: OnnxGraph, d: YoloDetection, bottoms: Sequence[Blob], to: Blob) -> None:
    """Write the nodes of YoloDetectionOutput and Yolov3DetectionOutput; the top is 1 x 1 x n x 7."""
    assert d.nms_threshold is not None
    parts = [_yolo_grid(graph, d, number, x) for number, x in enumerate(bottoms)]
    boxes, scores, labels = (graph.op("Concat", *values, axis=1) if len(parts) > 1 else values[0] for values in zip(*parts))
    candidates = graph.op("Transpose", scores, perm=[0, 2, 1])
    limit = np.array([d.slots], np.int64)
    kept = graph.op("NonMaxSuppression", _solid(graph, d.slots, boxes), candidates, limit, _one(d.nms_threshold), _one(d.threshold))
    values, places = graph.ops("TopK", _left(graph, candidates, kept), [d.slots], to=[None, None], axis=2)
    where = _found(graph, values)
    slot = graph.op("Concat", graph.part(where, 1, 0, 1), _column(graph, graph.op("GatherND", places, where)), axis=1)
    image, score = graph.cast(graph.part(where, 1, 0, 1), np.float32), _column(graph, graph.op("GatherND", values, where))
    rows = graph.op("Concat", image, graph.op("GatherND", labels, slot), score, graph.op("GatherND", boxes, slot), axis=1)
    _listed(graph, rows, _nothing(graph, bottoms[0]), to)


def _yolo_grid(graph: OnnxGraph, d: YoloDetection, number: int, x: Blob) -> tuple[str, str, str]:
    """Return the boxes (N x slots x 4, corners), scores and labels (N x slots x 1) of one bottom."""
    grid, channels = d.grids[number], CHANNELS + d.classes
    height, width = (graph.fixed(x, axis) for axis in (2, 3))
    cells, anchors = height * width, len(grid.anchors)
    by_slot = graph.op("Transpose", graph.reshape(x, (-1, anchors, channels, cells)), perm=[0, 1, 3, 2])
    values = graph.reshape(by_slot, (-1, anchors * cells, channels))
    corner = np.tile(np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).reshape(-1, 2), (anchors, 1)).astype(np.float32)
    sides = np.repeat(np.array(grid.anchors, np.float32), cells, 0)
    centre = graph.op("Add", graph.op("Sigmoid", graph.part(values, 2, 0, 2)), corner)
    centre = graph.op("Div", centre, np.array([width, height], np.float32))
    reach = graph.op("Mul", graph.op("Mul", graph.op("Exp", graph.part(values, 2, 2, 4)), sides), 0.5)
    boxes = graph.op("Concat", graph.op("Sub", centre, reach), graph.op("Add", centre, reach), axis=2)
    objectness, classes = graph.op("Sigmoid", graph.part(values, 2, 4, 5)), graph.part(values, 2, CHANNELS, channels)
    shares = graph.op("Sigmoid", classes) if d.independent else graph.op("Softmax", classes, axis=2)
    scores = graph.op("Mul", objectness, graph.reduce("ReduceMax", shares, [2]))
    return boxes, scores, graph.affine(graph.cast(graph.op("ArgMax", classes, axis=2, keepdims=1), np.float32), 1, 1)


def _nothing(graph: OnnxGraph, x: Blob) -> str:
    """Return the rows of a batch without detections: the number of each image, and -1."""
    images = graph.part(graph.op("Shape", x), 0, 0, 1)
    numbers = graph.op("Range", np.array(0, np.int64), graph.op("Squeeze", images), np.array(1, np.int64))
    return graph.op("Pad", _column(graph, graph.cast(numbers, np.float32)), [0, 0, 0, 6], np.array(-1, np.float32))


def _left(graph: OnnxGraph, candidates: str, kept: str) -> str:
    """Return the scores that remain after the suppression, at their positions, and LOWEST elsewhere."""
    return graph.op("ScatterND", graph.full_like(candidates, LOWEST), kept, graph.op("GatherND", candidates, kept))


def _found(graph: OnnxGraph, values: str) -> str:
    """Return the positions of the scores above LOWEST, a row each."""
    return graph.op("Transpose", graph.op("NonZero", graph.cast(graph.op("Greater", values, LOWEST), np.float32)), perm=[1, 0])


def _listed(graph: OnnxGraph, rows: str, nothing: str, to: Blob) -> None:
    """Write the top: `rows`, or `nothing` if there are none."""
    count = graph.part(graph.op("Shape", rows), 0, 0, 1)
    end = graph.op("Where", graph.op("Equal", count, [0]), graph.part(graph.op("Shape", nothing), 0, 0, 1), count)
    graph.reshape(graph.op("Slice", graph.op("Concat", rows, nothing, axis=0), [0], end, [0]), (1, 1, -1, 7), to)


def _decoded(graph: OnnxGraph, d: Detection, loc: Blob, priors: Blob) -> str:
    """Return the predicted boxes (corners) of all priors."""
    known = graph.reshape(priors, (2, d.priors, 1, 4))
    if d.size != (1, 1):
        known = graph.op("Div", known, d.units[:, None])
    prior, variance = (graph.reshape(graph.part(known, 0, i, i + 1), (d.priors, 1, 4)) for i in range(2))
    way: Value = graph.reshape(loc, (-1, d.priors, d.classes_with_boxes, 4))
    if not d.variance_in_target:
        way = graph.op("Mul", way, variance)
    if d.code == CORNER:
        return graph.op("Add", prior, way)
    low, high = graph.part(prior, 2, 0, 2), graph.part(prior, 2, 2, 4)
    sides = graph.op("Sub", high, low)
    if d.code == CORNER_SIZE:
        return graph.op("Add", prior, graph.op("Mul", way, graph.op("Concat", sides, sides, axis=2)))
    return _centred(graph, graph.op("Mul", graph.op("Add", low, high), 0.5), sides, graph.part(way, 3, 0, 2), graph.part(way, 3, 2, 4), 3)


def _centred(graph: OnnxGraph, centre: str, sides: str, way: str, growth: str, axis: int) -> str:
    """Return boxes (corners): the centre moves by `way` * `sides`, and the sides are multiplied by exp(`growth`)."""
    middle = graph.op("Add", centre, graph.op("Mul", way, sides))
    reach = graph.op("Mul", graph.op("Mul", graph.op("Exp", growth), sides), 0.5)
    return graph.op("Concat", graph.op("Sub", middle, reach), graph.op("Add", middle, reach), axis=axis)


def _best(graph: OnnxGraph, scores: str, count: int, axis: int) -> str:
    """Return the scores with all but the best `count` along the axis set to LOWEST."""
    values, places = graph.ops("TopK", scores, [count], to=[None, None], axis=axis)
    return graph.op("ScatterElements", graph.full_like(scores, LOWEST), places, values, axis=axis)


def _column(graph: OnnxGraph, x: str) -> str:
    return graph.op("Unsqueeze", x, [1])


def _one(value: float) -> np.ndarray:
    return np.array([value], np.float32)


def propose(graph: OnnxGraph, p: Any, anchors: np.ndarray, listed: int, most: int, bottoms: Sequence[Blob], tops: Sequence[Blob]) -> None:
    """Write the nodes of Proposal: the rois (n x 5), and their scores (n x 1) if there is a second top."""
    scores, deltas, info = bottoms
    count, (height, width) = len(anchors), (graph.fixed(scores, axis) for axis in (2, 3))
    shifts = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).astype(np.float32) * np.float32(p.feat_stride)
    own = (anchors + np.tile(shifts, 2)[:, :, None]).reshape(-1, 4).astype(np.float32)
    sides = own[:, 2:] - own[:, :2] + np.float32(1)
    moved = graph.reshape(graph.op("Transpose", graph.reshape(deltas, (count, 4, height, width)), perm=[2, 3, 0, 1]), (-1, 4))
    sides_, centre = graph.constant(sides), graph.constant(own[:, :2] + np.float32(0.5) * sides)
    boxes = _centred(graph, centre, sides_, graph.part(moved, 1, 0, 2), graph.part(moved, 1, 2, 4), 1)
    size = graph.reshape(info, (-1,))
    last = graph.op("Sub", graph.op("Gather", size, [1, 0, 1, 0]), 1.0)
    boxes = graph.op("Max", graph.op("Min", boxes, last), 0.0)
    low, high = graph.part(boxes, 1, 0, 2), graph.part(boxes, 1, 2, 4)
    least = graph.op("Mul", graph.part(size, 0, 2, 3), float(p.min_size))
    narrow = graph.reduce("ReduceMin", graph.op("Add", graph.op("Sub", high, low), 1.0), [1], keepdims=False)
    front = graph.reshape(graph.op("Transpose", graph.part(scores, 1, count, 2 * count), perm=[0, 2, 3, 1]), (-1,))
    fits = graph.op("Not", graph.op("Less", narrow, least))
    values, places = graph.ops("TopK", graph.op("Where", fits, front, LOWEST), [listed], to=[None, None], axis=0)
    boxes = graph.op("Gather", boxes, places)
    # Both corner pixels belong to the box, so its sides are longer by one.
    solid = graph.op("Add", boxes, np.array([0, 0, 1, 1], np.float32))
    # Ranks take the place of scores, because the NonMaxSuppression of OpenCV 5.0 refuses a score threshold below 0.
    ranks = graph.op("Where", graph.op("Greater", values, LOWEST), np.arange(listed, 0, -1, dtype=np.float32), 0.0)
    kept = graph.op("NonMaxSuppression", graph.op("Unsqueeze", solid, [0]), graph.op("Unsqueeze", ranks, [0, 1]), np.array([most], np.int64),
                    _one(min(p.nms_thresh, 1)), _one(0))  # fmt: skip
    chosen = graph.reshape(graph.part(kept, 1, 2, 3), (-1,))
    graph.op("Pad", graph.op("Gather", boxes, chosen), [0, 1, 0, 0], np.zeros((), np.float32), to=tops[0])
    for top in tops[1:]:
        graph.op("Unsqueeze", graph.op("Gather", values, chosen), [1], to=top)
