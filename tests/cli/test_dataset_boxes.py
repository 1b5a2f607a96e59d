"""`ocaffe dataset voc|coco|yolo|labelme`: the records of small sets in each format and layout, parts, label maps, and each mistake."""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cli import main as ocaffe
from ocaffe.cli.dataset import main
from ocaffe.data.stores.label_names import label_names
from ocaffe.errors import Error
from ocaffe.formats.text import read
from ocaffe.tools.datasets import box_databases
from ocaffe.tools.datasets.annotations import READERS
from ocaffe.tools.datasets.small_yaml import read_small_yaml
from tests.cli.test_dataset_shapes import SMALL
from tests.cli.test_dataset_shapes import digits as digits  # the fixture
from tests.data.sources.test_annotated import batches, source

SIZE = 40, 20  # width, height of all images
CAT, DOG = (4, 5, 20, 15), (0, 0, 40, 20)  # boxes in pixels
FRACTIONS = {CAT: (0.1, 0.25, 0.5, 0.75), DOG: (0, 0, 1, 1)}
Truth = dict[str, list[tuple[str, tuple[int, ...]]]]
TRUTH: Truth = {"1": [("cat", CAT)], "2": [("dog", DOG), ("cat", CAT), ("dog", CAT)], "3": []}


def picture(path: pathlib.Path, size: tuple[int, int] = SIZE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(len(path.name)).integers(0, 256, (size[1], size[0], 3), np.uint8)).save(path)


def text(path: pathlib.Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def xml(name: str, size: str = "<size><width>40</width><height>20</height><depth>3</depth></size>", truth: Truth = TRUTH) -> str:
    objects = "".join(
        f"<object><name>{label}</name><difficult>{number}</difficult><bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin>"
        f"<xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>\n"
        for number, (label, box) in enumerate(truth[name])
    )
    return f"<annotation>{size}\n{objects}</annotation>"


def voc(root: pathlib.Path) -> None:
    for name in TRUTH:
        picture(root / "JPEGImages" / f"{name}.png")
        text(root / "Annotations" / f"{name}.xml", xml(name))
    text(root / "ImageSets/Main/train.txt", "1\n2\n")
    text(root / "ImageSets/Main/test.txt", "3\n2\n")
    text(root / "ImageSets/Main/trainval.txt", "1\n2\n3\n")
    text(root / "ImageSets/Main/cat_train.txt", "1 -1\n")


def coco_json(names: str, folder: str = "", truth: Truth = TRUTH) -> dict[str, Any]:
    annotations = [
        {"id": number, "image_id": int(name), "category_id": {"cat": 17, "dog": 18}[label], "iscrowd": number, "area": 1,
         "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]]}
        for name in names for number, (label, box) in enumerate(truth[name])
    ]  # fmt: skip
    images = [{"id": int(name), "file_name": f"{folder}{name}.png", "width": 40, "height": 20} for name in names]
    return {"info": {}, "images": images, "annotations": annotations, "categories": [{"id": 18, "name": "dog"}, {"id": 17, "name": "cat"}]}


def coco(root: pathlib.Path) -> None:
    for part, names in (("train2017", "12"), ("val2017", "32")):
        text(root / "annotations" / f"instances_{part}.json", json.dumps(coco_json(names)))
        for name in names:
            picture(root / part / f"{name}.png")
    text(root / "annotations" / "captions_train2017.json", "{}")


def yolo_lines(name: str) -> str:
    lines = []
    for label, box in TRUTH[name]:
        xmin, ymin, xmax, ymax = FRACTIONS[box]  # type: ignore[index]
        lines.append(f"{['cat', 'dog'].index(label)} {(xmin + xmax) / 2} {(ymin + ymax) / 2} {xmax - xmin} {ymax - ymin}\n")
    return "".join(lines)


def yolo(root: pathlib.Path) -> None:
    lines = ["path: ../none", "train: images/train  # the first part", "test: images/test", "nc: 2", "names: ['cat', \"dog\"]", "download: |", "  a: b"]
    text(root / "data.yaml", "\n".join(lines) + "\n")
    for part, names in (("train", "12"), ("test", "32")):
        for name in names:
            picture(root / "images" / part / f"{name}.png")
            if TRUTH[name]:
                text(root / "labels" / part / f"{name}.txt", yolo_lines(name))


def labelme_json(name: str) -> dict[str, Any]:
    shapes: list[Any] = [
        {"label": label, "shape_type": "rectangle", "points": [[box[2], box[1]], [box[0], box[3]]], "difficult": number == 1}
        for number, (label, box) in enumerate(TRUTH[name])
    ]
    if shapes:
        x1, y1, x2, y2 = TRUTH[name][0][1]
        shapes[0] |= {"shape_type": "polygon", "points": [[x1, y1], [x2, (y1 + y2) / 2], [x1, y2]]}
    return {"version": "5", "imagePath": f"..\\pictures\\{name}.png", "imageHeight": 20, "imageWidth": 40, "imageData": None, "shapes": shapes}


def labelme(root: pathlib.Path) -> None:
    for part, names in (("train", "12"), ("test", "32")):
        for name in names:
            picture(root / part / "pictures" / f"{name}.png")
            text(root / part / "json" / f"{name}.json", json.dumps(labelme_json(name)))


WRITERS = {"voc": voc, "coco": coco, "yolo": yolo, "labelme": labelme}
DIFFICULT = {"voc": [False, True, False], "coco": [False, True, True], "yolo": [False] * 3, "labelme": [False, True, False]}


def run(kind: str, *arguments: str | pathlib.Path) -> None:
    assert main([kind, *map(str, arguments)]) == 0


def refused(kind: str, *arguments: str | pathlib.Path) -> Error:
    with pytest.raises(Error) as caught:
        run(kind, *arguments)
    assert caught.value.fix
    return caught.value


def raw(path: pathlib.Path) -> dict[bytes, bytes]:
    with lmdb.open(str(path), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return dict(transaction.cursor())


def records(path: pathlib.Path) -> dict[str, list[tuple[int, tuple[float, ...], bool]]]:
    """Return label, corners and difficulty of the boxes of each image, in the order of the database."""
    made = {}
    for key, value in raw(path).items():
        message = proto.AnnotatedDatum.FromString(value)
        assert message.type == proto.AnnotatedDatum.BBOX and message.datum.encoded and message.datum.label == -1
        boxes = [
            (group.group_label, (each.bbox.xmin, each.bbox.ymin, each.bbox.xmax, each.bbox.ymax), each.bbox.difficult)
            for group in message.annotation_group for each in group.annotation
        ]  # fmt: skip
        made[os.path.splitext(os.path.basename(key[9:].decode()))[0]] = boxes
    return made


def expected(name: str, kind: str) -> list[tuple[int, tuple[float, ...], bool]]:
    """Return the same of TRUTH. AnnotatedDatum groups the boxes by label."""
    boxes = [
        ({"cat": 1, "dog": 2}[label], tuple(float(np.float32(edge)) for edge in FRACTIONS[box]), difficult)  # type: ignore[index]
        for (label, box), difficult in zip(TRUTH[name], DIFFICULT[kind])
    ]
    order = list(dict.fromkeys(label for label, _, _ in boxes))
    return sorted(boxes, key=lambda box: order.index(box[0]))


@pytest.mark.parametrize("kind", WRITERS)
def test_formats(tmp_path: pathlib.Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    root, out, held = tmp_path / "set", tmp_path / "new" / "out", "val" if kind == "coco" else "test"
    WRITERS[kind](root)
    run(kind, root, out, "--noshuffle")
    names = [f"{held}_lmdb", f"{held}_name_size.txt", f"labelmap_{kind}.prototxt", "train_lmdb", "train_name_size.txt"]
    assert sorted(os.listdir(out)) == sorted(names)
    assert records(out / "train_lmdb") == {name: expected(name, kind) for name in "12"}
    assert records(out / f"{held}_lmdb") == {name: expected(name, kind) for name in ("32" if kind in ("voc", "coco") else "23")}
    assert (out / "train_name_size.txt").read_text() == "1 20 40\n2 20 40\n"
    items = [(item.name, item.label, item.display_name) for item in read(out / f"labelmap_{kind}.prototxt", proto.LabelMap).item]
    cat, dog = ("17", "18") if kind == "coco" else ("cat", "dog")
    assert items == [("none_of_the_above", 0, "background"), (cat, 1, "cat"), (dog, 2, "dog")]
    assert label_names(str(out / "train_lmdb")) == ["background", "cat", "dog"]
    said = capsys.readouterr().out
    assert f"{out}/train_lmdb: 2 images, 4 boxes (cat 2, dog 2)\n" in said
    assert f"{out}/{held}_lmdb: 2 images, 3 boxes (cat 1, dog 2); 1 images without boxes\n" in said
    assert f"labelmap_{kind}.prototxt: 3 classes with the background" in said


def test_records_are_those_of_convert_annoset(tmp_path: pathlib.Path) -> None:
    voc(tmp_path / "set")
    run("voc", tmp_path / "set", tmp_path / "out", "--noshuffle")
    text(tmp_path / "list", "".join(f"JPEGImages/{name}.png Annotations/{name}.xml\n" for name in "12"))
    flags = ["--anno_type=detection", "--encoded", f"--label_map_file={tmp_path}/out/labelmap_voc.prototxt"]
    assert ocaffe(["convert_annoset", *flags, f"{tmp_path}/set/", f"{tmp_path}/list", f"{tmp_path}/theirs"]) == 0
    assert raw(tmp_path / "theirs") == raw(tmp_path / "out" / "train_lmdb")


def test_scenes_reach_the_layer(tmp_path: pathlib.Path) -> None:
    """The boxes of the layer's label top are those of the masks of `ocaffe dataset shapes`."""
    run("shapes", tmp_path / "scenes", *SMALL, "--format=png", "--splits=1,0,0")
    run("voc", tmp_path / "scenes", tmp_path / "out", "--noshuffle")
    (images, rows), = batches(source(tmp_path / "out" / "train_lmdb", 10), 1)
    for number in range(10):
        with Image.open(tmp_path / "scenes" / "SegmentationObject" / f"{number:06d}.png") as mask:
            objects = np.array(mask)
        with Image.open(tmp_path / "scenes" / "SegmentationClass" / f"{number:06d}.png") as mask:
            classes = np.array(mask)
        with Image.open(tmp_path / "scenes" / "JPEGImages" / f"{number:06d}.png") as image:
            assert (images[number] == np.array(image)[..., ::-1].transpose(2, 0, 1)).all()
        truth = []
        for each in range(1, objects.max() + 1):
            ys, xs = np.nonzero(objects == each)
            edges = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]) / [64, 48, 64, 48]
            truth.append((int(classes[ys[0], xs[0]]), *edges.astype(np.float32).tolist()))
        assert sorted(truth) == sorted((int(row[1]), *row[3:7].tolist()) for row in rows[rows[:, 0] == number])


def test_the_order_of_training_images(tmp_path: pathlib.Path) -> None:
    for number in range(20):
        picture(tmp_path / "set" / f"{number:02d}.png")
        text(tmp_path / "set" / f"{number:02d}.xml", xml("1"))
    run("voc", tmp_path / "set", tmp_path / "a")
    run("voc", tmp_path / "set", tmp_path / "b")
    run("voc", tmp_path / "set", tmp_path / "c", "--seed=1", "--test=0.5")
    first = raw(tmp_path / "a" / "train_lmdb")
    assert first == raw(tmp_path / "b" / "train_lmdb") and len(first) == 16
    train, test = (list(records(tmp_path / "a" / f"{part}_lmdb")) for part in ("train", "test"))
    assert train != sorted(train) and test == sorted(test) and sorted(train + test) == [f"{number:02d}" for number in range(20)]
    sizes = (tmp_path / "a" / "train_name_size.txt").read_text().split("\n")[:-1]
    assert [line.split()[0] for line in sizes] == train
    assert len(raw(tmp_path / "c" / "test_lmdb")) == 10
    run("voc", tmp_path / "set", tmp_path / "d", "--test=0")
    assert not (tmp_path / "d" / "test_lmdb").exists()
    assert "has 20 images" in refused("voc", tmp_path / "set", tmp_path / "e", "--test=0.01").fact


def test_parts(tmp_path: pathlib.Path) -> None:
    voc(tmp_path / "set")
    run("voc", tmp_path / "set", tmp_path / "a", "--parts=trainval,test")
    assert len(raw(tmp_path / "a" / "trainval_lmdb")) == 3 and not (tmp_path / "a" / "train_lmdb").exists()
    assert "--parts has 'val', and" in (fact := refused("voc", tmp_path / "set", tmp_path / "b", "--parts=val").fact) and "'train', 'test'" in fact
    assert "is divided already" in refused("voc", tmp_path / "set", tmp_path / "b", "--test=0.5").fact
    assert "--test is 1," not in refused("voc", tmp_path / "set", tmp_path / "b", "--test=1").fact
    (tmp_path / "set/ImageSets/Main/train.txt").unlink()
    run("voc", tmp_path / "set", tmp_path / "c")
    assert sorted(path.name for path in (tmp_path / "c").glob("*_lmdb")) == ["test_lmdb", "trainval_lmdb"]


def test_a_label_map(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    voc(tmp_path / "set")
    text(tmp_path / "map", 'item { name: "dog" label: 7 } item { name: "cat" label: 3 display_name: "a cat" }')
    run("voc", tmp_path / "set", tmp_path / "out", f"--label-map-file={tmp_path}/map")
    assert {label for boxes in records(tmp_path / "out" / "train_lmdb").values() for label, _, _ in boxes} == {3, 7}
    assert label_names(str(tmp_path / "out" / "train_lmdb")) == []  # the labels are not 0, 1, 2
    items = read(tmp_path / "out" / "labelmap_voc.prototxt", proto.LabelMap).item
    assert [(item.name, item.label, item.display_name) for item in items] == [("dog", 7, ""), ("cat", 3, "a cat")]
    said = capsys.readouterr().out
    assert "4 boxes (dog 2, a cat 2)" in said and "2 classes without the background" in said
    text(tmp_path / "map", 'item { name: "dog" label: 7 }')
    error = refused("voc", tmp_path / "set", tmp_path / "new", f"--label-map-file={tmp_path}/map")
    assert "the class is 'cat', and the classes are 'dog'" in error.fact and str(error.place).endswith("object 1") and os.listdir(tmp_path / "set")


def test_labels_txt_gives_the_order(tmp_path: pathlib.Path) -> None:
    for kind in ("voc", "labelme"):
        WRITERS[kind](tmp_path / kind)
        text(tmp_path / kind / "labels.txt", "dog\ncow\ncat\n")
        run(kind, tmp_path / kind, tmp_path / f"{kind}_out")
        names = [item.name for item in read(tmp_path / f"{kind}_out" / f"labelmap_{kind}.prototxt", proto.LabelMap).item]
        assert names == ["none_of_the_above", "dog", "cow", "cat"]


def test_resized_images(tmp_path: pathlib.Path) -> None:
    voc(tmp_path / "set")
    run("voc", tmp_path / "set", tmp_path / "out", "--resize-height=8", "--resize-width=8", "--noshuffle")
    assert records(tmp_path / "out" / "train_lmdb")["1"] == expected("1", "voc")  # fractions stay
    assert (tmp_path / "out" / "train_name_size.txt").read_text() == "1 20 40\n2 20 40\n"  # of the files
    picture(tmp_path / "set/JPEGImages/2.png", (30, 20))
    text(tmp_path / "set/Annotations/2.xml", xml("1", ""))
    assert "--check_size is given" in refused("voc", tmp_path / "set", tmp_path / "new", "--check-size", "--noshuffle").fact


# Other layouts of each format.


def test_voc_beside_the_images(tmp_path: pathlib.Path) -> None:
    for part in ("train", "valid"):
        picture(tmp_path / "set" / part / "2.png")
        text(tmp_path / "set" / part / "2.xml", xml("2", "" if part == "train" else "<size><width>0</width><height>0</height></size>"))  # without a size
    run("voc", tmp_path / "set", tmp_path / "out")
    assert records(tmp_path / "out" / "train_lmdb") == records(tmp_path / "out" / "valid_lmdb") == {"2": expected("2", "voc")}


@pytest.mark.parametrize(
    ("file", "images", "database"),
    [
        ("train/_annotations.coco.json", "train", "train_lmdb"),
        ("annotations/instances_train.json", "images/train", "train_lmdb"),
        ("annotations/instances_default.json", "images", "train_lmdb"),
        ("result.json", "images", "train_lmdb"),
        ("result.json", "", "train_lmdb"),
    ],
)
def test_coco_layouts(tmp_path: pathlib.Path, file: str, images: str, database: str) -> None:
    text(tmp_path / "set" / file, json.dumps(coco_json("12")))
    for name in "12":
        picture(tmp_path / "set" / images / f"{name}.png")
    run("coco", tmp_path / "set", tmp_path / "out", *(() if "train" in file else ("--test=0",)))
    assert records(tmp_path / "out" / database)["2"] == expected("2", "coco")


def test_coco_polygons(tmp_path: pathlib.Path) -> None:
    """Without bbox, a box is the one around the polygons of its segmentation."""
    content = coco_json("12")
    for each in content["annotations"]:
        x, y, width, height = each.pop("bbox")
        each["segmentation"] = [[x, y + 1, x + width, y, x + 1, y + 1], [x + 1, y + 1, x + 2, y + height, x + 2, y + 2]]
    text(tmp_path / "set/annotations/instances_train2017.json", json.dumps(content))
    for name in "12":
        picture(tmp_path / "set/train2017" / f"{name}.png")
    run("coco", tmp_path / "set", tmp_path / "out")
    assert records(tmp_path / "out" / "train_lmdb")["2"] == expected("2", "coco")


def test_voc_lists_with_marks(tmp_path: pathlib.Path) -> None:
    """The lists of VOC's classes have -1, 0 or 1 after each name."""
    voc(tmp_path / "set")
    for path in (tmp_path / "set/ImageSets/Main").glob("*.txt"):
        path.write_text("".join(f"{line}  1\n" for line in path.read_text().splitlines()))
    run("voc", tmp_path / "set", tmp_path / "out")
    assert records(tmp_path / "out" / "train_lmdb")


def test_names_that_begin_with_spaces(tmp_path: pathlib.Path) -> None:
    """Lists name them so. Other white space before a name indents the line."""
    for kind, lists in (("voc", "ImageSets/Main/train.txt"), ("yolo", "train.txt")):
        root = tmp_path / kind
        for name in ("1", " 2"):
            picture(root / ("JPEGImages" if kind == "voc" else "images") / f"{name}.png")
            text(root / "Annotations" / f"{name}.xml", xml(name.strip())) if kind == "voc" else text(root / "images" / f"{name}.txt", "0 0.5 0.5 1 1\n")
        text(root / lists, "  1\n 2\n" if kind == "voc" else "  images/1.png\nimages/ 2.png\n")
        if kind == "yolo":
            text(root / "classes.txt", "cat\n")
        run(kind, root, tmp_path / f"{kind}_out", "--noshuffle")
        assert {key.split(b"_", 1)[1].split(b"/")[-1] for key in raw(tmp_path / f"{kind}_out" / "train_lmdb")} == {b"1.png", b" 2.png"}


def test_coco_parts_of_two_years(tmp_path: pathlib.Path) -> None:
    for part in ("train2014", "train2017"):
        text(tmp_path / "set/annotations" / f"instances_{part}.json", json.dumps(coco_json("1")))
        picture(tmp_path / "set" / part / "1.png")
    run("coco", tmp_path / "set", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").glob("*_lmdb")) == ["train2014_lmdb", "train2017_lmdb"]
    text(tmp_path / "set/annotations/instances_train2017.json", json.dumps(coco_json("1")).replace('"dog"', '"wolf"'))
    assert "the category 18 is 'wolf', and 'dog' in another file" in refused("coco", tmp_path / "set", tmp_path / "new").fact


def test_yolo_layouts(tmp_path: pathlib.Path) -> None:
    def check(root: pathlib.Path, *flags: str) -> None:
        run("yolo", root, tmp_path / f"{root.name}_out", "--noshuffle", *flags)
        assert records(tmp_path / f"{root.name}_out" / "train_lmdb")["2"] == expected("2", "yolo")

    darknet = tmp_path / "darknet"
    text(darknet / "data" / "obj.names", "cat\ndog\n")
    text(darknet / "train.txt", "data/obj_train_data/1.png\ndata/obj_train_data/2.png\n")
    roboflow = tmp_path / "roboflow"
    text(roboflow / "data.yaml", "train: ../train/images\nval: ../valid/images\nnames:\n  - cat\n  - 'dog'\n")
    flat = tmp_path / "flat"
    text(flat / "classes.txt", "cat\ndog\n")
    listed = tmp_path / "listed"
    text(listed / "coco.yaml", "path: ../datasets/coco\ntrain: [lists/train.txt]\nval: lists/train.txt\nnames:\n  0: cat # a comment\n  1: dog\n")
    text(listed / "lists" / "train.txt", "../images/1.png\n./images/2.png\n")
    parts = tmp_path / "parts"
    text(parts / "classes.txt", "cat\ndog\n")
    for name in "12":
        for image, boxes in (
            (darknet / "data/obj_train_data", darknet / "data/obj_train_data"), (roboflow / "train/images", roboflow / "train/labels"),
            (roboflow / "valid/images", roboflow / "valid/labels"), (flat, flat), (listed / "images", listed / "labels"),
            (parts / "train/images", parts / "train/labels"), (parts / "val/images", parts / "val/images"),
        ):  # fmt: skip
            picture(image / f"{name}.png")
            text(boxes / f"{name}.txt", yolo_lines(name))
    text(flat / "3.txt", "")
    assert "3.jpg: it cannot be read: No such file" in refused("yolo", flat, tmp_path / "out", "--test=0").fact
    (flat / "3.txt").unlink()
    for root in (darknet, roboflow, listed, parts):
        check(root)
    check(flat, "--test=0")


def test_yolo_with_the_whole_folder_as_a_part(tmp_path: pathlib.Path) -> None:
    yolo(tmp_path / "set")
    edit("data.yaml", "images/train", "..")(tmp_path / "set")
    run("yolo", tmp_path / "set", tmp_path / "out")
    assert len(raw(tmp_path / "out" / "train_lmdb")) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right")
def test_yolo_with_a_linked_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before its files are listed: a link to / would take hours."""
    yolo(tmp_path / "set")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "set/images/far").symlink_to(tmp_path / "elsewhere")
    edit("data.yaml", "images/train", "images/far")(tmp_path / "set")
    assert "leads out of the folder" in refused("yolo", tmp_path / "set", tmp_path / "out").fact


def test_yolo_polygons(tmp_path: pathlib.Path) -> None:
    yolo(tmp_path / "set")
    text(tmp_path / "set/labels/train/1.txt", "0 0.1 0.25 0.5 0.5 0.1 0.75\n")
    run("yolo", tmp_path / "set", tmp_path / "out")
    assert records(tmp_path / "out" / "train_lmdb")["1"] == expected("1", "yolo")


def test_labelme_beside_its_image(tmp_path: pathlib.Path) -> None:
    for name in "12":
        picture(tmp_path / "set" / f"{name}.png")
        made = labelme_json(name) | {"imagePath": "C:\\photos\\old name.jpg"}
        text(tmp_path / "set" / f"{name}.json", json.dumps({key: value for key, value in made.items() if key != "imagePath" or name == "1"}))
    (tmp_path / "set/1.json").write_text((tmp_path / "set/1.json").read_text().replace("C:\\\\photos\\\\", ""))
    run("labelme", tmp_path / "set", tmp_path / "out", "--test=0")
    assert records(tmp_path / "out" / "train_lmdb") == {name: expected(name, "labelme") for name in records(tmp_path / "out" / "train_lmdb")}


# Mistakes.

Change = Callable[[pathlib.Path], Any]


def edit(path: str, old: str, new: str) -> Change:
    def change(root: pathlib.Path) -> None:
        content = (root / path).read_text()
        assert old in content
        (root / path).write_text(content.replace(old, new, 1))

    return change


def image(path: str, size: tuple[int, int]) -> Change:
    return lambda root: picture(root / path, size)


def write(path: str, content: str) -> Change:
    return lambda root: text(root / path, content)


def remove(path: str) -> Change:
    return lambda root: (root / path).unlink()


LONE = {"voc": "JPEGImages/1.png", "coco": "train2017/1.png", "yolo": "images/train/1.png", "labelme": "train/pictures/1.png"}  # not in the test part
VOC1, COCO1, YOLO1, LABELME1 = "Annotations/1.xml", "annotations/instances_train2017.json", "labels/train/1.txt", "train/json/1.json"
SKIPPED = [  # the format, the change, the place and the fact of the error, the count in the summary
    ("voc", edit(VOC1, "<xmax>20<", "<xmax>42<"), "1.xml: object 1", "= 4, 5, 42, 15, and the image is 40 x 20", "1 boxes that leave the image"),
    ("voc", edit(VOC1, "<xmax>20<", "<xmax>3<"), "1.xml: object 1", "4, 5, 3, 15: a minimum is above its maximum", "1 boxes that are inverted"),
    ("voc", edit(VOC1, "<xmax>20<", "<xmax>4<"), "1.xml: object 1", "4, 5, 4, 15: the box has no area", "1 boxes that are empty"),
    ("voc", edit(VOC1, "<xmax>20<", "<xmax>nan<"), "1.xml: object 1", "4, 5, nan, 15", "1 boxes that are not finite"),
    ("voc", edit(VOC1, "<width>40", "<width>41"), "1.xml", "it states 41 x 20, and ", "1 images of another size"),
    ("voc", edit(VOC1, "<xmin>4</xmin>", ""), "1.xml", "object 1 has a bndbox without xmin", "1 images with unreadable annotations"),
    ("voc", edit(VOC1, "<xmin>4<", "<xmin>four<"), "1.xml", "xmin of object 1 is 'four', which is not a number", "1 images with unreadable annotations"),
    ("voc", edit(VOC1, "<name>cat</name>", ""), "1.xml", "xml annotations: object 1 has no name", "1 images with unreadable annotations"),
    ("voc", edit(VOC1, "<name>cat</name>", "<name/>"), "1.xml", "object 1 has no name", "1 images with unreadable annotations"),
    ("voc", edit(VOC1, "<name>cat</name>", "<name> \t\n</name>"), "1.xml", "object 1 has no name", "1 images with unreadable annotations"),
    ("voc", edit(VOC1, "<annotation>", '<!DOCTYPE a [<!ENTITY b "c">]><annotation>'), "1.xml", "document type", "1 images with unreadable annotations"),
    ("voc", edit(VOC1, "</annotation>", ""), "1.xml", "cannot be parsed as xml", "1 images with unreadable annotations"),
    ("voc", edit("ImageSets/Main/train.txt", "1\n", "7\n"), "7.xml", "No such file", "1 images with unreadable annotations"),
    ("voc", write("labels.txt", "dog\n"), "1.xml: object 1", "the class is 'cat', and the classes are 'dog'", "2 boxes of unknown classes"),
    ("coco", edit(COCO1, "[4, 5, 16, 10]", "[4, 5, 38, 10]"), "annotations[0]", "= 4, 5, 42, 15, and the image", "1 boxes that leave the image"),
    ("coco", edit(COCO1, "[4, 5, 16, 10]", "[4, 5, 0, 10]"), "annotations[0]", "the box has no area", "1 boxes that are empty"),
    ("coco", edit(COCO1, "[4, 5, 16, 10]", "[4, 5, 16]"), "annotations[0]", "bbox is [4, 5, 16]", "1 boxes that are no boxes"),
    ("coco", edit(COCO1, "[4, 5, 16, 10]", f"[4, 5, 16, 1{'0' * 400}]"), "annotations[0]", "bbox is [4, 5, 16, 1000", "1 boxes that are no boxes"),
    ("coco", edit(COCO1, '"category_id": 17', '"category_id": 3'), "annotations[0]", "the class is '3', and the classes are", "1 boxes of unknown classes"),
    ("coco", edit(COCO1, '"image_id": 1', '"image_id": 9'), "annotations[0]", "image_id is 9, and no image", "1 boxes of unknown images"),
    ("coco", edit(COCO1, '"width": 40', '"width": 30'), "image 1", "it states 30 x 20", "1 images of another size"),
    ("yolo", write(YOLO1, "\n0 0.3 0.5 0.9 0.5\n"), "1.txt:2", "= -0.15, 0.25, 0.75, 0.75, and the coordinates are shares", "1 boxes that leave the image"),
    ("yolo", write(YOLO1, "0 12 5 4 5\n"), "1.txt:1", "= 10, 2.5, 14, 7.5, and the coordinates are shares of the image", "1 boxes that leave the image"),
    ("yolo", write(YOLO1, "0 0.3 0.5 -0.1 0.5\n"), "1.txt:1", "a minimum is above its maximum", "1 boxes that are inverted"),
    ("yolo", write(YOLO1, "2 0.3 0.5 0.1 0.5\n"), "1.txt:1", "the class is 2, and ", "1 boxes of unknown classes"),
    ("yolo", write(YOLO1, "0 0.3 0.5 0.1 0.5 0.99\n"), "1.txt:1", "has 6 numbers", "1 boxes that are no boxes"),
    ("yolo", write(YOLO1, "0 0.1 0.2 0.3 nan 0.5 0.6\n"), "1.txt:1", "a number that is not finite", "1 boxes that are no boxes"),
    ("yolo", write(YOLO1, "cat 0.3 0.5 0.1 0.5\n"), "1.txt:1", "a word that is not a number", "1 boxes that are no boxes"),
    ("yolo", lambda root: (root / YOLO1).write_bytes(b"\xff\n"), "1.txt", "it is not UTF-8", "1 images with unreadable annotations"),
    ("labelme", edit(LABELME1, '"polygon"', '"circle"'), "1.json: shape 1", "shape_type is 'circle', which has no box", "1 boxes that are no boxes"),
    ("labelme", edit(LABELME1, '"polygon"', '"rectangle"'), "", "", ""),  # a rectangle of three points is one
    ("labelme", edit(LABELME1, "[[4, 5], ", "[[4], "), "1.json: shape 1", "a point is not two numbers", "1 boxes that are no boxes"),
    ("labelme", edit(LABELME1, "[[4, 5], ", "["), "1.json: shape 1", "the polygon has 2 points", "1 boxes that are no boxes"),
    ("labelme", edit(LABELME1, '"label": "cat"', '"label": 5'), "1.json: shape 1", "it has no label", "1 boxes that are no boxes"),
    ("labelme", edit(LABELME1, '"label": "cat"', '"label": ""'), "1.json: shape 1", "it has no label", "1 boxes that are no boxes"),
    ("labelme", edit(LABELME1, '"label": "cat"', '"label": " \\n"'), "1.json: shape 1", "it has no label", "1 boxes that are no boxes"),
    ("labelme", edit(LABELME1, "[4, 5]", "[-4, 5]"), "1.json: shape 1", "= -4, 5, 20, 15, and the image is 40 x 20", "1 boxes that leave the image"),
    ("labelme", edit(LABELME1, '"imageWidth": 40', '"imageWidth": 50'), "1.json", "it states 50 x 20", "1 images of another size"),
    ("labelme", write(LABELME1, "{}"), "1.json", "it has no list 'shapes'", "1 images with unreadable annotations"),
    ("labelme", write(LABELME1, "[" * 100_000), "1.json", "its brackets are nested too deep", "1 images with unreadable annotations"),
    ("labelme", edit(LABELME1, "..\\\\pictures", "../../../.."), "1.json", "lies outside of the folder", "1 images with unreadable annotations"),
    *((kind, remove(path), "1", "it cannot be read: No such file", "1 images that are missing") for kind, path in LONE.items()),
    *((kind, write(path, "no image"), "1", "it is not an image file", "1 images that cannot be read") for kind, path in LONE.items()),
]


@pytest.mark.parametrize(("kind", "change", "place", "fact", "count"), SKIPPED, ids=[f"{each[0]}-{n}-{each[3][:20]}" for n, each in enumerate(SKIPPED)])
def test_what_cannot_be_used(
    tmp_path: pathlib.Path, kind: str, change: Change, place: str, fact: str, count: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is an error with its place and a remedy. With --skip-bad it is left out, counted and named."""
    WRITERS[kind](tmp_path / "set")
    change(tmp_path / "set")
    if not fact:
        run(kind, tmp_path / "set", tmp_path / "out")
        return
    error = refused(kind, tmp_path / "set", tmp_path / "out", "--noshuffle", "--parts=train")
    assert place in str(error.place) and fact in error.fact and str(error.fix).endswith(", or leave it out: --skip-bad")
    assert sorted(os.listdir(tmp_path)) == ["set"]
    capfd.readouterr()
    run(kind, tmp_path / "set", tmp_path / "out", "--skip-bad", "--noshuffle", "--parts=train")
    said = capfd.readouterr()
    assert f"left out: {count}" in said.out and fact in said.err and "It is left out." in said.err
    found = records(tmp_path / "out" / "train_lmdb")
    assert "2" in found and all(corners[0] < corners[2] <= 1 for boxes in found.values() for _, corners, _ in boxes)
    assert ("1" in found) == (not count.startswith("1 images"))


def test_boxes_are_clipped_by_a_pixel(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    coco(tmp_path / "set")
    edit(COCO1, "[0, 0, 40, 20]", "[-0.01, 0, 40.5, 20.5]")(tmp_path / "set")
    run("coco", tmp_path / "set", tmp_path / "out")
    assert records(tmp_path / "out" / "train_lmdb")["2"] == expected("2", "coco")
    assert "1 boxes clipped by up to 1 pixel" in capsys.readouterr().out


# names of classes in JSON or YAML, and the faults of those that no labels.txt can hold
NAMES = {"": "is empty", " ": "has white space", " cat": "has white space", "cat\u3000": "has white space", "c\\nat": "has a line break",
         "c\\u2028at": "has a line break", "\\ufeffcat": "begins with a byte order mark"}  # fmt: skip
BROKEN: list[tuple[str, Change, str]] = [
    ("voc", lambda root: shutil.rmtree(root / "Annotations"), "has no folder Annotations, and no XML"),
    ("voc", lambda root: [(root / "ImageSets").rename(root / "other"), *(each.unlink() for each in root.glob("Annotations/*"))], "no XML file in Annotations"),
    ("voc", edit("ImageSets/Main/train.txt", "1\n", "../../1\n"), "'../../1.xml' lies outside of the folder"),
    ("voc", write("ImageSets/Main/train.txt", "\n"), "none of the 0 images of the part 'train' can be used"),
    ("coco", lambda root: [path.unlink() for path in (root / "annotations").iterdir()], "has no annotations/instances_*.json"),
    ("coco", write(COCO1, "[" * 100_000), "it is not JSON"),
    ("coco", write(COCO1, '{"images": 3}'), "it has no list 'images'"),
    ("coco", write(COCO1, '{"images": [], "annotations": [], "categories": []}'), "its list 'images' is empty"),
    ("coco", edit(COCO1, '"id": 2, "file_name"', '"id": 1, "file_name"'), "the id 1 occurs twice"),
    ("coco", edit(COCO1, '"id": 17', '"id": 18'), "the id 18 occurs twice"),
    ("coco", edit(COCO1, '"id": 17', '"id": "17"'), 'id is "17"'),
    ("coco", edit(COCO1, '"file_name": "1.png"', '"file_name": 4'), "file_name is 4"),
    ("coco", edit(COCO1, '"1.png"', '"/etc/1.png"'), "'/etc/1.png' lies outside"),
    ("coco", edit(COCO1, '"1.png"', '"../../1.png"'), "lies outside of the folder"),
    ("yolo", remove("data.yaml"), "has no names of classes"),
    ("yolo", edit("data.yaml", "['cat', \"dog\"]", "[cat, cat]"), "the class 'cat' occurs 2 times"),
    ("yolo", edit("data.yaml", "['cat', \"dog\"]", "[cat, dog"), "has no closing ]"),
    ("yolo", edit("data.yaml", "['cat', \"dog\"]", "\n  0: cat\n  2: dog"), "has 2 classes and not the number 1"),
    ("yolo", edit("data.yaml", "['cat', \"dog\"]", "\n  0: cat\n  0: dog"), "'0: dog': the number 0 occurs twice"),
    ("yolo", edit("data.yaml", "['cat', \"dog\"]", "\n- cat\ndog"), "'dog' is not a key with a value"),
    ("yolo", edit("data.yaml", "['cat', \"dog\"]", "\n- cat\n  dog"), "'dog' is not an item"),
    *(("coco", edit(COCO1, '"name": "cat"', f'"name": "{name}"'), f"of a class {fault}") for name, fault in NAMES.items()),
    *(("labelme", edit(LABELME1, '"label": "cat"', f'"label": "{name}"'), f"of a class {fault}") for name, fault in NAMES.items() if "\\" in name),
    *(("yolo", edit("data.yaml", "'cat'", f'"{name}"'), f"of a class {fault}") for name, fault in NAMES.items() if "\\" not in name),
    ("voc", edit(VOC1, "<name>cat", "<name>c\nat"), "the name 'c\\nat' of a class has a line break"),
    ("yolo", edit("data.yaml", "['cat', \"dog\"]", "[cat, , dog]"), "'[cat, , dog]' has an empty item"),
    ("yolo", lambda root: [remove("data.yaml")(root), write("classes.txt", "cat\n \ndog\n")(root)], "the line is empty, and each line is the name of a class"),
    ("yolo", lambda root: [remove("data.yaml")(root), write("classes.txt", "\ncat\ndog\n")(root)], "the line is empty, and each line is the name of a class"),
    ("yolo", edit("data.yaml", "['cat', \"dog\"]", "cat"), "'names' is 'cat'"),
    ("yolo", edit("data.yaml", "images/train", "images/none"), "'train' names images/none, which is not in"),
    ("yolo", edit("data.yaml", "images/train ", "{0: a} "), "'train' is '{0: 'a'}'"),
    ("yolo", lambda root: [path.unlink() for path in (root / "labels/train").iterdir()], "part 'train' has 2 images and no file with boxes"),
    ("yolo", lambda root: [edit("data.yaml", "images/train", "list.txt")(root), write("list.txt", "../9.png\n")(root)], "'../9.png' lies outside"),
    ("yolo", lambda root: [remove("data.yaml")(root), write("classes.txt", "\n")(root)], "it names no class"),
    ("labelme", lambda root: [path.unlink() for path in root.rglob("*.json")], "has no JSON file"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "fact"), BROKEN, ids=[f"{each[0]}-{n}-{each[2][:24]}" for n, each in enumerate(BROKEN)])
def test_broken_sets(tmp_path: pathlib.Path, kind: str, change: Change, fact: str) -> None:
    WRITERS[kind](tmp_path / "set")
    change(tmp_path / "set")
    assert fact in refused(kind, tmp_path / "set", tmp_path / "out", "--skip-bad").fact
    assert sorted(os.listdir(tmp_path)) == ["set"]


@pytest.mark.parametrize("kind", WRITERS)
def test_names_are_checked_before_anything_is_written(tmp_path: pathlib.Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is the first box of the class, or the file with the names. A label map of the user must have good names, too."""
    WRITERS[kind](tmp_path / "set")
    monkeypatch.setattr(box_databases, "new_folder", lambda out: pytest.fail("it writes"))
    changes = {"voc": (VOC1, "cat", "c\na"), "coco": (COCO1, '"cat"', '" a"'), "yolo": ("data.yaml", "cat", " a"), "labelme": (LABELME1, '"cat"', '"c\\na"')}
    edit(*changes[kind])(tmp_path / "set")
    error = refused(kind, tmp_path / "set", tmp_path / "out")
    places = {"voc": "1.xml: object 1", "coco": "instances_train2017.json: categories[1]", "yolo": "data.yaml", "labelme": "1.json: shape 1"}
    assert str(error.place).endswith(places[kind]) and "rename the class" in str(error.fix)


@pytest.mark.parametrize(
    ("names", "line", "fact"),
    [
        ("name: 'a' display_name: ' a'", "", "has white space at an end"), ("name: ''", ":2", "has no name"), ("display_name: 'a'", ":2", "has no name"),
        ("name: ' '", ":2", "has no name"), ("name: '<html>'", "", "would make labels.txt look like a web page"),
    ],
)  # fmt: skip
def test_a_label_map_with_wrong_names(tmp_path: pathlib.Path, names: str, line: str, fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    voc(tmp_path / "set")
    monkeypatch.setattr(box_databases, "new_folder", lambda out: pytest.fail("it writes"))
    text(tmp_path / "map.prototxt", f"\nitem {{ {names} label: 0 }}\nitem {{ name: 'cat' label: 1 }}\n")
    error = refused("voc", tmp_path / "set", tmp_path / "out", f"--label-map-file={tmp_path}/map.prototxt")
    assert fact in error.fact and str(error.place) == f"{tmp_path}/map.prototxt{line}"


def test_empty_lines_after_the_names(tmp_path: pathlib.Path) -> None:
    yolo(tmp_path / "set")
    (tmp_path / "set/data.yaml").unlink()
    text(tmp_path / "set/classes.txt", "cat\n dog \n\n  \n")
    run("yolo", tmp_path / "set", tmp_path / "out")
    assert label_names(str(tmp_path / "out/train_lmdb")) == ["background", "cat", "dog"]


def test_a_label_map_needs_names(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line, lines in ((2, "cat\n 5\n"), (1, "\tcat\n")):
        text(tmp_path / "names.txt", lines)
        assert ocaffe(["create_label_map", str(tmp_path / "names.txt"), str(tmp_path / "map"), "--delimiter", " " if line == 2 else "\t"]) == 1
        assert f"names.txt:{line}\n  the name of the class is empty" in capsys.readouterr().err and not (tmp_path / "map").exists()


def test_other_mistakes(tmp_path: pathlib.Path) -> None:
    assert "the folder none does not exist" in refused("voc", "none", tmp_path / "out").fact
    voc(tmp_path / "set")
    assert "exists already" in refused("voc", tmp_path / "set", tmp_path).fact
    assert "--test is 1" in refused("voc", tmp_path / "set", tmp_path / "out", "--test=1").fact
    for name in TRUTH:
        text(tmp_path / "set/Annotations" / f"{name}.xml", "<annotation/>")
    assert "no boxes and no classes" in refused("voc", tmp_path / "set", tmp_path / "out").fact


def test_names_with_white_space(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture(tmp_path / "set" / "my cat.png")
    text(tmp_path / "set" / "my cat.xml", xml("1"))
    run("voc", tmp_path / "set", tmp_path / "out", "--test=0")
    assert "no train_name_size.txt, because 'my cat' has white space" in capsys.readouterr().out
    assert records(tmp_path / "out" / "train_lmdb") == {"my cat": expected("1", "voc")}


def test_large_files_are_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voc(tmp_path / "set")
    monkeypatch.setattr("ocaffe.tools.datasets.annotations.MOST_BYTES", 100)
    assert "bytes, and the limit is 100" in refused("voc", tmp_path / "set", tmp_path / "out").fact


def test_entities_do_not_expand() -> None:
    bomb = b'<!DOCTYPE a [<!ENTITY b "bb">' + b"".join(b'<!ENTITY c%d "%s">' % (n, b"&b;" * 9) for n in range(9)) + b"]><a>&c8;</a>"
    for content in (bomb, bomb.decode().encode("utf-16")):
        with pytest.raises(ValueError, match="document type"):
            READERS["xml"](content)


def test_all_formats_have_a_help() -> None:
    for kind in box_databases.FORMATS:
        with pytest.raises(SystemExit):
            main([kind, "--help"])


def test_yaml(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "data.yaml"
    text(path, "---\n# a comment\nnames: [ 'a, b', \"c # d\",\n  it's e, # e\n]\nother:\n  deep:\n    names: no\ntrain: a#b # c\nempty:\nval: {1: x, 0: 'y'}\n")
    assert read_small_yaml(str(path), ("names", "train", "val", "empty", "none")) == {
        "names": ["a, b", "c # d", "it's e"], "train": "a#b", "val": {1: "x", 0: "y"},
    }  # fmt: skip


@pytest.mark.parametrize("kind", LONE)
def test_images_through_links(tmp_path: pathlib.Path, kind: str) -> None:
    """A link of a data set must not lead to another file of the user, whose pixels would get into the database."""
    WRITERS[kind](tmp_path / "set")
    root = tmp_path / "set"
    image = next(path for path in sorted(root.rglob("*")) if path.suffix in (".png", ".jpg"))
    image.rename(tmp_path / "private")
    image.symlink_to(tmp_path / "private")
    error = refused(kind, root, tmp_path / "out")
    assert "leads out of the folder" in error.fact and "cp -rL" in str(error.fix)
    run(kind, root, tmp_path / "skipped", "--skip-bad")
    image.unlink()
    inner = root / "elsewhere.bin"
    (tmp_path / "private").rename(inner)
    image.symlink_to(inner)
    (tmp_path / "linked").symlink_to(root)  # the folder itself may be a link
    run(kind, tmp_path / "linked", tmp_path / "out")


@pytest.mark.parametrize("kind", LONE)
def test_texts_through_links(tmp_path: pathlib.Path, kind: str) -> None:
    """The same for each file of boxes, classes or names: a file of the user would get into the label map, or into the error."""
    WRITERS[kind](tmp_path / "made")
    if kind in ("voc", "labelme"):
        text(tmp_path / "made" / "labels.txt", "cat\ndog\n")
    unread = (".png", ".jpg"), ("cat_train.txt", "captions_train2017.json")
    files = [path for path in sorted((tmp_path / "made").rglob("*")) if path.is_file() and path.suffix not in unread[0] and path.name not in unread[1]]
    texts = [path.relative_to(tmp_path / "made") for path in files]
    text(tmp_path / "private", "SECRET of the user\n")
    for number, name in enumerate(texts):
        root = tmp_path / f"set{number}"
        shutil.copytree(tmp_path / "made", root)
        (root / name).unlink()
        (root / name).symlink_to(tmp_path / "private")
        error = refused(kind, root, tmp_path / "out")
        assert "leads out of the folder" in error.fact and "cp -rL" in str(error.fix) and "SECRET" not in str(error), name
    folder = next(path.parent for path in sorted(root.rglob("*")) if path.is_symlink())
    if folder != root and kind != "labelme":  # a folder that is a link, which os.walk does not follow
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "made", root)
        folder.rename(tmp_path / "folder")
        folder.symlink_to(tmp_path / "folder")
        assert "leads out of the folder" in refused(kind, root, tmp_path / "out").fact
