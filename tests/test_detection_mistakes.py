"""The mistakes of docs/detection-mistakes.md: each begins with a right project of `ocaffe new ssd_shapes`, and is told with a remedy.

The first ones are told by `ocaffe lint`, the last ones by at most 50 iterations of training.
"""
from __future__ import annotations

import pathlib
import re
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.lint import Finding, lint
from ocaffe.solver.first_losses import FirstLosses
from tests.data.small_databases import write
from tests.zoo.test_detection_project import label_map

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCENES = 30
NET, SOLVER, MAP = "net/train_val.prototxt", "net/solver.prototxt", "made/labelmap_voc.prototxt"
REGIONS, REGIONS_SOLVER = "regions/train_val.prototxt", "regions/solver.prototxt"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with small scenes, their databases and a project."""
    folder = tmp_path_factory.mktemp("detector")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["dataset", "shapes", "scenes", "--images", str(SCENES), "--size", "96x96", "--splits", "70,30,0"]) == 0
        assert main(["dataset", "voc", "scenes", "made"]) == 0
        assert main(["new", "ssd_shapes", "--data", "made", "--out", "net", "--batch", "4", "--iterations", "200"]) == 0
        assert main(["new", "faster_rcnn_zf", "--data", "made", "--out", "regions", "--size", "96"]) == 0
    return folder


@pytest.fixture
def here(made: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with the project. Tests may change all files."""
    for name in ("made", "net", "regions"):
        shutil.copytree(made / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(old: str, new: str, file: str = NET, count: int = -1) -> Callable[[], None]:
    """Return a mistake: a replacement of text, everywhere or in the first `count` places."""
    def mistake() -> None:
        path = pathlib.Path(file)
        changed = re.sub(old, new, path.read_text(), count=max(count, 0))
        assert changed != path.read_text(), old
        path.write_text(changed)

    return mistake


def boxes(change: Callable[[Any], None], part: str = "train", file: str = NET) -> Callable[[], None]:
    """Return a mistake: a database whose boxes are changed. `change` gets an annotation group with its annotations."""
    def mistake() -> None:
        database = open_database(f"made/{part}_lmdb", proto.DataParameter.LMDB)
        records = [proto.AnnotatedDatum.FromString(bytes(value)) for _, value in Reader(database).read(0, database.entries)]
        for record in records:
            for group in record.annotation_group:
                change(group)
        write(pathlib.Path("changed_lmdb"), [record.SerializeToString() for record in records])
        edit(f"made/{part}_lmdb", "changed_lmdb", file)()

    return mistake


def corners(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a change of each box (a NormalizedBBox) of a group."""
    def change_all(group: Any) -> None:
        for each in group.annotation:
            change(each.bbox)

    return change_all


def in_pixels(box: Any) -> None:
    for side in ("xmin", "ymin", "xmax", "ymax"):
        setattr(box, side, getattr(box, side) * 96)


def moved(box: Any) -> None:
    box.xmin, box.xmax = box.xmin * 1.4, box.xmax * 1.4


def inverted(box: Any) -> None:
    box.xmin, box.xmax = box.xmax, box.xmin


def difficult(box: Any) -> None:
    box.difficult = True


def all_of(*mistakes: Callable[[], None]) -> Callable[[], None]:
    def mistake() -> None:
        for each in mistakes:
            each()

    return mistake


def plain() -> None:
    """A database of convert_imageset: images without boxes."""
    database = open_database("made/train_lmdb", proto.DataParameter.LMDB)
    records = [proto.AnnotatedDatum.FromString(bytes(value)) for _, value in Reader(database).read(0, database.entries)]
    write(pathlib.Path("changed_lmdb"), [record.datum.SerializeToString() for record in records])
    edit("made/train_lmdb", "changed_lmdb")()


def classes(count: int) -> Callable[[], None]:
    """A number of classes that is given to all layers, of which confidences have 4 or 6 priors in a cell."""
    outputs = (edit(f"num_output: {boxes * 11}\\b", f"num_output: {boxes * count}") for boxes in (4, 6))
    return all_of(edit("classes: 11", f"classes: {count}"), edit("dim: 11", f"dim: {count}"), *outputs)


def sizes(lines: int, text: str) -> Callable[[], None]:
    """A name_size_file with so many equal lines."""
    def mistake() -> None:
        pathlib.Path("sizes.txt").write_text(text * lines)
        edit("evaluate_difficult_gt: false", 'evaluate_difficult_gt: false name_size_file: "sizes.txt"')()

    return mistake


class Case(NamedTuple):
    """A mistake, the rule that tells it ('' for an error of the net), a part of the fact, and a part of the remedy."""

    mistake: Callable[[], None]
    rule: str
    fact: str
    fix: str


CASES = {
    "boxes in pixels": Case(boxes(corners(in_pixels)), "wrong-boxes", "boxes are in pixels in all 21 records of changed_lmdb", "divide the corners by width"),
    "inverted boxes": Case(boxes(corners(inverted)), "wrong-boxes", "boxes are inverted", "exchange minimum and maximum"),
    "empty boxes": Case(boxes(corners(lambda box: box.Clear())), "wrong-boxes", "boxes are empty", "convert_annoset reads 12.5 as 0"),
    "boxes outside": Case(boxes(corners(moved)), "wrong-boxes", "boxes are outside of the image", "<size>"),
    "label not in the map": Case(
        boxes(lambda group: setattr(group, "group_label", group.group_label + 1)), "label-not-in-map",
        "has the label 11, made/labelmap_voc.prototxt has the labels 0 to 10", "the label map with which the database was made",
    ),
    "classes from 0": Case(
        boxes(lambda group: setattr(group, "group_label", group.group_label - 1)), "background-object", "have the label 0, which is the background",
        "number the classes from 1",
    ),
    "background not counted": Case(
        classes(10), "number-of-classes", "num_classes is 10, and made/labelmap_voc.prototxt has the labels up to 10",
        "num_classes: 11 (with the background) in all layers",
    ),
    "classes of another data set": Case(
        classes(21), "number-of-classes", "num_classes is 21", "num_classes: 11",
    ),
    "num_classes in one layer": Case(
        edit(r"(detection_evaluate_param {\s+)num_classes: 11", r"\1num_classes: 21"), "detector-settings-differ",
        "num_classes is 21, and num_classes of 'mbox_loss' (MultiBoxLoss) is 11", "num_classes: 11",
    ),
    "num_output of confidences": Case(
        edit("num_output: 44", "num_output: 84", count=1), "predictions-per-cell",
        "_mbox_priorbox' has 4 priors in a cell, each with 11 classes", "num_output: 44",
    ),
    "aspect ratio without outputs": Case(
        edit("    aspect_ratio: 2", "    aspect_ratio: 2 aspect_ratio: 3", count=1), "predictions-per-cell",
        "_mbox_priorbox' has 6 priors in a cell, each with 4 coordinates", "num_output: 24",
    ),
    "softmax over other classes": Case(edit("dim: 11", "dim: 44"), "detector-scores", "it makes rows of 44 confidences", "dim: 11"),
    "no softmax": Case(edit('bottom: "mbox_conf_flatten"', 'bottom: "mbox_conf"'), "detector-scores", "without a Softmax", "a Softmax with axis: 2"),
    "label map in another order": Case(
        edit('name: "0"', 'name: "3"', MAP, 2), "label-map-differs", "label 1 is '3' in made/labelmap_voc.prototxt, and '0' in labels.txt of made/",
        "the label map with which",
    ),
    "label maps of TRAIN and TEST": Case(
        all_of(
            lambda: pathlib.Path("map.prototxt").write_text(label_map(("background", 0), *((chr(label + 64), label) for label in range(1, 11)))) and None,
            lambda: pathlib.Path("made/train_lmdb/labels.txt").unlink(), edit(MAP, "map.prototxt", count=1),
        ), "label-map-differs", "label 1 is '0' in made/labelmap_voc.prototxt, and 'A' in map.prototxt of phase TRAIN", "the label map",
    ),
    "background of one layer": Case(
        edit(r"(detection_output_param {[^}]+)background_label_id: 0", r"\1background_label_id: 10"), "detector-settings-differ", "background_label_id is 10",
        "background_label_id: 0",
    ),
    "code of boxes in one layer": Case(
        edit(r"code_type: CENTER_SIZE", "code_type: CORNER", count=1), "detector-settings-differ",
        "code_type is CENTER_SIZE, and code_type of 'mbox_loss' (MultiBoxLoss) is CORNER", "code_type: CORNER",
    ),
    "database without boxes": Case(
        plain, "", "record 0 (key '00000000'): it is a Datum, an image without boxes", "`ocaffe dataset voc` or `ocaffe convert_annoset`"
    ),
    "no boxes": Case(boxes(lambda group: group.ClearField("annotation")), "no-objects", "no record has a box: all 21 records", "`ocaffe dataset show`"),
    "constraint drops all": Case(
        edit("emit_type: CENTER", "emit_type: MIN_OVERLAP emit_overlap: 1"), "no-objects",
        "100 % of the records have boxes, 0 % of 50 transformed images keep one", "emit_constraint",
    ),
    "all difficult": Case(boxes(corners(difficult), "val"), "no-objects", "all boxes are marked as difficult", "use_difficult_gt: true"),
    "priors too large": Case(
        all_of(edit(r"min_size: \d+", "min_size: 75"), edit(r"max_size: \d+", "max_size: 90")), "objects-without-prior",
        "overlap no prior by 0.5 (all 21 records of made/train_lmdb). A quarter has sides up to", "near the objects",
    ),
    "priors without an object": Case(
        all_of(edit(r"min_size: \d+", "min_size: 2", count=1), edit(r"max_size: \d+", "max_size: 3", count=1)), "priors-without-object",
        "its priors with sides of 2 to 2 pixels overlap no box by 0.5 (500 boxes of 300", "remove the layers of this map",
    ),
    "step of another size": Case(
        edit("offset: 0.5", "offset: 0.5 step: 99", count=1), "prior-steps", "cells with a step of 99 make", "remove step",
    ),
    "no eval_type": Case(edit('eval_type: "detection"', "", SOLVER), "detections-not-scored", "eval_type is 'classification', and", 'eval_type: "detection"'),
    "high confidence_threshold": Case(edit("threshold: 0.01", "threshold: 0.5"), "detections-cut", "confidence_threshold is 0.5", "0.01"),
    "sizes of another data set": Case(sizes(4952, "a 96 96\n"), "image-sizes-differ", "sizes.txt has 4,952 lines, made/val_lmdb has 9", "in the order of"),
    "test_iter": Case(edit(r"test_iter: \d+", "test_iter: 619", SOLVER), "test-set-not-covered", "some count twice", "test_iter: "),
    "resized to another size": Case(
        edit(r"(TEST }[\s\S]+?)height: 128\s+width: 128", r"\1height: 96 width: 96"), "transforms-differ", "its resize_param is 96 x 96, that of 'data'",
        "the same resize_param",
    ),
    "scale in one phase": Case(edit(r"(TEST }[\s\S]+?)scale: 0.0078125", r"\1"), "transforms-differ", "its scale is 1, that of 'data'", "the same scale"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_lint_tells(here: pathlib.Path, name: str) -> None:
    case = CASES[name]
    case.mistake()
    found = [each for each in lint(SOLVER) if each.rule == case.rule and case.fact in each.fact]
    assert found and case.fix in found[0].fix and found[0].place.file in (NET, SOLVER), "\n".join(map(str, lint(SOLVER)))


REGION_CASES = {
    "boxes in pixels": Case(boxes(corners(in_pixels), file=REGIONS), "wrong-boxes", "boxes are in pixels in all 21 records", "divide the corners by width"),
    "classes from 0": Case(
        boxes(lambda group: setattr(group, "group_label", group.group_label - 1), file=REGIONS), "background-object",
        "have the label 0, which is the background for 'input-data' (RoIData)", "number the classes from 1",
    ),
    "labels beyond num_classes": Case(
        boxes(lambda group: setattr(group, "group_label", group.group_label + 1), file=REGIONS), "", "a box has label 11, and num_classes is 11", "num_classes",
    ),
    "classes of another data set": Case(
        edit("'num_classes': 11", "'num_classes': 21", REGIONS), "number-of-classes",
        "num_classes is 21, and made/train_lmdb/labels.txt has the labels up to 10", "num_classes: 11 (with the background)",
    ),
    "num_classes of the sample": Case(
        edit("'num_classes': 11, 'bg", "'num_classes': 10, 'bg", REGIONS), "number-of-classes", "num_classes is 10", "num_classes: 11",
    ),
    "num_classes of the evaluation": Case(
        edit(r"(detection_evaluate_param {\s+)num_classes: 11", r"\1num_classes: 21", REGIONS), "number-of-classes", "num_classes is 21", "num_classes: 11",
    ),
    "all difficult": Case(boxes(corners(difficult), file=REGIONS), "no-objects", "all boxes are marked as difficult", "'use_diff': True"),
    "no boxes to test": Case(
        boxes(lambda group: group.ClearField("annotation"), "val", REGIONS), "no-objects", "no record has a box: all 9 records", "`ocaffe dataset show`",
    ),
    "no data": Case(edit("made/val_lmdb", "made/none_lmdb", REGIONS), "missing-data", "made/none_lmdb does not exist", "correct the name"),
    "one data set": Case(edit("made/val_lmdb", "made/train_lmdb", REGIONS), "tested-on-training-data", "it reads made/train_lmdb", "the test set"),
    "test_iter": Case(edit(r"test_iter: \d+", "test_iter: 5", REGIONS_SOLVER), "test-set-not-covered", "scores 5 of the 9 samples", "test_iter: 9"),
    "means in one phase": Case(
        edit("lmdb', ", "lmdb', 'pixel_means': [1.0, 2.0, 3.0], ", REGIONS, 1), "transforms-differ", "its pixel_means is 102.98", "the same pixel_means",
    ),
    "anchors of large images": Case(
        edit("'scales': \\[1.28, 2.56, 5.12\\]", "'scales': [8, 16, 32]", REGIONS), "objects-without-anchor",
        "no anchor lies inside one of the images", "larger images by 'scales' and 'max_size' of RoIData",
    ),
    "small anchors": Case(
        edit("'scales': \\[1.28, 2.56, 5.12\\]", "'scales': [0.25, 0.3, 0.35]", REGIONS), "objects-without-anchor",
        "boxes overlap no anchor inside their image by 0.3. With 'scales': [96] a quarter has sides up to", "larger images",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REGION_CASES)
def test_lint_tells_of_regions(here: pathlib.Path, name: str) -> None:
    case = REGION_CASES[name]
    case.mistake()
    found = [each for each in lint(REGIONS_SOLVER) if each.rule == case.rule and case.fact in each.fact]
    assert found and case.fix in found[0].fix and found[0].place.file in (REGIONS, REGIONS_SOLVER), "\n".join(map(str, lint(REGIONS_SOLVER)))


def test_python_layers_of_regions(here: pathlib.Path) -> None:
    """The layers of py-faster-rcnn's prototxts have the rules too."""
    edit('type: "RoIData"', "type: 'Python'", REGIONS)()
    edit("param_str:", "module: 'roi_data_layer.layer' layer: 'RoIDataLayer' param_str:", REGIONS, 2)()
    edit("made/val_lmdb", "made/none_lmdb", REGIONS)()
    assert [each.rule for each in lint(REGIONS_SOLVER)] == ["missing-data"]


def test_flags_of_py_faster_rcnn(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--imdb and --cfg change the net as in a training."""
    edit(", 'source': 'made/train_lmdb'", "", REGIONS)()
    edit('type: "RoIData"', "type: 'Python'", REGIONS, 1)()
    edit("param_str:", "module: 'roi_data_layer.layer' layer: 'RoIDataLayer' param_str:", REGIONS, 1)()
    assert main(["lint", REGIONS_SOLVER, "--imdb", "made/train_lmdb"]) == 0
    pathlib.Path("small.yml").write_text("TRAIN:\n  SCALES: [24]\n  MAX_SIZE: 40\n")
    capsys.readouterr()
    assert main(["lint", REGIONS_SOLVER, "--imdb", "made/train_lmdb", "--cfg", "small.yml"]) == 1
    assert "objects-without-anchor" in capsys.readouterr().out
    assert main(["lint", REGIONS_SOLVER, "--imdb", "made/none_lmdb"]) == 1
    assert "missing-data" in capsys.readouterr().out


def test_right_projects(here: pathlib.Path) -> None:
    """There are no false alarms for the zoo's nets."""
    assert not lint(REGIONS_SOLVER)
    for net in ("ssd_shapes", "mobilenet_ssd", "ssd300_vgg16"):
        assert main(["new", net, "--data", "made", "--out", f"{net}_2", "--batch", "4"]) == 0
        findings: list[Finding] = lint(f"{net}_2/solver.prototxt")
        assert not findings, "\n".join(map(str, findings))


def test_yolo_counts_no_background(here: pathlib.Path) -> None:
    data, _, _ = SMALL.partition("layer { name: \"conv1\"")
    loss = 'layer { name: "loss" type: "RegionLoss" bottom: "data" bottom: "label" region_loss_param { num_class: 11 num: 1 } }'
    pathlib.Path("net.prototxt").write_text(data + loss)
    (found,) = [each for each in lint("net.prototxt") if each.rule == "number-of-classes"]
    assert "num_class is 11" in found.fact and "num_class: 10 (without the background)" in found.fix


@pytest.mark.parametrize(
    ("losses", "began", "new", "words"),
    [
        ([10, 9, 8, 9] * 5, 0, True, []),
        ([10, 25, 22, 21, 20, 24], 0, True, ["Iteration 5: the loss grew from 10 to 22.4"]),
        ([10, 25, 22, 21, 20, 24], 0, False, []),  # the net was trained before: batches differ more
        ([10, 25, 22, 21, 20, 24], 3, True, []),  # a training that is resumed
        ([1, 2, 1, 2, 1, 30, 30, 30, 30, 30], 0, False, ["Iteration 8: the loss grew from 1 to 24.2"]),
        ([0] * 12, 0, True, ["Iteration 9: the loss was 0"]),
        ([0] * 9 + [1, 0], 0, True, []),
        ([3, float("nan"), float("inf"), 900], 0, True, ["Iteration 1: the loss is nan"]),
    ],
)
def test_first_losses(losses: list[float], began: int, new: bool, words: list[str]) -> None:
    parameter = object()
    layer = SimpleNamespace(type="MultiBoxLoss", param=proto.LayerParameter(type="MultiBoxLoss"))
    graph = SimpleNamespace(nodes=[SimpleNamespace(layer=layer, tops=[SimpleNamespace(loss_weight=1)])], params=[parameter])
    watched = FirstLosses(proto.SolverParameter(base_lr=0.1), graph, set() if new else {id(parameter)})  # type: ignore[arg-type]
    told = [text for iteration, loss in enumerate(losses, began) for text in watched.add(loss, iteration)]
    assert len(told) == len(words) and all(text.startswith(word) for text, word in zip(told, words)), told


# Mistakes that training tells. A small net learns from the same boxes.

HEAD = """layer { name: "{0}" type: "Convolution" bottom: "conv2" top: "{0}"
  convolution_param { num_output: {1} kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "{0}_perm" type: "Permute" bottom: "{0}" top: "{0}_perm" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "{0}_flat" type: "Flatten" bottom: "{0}_perm" top: "{0}_flat" }
"""
SMALL = """layer { name: "data" type: "AnnotatedData" top: "data" top: "label"
  transform_param { scale: 0.0078125 mean_value: 128 resize_param { height: 64 width: 64 } emit_constraint { emit_type: CENTER } }
  data_param { source: "made/train_lmdb" batch_size: 4 backend: LMDB } annotated_data_param { label_map_file: "made/labelmap_voc.prototxt" } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" param { lr_mult: 1 }
  convolution_param { num_output: 16 kernel_size: 4 stride: 4 weight_filler { type: "msra" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" relu_param { negative_slope: 0.2 } }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2"
  convolution_param { num_output: 16 kernel_size: 2 stride: 2 weight_filler { type: "msra" } } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" relu_param { negative_slope: 0.2 } }
""" + HEAD.replace("{0}", "loc").replace("{1}", "16") + HEAD.replace("{0}", "conf").replace("{1}", "44") + """
layer { name: "prior" type: "PriorBox" bottom: "conv2" bottom: "data" top: "prior"
  prior_box_param { min_size: 10 max_size: 20 aspect_ratio: 2 variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 } }
layer { name: "mbox_loss" type: "MultiBoxLoss" bottom: "loc_flat" bottom: "conf_flat" bottom: "prior" bottom: "label" top: "mbox_loss"
  propagate_down: true propagate_down: true propagate_down: false propagate_down: false
  multibox_loss_param { num_classes: 11 code_type: CENTER_SIZE mining_type: MAX_NEGATIVE } }
"""
RATE = 0.03  # ten times as much is too high


def told(capfd: pytest.CaptureFixture[str], device: Any, rate: float = RATE, iterations: int = 50) -> str:
    """Train `net.prototxt`, and return the warnings in the log and the message of an error."""
    pathlib.Path("solver.prototxt").write_text(f"""net: "net.prototxt" base_lr: {rate} momentum: 0.9 lr_policy: "fixed" max_iter: {iterations} display: 10
        random_seed: 1 snapshot_after_train: false""")
    capfd.readouterr()
    main(["train", "--solver", "solver.prototxt", f"--device={device.number}", "--quiet"])
    lines = capfd.readouterr().err.splitlines()
    return "\n".join(line for line in lines if line.startswith(("W", "error", " ")))


@pytest.fixture
def small(here: pathlib.Path) -> None:
    pathlib.Path("net.prototxt").write_text(SMALL)


def test_a_good_rate(small: None, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert not told(capfd, device)


def test_a_rate_ten_times_too_high(small: None, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """The growth of the loss is told before it is NaN."""
    grown, lost, *_ = told(capfd, device, 10 * RATE, 20).splitlines()
    assert re.search(r"Iteration \d: the loss grew from 16\.\d* to \d+.* with base_lr 0\.3: lower it to 0\.03, or set warmup_iter or clip_gradients", grown)
    assert re.search(r"Iteration \d+: the loss is -?(nan|inf) with base_lr 0\.3; .*a lower base_lr, warmup_iter or clip_gradients", lost)


def test_a_loss_that_stays_zero(small: None, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    edit("emit_type: CENTER", "emit_type: MIN_OVERLAP emit_overlap: 1", "net.prototxt")()
    said = told(capfd, device, iterations=12)
    assert "Iteration 9: the loss was 0 in all iterations: no box of the batches matches a prior; `ocaffe lint` with this solver checks boxes" in said


def test_frozen_layers_without_weights(small: None, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    edit("lr_mult: 1", "lr_mult: 0", "net.prototxt")()
    said = told(capfd, device, iterations=1)
    assert "so these layers keep random values of their fillers: 'conv1'; give --weights, or remove lr_mult: 0" in said


def test_label_of_no_class(small: None, device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    edit("num_classes: 11", "num_classes: 10", "net.prototxt")()
    edit("num_output: 44", "num_output: 40", "net.prototxt")()
    said = told(capfd, device)
    assert "its label is 10; layer 'mbox_loss' (MultiBoxLoss) has 10 classes: labels 0 to 9, but not 0" in said and "raise num_classes and num_output" in said


def test_the_page_names_each_mistake() -> None:
    """docs/detection-mistakes.md has the rules and the words of the warnings."""
    page = (ROOT / "docs" / "detection-mistakes.md").read_text()
    missing = {f"`{case.rule}`" for case in (*CASES.values(), *REGION_CASES.values()) if case.rule} - set(re.findall("`[a-z-]+`", page))
    words = ("the loss grew from", "the loss is nan", "the loss was 0", "these layers keep random values", "it is a Datum", "its label is")
    assert not missing and all(each in page for each in words), missing
