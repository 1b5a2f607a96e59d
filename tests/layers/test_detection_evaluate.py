"""DetectionEvaluate and the average precision, compared with a program in float64 that follows the definitions, and with pycocotools."""
from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.layers.base import Layer
from ocaffe.solver.average_precision import VERSIONS, Detections, average_precision, points_of
from tests.layers.single import layer_of

CLASSES = 4  # 0 is the background
Row = list[float]


def layer(fields: str = "") -> Any:
    """Return the layer after infer."""
    made = layer_of(f"name: 'l' type: 'DetectionEvaluate' detection_evaluate_param {{ num_classes: {CLASSES} {fields} }}")
    made.infer((1, 1, 1, 7), (1, 1, 1, 8))
    return made


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0
    return width * height / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height)


def judge(detections: list[Row], truth: list[Row], threshold: float, difficult_counts: bool, iou: Any = overlap) -> list[Row]:
    """Return the rows of the top. `detections`: image, label, score, box; `truth`: image, label, instance, box, difficult."""
    rows: list[Row] = []
    for c in range(1, CLASSES):
        rows.append([-1, c, sum(1 for t in truth if t[0] >= 0 and t[1] == c and (difficult_counts or not t[7])), -1, -1])
    valid = [d for d in detections if d[0] >= 0 and d[1] >= 0]
    for image, label in sorted({(d[0], d[1]) for d in valid}):
        mine = [d for d in valid if (d[0], d[1]) == (image, label)]
        true = [t for t in truth if (t[0], t[1]) == (image, label)]
        if true:
            mine = sorted(mine, key=lambda d: -d[2])
        used: set[int] = set()
        for d in mine:
            table = [iou(d[3:], t[3:7]) for t in true]
            best = max(range(len(true)), key=lambda j: (table[j], -j), default=None)
            if best is None or table[best] < threshold:
                verdict = (0, 1)
            elif true[best][7] and not difficult_counts:
                verdict = (0, 0)
            else:
                verdict = (0, 1) if best in used else (1, 0)
                used.add(best)
            rows.append([image, label, d[2], *verdict])
    return rows


def precision_of(batches: list[list[Row]], label: int, version: str) -> float:
    """Return the average precision of a class from the rows of all batches, by its definition."""
    positives = sum(int(row[2]) for rows in batches for row in rows if row[0] < 0 and row[1] == label)
    judged = [row for rows in batches for row in rows if row[0] >= 0 and row[1] == label and row[3] + row[4] > 0]
    ranked = sorted(judged, key=lambda row: -row[2])
    if not positives or not ranked:
        return 0
    hits, points = 0, []
    for place, row in enumerate(ranked, 1):
        hits += int(row[3])
        points.append((hits, hits / place, bool(row[3])))
    if version == "11point":
        return sum(max((p for found, p, _ in points if 10 * found >= level * positives), default=0) for level in range(11)) / 11
    total = 0.0
    for at, (_, p, right) in enumerate(points):
        if right:
            total += p if version == "Integral" else max(q for _, q, _ in points[at:])
    return total / positives


def box(rng: np.random.Generator, grid: int) -> list[float]:
    """Return a box on a grid, where overlaps are often equal or exactly the threshold. Some boxes leave the image or have no area."""
    corners = rng.integers(-2, grid + 3, (2, 2)) / grid
    low, high = corners.min(0), corners.max(0)
    return [*low, *high]


def batch(rng: np.random.Generator, grid: int = 8) -> tuple[list[Row], list[Row]]:
    """Return detections in the order of DetectionOutput, and true boxes; either may be missing."""
    images = int(rng.integers(1, 4))
    labels = rng.permutation([1, 2, 3])[: rng.integers(1, 4)]  # the other classes have no true box
    truth = [
        [float(rng.integers(0, images)), float(rng.choice(labels)), 0.0, *box(rng, grid), float(rng.random() < 0.3)] for _ in range(rng.integers(0, 9))
    ]
    detections = []
    for _ in range(rng.integers(0, 25)):
        near = truth[rng.integers(0, len(truth))] if truth and rng.random() < 0.7 else None
        image, label = (near[0], near[1]) if near else (float(rng.integers(0, images)), float(rng.integers(1, CLASSES)))
        place = [x + rng.integers(-1, 2) / grid * (rng.random() < 0.4) for x in near[3:7]] if near else box(rng, grid)
        detections.append([image, label, rng.integers(1, 9) / 8, *place])
    detections.sort(key=lambda d: (d[0], d[1], -d[2]))
    none = [[float(image), *[-1.0] * 6] for image in range(images)]
    return detections or none, truth or [[-1.0] * 8]


def test_against_the_definitions() -> None:
    """500 random cases of one to three batches: ties, several boxes on one true box, difficult boxes, classes without true boxes, no detections."""
    rng, seen = np.random.default_rng(0), set()
    for number in range(500):
        threshold, difficult = float(rng.choice([0.25, 0.5, 0.75])), bool(rng.integers(0, 2))
        made = layer(f"overlap_threshold: {threshold} evaluate_difficult_gt: {str(difficult).lower()}")
        collected, wanted = {version: Detections(version) for version in VERSIONS}, []
        for _ in range(rng.integers(1, 4)):
            detections, truth = batch(rng)
            wanted.append(judge(detections, truth, threshold, difficult))
            found = made.evaluate(np.array(detections, np.float32), np.array(truth, np.float32))
            np.testing.assert_array_equal(found, np.array(wanted[-1]), err_msg=f"case {number}")
            for each in collected.values():
                each.add(found.reshape(-1))
        for version, each in collected.items():
            for label, (positives, _, precision) in each.by_class().items():
                expected = precision_of(wanted, label, version)
                if version != "11point" or positives % 10:  # see test_recall_of_seven_tenths
                    assert precision == pytest.approx(expected, abs=1e-6), (number, version, label)
                seen.add((version, positives == 0, expected == 0))
    assert len(seen) == 9, "no class with a precision, none without true boxes, or none without right detections"


def test_recall_of_seven_tenths() -> None:
    """In single precision 7 / 10 is less than 0.7, and so is 9 / 10 less than 0.9: the level is not reached, as in SSD."""
    for hits, levels in ((6, 7), (7, 7), (8, 9), (9, 9), (10, 11)):
        assert average_precision(points_of(np.ones(hits, np.float32), np.ones(hits), 10), "11point") == pytest.approx(levels / 11)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("Integral", (1 + 2 / 4 + 3 / 5) / 4), ("MaxIntegral", (1 + 3 / 5 + 3 / 5) / 4), ("11point", (3 * 1 + 5 * 3 / 5) / 11)],
)
def test_by_hand(version: str, expected: float) -> None:
    """Four true boxes and five detections, of which the first, the fourth and the fifth are right: recall 1/4, 2/4, 3/4."""
    points = points_of(np.array([0.9, 0.8, 0.7, 0.6, 0.5], np.float32), np.array([1, 0, 0, 1, 1]), 4)
    assert average_precision(points, version) == pytest.approx(expected)


# -- in pixels --------------------------------------------------------------------------------------------------------

RESIZED = 8, 16  # height and width of the net's input


def in_pixels(box: Sequence[float], size: tuple[int, int], mode: str) -> list[float]:
    """Return a box in pixels of an image, by SSD's rules for its resize mode."""
    (height, width), (x0, y0, x1, y1) = size, box
    if mode == "scales":  # of FIT_SMALL_SIZE: 12 high, 20 wide
        return [min(max(x * scale, 0), limit) for x, scale, limit in zip(box, (20, 12, 20, 12), (width, height, width, height))]
    if mode == "pad":
        scale = min(RESIZED[0] / height, RESIZED[1] / width)
        left, top = (1 - scale * width / RESIZED[1]) / 2, (1 - scale * height / RESIZED[0]) / 2
        if x0 < 1 - left and x1 > left and y0 < 1 - top and y1 > top:
            x0, x1, y0, y1 = (x0 - left) / (1 - 2 * left), (x1 - left) / (1 - 2 * left), (y0 - top) / (1 - 2 * top), (y1 - top) / (1 - 2 * top)
    return [min(max(x, 0), 1) * side for x, side in zip((x0, y0, x1, y1), (width, height, width, height))]


def overlap_in_pixels(a: Sequence[float], b: Sequence[float], area_pixel: int) -> float:
    """Intersection over union with inclusive corners. SSD's boxes that do not touch have one pixel in common. A box with its corners exchanged has area 0."""
    apart = b[0] > a[2] or b[2] < a[0] or b[1] > a[3] or b[3] < a[1]
    sides = [1.0, 1.0] if apart else [min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + 1 for i in (0, 1)]
    if min(sides) <= 0:
        return 0
    areas = [(c[2] - c[0] + area_pixel) * (c[3] - c[1] + area_pixel) if c[2] >= c[0] and c[3] >= c[1] else 0 for c in (a, b)]
    union = sum(areas) - sides[0] * sides[1]
    return sides[0] * sides[1] / union if union else math.inf


MODES = {
    "plain": "", "warp": "resize_param { resize_mode: WARP height: 8 width: 16 }",
    "pad": "resize_param { resize_mode: FIT_LARGE_SIZE_AND_PAD height: 8 width: 16 }",
    "scales": "resize_param { resize_mode: FIT_SMALL_SIZE height: 8 width: 16 height_scale: 12 width_scale: 20 }",
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_in_pixels(tmp_path: pathlib.Path, mode: str) -> None:
    """Sizes of images are taken in turn, one for each image with rows of DetectionOutput. After the last one the first one follows."""
    sizes = [(32, 64), (16, 16), (64, 32)]
    (tmp_path / "sizes.txt").write_text("".join(f"{number:06} {height} {width}\n" for number, (height, width) in enumerate(sizes)))
    made, at, rng = layer(f'name_size_file: "{tmp_path}/sizes.txt" overlap_threshold: 0.3 {MODES[mode]}'), 0, np.random.default_rng(1)
    right = 0
    for number in range(60):
        detections, truth = batch(rng)
        images = sorted({d[0] for d in detections})
        size_of = {image: sizes[(at + place) % 3] for place, image in enumerate(images)}
        at += len(images)
        rows: list[Row] = []
        for image in images:
            size = size_of[image]

            def iou(a: Sequence[float], b: Sequence[float], size: tuple[int, int] = size) -> float:
                return overlap_in_pixels(in_pixels(a, size, mode), in_pixels(b, size, mode), 0 if mode == "scales" else 1)

            rows += judge([d for d in detections if d[0] == image], truth, 0.3, True, iou)[CLASSES - 1 :]
        found = made.evaluate(np.array(detections, np.float32), np.array(truth, np.float32))
        np.testing.assert_array_equal(found[CLASSES - 1 :], np.array(rows).reshape(-1, 5), err_msg=f"{mode}, case {number}")
        right += int(sum(row[3] for row in rows))
    assert right > 50


# -- in a net ---------------------------------------------------------------------------------------------------------

NET = """layer { name: "det" type: "Input" top: "det" input_param { shape { dim: 1 dim: 1 dim: 1 dim: 7 } } }
    layer { name: "gt" type: "Input" top: "gt" input_param { shape { dim: 1 dim: 1 dim: 1 dim: 8 } } }
    layer { name: "eval" type: "DetectionEvaluate" bottom: "det" bottom: "gt" top: "eval" detection_evaluate_param { num_classes: 4 } }
    layer { name: "twice" type: "Power" bottom: "eval" top: "twice" power_param { scale: 2 } }"""


def test_in_a_net(device: Any) -> None:
    """The number of rows depends on the data, and the next layer follows."""
    net, rng, sizes = Net(text_format.Parse(NET, proto.NetParameter()), proto.TEST, device=device), np.random.default_rng(2), set()
    try:
        for number in range(12):
            detections, truth = batch(rng)
            if number % 4 == 3:
                detections = [[float(image), *[-1.0] * 6] for image in range(9 - number % 3)]
            inputs = {"det": np.array(detections, np.float32)[None, None], "gt": np.array(truth, np.float32)[None, None]}
            for name, array in inputs.items():
                net.blobs[name].reshape(*array.shape)
            out = net.forward(**inputs)["twice"]
            np.testing.assert_array_equal(out[0, 0], 2 * np.array(judge(detections, truth, 0.5, True)))
            sizes.add(out.shape)
    finally:
        net.close()
    assert len(sizes) > 4


# -- pycocotools ------------------------------------------------------------------------------------------------------


def apart(rng: np.random.Generator, images: int) -> Iterator[list[float]]:
    """Yield true boxes (image, label, box) that do not overlap: then pycocotools and SSD match boxes alike."""
    for image in range(images):
        for cell in rng.permutation(9)[: rng.integers(1, 7)]:
            y, x = divmod(int(cell), 3)
            corner = np.array([x, y]) / 3 + rng.uniform(0, 0.1, 2)
            yield [image, int(rng.integers(1, CLASSES)), *corner, *corner + rng.uniform(0.1, 0.2, 2)]


@pytest.mark.filterwarnings("ignore")
def test_against_pycocotools() -> None:
    """MaxIntegral is pycocotools' mean precision over the recalls 1/n .. n/n of n true boxes, and 11point over 0, 0.1, .. 1."""
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    rng, checked = np.random.default_rng(3), 0
    for _ in range(30):
        images = 4
        true = list(apart(rng, images))
        found = [[t[0], t[1], float(rng.random()), *np.array(t[2:]) + rng.normal(0, 0.015, 4)] for t in true for _ in range(rng.integers(0, 3))]
        found += [[float(rng.integers(0, images)), float(rng.integers(1, CLASSES)), float(rng.random()), *box(rng, 8)] for _ in range(8)]
        found.sort(key=lambda d: (d[0], d[1], -d[2]))
        rows = layer().evaluate(np.array(found, np.float32), np.array([[t[0], t[1], 0, *t[2:], 0] for t in true], np.float32))
        data = coco.COCO()
        data.dataset = {
            "images": [{"id": image} for image in range(images)], "categories": [{"id": c} for c in range(1, CLASSES)],
            "annotations": [
                {"id": k + 1, "image_id": t[0], "category_id": t[1], "bbox": [*t[2:4], t[4] - t[2], t[5] - t[3]], "area": 1, "iscrowd": 0}
                for k, t in enumerate(true)
            ],
        }  # fmt: skip
        data.createIndex()
        results = [{"image_id": int(d[0]), "category_id": int(d[1]), "score": d[2], "bbox": [*d[3:5], d[5] - d[3], d[6] - d[4]]} for d in found]
        for label in range(1, CLASSES):
            positives = sum(t[1] == label for t in true)
            if not positives or not any(d[1] == label for d in found) or positives == 10:
                continue
            for version, recalls in (("MaxIntegral", np.arange(1, positives + 1) / positives), ("11point", np.arange(11) / 10)):
                judge_coco = cocoeval.COCOeval(data, data.loadRes(results), "bbox")
                judge_coco.params.catIds, judge_coco.params.iouThrs, judge_coco.params.recThrs = [label], np.array([0.5]), recalls
                judge_coco.params.areaRng, judge_coco.params.areaRngLbl, judge_coco.params.maxDets = [[0, 1e10]], ["all"], [1000]
                judge_coco.evaluate()
                judge_coco.accumulate()
                collected = Detections(version)
                collected.add(rows)
                assert collected.by_class()[label][2] == pytest.approx(float(judge_coco.eval["precision"].mean()), abs=1e-6)
                checked += 1
    assert checked > 100


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "shapes", "fact"),
    [
        ("", [(1, 1, 3, 7), (1, 1, 2, 8)], "num_classes is missing"),
        ("num_classes: 3", [(1, 1, 3, 5), (1, 1, 2, 8)], "bottom 0 is 1 x 1 x 3 x 5, it must be 1 x 1 x n x 7"),
        ("num_classes: 3", [(1, 1, 3, 7), (2, 8)], "bottom 1 is 2 x 8, it must be 1 x 1 x n x 8"),
        ("num_classes: 3 overlap_threshold: 0", [(1, 1, 3, 7), (1, 1, 2, 8)], "overlap_threshold is 0"),
        ("num_classes: 3 name_size_file: 'none.txt'", [(1, 1, 3, 7), (1, 1, 2, 8)], "name_size_file 'none.txt' cannot be read"),
        ("num_classes: 3 name_size_file: 'x' resize_param { height: 3 }", [(1, 1, 3, 7), (1, 1, 2, 8)], r"resize_param { height: 3 width: 0 }"),
    ],
)
def test_mistakes(param: str, shapes: list[tuple[int, ...]], fact: str) -> None:
    made: Layer = layer_of(f"name: 'l' type: 'DetectionEvaluate' detection_evaluate_param {{ {param} }}")
    with pytest.raises(Error, match=fact):
        made.infer(*shapes)


@pytest.mark.parametrize(("text", "fact"), [("", "is empty"), ("1 30 40\n\n2 30\n", r"sizes.txt:3\n  '2 30' is not a name"), ("1 0 3\n", "'1 0 3' is not")])
def test_wrong_sizes(tmp_path: pathlib.Path, text: str, fact: str) -> None:
    (tmp_path / "sizes.txt").write_text(text)
    with pytest.raises(Error, match=fact):
        layer(f'name_size_file: "{tmp_path}/sizes.txt"')


def test_background() -> None:
    one = np.array([[0, 1, 0.5, 0, 0, 1, 1]], np.float32), np.array([[0, 1, 0, 0, 0, 1, 1, 0]], np.float32)
    for which, what in enumerate(("a detection", "a true box")):
        inputs = [array.copy() for array in one]
        inputs[which][0, 1] = 0
        with pytest.raises(Error, match=f"{what} of the class 0"):
            layer().evaluate(*inputs)


def test_infinite_boxes() -> None:
    """An untrained YOLO predicts infinite widths, also with heights of 0. They are wrong detections, without a warning of numpy."""
    inf = math.inf
    found = np.array([[0, 1, 0.5, -inf, 0.5, inf, 0.5], [0, 1, 0.4, -inf, 0, inf, 1]], np.float32)
    rows = layer().evaluate(found, np.array([[0, 1, 0, 0, 0, 1, 1, 0]], np.float32))
    assert rows[rows[:, 0] == 0].tolist() == [[0, 1, 0.5, 0, 1], [0, 1, np.float32(0.4), 0, 1]]
