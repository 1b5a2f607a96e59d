"""Scores over a whole test: average precision of detectors, mean IoU of segmentations; in the log, in records, for best_output, and in `ocaffe test`."""
from __future__ import annotations

import pathlib
import re
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ocaffe import log, proto, pylayer
from ocaffe.cli import main
from ocaffe.compiler.inputs import Inputs
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.layers.detection_evaluate import DetectionEvaluate
from ocaffe.parallel.world import World
from ocaffe.solver.scoring import restart_scores
from ocaffe.solver.solver import Solver
from tests.layers.test_detection_evaluate import judge, precision_of

TRAIN = """
layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 1 } data_filler { value: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 1 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "t" top: "loss" }
"""
DETECTOR = """
layer { name: "rows" type: "Python" top: "det" top: "gt" include { phase: TEST } python_param { module: "tests.solver.test_scores" layer: "Rows" } }
layer { name: "eval" type: "DetectionEvaluate" bottom: "det" bottom: "gt" top: "detection_eval" include { phase: TEST }
        detection_evaluate_param { num_classes: 4 evaluate_difficult_gt: false } }
"""
SEGMENTER = """
layer { name: "maps" type: "Python" top: "scores" top: "labels" include { phase: TEST } python_param { module: "tests.solver.test_scores" layer: "Maps" } }
layer { name: "seg" type: "SegAccuracy" bottom: "scores" bottom: "labels" top: "seg" include { phase: TEST } seg_accuracy_param { ignore_label: 255 } }
"""
BATCHES: list[tuple[list[list[float]], list[list[float]]]] = [  # class 3 has neither true boxes nor detections
    ([[0, 1, 0.9, 0, 0, 0.5, 0.5], [0, 1, 0.8, 0, 0, 0.5, 0.45], [0, 2, 0.7, 0.5, 0.5, 1, 1]],
     [[0, 1, 0, 0, 0, 0.5, 0.5, 0], [0, 2, 0, 0.5, 0.5, 0.9, 1, 1], [1, 1, 0, 0.2, 0.2, 0.4, 0.4, 0]]),
    ([[0, -1, -1, -1, -1, -1, -1], [1, -1, -1, -1, -1, -1, -1]], [[0, 2, 0, 0, 0, 0.5, 0.5, 0]]),
    ([[0, 2, 0.6, 0, 0, 0.5, 0.5], [1, 1, 0.95, 0, 0, 0.5, 0.5]], [[0, 2, 0, 0, 0, 0.5, 0.5, 0], [1, 1, 0, 0, 0, 0.4, 0.5, 0]]),
]  # fmt: skip


class Rows(pylayer.Layer):
    """Detections and true boxes, one of BATCHES in each pass."""

    def setup(self, bottom: Any, top: Any) -> None:
        self.passes = 0

    def reshape(self, bottom: Any, top: Any) -> None:
        for blob, rows in zip(top, BATCHES[self.passes % 3]):
            blob.reshape(1, 1, *np.shape(rows))

    def forward(self, bottom: Any, top: Any) -> None:
        for blob, rows in zip(top, BATCHES[self.passes % 3]):
            blob.data[0, 0] = rows
        self.passes += 1


def maps(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and labels of a batch. Class 4 does not occur."""
    rng = np.random.default_rng(number)
    labels = rng.choice([0, 1, 2, 3, 255][: 3 + number % 3], (2, 1, 5, 6))
    scores = rng.normal(0, 1, (2, 5, 5, 6)) - 9 * (np.arange(5) == 4)[None, :, None, None]
    return np.float32(scores), np.float32(labels)


class Maps(pylayer.Layer):
    """Scores and labels of a segmentation."""

    def setup(self, bottom: Any, top: Any) -> None:
        self.passes = 0

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(2, 5, 5, 6)
        top[1].reshape(2, 1, 5, 6)

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].data[...], top[1].data[...] = maps(self.passes % 3)
        self.passes += 1


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(device: Any, layers: str, extra: str = "", tests: int = 1) -> Solver:
    pathlib.Path("net.prototxt").write_text(TRAIN + layers)
    text = f'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" snapshot_prefix: "snap" test_interval: 2 {"test_iter: 3 " * tests} {extra}'
    return Solver(parse(text, proto.SolverParameter, "solver.prototxt"), device, file="solver.prototxt")


def mean_ap(version: str, batches: int = 3) -> tuple[list[float], float]:
    """Return the AP of each class, and their mean."""
    rows = [judge(detections, truth, 0.5, False) for detections, truth in BATCHES[:batches]]
    found = [precision_of(rows, label, version) for label in (1, 2, 3)]
    return found, sum(found) / 3


@pytest.mark.parametrize("version", ["11point", "MaxIntegral", "Integral"])
def test_average_precision(device: Any, capsys: pytest.CaptureFixture[str], version: str) -> None:
    """Two TEST nets, over three batches each, twice. A class without true boxes counts as 0; without detections it has a warning and no line."""
    solver = make(device, DETECTOR, f'eval_type: "detection" ap_version: "{version}" show_per_class_result: true max_iter: 2', tests=2)
    records: list[dict[str, Any]] = []
    solver.on_record = records.append
    try:
        solver.solve()
    finally:
        solver.close()
    each, mean = mean_ap(version)
    assert 0 < mean < 1 and each[0] not in (0, 1)
    tests = [record for record in records if record["phase"] == "test"]
    assert [record["net"] for record in tests] == [0, 1, 0, 1]
    assert all(record["outputs"]["detection_eval"] == [pytest.approx(mean)] for record in tests)
    assert tests[0]["average_precision"] == {"detection_eval": {label: pytest.approx(each[label - 1]) for label in (1, 2, 3)}}
    text = re.sub(r"^[IW].*?\] ", "", capsys.readouterr().err, flags=re.MULTILINE)
    one, two, whole = (log.number(np.float32(value)) for value in (each[0], each[1], mean))
    assert text.count(f"class1: {one}\nclass2: {two}\n    Test net output #0: detection_eval = {whole}") == 4
    assert text.count("Missing true_pos for label: 3") == 4 and "class3" not in text


def test_best_snapshot(device: Any) -> None:
    """A larger mean AP is better: the snapshot is that of the first test, and training stops after two more tests that are no better."""
    solver = make(device, DETECTOR, 'eval_type: "detection" max_iter: 100 best_output: "detection_eval" early_stopping: 2 snapshot_after_train: false')
    try:
        solver.solve()
        assert solver.iter == 4 and solver.best is not None and solver.best.iteration == 0
        assert solver.best.value == pytest.approx(mean_ap("Integral")[1])
    finally:
        solver.close()
    assert [path.name for path in pathlib.Path().glob("snap_best*.caffemodel")] == ["snap_best_iter_0.caffemodel"]


def test_mean_iou(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The mean IoU is that of the pixels of all batches. Classes that do not occur do not count. best_output may name it."""
    solver = make(device, SEGMENTER, 'max_iter: 1 best_output: "seg/mean_iou"')
    records: list[dict[str, Any]] = []
    solver.on_record = records.append
    try:
        solver.solve()
    finally:
        solver.close()
    scores, labels = (np.concatenate(each) for each in zip(*(maps(number) for number in range(3))))
    best, labels = scores.argmax(1)[:, None], labels.astype(int)
    kept = labels != 255
    iou = [((best == c) & (labels == c) & kept).sum() / (((best == c) | (labels == c)) & kept).sum() for c in range(4)]
    outputs = records[0]["outputs"]
    assert outputs["seg/mean_iou"] == [pytest.approx(np.mean(iou))] and len(outputs["seg"]) == 3
    assert abs(outputs["seg"][2] - np.mean(iou)) > 0.01, "not the mean of the batches"
    assert f"]     Test net output #4: seg/mean_iou = {log.number(np.float32(np.mean(iou)))}\n" in capsys.readouterr().err
    assert pathlib.Path("snap_best_iter_0.caffemodel").exists()


@pytest.mark.parametrize(
    ("layers", "extra", "told"),
    [
        (DETECTOR, "", "eval_type is 'classification', and output 'detection_eval' of TEST net 0 is the top of DetectionEvaluate"),
        (SEGMENTER, 'eval_type: "detection"', "no output of TEST net 0 is the top of DetectionEvaluate; its outputs: loss, seg"),
        (DETECTOR, 'eval_type: "parsing"', "eval_type is 'parsing'\n  fix: set eval_type to one of classification, detection"),
        (DETECTOR, 'eval_type: "detection" ap_version: "12point"', "ap_version is '12point'\n  fix: set ap_version to one of Integral, MaxIntegral, 11point"),
        (SEGMENTER, 'best_output: "seg"', "best_output 'seg' is 1 x 1 x 1 x 3, not one number"),
    ],
)
def test_mistakes(device: Any, layers: str, extra: str, told: str) -> None:
    with pytest.raises(Error, match=told):
        make(device, layers, extra)


@pytest.mark.parametrize(
    ("layers", "extra", "told"),
    [
        (DETECTOR.replace("num_classes", 'name_size_file: "sizes.txt" num_classes'), 'eval_type: "detection"', "name_size_file needs all batches in order"),
        (SEGMENTER.replace("ignore_label", "reset: false ignore_label"), "", "reset: false needs all batches in order"),
    ],
)
def test_ranks(device: Any, layers: str, extra: str, told: str) -> None:
    """Several ranks share the batches of a test."""
    pathlib.Path("sizes.txt").write_text("1 30 40\n")
    solver = make(device, layers, extra)
    try:
        with pytest.raises(Error, match=told):
            restart_scores(solver.test_networks[0], cast(World, SimpleNamespace(several=True, size=2)))
    finally:
        solver.close()


def test_sizes_of_a_test(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test begins with the size of its own first image, also in a training that goes on from a snapshot."""
    pathlib.Path("sizes.txt").write_text("1 30 40\n2 50 60\n3 70 80\n")
    solver = make(device, DETECTOR.replace("num_classes", 'name_size_file: "sizes.txt" num_classes'), 'eval_type: "detection"')
    try:
        network = solver.test_networks[0]
        monkeypatch.setattr(Inputs, "cursor", {"rows": 5})  # batches of one image that were read before
        restart_scores(network, solver.world)
        (layer,) = (node.layer for node in network.graph.nodes if isinstance(node.layer, DetectionEvaluate))
        assert [layer._next_size() for _ in range(2)] == [(70, 80), (30, 40)]
    finally:
        solver.close()


def test_outputs_without_a_mean(device: Any) -> None:
    """An output whose number of values changes from batch to batch."""
    solver = make(device, DETECTOR.partition('layer { name: "eval"')[0])
    try:
        with pytest.raises(Error, match="output 'det' has 14 values in batch 1, and 21 in those before"):
            solver.test_all()
    finally:
        solver.close()


def command(layers: str, *flags: str) -> list[str]:
    pathlib.Path("net.prototxt").write_text(TRAIN + layers)
    weights = proto.NetParameter(layer=[proto.LayerParameter(name="ip")])
    weights.layer[0].blobs.add(data=[0, 0, 0]).shape.dim.extend([1, 3])
    weights.layer[0].blobs.add(data=[0]).shape.dim.extend([1])
    pathlib.Path("net.caffemodel").write_bytes(weights.SerializeToString())
    return ["test", "--model", "net.prototxt", "--weights", "net.caffemodel", "--iterations", "3", *flags]


def test_the_command(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`ocaffe test` prints the mean AP and a table of the classes."""
    assert main(command(DETECTOR, "--ap-version=11point", "--per-class")) == 0
    out = capsys.readouterr().out
    each, mean = mean_ap("11point")
    assert re.search(rf"^detection_eval +{mean:.6g} +-$", out, re.M) and re.search(r"^loss +[\d.]+ +0 *$", out, re.M)
    assert re.search(rf"^1 +3 +3 +{100 * each[0]:.1f} %\n2 +2 +1 +{100 * each[1]:.1f} %\n3 +0 +0 +0.0 %\nall +5 +4 +{100 * mean:.1f} %$", out, re.M)
    assert main(command(SEGMENTER, "--per-class")) == 0
    out = capsys.readouterr().out
    assert re.search(r"^seg/mean_iou +0\.\d+ +-$", out, re.M) and re.search(r"^4 +0 +0 +- +-\nall +\d+ +\d+ +[\d.]+ % +[\d.]+ %$", out, re.M)
    assert main(command(DETECTOR, "--ap-version=7point")) == 1
    assert "one of Integral, MaxIntegral, 11point" in capsys.readouterr().err
    assert main(command("", "--per-class")) == 1
    assert "no layer Accuracy, DetectionEvaluate or SegAccuracy" in capsys.readouterr().err
