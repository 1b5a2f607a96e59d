"""Mosaic and mixup of AnnotatedData: boxes stay on their objects, and batches are the same however they are made."""
from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from tests.data.pictures import batch_of, failure, same_batches
from tests.data.small_databases import write
from tests.data.sources.test_annotated import batches, datum, source

pytestmark = pytest.mark.quick

RESIZE = "resize_param { height: 60 width: 80 }"
MOSAIC, MIXUP = "mosaic { prob: 1 }", "mixup { prob: 1 alpha: 8 }"
HALF = "mosaic { prob: 0.5 } mixup { prob: 0.5 }"


@pytest.fixture
def database(tmp_path: pathlib.Path) -> str:
    return write(tmp_path / "db", [datum(number) for number in range(5)])


def coverage(image: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Return the share of white pixels in the boxes, and outside of them. Edges are left out, because resized ones are gray."""
    height, width = image.shape[1:]
    inside, near = np.zeros((height, width), bool), np.zeros((height, width), bool)
    for left, top, right, bottom in rows[:, 3:7] * [width, height, width, height]:
        inside[int(np.ceil(top)) + 1 : max(int(bottom) - 1, 0), int(np.ceil(left)) + 1 : max(int(right) - 1, 0)] = True
        near[max(int(top) - 2, 0) : int(bottom) + 3, max(int(left) - 2, 0) : int(right) + 3] = True
    return float((image[0] > 128)[inside].mean()) if inside.any() else 1.0, float((image[0] > 128)[~near].mean())


@pytest.mark.parametrize("more", ["mirror: true", "mirror: true expand_param { prob: 1 max_expand_ratio: 2 }", "mirror: true crop_h: 50 crop_w: 60"])
def test_boxes_of_a_mosaic(database: str, more: str) -> None:
    made = source(database, 8, f"{MOSAIC} {RESIZE} {more}")
    counts = set()
    for images, rows in batches(made, 4):
        for n, image in enumerate(images):
            mine = rows[rows[:, 0] == n]
            inside, outside = coverage(image, mine)
            assert inside > 0.97 and outside < 0.01 and (mine[:, 3:7] >= 0).all() and (mine[:, 3:7] <= 1).all()
            counts.add(len(mine))
    assert max(counts) == 4 and min(counts) < 4  # a window of the square shows a part of the objects


def test_the_window(database: str) -> None:
    """With scales of 1, all four images are whole, and half as large."""
    _, rows = batches(source(database, 3, f"mosaic {{ prob: 1 min_scale: 1 }} {RESIZE}"), 1)[0]
    assert len(rows) == 12
    corner = np.array([15 / 50, 10 / 40, 27 / 50, 30 / 40]) / 2
    wanted = [corner + [x, y, x, y] for y in (0, 0.5) for x in (0, 0.5)]
    assert np.allclose(rows[:4, 3:7], wanted, atol=1e-6)


def test_mixup(tmp_path: pathlib.Path) -> None:
    """The sum of both images with shares, and the boxes of both."""
    records = []
    for level in (40, 200):
        message = proto.AnnotatedDatum.FromString(datum(level))
        message.datum.data = bytes([level]) * len(message.datum.data)
        records.append(message.SerializeToString())
    images, rows = batches(source(write(tmp_path / "db", records), 40, MIXUP), 1)[0]
    levels = {int(image[0, 0, 0]) for image in images}
    assert {40, 200} < levels and len(levels) > 8 and min(levels) == 40 and max(levels) == 200  # a partner may be the image itself
    assert len(rows[rows[:, 0] >= 0]) == 80 and all((image == image[0, 0, 0]).all() for image in images)


def test_shares(database: str) -> None:
    _, rows = batches(source(database, 200, f"mosaic {{ prob: 0.3 min_scale: 1 }} mixup {{ prob: 0.2 }} {RESIZE}"), 1)[0]
    boxes = np.bincount(rows[rows[:, 0] >= 0, 0].astype(int), minlength=200)
    assert set(boxes) == {1, 2, 4, 5}
    assert abs((boxes >= 4).mean() - 0.3) < 0.1 and abs(np.isin(boxes, (2, 5)).mean() - 0.2) < 0.1


def test_other_images_stay(database: str) -> None:
    """An image that is not joined is the one without the fields."""
    settings = f"{RESIZE} mirror: true expand_param {{ prob: 1 max_expand_ratio: 2 }}"
    plain, joined = (batches(source(database, 40, f"{fields} {settings}"), 1)[0] for fields in ("", HALF))
    same = [n for n in range(40) if np.array_equal(plain[0][n], joined[0][n])]
    assert 4 <= len(same) <= 20
    assert all(np.array_equal(plain[1][plain[1][:, 0] == n], joined[1][joined[1][:, 0] == n]) for n in same)


def test_test_draws_nothing(database: str) -> None:
    plain, joined = (batches(source(database, 5, f"{fields} {RESIZE}", train=False), 1)[0] for fields in ("", f"{MOSAIC} {MIXUP}"))
    assert np.array_equal(plain[0], joined[0]) and np.array_equal(plain[1], joined[1])


@pytest.mark.parametrize("more", ["", "batch_sampler { max_trials: 9 sampler { min_scale: 0.4 } }", "yolo_data_type: 1"])
def test_same_batches(database: str, more: str) -> None:
    distort = "distort_param { brightness_prob: 1 brightness_delta: 32 }"
    same_batches(lambda workers: source(database, 4, f"{HALF} {RESIZE} {distort} mirror: true", more, workers=workers, data="shuffle: true"))


def test_batches_of_another_size(database: str) -> None:
    (large,), small = (batches(source(database, batch, f"{HALF} {RESIZE} mirror: true"), count) for batch, count in ((8, 1), (4, 2)))
    assert np.array_equal(large[0], np.concatenate([images for images, _ in small]))


@pytest.mark.parametrize(("settings", "text"), [
    ("mosaic { prob: 1.5 }", "mosaic has prob 1.5"), ("mixup { prob: -1 }", "mixup has prob -1"),
    ("mosaic { min_scale: 0 }", "mosaic has min_scale 0 and max_scale 1"), ("mosaic { min_scale: 0.9 max_scale: 0.8 }", "min_scale 0.9 and max_scale 0.8"),
    ("mixup { alpha: 0 }", "mixup has alpha 0"),
])  # fmt: skip
def test_settings(database: str, settings: str, text: str) -> None:
    problem = failure(lambda: source(database, 2, settings))
    assert text in str(problem) and problem.fix


def test_images_of_several_sizes(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "db", [datum(n, size=(3, 40 + 10 * n, 50)) for n in range(3)])
    problem = failure(lambda: [batch_of(source(path, 1, MOSAIC), index) for index in range(3)])
    assert "mosaic or mixup joins" in str(problem) and "resize_param" in problem.fix


def test_a_damaged_partner_is_named(tmp_path: pathlib.Path) -> None:
    """Its header is right, and its pixels are not."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8)).save(file, "PNG")
    bad = proto.AnnotatedDatum.FromString(datum(1))
    bad.datum.CopyFrom(proto.Datum(encoded=True, data=file.getvalue()[:-3000]))
    path = write(tmp_path / "db", [datum(0), bad.SerializeToString(), datum(2), datum(3)])

    def first(index: int) -> Any:
        return batch_of(source(path, 1, f"{MOSAIC} {RESIZE}"), 4 * index)  # the image itself is record 0

    problem = failure(lambda: [first(index) for index in range(6)])
    assert "00000001" in str(problem)
