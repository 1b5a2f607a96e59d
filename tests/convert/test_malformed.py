"""ONNX files that cannot be converted: the error is right, and no file is written."""
from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocaffe.convert.import_model import convert, load
from ocaffe.convert.importer.read import check_type
from ocaffe.errors import Error

onnx = pytest.importorskip("onnx")
HEAD = '<ir_version: 8, opset_import: ["": 17]> net '


def parse(text: str, **weights: Any) -> Any:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    return model


def conv(**weights: Any) -> Any:
    """Return a model that can be converted."""
    return parse(HEAD + "(float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv(x, w) }", **({"w": np.ones((4, 3, 3, 3), np.float32)} | weights))


def refused(path: Path, **options: Any) -> str:
    """Convert a model that must be refused, check that no file was written, and return the message."""
    before = sorted(path.parent.iterdir())
    with pytest.raises(Error) as caught:
        convert(path, path.parent / "net.prototxt", path.parent / "net.caffemodel", **options)
    assert sorted(path.parent.iterdir()) == before
    assert str(path) in str(caught.value)
    return str(caught.value)


def saved(tmp_path: Path, model: Any) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def opsets(*items: tuple[str, int]) -> Any:
    model = conv()
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(*item) for item in items)
    return model


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "no graph": (lambda: onnx.ModelProto(ir_version=8), "has no operators: it is not an ONNX model"),
    "old opset": (lambda: opsets(("", 5)), "is of opset 5, opsets 7 to"),
    "new opset": (lambda: opsets(("", 999)), "is of opset 999, opsets 7 to"),
    "two opsets": (lambda: opsets(("", 17), ("", 18)), "says that its operators are of opsets 17 and 18"),
    "no opset": (lambda: opsets(("other", 1)), "does not say which opset"),
    "operator unknown to ONNX": (
        lambda: parse(HEAD + "(float[1, 3] x) => (float[1, 3] y) { y = Frobnicate(x) }"), "opset 17 has no operator 'Frobnicate' (node 'y')"),
    "operators without a rule": (
        lambda: parse(HEAD + "(float[1, 3] x) => (float[1, 3] y) { a = Tan(x) b = Atan(x) c = Tan(a) d = Add(b, c) y = Relu(d) }"),
        "no Caffe layer computes these operators: Atan (1: 'b'), Tan (2: 'a', ..)"),
    "shape that depends on values": (
        lambda: parse(HEAD + "(float[4, 3] x, bool[4] z) => (float[N, 3] y) { a = Compress<axis=0>(x, z) b = Slice(a, o, p, o) y = Relu(b) }",
                      o=np.array([0], np.int64), p=np.array([1], np.int64)), "no Caffe layer computes these operators: Compress (1: 'a')"),
    "operator of another domain": (
        lambda: parse('<ir_version: 8, opset_import: ["": 17, "com.acme": 1]> net (float[1, 3] x) => (float[1, 3] y) { a = com.acme.Fast(x) y = Relu(a) }'),
        "no Caffe layer computes these operators: com.acme.Fast (1: 'a')"),
    "quantized": (
        lambda: parse(HEAD + """(float[1, 3] x) => (float[1, 3] y) {
            a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, t, z) c = Relu(b) d = QuantizeLinear(c, s, z) y = DequantizeLinear(d, t, z) }""",
                      s=np.float32(0.1), t=np.float32(0.2), z=np.uint8(128)),
        "the model is quantized: it has 2 DequantizeLinear, 2 QuantizeLinear. A Caffe net computes with floats\n  fix: export QuantizeLinear with a "),
    "quantized operators": (
        lambda: parse(HEAD + """(float[1, 3] x) => (float[1, 4] y) {
            a, s, z = DynamicQuantizeLinear(x) b = MatMulInteger(a, w, z) c = Cast<to=1>(b) y = Mul(c, s) }""", w=np.ones((3, 4), np.uint8)),
        "the model is quantized: it has 1 DynamicQuantizeLinear, 1 MatMulInteger. A Caffe net"),
    "quantized operators of another domain": (
        lambda: parse('<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> net (float[1, 3] x) => (float[1, 3] y) '
                      '{ a = com.microsoft.QLinearSigmoid(x, x) y = Relu(a) }'), "the model is quantized: it has 1 com.microsoft.QLinearSigmoid."),
    "computed places of updates": (
        lambda: parse(HEAD + "(float[4, 3] x, int64[2, 1] i, float[2, 3] u) => (float[4, 3] y) { y = ScatterND(x, i, u) }"),
        "its places are computed by the net, and no Caffe layer writes to computed places\n  fix: assign to a slice with constant bounds; or choose"),
    "two updates of one place": (
        lambda: parse(HEAD + "(float[4, 3] x, float[2, 3] u) => (float[4, 3] y) { y = ScatterND(x, i, u) }", i=np.array([[1], [-3]])),
        "two of its updates have the same place, so the order decides about the result\n  fix: export with a place of its own for each update"),
    "an update outside": (
        lambda: parse(HEAD + "(float[4, 3] x, float[2, 3] u) => (float[4, 3] y) { y = ScatterND(x, i, u) }", i=np.array([[1], [4]])),
        "it writes to the place [4], and its input is 4 x 3\n  fix: export with places inside of the input"),
    "updates of another shape": (
        lambda: parse(HEAD + "(float[4, 3] x, float[3, 2] u) => (float[4, 3] y) { y = ScatterND(x, i, u) }", i=np.array([[1], [2]])),
        "its updates are 3 x 2, and its places need 2 x 3\n  fix: correct the updates in the model"),
    "more updates than places": (
        lambda: parse(HEAD + "(float[4, 3] x, float[3, 3] u) => (float[4, 3] y) { y = ScatterElements(x, i, u) }", i=np.ones((2, 3), np.int64)),
        "its places are 2 x 3, its updates 3 x 3, and its input 4 x 3"),
    "one hot of floats": (
        lambda: parse(HEAD + "(float[4] x) => (float[4, 3] y) { y = OneHot(x, d, v) }", d=np.int64(3), v=np.array([0, 1], np.float32)),
        "its indices are floats, and it drops their fractions\n  fix: export with whole numbers as indices"),
    "an axis of sums outside": (
        lambda: parse(HEAD + "(float[4, 3] x) => (float[4, 3] y) { y = CumSum(x, a) }", a=np.int64(2)),
        "its axis is 2, and its input is 4 x 3\n  fix: export with an axis from -2 to 1"),
    "remainder of floats": (lambda: parse(HEAD + "(float[4, 3] x) => (float[4, 3] y) { y = Mod(x, c) }", c=np.float32(2)),
                            "fmod is 0, and its inputs are floats\n  fix: export with fmod 1, as torch.fmod is"),
    "remainder of a division by zero": (
        lambda: parse(HEAD + "(float[4, 3] x) => (float[4, 3] y) { y = Mod<fmod=1>(x, c) }", c=np.array([1, 0, 2], np.float32)), "it divides by 0"),
    "missing input": (
        lambda: parse(HEAD + "(float[1, 3] x) => (float[1, 3] y) { y = Add(x, nothing) }"),
        "is not a valid ONNX model: Nodes in a graph must be topologically"),
    "weights of other channels": (lambda: conv(w=np.ones((4, 5, 3, 3), np.float32)),
                                  "its weights are 4 x 5 x 3 x 3; its input of 1 x 3 x 8 x 8 needs 4 x 3 x 3 x 3"),
    "weights of other axes": (lambda: conv(w=np.ones((4, 3, 3), np.float32)), "layer 'y' (Conv)"),
    "shapes that contradict": (
        lambda: parse(HEAD + "(float[1, 3, 8, 8] x) => (float[1, 3, 9, 9] y) { y = Relu(x) }"),
        "the file says that 'y' is 1 x 3 x 9 x 9, but the operators make it 1 x 3 x 8 x 8"),
    "tensors that do not go together": (
        lambda: parse(HEAD + "(float[1, 3] x, float[1, 4] z) => (float[1, 3] y) { y = Add(x, z) }"), "layer 'y' (Add)\n  its inputs do not fit together"),
    "reshape to another count": (
        lambda: parse(HEAD + "(float[1, 3] x) => (float[2, 2] y) { y = Reshape(x, s) }", s=np.array([2, 2], np.int64)), "layer 'y' (Reshape)"),
    "computed weights": (
        lambda: parse(HEAD + "(float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y) { y = Conv(x, w) }"),
        "input 1 ('w') is computed by the net, and a Caffe layer needs a constant there"),
    "open image": (lambda: parse(HEAD + "(float[N, 3, H, W] x) => (float[N, 3, H, W] y) { y = Relu(x) }"),
                   "input 'x' is ? x 3 x ? x ?: only the first axis, the batch, may be unknown"),
    "nothing depends on the input": (
        lambda: parse(HEAD + "(float[1, 3] x) => (float[2] y) { y = Identity(c) }", c=np.ones(2, np.float32)), "output 'y' does not depend on the inputs"),
    "sum in one tensor alone": (
        lambda: parse(HEAD + '(float[2, 3] x, float[3, 4] z) => (float[2] y) { y = Einsum<equation="ij,jk->i">(x, z) }'), "sums over k in one tensor alone"),
    "three tensors": (
        lambda: parse(HEAD + '(float[2, 3] x, float[3, 4] z) => (float[2, 4] y) { y = Einsum<equation="ij,ij,jk->ik">(x, x, z) }'),
        "its equation is 'ij,ij,jk->ik'\n  fix: export with two tensors"),
    "division by zero": (lambda: parse(HEAD + "(float[1, 3] x) => (float[1, 3] y) { y = Div(x, c) }", c=np.float32(0)), "it divides by 0"),
    "antialias": (
        lambda: parse('<ir_version: 8, opset_import: ["": 18]> net (float[1, 3, 8, 8] x) => (float[1, 3, 4, 4] y) '
                      '{ y = Resize<antialias=1, mode="linear">(x, , , s) }', s=np.array([1, 3, 4, 4], np.int64)),
        "antialias is 1, which is not supported\n  fix: export with antialias 0"),
    "indices of maxima": (
        lambda: parse(HEAD + "(float[1, 3, 8, 8] x) => (float[1, 3, 4, 4] y, int64[1, 3, 4, 4] i) { y, i = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x) }"),
        "the model uses the indices of the maxima"),
    "bias along the batch": (
        lambda: parse(HEAD + "(float[3, 5] x) => (float[3, 3] y) { y = Gemm(x, w, c) }", w=np.ones((5, 3), np.float32), c=np.ones((3, 1), np.float32)),
        "its bias (input C) is 3 x 1, a row of 3 values is expected"),
    "slopes of columns": (
        lambda: parse(HEAD + "(float[2, 4, 4, 4] x) => (float[2, 4, 4, 4] y) { y = PRelu(x, s) }", s=np.ones(4, np.float32)),
        "its slopes are 4, and its input is 2 x 4 x 4 x 4"),
    "index behind the axis": (
        lambda: parse(HEAD + "(float[2, 4] x) => (float[2, 1] y) { y = Gather<axis=1>(x, i) }", i=np.array([7], np.int64)),
        "its index 7 is outside of axis 1, which has 4"),
    "two bounds for one": (
        lambda: parse(HEAD + "(float[2, 4] x) => (float[2, 4] y) { y = Clip(x, b) }", b=np.ones(2, np.float32)), "min has 2 values, one is expected"),
    "axis that does not exist": (
        lambda: parse(HEAD + "(float[2, 8] x) => (float[2, 8] y) { y = Softmax<axis=-144115188075855873>(x) }"),
        "axis is -144115188075855873, and 'x' is 2 x 8"),
    **{f"recurrent: {message}": (
        lambda attributes=attributes, inputs=inputs: parse(
            HEAD + f"(float[4, 2, 3] x) => (float[4, 1, 2, 2] y) {{ y = LSTM<hidden_size=2{attributes}>(x, w, r{inputs}) }}",
            w=np.ones((1, 8, 3), np.float32), r=np.ones((1, 8, 2), np.float32), n=np.full(2, 3, np.int32), p=np.ones((1, 6), np.float32)), message)
       for attributes, inputs, message in (
           ("", ", , n", "sequence_lens: sequences of different lengths"), ("", ", , , , , p", "peepholes"),
           (", clip=3.0", "", "clip is 3.0, and an LSTM layer has no clip"),
           (', activations=["Relu", "Tanh", "Tanh"]', "", "its activations are Relu, Tanh, Tanh\n  fix: export with activations Sigmoid, Tanh, Tanh"),
       )},
    "cubic grid": (
        lambda: parse(HEAD + '(float[1, 3, 8, 8] x, float[1, 4, 4, 2] g) => (float[1, 3, 4, 4] y) { y = GridSample<mode="bicubic">(x, g) }'),
        "mode is 'bicubic'"),
    "reflected grid": (
        lambda: parse(HEAD + '(float[1, 3, 8, 8] x, float[1, 4, 4, 2] g) => (float[1, 3, 4, 4] y) { y = GridSample<padding_mode="reflection">(x, g) }'),
        "padding_mode is 'reflection'"),
    "maxima of regions": (
        lambda: parse(HEAD + '(float[1, 3, 8, 8] x, float[2, 4] r, int64[2] i) => (float[2, 3, 1, 1] y) { y = RoiAlign<mode="max">(x, r, i) }'),
        "mode is 'max'"),
    "floats as integers": (
        lambda: parse(HEAD + "(float[1, 3] x) => (float[1, 3] y) { i = Cast<to=2>(x) y = Cast<to=1>(i) }"), "it casts to UINT8"),
    "scale of a layer norm": (
        lambda: parse(HEAD + "(float[2, 8] x) => (float[2, 8] y) { y = LayerNormalization(x, s) }", s=np.ones((8, 4), np.float32)),
        "its scale is 8 x 4, and it normalizes 8\n"),
    "scale of a group norm": (
        lambda: parse('<ir_version: 8, opset_import: ["": 21]> net (float[2, 8, 4] x) => (float[2, 8, 4] y) { y = GroupNormalization<num_groups=2>(x, s, s) }',
                      s=np.ones(5, np.float32)), "the size of its scale is 5, which does not divide the 8 channels"),
    **{f"resize by {scale}": (
        lambda scale=scale: parse(HEAD + '(float[1, 3, 8, 8] x) => (float[n, c, h, w] y) { y = Resize<mode="nearest">(x, , s) }',
                                  s=np.array([1, 1, scale, 1], np.float32)), "no tensor has a negative size\n  fix: export the model with sizes")
       for scale in (1e30, math.inf, math.nan, -2)},
    "dynamic reshape": (
        lambda: parse(HEAD + "(float[1, 4] x, int64[2] s) => (float[2, 2] y) { y = Reshape(x, s) }"), "the shape of 'y' depends on values"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_refused(tmp_path: Path, name: str) -> None:
    make, message = MODELS[name]
    assert message in refused(saved(tmp_path, make()))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.95])
def test_truncated(tmp_path: Path, share: float) -> None:
    content = conv().SerializeToString()
    path = tmp_path / "net.onnx"
    path.write_bytes(content[: int(share * len(content))])
    message = refused(path)
    assert "empty" in message if not share else "truncated" in message


def test_noise(tmp_path: Path) -> None:
    """Random bytes never crash the process. A model that is still valid may be converted."""
    rng = np.random.default_rng(0)
    content = np.frombuffer(conv().SerializeToString(), np.uint8)
    path = tmp_path / "net.onnx"
    for _ in range(200):
        damaged = content.copy()
        damaged[rng.integers(0, 120, 3)] = rng.integers(0, 256, 3)
        path.write_bytes(damaged.tobytes())
        try:
            convert(path, tmp_path / "net.prototxt", tmp_path / "net.caffemodel")
        except Error:
            pass


def external(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(conv(), str(path), save_as_external_data=True, location="net.data", size_threshold=0)
    return path


@pytest.mark.parametrize("limit", [2**31, 100], ids=["small", "larger than a message"])
def test_external_data(tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.convert.importer.read._LIMIT", limit)
    net = convert(external(tmp_path), tmp_path / "net.prototxt", tmp_path / "net.caffemodel")
    assert [layer.type for layer in net.layer] == ["Input", "Convolution"]


def test_external_data_missing(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "net.data").unlink()
    assert "the data of tensor 'w' is in 'net.data', which is missing" in refused(path)


def test_external_data_truncated(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "net.data").write_bytes((tmp_path / "net.data").read_bytes()[:100])
    assert "the data of tensor 'w' ends at byte 432 of 'net.data', which has 100" in refused(path)


def test_external_data_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    path = external(tmp_path / "inner")
    (tmp_path / "inner" / "net.data").rename(tmp_path / "net.data")
    model = onnx.load(str(path), load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../net.data"
    path.write_bytes(model.SerializeToString())
    assert "the data of tensor 'w'" in refused(path)


@pytest.mark.parametrize("content, message", [(b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"), (b"PK\x03\x04", "zip archive"),
                                              (b"\x89HDF\r\n\x1a\n", "is an HDF5 file")])  # fmt: skip
def test_other_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    assert message in refused(path)


def test_names_that_are_not_there(tmp_path: Path) -> None:
    path = saved(tmp_path, conv())
    assert "--shape names 'data', and the model has no such input\n  fix: name one of its inputs: x" in refused(path, shapes={"data": (1, 3, 8, 8)})
    assert "input 'x' has 4 axes, --shape gives it 3\n  fix: --shape=x:1x3x8x8" in refused(path, shapes={"x": (3, 8, 8)})
    assert "has no tensor 'z'" in refused(path, outputs=["z"])


def test_no_folder_to_write_to(tmp_path: Path) -> None:
    path = saved(tmp_path, conv())
    with pytest.raises(Error, match="make the folder"):
        convert(path, tmp_path / "nowhere" / "net.prototxt", tmp_path / "nowhere" / "net.caffemodel")
    with pytest.raises(Error, match="make the folder"):
        convert(path, tmp_path / "nowhere" / "net.prototxt", tmp_path / "net.caffemodel")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["net.onnx"]


@pytest.mark.parametrize(("key", "value"), [("location", "x" * 5000), ("location", "a\0b"), ("offset", "-5"), ("length", "many"), ("offset", str(1 << 70))])
def test_external_data_that_no_file_can_have(tmp_path: Path, key: str, value: str) -> None:
    path = external(tmp_path)
    model = onnx.load(str(path), load_external_data=False)
    entries = {entry.key: entry.value for entry in model.graph.initializer[0].external_data} | {key: value}
    del model.graph.initializer[0].external_data[:]
    for name, text in entries.items():
        model.graph.initializer[0].external_data.add(key=name, value=text)
    path.write_bytes(model.SerializeToString())
    assert "the data of tensor 'w'" in (message := refused(path)) and len(message) < 600


def test_a_type_of_numbers_that_does_not_exist(tmp_path: Path) -> None:
    model = parse(HEAD + "(float[1, 3] x) => (float[1, 3] y) { y = Add(x, c) }", c=np.ones(3, np.float32))
    model.graph.input[0].type.tensor_type.elem_type = 59
    assert "the elements of input 'x' are of type 59" in refused(saved(tmp_path, model))


def test_bounds_of_a_slice_that_are_numbers(tmp_path: Path) -> None:
    model = parse(HEAD + "(float[1, 4] x) => (float[1, 2] y) { a = Slice(x, o, p, q) y = Relu(a) }", o=np.int64(1), p=np.array([3]), q=np.array([1]))
    assert "its starts are 1, not a list of whole numbers" in refused(saved(tmp_path, model))


def test_no_outputs(tmp_path: Path) -> None:
    model = conv()
    del model.graph.output[:]
    assert "names no outputs" in refused(saved(tmp_path, model))


def test_an_input_of_no_type(tmp_path: Path) -> None:
    model = conv()
    model.graph.input[0].type.tensor_type.elem_type = -(1 << 31)
    assert "the elements of input 'x' are of type -2147483648" in refused(saved(tmp_path, model))


@pytest.mark.parametrize("size", [-1, 1 << 40])
def test_an_attribute_outside_the_range(tmp_path: Path, size: int) -> None:
    model = parse(HEAD + f"(float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) {{ y = LRN<size={size}>(x) }}")
    assert "its attributes are outside the range of Caffe's LRN" in refused(saved(tmp_path, model))


@pytest.mark.parametrize("kind, fact, fix", [
    ("sequence", "input 'frames' is a sequence, and a Caffe net takes tensors", "make 'frames' a tensor in the program .*torch.stack"),
    ("optional", "input 'frames' is optional, and a Caffe net takes tensors", "make 'frames' a tensor in the program"),
    ("undefined", "input 'frames' has no type", "elem_type|make 'frames' a tensor"),
])  # fmt: skip
def test_inputs_that_are_not_tensors(kind: str, fact: str, fix: str) -> None:
    tensor = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1, 3])
    make = {"sequence": onnx.helper.make_sequence_type_proto, "optional": onnx.helper.make_optional_type_proto}
    info = onnx.helper.make_value_info("frames", make[kind](tensor)) if kind in make else onnx.ValueInfoProto(name="frames")
    with pytest.raises(Error, match=fact) as caught:
        check_type(info, "m.onnx")
    assert re.search(fix, caught.value.fix or "")


def test_the_remedy_cuts_before_the_first_operator_without_a_rule(tmp_path: Path) -> None:
    model = parse(HEAD + "(float[1, 3] x) => (float[1, 3] y) { a = Relu(x) b = Neg(a) c = Tan(b) d = Atan(a) y = Add(c, d) }")
    path = saved(tmp_path, model)
    assert "fix: --cut-at=b converts the part before it" in refused(path)
    assert [layer.top[0] for layer in load(path, outputs=["b"])[0].layer][-1] == "b"


def test_the_remedy_names_the_tensors_before_the_operator(tmp_path: Path) -> None:
    """The part that they end can be converted. They hold floats: the indices of ArgMax do not."""
    path = saved(tmp_path, parse(HEAD + "(float[1, 3] x) => (float[1, 3] y) { a = Relu(x) b = Sigmoid(x) y = Pow(a, b) }"))
    fix = refused(path).partition("fix: ")[2]
    assert fix == "--cut-at=a,b converts the part before it"
    convert(path, tmp_path / "net.prototxt", tmp_path / "net.caffemodel", outputs=["a", "b"])
    assert 'type: "Sigmoid"' in (tmp_path / "net.prototxt").read_text()
    whole = parse(HEAD + "(float[1, 3] x) => (int64[1, 1] y) { a = Relu(x) i = ArgMax<axis=1>(a) y = ReduceMean<axes=[1]>(i) }")
    (tmp_path / "whole").mkdir()
    assert "fix: --cut-at=a converts the part before it" in refused(saved(tmp_path / "whole", whole))


def test_the_first_operator_has_no_tensor_before_it(tmp_path: Path) -> None:
    assert "fix: export the model without this operator" in refused(saved(tmp_path, parse(HEAD + "(float[1, 3] x) => (float[1, 3] y) { y = Pow(x, x) }")))


def _node(op: str, opset: int, shape: Any = (1, 3, 8, 8), outputs: int = 1, **attributes: Any) -> Any:
    """Return a model of one operator. Attributes that are arrays become its inputs; the input '' is left out."""
    weights = {name: value for name, value in attributes.items() if isinstance(value, np.ndarray)}
    inputs = ["x", *(["", "s"] if op == "Resize" and opset > 10 else weights)]
    names = [f"y{index}" for index in range(outputs)]
    node = onnx.helper.make_node(op, inputs, names, **{name: value for name, value in attributes.items() if name not in weights})
    shapes = {"x": shape, **{name: [None] * len(shape) for name in names}}
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size) for name, size in shapes.items()]
    held = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = onnx.helper.make_graph([node], "net", info[:1], info[1:], held)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("scale", [1e30, 2.3e18, float("nan"), float("inf"), -1.0, -1e30, 0.0])
@pytest.mark.parametrize("op, opset", [("Resize", 17), ("Resize", 10), ("Upsample", 9), ("Upsample", 7)])
def test_scales_that_no_image_has(op: str, opset: int, scale: float, tmp_path: Path) -> None:
    scales = np.array([1, 1, scale, 1], np.float32)
    model = _node(op, opset, s=scales) if opset > 7 else _node(op, opset, scales=scales.tolist())
    message = refused(saved(tmp_path, model))
    assert f"({op})" in message and re.search(r"no tensor has a negative size|the scale of axis 2 is 0.0", message)


@pytest.mark.parametrize("model, message", [
    (lambda: _node("GatherND", 17, batch_dims=-5, i=np.zeros((1, 1), np.int64)), "batch_dims is -5, and 'x' is 1 x 3 x 8 x 8"),
    (lambda: _node("GatherND", 17, batch_dims=1 << 62, i=np.zeros((1, 1), np.int64)), "batch_dims is 4611686018427387904"),
    (lambda: _node("LayerNormalization", 17, axis=1 << 31, s=np.ones(8, np.float32)), "axis is 2147483648, and 'x' is 1 x 3 x 8 x 8"),
    (lambda: _node("Split", 18, outputs=3, axis=1, num_outputs=1), "num_outputs is 1, and it has 3 outputs"),
    (lambda: _node("Slice", 9, starts=[1], ends=[3], axes=[-5]), "Slice"),
    (lambda: _node("Gather", 17, axis=1, i=np.zeros(0, np.int64)), "its indices have no values"),
    (lambda: _node("Resize", 17, s=np.ones((4, 1), np.float32)), "the scale of axis 2 is [1.0]"),
], ids=["a negative batch_dims", "a large batch_dims", "axis", "num_outputs", "axes", "no indices", "nested scales"])  # fmt: skip
def test_places_that_the_inputs_lack(model: Callable[[], Any], message: str, tmp_path: Path) -> None:
    """For the first four onnx reads memory outside of its arrays, and the process dies."""
    assert message in refused(saved(tmp_path, model()))


@pytest.mark.parametrize("offset", [-(1 << 63), (1 << 63) - 1])
def test_a_triangle_far_outside_of_the_matrix(offset: int, tmp_path: Path) -> None:
    net, _ = load(saved(tmp_path, _node("Trilu", 17, shape=(3, 3), k=np.array(offset))))
    assert [layer.type for layer in net.layer].count("Where") == 1


@pytest.mark.parametrize("equation", ["......", "......,abcd->abcd", "..." * 5000, "ab\x1b,cd->abcd", "a" * 2000])
def test_equations_that_onnx_never_ends_to_read(equation: str, tmp_path: Path) -> None:
    message = refused(saved(tmp_path, _node("Einsum", 18, equation=equation, w=np.ones((4, 3, 3, 3), np.float32))))
    assert "its equation is not terms of letters" in message


ONES = [1] * 33
MANY_AXES: dict[str, Callable[[], Any]] = {
    "an input": lambda: _node("Relu", 17, shape=ONES),
    "an input of 100": lambda: _node("Relu", 17, shape=[1] * 100),
    "an initializer": lambda: _node("Add", 17, shape=(1, 3), w=np.ones(ONES, np.float32)),
    "Reshape": lambda: _node("Reshape", 17, shape=(1, 3), s=np.array([*ONES[1:], 3])),
    "Reshape to 91": lambda: _node("Reshape", 17, shape=(1, 3), s=np.array([1] * 90 + [3])),
    "Expand": lambda: _node("Expand", 17, shape=(1, 3), s=np.array([*ONES[1:], 3])),
    "Unsqueeze": lambda: _node("Unsqueeze", 17, shape=[1] * 32, s=np.array([0])),
    "Einsum": lambda: _node("Einsum", 17, shape=[1] * 20, w=np.ones([1] * 20, np.float32), equation="abcdefghijklmnopqrst,ABCDEFGHIJKLMNOPQRST"),
    "value info": lambda: parse(HEAD + f"(float[1, 3] x) => (float[1, 3] y) <float{ONES} a> {{ a = Relu(x) y = Relu(a) }}"),
}


@pytest.mark.parametrize("model", MANY_AXES.values(), ids=MANY_AXES)
def test_more_axes_than_a_blob_has(model: Callable[[], Any], tmp_path: Path) -> None:
    message = refused(saved(tmp_path, model()))
    assert re.search(r"has \d+ axes, and a blob of Caffe has at most 32\n", message) and "fix: export the model with fewer axes there" in message


def test_as_many_axes_as_a_blob_has(tmp_path: Path) -> None:
    net, _ = load(saved(tmp_path, _node("Relu", 17, shape=[1] * 32)))
    assert [layer.type for layer in net.layer] == ["Input", "ReLU"]


ODD = "\x1b[31mred"
REGIONS = {"r": np.zeros((2, 4), np.float32), "i": np.zeros(2, np.int64)}
WORDS: dict[str, tuple[Any, str, str]] = {  # a model with a word that ONNX does not define, the attribute, the words that it defines
    "Gelu": (lambda: _node("Gelu", 20, approximate=ODD), "approximate", "none, tanh"),
    **{op: (lambda op=op, more=more: _node(op, 17, auto_pad=ODD, **more), "auto_pad", "NOTSET, SAME_UPPER, SAME_LOWER, VALID") for op, more in (
        ("Conv", {"w": np.ones((4, 3, 3, 3), np.float32)}), ("ConvTranspose", {"w": np.ones((3, 4, 3, 3), np.float32)}),
        ("MaxPool", {"kernel_shape": [2, 2]}), ("AveragePool", {"kernel_shape": [2, 2]}))},
    "DepthToSpace": (lambda: _node("DepthToSpace", 17, (1, 4, 8, 8), blocksize=2, mode=ODD), "mode", "DCR, CRD"),
    "Pad": (lambda: _node("Pad", 17, p=np.ones(8, np.int64), mode=ODD), "mode", "constant, reflect, edge, wrap"),
    **{f"Resize {name}": (lambda name=name: _node("Resize", 19, s=np.array([1, 1, 2, 2], np.float32), **{name: ODD}), name, known) for name, known in (
        ("mode", "nearest, linear, cubic"), ("nearest_mode", "round_prefer_floor, round_prefer_ceil, floor, ceil"),
        ("keep_aspect_ratio_policy", "stretch, not_larger, not_smaller"),
        ("coordinate_transformation_mode", "half_pixel, half_pixel_symmetric, pytorch_half_pixel, align_corners, asymmetric, tf_half_pixel_for_nn"))},
    "Upsample": (lambda: _node("Upsample", 9, s=np.array([1, 1, 2, 2], np.float32), mode=ODD), "mode", "nearest, linear, bilinear"),
    **{f"GridSample {name}": (lambda name=name: _node("GridSample", 17, g=np.zeros((1, 4, 4, 2), np.float32), **{name: ODD}), name, known) for name, known in (
        ("mode", "linear, nearest, cubic, bilinear, bicubic"), ("padding_mode", "zeros, border, reflection"))},
    **{f"RoiAlign {name}": (lambda name=name: _node("RoiAlign", 17, **REGIONS, **{name: ODD}), name, known) for name, known in (
        ("mode", "avg, max"), ("coordinate_transformation_mode", "half_pixel, output_half_pixel"))},
    **{op: (lambda op=op, gates=gates: _node(op, 17, (4, 2, 3), w=np.ones((1, gates, 3), np.float32), r=np.ones((1, gates, 1), np.float32),
                                             hidden_size=1, direction=ODD), "direction", "forward, reverse, bidirectional")
       for op, gates in (("GRU", 3), ("LSTM", 4))},
    "constants": (  # onnx's evaluator would replace values, as without a reduction
        lambda: parse('<ir_version: 8, opset_import: ["": 18]> net (float[2, 3] x) => (float[2, 3] y) '
                      f'{{ c = ScatterND<reduction="{ODD}">(a, i, u) y = Add(x, c) }}',
                      a=np.ones((2, 3), np.float32), i=np.zeros((1, 1), np.int64), u=np.ones((1, 3), np.float32)), "reduction", "none, add, mul, max, min"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_words_that_onnx_does_not_define(name: str, tmp_path: Path) -> None:
    model, attribute, known = WORDS[name]
    message = refused(saved(tmp_path, model()))
    assert "layer '" in message and f"{attribute} is {ODD!r}, which ONNX does not define" in message and f"{attribute} is one of {known}" in message


UNITS, GATES = 2, {"GRU": 3, "LSTM": 4}


ODD_SHAPES: list[tuple[dict[str, tuple[Any, ...]], str]] = [
    ({"W": (1, 7, 3)}, "its input W ('W') is 1 x 7 x 3"),
    ({"W": (2, "gates", 3)}, "its input W ('W') is 2 x"),
    ({"W": (1, "gates", 4)}, "its input W ('W') is 1 x"),
    ({"W": (1, "gates")}, "its input W ('W') is 1 x"),
    ({"R": (1, 7, UNITS)}, "its input R ('R') is 1 x 7 x 2"),
    ({"R": (1, "gates", 3)}, "its input R ('R') is 1 x"),
    ({"R": (6,)}, "its input R ('R') is 6;"),
    ({"B": (1, 7)}, "its input B ('B') is 1 x 7;"),
    ({"B": (1, "gates")}, "its input B ('B') is 1 x"),
    ({"initial_h": (1, 3, UNITS)}, "its input initial_h ('initial_h') is 1 x 3 x 2;"),
    ({"initial_h": (2, 2, UNITS)}, "its input initial_h ('initial_h') is 2 x 2 x 2;"),
    ({"initial_c": (1, 2, 1)}, "its input initial_c ('initial_c') is 1 x 2 x 1;"),
    ({"hidden_size": (1 << 62,)}, "hidden_size 4611686018427387904 and X of 4 x 2 x 3 need 1 x"),
    ({"hidden_size": (-2,)}, "its hidden_size is -2"),
]  # fmt: skip


@pytest.mark.parametrize("op, given, fact", [(op, *row) for op in GATES for row in ODD_SHAPES if op == "LSTM" or "initial_c" not in row[0]], ids=str)
def test_weights_of_recurrent_operators(op: str, given: dict[str, tuple[Any, ...]], fact: str, tmp_path: Path) -> None:
    """numpy would divide the gates, or the net would read other weights."""
    wide = GATES[op] * UNITS
    shapes = {"W": (1, wide, 3), "R": (1, wide, UNITS), "B": (1, 2 * wide), "initial_h": (1, 2, UNITS), "initial_c": (1, 2, UNITS)}
    for name, shape in given.items():
        shapes[name] = tuple(wide if size == "gates" else size for size in shape)
    units = shapes.pop("hidden_size", (UNITS,))[0]
    names = ["W", "R", "B", "", "initial_h", *(["initial_c"] if op == "LSTM" else [])]
    text = f"(float[4, 2, 3] x) => (float[a, b, c, d] y) {{ y = {op}<hidden_size={units}>(x, {', '.join(names)}) }}"
    weights = {name: np.ones(shapes[name], np.float32) for name in filter(None, names)}
    message = refused(saved(tmp_path, parse(HEAD + text, **weights)))
    assert f"({op})" in message and fact in message
