"""`ocaffe new` for nets that find objects: classes of the label map, databases with boxes, mistakes; and `ocaffe predict` with such nets."""
from __future__ import annotations

import io
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.evaluation.deploy import class_names, data_layer
from ocaffe.evaluation.objects import draw_objects, objects
from ocaffe.evaluation.regions import draw_regions, regions
from ocaffe.evaluation.tables import label_map_names
from ocaffe.formats.param_str import read_settings
from ocaffe.formats.text import read_net, read_solver
from ocaffe.tools.datasets.stored_boxes import corners_of
from ocaffe.tools.drawing.palette import color_of, palette
from ocaffe.zoo.detection_project import find_annotated, is_detector, write_detector
from ocaffe.zoo.priors import fitted, prior_maps
from ocaffe.zoo.project import Choices
from ocaffe.zoo.templates import graph_of
from tests.data.small_databases import write
from tests.data.sources.test_annotated import datum

LABELS = ("cat", "dog", "bird")
TRAINED, TESTED = 6, 4


def label_map(*labels: tuple[str, int]) -> str:
    return "".join(f'item {{ name: "{name}" label: {label} }}\n' for name, label in labels)


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with a folder of annotated databases of three classes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name, count in (("train_lmdb", TRAINED), ("val_lmdb", TESTED)):
        write(tmp_path / "data" / name, [datum(number, [(1 + number % 3, 0.1, 0.1, 0.4, 0.5)]) for number in range(count)])
    named = [(name, label) for label, name in enumerate(LABELS, 1)]
    (tmp_path / "data/labelmap.prototxt").write_text(label_map(("background", 0), *named))
    return tmp_path


@pytest.mark.parametrize(("net", "confidences", "priors"), [("ssd_shapes", 4, 4), ("mobilenet_ssd", 6, 3), ("ssd300_vgg16", 6, 4)])
def test_classes_of_the_label_map(here: pathlib.Path, net: str, confidences: int, priors: int) -> None:
    assert is_detector(net) and not is_detector("resnet18") and not is_detector("data")
    made = write_detector(net, "data", "out", Choices(batch=2, iterations=8))
    assert (made.images.classes, made.classes, made.batch, made.iterations) == (list(LABELS), 3, 2, 8)
    for file in ("train_val", "deploy"):
        layers = read_net(f"out/{file}.prototxt").layer
        found = [layer for layer in layers if layer.name.endswith("_mbox_conf_4")]
        assert len(found) == confidences and found[0].convolution_param.num_output == 4 * priors
        assert not any(layer.name.endswith("_mbox_conf") and layer.type == "Convolution" for layer in layers)
        fields = ("multibox_loss_param", "detection_output_param", "detection_evaluate_param")
        counts = [getattr(layer, field).num_classes for layer in layers for field in fields if layer.HasField(field)]
        assert counts == [4] * (3 if file == "train_val" else 1)
        assert [list(layer.reshape_param.shape.dim) for layer in layers if layer.type == "Reshape"] == [[0, -1, 4]]
    train, test = (layer for layer in read_net("out/train_val.prototxt").layer if layer.type == "AnnotatedData")
    assert (train.data_param.source, train.data_param.batch_size, train.data_param.shuffle) == ("data/train_lmdb", 2, True)
    assert (test.data_param.source, test.data_param.batch_size) == ("data/val_lmdb", 4)
    assert train.transform_param.force_color and test.transform_param.force_color
    assert train.annotated_data_param.label_map_file == test.annotated_data_param.label_map_file == "data/labelmap.prototxt"
    solver = read_solver("out/solver.prototxt")
    assert (solver.eval_type, list(solver.test_iter), solver.max_iter) == ("detection", [1], 8)
    assert pathlib.Path("out/README.md").read_text().count(f" out/{net}_best_iter_*.caffemodel") == 3


def test_display_names(here: pathlib.Path) -> None:
    """People read display names: the names in COCO's label map are numbers."""
    items = (("none_of_the_above", 0, "background"), ("18", 1, "dog"), ("90", 2, "toothbrush"), ("bird", 3, ""))
    (here / "data/labelmap.prototxt").write_text("".join(f'item {{ name: "{name}" label: {n} display_name: "{shown}" }}' for name, n, shown in items))
    assert write_detector("ssd_shapes", "data", "out", Choices(batch=2)).images.classes == ["dog", "toothbrush", "bird"]
    assert class_names(data_layer(read_net("out/train_val.prototxt"))) == ["background", "dog", "toothbrush", "bird"]
    assert label_map_names("out/train_val.prototxt") == {0: "background", 1: "dog", 2: "toothbrush", 3: "bird"}


def test_the_number_of_classes_is_the_published_one(here: pathlib.Path) -> None:
    """Then the weights of the published net load by name."""
    (here / "data/labelmap.prototxt").write_text(label_map(*((f"class{label}", label) for label in range(1, 21))))
    made = write_detector("mobilenet_ssd", "data", "out", Choices(batch=2))
    assert not [note for note in made.notes if "is now" in note or "_mbox_conf_" in note]
    assert "conv11_mbox_conf" in [layer.name for layer in read_net("out/deploy.prototxt").layer]


def test_a_detector_of_regions(here: pathlib.Path) -> None:
    """The shorter side is --size, and an iteration of several images has several passes."""
    (here / "w.caffemodel").write_bytes(b"")
    made = write_detector("faster_rcnn_zf", "data", "out", Choices(batch=2, size=300, iterations=8, weights="w.caffemodel", augment=""))
    assert (made.classes, made.batch, made.shape) == (3, 2, (3, 300, 500))
    net, deploy = (read_net(f"out/{file}.prototxt") for file in ("train_val", "deploy"))
    for message in (net, deploy):
        outputs = {layer.name: layer.inner_product_param.num_output for layer in message.layer if layer.type == "InnerProduct"}
        assert (outputs["cls_score_4"], outputs["bbox_pred_4"]) == (4, 16)
    settings = {(layer.name, layer.include[0].phase): read_settings(layer.python_param.param_str) for layer in net.layer if layer.HasField("python_param")}
    common = {"num_classes": 4, "scales": [300], "max_size": 500}
    assert settings["input-data", 0] == {**common, "source": "data/train_lmdb", "use_flipped": False}
    assert settings["input-data", 1] == {**common, "source": "data/val_lmdb"}
    assert settings["rpn-data", 0]["scales"] == settings["proposal", 1]["scales"] == [4, 8, 16] and settings["roi-data", 0]["num_classes"] == 4
    assert {getattr(layer, f"detection_{kind}_param").num_classes for layer in net.layer for kind in ("output", "evaluate")
            if layer.HasField(f"detection_{kind}_param")} == {4}  # fmt: skip
    solver = read_solver("out/solver.prototxt")
    assert (solver.iter_size, list(solver.test_iter), round(solver.base_lr, 6)) == (2, [TESTED], 0.002)
    with pytest.raises(Error, match="--augment is 'mirror: true'"):
        write_detector("faster_rcnn_zf", "data", "other", Choices(augment="mirror: true"))
    with pytest.raises(Error, match="--transform is given"):
        write_detector("faster_rcnn_zf", "data", "other", Choices(transform="scale: 2"))


def test_all_test_images_come_once(here: pathlib.Path) -> None:
    write(here / "data/test_lmdb", [datum(number) for number in range(35)])
    write_detector("ssd_shapes", "data", "out", Choices(val="data/test_lmdb"))
    batch = next(layer.data_param.batch_size for layer in read_net("out/train_val.prototxt").layer if layer.include[0].phase == 1)
    assert batch * read_solver("out/solver.prototxt").test_iter[0] == 35


def test_mistakes(here: pathlib.Path) -> None:
    def refused(text: str, **choices: Any) -> None:
        with pytest.raises(Error) as caught:
            write_detector("ssd_shapes", "data", "out", Choices(**choices))
        assert text in f"{caught.value}" and not (here / "out").exists()

    refused("--size is given for ssd_shapes, which finds objects", size=64)
    refused("the label map decides the classes", classes=3)
    refused("the weights none.caffemodel do not exist", weights="none.caffemodel")
    refused("none_lmdb", val="data/none_lmdb")
    with pytest.raises(Error, match="data/train_lmdb is one database, and there is none for testing"):
        find_annotated("data/train_lmdb")
    (here / "data/labelmap.prototxt").write_text(label_map(("cat", 1), ("dog", 3)))
    refused("the labels are 1, 3")
    (here / "data/labelmap_voc.prototxt").write_text(label_map(("cat", 1)))
    refused("data has 2 label maps: labelmap.prototxt, labelmap_voc.prototxt")
    (here / "data/labelmap.prototxt").unlink()
    (here / "data/labelmap_voc.prototxt").unlink()
    refused("data has no labelmap.prototxt")
    with pytest.raises(Error, match="is not a folder"):
        find_annotated("nothing")
    write(here / "data/val_lmdb2", [proto.Datum(channels=1, height=1, width=1, data=b"a").SerializeToString()])
    refused("has images without boxes", val="data/val_lmdb2")


def in_file(record: bytes, gray: bool) -> bytes:
    """Return the record with its image as a PNG file."""
    message, buffer = proto.AnnotatedDatum.FromString(record), io.BytesIO()
    own = message.datum
    pixels = np.frombuffer(own.data, np.uint8).reshape(own.channels, own.height, own.width).transpose(1, 2, 0)
    Image.fromarray(pixels).convert("L" if gray else "RGB").save(buffer, "PNG")
    own.data, own.encoded = buffer.getvalue(), True
    return message.SerializeToString()


def test_train_and_predict(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way: `new`, `train`, `predict` with boxes drawn on the images. Some images are gray."""
    for part, count in (("train", TRAINED), ("val", TESTED)):
        write(here / "data" / f"{part}_lmdb", [in_file(datum(number, [(1 + number % 3, 0.1, 0.1, 0.4, 0.5)]), gray=number == 1) for number in range(count)])
    assert main(["new", "ssd_shapes", "--data", "data", "--out", "net", "--iterations", "2", "--batch", "2", "--device", device.number]) == 0
    assert "6 for training, 4 for testing; 3 classes" in capsys.readouterr().out
    assert main(["train", "--solver", "net/solver.prototxt", "--device", device.number]) == 0
    Image.new("RGB", (60, 40), (200, 10, 10)).save("image.png")
    weights = ["--model", "net/deploy.prototxt", "--weights", "net/ssd_shapes_iter_2.caffemodel", "image.png", "--device", device.number]
    capsys.readouterr()
    assert main(["predict", *weights, "--json", "--threshold", "0", "--annotate", "drawn"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert {each["label"] for each in result["objects"]} <= set(LABELS) and all(len(each["box"]) == 4 for each in result["objects"])
    with Image.open(result["annotated"]) as drawn:
        assert drawn.size == (60, 40)
    assert main(["predict", *weights, "--threshold", "1.1"]) == 0
    assert "nothing with a score of 1.1 or more" in capsys.readouterr().out


ROWS = np.array([[0, 1, 0.9, 0.1, 0.2, 0.5, 1.2], [1, 2, 0.8, 0, 0, 1, 1], [0, 2, 0.95, 0.5, 0.5, 0.7, 0.7], [0, 1, 0.3, 0, 0, 1, 1]], np.float32)


def test_objects_of_an_image() -> None:
    found = objects(ROWS, 0, ["background", "cat", "dog"], 0.5)
    assert [(each["label"], round(each["score"], 3)) for each in found] == [("dog", 0.95), ("cat", 0.9)]
    assert found[1]["box"] == pytest.approx([0.1, 0.2, 0.5, 1.0])  # limited to the image
    assert objects(np.float32([[-1, -1, -1, -1, -1, -1, -1]]), 0, [], 0) == []  # DetectionOutput has no detection
    picture = Image.new("RGB", (100, 50), (255, 255, 255))
    drawn = np.asarray(draw_objects(picture, found))
    assert tuple(drawn[25, 60]) != (255, 255, 255) or tuple(drawn[25, 50]) == color_of(2)
    assert tuple(drawn[round(0.2 * 49) + 20, round(0.1 * 99)]) == color_of(1) and np.asarray(picture).min() == 255


def test_regions_of_an_image() -> None:
    scores = np.zeros((3, 2, 4), np.float32)
    scores[2, :, 1:] = 1
    best, found = regions(scores, ["background", "cat", "dog"])
    assert best.tolist() == [[0, 2, 2, 2]] * 2
    assert [(each["label"], each["share"]) for each in found] == [("dog", 0.75), ("background", 0.25)]
    drawn = np.asarray(draw_regions(Image.new("RGB", (8, 4), (100, 100, 100)), best))
    assert tuple(drawn[0, 0]) == (100, 100, 100) and tuple(drawn[3, 7]) == tuple(round(100 + 0.55 * (value - 100)) for value in color_of(2))


def test_colors_are_those_of_pascal_voc() -> None:
    assert palette()[[0, 1, 2, 3, 15, 255]].tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [192, 128, 128], [224, 224, 192]]


def test_prior_boxes_suit_the_objects(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small objects overlap none of the published boxes. The sizes change alike in both files, and few objects change nothing."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/labelmap.prototxt").write_text(label_map(("background", 0), ("cat", 1)))
    for name, count in (("train_lmdb", 60), ("val_lmdb", 4)):
        write(tmp_path / "data" / name, [datum(n, [(1, x, y, x + side, y + side)]) for n, (x, y, side) in enumerate(rng.uniform(0.05, 0.15, (count, 3)))])
    made = write_detector("mobilenet_ssd", "data", "out", Choices(batch=2, iterations=8))
    (change,) = [change for change in made.notes if change.startswith("prior boxes")]
    shares = [int(share) for share in re.findall(r"(\d+)%", change)]
    assert shares[0] > shares[1] + 20
    sizes = [[list(layer.prior_box_param.min_size) for layer in read_net(f"out/{file}.prototxt").layer if layer.type == "PriorBox"]
             for file in ("train_val", "deploy")]  # fmt: skip
    assert sizes[0] == sizes[1] and sizes[0][0][0] < 60
    maps = prior_maps(graph_of(read_net("out/deploy.prototxt")))
    corners, images = corners_of("data/train_lmdb")
    assert images == 60 and fitted(maps, corners[:20]) is None
    found = fitted(maps, corners)
    assert found is None or 100 * found.before == pytest.approx(shares[0], abs=0.5)
