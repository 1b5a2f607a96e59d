"""Cases with a numpy reference, for layer types without golden cases. Add the case of a new layer type here (docs/layers.md)."""
from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from PIL import Image

from ocaffe.check.case import Arrays, Case, layer, normal


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def layer_norm(x: np.ndarray, eps: float) -> np.ndarray:
    """Normalise each sample by its mean and variance."""
    axes = tuple(range(1, x.ndim))
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


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


def places(shape: tuple[int, ...], chosen: tuple[int, ...], low: int, high: int) -> Any:
    """Return the `make` of a case: x0 of normal numbers, x1 of indices from low to high - 1."""
    return lambda rng: {"x0": rng.standard_normal(shape), "x1": rng.integers(low, high, chosen)}


CASES = [
    Case("Gelu", layer("Gelu", "x0", "y"), normal(x0=(3, 5, 7)), lambda x, got: {"y": gelu(x["x0"])}, ("x0",)),
    Case(
        "LayerNorm", layer("LayerNorm", "x0", "y", "layer_norm_param { eps: 0.01 }"), normal(x0=(3, 5, 7)),
        lambda x, got: {"y": layer_norm(x["x0"], 0.01)}, ("x0",),
    ),
    Case(
        "SmoothL1LossOHEM", layer("SmoothL1LossOHEM", "x0 x1 x2", "loss", "propagate_down: true propagate_down: true propagate_down: false"),
        normal(x0=(6, 8), x1=(6, 8), x2=(6, 8)), smooth_l1, ("x0", "x1"),
    ),
    Case("SpatialDropout", layer("SpatialDropout", "x0", "y"), normal(x0=(20, 30, 4)), spatial_dropout, ("x0",)),
    Case(
        "DenseImageData", layer("DenseImageData", "", "image label", 'dense_image_data_param { source: "{folder}/list.txt" batch_size: 3 is_color: false } '
        "transform_param { mean_value: 100 scale: 0.5 }"), lambda rng: {}, dense_images, prepare=write_pairs,
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
]  # fmt: skip
