"""`ocaffe dataset anchors`: groups of boxes are found, one seed gives the same anchors, and the fields are those of the layers."""
from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.cli.dataset import main
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.errors import Error
from ocaffe.tools.datasets.anchors import find_anchors, overlaps

SIZES = np.array([[0.05, 0.1], [0.3, 0.2], [0.4, 0.7], [0.9, 0.8]])


def database(path: pathlib.Path, boxes: np.ndarray) -> str:
    """Write images of three boxes each; `boxes` are width and height."""
    with LmdbWriter(str(path)) as out:
        for number in range(0, len(boxes), 3):
            datum = proto.AnnotatedDatum(type=proto.AnnotatedDatum.BBOX)
            for width, height in boxes[number : number + 3]:
                group = datum.annotation_group.add(group_label=1)
                group.annotation.add().bbox.CopyFrom(proto.NormalizedBBox(xmin=0, ymin=0.1, xmax=width, ymax=0.1 + height))
            out.put(b"%08d" % number, datum.SerializeToString())
    return str(path)


def clustered(count: int = 200) -> np.ndarray:
    rng = np.random.default_rng(3)
    return SIZES[rng.integers(0, len(SIZES), count)] * rng.uniform(0.93, 1.07, (count, 2))


def test_groups_are_found(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = database(tmp_path / "db", clustered())
    arguments = ["anchors", made, "--count", "4", "--width", "320", "--height=160", "--cell", "16"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "200 boxes of 67 images, resized to 320 x 160 pixels" in text
    pixels, cells = (re.findall(r"biases: ([\d.]+)", part) for part in text.split("# ")[1:])
    found = np.array(pixels, float).reshape(-1, 2)
    assert np.abs(found / (SIZES * [320, 160]) - 1).max() < 0.03
    assert np.abs(np.array(cells, float).reshape(-1, 2) * 16 - found).max() < 0.1
    field = text_format.Parse(text.split("# ")[1].split("\n", 1)[1], proto.Yolov3Parameter())
    assert len(field.biases) == 8
    assert sum(int(line.split()[2]) for line in text.split("boxes\n")[1].split("\n\n")[0].splitlines()) == 200
    assert main([*arguments, "--seed", "1"]) == 0
    assert capsys.readouterr().out == text


def test_anchors_are_a_minimum() -> None:
    """Each anchor is the mean of the boxes that overlap it most, and the mean overlap is that of the result."""
    boxes = np.exp(np.random.default_rng(4).normal(0, 1, (500, 2)))
    anchors = find_anchors(boxes, 7, 5)
    table = overlaps(boxes, anchors.sides)
    nearest = table.argmax(1)
    for number, sides in enumerate(anchors.sides):
        assert np.allclose(boxes[nearest == number].mean(0), sides) and (nearest == number).sum() == anchors.counts[number]
    assert anchors.overlap == pytest.approx(table.max(1).mean())
    assert (np.diff(anchors.sides.prod(1)) > 0).all()
    assert find_anchors(boxes, 1, 5).overlap < find_anchors(boxes, 3, 5).overlap < anchors.overlap
    again = find_anchors(boxes, 7, 5)
    assert np.array_equal(again.sides, anchors.sides)


def test_as_many_anchors_as_sizes() -> None:
    boxes = np.repeat(SIZES, [1, 100, 3, 1], 0)
    anchors = find_anchors(boxes, 4, 0)
    assert np.allclose(anchors.sides, SIZES) and anchors.counts.tolist() == [1, 100, 3, 1] and anchors.overlap == pytest.approx(1)


def test_mistakes(tmp_path: pathlib.Path) -> None:
    some = database(tmp_path / "some", np.array([[0.1, 0.2], [0.1, 0.2], [0.5, 0.5], [0.2, -0.1]]))
    none = database(tmp_path / "none", np.array([[0.1, 0]]))
    with LmdbWriter(str(tmp_path / "other")) as out:
        out.put(b"0", b"\x0a\xff")
    for arguments, expected in (
        ([some], "the 3 boxes have 2 different sizes, and 9 anchors need as many"),
        ([none], "the 0 boxes have 0 different sizes"),
        ([some, "--count", "0"], "--count is 0"),
        ([some, "--width=-1"], "--width is -1"),
        ([some, "--cell=0"], "--cell is 0"),
        ([str(tmp_path / "other")], "record 0 (key '0'): it is not an AnnotatedDatum"),
        ([str(tmp_path / "absent")], "absent"),
    ):
        with pytest.raises(Error) as caught:
            main(["anchors", *arguments])
        assert expected in str(caught.value) and caught.value.fix
