"""convert_annoset and create_label_map write records like SSD's tools (golden/forks/annotated_*_lmdb), and AnnotatedData reads them."""
from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.decoding.decode import Color, open_image, planes
from ocaffe.formats.text import read

pytestmark = pytest.mark.quick

FORKS = pathlib.Path(__file__).resolve().parents[2] / "golden" / "forks"
MAP = 'item { name: "none" label: 0 } item { name: "cat" label: 4 } item { name: "dog" label: 2 }'
VOC = """<annotation><size><width>{width}</width><height>20</height><depth>3</depth></size>
<object><name>cat</name><bndbox><xmin>3</xmin><ymin>4</ymin><xmax>15</xmax><ymax>10</ymax></bndbox><difficult>1</difficult></object>
<object><name>dog</name><difficult>0</difficult><bndbox><xmin>6</xmin><ymin>0</ymin><xmax>30</xmax><ymax>20</ymax></bndbox></object>
<object><name>cat</name><bndbox><xmin>{x}</xmin><ymin>1</ymin><xmax>12</xmax><ymax>2</ymax></bndbox></object></annotation>"""
COCO = {"image": {"height": 20, "width": 30}, "annotation": [
    {"bbox": [3, 4, 12, 6], "category_id": 4, "iscrowd": 1}, {"bbox": [6, 0, 24, 20], "category_id": 2, "iscrowd": 0}, {"bbox": [9, 1, 3, 1], "category_id": 4}
]}  # fmt: skip
TEXT = "4 3 4 15 10\n2 6 0 30 20\n\n4 9 1 12 2\n"
EXPECTED = {4: [(0.1, 0.2, 0.5, 0.5), (0.3, 0.05, 0.4, 0.1)], 2: [(0.2, 0, 1, 1)]}


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("in").mkdir()
    Image.fromarray(np.random.default_rng(2).integers(0, 256, (20, 30, 3), np.uint8)).save("in/a.png")
    for name, content in {"map": MAP, "coco_map": MAP.replace('"cat"', '"4"').replace('"dog"', '"2"'), "list": "a.png a.ann\n", "labels": "a.png 7\n"}.items():
        pathlib.Path(name).write_text(content)


def annotations(text: str) -> None:
    pathlib.Path("in/a.ann").write_text(text)


def record(path: str = "out") -> Any:
    database = open_database(path, proto.DataParameter.LMDB)
    ((key, value),) = Reader(database).read(0, 1)
    assert bytes(key) == b"00000000_a.png" and database.entries == 1
    return proto.AnnotatedDatum.FromString(bytes(value))


@pytest.mark.parametrize(
    ("text", "flags", "difficult"),
    [
        (VOC.format(width=30, x=9), ["--label_map_file=map"], [True, False, False]),
        (json.dumps(COCO), ["--label_type=json", "--label_map_file=coco_map", "--check_label"], [True, False, False]),
        (TEXT, ["--label_type=txt"], [False] * 3),
    ],
    ids=["voc", "coco", "text"],
)
def test_boxes(text: str, flags: list[str], difficult: list[bool]) -> None:
    annotations(text)
    assert main(["convert_annoset", "--anno_type=detection", *flags, "in/", "list", "out"]) == 0
    made = record()
    assert made.type == proto.AnnotatedDatum.BBOX and made.HasField("type") and made.datum.label == -1 and not made.datum.encoded
    assert [group.group_label for group in made.annotation_group] == [4, 2]
    for group in made.annotation_group:
        assert [each.instance_id for each in group.annotation] == list(range(len(group.annotation)))
        found = [(each.bbox.xmin, each.bbox.ymin, each.bbox.xmax, each.bbox.ymax) for each in group.annotation]
        np.testing.assert_array_equal(np.array(found, np.float32), np.array(EXPECTED[group.group_label], np.float32))
    cats, dogs = made.annotation_group
    assert [cats.annotation[0].bbox.difficult, dogs.annotation[0].bbox.difficult, cats.annotation[1].bbox.difficult] == difficult


@pytest.mark.parametrize("encode", [False, True])
def test_fields_are_those_of_ssd(encode: bool) -> None:
    """The same fields are set, in the same byte order, as in a database of the fork."""
    annotations(VOC.format(width=30, x=9))
    assert main(["convert_annoset", "--anno_type=detection", "--label_map_file=map", f"--encoded={encode}", "in/", "list", "out"]) == 0
    theirs = open_database(str(FORKS / ("annotated_png_lmdb" if encode else "annotated_raw_lmdb")), proto.DataParameter.LMDB)
    expected = proto.AnnotatedDatum.FromString(bytes(Reader(theirs).read(0)[0][1]))

    def fields(message: Any) -> list[Any]:
        return [(field.name, fields(value) if field.message_type and not hasattr(value, "append") else None) for field, value in message.ListFields()]

    found = record()
    assert fields(found) == fields(expected)
    assert fields(found.annotation_group[0].annotation[0]) == fields(expected.annotation_group[0].annotation[0])
    assert found.datum.label == expected.datum.label == -1 and (found.datum.channels, found.datum.height, found.datum.width) == (3, 20, 30)


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        (["--min_dim=40"], (40, 60)),
        (["--max_dim=15"], (10, 15)),
        (["--min_dim=40", "--max_dim=45"], (30, 45)),
        (["-resize_height=8", "-resize_width=9"], (8, 9)),
    ],
)
def test_sizes(flags: list[str], size: tuple[int, int]) -> None:
    """Boxes are relative to the image size, so resizing keeps them."""
    annotations(TEXT)
    assert main(["convert_annoset", "--anno_type", "detection", "--label_type", "txt", "--encode_type=png", *flags, "in/", "list", "out"]) == 0
    made = record()
    pixels = np.stack(planes(open_image(made.datum.data), Color.UNCHANGED))
    assert pixels.shape == (3, *size) == (made.datum.channels, made.datum.height, made.datum.width)
    assert made.annotation_group[0].annotation[0].bbox.xmax == np.float32(0.5)


def test_labels_and_gray() -> None:
    assert main(["convert_annoset", "--gray", "--shuffle", "--check_size", "in/", "labels", "out"]) == 0
    made = record()
    assert made.datum.label == 7 and made.datum.channels == 1 and not made.HasField("type") and not made.annotation_group


def test_odd_boxes_are_kept_with_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    annotations(VOC.format(width=10, x=13))
    assert main(["convert_annoset", "--anno_type=detection", "--label_map_file=map", "in/", "list", "out"]) == 0
    said = capfd.readouterr().err
    assert "it says 20 x 10, the image is 20 x 30" in said and "13, 1, 12, 2 has a minimum above its maximum" in said and "leaves the image of 20 x 10" in said
    assert sum(len(group.annotation) for group in record().annotation_group) == 3


@pytest.mark.parametrize(
    ("text", "flags", "told"),
    [
        (VOC.format(width=30, x=9).replace("dog", "cow"), ["--label_map_file=map"], ["in/a.ann", "'cow' is not in the label map", "none, cat, dog"]),
        (VOC.format(width=30, x=9)[:-20], ["--label_map_file=map"], ["in/a.ann", "as xml annotations"]),
        ("<annotation><object/></annotation>", ["--label_map_file=map"], ["in/a.ann", "annotations: object 1 has no name"]),
        ("{}", ["--label_map_file=map", "--label_type=yaml"], ["yaml"]),
        ('{"annotation": [{}]}', ["--label_map_file=map", "--label_type=json"], ["in/a.ann", "annotation[0] has no list 'bbox'"]),
        ("<annotation/>", ["--label_map_file=map", "--label_type=json"], ["in/a.ann", "as json annotations", "fix: --label_type=xml"]),
        ("[1]", ["--label_map_file=map", "--label_type=json"], ["in/a.ann", "as json annotations"]),
        ("1 2 3\n", ["--label_type=txt"], ["in/a.ann", "as txt annotations: line 1, '1 2 3', is not LABEL XMIN YMIN XMAX YMAX"]),
        ("4294967296 1 2 3 4\n", ["--label_type=txt"], ["in/a.ann", "4294967296 does not fit into 32 bits"]),
        ('{"image": {"height": 60, "width": 1e400}}', ["--label_map_file=map", "--label_type=json"], ["in/a.ann", "as json annotations"]),
        ("[" * 100_000, ["--label_map_file=map", "--label_type=json"], ["in/a.ann", "as json annotations"]),
        ("", [], ["--label_type=xml needs a label map"]),
        ("", ["--label_map_file=none"], ["none"]),
        ("", ["--label_map_file=double", "--check_label"], ["double", "'cat' or the label 2 occurs twice"]),
        ("", ["--label_map_file=empty"], ["empty", "create_label_map"]),
        ("", ["--label_map_file=map", "--min_dim=-1"], ["--min_dim is -1"]),
    ],
)
def test_refused(text: str, flags: list[str], told: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    annotations(text)
    pathlib.Path("double").write_text(MAP.replace("dog", "cat"))
    pathlib.Path("empty").write_text("# nothing\n")
    assert main(["convert_annoset", "--anno_type=detection", *flags, "in/", "list", "out"]) == 1
    said = capfd.readouterr().err
    assert all(part in said for part in told), said
    assert not pathlib.Path("out").exists()


def test_no_annotations(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["convert_annoset", "--anno_type=detection", "--label_map_file=map", "in/", "list", "out"]) == 1
    assert "in/a.ann" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("cat\ndog\n", [], [("cat", 1, "cat"), ("dog", 2, "dog")]),
        ("cat\ndog\n", ["--include_background"], [("none_of_the_above", 0, "background"), ("cat", 1, "cat"), ("dog", 2, "dog")]),
        ("cat 5\ndog 3 a big dog\n", [], [("cat", 5, "cat"), ("dog", 3, "a big dog")]),
        ("n01,1,a fish\nn02,2,a cock\n", ["--delimiter=,"], [("n01", 1, "a fish"), ("n02", 2, "a cock")]),
    ],
)
def test_label_map(text: str, flags: list[str], expected: list[tuple[str, int, str]]) -> None:
    pathlib.Path("names").write_text(text)
    assert main(["create_label_map", *flags, "names", "made"]) == 0
    assert [(item.name, item.label, item.display_name) for item in read("made", proto.LabelMap).item] == expected


@pytest.mark.parametrize(
    ("text", "flags", "told"),
    [
        ("cat x\n", [], ["names:1", "'x' is not a label"]),
        ("cat 4294967296\n", [], ["names:1", "4294967296 does not fit into 32 bits"]),
        ("\n", [], ["names no class"]),
        ("cat\n", ["--delimiter="], ["--delimiter is empty"]),
        (None, [], ["names"]),
    ],
)
def test_label_map_refused(text: str | None, flags: list[str], told: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    if text is not None:
        pathlib.Path("names").write_text(text)
    assert main(["create_label_map", *flags, "names", "made"]) == 1
    said = capfd.readouterr().err
    assert all(part in said for part in told) and not pathlib.Path("made").exists(), said
