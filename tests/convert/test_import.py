"""`ocaffe convert model.onnx net.prototxt net.caffemodel`: the net is compared with the model before files are written."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ocaffe.cli import main
from ocaffe.convert import import_model
from ocaffe.convert.import_model import load
from ocaffe.convert.importer.budget import Budget
from ocaffe.convert.importer.graph import dense_of
from ocaffe.convert.importer.rules import pointwise
from ocaffe.errors import Error
from ocaffe.formats.weights import read_weights

pytestmark = [pytest.mark.quick, pytest.mark.unoptimised]

CONV = "a = Conv(x, w) b = Relu(a) y = Sigmoid(b)"
SEQUENCES = """one = Constant<value_int=1>() four = Constant<value_int=4>() q = SplitToSequence<axis=1>(x, one) a = SequenceAt(q, one)
    q_1 = SplitToSequence<axis=2>(a, four) b = SequenceAt(q_1, one) y = Relu(b)"""  # the second part of q is not the sequence q_1
NORM = "y = BatchNormalization<MODE>(x, s, s, s, s)"


def saved(tmp_path: Path, text: str, dtype: Any = np.float32) -> str:
    image, kind = (np.dtype(dtype).name, np.float32) if dtype in (np.uint8, np.bool_) else ("float", dtype)
    weights = {"w": np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(kind), "s": np.ones(3, np.float32)}
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> net ({image}[2, 3, 8, 8] x) => (float[n, c, h, w] y) {{ {text} }}')
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items() if name in used)
    onnx.save(model, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


@pytest.fixture
def convert(tmp_path: Path, device: Any) -> Any:
    files = [str(tmp_path / name) for name in ("n.prototxt", "n.caffemodel")]
    return lambda source, *flags: main(["convert", source, *files, *flags, "--device", device.number])


@pytest.mark.parametrize("text, dtype, flags", [
    (CONV, np.float32, ()), (CONV, np.float32, ("--cut_at=a,b",)), (CONV, np.float32, ("--shape=x:3x3x9x7",)),
    ("f = Cast<to=1>(x) y = Conv(f, w)", np.uint8, ()),
    ("f = Cast<to=1>(x) y = Conv(f, w)", np.bool_, ()), ("n = Not(x) y = Cast<to=1>(n)", np.bool_, ()),
    ("h = Cast<to=10>(x) a = Conv(h, w) y = Cast<to=1>(a)", np.float16, ()), (SEQUENCES, np.float32, ()),
    ("h = Cast<to=10>(x) a = Softmax(h) b = Mul(a, a) y = Cast<to=1>(b)", np.float32, ()),
    ("b = Cast<to=9>(x) n = Not(b) y = Cast<to=1>(n)", np.uint8, ()),
])  # fmt: skip
def test_verified(tmp_path: Path, convert: Any, text: str, dtype: Any, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(saved(tmp_path, text, dtype), *flags) == 0
    assert "equal to ocaffe's outputs in onnxruntime" in capsys.readouterr().out


def test_no_means_of_whole_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved(tmp_path, "i = ArgMax<axis=1>(x) a = ReduceMean<axes=[2]>(i) y = Cast<to=1>(a)")
    assert main(["convert", source, str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel"), "--noverify"]) == 1
    error = capsys.readouterr().err
    assert "it divides whole numbers and drops the rest" in error and "layer 'a'" in error and "fix: export the model without this operator" in error


def test_divisors_that_are_computed_stay_whole(tmp_path: Path, convert: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The comparison perturbs the inputs of pieces. A runtime would take a divisor of 0.99999 for 0."""
    text = "i = ArgMax<axis=1>(x) k = ArgMax<axis=3>(x) n = Constant<value_int=1>() o = Add(k, n) m = Mod(i, o) d = Div(i, o) t = Add(m, d) y = Cast<to=1>(t)"
    assert convert(saved(tmp_path, text)) == 0
    assert "equal to ocaffe's outputs in onnxruntime" in capsys.readouterr().out


@pytest.mark.parametrize("text", [CONV, "a = Neg(x) b = Relu(a) c = Neg(b) i = ArgMax<axis=1>(c) y = Cast<to=1>(i)"], ids=["conv", "choice"])
def test_the_first_tensor_that_differs(tmp_path: Path, convert: Any, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pointwise.TABLE, "Relu", ("AbsVal", {}))
    source = saved(tmp_path, text)
    assert convert(source) == 1
    error = capsys.readouterr().err
    assert "the first blob that differs is 'b'" in error and "(AbsVal)" in error
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert convert(source, "--noverify") == 0
    assert "not verified (--noverify)" in capsys.readouterr().out


@pytest.mark.parametrize("dtype, name", [(np.float16, "float16"), (np.float64, "double")])
def test_declared_types_that_contradict(tmp_path: Path, convert: Any, dtype: Any, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved(tmp_path, "y = Relu(x)")
    model = onnx.load(source)
    model.graph.input[0].type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    onnx.save(model, source)
    assert convert(source) == 1
    error = capsys.readouterr().err
    assert f"error: {source}\n  the file says that 'y' holds float, but the operators make {name}\n  fix: correct the type of 'y'" in error
    assert convert(source, "--noverify") == 0


@pytest.mark.parametrize("size", [0, -1])
def test_an_open_batch_that_is_written_as_a_number(tmp_path: Path, convert: Any, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved(tmp_path, CONV)
    model = onnx.load(source)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size
    onnx.save(model, source)
    assert convert(source) == 0
    assert "equal to ocaffe's outputs in onnxruntime" in capsys.readouterr().out


def test_a_model_that_fails_as_it_runs(tmp_path: Path, convert: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its remedy names no option of an export."""
    source = saved(tmp_path, "i = ArgMax<axis=1>(x) k = Constant<value_int=9>() j = Add(i, k) y = Gather(s, j)")
    assert convert(source) == 1
    error = capsys.readouterr().err
    assert f"error: {source}" in error and "does not run it" in error and "fix: give other inputs (--verify=IMAGE or .npz); --noverify writes" in error


def test_many_outputs(tmp_path: Path) -> None:
    """Outputs that a layer reads are copied, and one pass over the layers finds them all."""
    count = 3000
    nodes = [onnx.helper.make_node("Relu", [f"y{number - 1}" if number % 2 else "x"], [f"y{number}"]) for number in range(count)]
    infos = [onnx.helper.make_tensor_value_info(name, 1, [1, 3]) for name in ("x", *(f"y{number}" for number in range(count)))]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:]), opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    net, _ = load(tmp_path / "m.onnx")
    read = {name for layer in net.layer for name in layer.bottom}
    ends = [name for layer in net.layer for name in layer.top if name not in read]
    assert sorted(ends) == sorted(f"y{number}" for number in range(count)) and [layer.type for layer in net.layer].count("Split") == count // 2


def test_names_that_are_equal(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Relu", [f"y{number - 1}" if number else "x"], [f"y{number}"], name="a") for number in range(5)]
    infos = [onnx.helper.make_tensor_value_info(name, 1, [1, 3]) for name in ("x", "y4")]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:]), opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert [layer.name for layer in load(tmp_path / "m.onnx")[0].layer][1:] == ["a", "a_2", "a_3", "a_4", "a_5"]


@pytest.mark.parametrize("mode, verdict, warned", [
    ("training_mode=0", "equal to ocaffe's outputs", False), ("training_mode=1", "not verified, because the model normalizes by the batch", True)
])  # fmt: skip
def test_a_model_in_training_form(tmp_path: Path, convert: Any, mode: str, verdict: str, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    text = NORM.replace("MODE", mode)
    assert convert(saved(tmp_path, text.replace("y =", "y, mean, variance =") if warned else text)) == 0
    captured = capsys.readouterr()
    assert verdict in captured.out and ("take the statistics of the batch" in captured.err) == warned


@pytest.mark.parametrize("node", [False, True], ids=["initializer", "node"])
@pytest.mark.parametrize("training", [False, True])
def test_dropout_in_training_form(tmp_path: Path, convert: Any, training: bool, node: bool, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved(tmp_path, "a = Conv(x, w) y = Dropout(a, , t)")
    model, flag = onnx.load(source), onnx.numpy_helper.from_array(np.array(training), "t")
    if node:
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["t"], value=flag))
    else:
        model.graph.initializer.append(flag)
    onnx.save(model, source)
    assert convert(source) == 0
    assert ("drops values at random" if training else "equal to ocaffe's outputs") in capsys.readouterr().out


@pytest.mark.parametrize(("producer", "name", "rule", "call"), [
    ("pytorch", "onnx::Conv_12", "", "TrainingMode.PRESERVE"), ("pytorch", "conv1.weight", "RemoveBias, FuseBatchNormIntoConv", "dynamo=True, optimize=False"),
    ("tf2onnx", "model/conv_weights_fused_bn", "", "remove_back_to_back"), ("pytorch", "conv1.weight", "", ""), ("tf2onnx", "onnx::Conv_12", "", ""),
])  # fmt: skip
def test_merged_norms_are_noted(tmp_path: Path, producer: str, name: str, rule: str, call: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved(tmp_path, CONV)
    model = onnx.load(source)
    model.producer_name, model.graph.initializer[0].name, model.graph.node[0].input[1] = producer, name, name
    if rule:
        model.graph.node[0].metadata_props.add(key="pkg.onnxscript.rewriter.rule_name", value=rule)
    onnx.save(model, source)
    command = ["convert", source, str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel"), "--noverify"]
    assert main([*command, "--for-training"]) == bool(call)
    error = capsys.readouterr().err
    assert (tmp_path / "n.prototxt").exists() != bool(call)
    assert not call or ("a training would have none" in error and call in error)
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert ("batch normalization is merged" in printed) == bool(call) and call in printed


@pytest.mark.parametrize("ending", ["h5", "hdf5", "H5"])
def test_weights_in_hdf5(tmp_path: Path, ending: str) -> None:
    weights, copy = tmp_path / f"n.{ending}", tmp_path / f"copy.{ending}"
    assert main(["convert", saved(tmp_path, CONV), str(tmp_path / "n.prototxt"), str(weights), "--noverify"]) == 0
    assert main(["convert", str(weights), str(tmp_path / "n.caffemodel")]) == main(["convert", str(tmp_path / "n.caffemodel"), str(copy)]) == 0
    assert weights.read_bytes()[:4] == copy.read_bytes()[:4] == b"\x89HDF"


@pytest.mark.parametrize("rows", [False, True], ids=["places", "rows of indices"])
@pytest.mark.parametrize("node", [False, True], ids=["initializer", "node"])
def test_sparse_constants(tmp_path: Path, node: bool, rows: bool) -> None:
    source = saved(tmp_path, "y = Add(x, c)")
    model = onnx.load(source)
    indices = np.array([[0, 2], [1, 3]]) if rows else np.array([2, 11])
    values = onnx.numpy_helper.from_array(np.array([5, 7], np.float32), "c")
    sparse = onnx.helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(indices, "i"), [8, 8])
    if node:
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], sparse_value=sparse))
    else:
        model.graph.sparse_initializer.append(sparse)
    onnx.save(model, source)
    _, blobs = load(source)
    (blob,) = next(iter(blobs.values()))
    expected = np.zeros((8, 8), np.float32)
    expected[(0, 1), (2, 3)] = 5, 7
    np.testing.assert_array_equal(blob, expected)


def test_a_damaged_sparse_constant() -> None:
    arrays = [onnx.numpy_helper.from_array(array, name) for array, name in ((np.ones(1, np.float32), "c"), (np.array([64]), "i"))]
    with pytest.raises(Error, match=r"the indices of the sparse tensor 'c' do not fit its shape \(8 x 8\)"):
        dense_of(onnx.helper.make_sparse_tensor(*arrays, [8, 8]), "m.onnx", Budget())


@pytest.mark.parametrize("name", ["/", "a//b", "./a/."])
def test_names_that_are_no_paths(tmp_path: Path, name: str) -> None:
    source = saved(tmp_path, "y = Conv(x, w)")
    model = onnx.load(source)
    model.graph.node[0].name = name
    onnx.save(model, source)
    for weights in ("n.caffemodel", "n.h5", "back.caffemodel"):
        files = [source, str(tmp_path / "n.prototxt")] if weights[0] == "n" else [str(tmp_path / "n.prototxt"), str(tmp_path / "n.h5")]
        assert main(["convert", *files, str(tmp_path / weights), *(["--noverify"] if weights[0] == "n" else [])]) == 0
    there, back = ({layer.name: layer.blobs for layer in read_weights(tmp_path / f).layers if layer.blobs} for f in ("n.caffemodel", "back.caffemodel"))
    assert list(there) == list(back) and all(np.array_equal(there[layer][0], back[layer][0]) for layer in there)


@pytest.mark.parametrize("ending", ["caffemodel", "caffemodel.h5"])
def test_changed_weights_stay(tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / f"n.{ending}"
    command = ["convert", saved(tmp_path, CONV), str(tmp_path / "n.prototxt"), str(weights), "--noverify"]
    assert main(command) == 0 and main(command) == 0  # the same content again
    whole = weights.read_bytes()
    weights.write_bytes(whole + b"mine")
    assert main(command) == 1 and "--force" in capsys.readouterr().err and weights.read_bytes() == whole + b"mine"
    assert main([*command, "--force"]) == 0 and weights.read_bytes() == whole


def test_without_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.cl.device.list_devices", list)
    assert main(["convert", saved(tmp_path, CONV), str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel")]) == 0
    assert "NOT VERIFIED: there is no OpenCL device" in capsys.readouterr().out


def test_flags_of_the_other_direction(tmp_path: Path, convert: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(saved(tmp_path, CONV), "--opset=14") == 1
    assert "--opset means nothing for onnx prototxt weights" in capsys.readouterr().err
    assert convert(saved(tmp_path, CONV), "--verify_in=opencv") == 1
    assert "--verify-in means nothing for onnx prototxt weights" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_an_edited_prototxt_stays(tmp_path: Path, convert: Any, capsys: pytest.CaptureFixture[str]) -> None:
    source, net, weights = saved(tmp_path, CONV), tmp_path / "n.prototxt", tmp_path / "n.caffemodel"
    assert convert(source, "--noverify") == 0 and convert(source, "--noverify") == 0  # the same content again
    written, before = net.read_bytes(), weights.stat().st_ino
    net.write_bytes(written + b"# mine\n")
    capsys.readouterr()
    assert convert(source, "--noverify") == 1
    error = capsys.readouterr().err
    assert "the file exists and differs from the one to write" in error and "--force" in error
    assert net.read_bytes() == written + b"# mine\n" and weights.stat().st_ino == before
    with pytest.raises(Error, match="the file exists and differs from the one to write"):
        import_model.convert(source, net, weights)
    assert net.read_bytes() == written + b"# mine\n"
    assert convert(source, "--noverify", "--force") == 0
    assert net.read_bytes() == written
    net.write_bytes(b"mine")
    import_model.convert(source, net, weights, force=True)
    assert net.read_bytes() == written
