"""Cases for the detection kernels, with numpy references: regions, anchors, matching, suppression, mining."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ocaffe.layers.anchors import base_anchors
from ocaffe.selftest import aligned
from ocaffe.selftest.case import Arrays, Case, layer

F = np.float32
CELLS, IMAGE, STRIDE = (14, 19), (224, 304), 16  # size of the feature maps with anchors; height and width of the image; stride
SMALL = base_anchors(16, [0.5, 1, 2], [2, 4])  # anchors small enough that many are inside the image
Rng = np.random.Generator


def overlaps(a: np.ndarray, b: np.ndarray, pixel: float = 1) -> np.ndarray:
    """Return the intersection over union of each row of a with each row of b. `pixel` 1: corners are inclusive."""
    a, b = a[:, None], b[None]
    shared = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]) + pixel, 0).prod(-1)
    return shared / ((a[..., 2:] - a[..., :2] + pixel).prod(-1) + (b[..., 2:] - b[..., :2] + pixel).prod(-1) - shared)


def greedy(boxes: np.ndarray, threshold: float, most: int, pixel: float = 1) -> list[int]:
    """Return the indices that non-maximum suppression keeps. The boxes are sorted by score."""
    kept: list[int] = []
    table = overlaps(boxes, boxes, pixel)
    for i in range(len(boxes)):
        if len(kept) < most and (table[i, kept] <= threshold).all():
            kept.append(i)
    return kept


def encode(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the regression targets from the boxes a to the boxes b; corners are inclusive."""
    sides, wanted = a[..., 2:] - a[..., :2] + 1, b[..., 2:] - b[..., :2] + 1
    return np.concatenate([(b[..., :2] + wanted / 2 - a[..., :2] - sides / 2) / sides, np.log(wanted / sides)], -1)


def some_boxes(rng: Rng, count: int, smallest: float = 30, largest: float = 0.6) -> np.ndarray:
    """Return random boxes inside the image, in whole pixels."""
    height, width = IMAGE
    sides = rng.uniform(smallest, [width * largest, height * largest], (count, 2))
    corner = rng.uniform(0, 1, (count, 2)) * (np.array([width, height]) - sides)
    return np.round(np.concatenate([corner, corner + sides - 1], 1))


def all_anchors() -> np.ndarray:
    """Return all anchors, A x H x W x 4."""
    rows, columns = np.meshgrid(np.arange(CELLS[0]), np.arange(CELLS[1]), indexing="ij")
    return np.asarray(SMALL, float)[:, None, None] + STRIDE * np.stack([columns, rows, columns, rows], 2)


def by_anchor(values: np.ndarray) -> np.ndarray:
    """Rearrange 1 x 4A x H x W to A x H x W x 4."""
    return np.moveaxis(values.reshape(-1, 4, *CELLS), 1, -1)


def by_map(values: np.ndarray) -> np.ndarray:
    """The inverse of by_anchor."""
    return np.moveaxis(values, -1, 1).reshape(1, -1, *CELLS)


# -- regions -----------------------------------------------------------------------------------------------------------


def half_away(value: float) -> np.floating:
    return F(np.copysign(np.floor(np.abs(F(value)) + F(0.5)), F(value)))


def max_edges(low: float, high: float, scale: float, count: int) -> Iterator[tuple[int, int]]:
    """Yield the edges of the bins. They are computed in float32 as in Caffe, because rounding decides which pixels a bin has."""
    first, last = int(half_away(F(low) * F(scale))), int(half_away(F(high) * F(scale)))
    size = F(max(last - first + 1, 1)) / F(count)
    for i in range(count):
        yield int(np.floor(F(i) * size)) + first, int(np.ceil(F(i + 1) * size)) + first


def mean_edges(low: float, high: float, scale: float, count: int) -> Iterator[tuple[int, int]]:
    first, last = half_away(low) * F(scale), (half_away(high) + F(1)) * F(scale)
    size = max(last - first, F(0.1)) / F(count)
    for i in range(count):
        yield int(np.floor(F(i) * size + first)), int(np.ceil(F(i + 1) * size + first))


def bins(edges: Callable[..., Iterator[tuple[int, int]]], x: np.ndarray, roi: np.ndarray, count: int, scale: float) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (row, column, pixels of all channels) of each bin that is not empty."""
    for row, ys in enumerate(edges(roi[2], roi[4], scale, count)):
        for column, xs in enumerate(edges(roi[1], roi[3], scale, count)):
            part = x[int(roi[0]), :, max(ys[0], 0) : max(ys[1], 0), max(xs[0], 0) : max(xs[1], 0)]
            if part.size:
                yield row, column, part


def roi_pool(x: Arrays, got: Arrays) -> Arrays:
    y = np.zeros((len(x["x1"]), x["x0"].shape[1], 5, 5))
    for r, roi in enumerate(x["x1"]):
        for row, column, part in bins(max_edges, x["x0"], roi, 5, 0.25):
            y[r, :, row, column] = part.max((1, 2))
    return {"y": y}


def psroi_pool(x: Arrays, got: Arrays) -> Arrays:
    y = np.zeros((len(x["x1"]), 4, 3, 3))
    for r, roi in enumerate(x["x1"]):
        for row, column, part in bins(mean_edges, x["x0"], roi, 3, 0.25):
            y[r, :, row, column] = part.mean((1, 2))[row * 3 + column :: 9]
    return {"y": y}


def regions(rng: Rng, channels: int) -> Arrays:
    corners = rng.uniform(-0.2, 1.2, (12, 4)) * [92, 68, 92, 68]
    return {"x0": rng.standard_normal((2, channels, 17, 23)), "x1": np.column_stack([rng.integers(0, 2, 12), corners])}


# -- Faster R-CNN ------------------------------------------------------------------------------------------------------


def score_maps(rng: Rng) -> Arrays:
    count = 2 * len(SMALL) * CELLS[0] * CELLS[1]
    scores = rng.permutation(count).reshape(1, -1, *CELLS) / count  # all different
    return {"x0": scores, "x1": rng.normal(0, 0.3, (1, 4 * len(SMALL), *CELLS)), "x2": np.array([[*IMAGE, 1.0]])}


def proposals(x: Arrays, got: Arrays) -> Arrays:
    anchors, moves = all_anchors(), by_anchor(x["x1"])
    sides = anchors[..., 2:] - anchors[..., :2] + 1
    centre, reach = anchors[..., :2] + sides / 2 + moves[..., :2] * sides, np.exp(moves[..., 2:]) * sides / 2
    found = np.clip(np.concatenate([centre - reach, centre + reach], -1), 0, np.array([IMAGE[1] - 1, IMAGE[0] - 1] * 2)).reshape(-1, 4)
    values = x["x0"][0, len(SMALL) :].reshape(-1)
    large = (found[:, 2:] - found[:, :2] + 1 >= 16).all(1)
    order = [i for i in np.argsort(-values, kind="stable") if large[i]][:600]
    kept = greedy(found[order], 0.7, 100)
    return {"rois": np.column_stack([np.zeros(len(kept)), found[order][kept]]), "scores": values[order][kept, None]}


def anchor_targets(x: Arrays, got: Arrays) -> Arrays:
    """The reference for a batch size that keeps every label, so no labels are drawn at random."""
    anchors, truth = all_anchors(), x["x1"]
    inside = (anchors[..., :2] >= 0).all(-1) & (anchors[..., 2] < IMAGE[1]) & (anchors[..., 3] < IMAGE[0])
    table = overlaps(anchors[inside], truth[:, :4])
    largest = table.max(1)
    own = np.where((table == table.max(0)).any(1) | (largest >= 0.7), 1.0, np.where(largest < 0.3, 0.0, -1.0))
    labels, targets = np.full(inside.shape, -1.0), np.zeros((*inside.shape, 4))
    labels[inside], targets[inside] = own, encode(anchors[inside], truth[table.argmax(1), :4])
    every = np.ones(4)
    weights = (labels >= 0)[..., None] * every / max((labels >= 0).sum(), 1)
    positive = (labels == 1)[..., None] * every
    return {"labels": labels.reshape(1, 1, -1, CELLS[1]), "targets": by_map(targets), "inside": by_map(positive), "outside": by_map(weights)}


def proposal_targets(x: Arrays, got: Arrays) -> Arrays:
    """The reference keeps all foreground and background regions, in the device's order. Each region must occur exactly once."""
    truth = x["x1"]
    own = np.concatenate([x["x0"], np.column_stack([np.zeros(len(truth)), truth[:, :4]])])
    table = overlaps(own[:, 1:], truth[:, :4])
    largest, match = table.max(1), truth[table.argmax(1)]
    wanted = np.flatnonzero(largest >= 0.1)
    same = (got["rois"][:, None] == own[None].astype(np.float32)).all(-1)
    at = same.argmax(1)
    if not same.any(1).all() or sorted(at) != wanted.tolist():
        return {"rois": own[wanted]}
    foreground = largest[at] >= 0.5
    targets, weights = np.zeros((len(at), 4, 4)), np.zeros((len(at), 4, 4))
    rows, classes = np.flatnonzero(foreground), match[at][foreground, 4].astype(int)
    targets[rows, classes] = encode(own[at][foreground, 1:], match[at][foreground, :4]) / [0.1, 0.1, 0.2, 0.2]
    weights[rows, classes] = 1
    flat = {name: table.reshape(len(at), -1) for name, table in (("targets", targets), ("inside", weights), ("outside", weights))}
    return {"rois": own[at], "labels": np.where(foreground, match[at][:, 4], 0), **flat}


def region_problem(rng: Rng) -> Arrays:
    truth = np.column_stack([some_boxes(rng, 5), rng.integers(1, 4, 5)])
    near = truth[rng.integers(0, 5, 40), :4] + np.round(rng.normal(0, 15, (40, 4)))
    near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 5)
    return {"x0": np.column_stack([np.zeros(80), np.concatenate([near, some_boxes(rng, 40)])]), "x1": truth}


# -- SSD ---------------------------------------------------------------------------------------------------------------


def priors(rng: Rng, count: int) -> np.ndarray:
    centres, sides = rng.uniform(0, 1, (count, 2)), rng.uniform(0.1, 0.5, (count, 2))
    boxes = np.concatenate([centres - sides / 2, centres + sides / 2], 1).reshape(-1)
    return np.stack([boxes, np.tile([0.1, 0.1, 0.2, 0.2], count)])[None]


def detection_problem(rng: Rng) -> Arrays:
    scores = rng.permutation(2 * 300 * 4).reshape(2, -1) / 2400
    return {"x0": rng.standard_normal((2, 1200)), "x1": scores, "x2": priors(rng, 300)}


def detections(x: Arrays, got: Arrays) -> Arrays:
    boxes, variance = x["x2"][0].reshape(2, -1, 4)
    rows = []
    for n, (loc, conf) in enumerate(zip(x["x0"], x["x1"])):
        moves, scores, sides = loc.reshape(-1, 4) * variance, conf.reshape(-1, 4), boxes[:, 2:] - boxes[:, :2]
        centres, reach = (boxes[:, :2] + boxes[:, 2:]) / 2 + moves[:, :2] * sides, np.exp(moves[:, 2:]) * sides / 2
        decoded, found = np.concatenate([centres - reach, centres + reach], 1), []
        for c in range(1, 4):
            order = np.array([i for i in np.argsort(-scores[:, c], kind="stable") if scores[i, c] > 0.3][:100])
            found += [(c, int(order[i])) for i in greedy(decoded[order], 0.45, 10**6, pixel=0)]
        best = set(sorted(found, key=lambda pair: -scores[pair[1], pair[0]])[:60])
        rows += [[n, c, scores[i, c], *decoded[i]] for c, i in found if (c, i) in best]
    return {"y": np.array(rows)[None, None]}


def region_detection_problem(rng: Rng) -> Arrays:
    rois = np.column_stack([np.zeros(100), some_boxes(rng, 100)])
    return {"x0": rng.standard_normal((100, 16)) / 5, "x1": rng.permutation(400).reshape(100, 4) / 400, "x2": rois, "x3": np.array([[*IMAGE, 1.0]])}


def region_detections(x: Arrays, got: Arrays) -> Arrays:
    """A region has a box for each class."""
    low, scores, size, found = x["x2"][:, 1:3], x["x1"], np.array(IMAGE[::-1]), []
    sides = x["x2"][:, 3:5] - low + 1
    for c in range(1, 4):
        moves = x["x0"][:, 4 * c : 4 * c + 4]
        centres, reach = low + sides / 2 + moves[:, :2] * sides, np.exp(moves[:, 2:]) * sides / 2
        decoded = np.concatenate([(centres - reach).clip(0, size - 1) / size, ((centres + reach).clip(0, size - 1) + 1) / size], 1)
        order = np.array([i for i in np.argsort(-scores[:, c], kind="stable") if scores[i, c] > 0.3][:100])
        found += [[0, c, scores[order[i], c], *decoded[order[i]]] for i in greedy(decoded[order], 0.45, 10**6, pixel=0)]
    best = sorted(row[2] for row in found)[-60:]
    return {"y": np.array([row for row in found if row[2] >= best[0]])[None, None]}


def multibox_problem(rng: Rng) -> Arrays:
    """True boxes are in clusters, so that several match the same prior."""
    table = priors(rng, 120)
    truth = np.zeros((18, 8))
    truth[:, 0], truth[:, 1] = np.sort(rng.integers(0, 3, 18)), rng.integers(1, 5, 18)
    truth[:, 3:7] = table[0, 0].reshape(-1, 4)[rng.integers(0, 6, 18)] + rng.uniform(-0.03, 0.03, (18, 4))
    return {"x0": rng.standard_normal((3, 480)), "x1": rng.standard_normal((3, 600)), "x2": table, "x3": truth[None, None]}


def matched(table: np.ndarray) -> np.ndarray:
    """Return the true box of each prior (-1: none) from `table`, the overlaps (true boxes x priors).

    First each true box is matched to its best prior. Then each free prior with an overlap of at least 0.5 is matched.
    """
    match, rest = np.full(table.shape[1], -1), table.copy()
    for _ in range(len(table)):
        prior, truth = divmod(int(rest.T.argmax()), len(rest))
        if rest[truth, prior] <= 1e-6:
            break
        match[prior], rest[truth], rest[:, prior] = truth, 0, 0
    return np.where((match < 0) & (table.max(0) >= 0.5), table.argmax(0), match)


def multibox(x: Arrays, got: Arrays) -> Arrays:
    """Return the smooth L1 loss of the locations plus the cross-entropy of the classes, divided by the number of matches.

    The classes are scored for the matches and for three times as many of the worst negatives.
    """
    boxes, variance = x["x2"][0].reshape(2, -1, 4)
    total, matches = 0.0, 0
    for n, (loc, conf) in enumerate(zip(x["x0"], x["x1"])):
        own = x["x3"][0, 0][x["x3"][0, 0, :, 0] == n]
        if not len(own):
            continue
        table, scores = overlaps(own[:, 3:7], boxes, pixel=0), conf.reshape(-1, 5)
        match, losses = matched(table), np.log(np.exp(scores).sum(1, keepdims=True)) - scores
        positive = np.flatnonzero(match >= 0)
        free = np.flatnonzero((match < 0) & (table.max(0) < 0.5))
        worst = free[np.argsort(-losses[free, 0], kind="stable")][: 3 * len(positive)]
        total += losses[worst, 0].sum() + losses[positive, own[match[positive], 1].astype(int)].sum()
        true, box = own[match[positive], 3:7], boxes[positive]
        sides = box[:, 2:] - box[:, :2]
        way = np.concatenate([((true[:, :2] + true[:, 2:]) - (box[:, :2] + box[:, 2:])) / 2 / sides, np.log((true[:, 2:] - true[:, :2]) / sides)], 1)
        d = np.abs(loc.reshape(-1, 4)[positive] - way / variance[positive])
        total, matches = total + np.where(d < 1, d * d / 2, d - 0.5).sum(), matches + len(positive)
    return {"y": np.asarray(total / max(matches, 1))}


# -- mining ------------------------------------------------------------------------------------------------------------


def mining_problem(rng: Rng) -> Arrays:
    losses, corner = rng.permutation(40), rng.uniform(0, 9, (40, 2))
    rois = np.column_stack([np.arange(40) % 2, corner, corner + rng.uniform(1, 9, (40, 2))])
    return {"x0": rois, "x1": losses, "x2": 0 * losses, "x3": rng.integers(0, 5, 40), "x4": rng.uniform(1, 2, (40, 8))}


def mined(x: Arrays, got: Arrays) -> Arrays:
    chosen = np.zeros(40, bool)
    for image in range(2):
        own = np.flatnonzero(x["x0"][:, 0] == image)
        chosen[own[np.argsort(-x["x1"][own], kind="stable")[:6]]] = True
    return {"labels": np.where(chosen, x["x3"], -1).reshape(40, 1, 1, 1), "weights": (x["x4"] * chosen[:, None]).reshape(40, 8, 1, 1)}


def single_losses(x: Arrays, got: Arrays) -> Arrays:
    scores, labels = x["x0"], x["x1"].astype(int)
    losses = np.log(np.exp(scores).sum(1)) - np.take_along_axis(scores, labels[:, None], 1)[:, 0]
    return {"each": losses.reshape(-1, 1, 1, 1)}


def cases() -> list[Case]:
    python = "python_param {{ module: 'rpn.{0}_layer' layer: '{1}Layer' param_str: \"{2}\" }}"
    anchors = "'feat_stride': 16, 'scales': [2, 4]"
    multibox_param = "multibox_loss_param { num_classes: 5 code_type: CENTER_SIZE }"
    cuts = "confidence_threshold: 0.3 keep_top_k: 60 nms_param { nms_threshold: 0.45 top_k: 100 }"
    return [
        Case(
            "region pooling", layer("ROIPooling", "x0 x1", "y", "roi_pooling_param { pooled_h: 5 pooled_w: 5 spatial_scale: 0.25 }"),
            lambda rng: regions(rng, 6), roi_pool, ("x0",),
        ),
        Case(
            "region pooling, by position", layer("PSROIPooling", "x0 x1", "y", "psroi_pooling_param { output_dim: 4 group_size: 3 spatial_scale: 0.25 }"),
            lambda rng: regions(rng, 36), psroi_pool, ("x0",),
        ),
        Case(
            "proposals",
            layer("Python", "x0 x1 x2", "rois scores", python.format("proposal", "Proposal", f"{anchors}, 'pre_nms_topn': 600, 'post_nms_topn': 100")),
            score_maps, proposals, phase="TEST",
        ),
        Case(
            "targets of anchors",
            layer("Python", "x0 x1 x2 x3", "labels targets inside outside", python.format("anchor_target", "AnchorTarget", f"{anchors}, 'batch_size': 100000")),
            lambda rng: {"x0": np.zeros((1, 2 * len(SMALL), *CELLS)), "x1": np.column_stack([some_boxes(rng, 5), rng.integers(1, 4, 5)]),
                         "x2": np.array([[*IMAGE, 1.0]]), "x3": np.zeros((1, 3, *IMAGE))}, anchor_targets,
        ),
        Case(
            "targets of regions", layer("Python", "x0 x1", "rois labels targets inside outside",
            python.format("proposal_target", "ProposalTarget", "'num_classes': 4, 'batch_size': -1")), region_problem, proposal_targets,
        ),
        Case(
            "loss of boxes without anchors", layer("AlignedBoxLoss", "x0 x1 x2 x3", "y", "aligned_box_loss_param { num_classes: 5 }"),
            aligned.problem, aligned.AlignedModel(5), ("x0", "x1"),
        ),
        Case(
            "detections", layer("DetectionOutput", "x0 x1 x2", "y", f"detection_output_param {{ num_classes: 4 code_type: CENTER_SIZE {cuts} }}"),
            detection_problem, detections, phase="TEST",
        ),
        Case(
            "detections of regions", layer("DetectionOutput", "x0 x1 x2 x3", "y", f"detection_output_param {{ num_classes: 4 share_location: false {cuts} }}"),
            region_detection_problem, region_detections, phase="TEST",
        ),
        Case("multibox loss", layer("MultiBoxLoss", "x0 x1 x2 x3", "y", multibox_param), multibox_problem, multibox, ("x0", "x1")),
        Case(
            "mining of regions", layer("BoxAnnotatorOHEM", "x0 x1 x2 x3 x4", "labels weights", "box_annotator_ohem_param { roi_per_img: 6 ignore_label: -1 }"),
            mining_problem, mined,
        ),
        Case(
            "losses of regions", layer("SoftmaxWithLossOHEM", "x0 x1", "loss p each"),
            lambda rng: {"x0": rng.standard_normal((30, 5)), "x1": rng.integers(0, 5, 30)}, single_losses,
        ),
    ]  # fmt: skip
