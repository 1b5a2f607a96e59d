"""The source of AnnotatedData: boxes stay on their objects in all transforms. (test_golden.py compares deterministic settings with Caffe.)"""
from __future__ import annotations

import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.data.changes.boxes import jaccard
from ocaffe.data.changes.samplers import Samplers, jittered
from ocaffe.data.changes.transform import Transform
from ocaffe.data.dice import Dice
from ocaffe.data.sources.annotated import TRANSFORM_FIELDS, AnnotatedSource
from ocaffe.errors import Error
from tests.data.pictures import batch_of, failure, same_batches
from tests.data.small_databases import write

pytestmark = pytest.mark.quick

SIZE = (3, 40, 50)
OBJECT = (10, 30, 15, 27)  # y1, y2, x1, x2: white on black


def datum(number: int, boxes: Any = (), size: tuple[int, ...] = SIZE, **fields: Any) -> bytes:
    """Return a black image with a white object, its first box, and further `boxes` (label, xmin, ymin, xmax, ymax)."""
    pixels = np.zeros(size, np.uint8)
    top, bottom, left, right = (edge * size[1] // SIZE[1] for edge in OBJECT)
    pixels[:, top:bottom, left:right] = 255
    message = proto.AnnotatedDatum(type=0, **fields)
    message.datum.channels, message.datum.height, message.datum.width = size
    message.datum.data, message.datum.label = pixels.tobytes(), number
    _, height, width = size
    for label, xmin, ymin, xmax, ymax in ((1, left / width, top / height, right / width, bottom / height), *boxes):
        group = message.annotation_group.add(group_label=label)
        group.annotation.add(instance_id=number).bbox.CopyFrom(proto.NormalizedBBox(xmin=xmin, ymin=ymin, xmax=xmax, ymax=ymax))
    return message.SerializeToString()


@pytest.fixture
def database(tmp_path: pathlib.Path) -> str:
    return write(tmp_path / "db", [datum(number) for number in range(5)])


def source(path: Any, batch: int, transform: str = "", samplers: str = "", *, train: bool = True, workers: int = 1, data: str = "") -> AnnotatedSource:
    param = text_format.Parse(f"source: '{path}' batch_size: {batch} backend: LMDB {data}", proto.DataParameter())
    annotated = text_format.Parse(samplers, proto.AnnotatedDataParameter())
    message = text_format.Parse(transform, proto.TransformationParameter())
    made = AnnotatedSource(param, annotated, message, Transform(message, train, TRANSFORM_FIELDS), True, workers=workers)
    made.key = (1, 2)
    return made


def batches(made: AnnotatedSource, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return images (mirrored as on the device) and rows of boxes."""
    result = []
    for index in range(count):
        buffer = batch_of(made, index)
        tops = list(made.fill(index, buffer).shapes)
        layout, rows = made.layout(tops)
        assert rows is not None
        images = layout.pixels(buffer).reshape(tops[0]).copy()
        turned = layout.table(buffer)[:, 6] == 1
        images[turned] = images[turned][..., ::-1]
        result.append((images, rows.views(buffer)[0][0, 0]))
    return result


EXPAND = "expand_param { prob: 1 max_expand_ratio: 3 } mean_value: 90"
SAMPLER = "batch_sampler { max_sample: 1 max_trials: 50 sampler { min_scale: 0.4 max_scale: 0.9 min_aspect_ratio: 0.5 max_aspect_ratio: 2 }"
RESIZE = "resize_param { height: 60 width: 60 interp_mode: NEAREST interp_mode: LINEAR interp_mode: AREA }"
PAD = "resize_param { resize_mode: FIT_LARGE_SIZE_AND_PAD height: 60 width: 70 pad_value: 90 }"


@pytest.mark.parametrize(
    ("transform", "samplers"),
    [
        ("mirror: true", ""),
        ("mirror: true crop_size: 100", ""),
        (f"{EXPAND} {RESIZE} mirror: true", ""),
        (f"{RESIZE} mirror: true", f"{SAMPLER} }}"),
        (f"{PAD} crop_h: 50 crop_w: 44 mirror: true", ""),
        (f"{EXPAND} {PAD} mirror: true", f"{SAMPLER} sample_constraint {{ min_object_coverage: 0.5 }} }}"),
    ],
    ids=["mirror", "crop", "expand", "sample", "pad", "all"],
)
def test_boxes_stay_on_their_objects(tmp_path: pathlib.Path, transform: str, samplers: str) -> None:
    made = source(write(tmp_path / "db", [datum(0, (), (3, 160, 200))]), 4, transform, samplers)
    places = set()
    for images, rows in batches(made, 8):
        for n, image in enumerate(images):
            white = image[0] > 128
            mine = rows[rows[:, 0] == n]
            height, width = white.shape
            if not len(mine):
                assert white.sum() <= 2 * (height + width)  # white pixels are only at an edge
                continue
            (row,) = mine
            assert row[1] == 1 and row[7] == 0 and (row[3:7] >= 0).all() and (row[3:7] <= 1).all()
            ys, xs = white.any(1).nonzero()[0], white.any(0).nonzero()[0]
            if len(ys):
                found = np.array([xs[0], ys[0], xs[-1] + 1, ys[-1] + 1])
                assert np.abs(found - row[3:7] * [width, height, width, height]).max() <= 2  # crops and resized images have integer sizes
            places.add(tuple(row[3:7]))
    assert len(places) > 1


def test_expansion(database: str) -> None:
    expand = "expand_param { prob: 0.5 max_expand_ratio: 3 } mean_value: 90 mean_value: 17.5 mean_value: 300"
    made = source(database, 40, f"{expand} resize_param {{ height: 30 width: 30 interp_mode: NEAREST }}")
    images, rows = batches(made, 1)[0]
    grounds = {tuple(int(n) for n in image[:, y, x]) for image in images for y, x in ((0, 0), (0, -1), (-1, 0), (-1, -1))}
    assert grounds == {(0, 0, 0), (90, 18, 255)}
    areas = (rows[:, 5] - rows[:, 3]) * (rows[:, 6] - rows[:, 4])
    whole = (areas.max() - areas) < 1e-6
    assert 0.3 < whole.mean() < 0.7 and areas.min() < areas.max() / 4


def test_samples() -> None:
    objects = np.array([[0.2, 0.3, 0.6, 0.7], [0.5, 0.1, 0.9, 0.4]], np.float32)
    text = "use_original_image: %s max_trials: 400 sampler { min_scale: 0.3 max_scale: 1 min_aspect_ratio: 0.5 max_aspect_ratio: 2 } %s"
    def draw(*parts: tuple[str, str]) -> np.ndarray:
        return Samplers([text_format.Parse(text % part, proto.BatchSampler()) for part in parts]).windows(objects, Dice((3, 4), 5))

    free = draw(("true", ""))
    assert len(free) == 400 and (free >= 0).all() and (free <= 1).all()
    size = free[:, 2:] - free[:, :2]
    assert (size[:, 0] / size[:, 1] > 0.49).all() and (size[:, 0] / size[:, 1] < 2.01).all() and size.prod(1).min() > 0.08
    assert abs(free[:, :2].mean() / (1 - size).mean() - 0.5) < 0.05
    tight = draw(("true", "sample_constraint { min_jaccard_overlap: 0.4 }"))
    assert 0 < len(tight) < 200 and (jaccard(tight[:, None], objects[None]).max(1) >= 0.4).all()
    assert len(draw(("true", "max_sample: 3"), ("false", ""), ("true", "max_sample: 1"))) == 4


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("", True),
        ("min_jaccard_overlap: 0.24", True),
        ("min_jaccard_overlap: 0.26", False),
        ("max_jaccard_overlap: 0.2", False),
        ("min_object_coverage: 1", True),
        ("min_sample_coverage: 0.26", False),
        ("max_sample_coverage: 0.26", True),
        ("min_jaccard_overlap: 0.24 min_sample_coverage: 0.9", True),  # a second kind of constraint is ignored, as in SSD
    ],
)
def test_constraints(constraint: str, expected: bool) -> None:
    objects, sampler = np.array([[0.25, 0.25, 0.75, 0.75]], np.float32), proto.BatchSampler(max_trials=1)  # its window is the whole image
    text_format.Parse(constraint, sampler.sample_constraint)
    assert len(Samplers([sampler]).windows(objects, Dice((3, 4), 5))) == expected
    if constraint:
        assert not len(Samplers([sampler]).windows(objects[:0], Dice((3, 4), 5)))


def test_batches_depend_on_their_number(database: str) -> None:
    distort = "distort_param { brightness_prob: 0.5 brightness_delta: 32 random_order_prob: 0.5 }"
    noise = "noise_param { saltpepper: true saltpepper_param { fraction: 0.1 value: 9 } }"
    settings = f"{distort} {noise} {EXPAND} {RESIZE} mirror: true", f"{SAMPLER} sample_constraint {{ min_jaccard_overlap: 0.1 }} }}"
    same_batches(lambda workers: source(database, 4, *settings, workers=workers, data="shuffle: true rand_skip: 3"))


def test_distortion_leaves_the_ground_alone(database: str) -> None:
    """Distortion darkens the object, but not the background that expansion adds."""
    darker = "distort_param { contrast_prob: 1 contrast_lower: 0.5 contrast_upper: 0.5 }"
    made = source(database, 6, f"{darker} {EXPAND} resize_param {{ height: 50 width: 50 interp_mode: NEAREST }}")
    images, _ = batches(made, 1)[0]
    assert set(np.unique(images)) == {0, 90, 128}


def lists(made: AnnotatedSource, index: int) -> np.ndarray:
    buffer = batch_of(made, index)
    rows = made.layout(list(made.fill(index, buffer).shapes))[1]
    assert rows is not None
    return rows.views(buffer)[0].copy()


def test_lists_of_boxes(tmp_path: pathlib.Path) -> None:
    """yolo_data_type 1: the same boxes as in rows, as classes from 0 on, centres and sides. Difficult ones are left out unless train_diffcult."""
    hard = proto.AnnotatedDatum.FromString(datum(0, [(3, 0.5, 0.5, 0.7, 0.9), (2, 0.1, 0.2, 0.4, 0.3)]))
    hard.annotation_group[1].annotation[0].bbox.difficult = True
    path = write(tmp_path / "db", [hard.SerializeToString(), datum(1, [(5, 0.2, 0.2, 0.8, 0.4)])])
    settings = f"{RESIZE} mirror: true", f"{SAMPLER} sample_constraint {{ min_jaccard_overlap: 0.1 }} }}"
    rows = [rows for _, rows in batches(source(path, 2, *settings), 3)]
    for difficult in (False, True):
        made = source(path, 2, settings[0], f"yolo_data_type: 1 train_diffcult: {str(difficult).lower()} {settings[1]}")
        assert made.shapes()[1] == (2, 1, 300, 5)
        for index in range(3):
            for n, own in enumerate(lists(made, index)[:, 0]):
                mine = rows[index][(rows[index][:, 0] == n) & ((rows[index][:, 7] == 0) | difficult)]
                expected = np.column_stack([mine[:, 1] - 1, (mine[:, 3:5] + mine[:, 5:7]) / 2, mine[:, 5:7] - mine[:, 3:5]])
                assert np.allclose(own[: len(mine)], expected, atol=1e-6) and not own[len(mine) :].any()
    assert any((each[:, 7] == 1).any() for each in rows)


def test_too_many_boxes_for_a_list(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "db", [datum(0, [(1, 0.1, 0.1, 0.5, 0.5)] * 300)])
    error = failure(lambda: lists(source(path, 1, "", "yolo_data_type: 1 yolo_data_jitter: 0"), 0))
    assert "it has 301 boxes, and a list of yolo_data_type: 1 has at most 300" in error.fact and "keep at most 300 boxes" in str(error.fix)


@pytest.mark.parametrize("keeps", [False, True])
def test_jitter(keeps: bool) -> None:
    windows = np.concatenate([jittered(0.4, keeps, Dice((3, 4), n)) for n in range(600)])
    assert (windows >= 0).all() and (windows <= 1).all()
    size = windows[:, 2:] - windows[:, :2]
    whole, small = (size > 1 - 1e-6).all(1).mean(), (size.min(1) < 0.8).mean()
    assert 0.15 < whole < 0.25 and size.min() > 0.6 and (0.25 if keeps else 0.35) < small < (0.4 if keeps else 0.55)
    assert (np.abs(size[:, 0] - size[:, 1]).max() < 1e-6) == keeps


def test_lists_are_jittered_without_samplers(database: str) -> None:
    places = np.concatenate([lists(source(database, 4, RESIZE, "yolo_data_type: 1"), index)[:, 0, 0] for index in range(4)])
    assert len(np.unique(places[:, 1:], axis=0)) > 8
    still = lists(source(database, 4, RESIZE, "yolo_data_type: 1 yolo_data_jitter: 0"), 0)[:, 0, 0]
    assert np.allclose(still, [0, 21 / 50, 20 / 40, 12 / 50, 20 / 40])


SIZES = "".join(f"resize_param {{ prob: {prob} height: {height} width: {width} }} " for prob, height, width in ((0.5, 20, 25), (0, 7, 7), (0.5, 40, 50)))


def test_each_batch_draws_a_size(database: str) -> None:
    made = source(database, 2, f"{SIZES} mirror: true")
    assert made.shapes()[0] == (2, 3, 20, 25)
    found = batches(made, 60)
    heights = [images.shape[2] for images, _ in found]
    assert set(heights) == {20, 40} and 18 < heights.count(20) < 42
    for images, rows in found:
        for n, image in enumerate(images):
            ys, xs = (image[0] > 128).any(1).nonzero()[0], (image[0] > 128).any(0).nonzero()[0]
            box = rows[rows[:, 0] == n][0, 3:7] * [*image.shape[:0:-1], *image.shape[:0:-1]]
            assert np.abs(box - [xs[0], ys[0], xs[-1] + 1, ys[-1] + 1]).max() <= 1.5
    same_batches(lambda workers: source(database, 4, f"{SIZES} mirror: true", workers=workers))


def test_no_box_at_all(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "db", [proto.AnnotatedDatum(type=0, datum=proto.AnnotatedDatum.FromString(datum(n)).datum).SerializeToString() for n in range(2)])
    assert batches(source(path, 2), 1)[0][1].tolist() == [[-1] * 8]


def test_labels_without_annotations(tmp_path: pathlib.Path) -> None:
    plain = [proto.AnnotatedDatum(datum=proto.AnnotatedDatum.FromString(datum(n)).datum) for n in (4, 7)]
    path = write(tmp_path / "db", [each.SerializeToString() for each in plain])
    made = source(path, 2)
    assert made.shapes() == [(2, 3, 40, 50), (2, 1, 1, 1)]
    buffer = batch_of(made, 0)
    assert made.layout(made.shapes())[0].labels(buffer).tolist() == [4, 7]
    assert made.layout(made.shapes())[1] is None
    assert source(path, 2, samplers="anno_type: BBOX").shapes()[1] == (1, 1, 1, 8)  # as with anno_type: BBOX


def test_pad_modes(database: str) -> None:
    pad = "resize_param { resize_mode: FIT_LARGE_SIZE_AND_PAD height: 60 width: 50 interp_mode: NEAREST pad_mode: %s pad_value: 3 pad_value: 4 pad_value: 5 }"
    whole = np.zeros(SIZE, np.uint8)
    whole[:, OBJECT[0] : OBJECT[1], OBJECT[2] : OBJECT[3]] = 255
    for mode, how in (("MIRRORED", "reflect"), ("REPEAT_NEAREST", "edge")):
        (images, _), *_ = batches(source(database, 1, pad % mode), 1)
        assert (images[0] == np.pad(whole, ((0, 0), (10, 10), (0, 0)), mode=how)).all()  # type: ignore[call-overload]
    (images, _), *_ = batches(source(database, 1, pad % "CONSTANT"), 1)
    assert images[0, :, 0, 0].tolist() == [3, 4, 5] and (images[0, :, 10:50] == whole).all()


@pytest.mark.parametrize(
    ("transform", "samplers", "fact"),
    [
        ("resize_param { height: 4 }", "", "resize_param has height 4 and width 0"),
        ("resize_param { height: 4 width: 4 } resize_param { height: 4 width: 4 }", "", "transform_param has 2 resize_param, the sum of their prob is 2"),
        ("resize_param { height: 4 width: 4 resize_mode: FIT_SMALL_SIZE }", "", "FIT_SMALL_SIZE with batch_size 2"),
        ("resize_param { height: 60 width: 90 resize_mode: FIT_LARGE_SIZE_AND_PAD pad_value: 1 pad_value: 2 }", "", "2 pad_value given for images of 3"),
        ("resize_param { height: 4 width: 4 } crop_size: 5", "", "the crop of 5 x 5 is larger than the image of 4 x 4"),
        ("expand_param { max_expand_ratio: 0.5 }", "", "max_expand_ratio is 0.5"),
        ("expand_param { prob: 1 max_expand_ratio: 1e6 } resize_param { height: 4 width: 4 }", "", "would be expanded to 3 x"),
        ("resize_param { height: 100000 width: 100000 }", "", "images of resize_param would be 100000 x 100000 = 10,000,000,000 pixels"),
        ("resize_param { height: 4 width: 4 } scale: nan", "", "scale has nan, which is no finite float of 32 bits"),
        ("resize_param { height: 4 width: 4 } mean_value: 3 mean_value: -inf mean_value: 1", "", "mean_value has -inf"),
        ("noise_param { convert_to_lab: true }", "", "convert_to_lab is not supported"),
        ("distort_param { hue_delta: -1 }", "", "hue_delta -1"),
        ("random_90_deg_rot: true", "", "field 'random_90_deg_rot' is not supported"),
        ("", "batch_sampler { sampler { min_scale: 0.5 max_scale: 0.3 } }", "a sampler of batch_sampler has min_scale 0.5 and max_scale 0.3"),
        ("", "batch_sampler { sampler { max_scale: 1.5 } }", "a sampler of batch_sampler has min_scale 1 and max_scale 1.5"),
        ("", "yolo_data_type: 2", "yolo_data_type is 2"),
        ("", "yolo_data_type: 1 yolo_data_jitter: 1", "yolo_data_jitter is 1"),
    ],
)
def test_settings(database: str, transform: str, samplers: str, fact: str) -> None:
    error = failure(lambda: batch_of(source(database, 2, transform, samplers), 0))
    assert fact in error.fact and error.fix


def test_bad_records(tmp_path: pathlib.Path) -> None:
    def fault(*values: bytes, batch: int = 2, transform: str = "") -> Error:
        path = write(tmp_path / f"db{len(list(tmp_path.iterdir()))}", values)
        return failure(lambda: batch_of(source(path, batch, transform), 0))

    def fact(*values: bytes) -> str:
        return fault(*values).fact

    assert "record 1 (key '00000001'): it is not an AnnotatedDatum" in fact(datum(0), b"\x0a\xff")
    assert "the image of key '00000001' is 3 x 41 x 50, that of key '00000000' in the same batch is 3 x 40 x 50" in fact(datum(0), datum(1, (), (3, 41, 50)))
    mixed = [datum(0), datum(1, (), (1, 40, 50))]
    assert fault(*mixed).fix == "set force_color: true"
    means = fault(*mixed, transform="mean_value: 1 mean_value: 2 mean_value: 3")
    assert "3 mean_value given for images of 1 channels" in means.fact and "force_color: true" in str(means.fix)
    short = proto.AnnotatedDatum.FromString(datum(0))
    short.datum.data = b"123"
    assert "it has 3 bytes for an image of 3 x 40 x 50" in fact(datum(0), short.SerializeToString())
    text = proto.AnnotatedDatum.FromString(datum(0))
    text.datum.data, text.datum.encoded = b"text", True
    assert "record 1 (key '00000001'): it is not an image file" in fact(datum(0), text.SerializeToString())
    gray = fault(datum(0, (), (1, 40, 50)), transform="distort_param { }")
    assert "distort_param is set, and the image has 1 channels" in gray.fact and "without --gray" in str(gray.fix)  # force_color is for files
    bare = proto.AnnotatedDatum.FromString(datum(0))
    bare.ClearField("type")
    bare.datum.ClearField("label")
    assert "it has no label and no type of annotations" in fact(bare.SerializeToString())
    assert "record 0 (key '00000000'): it is a Datum, an image without boxes" in fact(bare.datum.SerializeToString())


def test_plans_are_those_of_batches(database: str) -> None:
    """`ocaffe lint` looks at plans: their boxes are those that the net gets, also after the last record."""
    made = source(database, 4, f"{EXPAND} {RESIZE} mirror: true", f"{SAMPLER} }}")
    rows = np.concatenate([rows + [4 * number, 0, 0, 0, 0, 0, 0, 0] for number, (_, rows) in enumerate(batches(made, 2))])
    planned = list(itertools.islice(made.plans(), 8))
    assert np.array_equal(np.concatenate([plan.scene.boxes.rows(n) for n, (_, plan) in enumerate(planned)]), rows)
    assert [record for record, _ in planned] == [plan.parts[0].datum.label for _, plan in planned]


@pytest.mark.parametrize(("boxes", "rows"), [(0, 1), (1, 1), (7, 7), (16, 16), (17, 24), (24, 24), (25, 32), (33, 48), (49, 64), (65, 96), (97, 128)])
def test_rows_of_large_batches_have_few_numbers(tmp_path: pathlib.Path, boxes: int, rows: int) -> None:
    """Each number of rows compiles the net again."""
    more = [(1, 0.1, 0.1, 0.2, 0.2)] * max(boxes - 1, 0)
    first = proto.AnnotatedDatum.FromString(datum(0, more))
    if not boxes:
        del first.annotation_group[:]
    ((_, found),) = batches(source(write(tmp_path / "db", [first.SerializeToString()]), 1), 1)
    assert found.shape == (rows, 8) and (found[:boxes, 0] == 0).all() and (found[boxes:] == -1).all()
