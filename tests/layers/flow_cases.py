"""Cases with a numpy reference for FlowNet's layers of data, augmentation and files, for TSN's SegData and makefile/frcnn's FrcnnRoiData."""
from __future__ import annotations

import json
import pathlib

import numpy as np
from PIL import Image

from ocaffe import proto
from ocaffe.formats import flow_files
from ocaffe.selftest.case import Arrays, Case, layer, normal
from ocaffe.selftest.flow import COEFFICIENTS, PLACE, coefficients
from tests.data.small_databases import image, write

FLOW_SHAPE = (9, 6, 5)  # of a record: two images of 3 channels, flow of 2, and a mask


def resized(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear resizing with aligned corners."""
    for axis, size in ((2, height), (3, width)):
        at = np.linspace(0, x.shape[axis] - 1, size)
        first = np.minimum(at.astype(int), x.shape[axis] - 1)
        second = np.minimum(first + 1, x.shape[axis] - 1)
        part = (at - first).reshape([-1 if k == axis else 1 for k in range(4)])
        x = np.take(x, first, axis) * (1 - part) + np.take(x, second, axis) * part
    return x


def middle(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """The middle of images, as DataAugmentation samples it: between pixels if the difference is odd, and never nearer than 0.05 to the last pixel."""
    rows, columns = (np.clip(np.arange(n) + (m - n) / 2, 0, m - 1.05) for n, m in ((height, x.shape[2]), (width, x.shape[3])))
    for axis, at in ((2, rows), (3, columns)):
        first = np.floor(at).astype(int)
        part = (at - first).reshape([-1 if k == axis else 1 for k in range(4)])
        x = np.take(x, first, axis) * (1 - part) + np.take(x, first + 1, axis) * part
    return x


def pair(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two images (6 channels), a flow in steps of 1/32 with a gap, and a mask."""
    flow = np.random.default_rng(n).integers(-999, 999, (2, *FLOW_SHAPE[1:])) / 32
    flow[0, n, 1] = np.nan
    return image(n, (6, *FLOW_SHAPE[1:])), flow, image(n + 9, (1, *FLOW_SHAPE[1:])) & 1


def write_pairs(folder: str) -> None:
    """Write a database as FlowNet's tools do: bytes, then 16-bit flow, then bits."""
    records = []
    for n in range(5):
        pixels, flow, mask = pair(n)
        steps = np.where(np.isnan(flow), 32767, 32 * np.nan_to_num(flow)).astype("<i2")
        content = pixels.tobytes() + steps.tobytes() + np.packbits(mask.reshape(-1), bitorder="little").tobytes()
        records.append(proto.Datum(channels=9, height=FLOW_SHAPE[1], width=FLOW_SHAPE[2], data=content, label=n).SerializeToString())
    write(pathlib.Path(folder) / "pairs", records)


def pairs(records: list[int]) -> Arrays:
    parts = [pair(n) for n in records]
    pixels = np.stack([part[0] for part in parts]).astype(float)
    return {"a": pixels[:, :3], "b": pixels[:, 3:], "flow": np.stack([part[1] for part in parts]), "mask": np.stack([part[2] for part in parts])}


def write_files(folder: str) -> None:
    Image.fromarray(np.ascontiguousarray(image(3)[::-1].transpose(1, 2, 0))).save(pathlib.Path(folder) / "image.png")
    flow_files.write_float3(f"{folder}/values.float3", image(4).astype(np.float32) / 7)
    for n in range(2):
        flow_files.write_pfm(f"{folder}/{n}.pfm", image(n, (1, 4, 5)).astype(np.float32))
    (pathlib.Path(folder) / "list.txt").write_text("0.pfm 4\n1.pfm 5\n")


def write_scene(folder: str) -> None:
    """Write a picture of 14 x 17 pixels, its labels, and a list of both."""
    Image.fromarray(np.ascontiguousarray(image(1, (3, 14, 17))[::-1].transpose(1, 2, 0))).save(pathlib.Path(folder) / "image.png")
    Image.fromarray(image(2, (1, 14, 17))[0] % 21).save(pathlib.Path(folder) / "labels.png")
    (pathlib.Path(folder) / "list.txt").write_text("/image.png /labels.png\n")


def write_boxes(folder: str) -> None:
    """Write a picture of 6 x 8 pixels in the list of makefile/frcnn, with the file of settings."""
    write_files(folder)
    (pathlib.Path(folder) / "boxes.txt").write_text("# 0\nimage.png\n2\n2 1 2 5 4 0\n1 0 0 9 3 1\n")
    settings = {"scales": "3", "max_size": "9", "pixel_means": "10, 20, 30", "use_flipped": "1", "n_classes": "3", "im_size_align": "4", "data_jitter": "-1"}
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(settings))


def halved(x: Arrays, got: Arrays) -> Arrays:
    """FrcnnRoiData of this picture: means of 2 x 2 pixels less the means of the channels, in 4 x 4 pixels."""
    data = np.zeros((1, 3, 4, 4))
    data[0, :, :3] = image(3).reshape(3, 3, 2, 4, 2).mean((2, 4)) - np.array([10, 20, 30])[:, None, None]
    boxes = np.full((8, 5), -1.0)
    boxes[:2] = [[0.5, 1, 2.5, 2, 2], [0, 0, 3.5, 1.5, 1]]
    return {"data": data, "im_info": np.array([[4, 4, 0.5]]), "gt_boxes": boxes}


def scene(x: Arrays, got: Arrays) -> Arrays:
    """SegData with stride 4: a crop of 12 x 16 pixels, which the labels tell."""
    pixels, labels = (image(1, (3, 14, 17)) - 10.0) / 2, image(2, (1, 14, 17)) % 21
    shown = [(pixels[None, :, y : y + 12, c : c + 16], labels[None, :, y : y + 12, c : c + 16]) for y in range(3) for c in range(2)]
    data, label = next((pair for pair in shown if np.array_equal(pair[1], got["label"])), shown[0])
    return {"data": data, "label": label}


def written(kind: str, shape: tuple[int, ...]) -> Case:
    text = layer("TanH", "x0", "y") + f'layer {{ name: "w" type: "{kind}" bottom: "y" writer_param {{ folder: "{{folder}}/out" }} }}'
    return Case(kind, text, normal(x0=shape), lambda x, got: {})


ROTATED = "rotate { rand_type: 'uniform_bernoulli' spread: 0.3 } gamma { exp: true spread: 0.2 }"
CASES = [
    Case("SegData", layer("SegData", "", "data label", 'seg_data_param { source: "{folder}/list.txt" root_dir: "{folder}" } transform_param { stride: 4 '
         "mean_value: 10 scale: 0.5 }"), lambda rng: {}, scene, prepare=write_scene),
    Case("CustomData", layer("CustomData", "", "a b flow mask", 'data_param { source: "{folder}/pairs" backend: LMDB batch_size: 3 slice_point: 3 '
         "slice_point: 6 slice_point: 8 encoding: UINT8 encoding: UINT8 encoding: UINT16FLOW encoding: BOOL1 range_start: 1 }") + "".join(
             layer("Power", name, f"{name}1", "power_param { scale: 2 }") for name in ("a", "b", "mask")) + layer("L1Loss", "flow", "loss"),
         lambda rng: {}, lambda x, got: {"loss": np.asarray(np.nansum(np.abs(pairs([1, 2, 3])["flow"])) / 3),
                                         **{f"{name}1": 2 * pairs([1, 2, 3])[name] for name in ("a", "b", "mask")}}, prepare=write_pairs),
    Case("DisparityData", layer("DisparityData", "", "data label", 'image_data_param { source: "{folder}/list.txt" root_folder: "{folder}/" batch_size: 2 '
         "is_color: false }"), lambda rng: {}, lambda x, got: {"data": np.stack([image(n, (1, 4, 5)) for n in range(2)]), "label": np.array([4, 5])},
         prepare=write_files),
    Case("FrcnnRoiData", layer("FrcnnRoiData", "", "data im_info gt_boxes", 'window_data_param { source: "{folder}/boxes.txt" config: "{folder}/config.json" '
         'root_folder: "{folder}/" }'), lambda rng: {}, halved, phase="TEST", prepare=write_boxes),
    Case("ImgReader", layer("ImgReader", "", "y", 'reader_param { file: "{folder}/image.png" num: 2 } transform_param { crop_size: 4 mean_value: 9 '
         "scale: 0.5 }"),
         lambda rng: {}, lambda x, got: {"y": (np.stack([image(3)[:, 1:5, 2:6]] * 2) - 9.0) / 2}, phase="TEST", prepare=write_files),
    Case("FloatReader", layer("FloatReader", "", "y", 'reader_param { file: "{folder}/values.float3" }'), lambda rng: {},
         lambda x, got: {"y": image(4)[None] / 7}, prepare=write_files),
    written("FLOWriter", (2, 2, 3, 4)), written("FloatWriter", (2, 5, 3, 4)), written("PFMWriter", (2, 1, 3, 4)), written("ImgWriter", (2, 3, 3, 4)),
    Case("Eltwise of one bottom", layer("Eltwise", "x0", "y", "eltwise_param { operation: SUM coeff: 0.05 }"), normal(x0=(2, 3, 4)),
         lambda x, got: {"y": 0.05 * x["x0"]}, ("x0",)),
    Case("Accum", layer("Accum", "x0 x1", "y", "accum_param { size_divisible_by: 4 }"), normal(x0=(2, 3, 5, 7), x1=(2, 1, 3, 9)),
         lambda x, got: {"y": np.concatenate([resized(x["x0"], 8, 12), resized(x["x1"], 8, 12)], 1)}, ("x0", "x1")),
    Case("Accum with reference", layer("Accum", "x0 x1 x2", "y", "accum_param { have_reference: true }"),
         normal(x0=(2, 3, 5, 7), x1=(2, 1, 4, 6), x2=(2, 2, 4, 6)),
         lambda x, got: {"y": np.concatenate([resized(x["x0"], 4, 6), x["x1"]], 1) + 0 * x["x2"].sum()}, ("x0", "x1")),
    Case("DataAugmentation TEST", layer("DataAugmentation", "x0", "y p", f"augmentation_param {{ crop_width: 6 crop_height: 8 {ROTATED} }}"),
         normal(x0=(2, 3, 10, 9), y_0=(1, 1, 1, 1)), lambda x, got: {"y": middle(x["x0"], 8, 6), "p": np.zeros((2, COEFFICIENTS, 1, 1))}, phase="TEST"),
    Case("DataAugmentation mean TEST", layer("DataAugmentation", "x0 x1", "y p", "augmentation_param { recompute_mean: 4 mean_per_pixel: false }"),
         lambda rng: {"x0": rng.standard_normal((2, 3, 6, 5)), "x1": coefficients(rng, 2, "dx"), "y/0": np.full((1, 1, 1, 1), 9), "y/1": np.zeros((1, 3, 6, 5)),
                      "y/2": rng.standard_normal((1, 3, 1, 1))}, lambda x, got: {"y": x["x0"] - x["y/2"], "p": x["x1"]}, phase="TEST"),
    Case("DataAugmentation mean TRAIN", layer("DataAugmentation", "x0", "y", "augmentation_param { recompute_mean: 4 }"),
         lambda rng: {"x0": rng.standard_normal((2, 3, 6, 5)), "y/0": np.full((1, 1, 1, 1), 2), "y/1": rng.standard_normal((1, 3, 6, 5))},
         lambda x, got: {"y": x["x0"] - (2 * x["y/1"] + x["x0"].mean(0)) / 3}),
    Case("DataAugmentation values", layer("DataAugmentation", "x0", "y", "augmentation_param { mean: 1 mean: 2 mean: 3 mean_per_pixel: false }"),
         normal(x0=(2, 3, 6, 5), y_0=(1, 1, 1, 1)), lambda x, got: {"y": x["x0"] - np.array([1, 2, 3])[:, None, None]}, phase="TEST"),
    Case("GenerateAugmentationParameters TEST", layer("GenerateAugmentationParameters", "x0 x1 x2", "y", f"augmentation_param {{ {ROTATED} }}"),
         lambda rng: {"x0": coefficients(rng, 2, "dx", "gamma"), "x1": rng.standard_normal((2, 3, 9, 9)), "x2": rng.standard_normal((2, 3, 5, 5))},
         lambda x, got: {"y": x["x0"]}, phase="TEST"),
    Case("GenerateAugmentationParameters of an image TEST", layer("GenerateAugmentationParameters", "x0", "y", "augmentation_param { crop_width: 4 "
         f"crop_height: 4 {ROTATED} }}"), normal(x0=(2, 3, 9, 9)), lambda x, got: {"y": np.zeros((2, COEFFICIENTS, 1, 1))}, phase="TEST"),
    Case("GenerateAugmentationParameters replaced TRAIN", layer("GenerateAugmentationParameters", "x0", "y", "augmentation_param { mode: 'replace' "
         "crop_width: 4 crop_height: 4 bottomwidth: 9 bottomheight: 9 rotate { mean: 0.1 } gamma { mean: 0.2 exp: true } }"),
         lambda rng: {"x0": coefficients(rng, 3, *PLACE, spread=0.05)}, lambda x, got: {"y": replaced(x["x0"])}),
]  # fmt: skip


def replaced(given: np.ndarray) -> np.ndarray:
    """All spatial coefficients are new, and of the others those with a number."""
    result = given.copy()
    result[:, :6] = 0
    result[:, PLACE["angle"]], result[:, PLACE["gamma"]] = 0.1, 0.2
    return result
