"""Cases with a numpy reference, for layer types without golden cases. Add the case of a new layer type here (docs/layers.md)."""
from __future__ import annotations

import math
import os

import numpy as np
from PIL import Image

from ocaffe.check.case import Arrays, Case, layer, normal


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
]  # fmt: skip
