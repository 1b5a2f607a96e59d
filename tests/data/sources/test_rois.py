"""The sources of RoIDataLayer, compared with a numpy program of py-faster-rcnn's transformation."""
from __future__ import annotations

import math
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.databases.proposals import read_proposals, write_proposals
from ocaffe.data.source import Share
from ocaffe.data.sources.floats import FloatLayout
from ocaffe.data.sources.roi_samples import SampledRois
from ocaffe.data.sources.rois import RoiSource, TrueBoxes
from ocaffe.errors import Error
from ocaffe.layers.roi_data import DEFAULTS, SAMPLE
from tests.data.pictures import batch_of
from tests.data.scenes import Scene, database, scenes
from tests.data.small_databases import write

pytestmark = pytest.mark.quick

MEANS = (10.0, 20.5, 30.0)
SMALL = {"scales": [48], "max_size": 80, "pad": 16, "pixel_means": list(MEANS), "num_classes": 4}


@pytest.fixture
def made(tmp_path: pathlib.Path) -> tuple[list[Scene], str]:
    """Nine images: the second has a difficult box, the fourth only such, the sixth none, and the seventh is very wide."""
    rng = np.random.default_rng(1)
    found = scenes(rng, 9)
    found[1] = Scene(found[1].pixels, [*found[1].boxes, (2, 3, 12, 13, 2, True)])
    found[3] = Scene(found[3].pixels, [(0, 0, 10, 12, 1, True)])
    found[5] = Scene(found[5].pixels, [])
    found[6] = Scene(rng.integers(0, 256, (20, 100, 3)).astype(np.uint8), [(5.5, 2.25, 60, 20, 3, False)])
    return found, database(tmp_path / "db", found)


def source(path: str, train: bool = True, rows: bool = False, **settings: Any) -> TrueBoxes:
    opened = TrueBoxes(SimpleNamespace(**{**DEFAULTS, **SMALL, "source": path, **settings}), train, rows)
    opened.key = (7, 8)
    return opened


def batch(opened: RoiSource, index: int) -> list[np.ndarray]:
    """Return the tops of batch number `index`."""
    buffer = batch_of(opened, index)
    return [view.copy() for view in FloatLayout(opened.fill(index, buffer).shapes).views(buffer)]


# -- the independent program -----------------------------------------------------------------------------------------


def transformed(scene: Scene, mirrored: bool, side: int = 48, longest: int = 80, pad: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return data, im_info and the boxes of an image. The program interpolates along one axis after the other by numpy.interp."""
    pixels = scene.pixels.astype(np.float64) - MEANS
    pixels = pixels[:, ::-1] if mirrored else pixels
    height, width, _ = pixels.shape
    scale = side / min(height, width)
    if round(scale * max(height, width)) > longest:
        scale = longest / max(height, width)
    size = round(height * scale), round(width * scale)
    for axis, length in enumerate(size):
        at = (np.arange(length) + 0.5) / scale - 0.5
        pixels = np.apply_along_axis(lambda line, at=at: np.interp(at, np.arange(len(line)), line), axis, pixels)
    data = np.zeros((3, *(pad * math.ceil(length / pad) for length in size)))
    data[:, : size[0], : size[1]] = pixels.transpose(2, 0, 1)
    boxes = []
    for x1, y1, x2, y2, label, difficult in scene.boxes:
        left, right = (width - x2, width - x1) if mirrored else (x1, x2)
        if not difficult:
            boxes.append([left * scale, y1 * scale, (right - 1) * scale, (y2 - 1) * scale, label])
    return data, np.array([*size, scale]), np.array(boxes)


def number_of(data: np.ndarray, known: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> int:
    """Return which of the transformed images `data` is."""
    found = [n for n, (expected, _, _) in enumerate(known) if expected.shape == data.shape and np.abs(expected - data).max() < 2e-3]
    assert len(found) == 1
    return found[0]


def test_every_image_and_its_mirrored_one_once_in_an_epoch(made: tuple[list[Scene], str]) -> None:
    used = [scene for scene in made[0] if any(not box[5] for box in scene.boxes)]
    known = [transformed(scene, mirrored) for mirrored in (False, True) for scene in used]
    assert len(known) == 14 and {each[0].shape for each in known} != {known[0][0].shape}
    opened = source(made[1])
    orders = []
    for epoch in range(2):
        order = []
        for index in range(epoch * 14, epoch * 14 + 14):
            data, info, truth = batch(opened, index)
            number = number_of(data[0], known)
            assert truth.shape == (8, 5) and (truth[len(known[number][2]) :] == -1).all(), "rows of padding"
            np.testing.assert_allclose(info[0], known[number][1], rtol=1e-6)
            np.testing.assert_allclose(truth[: len(known[number][2])], known[number][2], atol=1e-4)
            order.append(number)
        assert sorted(order) == list(range(14))
        orders.append(order)
    assert orders[0] != orders[1] and orders[0] != sorted(orders[0])
    again = source(made[1])
    assert (batch_of(again, 9) == batch_of(opened, 9)).all(), "a batch depends on its number alone"
    other = [source(made[1]) for _ in range(2)]
    for rank, each in enumerate(other):
        each.share = Share(rank, 2)
        assert (batch_of(each, 3) == batch_of(opened, 6 + rank)).all(), "ranks take turns"


def test_images_of_a_test(made: tuple[list[Scene], str]) -> None:
    """All images in order, none mirrored, with the rows for DetectionEvaluate, difficult boxes among them."""
    opened = source(made[1], train=False, rows=True)
    for index, scene in enumerate(made[0]):
        data, _, truth, rows = batch(opened, index)
        expected, _, boxes = transformed(scene, False)
        np.testing.assert_allclose(data[0], expected, atol=2e-3)
        assert (truth[:, 4] >= 0).sum() == len(boxes)
        height, width, _ = scene.pixels.shape
        wanted = [[0, box[4], n, box[0] / width, box[1] / height, box[2] / width, box[3] / height, box[5]] for n, box in enumerate(scene.boxes)]
        np.testing.assert_allclose(rows[0, 0, : len(wanted)], np.array(wanted).reshape(-1, 8), atol=1e-5)
        assert (rows[0, 0, len(wanted) :] == -1).all()


def test_raw_gray_images(tmp_path: pathlib.Path) -> None:
    """Their three channels are equal, as those of gray files."""
    pixels = np.random.default_rng(4).integers(0, 256, (48, 60)).astype(np.uint8)
    message = proto.AnnotatedDatum(type=proto.AnnotatedDatum.BBOX)
    message.datum.channels, message.datum.height, message.datum.width, message.datum.data = 1, *pixels.shape, pixels.tobytes()
    message.annotation_group.add(group_label=1).annotation.add().bbox.CopyFrom(proto.NormalizedBBox(xmax=0.5, ymax=0.5))
    data = batch(source(write(tmp_path / "gray", [message.SerializeToString()]), train=False), 0)[0]
    for channel, mean in enumerate(MEANS):
        np.testing.assert_allclose(data[0, channel, :48, :60], pixels - mean, atol=1e-4)
    message.datum.channels = 2
    with pytest.raises(Error, match="its image has 2 channels"):
        batch(source(write(tmp_path / "two", [message.SerializeToString()]), train=False), 0)


def test_scales_and_flags(made: tuple[list[Scene], str]) -> None:
    opened = source(made[1], scales=[30, 48], max_size=1000, use_flipped=False, use_diff=True, pad=1)
    sides, numbers = set(), set()
    for index in range(16):
        data, info, truth = batch(opened, index)
        sides.add(min(data.shape[2:]))
        assert data.shape[2:] == tuple(info[0, :2])
        numbers.add((truth[:, 4] >= 0).sum())
    assert sides == {30, 48} and opened.images == 8 and max(numbers) == 4


def test_mistakes(made: tuple[list[Scene], str], tmp_path: pathlib.Path) -> None:
    def refused(text: str, **settings: Any) -> None:
        with pytest.raises(Error, match=text):
            source(made[1], **settings)

    refused("a box has label 3, and num_classes is 3", num_classes=3)
    refused("pixel_means has 1 values", pixel_means=[1.0])
    refused(r"scales are \[\]", scales=[])
    refused("no database is given", source="")
    refused("does not exist", source=str(tmp_path / "none"))
    empty = database(tmp_path / "empty", [Scene(made[0][0].pixels, [])])
    refused("has a box for training", source=empty)


# -- Fast R-CNN ------------------------------------------------------------------------------------------------------


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    sides = [min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + 1 for i in (0, 1)]
    both = max(sides[0], 0) * max(sides[1], 0)
    return float(both / ((a[2] - a[0] + 1) * (a[3] - a[1] + 1) + (b[2] - b[0] + 1) * (b[3] - b[1] + 1) - both))


def target(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    centres = [((box[0] + box[2] + 1) / 2, (box[1] + box[3] + 1) / 2, box[2] - box[0] + 1, box[3] - box[1] + 1) for box in (a, b)]
    (x, y, w, h), (u, v, s, t) = centres
    return np.array([(u - x) / w, (v - y) / h, math.log(s / w), math.log(t / h)])


def proposals(rng: np.random.Generator, scene: Scene) -> np.ndarray:
    """Return boxes near the true ones, and others."""
    height, width, _ = scene.pixels.shape
    near = [np.array(box[:4]) - (0, 0, 1, 1) + rng.uniform(-3, 3, 4) for box in scene.boxes for _ in range(6)]
    corners = rng.uniform(0, [width - 9, height - 9], (10, 2))
    found = np.concatenate([np.array(near).reshape(-1, 4), np.concatenate([corners, corners + rng.uniform(5, 8, (10, 2))], 1)])
    return np.sort(np.clip(found, 0, [width - 1, height - 1] * 2).reshape(-1, 2, 2), 1).reshape(-1, 4).astype(np.float32)


@pytest.mark.parametrize("precomputed", [False, True])
def test_sampled_proposals(made: tuple[list[Scene], str], tmp_path: pathlib.Path, precomputed: bool) -> None:
    rng = np.random.default_rng(3)
    given = [proposals(rng, scene) for scene in made[0]]
    write_proposals(str(tmp_path / "p.npz"), given, [np.ones(len(boxes)) for boxes in given])
    settings = {**SAMPLE, **SMALL, "pad": 1, "source": made[1], "proposals": str(tmp_path / "p.npz"), "batch_size": 24,
                "bbox_normalize_targets_precomputed": precomputed}  # fmt: skip
    opened = SampledRois(SimpleNamespace(**settings))
    older = SampledRois(SimpleNamespace(**settings), tops=5)  # Fast R-CNN of 2015 has no outside weights
    opened.key = older.key = (7, 8)
    # Every candidate of every image: its label and target, by loops.
    known, collected = [], {label: [] for label in range(1, 4)}
    for mirrored in (False, True):
        for scene, boxes in zip(made[0], given):
            data, info, truth = transformed(scene, mirrored, pad=1)
            if not len(truth):
                continue
            scale, width = info[2], scene.pixels.shape[1]
            placed = [[width - b[2] - 1, b[1], width - b[0] - 1, b[3]] if mirrored else b for b in boxes.astype(float)]
            own = [*truth[:, :4], *np.array(placed) * scale]
            rows = []
            for box in own:  # overlaps and targets are those of the stored image
                table = [overlap(np.array(box) / scale, true[:4] / scale) for true in truth]
                best = int(np.argmax(table))
                goal = target(np.array(box) / scale, truth[best, :4] / scale)
                rows.append((np.array(box), table[best], int(truth[best, 4]), goal, truth[best, :4]))
                if table[best] >= 0.5:
                    collected[int(truth[best, 4])].append(goal)
            known.append((data, rows))
    for label, goals in collected.items():
        mean, deviation = (np.mean(goals, 0), np.std(goals, 0)) if not precomputed else (np.zeros(4), np.array([0.1, 0.1, 0.2, 0.2]))
        np.testing.assert_allclose(opened.normal[0][label], mean, atol=1e-6)
        np.testing.assert_allclose(opened.normal[1][label], deviation, atol=1e-6)
    seen: list[int] = []
    mixed = 0
    for index in range(len(known) // 2):
        data, rois, labels, targets, inside, outside = batch(opened, index)
        five = batch(older, index)
        assert len(five) == 5 and all((a == b).all() for a, b in zip(five, (data, rois, labels, targets, inside)))
        assert len(data) == 2 and (inside == outside).all() and len(rois) == len(labels) <= 24
        tall = []
        for image in range(2):
            number = next(n for n, (each, _) in enumerate(known) if each.shape[1] <= data.shape[2] and each.shape[2] <= data.shape[3]
                          and np.abs(each - data[image, :, : each.shape[1], : each.shape[2]]).max() < 2e-3)  # fmt: skip
            seen.append(number)
            tall.append(known[number][0].shape[1] > known[number][0].shape[2])
            own = np.flatnonzero(rois[:, 0] == image)
            assert 0 < len(own) <= 12 and (labels[own] > 0).sum() <= 3, "a quarter of twelve is foreground"
            for row in own:
                _, best, label, _, true = min(known[number][1], key=lambda each, row=row: np.abs(each[0] - rois[row, 1:]).max())
                assert labels[row] == (label if best >= 0.5 else 0) and best >= 0.1
                wanted = np.zeros((4, 4))
                if best >= 0.5:
                    wanted[label] = (target(rois[row, 1:], true) - opened.normal[0][label]) / opened.normal[1][label]
                np.testing.assert_allclose(targets[row].reshape(4, 4), wanted, atol=2e-3)
                assert (inside[row].reshape(4, 4).any(1) == (np.arange(4) == labels[row])).all() or not labels[row]
        mixed += tall[0] != tall[1]
    assert mixed <= 1, "only one batch has the last wide image and the first tall one"
    assert sorted(seen) == list(range(len(known))), "every image once in an epoch"


def test_files_of_proposals(tmp_path: pathlib.Path, made: tuple[list[Scene], str]) -> None:
    path = str(tmp_path / "p.npz")
    boxes = [np.float32([[0, 1, 2, 3], [4, 5, 6.5, 7]]), np.empty((0, 4), np.float32), np.float32([[1, 1, 1, 1]])]
    write_proposals(path, boxes, [np.float32([0.5, 0.25]), np.empty(0), np.float32([1])])
    found = read_proposals(path)
    assert [each.tolist() for each in found] == [each.tolist() for each in boxes]
    with pytest.raises(Error, match=r"has the proposals for 3 images, and .* has 9"):
        SampledRois(SimpleNamespace(**{**SAMPLE, **SMALL, "source": made[1], "proposals": path}))
    write_proposals(path, [np.float32([[2, 0, 1, 1]])], [np.float32([1])])
    with pytest.raises(Error, match=r"box 0 .* of image 0, is 2, 0, 1, 1\n.*with x1 <= x2"):
        read_proposals(path)
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(Error, match=r"is no \.npz file with the arrays counts and boxes"):
        read_proposals(str(tmp_path / "bad.npz"))
    with pytest.raises(Error, match="cannot be read"):
        read_proposals(str(tmp_path / "none.npz"))
    boxes32 = np.zeros((3, 4), np.float32)
    for counts, rows, message in (
        ([2], boxes32, r"has 3 boxes, and the sum of its counts is 2"),
        ([3.0], boxes32, r"counts in .* is 1 of type float64, .*whole numbers"),
        ([[3]], boxes32, r"counts in .* is 1 x 1 of type"),
        ([4, -1], boxes32, r"counts in .* has -1 for image 1"),
        ([3], boxes32[:, :3], r"boxes in .* is 3 x 3, and must be N x 4"),
        ([3], np.zeros((3, 4)), r"is of type float64, and must be float32\n.*astype\(np.float32\)"),
        ([0, 3], np.float32([[0, 0, 1, 1], [0, np.nan, 1, 1], [0, 0, 1, 1]]), r"box 1 .* of image 1, is 0, nan, 1, 1\n.*finite"),
    ):
        np.savez(str(tmp_path / "wrong.npz"), counts=np.array(counts), boxes=rows)
        with pytest.raises(Error, match=message):
            read_proposals(str(tmp_path / "wrong.npz"))
