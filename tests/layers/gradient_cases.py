"""Cases with a numpy reference, for layer types without golden cases. Add the case of a new layer type here (docs/layers.md).

Those of forks are in fork_cases.py, public_cases.py, flow_cases.py and sampled_cases.py.
"""
from __future__ import annotations

import math
import os
import pathlib
from typing import Any

import numpy as np
from PIL import Image

from ocaffe.selftest.case import Arrays, Case, layer, normal
from tests.data.scenes import Scene, database
from tests.layers import flow_cases, fork_cases, public_cases, quantized_cases, sampled_cases


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def layer_norm(x: np.ndarray, eps: float) -> np.ndarray:
    """Normalise each sample by its mean and variance."""
    axes = tuple(range(1, x.ndim))
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def product_case(name: str, a: tuple[int, ...], b: tuple[int, ...], **transposed: bool) -> Case:
    """MatMul: the last two axes of each bottom are a matrix, the others the batch, which is broadcast."""

    def product(x: Arrays, got: Arrays) -> Arrays:
        left, right = (x[f"x{i}"].swapaxes(-1, -2) if transposed.get(f"transpose_{side}") else x[f"x{i}"] for i, side in enumerate("ab"))
        return {"y": left @ right}

    fields = " ".join(f"{field}: {str(value).lower()}" for field, value in transposed.items())
    return Case(name, layer("MatMul", "x0 x1", "y", f"matmul_param {{ {fields} }}"), normal(x0=a, x1=b), product, ("x0", "x1"))


def smooth_l1(x: Arrays, got: Arrays) -> Arrays:
    d = x["x2"] * (x["x0"] - x["x1"])
    return {"loss": np.asarray(np.where(np.abs(d) < 1, d * d / 2, np.abs(d) - 0.5).sum() / len(d))}


def spatial_dropout(x: Arrays, got: Arrays) -> Arrays:
    """The device draws the channels; about half of them must be kept."""
    kept = got["y"][:, :, :1] != 0
    return {"y": 2 * x["x0"] * kept if abs(kept.mean() - 0.5) < 0.1 else np.full(x["x0"].shape, np.nan)}


def pairs(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Write a gray image and its label image."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (9, 7), np.uint8), rng.integers(0, 5, (9, 7), np.uint8)


def write_pairs(folder: str) -> None:
    with open(os.path.join(folder, "list.txt"), "w") as out:
        for number in range(3):
            names = [os.path.join(folder, f"{kind}{number}.png") for kind in ("image", "label")]
            for name, pixels in zip(names, pairs(number)):
                Image.fromarray(pixels).save(name)
            out.write(f"{names[0]} {names[1]}\n")


def dense_images(x: Arrays, got: Arrays) -> Arrays:
    images, labels = (np.stack(planes)[:, None].astype(float) for planes in zip(*map(pairs, range(3))))
    return {"image": 0.5 * (images - 100), "label": labels}


ROI_SCENE = Scene(np.random.default_rng(5).integers(0, 256, (12, 20, 3)).astype(np.uint8), [(2, 3, 11, 12, 2, False), (0, 0, 20, 6, 1, True)])


def roi_data(x: Arrays, got: Arrays) -> Arrays:
    """The image already has the right size. One of its boxes is difficult."""
    data = np.zeros((1, 3, 16, 24))
    data[0, :, :12, :20] = (ROI_SCENE.pixels - np.array([102.9801, 115.9465, 122.7717])).transpose(2, 0, 1)
    boxes = np.full((8, 5), -1.0)
    boxes[0] = 2, 3, 10, 11, 2
    return {"data": data, "im_info": np.array([[12, 20, 1.0]]), "gt_boxes": boxes}


def places(shape: tuple[int, ...], chosen: tuple[int, ...], low: int, high: int) -> Any:
    """Return the `make` of a case: x0 of normal numbers, x1 of indices from low to high - 1."""
    return lambda rng: {"x0": rng.standard_normal(shape), "x1": rng.integers(low, high, chosen)}


def lstm(x: Arrays, got: Arrays) -> Arrays:
    """Return the outputs of an LSTM y with initial states."""
    tops, h, c = [], x["x2"][0], x["x3"][0]
    for step, cont in zip(x["x0"] @ x["y/0"].T + x["y/1"], x["x1"][:, :, None]):
        i, f, o, g = np.split(step + (cont * h) @ x["y/2"].T, 4, 1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = cont * f * c + i * np.tanh(g)
        tops.append(h := o * np.tanh(c))
    return {"y": np.stack(tops), "h": h[None], "c": c[None]}


def rnn(x: Arrays, got: Arrays) -> Arrays:
    """Return the outputs of an RNN y with an initial state."""
    tops, h = [], x["x2"][0]
    for step, cont in zip(x["x0"] @ x["y/0"].T + x["y/1"], x["x1"][:, :, None]):
        h = np.tanh(step + (cont * h) @ x["y/2"].T)
        tops.append(np.tanh(h @ x["y/3"].T + x["y/4"]))
    return {"y": np.stack(tops), "h": h[None]}


def gru(x: Arrays, got: Arrays) -> Arrays:
    """Return the outputs of a GRU y; with 7 parameters, the reset gate multiplies the product."""
    w_x, b, w_z, w_r, w_n, *b_n = (x[f"y/{k}"] for k in range(sum(name.startswith("y/") for name in x)))
    tops, h = [], x["x2"][0]
    for step, cont in zip(x["x0"] @ w_x.T + b, x["x1"]):
        h = cont[:, None] * h
        z, r, n = np.split(step, 3, 1)
        z, r = 1 / (1 + np.exp(-z - h @ w_z.T)), 1 / (1 + np.exp(-r - h @ w_r.T))
        n = np.tanh(n + (r * (h @ w_n.T + b_n[0]) if b_n else (r * h) @ w_n.T))
        tops.append(h := n + z * (h - n))
    return {"y": np.stack(tops), "h": tops[-1][None]}


def sequences(states: int, *parameters: tuple[int, ...]) -> Any:
    """Return the `make` of a recurrent layer with 4 steps of 3 sequences, 5 inputs, and initial states of 6 units."""
    shapes = {"x0": (4, 3, 5)} | {f"x{2 + k}": (1, 3, 6) for k in range(states)} | {f"y_{k}": shape for k, shape in enumerate(parameters)}
    return lambda rng: {**normal(**shapes)(rng), "x1": np.array([[1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 1, 1]])}


def grid_sample(x: np.ndarray, grid: np.ndarray, mode: str, padding: str, corners: str) -> np.ndarray:
    """Return the values of x (N x C x H x W) at the places of the grid (N x h x w x 2), which are from -1 to 1 along columns and rows."""
    images, size = np.arange(len(x))[:, None, None], np.array(x.shape[:1:-1])
    places = (grid + 1) / 2 * (size - 1) if corners == "true" else ((grid + 1) * size - 1) / 2
    if padding == "BORDER":
        places = np.clip(places, 0, size - 1)
    first = np.rint(places) if mode == "NEAREST" else np.floor(places)
    total = np.zeros((len(x), *grid.shape[1:3], x.shape[1]))
    for step in np.ndindex(2, 2) if mode == "BILINEAR" else [(0, 0)]:
        column, row = np.moveaxis((first + step).astype(int), -1, 0)
        weight = 1 if mode == "NEAREST" else np.prod(1 - np.abs(places - first - step), -1)
        inside = (column >= 0) & (column < size[0]) & (row >= 0) & (row < size[1])
        total += (inside * weight)[..., None] * x[images, :, row.clip(0, size[1] - 1), column.clip(0, size[0] - 1)]
    return np.moveaxis(total, -1, 1)


def roi_align(x: np.ndarray, regions: np.ndarray, bins: tuple[int, int], scale: float, ratio: int, half: str) -> np.ndarray:
    """Return the means of interpolated values in bins of regions (image, x1, y1, x2, y2)."""
    y = np.zeros((len(regions), x.shape[1], *bins))
    size = np.array(x.shape[2:])
    for (image, *corners), top in zip(regions, y):
        begin, end = np.array(corners).reshape(2, 2)[:, ::-1] * scale - (0.5 if half == "true" else 0)
        extent = end - begin if half == "true" else np.maximum(end - begin, 1)
        counts = np.full(2, ratio) if ratio else np.ceil(extent / bins).astype(int)
        for index in np.ndindex(*bins):
            for sample in np.ndindex(*counts):
                place = begin + extent / bins * (index + (np.array(sample) + 0.5) / counts)
                if ((place < -1) | (place > size)).any():
                    continue
                place = place.clip(0, size - 1)
                low = np.minimum(np.floor(place).astype(int), size - 1)
                for step in np.ndindex(2, 2):
                    weight = np.prod(np.where(step, place - low, 1 - place + low))
                    top[(slice(None), *index)] += weight * x[(int(image), slice(None), *np.minimum(low + step, size - 1))] / max(1, np.prod(counts))
    return y


STATES = "recurrent_param { num_output: 6 expose_hidden: true state_gradient: true"
CASES = [
    *fork_cases.CASES,
    *public_cases.CASES,
    *flow_cases.CASES,
    *sampled_cases.CASES,
    *quantized_cases.CASES,
    Case("Gelu", layer("Gelu", "x0", "y"), normal(x0=(3, 5, 7)), lambda x, got: {"y": gelu(x["x0"])}, ("x0",)),
    Case(
        "LayerNorm", layer("LayerNorm", "x0", "y", "layer_norm_param { eps: 0.01 }"), normal(x0=(3, 5, 7)),
        lambda x, got: {"y": layer_norm(x["x0"], 0.01)}, ("x0",),
    ),
    Case(
        "SmoothL1LossOHEM", layer("SmoothL1LossOHEM", "x0 x1 x2", "loss", "propagate_down: true propagate_down: true propagate_down: false"),
        normal(x0=(6, 8), x1=(6, 8), x2=(6, 8)), smooth_l1, ("x0", "x1"),
    ),
    product_case("MatMul", (2, 3, 5, 7), (2, 3, 7, 4)),
    product_case("MatMul, both transposed", (6, 37, 15), (6, 45, 37), transpose_a=True, transpose_b=True),
    product_case("MatMul of rows and rows", (2, 3, 65, 16), (2, 3, 33, 16), transpose_b=True),
    product_case("MatMul of columns and columns", (5, 16, 9), (5, 16, 70), transpose_a=True),
    product_case("MatMul, one matrix", (2, 3, 5, 7), (7, 4)),
    product_case("MatMul, one matrix, transposed", (2, 3, 5, 7), (1, 4, 7), transpose_b=True),
    product_case("MatMul, one matrix on the left", (5, 7), (2, 3, 7, 4)),
    product_case("MatMul, batches broadcast", (2, 1, 5, 7), (3, 7, 4)),
    product_case("MatMul, one transposed matrix on the left", (7, 5), (3, 7, 4), transpose_a=True),
    Case(
        "MatMul of flat bottoms", layer("MatMul", "x0 x1", "y", "matmul_param { dim_1: 6 dim_2: 10 dim_3: 4 }"), normal(x0=(3, 4, 5), x1=(2, 20)),
        lambda x, got: {"y": x["x0"].reshape(6, 10) @ x["x1"].reshape(4, 10).T}, ("x0", "x1"),
    ),
    Case("SpatialDropout", layer("SpatialDropout", "x0", "y"), normal(x0=(20, 30, 4)), spatial_dropout, ("x0",)),
    Case(
        "DenseImageData", layer("DenseImageData", "", "image label", 'dense_image_data_param { source: "{folder}/list.txt" batch_size: 3 is_color: false } '
        "transform_param { mean_value: 100 scale: 0.5 }"), lambda rng: {}, dense_images, prepare=write_pairs,
    ),
    Case(
        "RoIData", layer("RoIData", "", "data im_info gt_boxes", "python_param { param_str: \"'num_classes': 3, 'source': '{folder}/db', 'scales': [12], "
        "'pad': 8\" }"), lambda rng: {}, roi_data, phase="TEST", prepare=lambda folder: database(pathlib.Path(folder, "db"), [ROI_SCENE]),
    ),
    Case(
        "RMSNorm", layer("RMSNorm", "x0", "y", "rms_norm_param { axis: 1 eps: 0.01 }"), normal(x0=(3, 5, 7)),
        lambda x, got: {"y": x["x0"] / np.sqrt((x["x0"] ** 2).mean((1, 2), keepdims=True) + 0.01)}, ("x0",),
    ),
    Case("Sin", layer("Sin", "x0", "y"), normal(x0=(3, 5, 7)), lambda x, got: {"y": np.sin(x["x0"])}, ("x0",)),
    Case("Cos", layer("Cos", "x0", "y"), normal(x0=(3, 5, 7)), lambda x, got: {"y": np.cos(x["x0"])}, ("x0",)),
    Case(
        "StridedSlice", layer("StridedSlice", "x0", "y", "strided_slice_param { axis: 0 axis: 2 axis: -1 start: -1 start: 1 start: 7 end: -9 end: 6 end: 0 "
        "step: -1 step: 2 step: -3 }"), normal(x0=(3, 2, 7, 9)), lambda x, got: {"y": x["x0"][-1:-9:-1, :, 1:6:2, 7:0:-3]}, ("x0",),
    ),
    Case(
        "StridedSlice, samples", layer("StridedSlice", "x0", "y", "strided_slice_param { axis: 0 step: -2 }"), normal(x0=(5, 3)),
        lambda x, got: {"y": x["x0"][::-2]}, ("x0",),
    ),
    Case(
        "Gather", layer("Gather", "x0 x1", "y", "gather_param { axis: 1 }"), places((3, 5, 4), (2, 3), -5, 5),
        lambda x, got: {"y": np.take(x["x0"], x["x1"].astype(int), 1)}, ("x0",),
    ),
    Case(
        "GatherElements", layer("GatherElements", "x0 x1", "y", "gather_elements_param { axis: 1 }"), places((3, 5, 4), (2, 7, 3), -5, 5),
        lambda x, got: {"y": np.take_along_axis(x["x0"][:2, :, :3], x["x1"].astype(int), 1)}, ("x0",),
    ),
    Case(
        "GatherND", layer("GatherND", "x0 x1", "y", "gather_nd_param { batch_dims: 1 }"), places((2, 3, 4, 5), (2, 6, 2), -3, 3),
        lambda x, got: {"y": np.stack([image[tuple(at.astype(int).T)] for image, at in zip(x["x0"], x["x1"])])}, ("x0",),
    ),
    *(Case(
        f"GRU, linear_before_reset {linear}", layer("GRU", "x0 x1 x2", "y h", f"{STATES} linear_before_reset: {linear} }}"),
        sequences(1, (18, 5), (18,), (6, 6), (6, 6), (6, 6), *[(6,)] * linear), gru, ("x0", "x2", *(f"y/{k}" for k in range(5 + linear))),
    ) for linear in (0, 1)),
    Case(
        "LSTM, state_gradient", layer("LSTM", "x0 x1 x2 x3", "y h c", f"{STATES} }}"), sequences(2, (24, 5), (24,), (24, 6)), lstm,
        ("x0", "x2", "x3", "y/0", "y/1", "y/2"),
    ),
    Case(
        "RNN, state_gradient", layer("RNN", "x0 x1 x2", "y h", f"{STATES} }}"), sequences(1, (6, 5), (6,), (6, 6), (6, 6), (6,)), rnn,
        ("x0", "x2", *(f"y/{k}" for k in range(5))),
    ),
    Case(
        "Where", layer("Where", "x0 x1 x2", "y"), lambda rng: {
            "x0": rng.integers(0, 2, (3, 4, 1)), "x1": rng.standard_normal((2, 3, 4, 5)), "x2": rng.standard_normal((4, 5)),
        }, lambda x, got: {"y": np.where(x["x0"], x["x1"], x["x2"])}, ("x1", "x2"),
    ),
    Case(
        "IsNaN", layer("Power", "x0", "p", "power_param { power: 0.5 }") + layer("IsNaN", "p", "y"), normal(x0=(3, 5)),
        lambda x, got: {"y": np.float64(x["x0"] < 0)},
    ),
    *(Case(
        name, layer("Power", "x0", "p", "power_param { scale: 0.5 }") + layer(name, "p", "y"), lambda rng: {"x0": rng.integers(-40, 40, (3, 5, 7)) / 4},
        lambda x, got, function=function: {"y": function(x["x0"] / 2)},
    ) for name, function in {"Floor": np.floor, "Ceil": np.ceil, "Round": np.rint}.items()),
    Case(
        "Mod", layer("Mod", "x0 x1", "y"), lambda rng: {"x0": rng.integers(-40, 40, (2, 5, 7)) / 4, "x1": rng.choice([-3, -0.75, 1.5, 4], (5, 1))},
        lambda x, got: {"y": np.fmod(x["x0"], x["x1"])},
    ),
    *(Case(
        f"Compare, {name}", layer("Compare", "x0 x1", "y", f"compare_param {{ operation: {name} }}"),
        lambda rng: {"x0": rng.integers(0, 3, (2, 5, 7)), "x1": rng.integers(0, 3, (5, 1))},
        lambda x, got, function=function: {"y": np.float64(function(x["x0"], x["x1"]))},
    ) for name, function in {
        "EQUAL": np.equal, "GREATER": np.greater, "GREATER_OR_EQUAL": np.greater_equal, "LESS": np.less, "LESS_OR_EQUAL": np.less_equal,
        "AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor,
    }.items()),
    *(Case(
        f"GridSample, {mode}, {padding}, align_corners {corners}",
        layer("GridSample", "x0 x1", "y", f"grid_sample_param {{ mode: {mode} padding: {padding} align_corners: {corners} }}"),
        lambda rng: {"x0": rng.standard_normal((2, 3, 5, 7)), "x1": rng.uniform(-1.3, 1.3, (2, 4, 6, 2))},
        lambda x, got, options=(mode, padding, corners): {"y": grid_sample(x["x0"], x["x1"], *options)}, ("x0", "x1") if mode == "BILINEAR" else ("x0",),
    ) for mode in ("BILINEAR", "NEAREST") for padding in ("ZEROS", "BORDER") for corners in ("false", "true")),
    *(Case(
        f"ROIAlign, sampling_ratio {ratio}, half_pixel {half}", layer("ROIAlign", "x0 x1", "y", "propagate_down: true propagate_down: false roi_align_param { "
        f"pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 sampling_ratio: {ratio} half_pixel: {half} }}"),
        lambda rng: {"x0": rng.standard_normal((2, 3, 6, 8)), "x1": np.array([[0, 1, 2, 9, 8], [1, -3, 0, 20, 11.5], [1, 4, 4, 4.5, 4.5], [0, 0, 5, 15, 7]])},
        lambda x, got, options=(ratio, half): {"y": roi_align(x["x0"], x["x1"], (2, 3), 0.5, *options)}, ("x0",),
    ) for ratio in (0, 2) for half in ("false", "true")),
]  # fmt: skip
