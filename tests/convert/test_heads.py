"""Detectors with the operators of YOLO and NanoDet exports become Caffe nets that compute the same."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript", reason="PyTorch's exporter needs it")
pytest.importorskip("torch", reason="PyTorch makes the models")

from ocaffe.cli import main  # noqa: E402
from ocaffe.convert.detector import decoding_note, raw_outputs  # noqa: E402
from ocaffe.convert.import_model import import_net  # noqa: E402
from ocaffe.convert.importer.read import read_model  # noqa: E402
from ocaffe.errors import Error  # noqa: E402
from tests.convert import heads  # noqa: E402

pytestmark = pytest.mark.unoptimised
OTHERS = [  # opset, decoded, dynamo, open batch
    (11, True, False, False), (16, True, False, True), (18, False, False, False), (18, True, True, True), (20, False, True, False),
]  # fmt: skip


@pytest.mark.parametrize("name", heads.MODELS)
def test_models(name: str, device: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The comparison runs the net at a second batch too. The note of a net that does not take it is missing."""
    onnx.save(heads.MODELS[name](), tmp_path / "m.onnx")
    assert main(["convert", *(str(tmp_path / f"m.{kind}") for kind in ("onnx", "prototxt", "caffemodel")), "--device", device.number]) == 0
    said = capsys.readouterr().out
    assert "equal to ocaffe's outputs in onnxruntime" in said and "takes only the batch" not in said


@pytest.mark.parametrize("turn", [0, 2])
@pytest.mark.parametrize("name", heads.MODELS)
def test_other_exports(name: str, turn: int, tmp_path: Path) -> None:
    """Each form of an export becomes a net that takes any batch. Each model has two of the forms."""
    opset, decoded, dynamo, open_batch = OTHERS[(list(heads.MODELS).index(name) + turn) % len(OTHERS)]
    onnx.save(heads.model(name, opset, decoded, dynamo, open_batch), tmp_path / "m.onnx")
    assert not import_net(read_model(tmp_path / "m.onnx"), "m.onnx").fixed


# -- the raw head ------------------------------------------------------------------------------------------------------

DECODED = [name for name in heads.MODELS if name != "yolov8-raw"]
PLAIN: dict[str, Any] = {"decoded": True}
OPEN: dict[str, Any] = PLAIN | {"opset": 16, "open_batch": True}
DYNAMO: dict[str, Any] = PLAIN | {"opset": 18, "dynamo": True}
EXPORTS = [*((name, PLAIN) for name in DECODED), *((name, form) for name in ("yolov5-focus", "yolov8") for form in (OPEN, DYNAMO)), ("nanodet-plus", {})]


def values_of(raw: np.ndarray, anchors: int) -> np.ndarray:
    """Return values x anchors x H x W of a raw output."""
    _, channels, height, width = raw.shape
    return raw.reshape(anchors, channels // anchors, height, width).swapaxes(0, 1)


def computed(note: list[str], raw: dict[str, np.ndarray]) -> np.ndarray:
    """Return values x boxes by the formulas of a note, as a reader of the note computes them."""
    text = "\n".join(note)
    lines = [re.fullmatch(r" *output0\[\d+:\d+\] = (.*)", line) for line in note]
    anchors = {float(stride): np.array([list(map(float, pair.split(" x "))) for pair in pairs.split(", ")])
               for stride, pairs in re.findall(r"anchors of stride (\d+): (.*)", text)}  # fmt: skip
    split, bins = re.search(r"is (\d+) x \d+ values", text), re.search(r"of each (\d+) values", text)
    levels: dict[float, dict[str, np.ndarray]] = {}
    for letter, name, stride in re.findall(r"  (\w): (\S+) [\dx ]+, stride (\d+)", text):
        levels.setdefault(float(stride), {})[letter] = values_of(raw[name], int(split[1]) if split else 1)
    found = []
    for stride, letters in levels.items():
        _, _, height, width = letters["a"].shape
        row, column = (place[None, None] for place in np.indices((height, width)))

        def softmax(x: np.ndarray) -> np.ndarray:
            assert bins is not None
            x = np.exp(x.reshape(-1, int(bins[1]), *x.shape[1:]))
            return x / x.sum(1, keepdims=True)

        names = {
            "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "exp": np.exp, "clip": np.clip, "softmax": softmax, "stride": stride, "row": row, "column": column,
            "mean": lambda x: (x * np.arange(x.shape[1]).reshape(-1, 1, 1, 1)).sum(1), "grid": np.concatenate([column, row]), **letters,
            "anchors": anchors[stride].T[:, :, None, None] if anchors else None,
        }  # fmt: skip
        parts = [eval(line[1], {}, names) for line in lines if line is not None]
        parts = [part if part.ndim == 4 else part[None] for part in parts]
        found.append(np.concatenate(parts).reshape(sum(map(len, parts)), -1))
    return np.concatenate(found, 1)


@pytest.mark.parametrize("name, form", EXPORTS)
def test_the_note_computes_the_boxes(name: str, form: dict[str, Any], tmp_path: Path) -> None:
    """The formulas of the note, evaluated on the raw outputs, are the outputs of the model."""
    onnx.save(heads.model(name, **form), tmp_path / "m.onnx")
    model = read_model(tmp_path / "m.onnx")
    raw = raw_outputs(model, "m.onnx")
    note = decoding_note(model, "m.onnx", {}, raw)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in raw)
    image = np.random.default_rng(0).random(heads.IMAGE, np.float32)
    expected, *values = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"images": image})
    found, expected = computed(note, dict(zip(raw, values))), expected[0] if len(expected[0]) < 50 else expected[0].T
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-3


@pytest.mark.parametrize("name, count", [("yolov5", 3), ("yolox", 9), ("yolov8-raw", 6)])
def test_raw_detection(name: str, count: int, device: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(heads.MODELS[name](), tmp_path / "m.onnx")
    files = [str(tmp_path / f"m.{kind}") for kind in ("onnx", "prototxt", "caffemodel")]
    assert main(["convert", *files, "--raw-detection", "--device", device.number]) == 0
    said, text = capsys.readouterr().out, (tmp_path / "m.prototxt").read_text()
    assert "equal to ocaffe's outputs in onnxruntime" in said and ("the net ends before the decoding of output0" in said) == (count != 6)
    assert text.rstrip().count("\n}\n") and 'type: "Permute"' not in text and 'type: "Sigmoid"' not in text
    call = re.search(r"onnx\.utils\.extract_model\(.*\)", said)
    if call is not None:
        eval(call[0].replace("decoding.onnx", str(tmp_path / "decoding.onnx")), {"onnx": onnx})
        assert len(onnxruntime.InferenceSession(str(tmp_path / "decoding.onnx")).get_inputs()) == count


def saved(path: Path, text: str, **weights: Any) -> str:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> net (float[1, 3, 32, 32] x) => {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.float32(array), name) for name, array in weights.items())
    onnx.save(model, path)
    return str(path)


HEAD = "(float[1, 8, 1024] y, float[1, 4, 32, 32] m) { a = Conv(x, w) s = Sigmoid(a) y = Reshape(s, shape) b = Conv(x, v) m = Relu(b) }"
ONES = {"w": np.ones((8, 3, 1, 1)), "v": np.ones((4, 3, 1, 1))}


def test_maps_stay_whole(tmp_path: Path) -> None:
    """An output that is a map of its own, as masks of instances have it, keeps its activation."""
    path = saved(tmp_path / "m.onnx", HEAD.replace("Reshape(s, shape)", "Flatten<axis=2>(s)").replace("[1, 8, 1024] y", "[8, 1024] y"), **ONES)
    assert raw_outputs(read_model(path), path) == ["a", "m"]


@pytest.mark.parametrize("text, flags, fact", [
    ("(float[1, 2] y) { a = Conv(x, w) b = GlobalAveragePool(a) c = Flatten(b) y = Gemm(c, g) }", ["--raw-detection"], "'y' is behind 'y' (Gemm)"),
    ("(float[1, 3, 32, 32] y) { y = Relu(x) }", ["--raw-detection"], "'y' does not depend on one"),
    ("(float[1, 8, 32, 32] y) { y = Conv(x, w) }", ["--raw-detection", "--cut-at=y"], "--raw-detection and --cut-at both say where the net ends"),
])  # fmt: skip
def test_no_head(tmp_path: Path, text: str, flags: list[str], fact: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "m.onnx", text, w=np.ones((8, 3, 1, 1)), g=np.ones((8, 2)))
    assert main(["convert", path, str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel"), *flags]) == 1
    assert fact in capsys.readouterr().err


def test_another_cut_has_no_note(tmp_path: Path) -> None:
    """A layer with weights is behind the cut, or nothing is."""
    path = saved(tmp_path / "m.onnx", "(float[1, 8, 32, 32] y) { a = Relu(x) y = Conv(a, w) }", w=np.ones((8, 3, 1, 1)))
    model = read_model(path)
    assert decoding_note(model, path, {}, ["a"]) == decoding_note(model, path, {}, ["y"]) == []


@pytest.mark.parametrize("text, operator", [("y = Erf(a)", "Erf"), ("y = Add(a, a)", "")])
def test_rest_without_a_formula(tmp_path: Path, text: str, operator: str) -> None:
    path = saved(tmp_path / "m.onnx", f"(float[1, 8, 32, 32] y) {{ a = Conv(x, w) {text} }}", w=np.ones((8, 3, 1, 1)))
    note = "\n".join(decoding_note(read_model(path), path, {}, ["a"]))
    assert (f"which has the operators {operator}" if operator else "y[0:8] = a[0:8] + a[0:8]") in note


@pytest.mark.parametrize("step", ["{y} = Add({x}, {x})", "{y} = Neg({x})", "{y} = Concat<axis=1>({x}, {x})"])
def test_long_formulas_end(tmp_path: Path, step: str) -> None:
    """The formula of a few nodes may be longer than memory, and its depth more than Python's stack."""
    count = 20 if "Concat" in step else 3000
    steps = " ".join(step.format(x=f"t{number}", y=f"t{number + 1}") for number in range(count))
    path = saved(tmp_path / "m.onnx", f"(float[a, b, c, d] y) {{ t0 = Conv(x, w) {steps} y = Identity(t{count}) }}", w=np.ones((8, 3, 1, 1)))
    note = decoding_note(onnx.load(path), path, {}, ["t0"])
    assert any("Your program computes the rest" in line for line in note)


@pytest.mark.parametrize("text, said", [
    ("s = Softmax<axis=1>(a) y = Slice(s, one, two, one)", "y[0:1] = softmax(a[0:8])[1:2]"),
    ("s = Slice(a, one, two, one) y = Mul(a, s)", "y[0:8] = a[0:8] * a[1]"),
    ("y = Concat<axis=1>(a, ones)", "y[0:8] = a[0:8]\n    y[8:9] = 1"),
    ("e = Erf(a) s = Sigmoid(a) y = Concat<axis=1>(s, e)", "y[0:8] = sigmoid(a[0:8])\n    y[8:16] = ...\n    ...: values for which this note has no formula"),
    ("y = Mul(a, sides)", "y[0:8] = a[0:8] * factors\n    factors of stride 1: 1 x 2 x 3 x 4 x 5 x 6 x 7 x 8"),
    ("p = Slice(sides, none, two, one) q = Slice(sides, two, four, one) t = Slice(a, none, two, one) u = Slice(a, two, four, one) b = Mul(t, p) c = Mul(u, q) "
     "y = Concat<axis=1>(b, c)",
     "y[0:2] = a[0:2] * anchors\n    y[2:4] = a[2:4] * anchors2\n    anchors of stride 1: 1 x 2\n    anchors2 of stride 1: 3 x 4"),
    ("t = Transpose<perm=[0, 2, 3, 1]>(a) y = MatMul(t, matrix)", "y[0:1] = 1 * a[0] + -0.5 * a[2]\n    y[1:2] = 2 * a[1]"),
])  # fmt: skip
def test_formulas(tmp_path: Path, text: str, said: str) -> None:
    matrix = np.zeros((8, 2), np.float32)
    matrix[0, 0], matrix[2, 0], matrix[1, 1] = 1, -0.5, 2
    weights = {"w": np.ones((8, 3, 1, 1)), "ones": np.ones((1, 1, 32, 32)), "matrix": matrix, "sides": np.arange(1, 9).reshape(1, 8, 1, 1)}
    model = onnx.load(saved(tmp_path / "m.onnx", f"(float[p, q, r, s] y) {{ a = Conv(x, w) {text} }}", **weights))
    places = {"none": [0], "one": [1], "two": [2], "four": [4]}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.array(value), name) for name, value in places.items())
    assert said in "\n".join(decoding_note(model, "m.onnx", {}, ["a"]))


def test_levels_that_differ(tmp_path: Path) -> None:
    """Formulas that are not the same for all levels name their stride. An output of the model that stays has no letter."""
    text = """(float[a, b, c] y, float[a, b, c, d] m) { a = Conv(x, w) b = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x) e = Conv(b, w) f = Mul(e, half)
        p = Flatten<axis=2>(a) q = Flatten<axis=2>(f) r = Unsqueeze(p, first) s = Unsqueeze(q, first) y = Concat<axis=2>(r, s) m = Conv(x, v) }"""
    path = saved(tmp_path / "m.onnx", text, w=np.ones((8, 3, 1, 1)), v=np.ones((4, 3, 1, 1)), half=np.float32(0.25))
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "first"))
    note = "\n".join(decoding_note(model, "m.onnx", {}, ["a", "e", "m"]))
    assert "y[0:8] = {by stride 1: a[0:8]; 2: (a[0:8] * 0.25)}" in note and "m 1 x 4 x 32 x 32, as in the model" in note


def test_numbers_and_damaged_weights(tmp_path: Path) -> None:
    """A cut at a single number has no formula. The import names the damaged tensor, not the search for the head."""
    text = "(float[1, 8, 32, 32] y) { a = Conv(x, w) m = ReduceMax<axes=[0, 1, 2, 3], keepdims=0>(a) y = Mul(a, m) }"
    model = onnx.load(saved(tmp_path / "m.onnx", text, w=np.ones((8, 3, 1, 1))))
    assert any("Your program computes the rest" in line for line in decoding_note(model, "m.onnx", {}, ["a", "m"]))
    model.graph.initializer[0].raw_data = b"1"
    assert raw_outputs(model, "m.onnx") == ["a"]


def test_errors_have_a_remedy(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", "(float[1, 3, 32, 32] y) { y = Relu(x) }")
    with pytest.raises(Error, match="--cut-at names the tensors"):
        raw_outputs(read_model(path), path)
