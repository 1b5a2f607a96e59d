"""The list of operators of TensorRT: exported models keep it, and each restriction is found."""
from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import numpy as np
import onnx
import pytest

from ocaffe.cli import main
from ocaffe.convert import model as files
from ocaffe.convert.export import Options, export
from ocaffe.convert.tensorrt import MOST_OF_TOPK, RESTRICTIONS, TYPES, VERSION, dynamic, unlisted
from tests.convert.test_convert import ROOT, small  # noqa: F401
from tests.convert.test_golden import GOLDEN, exported, one_of_each
from tests.docs.test_after_opencv5 import classifier, convolution, layer, net
from tests.test_golden import TOLERANCE, Case

PAGE = ROOT / "docs" / "after-tensorrt.md"
KNOWN = {"PSROIPooling": "double precision", "Filter": "Compress: it is not in the list", "Pooling": "indices"}  # types whose nodes may not be listed


def parsed(text: str, opset: int = 17, kind: str = "float", **constants: Any) -> Any:
    head = f'<ir_version: 8, opset_import: ["": {opset}, "com.example": 1]>'
    made = onnx.parser.parse_model(f"{head} net ({kind}[1, 4, 8, 8] x) => (float[a, b, c, d] y) {{ {text} }}")
    made.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())
    return made


@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("name", one_of_each())
def test_exported_layers(name: str, fp16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    monkeypatch.syspath_prepend(str(GOLDEN / "layers"))
    case = Case(GOLDEN / f"{name}.npz", TOLERANCE)
    missing = unlisted(exported(case, fp16=fp16).model)
    kind = pathlib.Path(name).name.split(".")[0].split("-")[0]
    assert all(KNOWN.get(kind, "nothing") in text for text in missing), missing


@pytest.mark.parametrize("text, kind, constants, said", [
    ("y = Relu(x)", "float", {}, ""),
    ("y = MaxRoiPool<pooled_shape=[2, 2]>(x, r)", "float", {"r": np.zeros((1, 5), np.float32)}, "MaxRoiPool: it is not in the list (1, first 'y')"),
    ("y = com.example.Detect(x)", "float", {}, "Detect: it is not in the list"),
    ("d = Cast<to=11>(x) e = Exp(d) y = Cast<to=1>(e)", "float", {}, "Exp: it computes in double precision"),
    ("f = Cast<to=1>(x) i = Cast<to=5>(f) j = Add(i, i) y = Cast<to=1>(j)", "float", {}, "Cast: it does not take INT16"),
    ("i = Cast<to=7>(x) j = Sqrt(i) y = Identity(x)", "float", {}, "Sqrt: it does not take INT64"),
    ("y, i = MaxPool<kernel_shape=[2, 2]>(x)", "float", {}, "MaxPool: it has no indices as a second output"),
    ("y = MaxPool<kernel_shape=[2, 2], dilations=[2, 2]>(x)", "float", {}, "MaxPool: its dilations must be 1"),
    ("f = Flatten<axis=2>(x) y = MaxPool<kernel_shape=[2]>(f)", "float", {}, "MaxPool: it pools images and volumes alone"),
    ("f = Flatten(x) v, i = TopK(f, k) y = Identity(x)", "float", {"k": np.array([MOST_OF_TOPK + 1])}, "TopK: it takes at most 3839 values, here 3840"),
    ("f = Flatten(x) v, i = TopK<sorted=0>(f, k) y = Identity(x)", "float", {"k": np.array([3])}, "TopK: sorted must be 1"),
    ('y = Resize<mode="cubic">(x, , s)', "float", {"s": np.ones(4, np.float32)}, "Resize: it does not take mode cubic"),
    ('y = ScatterND<reduction="add">(x, p, u)', "float", {"p": np.zeros((1, 4), np.int64), "u": np.ones(1, np.float32)}, "ScatterND: it has no reduction"),
    ("s = Shape(x) r = ReduceSum(x, s) y = Identity(x)", "float", {}, "ReduceSum: its input 1 must be a constant"),
    ("y, m = LayerNormalization(x, g)", "float", {"g": np.ones(8, np.float32)}, "LayerNormalization: it has one output"),
])  # fmt: skip
def test_restrictions(text: str, kind: str, constants: dict[str, Any], said: str) -> None:
    missing = unlisted(parsed(text, kind=kind, **constants))
    assert any(text.startswith(said) for text in missing) if said else missing == []


def test_recurrent_layers_and_opsets() -> None:
    """A node in a loop counts too."""
    lstm = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2, layout=1)
    inner = onnx.helper.make_graph([lstm], "inner", [], [onnx.helper.make_tensor_value_info("y", 1, None)])
    graph = onnx.helper.make_graph([onnx.helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)], "net", [], [])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    assert unlisted(model) == ["opset 21: it takes 9 to 20 (--opset 17)", "LSTM: layout must be 0 (2, first 'y')"]


def test_a_damaged_constant_is_of_no_interest() -> None:
    model = parsed("f = Flatten(x) v, i = TopK(f, k) y = Identity(x)", k=np.array([9000]))
    assert unlisted(model)
    model.graph.initializer[0].raw_data = b"1"
    assert unlisted(model) == []


def test_restrictions_are_of_listed_operators() -> None:
    assert set(RESTRICTIONS) <= set(TYPES) and len(TYPES) == 150


def test_the_command_and_the_summary(small: Any, device: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    """Labels and preprocessing are in the file, also if its weights are in another one."""
    prototxt, weights = small()
    record = {"size": [3, 9, 9], "resize": [9, 9], "mean": [1, 2, 3], "scale": 0.5, "channel_order": "BGR", "labels": ["a cat", "a dog"]}
    (tmp_path / "net.json").write_text(json.dumps(record))
    target = str(tmp_path / "m.onnx")
    assert main(["convert", prototxt, weights, target, "--device", str(device.number)]) == 0
    assert VERSION not in capsys.readouterr().out
    names: dict[str, Any] = {}
    program = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[1]
    exec(program.replace("model.onnx", target), names)
    assert names["labels"] == ["a cat", "a dog"] and names["preprocessing"] == "3 x 9 x 9 values from 0 to 255, BGR, minus 1, 2, 3, times 0.5"
    assert main(["convert", "--summary", target]) == 0
    said = capsys.readouterr().out
    assert "labels: a cat, a dog\n" in said and "preprocessing: 3 x 9 x 9 values" in said and f"{VERSION} lists all of its operators" in said
    assert files.detached(onnx.load(target), "w")[0].metadata_props == onnx.load(target).metadata_props
    assert main(["convert", prototxt, weights, target, "--force", "--bake-preprocessing", "--device", str(device.number)]) == 0
    assert [entry.key for entry in onnx.load(target).metadata_props] == ["labels"]


def test_a_note_names_what_is_not_listed(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "data" type: "Input" top: "data" top: "rois" input_param { shape { dim: 1 dim: 18 dim: 8 dim: 8 } shape { dim: 2 dim: 5 } } }\n'
        'layer { name: "ps" type: "PSROIPooling" bottom: "data" bottom: "rois" top: "ps" '
        'psroi_pooling_param { spatial_scale: 0.25 output_dim: 2 group_size: 3 } }')  # fmt: skip
    assert main(["convert", str(tmp_path / "net.prototxt"), str(tmp_path / "m.onnx"), "--noverify"]) == 0
    assert "note: TensorRT 10.1 does not list" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "net.prototxt"), str(tmp_path / "n.onnx"), "--verify-in=tensorrt"]) == 1
    assert "--summary" in capsys.readouterr().err


def test_detections_are_dynamic() -> None:
    case = Case(GOLDEN / "forks" / "Net-SSD-TEST-corner.npz", TOLERANCE)
    model = exported(case).model
    assert dynamic(model) and unlisted(model) == [] and not dynamic(exported(case, raw_detection=True).model)


DETECTNET = net(
    3, 64, 96, convolution("conv1", "data", 8, 7, 4), layer("relu1", "ReLU", "conv1"),
    layer("norm1", "LRN", "relu1", "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }"), convolution("conv2", "norm1", 8, 3, 4),
    convolution("cvg", "conv2", 2, 1), layer("coverage", "Sigmoid", "cvg"), convolution("bboxes", "conv2", 4, 1),
    layer("list", "Python", "coverage bboxes", 'python_param { module: "caffe.layers.detectnet.clustering" layer: "ClusterDetections" }'),
)  # fmt: skip


def test_the_page(tmp_path: pathlib.Path) -> None:
    """The nets of the page are in the list, and the program of the page decodes a DetectNet."""
    (tmp_path / "d.prototxt").write_text(DETECTNET)
    detector = export(str(tmp_path / "d.prototxt"), None, Options(fillers=True, cut_at=["coverage", "bboxes"]))
    assert [info.name for info in detector.model.graph.output] == ["coverage", "bboxes"] and unlisted(detector.model) == []
    (tmp_path / "c.prototxt").write_text(classifier(10))
    for options in (Options(fillers=True), Options(fillers=True, fp16=True), Options(fillers=True, dynamic_batch=True)):
        assert unlisted(export(str(tmp_path / "c.prototxt"), None, options).model) == []
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0], names)
    rng = np.random.default_rng(0)
    coverage, distances = rng.random((1, 2, 4, 6)), rng.standard_normal((1, 4, 4, 6))
    labels, scores, boxes = names["boxes"](coverage, distances)
    expected = [
        (label, coverage[0, label, row, column], *(distances[0, :, row, column] + 16 * np.array([column, row, column, row])))
        for label in range(2) for row in range(4) for column in range(6) if coverage[0, label, row, column] > 0.5
    ]  # fmt: skip
    assert np.allclose(np.column_stack([labels, scores, boxes]), expected)
