"""Cases with a numpy reference for the layer types and fields that a random sample of public prototxts uses, beside those of public_cases.py."""
from __future__ import annotations

import pathlib
from collections.abc import Callable

import numpy as np
from PIL import Image

from ocaffe.selftest.case import Arrays, Case, layer, normal
from ocaffe.selftest.layers import convolve


def dice(x: Arrays, got: Arrays) -> Arrays:
    a, b = (x[name].reshape(len(x[name]), -1) for name in ("x0", "x1"))
    return {"loss": 1 - ((2 * (a * b).sum(1) + 0.5) / ((a**2).sum(1) + (b**2).sum(1) + 0.5)).mean()}


def grouped(x: np.ndarray, groups: int, eps: float) -> np.ndarray:
    parts = x.reshape(x.shape[0], groups, -1)
    return ((parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + eps)).reshape(x.shape)


def lifted(x: Arrays, got: Arrays) -> Arrays:
    """The loss by loops over pairs, with margin 1.5."""
    features, labels = x["x0"].reshape(len(x["x0"]), -1), x["x1"].ravel()
    far = [[np.linalg.norm(a - b) for b in features] for a in features]
    total, count = 0.0, 0
    for i in range(len(labels)):
        for j in range(i + 1, len(labels)):
            if labels[i] == labels[j]:
                apart = sum(np.exp(1.5 - far[own][k]) for own in (i, j) for k in range(len(labels)) if labels[k] != labels[own])
                total += max(0, far[i][j] + np.log(apart)) ** 2 if apart else 0
                count += 1
    return {"loss": total / max(count, 1) / 2}


def labelled(labels: list[int], scale: float = 1.0) -> Callable[[np.random.Generator], Arrays]:
    """`make` of a Case with these labels. `scale`: the standard deviation of the features."""
    return lambda rng: {"x0": scale * rng.standard_normal((len(labels), 5)), "x1": np.array(labels, float)}


def merged(x: Arrays, stack: bool, used: tuple[bool, bool] = (True, True)) -> np.ndarray:
    a, b = x["x0"] * used[0], x["x1"][:, :, 1:4, 0:3] * used[1]
    return np.concatenate([a, b], 1) if stack else a + b


def upscaled(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Deconvolution of one channel with a kernel of 4 and a stride of 2."""
    y = np.zeros((len(x), 1, 2 * x.shape[2] + 2, 2 * x.shape[3] + 2))
    for h, v in np.ndindex(*x.shape[2:]):
        y[:, 0, 2 * h : 2 * h + 4, 2 * v : 2 * v + 4] += x[:, 0, h, v, None, None] * w[0, 0]
    return y + b


def auto_cropped(x: Arrays, got: Arrays) -> Arrays:
    """conv (kernel 3, pad 7), pooling 2 x 2, deconvolution and AutoCrop: a pixel of the deconvolution lies 6 - 0.5 - 0.5 - ... pixels before the image.

    Windows of the convolution begin at -7 and have their middle at -6. Those of the pooling have it at -5.5, and the first of the deconvolution 1.5 earlier.
    """
    image = np.pad(x["x0"], [(0, 0), (0, 0), (7, 7), (7, 7)])
    conv = convolve(image, x["c/0"], x["c/1"])
    pooled = conv.reshape(2, 1, conv.shape[2] // 2, 2, conv.shape[3] // 2, 2).mean((3, 5))
    return {"y": upscaled(pooled, x["u/0"], x["u/1"])[:, :, 7 : 7 + 6, 7 : 7 + 8]}


AUTO_CROP = """layer { name: "c" type: "Convolution" bottom: "x0" top: "c" convolution_param { num_output: 1 kernel_size: 3 pad: 7 } }
layer { name: "r" type: "AbsVal" bottom: "c" top: "r" }
layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "u" type: "Deconvolution" bottom: "p" top: "u" convolution_param { num_output: 1 kernel_size: 4 stride: 2 } }
layer { name: "y" type: "AutoCrop" bottom: "u" bottom: "x0" top: "y" }
layer { name: "s" type: "Silence" bottom: "r" }"""


def weighted_sum(x: Arrays, got: Arrays) -> Arrays:
    return {"y": 2 * x["x2"][0][:, :, None] * x["x0"] - x["x2"][1][:, :, None] * x["x1"]}


def losses(x: Arrays, got: Arrays) -> Arrays:
    """SoftmaxWithLoss with ignore_label 1: the mean loss of the other positions, the probabilities, and the loss of each position."""
    e = np.exp(x["x0"] - x["x0"].max(1, keepdims=True))
    p, labels = e / e.sum(1, keepdims=True), x["x1"].astype(int)
    each = np.where(labels == 1, 0, -np.log(np.take_along_axis(p, labels[:, None], 1)[:, 0]))
    return {"loss": each.sum() / (labels != 1).sum(), "p": p, "each": each}


def dense_boxes(x: Arrays, got: Arrays) -> Arrays:
    """FaceBoxes: fixed_size 8 with density 2 and 5 with density 1, the ratios 1 and 4 (no flip), then min_size 3, in a map of 1 x 2 cells of 20 x 10 pixels."""
    boxes = []
    for column in range(2):
        cx, cy = (column + 0.5) * 10, 5.0
        for size, density in ((8, 2), (5, 1)):
            step = size // density
            for ratio in (1, 4):
                w, h = size * np.sqrt(ratio), size / np.sqrt(ratio)
                for r in range(density):
                    for c in range(density):
                        mx, my = (m - size // 2 + step / 2 + k * step for m, k in ((cx, c), (cy, r)))
                        corners = [(mx - w / 2) / 20, (my - h / 2) / 10, (mx + w / 2) / 20, (my + h / 2) / 10]
                        boxes.append(np.clip(corners, 0, 1))
        for ratio in (1, 4):
            w, h = 3 * np.sqrt(ratio), 3 / np.sqrt(ratio)
            boxes.append(np.array([(cx - w / 2) / 20, (cy - h / 2) / 10, (cx + w / 2) / 20, (cy + h / 2) / 10]))
    flat = np.concatenate(boxes)
    return {"y": np.stack([flat, np.full(flat.size, 0.1)])[None]}


def region_losses(x: Arrays, got: Arrays) -> Arrays:
    d = x["x2"] * (x["x0"] - x["x1"])
    terms = np.where(np.abs(d) < 1, 0.5 * d * d, np.abs(d) - 0.5)
    return {"loss": terms.sum() / 3, "each": terms.sum(1).reshape(3, 1, 1, 1)}


LEVELS = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5


def label_maps(folder: str) -> None:
    """Two images with the same gray map, mirrored in the second."""
    path = pathlib.Path(folder)
    for n, levels in enumerate((LEVELS, LEVELS[:, ::-1])):
        Image.fromarray(np.ascontiguousarray(levels // 2)).save(path / f"i{n}.png")
        Image.fromarray(np.ascontiguousarray(levels)).save(path / f"m{n}.png")
    (path / "list.txt").write_text("i0.png m0.png\ni1.png m1.png\n")


def mapped(divisor: float) -> Arrays:
    maps = np.stack([LEVELS, LEVELS[:, ::-1]])[:, None].astype(float)
    return {"data": maps // 2 - 7, "label": maps / divisor}


def label_map_case(name: str, more: str, divisor: float) -> Case:
    fields = f'image_data_param {{ source: "{{folder}}/list.txt" root_folder: "{{folder}}/" batch_size: 2 is_color: false {more} }}'
    net = layer("ImageLabelmapData", "", "data label", f"{fields} transform_param {{ mean_value: 7 }}")
    return Case(name, net, lambda rng: {}, lambda x, got: mapped(divisor), prepare=label_maps)


CASES = [
    Case("DiceCoefLoss", layer("DiceCoefLoss", "x0 x1", "loss", "dice_coef_loss_param { smooth: 0.5 }"), lambda rng: {
         "x0": rng.uniform(0.1, 1, (1, 2, 5)), "x1": rng.uniform(0, 1, (1, 10))}, dice, ("x0", "x1")),
    Case("DiceCoefLoss of a batch", layer("DiceCoefLoss", "x0 x1", "loss", "dice_coef_loss_param { smooth: 0.5 }"), normal(x0=(3, 2, 5), x1=(3, 2, 5)), dice),
    Case("GroupNorm", layer("GroupNorm", "x0", "y", "group_norm_param { group_num: 2 eps: 0.01 }"), normal(x0=(3, 6, 4, 5)),
         lambda x, got: {"y": grouped(x["x0"], 2, 0.01)}, ("x0",)),
    Case("GroupNorm of volumes", layer("GroupNorm", "x0", "y", "group_norm_param { group_num: 4 }"), normal(x0=(2, 4, 3, 2, 5)),
         lambda x, got: {"y": grouped(x["x0"], 4, 1e-5)}, ("x0",)),
    Case("GroupNorm of vectors", layer("GroupNorm", "x0", "y", "group_norm_param { group_num: 3 }"), normal(x0=(2, 12)),
         lambda x, got: {"y": grouped(x["x0"], 3, 1e-5)}, ("x0",)),
    Case("LiftedStructSimilaritySoftmaxLoss", layer("LiftedStructSimilaritySoftmaxLoss", "x0 x1", "loss",
         "lifted_struct_sim_softmax_loss_param { margin: 1.5 }"), labelled([0, 0, 1, 1, 2, 0, 2]), lifted, ("x0",)),
    Case("LiftedStructSimilaritySoftmaxLoss, far apart", layer("LiftedStructSimilaritySoftmaxLoss", "x0 x1", "loss",
         "loss_weight: 2 lifted_struct_sim_softmax_loss_param { margin: 1.5 }"), labelled([4, 4, 3, 3, 4], 9.0), lifted, ("x0",)),
    Case("LiftedStructSimilaritySoftmaxLoss of one class", layer("LiftedStructSimilaritySoftmaxLoss", "x0 x1", "loss",
         "lifted_struct_sim_softmax_loss_param { margin: 1.5 }"), labelled([1, 1, 1]), lifted),
    Case("LiftedStructSimilaritySoftmaxLoss without pairs", layer("LiftedStructSimilaritySoftmaxLoss", "x0 x1", "loss",
         "lifted_struct_sim_softmax_loss_param { margin: 1.5 }"), labelled([1, 2, 3]), lifted),
    Case("K1_EuclideanLoss", layer("K1_EuclideanLoss", "x0 x1", "loss"), normal(x0=(3, 4), x1=(3, 4)),
         lambda x, got: {"loss": -((x["x0"] - 0.5) ** 2).mean() / 2}, ("x0",)),
    Case("K2_EuclideanLoss", layer("K2_EuclideanLoss", "x0 x1", "loss"), normal(x0=(3, 4, 1, 1), x1=(3, 4, 1, 1)),
         lambda x, got: {"loss": ((x["x0"] - 0.5) ** 2).mean() / 2}, ("x0",)),
    Case("L2Norm", layer("L2Norm", "x0", "y", "l2norm_param { eps: 0.25 }"), normal(x0=(3, 4, 2)),
         lambda x, got: {"y": x["x0"] / (np.sqrt((x["x0"] ** 2).sum((1, 2), keepdims=True)) + 0.25)}, ("x0",)),
    Case("NormalizationL2", layer("NormalizationL2", "x0", "y"), normal(x0=(3, 4)),
         lambda x, got: {"y": x["x0"] / np.sqrt((x["x0"] ** 2).sum(1, keepdims=True))}, ("x0",)),
    Case("MergeCrop", layer("MergeCrop", "x0 x1", "y", "mergecrop_param { backward: true backward: true }"), normal(x0=(2, 2, 3, 3), x1=(2, 3, 5, 4)),
         lambda x, got: {"y": merged(x, True)}, ("x0", "x1")),
    Case("MergeCrop by default", layer("MergeCrop", "x0 x1", "y"), normal(x0=(2, 2, 3, 3), x1=(2, 2, 5, 4)), lambda x, got: {"y": merged(x, True)}, ("x0",)),
    Case("MergeCrop ADD", layer("MergeCrop", "x0 x1", "y", "mergecrop_param { operation: ADD backward: true backward: true }"),
         normal(x0=(2, 2, 3, 3), x1=(2, 2, 5, 4)), lambda x, got: {"y": merged(x, False)}, ("x0", "x1")),
    Case("MergeCrop of one bottom", layer("MergeCrop", "x0 x1", "y", "mergecrop_param { forward: true forward: false }"),
         normal(x0=(2, 2, 3, 3), x1=(2, 2, 5, 4)), lambda x, got: {"y": merged(x, True, (True, False))}, ("x0",)),
    Case("AutoCrop", AUTO_CROP, normal(x0=(2, 1, 6, 8), c_0=(1, 1, 3, 3), c_1=(1,), u_0=(1, 1, 4, 4), u_1=(1,)), auto_cropped, ("x0", "c/0", "u/0")),
    Case("Eltwise coeff_blob", layer("Eltwise", "x0 x1 x2", "y", "eltwise_param { coeff_blob: true coeff: 2 coeff: -1 }"),
         normal(x0=(2, 3, 4), x1=(2, 3, 4), x2=(2, 2, 3)), weighted_sum, ("x0", "x1")),
    Case("Eltwise coeff_blob for one bottom", layer("Eltwise", "x0 x1", "y", "eltwise_param { coeff_blob: true }"), normal(x0=(2, 3, 4), x1=(1, 2)),
         lambda x, got: {"y": x["x1"][0][:, None, None] * x["x0"]}, ("x0",)),
    Case("SoftmaxWithLoss with a third top", layer("SoftmaxWithLoss", "x0 x1", "loss p each", "loss_weight: 1 loss_weight: 0 loss_weight: 0 "
         "loss_param { ignore_label: 1 }"), lambda rng: {"x0": rng.standard_normal((3, 4, 5)), "x1": rng.integers(0, 4, (3, 5)).astype(float)}, losses),
    Case("SmoothL1Loss with a second top", layer("SmoothL1Loss", "x0 x1 x2", "loss each", "loss_weight: 1 loss_weight: 0"),
         normal(x0=(3, 8), x1=(3, 8), x2=(3, 8)), region_losses),
    Case("EuclideanLoss with weights", layer("EuclideanLoss", "x0 x1 x2", "loss"), lambda rng: {
         "x0": rng.standard_normal((3, 8)), "x1": rng.standard_normal((3, 8)), "x2": rng.integers(0, 2, (3, 8)).astype(float)},
         lambda x, got: {"loss": (x["x2"] * (x["x0"] - x["x1"]) ** 2).sum() / 6}, ("x0", "x1")),
    Case("PriorBox with densities", layer("PriorBox", "x0 x1", "y", "prior_box_param { fixed_size: 8 fixed_size: 5 density: 2 density: 1 min_size: 3 "
         "aspect_ratio: 4 flip: false }"), normal(x0=(1, 2, 1, 2), x1=(1, 3, 10, 20)), dense_boxes),
    label_map_case("ImageLabelmapData", "", 255),
    label_map_case("ImageLabelmapData of classes", "normalize: false", 1),
]  # fmt: skip
