"""Synthetic scenes: boxes fit masks, overlaps keep the rules, sizes span eight times, colors differ, and a seed decides all."""
from __future__ import annotations

import numpy as np
import pytest

from ocaffe.data.dice import Dice
from ocaffe.errors import Error
from ocaffe.tools.datasets.sets import Part
from ocaffe.tools.drawing.palette import palette
from ocaffe.tools.synthetic.backgrounds import background
from ocaffe.tools.synthetic.scenes import CLEAR, MAX_IOU, VISIBLE, Composer, Glyphs, _Canvas, _iou

pytestmark = pytest.mark.quick


def drawn_digits(count: int = 20) -> Part:
    """Return images that stand for digits: class k is k + 3 bars of a comb with a full upper row."""
    images = np.zeros((count, 1, 28, 28), np.uint8)
    for number in range(count):
        images[number, 0, 4:10, 2:26] = 255
        images[number, 0, 4:24, 2 : 6 + number % 10] = 200
    return Part(images, np.arange(count, dtype=np.uint8) % 10)


GLYPHS = Glyphs(drawn_digits())


def composer(size: int = 120, seed: int = 1, part: str = "train", width: int = 0) -> Composer:
    return Composer(GLYPHS, size, width or size, seed, part)


def test_boxes_are_the_extents_of_masks() -> None:
    for number in range(12):
        scene = composer(100, width=140).scene(number, 2, 5)
        assert scene.pixels.shape == (100, 140, 3) and 2 <= len(scene.things) <= 5
        assert np.unique(scene.instances).tolist() == list(range(len(scene.things) + 1))
        for index, thing in enumerate(scene.things, 1):
            rows, columns = np.nonzero(scene.instances == index)
            assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == thing[1:5]
            assert (scene.classes()[rows, columns] == thing.label + 1).all()
        assert ((scene.classes() == 0) == (scene.instances == 0)).all()


def test_overlaps_keep_the_rules() -> None:
    marked = covered = 0
    for number in range(200):
        dice = Dice((3, 4), number)
        canvas = _Canvas(dice, 90, 90)
        for label in range(6):
            canvas.place(composer(90)._shape(dice, label, dice.uniform(20, 60)), label, dice)
        shares = canvas.visible[1:] / canvas.areas[1:]
        assert (shares >= VISIBLE).all()
        assert [thing.difficult for thing in canvas.scene().things] == (shares < CLEAR).tolist()
        marked, covered = marked + int((shares < CLEAR).sum()), covered + int((shares < 1).sum())
        for index, box in enumerate(canvas.boxes):
            assert not index or _iou(canvas.boxes[:index], box).max() <= MAX_IOU
    assert covered > marked > 5


def test_iou() -> None:
    boxes = np.array([[0, 0, 2, 2], [1, 1, 3, 3], [5, 5, 6, 6]], float)
    assert _iou(boxes, np.array([0, 0, 2, 2], float)).tolist() == [1, 1 / 7, 0]


def test_sizes_span_eight_times() -> None:
    sides = []
    for number in range(300):
        (thing,) = composer(200).scene(number, 1, 1).things
        sides.append(max(thing.xmax - thing.xmin, thing.ymax - thing.ymin) / 200)
        assert 0 <= thing.xmin < thing.xmax <= 200 and 0 <= thing.ymin < thing.ymax <= 200
    assert 0.08 < min(sides) < 0.12 and 0.7 < max(sides) <= 0.8
    assert 0.2 < np.median(sides) < 0.36  # of a uniform logarithm: 0.28


def test_objects_can_be_seen() -> None:
    for number in range(40):
        scene = composer().scene(number, 1, 4)
        for index in range(1, len(scene.things) + 1):
            mine = scene.instances == index
            around = np.zeros_like(mine)
            around[1:-1, 1:-1] = mine[:-2, 1:-1] | mine[2:, 1:-1] | mine[1:-1, :-2] | mine[1:-1, 2:]
            edge = around & (scene.instances != index)
            if edge.any():
                assert np.abs(scene.pixels[mine].mean(0) - scene.pixels[scene.instances == 0].mean(0)).sum() > 60


def test_a_scene_depends_on_seed_part_and_number() -> None:
    def pixels(seed: int = 1, part: str = "train", number: int = 3) -> bytes:
        return composer(64, seed, part).scene(number, 1, 3).pixels.tobytes()

    assert pixels() == pixels()
    assert len({pixels(), pixels(2), pixels(-1), pixels(part="val"), pixels(number=4)}) == 5


def test_backgrounds_have_their_colors() -> None:
    for number in range(40):
        made = background(Dice((1, 2), number), 40, 60)
        assert made.pixels.shape == (40, 60, 3) and made.colors.shape == (3, 3)
        low, high = made.colors.min(0) - 8, made.colors.max(0) + 16
        assert (made.pixels >= low).all() and (made.pixels <= high).all()


def test_crops_have_one_large_digit() -> None:
    for number in range(30):
        (thing,) = composer(48, part="crops").crop(number).things
        assert thing.label == number % 10 and 0.5 <= max(thing.xmax - thing.xmin, thing.ymax - thing.ymin) / 48 <= 1


def test_too_many_objects() -> None:
    with pytest.raises(Error, match=r"scene 0 of train has room for \d+ digits, and --objects has at least 30"):
        composer(32).scene(0, 30, 30)


def test_each_class_needs_an_image() -> None:
    part = drawn_digits()
    with pytest.raises(Error, match="no image has the label 3"):
        Glyphs(Part(part.images, np.where(part.labels == 3, 4, part.labels)))


def test_the_palette_is_that_of_voc() -> None:
    colors = palette()
    known = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 4: (0, 0, 128), 8: (64, 0, 0), 15: (192, 128, 128), 20: (0, 64, 128), 255: (224, 224, 192)}
    assert {index: tuple(colors[index].tolist()) for index in known} == known
