"""Cases with a numpy reference for layer types and fields of forks, without golden cases."""
from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from ocaffe import proto
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.selftest.case import Arrays, Case, layer, normal
from ocaffe.selftest.layers import convolve, ctc_cost
from tests.layers.yolo_program import Decoder, Program, bottoms, scored


def lstm(x: Arrays, got: Arrays) -> Arrays:
    """LSTM over x0 (T x N x I) with the blobs W_x, W_h and b; x1 (T x N), where it is given, is 0 where a sequence starts."""
    w_x, w_h, b = (x[f"y/{i}"] for i in range(3))
    units = w_h.shape[1]
    h = c = np.zeros((x["x0"].shape[1], units))
    top = []
    for t, step in enumerate(x["x0"]):
        keep = x["x1"][t][:, None] if "x1" in x else np.full((len(step), 1), float(t > 0))
        gates = step @ w_x.T + b + (keep * h) @ w_h.T
        i, f, o = (1 / (1 + np.exp(-gates[:, k * units : (k + 1) * units])) for k in range(3))
        c = f * keep * c + i * np.tanh(gates[:, 3 * units :])
        h = o * np.tanh(c)
        top.append(h)
    return {"y": np.stack(top)}


def margin(x: Arrays, m: float = 0.5, t: float = 1) -> np.ndarray:
    """The cosines x0 with an angular margin for the labels x1."""
    y = x["x0"].copy()
    for row, label in zip(y, x["x1"].astype(int)):
        if label >= 0:
            row[label] = row[label] - m * math.sin(m) if row[label] <= -math.cos(m) else math.cos(math.acos(row[label]) + m)
            harder = row > row[label]
            row[harder] = t * row[harder] + t - 1
    return y


def normalized_loss(x: Arrays, order: int) -> Arrays:
    p = x["x0"] / ((x["x0"] ** order).sum(1, keepdims=True) + 1e-6) ** (1 / order)
    own = np.take_along_axis(p, x["x1"][:, None].astype(int), 1)
    return {"loss": np.asarray(-np.log(own).mean()), "p": p}


def clustered() -> np.ndarray:
    """Boxes of 4 x 6 and 8 x 2.5 in 20 x 10 pixels, in two cells one below the other."""
    boxes = [[(10 - w / 2) / 20, (y - h / 2) / 10, (10 + w / 2) / 20, (y + h / 2) / 10] for y in (2.5, 7.5) for w, h in ((4, 6), (8, 2.5))]
    return np.array([[np.ravel(boxes), np.full(16, 0.1)]])


def resized(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear resampling with output i of n at i H / n, and zeros beyond the last row and column."""
    for axis, outputs in ((2, height), (3, width)):
        n = x.shape[axis]
        at = np.arange(outputs, dtype=np.float32) * (np.float32(n) / np.float32(outputs))
        first = np.floor(at).astype(int)
        weights = np.zeros((outputs, n + 1))
        weights[range(outputs), first] += 1 - (at - first)
        weights[range(outputs), first + 1] += at - first
        x = np.moveaxis(np.moveaxis(x, axis, -1) @ weights[:, :n].T, -1, axis)
    return x


def distance(x: Arrays, order: int) -> np.ndarray:
    return (np.abs(x["x0"].reshape(len(x["x0"]), 1, -1) - x["w"]) ** order).sum(2)


def dense_block(x: Arrays, got: Arrays, running: bool = False) -> Arrays:
    """Two transitions; with 21 blobs each has a 1 x 1 convolution first."""
    y, bottleneck = x["x0"], "y/20" in x

    def normalized(y: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        mean, variance = y.mean((0, 2, 3), keepdims=True), y.var((0, 2, 3), keepdims=True)
        if running:
            mean, variance = (x[f"y/{k + i}"] / x["y/10"] for k in (6, 8))
        return np.maximum((y - mean) / np.sqrt(variance + 1e-5) * scale + bias, 0)

    for i in range(2):
        new = normalized(y, x[f"y/{2 + i}"], x[f"y/{4 + i}"])
        if bottleneck:
            new = convolve(new, x[f"y/{10 + i}"], np.zeros(8))
            new = normalized(new, x[f"y/{12 + i}"], x[f"y/{14 + i}"])
        y = np.concatenate([y, convolve(new, x[f"y/{i}"], np.zeros(2), pad=1)], 1)
    return {"y": y}


def dense_blobs(bottleneck: bool) -> Callable[[np.random.Generator], Arrays]:
    """x0 (2 x 3 x 4 x 5) and the blobs of a dense block of two transitions with growth rate 2."""
    each = [(2, 8 if bottleneck else 3, 3, 3), (2, 8 if bottleneck else 5, 3, 3), *[(1, 3, 1, 1), (1, 5, 1, 1)] * 4]
    narrow = [(8, 3, 1, 1), (8, 5, 1, 1), *[(1, 8, 1, 1)] * 8]
    shapes = {f"y_{i}": shape for i, shape in enumerate([*each, *(narrow if bottleneck else []), (1,)])}
    return normal(x0=(2, 3, 4, 5), **shapes)


YOLO_ANCHORS = np.array([[0.3, 0.2], [0.5, 0.6]])  # sides relative to an image of 6 x 5 cells
YOLO_BIASES = " ".join(f"biases: {side}" for side in (YOLO_ANCHORS * [6, 5]).ravel())


def yolo_bottoms(rng: np.random.Generator) -> Arrays:
    return dict(zip(("x0", "x1"), bottoms(rng, 3, 2 * 9, (5, 6), 4, has_rows=False)))


def yolo_scores(rng: np.random.Generator) -> Arrays:
    return {"x0": scored(rng, 2, 2, 4, (5, 6))}


def frame(video: int, number: int, kind: str = "") -> np.ndarray:
    rng = np.random.default_rng([video, number, len(kind), ord((kind or "z")[0])])
    return rng.integers(0, 256, (6, 8) if kind else (6, 8, 3), np.uint8)


def write_videos(folder: str) -> None:
    """Two videos of 8 and 9 frames, with flow, and their list."""
    lines = []
    for video, frames in enumerate((8, 9)):
        own = os.path.join(folder, f"video {video}")
        os.mkdir(own)
        for number in range(1, frames + 1):
            Image.fromarray(frame(video, number)).save(os.path.join(own, f"img_{number:05d}.png"))
            for kind in "xy":
                Image.fromarray(frame(video, number, kind)).save(os.path.join(own, f"flow_{kind}_{number:05d}.png"))
        lines.append(f"{own} {frames} {video + 3}\n")
    with open(os.path.join(folder, "list.txt"), "w") as out:
        out.writelines(lines)


def video_frames(numbers: Sequence[int], kinds: Sequence[str]) -> Arrays:
    """The channels of both videos for these frames, BGR without `kinds`, cropped to the middle 4 x 4 pixels."""
    samples = [
        [plane for n in numbers for plane in ([frame(video, n, kind) for kind in kinds] if kinds else frame(video, n)[:, :, ::-1].transpose(2, 0, 1))]
        for video in range(2)
    ]
    return {"data": np.array(samples, float)[:, :, 1:5, 2:6] - 10, "label": np.array([3.0, 4]).reshape(2, 1, 1, 1)}


def write_segmented(folder: str) -> None:
    """Two pictures of different sizes, gray label images, and their list."""
    for n, (height, width) in enumerate(SEGMENTED):
        Image.fromarray(frame(n, 1)[:height, :width]).save(os.path.join(folder, f"i{n}.png"))
        Image.fromarray(frame(n, 1, "x")[:height, :width] % 21).save(os.path.join(folder, f"l{n}.png"))
    with open(os.path.join(folder, "list.txt"), "w") as out:
        out.writelines(f"{folder}/i{n}.png {folder}/l{n}.png\n" for n in range(2))


SEGMENTED = [(6, 4), (3, 8)]


def segmented(x: Arrays, got: Arrays) -> Arrays:
    """The middle 4 x 5 pixels less 10; beyond the pictures 0, and the label 99."""
    data, labels = np.zeros((2, 3, 4, 5)), np.full((2, 1, 4, 5), 99.0)
    for n, ((height, width), (y, x0)) in enumerate(zip(SEGMENTED, ((1, 0), (0, 1)))):
        pixels = frame(n, 1)[y:height, x0:width, ::-1][:4, :5].transpose(2, 0, 1)
        data[n, :, : pixels.shape[1], : pixels.shape[2]] = pixels.astype(float) - 10
        labels[n, 0, : pixels.shape[1], : pixels.shape[2]] = frame(n, 1, "x")[y:height, x0:width][:4, :5] % 21
    return {"data": data, "label": labels, "dim": np.array([[4.0, 4], [3, 5]]).reshape(2, 1, 1, 2)}


def write_faces(folder: str) -> None:
    """A database of three MTCNNDatums."""
    with LmdbWriter(os.path.join(folder, "faces")) as writer:
        for n in range(3):
            record = proto.MTCNNDatum(pts=[n + i / 10 for i in range(10)])
            record.datum.CopyFrom(proto.Datum(channels=3, height=4, width=5, data=bytes(range(n, n + 60)), label=n - 1))
            record.rois.xmin, record.rois.ymin, record.rois.xmax, record.rois.ymax = 0.1 * n, 0.2, 0.3, 0.4
            writer.put(b"%05d" % n, record.SerializeToString())


def faces(x: Arrays, got: Arrays) -> Arrays:
    images = np.stack([np.arange(n, n + 60).reshape(3, 4, 5) for n in range(3)])
    return {
        "data": (images - 127.5) * 0.5, "label": np.array([-1.0, 0, 1]), "roi": np.array([[0.1 * n, 0.2, 0.3, 0.4] for n in range(3)]),
        "pts": np.array([[n + i / 10 for i in range(10)] for n in range(3)]),
    }  # fmt: skip


def excited(x: Arrays, got: Arrays) -> Arrays:
    """The first box covers rows 1 to 2 and columns 2 to 5 of the first image; the second image has two boxes."""
    mask = np.zeros((2, 1, 4, 8))
    mask[0, 0, 1:3, 2:6] = mask[1, 0, 0:2, 0:2] = mask[1, 0, :, 7:] = 1
    return {"y": x["x0"] + mask * x["x2"]}


def boxes(rng: np.random.Generator) -> Arrays:
    labels = np.zeros((2, 1, 3, 5))
    labels[0, 0, 0], labels[1, 0, 0], labels[1, 0, 1] = [3, 0.5, 0.5, 0.5, 0.5], [1, 0.125, 0.25, 0.25, 0.5], [1, 0.95, 0.5, 0.2, 1.5]
    return {**normal(x0=(2, 3, 4, 8), x2=(2, 1, 4, 8))(rng), "x1": labels}


class AdaCos:
    """The reference of AdaCosAddmScale. The gradient treats the scale as a constant: that of the first call of a run."""

    got: Arrays | None = None

    def __call__(self, x: Arrays, got: Arrays) -> Arrays:
        if self.got is not got:
            self.got, cosines = got, x["x0"]
            others = cosines * (np.arange(cosines.shape[1]) != x["x1"][:, None])
            total = np.exp(math.sqrt(2) * math.log(cosines.shape[1] - 1) * others).sum()
            self.scale = math.log(total / len(cosines)) / math.cos(min(math.pi / 4, np.arccos(cosines).mean()))
        return {"y": self.scale * margin(x)}


def cosines(rng: np.random.Generator) -> Arrays:
    """Cosines; the angle of the first label and the margin exceed 180 degrees; the last label is -1."""
    x = rng.uniform(-0.8, 0.8, (4, 5))
    x[0, 2] = -0.95
    return {"x0": x, "x1": np.array([2, 0, 4, -1])}


def leaky(x: np.ndarray, slope: float) -> np.ndarray:
    return np.where(x > 0, x, slope * x)


class RandomRelu:
    """The reference of RReLU. The device draws the divisors: the first call of a run finds them, and they must be spread over [3, 8)."""

    got: Arrays | None = None

    def __call__(self, x: Arrays, got: Arrays) -> Arrays:
        if self.got is not got:
            self.got = got
            self.slopes = got["y"].astype(float) / x["x0"]
            divisors = 1 / self.slopes[x["x0"] < 0]
            spread = divisors.min() > 2.999 and divisors.max() < 8.001 and abs(divisors.mean() - 5.5) < 0.5
            self.slopes = self.slopes if spread else np.full(self.slopes.shape, np.nan)
        return {"y": np.where(x["x0"] > 0, x["x0"], x["x0"] * self.slopes)}


def ctc(x: np.ndarray, labels: Sequence[Sequence[int]], blank: int = 0, steps: Sequence[int] | None = None) -> Arrays:
    """The loss of scores T x N x C."""
    lengths = steps if steps is not None else [len(x)] * len(labels)
    return {"loss": np.asarray(np.mean([ctc_cost(x[: lengths[n], n], own, blank) if lengths[n] else 0 for n, own in enumerate(labels)]))}


def with_labels(shape: Sequence[int], *labels: object) -> Callable[[np.random.Generator], Arrays]:
    """`make` of a Case: normal x0, then x1, x2, .. with these values."""
    return lambda rng: {"x0": rng.standard_normal(tuple(shape)), **{f"x{i}": np.array(values, float) for i, values in enumerate(labels, 1)}}


PATH = [[2, 0], [2, 1], [0, 1], [2, 2], [1, 0]]  # the best classes of two samples


def best_path(rng: np.random.Generator) -> np.ndarray:
    """Scores whose best classes are PATH."""
    x = rng.standard_normal((5, 2, 3))
    np.put_along_axis(x, np.array(PATH)[..., None], 9.0, 2)
    return x


def segmentation(best: np.ndarray, labels: np.ndarray, classes: int, ignore: Sequence[int] = ()) -> np.ndarray:
    """Return the top of SegAccuracy, by sets of pixels. `best`, `labels`: the classes of all pixels."""
    kept = [(int(label), int(found)) for label, found in zip(labels.ravel(), best.ravel()) if label not in ignore]
    recalls, ious = [], []
    for c in range(classes):
        true, found = ({i for i, pair in enumerate(kept) if pair[side] == c} for side in (0, 1))
        recalls += [len(true & found) / len(true)] if true else []
        ious.append(len(true & found) / len(true | found) if true | found else 1)
    right = sum(label == found for label, found in kept)
    return np.array([right / max(len(kept), 1), sum(recalls) / max(len(recalls), 1), sum(ious) / classes])[None, None, None]


def detected(rng: np.random.Generator) -> Arrays:
    """Return detections and true boxes: a right detection, a second one of the same box, one of a difficult box, one of another class."""
    found = [[0, 1, 0.9, 0, 0, 0.5, 0.5], [0, 1, 0.8, 0, 0, 0.5, 0.4], [0, 2, 0.9, 0, 0, 0.5, 0.5], [1, 1, 0.7, 0.2, 0.2, 0.6, 0.6]]
    true = [[0, 1, 0, 0, 0, 0.5, 0.45, 0], [1, 1, 0, 0.2, 0.2, 0.6, 0.5, 1]]
    return {"x0": np.array([[found]]), "x1": np.array([[true]])}


JUDGED = [[-1, 1, 1, -1, -1], [-1, 2, 0, -1, -1], [0, 1, 0.9, 1, 0], [0, 1, 0.8, 0, 1], [0, 2, 0.9, 0, 1], [1, 1, 0.7, 0, 0]]

CASES = [
    Case("DetectionEvaluate", layer("DetectionEvaluate", "x0 x1", "y", "detection_evaluate_param { num_classes: 3 evaluate_difficult_gt: false }"),
         detected, lambda x, got: {"y": np.array([[JUDGED]])}, phase="TEST"),
    Case("TagEvaluate", layer("TagEvaluate", "x0 x1", "y"),
         lambda rng: {"x0": rng.standard_normal((3, 2)), "x1": np.array([[1, 0], [0, -1], [1, 0]])},
         lambda x, got: {"y": np.array([[[[-1, 0, 2, -1, -1], [-1, -1, 0, -1, -1],
                                          *([n, t, x["x0"][n, t], x["x1"][n, t] == 1, x["x1"][n, t] == 0] for n in range(3) for t in range(2))]]])},
         phase="TEST"),
    Case("SegAccuracy", layer("SegAccuracy", "x0 x1", "y", "seg_accuracy_param { ignore_label: 255 ignore_label: 3 }"),
         lambda rng: {"x0": rng.standard_normal((2, 5, 6, 7)), "x1": rng.choice([0, 1, 2, 3, 255], (2, 1, 6, 7))},
         lambda x, got: {"y": segmentation(x["x0"].argmax(1), x["x1"], 5, (3, 255))}),
    Case("SegAccuracy of one channel", layer("SegAccuracy", "x0 x1", "y"),
         lambda rng: {"x0": rng.uniform(0, 1, (2, 1, 6, 7)), "x1": rng.integers(0, 2, (2, 1, 6, 7))},
         lambda x, got: {"y": segmentation(x["x0"] > 0.5, x["x1"], 2)}),
    Case("CropCenter", layer("CropCenter", "x0", "y", "crop_center_param { crop_size: 0 crop_size: 0 crop_size: 1 crop_size: 2 }"), normal(x0=(2, 3, 5, 7)),
         lambda x, got: {"y": x["x0"][:, :, 1:-1, 2:-2]}, ("x0",)),
    Case("CropCenter channels", layer("CropCenter", "x0", "y", "crop_center_param { crop_size: 0 crop_size: 1 crop_size: 0 }"), normal(x0=(2, 5, 3)),
         lambda x, got: {"y": x["x0"][:, 1:-1]}, ("x0",)),
    Case("Transpose", layer("Transpose", "x0", "y", "transpose_param { dim: 3 dim: 2 dim: 0 dim: 1 }"), normal(x0=(2, 3, 4, 5)),
         lambda x, got: {"y": x["x0"].transpose(3, 2, 0, 1)}, ("x0",)),
    Case("Reverse", layer("Reverse", "x0", "y"), normal(x0=(4, 3, 2)), lambda x, got: {"y": x["x0"][::-1]}, ("x0",)),
    Case("Reverse two axes", layer("Reverse", "x0", "y", "reverse_param { axis: 0 axis: -2 }"), normal(x0=(4, 3, 2)),
         lambda x, got: {"y": x["x0"][::-1, ::-1]}, ("x0",)),
    *(Case(f"Flip {width} {height}", layer("Flip", "x0", "y", f"flip_param {{ flip_width: {width} flip_height: {height} }}"), normal(x0=(2, 3, 4, 5)),
           lambda x, got, rows=1 - 2 * (height == "true"), columns=1 - 2 * (width == "true"): {"y": x["x0"][:, :, ::rows, ::columns]}, ("x0",))
      for width in ("true", "false") for height in ("true", "false")),
    *(Case(f"CReLU {axis} {slope}", layer("CReLU", "x0", "y", f"crelu_param {{ concat_axis: {axis} negative_slope: {slope} }}"), normal(x0=(2, 3, 4)),
           lambda x, got, axis=axis, slope=slope: {"y": leaky(np.concatenate([x["x0"], -x["x0"]], axis), slope)}, ("x0",))
      for axis, slope in ((1, 0), (0, 0.1), (-1, 0.2))),
    Case("RReLU TRAIN", layer("RReLU", "x0", "y", "rrelu_param { lb: 3 ub: 8 }"), normal(x0=(20, 30)), RandomRelu(), ("x0",)),
    Case("RReLU TEST", layer("RReLU", "x0", "y", "rrelu_param { lb: 3 ub: 8 }"), normal(x0=(3, 5)),
         lambda x, got: {"y": leaky(x["x0"], math.log(8 / 3) / 5)}, ("x0",), "TEST"),
    Case("ContinuationIndicator", layer("ContinuationIndicator", "", "y", "continuation_indicator_param { time_step: 3 batch_size: 2 }"), normal(),
         lambda x, got: {"y": np.array([[0, 0], [1, 1], [1, 1]])}),
    Case("ContinuationIndicator with a bottom", layer("ContinuationIndicator", "x0", "y", "continuation_indicator_param { time_step: 2 axis: 1 }"),
         normal(x0=(2, 3, 4)), lambda x, got: {"y": np.array([[0, 0, 0], [1, 1, 1]])}),
    Case("PassThrough", layer("PassThrough", "x0", "y", "pass_through_param { block_height: 2 block_width: 3 }"), normal(x0=(2, 3, 4, 6)),
         lambda x, got: {"y": x["x0"].reshape(2, 3, 2, 2, 2, 3).transpose(0, 3, 5, 1, 2, 4).reshape(2, 18, 2, 2)}, ("x0",)),
    Case("WarpCTCLoss", layer("WarpCTCLoss", "x0 x1", "loss"), with_labels((4, 1, 3), [[1, 1]]), lambda x, got: ctc(x["x0"], [[1, 1]]), ("x0",)),
    Case("WarpCTCLoss of a batch", layer("WarpCTCLoss", "x0 x1", "loss", "ctc_loss_param { blank_label: 2 }"),
         with_labels((4, 3, 3), [[0, 1, 0], [1, 2, 2], [0, 0, 0]]), lambda x, got: ctc(x["x0"], [[0, 1, 0], [1], [0, 0, 0]], 2)),
    Case("WarpCTCLoss with indicators", layer("WarpCTCLoss", "x0 x1 x2", "loss"),
         with_labels((4, 2, 3), [[0, 0], [1, 1], [1, 1], [0, 1]], [[0, 1], [1, 0], [-1, 1], [-1, -1]]),
         lambda x, got: ctc(x["x0"], [[1, 2], [2, 1, 2]], 0, [3, 4])),
    Case("WarpCTCLoss with lengths", layer("WarpCTCLoss", "x0 x1 x2 x3", "loss"), with_labels((5, 1, 4), [[4]], [[2]], [[3], [1], [2]]),
         lambda x, got: ctc(x["x0"], [[3, 1]], 0, [4]), ("x0",)),
    Case("CtcLoss", layer("CtcLoss", "x0 x1", "loss", "loss_weight: 2 ctc_loss_param { alphabet_size: 4 time_step: 5 blank_label: 0 }"),
         with_labels((6, 1, 4), [[2, 1, 2, 0]]), lambda x, got: ctc(x["x0"], [[2, 1, 2]], 0, [5]), ("x0",)),
    Case("CTCGreedyDecoder", layer("CTCGreedyDecoder", "x0", "y"), lambda rng: {"x0": best_path(rng)},
         lambda x, got: {"y": np.array([[2, 2, 1, -1, -1], [1, 2, -1, -1, -1]])[..., None, None]}),
    Case("CTCGreedyDecoder, repeated", layer("CTCGreedyDecoder", "x0", "y", "ctc_decoder_param { ctc_merge_repeated: false }"),
         lambda rng: {"x0": best_path(rng)}, lambda x, got: {"y": np.array([[0, 1, -1, -1, -1], [0, 1, 1, 0, -1]])[..., None, None]}),
    Case("CTCGreedyDecoder accuracy", layer("CTCGreedyDecoder", "x0 x1", "y"), lambda rng: {"x0": best_path(rng), "x1": np.array([[2, 1, 1], [1, 2, 0]])},
         lambda x, got: {"y": np.array([(2 / 3 + 1) / 2, 0.5]).reshape(1, 2, 1, 1)}),
    Case("CTCGreedyDecoder with indicators", layer("CTCGreedyDecoder", "x0 x1 x2", "y score accuracy", "ctc_decoder_param { ctc_merge_repeated: false }"),
         lambda rng: {"x0": best_path(rng), "x1": np.array([[0, 0], [1, 1], [1, 1], [1, 0], [1, 1]]),
                      "x2": np.array([[0, 0], [1, 1], [-1, 1], [-1, -1], [-1, -1]])},
         lambda x, got: {"y": np.array([[0, 1, -1, -1, -1], [0, 1, 1, -1, -1]])[..., None, None], "score": np.array([-45.0, -27])[:, None, None, None],
                         "accuracy": np.ones((1, 1, 1, 1))}),
    Case("Lstm", layer("Lstm", "x0", "y", "lstm_param { num_output: 3 }"), normal(x0=(4, 2, 5), y_0=(12, 5), y_1=(12, 3), y_2=(12,)), lstm,
         ("x0", "y/0", "y/1", "y/2")),
    Case("Lstm with indicators", layer("Lstm", "x0 x1", "y", "propagate_down: true propagate_down: false lstm_param { num_output: 3 batch_size: 2 }"),
         lambda rng: {**normal(x0=(4, 2, 5), y_0=(12, 5), y_1=(12, 3), y_2=(12,))(rng), "x1": np.array([[0, 0], [1, 1], [0, 1], [1, 1]])}, lstm,
         ("x0", "y/0", "y/1", "y/2")),
    Case("Lstm with flat indicators", layer("Lstm", "x0 x1", "y", "propagate_down: true propagate_down: false lstm_param { num_output: 3 }"),
         lambda rng: {**normal(x0=(4, 2, 5), y_0=(12, 5), y_1=(12, 3), y_2=(12,))(rng), "x1": np.array([0, 0, 1, 1, 0, 1, 1, 1])},
         lambda x, got: lstm({**x, "x1": x["x1"].reshape(4, 2)}, got), ("x0", "y/0", "y/1", "y/2")),
    Case("Lstm on flat sequences", layer("Lstm", "x0", "y", "lstm_param { num_output: 3 batch_size: 2 }"),
         normal(x0=(8, 5), y_0=(12, 5), y_1=(12, 3), y_2=(12,)),
         lambda x, got: {"y": lstm({**x, "x0": x["x0"].reshape(4, 2, 5)}, got)["y"].reshape(8, 3)}, ("x0", "y/0", "y/1", "y/2")),
    Case("Lstm on flat sequences with indicators", layer("Lstm", "x0 x1", "y", "propagate_down: true propagate_down: false "
         "lstm_param { num_output: 3 batch_size: 2 }"),
         lambda rng: {**normal(x0=(8, 5), y_0=(12, 5), y_1=(12, 3), y_2=(12,))(rng), "x1": np.array([0, 0, 1, 1, 0, 1, 1, 1])},
         lambda x, got: {"y": lstm({**x, "x0": x["x0"].reshape(4, 2, 5), "x1": x["x1"].reshape(4, 2)}, got)["y"].reshape(8, 3)}, ("x0", "y/0", "y/2")),
    Case("CosinAddm", layer("CosinAddm", "x0 x1", "y"), cosines, lambda x, got: {"y": margin(x)}, ("x0",)),
    Case("CosinAddm with t", layer("CosinAddm", "x0 x1", "y", "cosin_add_m_param { m: 0.4 t: 1.2 }"), cosines,
         lambda x, got: {"y": margin(x, 0.4, 1.2)}, ("x0",)),
    Case("AdaCosAddmScale", layer("AdaCosAddmScale", "x0 x1", "y", "adacos_add_m_scale_param { num_classes: 5 }"), cosines, AdaCos(), ("x0",)),
    Case("MTCNNEuclideanLoss", layer("MTCNNEuclideanLoss", "x0 x1", "loss"), normal(x0=(4, 3), x1=(4, 3)),
         lambda x, got: {"loss": np.asarray(((x["x0"] - x["x1"]) ** 2).sum() / 8)}, ("x0", "x1")),
    Case("MTCNNEuclideanLoss with labels", layer("MTCNNEuclideanLoss", "x0 x1 x2", "loss", "loss_param { ignore_label: 0 }"),
         lambda rng: {**normal(x0=(4, 3), x1=(4, 3))(rng), "x2": np.array([1, 0, -1, 0])},
         lambda x, got: {"loss": np.asarray(((x["x0"] - x["x1"])[::2] ** 2).sum() / 2)}),
    Case("MTCNNEuclideanLoss of one sample", layer("MTCNNEuclideanLoss", "x0 x1 x2", "loss", "loss_param { ignore_label: 0 }"),
         lambda rng: {**normal(x0=(1, 3), x1=(1, 3))(rng), "x2": np.array([1])},
         lambda x, got: {"loss": np.asarray(((x["x0"] - x["x1"]) ** 2).sum() / 2)}, ("x0", "x1")),
    Case("Scale with bounds", layer("Scale", "x0", "y", "scale_param { min_value: -0.5 max_value: 0.5 bias_term: true }"),
         normal(x0=(3, 4, 2), y_0=(4,), y_1=(4,)),
         lambda x, got: {"y": x["x0"] * np.clip(x["y/0"], -0.5, 0.5)[:, None] + x["y/1"][:, None]}, ("x0", "y/1")),
    *(Case(f"SoftmaxWithLoss {kind}", layer("SoftmaxWithLoss", "x0 x1", "loss p", f'softmax_param {{ normalize_type: "{kind}" }}'),
           lambda rng: {"x0": rng.uniform(0.5, 1, (3, 4, 2)), "x1": rng.integers(0, 4, (3, 2))},
           lambda x, got, order=order: normalized_loss(x, order)) for kind, order in (("L1", 1), ("L2", 2))),
    Case("PriorBoxClustered", layer("PriorBoxClustered", "x0 x1", "y", "prior_box_param { width: 4 width: 8 height: 6 height: 2.5 img_w: 20 img_h: 10 }"),
         normal(x0=(1, 2, 2, 1), x1=(1, 3, 9, 9)), lambda x, got: {"y": clustered()}),
    *(Case(f"Resize {more}", layer("Resize", "x0", "y", f"resize_param {{ {more} }}"), normal(x0=(2, 3, 5, 6)),
           lambda x, got, height=height, width=width: {"y": resized(x["x0"], height, width)}, ("x0",))
      for more, height, width in (("height: 8 width: 13", 8, 13), ("height: 3 width: 2", 3, 2),
                                  ("is_pyramid_test: true out_height_scale: 2 out_width_scale: 0.5", 10, 3))),
    *(Case(f"InnerDistance {kind}", layer("InnerDistance", "x0", "y", f'inner_distance_param {{ num_output: 5 bias_term: true distance_type: "{kind}" }}'),
           normal(x0=(4, 3, 2), y_0=(5, 6), y_1=(5,)), lambda x, got, order=order: {"y": distance({**x, "w": x["y/0"]}, order) + x["y/1"]},
           ("x0", "y/0", "y/1")) for kind, order in (("L2", 2), ("L1", 1))),
    Case("InnerDistance transposed", layer("InnerDistance", "x0", "y", "inner_distance_param { num_output: 5 bias_term: false transpose: true }"),
         normal(x0=(4, 6), y_0=(6, 5)), lambda x, got: {"y": distance({**x, "w": x["y/0"].T}, 2)}, ("x0", "y/0")),
    Case("InnerDistance of bottoms", layer("InnerDistance", "x0 x1 x2", "y", "inner_distance_param { num_output: 5 bias_term: true }"),
         normal(x0=(4, 6), x1=(5, 6), x2=(5,)), lambda x, got: {"y": distance({**x, "w": x["x1"]}, 2) + x["x2"]}, ("x0", "x1", "x2")),
    Case("InnerDistance of transposed bottoms", layer("InnerDistance", "x0 x1", "y", "inner_distance_param { num_output: 5 bias_term: false transpose: true }"),
         normal(x0=(4, 6), x1=(1, 1, 6, 5)), lambda x, got: {"y": distance({**x, "w": x["x1"][0, 0].T}, 2)}, ("x0", "x1")),
    Case("InnerDistance normalized", layer("InnerDistance", "x0", "y", "inner_distance_param { num_output: 5 bias_term: false normalize: true }"),
         normal(x0=(4, 6), y_0=(5, 6)),
         lambda x, got: {"y": distance({**x, "w": x["y/0"] / np.sqrt((x["y/0"] ** 2).sum(1, keepdims=True) + 1e-6)}, 2)}, ("x0",)),
    Case("DenseBlock", layer("DenseBlock", "x0", "y", "denseblock_param { numTransition: 2 growthRate: 2 }"), dense_blobs(False), dense_block,
         ("x0", *(f"y/{i}" for i in range(6)))),
    Case("DenseBlock with use_BC", layer("DenseBlock", "x0", "y", "denseblock_param { numTransition: 2 growthRate: 2 use_BC: true }"),
         dense_blobs(True), dense_block, ("x0", *(f"y/{i}" for i in (0, 1, 2, 3, 10, 11, 12, 13, 14, 15)))),
    Case("DenseBlock TEST", layer("DenseBlock", "x0", "y", "denseblock_param { numTransition: 2 growthRate: 2 }"),
         lambda rng: {name: np.abs(array) for name, array in dense_blobs(False)(rng).items()}, lambda x, got: dense_block(x, got, running=True),
         ("x0", *(f"y/{i}" for i in range(6))), "TEST"),
    Case("AssistedExcitation TRAIN", layer("AssistedExcitation", "x0 x1 x2", "y", "assisted_excitation_param { max_iter: 10 }"), boxes, excited, ("x0",)),
    Case("AssistedExcitation TEST", layer("AssistedExcitation", "x0 x1 x2", "y"), boxes, lambda x, got: {"y": x["x0"]}, ("x0",), "TEST"),
    Case("RegionLoss", layer("RegionLoss", "x0 x1", "loss", f"region_loss_param {{ num_class: 4 num: 2 {YOLO_BIASES} }}"), yolo_bottoms,
         lambda x, got: {"loss": np.asarray(Program("region", 4, YOLO_ANCHORS, [0, 1], 0.2, warm=True).run(x["x0"], x["x1"])[0])}),
    Case("Yolov3 MSE", layer("Yolov3", "x0 x1", "loss", f"yolov3_param {{ num_class: 4 num: 2 mask: 0 mask: 1 anchors_scale: 1 {YOLO_BIASES} }}"),
         yolo_bottoms, lambda x, got: {"loss": np.asarray(Program("yolov3", 4, YOLO_ANCHORS, [0, 1], 0.2).run(x["x0"], x["x1"])[0])}),
    Case("YoloDetectionOutput", layer("YoloDetectionOutput", "x0", "y", "yolo_detection_output_param { num_classes: 4 num_box: 2 confidence_threshold: 0.3 "
         f"{YOLO_BIASES} }}"), yolo_scores, lambda x, got: {"y": Decoder([YOLO_ANCHORS], 4, False, 0.3, 0.45).rows([x["x0"]])}, phase="TEST"),
    Case("Yolov3DetectionOutput", layer("Yolov3DetectionOutput", "x0", "y", "yolov3_detection_output_param { num_classes: 4 num_box: 2 mask: 0 mask: 1 "
         f"mask_group_num: 1 anchors_scale: 1 confidence_threshold: 0.3 {YOLO_BIASES} }}"), yolo_scores,
         lambda x, got: {"y": Decoder([YOLO_ANCHORS], 4, True, 0.3, 0.45).rows([x["x0"]])}, phase="TEST"),
    Case("EvalDetection", layer("EvalDetection", "x0 x1", "y", "eval_detection_param { side: 6 num_class: 4 num_object: 2 threshold: 0.3 nms: 0.45 "
         "biases: 1.8 biases: 1.2 biases: 3 biases: 3.6 }"), lambda rng: {"x0": scored(rng, 2, 2, 4, (6, 6)), "x1": yolo_bottoms(rng)["x1"][:2]},
         lambda x, got: {"y": Decoder([YOLO_ANCHORS], 4, False, 0.005, 0.45).evaluated(x["x0"], x["x1"], 0.3, "MULTIPLY")}, phase="TEST"),
    Case("ImageSegData", layer("ImageSegData", "", "data label dim", 'image_data_param { source: "{folder}/list.txt" batch_size: 2 label_type: PIXEL '
         "ignore_label: 99 } transform_param { crop_height: 4 crop_width: 5 mean_value: 10 }"), lambda rng: {}, segmented, phase="TEST",
         prepare=write_segmented),
    Case("MTCNNData", layer("MTCNNData", "", "data label roi pts", 'data_param { source: "{folder}/faces" backend: LMDB batch_size: 3 } '
         "transform_param { mean_value: 127.5 scale: 0.5 }"), lambda rng: {}, faces, prepare=write_faces),
    *(Case(f"VideoData {modality}", layer("VideoData", "", "data label", 'video_data_param { source: "{folder}/list.txt" batch_size: 2 new_length: 2 '
           f'num_segments: 2 modality: {modality} name_pattern: "{pattern}" }} transform_param {{ crop_size: 4 mean_value: 10 }}'),
           lambda rng: {}, lambda x, got, kinds=kinds: video_frames((2, 3, 6, 7), kinds), phase="TEST", prepare=write_videos)
      for modality, pattern, kinds in (("RGB", "img_%05d.png", ""), ("FLOW", "flow_%c_%05d.png", "xy"))),
]  # fmt: skip
