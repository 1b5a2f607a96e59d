"""Cases with a numpy reference for the layer types that public prototxts of forks use, beside those of fork_cases.py."""
from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe.selftest.boxes import CELLS, IMAGE, SMALL, anchor_targets, proposal_targets, proposals, region_problem, roi_pool, score_maps, some_boxes
from ocaffe.selftest.case import Arrays, Case, layer, normal
from ocaffe.selftest.layers import attended, convolve, correlated


def volume_pooled(x: np.ndarray, kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...]) -> np.ndarray:
    """The maxima of windows over the axes from 2 on. Counts are rounded up, and windows end at the border."""
    for axis, (k, s, p) in enumerate(zip(kernel, stride, pad), 2):
        size = x.shape[axis]
        count = -(-(size + 2 * p - k) // s) + 1
        starts = [i * s - p for i in range(count) if not any(pad) or i * s < size + p]
        x = np.stack([np.take(x, range(max(a, 0), min(a + k, size)), axis).max(axis) for a in starts], axis)
    return x


def pooling_case(kind: str, fields: str, kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...] = (0, 0, 0)) -> Case:
    return Case(f"{kind} {fields}", layer(kind, "x0", "y", fields), normal(x0=(2, 2, 5, 6, 7)[: 2 + len(kernel)]),
                lambda x, got: {"y": volume_pooled(x["x0"], kernel, stride, pad)}, ("x0",))  # fmt: skip


def convolution_case(kind: str, fields: str, stride: tuple[int, ...], pad: tuple[int, ...]) -> Case:
    """num_output 3 and windows of 2 x 3 x 3 over 2 channels."""

    def values(x: Arrays, got: Arrays) -> Arrays:
        image, w, b = x["x0"], x["y/0"], x["y/1"]
        image = np.pad(image, [(0, 0), (0, 0), *((p, p) for p in pad)])
        return {"y": convolve(image, w, b)[(..., *(slice(None, None, s) for s in stride))]}

    return Case(f"{kind} {fields}", layer(kind, "x0", "y", fields), normal(x0=(2, 2, 5, 6, 7), y_0=(3, 2, 2, 3, 3), y_1=(3,)), values, ("x0", "y/0", "y/1"))


def deconvolved(x: Arrays, got: Arrays) -> Arrays:
    """Windows of 2 x 3 x 3, stride 1 x 2 x 2 and no pad."""
    image, w = x["x0"], x["y/0"]
    spread = np.zeros((*image.shape[:3], *(2 * n - 1 for n in image.shape[3:])))
    spread[..., ::2, ::2] = image
    spread = np.pad(spread, [(0, 0), (0, 0), (1, 1), (2, 2), (2, 2)])
    return {"y": convolve(spread, w.swapaxes(0, 1)[:, :, ::-1, ::-1, ::-1], x["y/1"])}


def spread(x: np.ndarray, size: tuple[int, int], kernel: int, stride: int, pad: int, method: str) -> np.ndarray:
    """Unpooling by loops over the windows of each plane."""
    y, counts = np.zeros((*x.shape[:2], *size)), np.zeros(size)
    for h, w in np.ndindex(*x.shape[2:]):
        top, left = h * stride - pad, w * stride - pad
        rows, columns = (slice(max(a, 0), min(a + kernel, n)) for a, n in zip((top, left), size))
        area = np.prod([min(a + kernel, n + pad) - a for a, n in zip((top, left), size)])
        counts[rows, columns] += 1
        if method in ("MAX", "FIXED"):
            shift = 0 if method == "MAX" else (kernel - 1) // 2
            y[:, :, min(max(top + shift, 0), size[0] - 1), min(max(left + shift, 0), size[1] - 1)] = x[:, :, h, w]
        else:
            y[:, :, rows, columns] += x[:, :, h, w, None, None] / (area if method in ("AVE", "DIV") else 1)
    return y / np.maximum(counts, 1) if method in ("DIV", "REP") else y


def unpooling_case(kind: str, fields: str, size: tuple[int, int], kernel: int, stride: int, method: str, pad: int = 0) -> Case:
    return Case(f"{kind} {fields}", layer(kind, "x0", "y", f"unpooling_param {{ {fields} }}"), normal(x0=(2, 2, 3, 4)),
                lambda x, got: {"y": spread(x["x0"], size, kernel, stride, pad, method)}, ("x0",))  # fmt: skip


def masked(x: Arrays, got: Arrays) -> Arrays:
    """Bottom 1 names a place in the plane of 5 x 7 for each value."""
    y = np.zeros((2, 2, 35))
    np.put_along_axis(y, x["x1"].reshape(2, 2, -1).astype(int), x["x0"].reshape(2, 2, -1), 2)
    return {"y": y.reshape(2, 2, 5, 7)}


def places(rng: np.random.Generator) -> Arrays:
    return {**normal(x0=(2, 2, 2, 3))(rng), "x1": np.stack([rng.permutation(35)[:6] for _ in range(4)]).reshape(2, 2, 2, 3)}


def resampled(x: np.ndarray, size: tuple[int, int], kind: str, antialias: bool = True) -> np.ndarray:
    """FlowNet's Resample by loops over the pixels, with its exchange of the steps of both axes."""
    fy, fx = x.shape[2] / size[0], x.shape[3] / size[1]
    smooth = antialias and max(fx, fy) > 1
    ax, ay = (1 / fx, 1 / fy) if smooth else (1, 1)
    weigh = {"LINEAR": lambda d: max(0, 1 - abs(d)), "CUBIC": lambda d: (1.5 * abs(d) ** 3 - 2.5 * d * d + 1) if abs(d) <= 1 else max(
        0, 2 - abs(d)) and -0.5 * abs(d) ** 3 + 2.5 * d * d - 4 * abs(d) + 2}
    y = np.zeros((*x.shape[:2], *size))
    for i, j in np.ndindex(*size):
        cy, cx = i * fy + fx / 2 - 0.5, j * fx + fy / 2 - 0.5
        my, mx = int(np.floor(cy + 0.5)), int(np.floor(cx + 0.5))
        if kind == "NEAREST":
            y[:, :, i, j] = x[:, :, my, mx]
            continue
        width = 4 if kind == "CUBIC" else 2
        ry, rx = (2 if f < 1 else int(np.ceil(width / a)) for f, a in ((fy, ay), (fx, ax)))
        weights = np.zeros(x.shape[2:])
        for h, w in np.ndindex(*x.shape[2:]):
            if abs(h - my) <= ry and abs(w - mx) <= rx:
                weights[h, w] = weigh[kind](ay * (cy - h)) * weigh[kind](ax * (cx - w))
        y[:, :, i, j] = (x * weights).sum((2, 3)) / weights.sum()
    return y


def downsampled(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """FlowNet's Downsample by loops over the pixels."""
    steps = [(n - 1) / (m - 1) for n, m in zip(x.shape[2:], size)]
    y = np.zeros((*x.shape[:2], *size))
    for at in np.ndindex(*y.shape):
        weights = np.zeros(x.shape[2:])
        for pixel in np.ndindex(*x.shape[2:]):
            weights[pixel] = np.prod([max(0, 1 - abs(p - i * step) / step) for p, i, step in zip(pixel, at[2:], steps)])
        plane = x[at[:2]]
        known = np.where(np.isnan(plane), 0, weights)
        lost = weights.sum() - known.sum()
        y[at] = np.nan if lost > 0.5 * known.sum() else (np.nan_to_num(plane) * known).sum() / known.sum()
    return y


def with_gaps(rng: np.random.Generator) -> Arrays:
    x = rng.standard_normal((1, 2, 7, 9))
    x[0, 0, 2, 2:4] = x[0, 1, 3, 5] = np.nan
    return {"x0": x}


def correlation_case(kind: str, fields: str, *how: Any) -> Case:
    return Case(f"{kind} {fields}", layer(kind, "x0 x1", "y", f"correlation_param {{ {fields} }}"), normal(x0=(2, 3, 6, 7), x1=(2, 3, 6, 7)),
                lambda x, got: {"y": correlated(x, *how)}, ("x0", "x1"))  # fmt: skip


def sampled(image: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Values (N x C x H x W) at places (N x H x W), with zeros outside."""
    y = np.zeros(image.shape)
    for n, h, w in np.ndindex(*columns.shape):
        across, down = columns[n, h, w], rows[n, h, w]
        for r, c in itertools.product((int(np.floor(down)), int(np.floor(down)) + 1), (int(np.floor(across)), int(np.floor(across)) + 1)):
            if 0 <= r < image.shape[2] and 0 <= c < image.shape[3]:
                y[n, :, h, w] += (1 - abs(down - r)) * (1 - abs(across - c)) * image[n, :, r, c]
    return y


def flow_warped(x: Arrays, got: Arrays) -> Arrays:
    image, (height, width) = x["x0"], x["x0"].shape[2:]
    columns, rows = x["x1"][:, 0] + np.arange(width), x["x1"][:, 1] + np.arange(height)[:, None]
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    wider = np.pad(image, [(0, 0), (0, 0), (0, 1), (0, 1)], "edge")
    places = (np.pad(each, [(0, 0), (0, 1), (0, 1)]) for each in (columns, rows))
    return {"y": sampled(wider, *places)[:, :, :height, :width] * inside[:, None]}


def flow(rng: np.random.Generator) -> Arrays:
    """An image, and a flow that leads outside here and there and never to the middle of a pixel."""
    moves = rng.integers(-2, 3, (2, 2, 4, 5)) + rng.uniform(0.1, 0.9, (2, 2, 4, 5))
    return {"x0": rng.standard_normal((2, 3, 4, 5)), "x1": moves}


def flow_loss(x: Arrays, p: float, q: float, epsilon: float = 0, scale: float = 1, counted: bool = False, least: float = 0, least_sum: float = 0) -> Arrays:
    d = x["x0"] - x["x1"] if "x1" in x else x["x0"]
    known = ~np.isnan(d)
    size = np.abs(np.nan_to_num(d))
    sums = (np.where(size < least, 0, size) ** p).sum(1) * scale
    sums = np.where(sums < least_sum, 0, sums)
    return {"loss": np.asarray(((sums + epsilon) ** q).sum() / (known.sum() / d.shape[1] if counted else len(d)))}


def two_flows(rng: np.random.Generator) -> Arrays:
    x = {name: rng.standard_normal((2, 2, 3, 4)) for name in ("x0", "x1")}
    x["x1"][0, :, 1, 2] = x["x1"][1, 0, 0] = np.nan
    return x


def flow_loss_case(kind: str, fields: str, **how: Any) -> Case:
    return Case(f"{kind} {fields}", layer(kind, "x0 x1", "loss", fields), two_flows, lambda x, got: flow_loss(x, **how), ("x0",))


def scores(rng: np.random.Generator) -> Arrays:
    """Scores from 0.4 to 0.9, and labels."""
    return {"x0": rng.uniform(0.4, 0.9, (3, 4)), "x1": np.array([2, 0, 3])}


def added(x: Arrays, bias: float) -> np.ndarray:
    own = np.arange(4) == x["x1"][:, None]
    return x["x0"] + bias * (own & (x["x0"] > -bias))


def combined(x: Arrays, got: Arrays) -> Arrays:
    own = np.arange(4) == x["x1"][:, None]
    return {"y": np.where(own, np.cos(0.9 * np.arccos(x["x0"]) + 0.4) - 0.15, x["x0"])}


def large_margin(x: Arrays, m: int, strength: float, weights: str) -> Arrays:
    """L-Softmax by the angle: psi = (-1)^k cos(m a) - 2 k for the k-th part of the angle."""
    a, w = x["x0"], x[weights]
    y = a @ w.T
    sizes = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(w, axis=1)
    angle = np.arccos(np.clip(y / sizes, -1, 1))
    part = np.floor(angle * m / np.pi)
    psi = (-1) ** part * np.cos(m * angle) - 2 * part
    return {"y": np.where(np.arange(len(w)) == x["x1"][:, None], (strength * y + sizes * psi) / (1 + strength), y), "z": np.array([strength])}


def large_margin_case(kind: str, m: int, bottom: bool) -> Case:
    weights = "x2" if bottom else "y/0"
    shapes = {"x0": (3, 5), "x2" if bottom else "y_0": (4, 5)}
    fields = f"largemargin_inner_product_param {{ num_output: 4 type: {kind} base: 3 gamma: 0.5 power: 2 }}"
    return Case(f"LargeMarginInnerProduct {kind} {weights}", layer("LargeMarginInnerProduct", "x0 x1 x2" if bottom else "x0 x1", "y z", fields),
                lambda rng: {**normal(**shapes)(rng), "x1": np.array([2, 0, 3])}, lambda x, got: large_margin(x, m, 3 * 1.5**-2, weights),
                ("x0", weights))  # fmt: skip


def triplets(x: Arrays, got: Arrays) -> Arrays:
    a, p, n = (x[f"x{i}"] for i in range(3))
    terms = np.maximum(0, 0.7 + ((a - p) ** 2).sum(1) - ((a - n) ** 2).sum(1))
    return {"loss": np.asarray((terms * x.get("x3", 1)).mean() / 2)}


def denser() -> np.ndarray:
    """Boxes of 4 x 4 and 8 x 2 pixels in 20 x 10 pixels, in two cells one below the other, each also half a cell below."""
    centres = [(10, y) for y in (2.5, 5, 7.5, 10)]
    boxes = [[(x - w / 2) / 20, (y - h / 2) / 10, (x + w / 2) / 20, (y + h / 2) / 10]
             for cell in (centres[:2], centres[2:]) for w, h in ((4, 4), (8, 2)) for x, y in cell]  # fmt: skip
    return np.array([[np.ravel(boxes), np.full(32, 0.1)]])


def bordered(image: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Values of C x H x W at places (n): zero outside of H and W, the last row and column reach to them."""
    height, width = image.shape[1:]
    within = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    wider = np.pad(image, [(0, 0), (0, 1), (0, 1)], "edge")
    r, c = (np.floor(np.where(within, each, 0)).astype(int) for each in (rows, columns))
    a, b = rows - r, columns - c
    parts = [wider[:, r + i, c + j] * (a if i else 1 - a) * (b if j else 1 - b) for i in (0, 1) for j in (0, 1)]
    return np.where(within, sum(parts), 0)


def deformable(x: Arrays, got: Arrays) -> Arrays:
    """Windows of 3 x 2, stride 2 x 1, pad 1 x 0, two groups of channels with offsets of their own, and two groups of filters."""
    image, offsets, w = x["x0"], x["x1"], x["y/0"]
    height, width = offsets.shape[2:]
    y = np.zeros((2, 4, height, width))
    for n, i, j in np.ndindex(2, height, width):
        moves = offsets[n, :, i, j].reshape(2, 6, 2)
        taps = np.stack([np.repeat(np.arange(3), 2) + 2 * i - 1, np.tile(np.arange(2), 3) + j], 1)
        values = np.concatenate([bordered(image[n, 2 * g : 2 * g + 2], *(taps + moves[g]).T) for g in range(2)])
        for k in range(4):
            group = k // 2
            y[n, k, i, j] = (values[2 * group : 2 * group + 2] * w[k].reshape(2, 6)).sum() + x["y/1"][k]
    return {"y": y}


def offsets(rng: np.random.Generator) -> Arrays:
    moves = rng.integers(-1, 2, (2, 24, 2, 4)) + rng.uniform(0.1, 0.9, (2, 24, 2, 4))
    return {**normal(x0=(2, 4, 4, 5), y_0=(4, 2, 3, 2), y_1=(4,))(rng), "x1": moves}


def transformed(x: Arrays, got: Arrays) -> Arrays:
    """theta_1_2 is 0.1, and theta_2_3 is -0.2."""
    image, t = x["x0"], np.insert(np.insert(x["x1"], 1, 0.1, 1), 5, -0.2, 1)
    rows, columns = np.indices((3, 4)).reshape(2, -1) * 2 / np.array([[3], [4]]) - 1
    y = np.zeros((2, 3, 12))
    for n in range(2):
        down, across = ((t[n, 3 * k] * rows + t[n, 3 * k + 1] * columns + t[n, 3 * k + 2] + 1) * size / 2 for k, size in enumerate(image.shape[2:]))
        for p in range(12):
            for r, c in np.ndindex(*image.shape[2:]):
                y[n, :, p] += max(0, 1 - abs(down[p] - r)) * max(0, 1 - abs(across[p] - c)) * image[n, :, r, c]
    return {"y": y.reshape(2, 3, 3, 4)}


def guided(x: Arrays, got: Arrays) -> Arrays:
    kept = x["x1"] > 0.1
    return {"y": x["x0"] * (kept * 6 / np.maximum(kept.sum(1, keepdims=True), 1))[:, :, None]}


def drawn(x: Arrays, got: Arrays) -> Arrays:
    """The device draws the channels; about as many as the probabilities say must be kept."""
    kept = got["y"][:, :, :1] != 0
    chance = 1 / (1 + np.exp(-2 * x["x1"]))
    even = abs(kept.mean() - chance.mean()) < 0.1
    return {"y": x["x0"] * kept * (chance.shape[1] / chance.sum(1))[:, None, None] if even else np.full(x["x0"].shape, np.nan)}


def attention_case(fields: str, size: tuple[int, int], *how: Any) -> Case:
    return Case(f"PointwiseSpatialAttention {fields}", layer("PointwiseSpatialAttention", "x0 x1", "y", f"pointwise_spatial_attention_param {{ {fields} }}"),
                normal(x0=(2, 3, 3, 4), x1=(2, size[0] * size[1], 3, 4)), lambda x, got: {"y": attended(x, size, *how)}, ("x0", "x1"))  # fmt: skip


MEANS, DEVIATIONS = np.array([0, 0.1, 0, 0]), np.array([0.1, 0.1, 0.2, 0.2])
REGRESSION = "bbox_reg_param { " + " ".join(f"bbox_mean: {m} bbox_std: {s}" for m, s in zip(MEANS, DEVIATIONS)) + " }"


def decoded(x: Arrays, train: bool) -> Arrays:
    rows = []
    for change, box, truth in zip(x["x0"], x["x1"], x.get("x2", np.zeros((9, 5)))):
        dx, dy, dw, dh = change[4:] * DEVIATIONS + MEANS
        w, h = box[3] - box[1] + 1, box[4] - box[2] + 1
        w2, h2 = w * np.exp(dw), h * np.exp(dh)
        left, upper = dx * w + (box[1] + box[3]) / 2 - (w2 - 1) / 2, dy * h + (box[2] + box[4]) / 2 - (h2 - 1) / 2
        if not (train and (truth[-1] >= 0.8 or w2 < 1 or h2 < 1)):
            rows.append([box[0], left, upper, left + w2 - 1, upper + h2 - 1])
    return {"y": np.array(rows)}


def changes(rng: np.random.Generator) -> Arrays:
    """Nine boxes, one of them with a side of half a pixel, and overlaps with true boxes."""
    corners = rng.uniform(0, 30, (9, 2))
    boxes = np.concatenate([rng.integers(0, 2, (9, 1)), corners, corners + rng.uniform(5, 20, (9, 2))], 1)
    boxes[4, 3] = boxes[4, 1] - 0.7
    truth = rng.uniform(0, 20, (9, 5))
    truth[:, 4] = np.linspace(0.1, 0.9, 9)
    return {"x0": rng.standard_normal((9, 8)), "x1": boxes, "x2": truth}


def without_truth(rng: np.random.Generator) -> Arrays:
    return {name: array for name, array in changes(rng).items() if name != "x2"}


def branches(rng: np.random.Generator) -> Arrays:
    """Two branches with two classes and the background."""
    return {"x0": rng.standard_normal((2, 7, 4, 6)), "x1": rng.standard_normal((2, 7, 2, 3))}


def box_output(x: Arrays, kind: str) -> Arrays:
    """MS-CNN's BoxOutput by loops over cells and pairs of boxes."""
    regions: list[list[float]] = []
    for n in range(2):
        boxes = []
        for array, rate, side in ((x["x0"][n], 8, 24), (x["x1"][n], 16, 40)):
            height, width = array.shape[1:]
            for h, w in np.ndindex(height, width):
                score = array[1:3, h, w].max() - array[0, h, w]
                dx, dy, dw, dh = array[3:, h, w] * DEVIATIONS + MEANS
                bw, bh = (side * np.exp(np.clip(each, -np.log(2), np.log(2))) for each in (dw, dh))
                left = max(0, np.clip(dx, -0.5, 0.5) * side + (w + 0.5) * rate - bw / 2)
                upper = max(0, np.clip(dy, -0.5, 0.5) * side + (h + 0.5) * rate - bh / 2)
                bw, bh = min(bw, width * rate - left), min(bh, height * rate - upper)
                if score >= 0.2 and bw >= 15 and bh >= 15:
                    boxes.append((score, left, upper, bw, bh))
        boxes = sorted(boxes, reverse=True)[:20]
        kept: list[tuple[float, ...]] = []
        for box in boxes:
            areas = []
            for better in kept:
                shared = max(0, min(box[1] + box[3], better[1] + better[3]) - max(box[1], better[1])) * max(
                    0, min(box[2] + box[4], better[2] + better[4]) - max(box[2], better[2]))
                own, other = box[3] * box[4], better[3] * better[4]
                areas.append(shared / {"IOU": own + other - shared, "IOMU": min(own, other), "IOFU": other}[kind])
            if not any(area > 0.4 for area in areas):
                kept.append(box)
        regions += [[n, left, upper, left + w, upper + h, score] for score, left, upper, w, h in kept[:5]]
    found = np.array(regions)[:, :, None, None]
    return {"y": found[:, :5], "z": found}


def regions(rng: np.random.Generator) -> Arrays:
    """An image, and regions in it, across its borders, and of less than a pixel."""
    x0 = rng.standard_normal((2, 3, 6, 7))
    return {"x0": x0, "x1": np.array([[0, 1.3, 0.4, 9.1, 8.2], [1, 3.2, 2.7, 3.4, 2.9], [1, -3.3, -2.1, 5.2, 4.4], [0, 6.1, 5.3, 17.2, 16.9]])}


def at(image: np.ndarray, row: float, column: float) -> np.ndarray:
    """The values of C x H x W at a place; places outside are moved to the border."""
    row, column = (min(max(place, 0), n - 1) for place, n in zip((row, column), image.shape[1:]))
    r, c = int(row), int(column)
    r2, c2 = min(r + 1, image.shape[1] - 1), min(c + 1, image.shape[2] - 1)
    a, b = row - r, column - c
    return (1 - a) * ((1 - b) * image[:, r, c] + b * image[:, r, c2]) + a * ((1 - b) * image[:, r2, c] + b * image[:, r2, c2])


def warped_places(region: np.ndarray, index: tuple[int, int], bins: tuple[int, int]) -> list[float]:
    corners = np.copysign(np.floor(np.abs(0.5 * region[1:]) + 0.5), region[1:])
    return [corners[1 - k] + index[k] * max(corners[3 - k] - corners[1 - k], 0) / bins[k] for k in (0, 1)]


def roi_warped(x: Arrays, got: Arrays) -> Arrays:
    """MNC's ROIWarping by loops over bins, with 3 x 4 bins and the scale 0.5."""
    image, y = x["x0"], np.zeros((4, 3, 3, 4))
    for r, i, j in np.ndindex(4, 3, 4):
        row, column = warped_places(x["x1"][r], (i, j), (3, 4))
        if -0.5 <= row <= image.shape[2] - 0.5 and -0.5 <= column <= image.shape[3] - 0.5:
            y[r, :, i, j] = at(image[int(x["x1"][r, 0])], row, column)
    return {"y": y}


def roi_aligned(x: Arrays, middle: bool) -> Arrays:
    """ROIAlignment by loops over bins, with 3 x 4 bins and the scale 0.5. The values of a bin are one pixel apart, or one is in its middle."""
    image, y = x["x0"], np.zeros((4, 3, 3, 4))
    for r, i, j in np.ndindex(4, 3, 4):
        edges = []
        for k, (index, bins) in enumerate(((i, 3), (j, 4))):
            low, high = 0.5 * x["x1"][r, 2 - k], 0.5 * x["x1"][r, 4 - k]
            size = max(high - low + 1, 1) / bins
            edges.append(np.clip([low + index * size, low + (index + 1) * size], 0, image.shape[2 + k] - middle))
        rows, columns = ([np.mean(edge)] if middle else np.arange(*edge) for edge in edges)
        values = [at(image[int(x["x1"][r, 0])], row, column) for row in rows for column in columns]
        y[r, :, i, j] = np.mean(values, 0) if values else 0
    return {"y": y}


def with_margin(rows: np.ndarray) -> np.ndarray:
    """Regions that are a quarter of their size wider and higher on each side."""
    margin = (rows[:, 3:] - rows[:, 1:3] + 1) / 4
    return np.concatenate([rows[:, :1], rows[:, 1:3] - margin, rows[:, 3:] + margin], 1)


def grid_aligned(x: Arrays, got: Arrays) -> Arrays:
    """MS-CNN's ROIAlign by loops over the corners of 3 x 4 bins, with the scale 0.5."""
    image, y = x["x0"], np.zeros((4, 3, 4, 5))
    for r, region in enumerate(with_margin(x["x1"])):
        low, high = region[2:0:-1] / 2 - 0.5, region[4:2:-1] / 2 - 0.5
        for i, j in np.ndindex(4, 5):
            row, column = low + (high - low) * [i / 3, j / 4]
            if -0.5 <= row <= image.shape[2] - 0.5 and -0.5 <= column <= image.shape[3] - 0.5:
                y[r, :, i, j] = at(image[int(region[0])], row, column)
    return {"y": y}


def branch(rng: np.random.Generator) -> Arrays:
    """A branch with two classes and the background in 3 x 4 cells of 8 pixels, with boxes of 24 pixels, and its labels; label 9 is ignored."""
    x = {"x0": rng.standard_normal((2, 7, 3, 4)), "x1": np.zeros((2, 6, 3, 4))}
    x["x0"][:, 3:] *= 0.1
    x["x1"][:, 0] = rng.choice([0, 0, 0, 1, 2], (2, 3, 4))
    x["x1"][0, 0, 0, :3] = 1, 2, 9
    x["x1"][:, 1:3] = rng.uniform(0, 30, (2, 2, 3, 4))
    x["x1"][:, 3:5] = rng.uniform(1, 40, (2, 2, 3, 4))
    x["x1"][:, 5] = rng.uniform(0.2, 0.8, (2, 3, 4))
    return x


def detection_loss(x: Arrays, mode: str, overlaps: bool, shares: bool) -> np.ndarray:
    """MS-CNN's DetectionLoss by loops, with bg_threshold 0.6, bg_multiple 1 and lambda 2: both numbers of the top."""
    scores, truth = x["x0"].reshape(2, 7, 12), x["x1"].reshape(2, 6, 12)
    kept: set[tuple[int, int]] = set()
    for n in range(2):
        free = [j for j in range(12) if truth[n, 0, j] == 0 and truth[n, 5, j] < 0.6]
        for k in (1, 2) if mode == "bootstrap" else ():
            count = max(4, int((truth[n, 0] == k).sum()))
            kept |= {(n, j) for j in sorted(free, key=lambda j: -scores[n, k, j])[:count]}
        if mode == "all":
            kept |= {(n, j) for j in free}
    positive = {(n, j) for n, j in np.ndindex(2, 12) if truth[n, 0, j] != 0}
    weights = {(n, j): truth[n, 5, j] if overlaps and (n, j) in positive else 1.0 for n, j in positive | kept}
    if shares:
        total = {kind: sum(weights[cell] for cell in cells) for kind, cells in (("positive", positive), ("kept", kept))}
        for cell in weights:
            weights[cell] *= 0.5 * len(weights) / total["positive" if cell in positive else "kept"]
    counted = [(n, j) for n, j in weights if truth[n, 0, j] != 9]
    classes = 0.0
    for n, j in counted:
        values = np.exp(scores[n, :3, j])
        classes -= weights[n, j] * np.log(values[int(truth[n, 0, j])] / values.sum()) / len(counted)
    boxes, limits = 0.0, np.array([0.5, 0.5, np.log(2), np.log(2)])
    cells = [(n, j) for n, j in positive if truth[n, 0, j] != 9]
    mean, deviation = np.repeat(MEANS.reshape(2, 2).mean(1), 2), np.repeat(np.sqrt(DEVIATIONS.reshape(2, 2).prod(1)), 2)
    for n, j in cells:
        true = np.array([*(truth[n, 1:3, j] - (np.array([j % 4, j // 4]) + 0.5) * 8) / 24, *np.log(np.maximum(truth[n, 3:5, j], 2) / 24)])
        d = np.clip(scores[n, 3:, j], (-limits - mean) / deviation, (limits - mean) / deviation) - (true - MEANS) / DEVIATIONS
        boxes += 2 * np.where(abs(d) < 1, d * d / 2, abs(d) - 0.5).sum() / (4 * len(cells))
    return np.array([classes + boxes, boxes])


def detection_loss_case(mode: str, fields: str, *how: bool) -> Case:
    text = f'sample_mode: "{mode}" cls_num: 3 field_w: 24 field_h: 24 downsample_rate: 8 bg_threshold: 0.6 bg_multiple: 1 lambda: 2 {fields}'
    net = layer("DetectionLoss", "x0 x1", "y", f"detection_loss_param {{ {text} }} loss_param {{ ignore_label: 9 }} {REGRESSION}")
    return Case(f"DetectionLoss {mode}", net, branch, lambda x, got: {"y": detection_loss(x, mode, *how).reshape(1, 1, 1, 2)})


def lse_margin(x: Arrays, margin: float, scale: float | None = None) -> Arrays:
    """GlobalLSEMargin with the margin that the pass begins with; the first pass has 0. In TEST the margin stays."""
    cosines, labels = x["x0"], x["x1"].astype(int)
    scales = x.get("x2", np.full(len(labels), scale))
    others = np.stack([np.delete(row, label) for row, label in zip(cosines, labels)])
    own = np.take_along_axis(cosines, labels[:, None], 1)[:, 0]
    lse = np.log(np.exp(scales[:, None] * others).sum(1)) / scales
    margins = own - lse
    place = margin or margins.mean()
    for _ in range(1 if margin else 20):
        last, place = place, margins[abs(margins - place) < 0.1].mean()
        if abs(last - place) < 0.001:
            break
    margin = 0.9 * margin + 0.1 * place if margin else place
    y = scales[:, None] * (cosines - max(margin, 0) * (np.arange(cosines.shape[1]) == labels[:, None]))
    return {"y": y, "z": np.array([scales.mean(), own.mean(), lse.mean(), others.max(1).mean(), margin])}


def cosines(rng: np.random.Generator) -> Arrays:
    """Cosines of 8 samples in 4 classes; those of the labels' classes are near 0.7."""
    x = {"x0": rng.uniform(-0.3, 0.3, (8, 4)), "x1": rng.integers(0, 4, 8).astype(float)}
    np.put_along_axis(x["x0"], x["x1"].astype(int)[:, None], rng.uniform(0.6, 0.8, (8, 1)), 1)
    return x


def fixed_margin(x: Arrays, got: Arrays) -> Arrays:
    own = np.arange(4) == x["x1"].astype(int)[:, None]
    return {"y": x.get("x2", x["y/0"])[:, None] * (x["x0"] - 0.25 * own)}


def discrepancies(x: Arrays, kernels: int, ratio: float) -> dict[float, Arrays]:
    """The values of MMDLoss that two draws from two source and two target samples can have, each with the gradients of both bottoms."""
    source, target = x["x0"], x["x1"]
    every = np.concatenate([source, target])
    pairs = ((every[:, None] - every) ** 2).sum(2)
    numbers = 12 / pairs.sum() * float(ratio) ** (np.arange(kernels) - kernels // 2)

    def one(matching: tuple[int, int]) -> tuple[float, Arrays]:
        value, diffs = 0.0, {"x0": np.zeros_like(source), "x1": np.zeros_like(target)}
        terms = [("x0", 0, "x0", 1, 1), ("x1", 0, "x1", 1, 1), *(("x0", i, "x1", j, -1) for i, j in enumerate(matching))]
        for first, i, second, j, sign in terms:
            d = x[first][i] - x[second][j]
            parts = sign * np.exp(-numbers * (d @ d))
            value += parts.sum()
            diffs[first][i] += -2 * (numbers * parts).sum() * d
            diffs[second][j] -= -2 * (numbers * parts).sum() * d
        return value, diffs

    ways = [one((0, 1)), one((1, 0))]
    return {a[0] + b[0]: {name: (a[1][name] + b[1][name]) / 2 for name in x} for a, b in itertools.combinations_with_replacement(ways, 2)}


def discrepancy(x: Arrays, got: Arrays) -> Arrays:
    return {"loss": np.asarray(min(discrepancies(x, 3, 1.5), key=lambda value: abs(value - got["loss"])))}


def same_size(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The convolution of N x C x H x W with 3 x 3 filters and a pad of 1."""
    return convolve(np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), w, np.zeros(len(w)))


def conv_lstm(x: Arrays, got: Arrays) -> Arrays:
    """ConvLSTM by its formulas, for three steps. Parameters: W_x, W_h, b and three factors p, or those that a layer has."""
    image, cont = x["x0"], x["x1"]
    given = [x[f"y/{k}"] for k in range(6) if f"y/{k}" in x]
    inputs = given.pop(0) if given[0].shape[1] == image.shape[2] else None
    w, b, *peepholes = given
    shape = (image.shape[1], len(w) // 4, *image.shape[3:])
    h, c = (x[name][0] if name in x else np.zeros(shape) for name in ("x2", "x3"))
    steps = []
    for t in range(len(image)):
        keep = cont[t][:, None, None, None]
        z = same_size(h * keep, w) + b[:, None, None]
        if inputs is not None:
            z = z + same_size(image[t], inputs)
        i, f, o, g = np.split(z, 4, 1)
        for gate, p in zip((i, f, o), peepholes):
            gate += p * c
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = keep * f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        steps.append(h)
    return {"y": np.stack(steps), **({"h": h[None], "c": c[None]} if "x2" in x else {})}


def sequences(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    """Three steps of two sequences; a second sequence begins in the second step."""
    return lambda rng: {**normal(x0=(3, 2, 3, 4, 5), **shapes)(rng), "x1": np.array([[0, 1], [1, 0], [1, 1]])}


def settings_file(**settings: float) -> Callable[[str], None]:
    """Return what writes a JSON file of makefile/frcnn. Its texts have line ends, and its anchors are those of SMALL."""
    values = {"feat_stride": "16", "anchors": ",\n".join(", ".join(str(float(number)) for number in row) for row in SMALL)}

    def write(folder: str) -> None:
        text = json.dumps(values | {name: str(value) for name, value in settings.items()}).replace("\\n", "\n")
        pathlib.Path(folder, "config.json").write_text(text)

    return write


CONFIG = 'frcnn_param { config: "{folder}/config.json" }'


def mask_resized(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    y = np.zeros((*x.shape[:2], *size))
    for n, (i, j) in itertools.product(range(len(x)), np.ndindex(*size)):
        row, column = i * x.shape[2] / size[0], j * x.shape[3] / size[1]
        if row <= x.shape[2] - 0.5 and column <= x.shape[3] - 0.5:
            y[n, :, i, j] = at(x[n], row, column)
    return y


CASES = [
    pooling_case("Pooling", "pooling_param { kernel_size: [2, 3, 2] stride: [2, 1, 2] pad: [0, 1, 1] }", (2, 3, 2), (2, 1, 2), (0, 1, 1)),
    pooling_case("Pooling", "pooling_param { kernel_size: 2 kernel_size: 3 stride: 2 stride: 1 }", (2, 3), (2, 1), (0, 0)),
    pooling_case("Pooling3D", "pooling3d_param { kernel_size: 3 kernel_depth: 2 stride: 2 }", (2, 3, 3), (1, 2, 2)),
    pooling_case("Pooling3D", "pooling_param { kernel_size: 2 kernel_depth: 1 stride: 2 temporal_stride: 4 }", (1, 2, 2), (4, 2, 2)),
    pooling_case("NdPooling", "pooling_param { kernel_shape { dim: 1 dim: 2 dim: 3 } stride_shape { dim: 1 dim: 2 dim: 2 } "
                 "pad_shape { dim: 0 dim: 1 dim: 1 } }",
                 (1, 2, 3), (1, 2, 2), (0, 1, 1)),
    convolution_case("Convolution3D", "convolution3d_param { num_output: 3 kernel_size: 3 kernel_depth: 2 stride: 2 pad: 1 temporal_pad: 1 filter_group: 3 }",
                     (1, 2, 2), (1, 1, 1)),
    convolution_case("Convolution3D", "convolution_param { num_output: 3 kernel_size: 3 kernel_depth: 2 temporal_stride: 2 }", (2, 1, 1), (0, 0, 0)),
    convolution_case("NdConvolution", "convolution_param { num_output: 3 kernel_shape { dim: 2 dim: 3 dim: 3 } stride_shape { dim: 2 dim: 1 dim: 2 } "
                     "pad_shape { dim: 1 dim: 0 dim: 1 } }", (2, 1, 2), (1, 0, 1)),
    convolution_case("Convolution", "convolution_param { num_output: 3 kernel_size: [2, 3, 3] pad: [0, 1, 0] }", (1, 1, 1), (0, 1, 0)),
    Case("Deconvolution3D", layer("Deconvolution3D", "x0", "y", "convolution3d_param { num_output: 3 kernel_size: 3 kernel_depth: 2 stride: 2 }"),
         normal(x0=(2, 2, 3, 4, 3), y_0=(2, 3, 2, 3, 3), y_1=(3,)), deconvolved, ("x0", "y/0", "y/1")),
    Case("Deconvolution3D without bias_term", layer("Deconvolution3D", "x0", "y", "convolution3d_param { num_output: 3 kernel_size: 3 kernel_depth: 2 "
         "stride: 2 bias_term: false }"), normal(x0=(2, 2, 3, 4, 3), y_0=(2, 3, 2, 3, 3), y_1=(3,)), deconvolved, ("x0", "y/0", "y/1")),
    pooling_case("PoolingND", "pooling_nd_param { kernel_size: 2 stride: 2 stride: 1 stride: 2 }", (2, 2, 2), (2, 1, 2)),
    unpooling_case("UnPooling", "unpool: MAX kernel_size: 2 stride: 2 unpool_h: 6 unpool_w: 8", (6, 8), 2, 2, "MAX"),
    unpooling_case("UnPooling", "kernel_size: 2 stride: 2 unpool_h: 4 unpool_w: 8", (4, 8), 2, 2, "MAX"),
    unpooling_case("Unpooling", "unpool: AVE kernel_size: 3 stride: 2 unpool_h: 6 unpool_w: 8", (6, 8), 3, 2, "AVE"),
    unpooling_case("Unpooling", "unpool: TILE kernel_size: 2 stride: 2", (7, 9), 2, 2, "TILE"),
    unpooling_case("UnPooling", "out_kernel_size: 3 out_stride: 2", (7, 9), 3, 2, "FIXED"),
    unpooling_case("UnPooling", "unpool: DIV out_kernel_size: 3 out_stride: 2 out_pad: 1", (6, 8), 3, 2, "DIV", 1),
    unpooling_case("UnPooling", "unpool: REP out_kernel_size: 3 out_stride: 2 out_pad: 1", (6, 8), 3, 2, "REP", 1),
    Case("UnPooling with a mask", layer("UnPooling", "x0 x1", "y", "unpooling_param { unpool: MAX kernel_size: 2 stride: 2 unpool_h: 5 unpool_w: 7 }"), places,
         masked, ("x0",)),
    Case("Upsample height_scale", layer("Upsample", "x0", "y", "upsample_param { height_scale: 2 width_scale: 2 mode: NEAREST }"), normal(x0=(1, 2, 3, 4)),
         lambda x, got: {"y": x["x0"].repeat(2, 2).repeat(2, 3)}, ("x0",)),
    Case("Upsample two scales", layer("Upsample", "x0", "y", "upsample_param { height_scale: 3 width_scale: 2 }"), normal(x0=(1, 2, 3, 4)),
         lambda x, got: {"y": x["x0"].repeat(3, 2).repeat(2, 3)}, ("x0",)),
    Case("Upsample stride", layer("Upsample", "x0", "y", "upsample_param { scale: 1 stride: 2 }"), normal(x0=(1, 2, 3, 4)),
         lambda x, got: {"y": x["x0"].repeat(2, 2).repeat(2, 3)}, ("x0",)),
    *(Case(f"Resample {fields}", layer("Resample", "x0", "y", f"resample_param {{ {fields} height: {size[0]} width: {size[1]} }}"), normal(x0=(1, 2, 6, 8)),
           lambda x, got, size=size, how=how: {"y": resampled(x["x0"], size, *how)}, ("x0",))
      for fields, size, how in (("type: LINEAR", (12, 16), ("LINEAR",)), ("type: LINEAR", (3, 5), ("LINEAR",)), ("type: CUBIC", (9, 10), ("CUBIC",)),
                                ("type: CUBIC antialias: false", (3, 4), ("CUBIC", False)), ("type: NEAREST", (12, 24), ("NEAREST",)))),
    Case("Resample like", layer("Resample", "x0 x1", "y"), normal(x0=(1, 2, 6, 8), x1=(1, 1, 3, 4)),
         lambda x, got: {"y": resampled(x["x0"], (3, 4), "LINEAR")}, ("x0",)),
    Case("Downsample", layer("Downsample", "x0", "y", "downsample_param { top_height: 3 top_width: 4 }"), with_gaps,
         lambda x, got: {"y": downsampled(x["x0"], (3, 4))}),
    Case("Downsample like", layer("Downsample", "x0 x1", "y"), normal(x0=(1, 2, 7, 9), x1=(1, 1, 3, 4)),
         lambda x, got: {"y": downsampled(x["x0"], (3, 4))}, ("x0",)),
    Case("Downsample of the same size", layer("Downsample", "x0 x1", "y"), normal(x0=(1, 2, 3, 4), x1=(1, 1, 3, 4)), lambda x, got: {"y": x["x0"]}, ("x0",)),
    correlation_case("Correlation", "pad: 2 kernel_size: 1 max_displacement: 2 stride_1: 1 stride_2: 1", 2, 2, 1, 1, 1),
    correlation_case("Correlation", "pad: 3 kernel_size: 3 max_displacement: 3 stride_1: 2 stride_2: 2", 3, 3, 2, 2, 3),
    correlation_case("Correlation", "pad: 2 kernel_size: 1 max_displacement: 2 correlation_type: SUBTRACT", 2, 2, 1, 1, 1, None, True),
    correlation_case("Correlation1D", "pad: 2 kernel_size: 1 max_displacement: 2 single_direction: -1", 2, 2, 1, 1, 1, (-2, -1, 0)),
    correlation_case("Correlation1D", "pad: 2 kernel_size: 3 max_displacement: 2", 2, 2, 1, 1, 3, (-2, -1, 0, 1, 2)),
    Case("FlowWarp", layer("FlowWarp", "x0 x1", "y"), flow, flow_warped, ("x0", "x1")),
    Case("Warp", layer("Warp", "x0 x1", "y"), lambda rng: {"x0": rng.standard_normal((2, 3, 4, 5)), "x1": rng.integers(-1, 5, (2, 2, 4, 5)) + rng.uniform(
        0.1, 0.9, (2, 2, 4, 5))}, lambda x, got: {"y": sampled(x["x0"], x["x1"][:, 0], x["x1"][:, 1])}, ("x0", "x1")),
    Case("Grid", layer("Grid", "x0", "y"), normal(x0=(2, 3, 4, 5)), lambda x, got: {"y": np.broadcast_to(np.stack(np.indices((4, 5))[::-1]), (2, 2, 4, 5))}),
    Case("ChannelNorm", layer("ChannelNorm", "x0", "y"), normal(x0=(2, 3, 4, 5)), lambda x, got: {"y": np.sqrt((x["x0"] ** 2).sum(1, keepdims=True))}, ("x0",)),
    Case("NegReLU", layer("NegReLU", "x0", "y", "relu_param { negative_slope: 0.2 }"), normal(x0=(2, 3, 4)),
         lambda x, got: {"y": np.where(x["x0"] < 0, x["x0"], 0.2 * x["x0"])}, ("x0",)),
    Case("NegSquare", layer("NegSquare", "x0", "y"), normal(x0=(2, 3, 4)), lambda x, got: {"y": -(x["x0"] ** 2)}, ("x0",)),
    Case("ExpMax", layer("ExpMax", "x0", "y", "expmax_param { base: 2 scale: 0.5 shift: 1 }"), normal(x0=(2, 3, 4)),
         lambda x, got: {"y": 2 ** (1 + 0.5 * (x["x0"] - x["x0"].max(1, keepdims=True)))}),
    Case("Mean", layer("Mean", "x0 x1", "y z", "mean_param { operation: SUBTRACT value: 1 value: 2 mean_scale: 0.5 input_scale: 3 output_scale: 0.1 }"),
         normal(x0=(2, 2, 3, 4), x1=(2, 4, 3, 4)),
         lambda x, got: {top: 0.1 * (3 * x[name] - 0.5 * np.tile([1, 2], x[name].shape[1] // 2)[:, None, None]) for name, top in (("x0", "y"), ("x1", "z"))},
         ("x0", "x1")),
    flow_loss_case("L1Loss", "l1_loss_param { }", p=1, q=1),
    flow_loss_case("L1Loss", "l1_loss_param { plateau: 0.5 normalize_by_num_entries: true }", p=1, q=1, least=0.5, counted=True),
    flow_loss_case("L1Loss", "loss_weight: 2 l1_loss_param { l2_per_location: true l2_prescale_by_channels: true plateau: 0.7 }", p=2, q=0.5, epsilon=0.01,
                   scale=0.5, least_sum=0.49),
    flow_loss_case("LpqLoss", "lpq_loss_param { p: 1.5 q: 0.4 normalize_by_num_entries: true }", p=1.5, q=0.4, epsilon=0.01, counted=True),
    Case("LpqLoss of one bottom", layer("LpqLoss", "x0", "loss", "lpq_loss_param { p: 2 q: 0.5 q_epsilon: 0 }"), normal(x0=(2, 2, 3, 4)),
         lambda x, got: flow_loss(x, 2, 0.5), ("x0",)),
    Case("LabelSpecificAdd TRAIN", layer("LabelSpecificAdd", "x0 x1", "y", "label_specific_add_param { bias: -0.6 }"), scores,
         lambda x, got: {"y": added(x, -0.6)}, ("x0",)),
    Case("LabelSpecificAdd TEST", layer("LabelSpecificAdd", "x0 x1", "y", "label_specific_add_param { bias: -0.6 }"), scores,
         lambda x, got: {"y": x["x0"]}, phase="TEST"),
    Case("LabelSpecificAdd TRAIN-like TEST", layer("LabelSpecificAdd", "x0 x1", "y", "label_specific_add_param { bias: -0.3 transform_test: true }"), scores,
         lambda x, got: {"y": added(x, -0.3)}, phase="TEST"),
    Case("LabelSpecificAdd TRAIN, annealed", layer("LabelSpecificAdd", "x0 x1", "y z", "label_specific_add_param { bias_base: -0.1 bias_gamma: 0.5 "
         "bias_power: -1 bias_min: -0.35 bias_max: 1 iteration: 1 }"), scores, lambda x, got: {"y": added(x, -0.35), "z": np.array([-0.35])}, ("x0",)),
    Case("CombinedMargin", layer("CombinedMargin", "x0 x1", "y", "combined_margin_param { m1: 0.9 m2: 0.4 m3: 0.15 }"), scores, combined, ("x0",)),
    *(large_margin_case(kind, m, bottom) for kind, m, bottom in (("SINGLE", 1, False), ("DOUBLE", 2, False), ("TRIPLE", 3, False), ("QUADRUPLE", 4, True))),
    Case("TripletLoss", layer("TripletLoss", "x0 x1 x2", "loss", "triplet_loss_param { margin: 0.7 }"), normal(x0=(6, 4), x1=(6, 4), x2=(6, 4)), triplets,
         ("x0", "x1", "x2")),
    Case("TripletLoss with weights", layer("TripletLoss", "x0 x1 x2 x3", "loss", "loss_weight: 2 triplet_loss_param { margin: 0.7 }"),
         normal(x0=(6, 4), x1=(6, 4), x2=(6, 4), x3=(6,)), triplets, ("x0", "x1", "x2")),
    Case("ChannelScale", layer("ChannelScale", "x0 x1", "y"), normal(x0=(2, 3, 4, 2), x1=(2, 1, 4, 2)), lambda x, got: {"y": x["x0"] * x["x1"]}, ("x0", "x1")),
    Case("ChannelScale global TRAIN", layer("ChannelScale", "x0 x1", "y z", "channel_scale_param { global_scale: true max_global_scale: 0.6 }"),
         normal(x0=(2, 3), x1=(2, 1)), lambda x, got: {"y": x["x0"] * min(0.6, np.abs(x["x1"]).mean()), "z": np.array([min(0.6, np.abs(x["x1"]).mean())])}),
    Case("ChannelScale global", layer("ChannelScale", "x0 x1", "y z", "channel_scale_param { global_scale: true }"), normal(x0=(2, 3), x1=(2, 1), y_0=(1,)),
         lambda x, got: {"y": x["x0"] * x["y/0"], "z": x["y/0"]}, phase="TEST"),
    Case("ChannelScale without forward", layer("ChannelScale", "x0 x1", "y", "channel_scale_param { do_forward: false do_backward_feature: false }"),
         normal(x0=(2, 3), x1=(2, 1)), lambda x, got: {"y": x["x0"]}, ("x0",)),
    Case("PriorBox, denser", layer("PriorBox", "x0 x1", "y", "prior_box_param { min_size: 4 aspect_ratio: 4 flip: false denser_prior_boxes: true }"),
         normal(x0=(1, 2, 2, 1), x1=(1, 3, 10, 20)), lambda x, got: {"y": denser()}),
    Case("DeformableConvolution", layer("DeformableConvolution", "x0 x1", "y", "deformable_convolution_param { num_output: 4 group: 2 deformable_group: 2 "
         "kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0 }"), offsets, deformable, ("x0", "x1", "y/0", "y/1")),
    Case("SpatialTransformer", layer("SpatialTransformer", "x0 x1", "y", "st_param { output_H: 3 output_W: 4 theta_1_2: 0.1 theta_2_3: -0.2 }"),
         lambda rng: {"x0": rng.standard_normal((2, 3, 5, 6)), "x1": rng.uniform(0.4, 0.9, (2, 4)) * [1, -0.3, 0.2, 1]}, transformed, ("x0", "x1")),
    Case("MaskPooling", layer("MaskPooling", "x0 x1", "y"), normal(x0=(2, 3, 4, 5), x1=(2, 1, 4, 5)), lambda x, got: {"y": x["x0"] * x["x1"]}, ("x0", "x1")),
    Case("GuidedDropout", layer("GuidedDropout", "x0 x1", "y", "guided_dropout_param { guidance_threshold: 0.1 }"), normal(x0=(4, 6, 3), x1=(4, 6)), guided,
         ("x0",)),
    Case("GuidedDropout stochastic TRAIN", layer("GuidedDropout", "x0 x1", "y", 'guided_dropout_param { type: "stochastic" sigmoid_scaler: 2 }'),
         normal(x0=(20, 30, 2), x1=(20, 30)), drawn, ("x0",)),
    Case("GuidedDropout stochastic", layer("GuidedDropout", "x0 x1", "y", 'guided_dropout_param { type: "stochastic" }'), normal(x0=(2, 3), x1=(2, 3)),
         lambda x, got: {"y": x["x0"]}, phase="TEST"),
    Case("GRN", layer("GRN", "x0", "y"), normal(x0=(2, 3, 4)), lambda x, got: {"y": x["x0"] / np.sqrt((x["x0"] ** 2).sum(1, keepdims=True))}, ("x0",)),
    Case("GRN with a bias", layer("GRN", "x0", "y", "grn_param { bias: 0.5 }"), normal(x0=(2, 3, 4)),
         lambda x, got: {"y": x["x0"] / np.sqrt((x["x0"] ** 2).sum(1, keepdims=True) + 0.5)}, ("x0",)),
    attention_case("normalization_factor: 2", (5, 7), True, False, 2),
    attention_case("psa_type: DISTRIBUTE is_softmax: true attention_mask_height: 3 attention_mask_width: 5", (3, 5), False, True, 15),
    Case("DecodeBBox", layer("DecodeBBox", "x0 x1", "y", REGRESSION), without_truth, lambda x, got: decoded(x, False), phase="TEST"),
    Case("DecodeBBox TRAIN", layer("DecodeBBox", "x0 x1 x2", "y", f"decode_bbox_param {{ gt_iou_thr: 0.8 }} {REGRESSION}"), changes,
         lambda x, got: decoded(x, True)),
    *(Case(f"BoxOutput {kind}", layer("BoxOutput", "x0 x1", "y z", f'box_output_param {{ nms_type: "{kind}" fg_thr: 0.2 iou_thr: 0.4 field_w: 24 field_h: 24 '
           f"field_w: 40 field_h: 40 downsample_rate: 8 downsample_rate: 16 max_nms_num: 20 max_post_nms_num: 5 }} {REGRESSION}"), branches,
           lambda x, got, kind=kind: box_output(x, kind), phase="TEST") for kind in ("IOU", "IOMU", "IOFU")),
    Case("ROIWarping", layer("ROIWarping", "x0 x1", "y", "propagate_down: true propagate_down: false roi_warping_param { pooled_h: 3 pooled_w: 4 "
         "spatial_scale: 0.5 }"), regions, roi_warped, ("x0",)),
    Case("ROIAlignment steps", layer("ROIAlignment", "x0 x1", "y", "propagate_down: true propagate_down: false roi_alignment_param { pooled_h: 3 pooled_w: 4 "
         "spatial_scale: 0.5 }"), regions, lambda x, got: roi_aligned(x, False), ("x0",)),
    Case("ROIAlignment sampling_ratio", layer("ROIAlignment", "x0 x1", "y", "propagate_down: true propagate_down: false roi_alignment_param { pooled_h: 3 "
         "pooled_w: 4 spatial_scale: 0.5 sampling_ratio: 1 }"), regions, lambda x, got: roi_aligned(x, True), ("x0",)),
    Case("ROIAlign of MS-CNN", layer("ROIAlign", "x0 x1", "y", "propagate_down: true propagate_down: false roi_pooling_param { pooled_h: 3 pooled_w: 4 "
         "spatial_scale: 0.5 pad_ratio: 0.25 }"), regions, grid_aligned, ("x0",)),
    Case("ROIPooling pad_ratio", layer("ROIPooling", "x0 x1", "y", "propagate_down: true propagate_down: false roi_pooling_param { pooled_h: 5 pooled_w: 5 "
         "spatial_scale: 0.25 pad_ratio: 0.25 }"), regions, lambda x, got: roi_pool({"x0": x["x0"], "x1": with_margin(x["x1"])}, got), ("x0",)),
    *(Case(f"MaskResize {h} {w}", layer("MaskResize", "x0", "y", f"mask_resize_param {{ output_height: {h} output_width: {w} }}"), normal(x0=(2, 2, 4, 6)),
           lambda x, got, size=(h, w): {"y": mask_resized(x["x0"], size)}, ("x0",)) for h, w in ((9, 12), (3, 2), (4, 6))),
    Case("BReLU", layer("BReLU", "x0", "y"), normal(x0=(2, 30)), lambda x, got: {"y": np.clip(x["x0"], 0, 1)}, ("x0",)),
    Case("BReLU with bounds", layer("BReLU", "x0", "y", "brelu_param { minval: -0.5 maxval: 0.75 }"), normal(x0=(2, 30)),
         lambda x, got: {"y": np.clip(x["x0"], -0.5, 0.75)}, ("x0",)),
    detection_loss_case("all", "iou_weighted: true", True, False),
    detection_loss_case("bootstrap", "pos_neg_weighted: true", False, True),
    Case("GlobalLSEMargin TRAIN, first", layer("GlobalLSEMargin", "x0 x1", "y z", "scale_param { max_value: 20 }"), cosines,
         lambda x, got: lse_margin(x, 0, 20)),
    Case("GlobalLSEMargin TRAIN, later", layer("GlobalLSEMargin", "x0 x1 x2", "y z"), lambda rng: {**cosines(rng), "x2": rng.uniform(9, 11, 8), "y/0": np.ones(
         1), "y/1": np.array([0.45])}, lambda x, got: lse_margin(x, 0.45)),
    Case("GlobalLSEMargin", layer("GlobalLSEMargin", "x0 x1", "y"), lambda rng: {**cosines(rng), "y/0": np.array([3.0]), "y/1": np.array([0.25])}, fixed_margin,
         ("x0", "y/0"), phase="TEST"),
    Case("GlobalLSEMargin with norms", layer("GlobalLSEMargin", "x0 x1 x2", "y"), lambda rng: {**cosines(rng), "x2": rng.uniform(2, 3, 8), "y/0": np.ones(1),
         "y/1": np.array([0.25])}, fixed_margin, ("x0", "x2"), phase="TEST"),
    Case("MMDLoss", layer("MMDLoss", "x0 x1", "loss", "mmd_param { kernel_num: 3 kernel_mul: 1.5 }"), normal(x0=(2, 3), x1=(2, 3)), discrepancy),
    Case("FrcnnProposal", layer("FrcnnProposal", "x0 x1 x2", "rois scores", CONFIG), score_maps, proposals, phase="TEST",
         prepare=settings_file(test_rpn_pre_nms_top_n=600, test_rpn_post_nms_top_n=100, test_rpn_nms_thresh=0.7, test_rpn_min_size=16)),
    Case("FrcnnAnchorTarget", layer("FrcnnAnchorTarget", "x0 x1 x2", "labels targets inside outside", CONFIG), lambda rng: {
         "x0": np.zeros((1, 2 * len(SMALL), *CELLS)), "x1": np.column_stack([some_boxes(rng, 5), rng.integers(1, 4, 5)]), "x2": np.array([[*IMAGE, 1.0]])},
         anchor_targets, prepare=settings_file(rpn_batchsize=100000, rpn_positive_overlap=0.7, rpn_clobber_positives=0)),
    Case("FrcnnProposalTarget", layer("FrcnnProposalTarget", "x0 x1", "rois labels targets inside outside", CONFIG), region_problem, proposal_targets,
         prepare=settings_file(n_classes=4, batch_size=-1, bg_thresh_lo=0.1, bbox_normalize_targets=1)),
    Case("ConvLSTM", layer("ConvLSTM", "x0 x1", "y", "lstm_conv_param { num_output: 2 kernel_size: 3 pad: 1 }"), sequences(y_0=(8, 3, 3, 3), y_1=(8, 2, 3, 3),
         y_2=(8,), y_3=(4, 5), y_4=(4, 5), y_5=(4, 5)), conv_lstm, ("x0", *(f"y/{k}" for k in range(6)))),
    Case("ConvLSTM with states", layer("ConvLSTM", "x0 x1 x2 x3", "y h c", "recurrent_param { expose_hidden: true } "
         'lstm_debug_param { disable_hadamard: true } lstm_conv_param { type: "hidden" num_output: 2 kernel_size: 3 pad: 1 } '
         'lstm_conv_param { type: "input" num_output: 2 kernel_size: 3 pad: 1 }'),
         sequences(x2=(1, 2, 2, 4, 5), x3=(1, 2, 2, 4, 5), y_0=(8, 3, 3, 3), y_1=(8, 2, 3, 3), y_2=(8,)), conv_lstm, ("x0", "x2", "x3", "y/0", "y/1", "y/2")),
    Case("ConvLSTM without inputs", layer("ConvLSTM", "x0 x1 x2 x3", "y h c", "recurrent_param { expose_hidden: true } lstm_debug_param { ignore_x: true "
         "axis_hadamard: 2 num_axes_hadamard: 3 } lstm_conv_param { num_output: 2 kernel_size: 3 pad: 1 }"), sequences(x2=(1, 2, 2, 4, 5), x3=(1, 2, 2, 4, 5),
         y_0=(8, 2, 3, 3), y_1=(8,), y_2=(2, 4, 5), y_3=(2, 4, 5), y_4=(2, 4, 5)), conv_lstm, ("x2", "x3", *(f"y/{k}" for k in range(5)))),
]  # fmt: skip
