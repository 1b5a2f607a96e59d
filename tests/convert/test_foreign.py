"""ONNX files of strangers run no programs, and take no time and memory without limit."""
from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ocaffe.cli import main
from ocaffe.convert import import_model
from ocaffe.convert.import_model import load
from ocaffe.convert.importer import budget, constant
from ocaffe.convert.importer.constant import FOLDED
from ocaffe.convert.importer.graph import Graph, node_of
from ocaffe.errors import Error
from tests.convert.test_external import ADD, info, model_of, values_of, written

X = np.ones((2, 3, 4), np.float32)


def text(*values: str) -> Any:
    return helper.make_tensor("t", TensorProto.STRING, [len(values)], [value.encode() for value in values])


def endless(trips: str) -> Any:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "one"], ["w"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ()), helper.make_tensor_value_info("c", TensorProto.BOOL, ()), info("v")],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, ()), info("w")],
    )  # fmt: skip
    return helper.make_node("Loop", [trips, "true", "one"], ["k"], body=body)


SUM = helper.make_node("ReduceSum", ["big"], ["k"], keepdims=0)
USE = helper.make_node("Add", ["x", "k"], ["y"])
BRANCHES = {f"{name}_branch": helper.make_graph([endless("")], name, [], [info("k")]) for name in ("then", "else")}
STRINGS = helper.make_node("Constant", [], ["s"], value=text("1", "2"))
REFUSED: dict[str, tuple[list[Any], str]] = {  # nodes that make the constant k, and the operator that ocaffe does not run
    "Loop": ([endless("")], "Loop"),
    "Loop of 2^62": ([endless("many")], "Loop"),
    "Loop in the taken branch": ([helper.make_node("If", ["true"], ["k"], **BRANCHES)], "Loop"),
    "If whose condition is no constant": ([helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0), helper.make_node("Cast", ["m"], ["b"], to=TensorProto.BOOL),
        helper.make_node("If", ["b"], ["k"], **BRANCHES)], "If"),
    "ImageDecoder": ([helper.make_node("ImageDecoder", ["bytes"], ["p"]), helper.make_node("Cast", ["p"], ["k"], to=1)], "ImageDecoder"),
    "RegexFullMatch": ([STRINGS, helper.make_node("RegexFullMatch", ["s"], ["b"], pattern="(a|aa)+$"), helper.make_node("Cast", ["b"], ["k"], to=1)], "text"),
    "StringNormalizer": ([STRINGS, helper.make_node("StringNormalizer", ["s"], ["k"], locale="x")], "text"),
    "TfIdfVectorizer": ([helper.make_node("TfIdfVectorizer", ["many"], ["k"], mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
                                          ngram_counts=[0], ngram_indexes=[0], pool_int64s=[1])], "TfIdfVectorizer"),
    "Cast from text": ([STRINGS, helper.make_node("Cast", ["s"], ["k"], to=1)], "text"),
    "Cast to text": ([helper.make_node("Cast", ["one"], ["s"], to=TensorProto.STRING), helper.make_node("Cast", ["s"], ["k"], to=1)], "Cast"),
    "HannWindow": ([helper.make_node("HannWindow", ["many"], ["big"]), SUM], "HannWindow"),
    "RandomNormal": ([helper.make_node("RandomNormal", [], ["big"], shape=[1 << 20, 1 << 20]), SUM], "RandomNormal"),
    "own function of Loop": ([helper.make_node("loop", [], ["k"], domain="own")], "own.loop"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_are_not_run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any, **options: Any) -> None:
        raise AssertionError("the evaluator runs")

    monkeypatch.setattr(constant, "ReferenceEvaluator", run)
    nodes, what = REFUSED[name]
    file = written(tmp_path, model_of([*nodes, USE], {"true": True, "one": np.float32(1), "many": np.int64(2**62), "bytes": np.zeros(9, np.uint8)}))
    with pytest.raises(Error, match=what) as caught:
        load(file)
    assert caught.value.fix and str(file) in str(caught.value)


BOMBS: dict[str, tuple[list[Any], dict[str, Any]]] = {  # nodes that make gigabytes of a few bytes
    "ConstantOfShape": ([helper.make_node("ConstantOfShape", ["n"], ["big"])], {"n": [1 << 20, 1 << 20]}),
    "Expand": ([helper.make_node("Expand", ["one", "n"], ["big"])], {"n": [1 << 40], "one": np.float32([1])}),
    "Tile": ([helper.make_node("Tile", ["one", "n"], ["big"])], {"n": [1 << 40], "one": np.float32([1])}),
    "Tile beyond 64 bits": ([helper.make_node("Tile", ["one", "n"], ["big"])], {"n": [1 << 62], "one": np.ones(12, np.float32)}),
    "Range": ([helper.make_node("Range", ["a", "n", "d"], ["big"])], {"a": np.float32(0), "n": np.float32(1e12), "d": np.float32(1)}),
    "Range without an end": ([helper.make_node("Range", ["a", "n", "d"], ["big"])], {"a": np.float32(0), "n": np.float32(np.inf), "d": np.float32(1)}),
    "Pad": ([helper.make_node("Pad", ["one", "n"], ["big"])], {"n": [1 << 40, 0], "one": np.float32([1])}),
    "Tile to nothing": ([helper.make_node("Tile", ["one", "n"], ["big"])], {"n": [1 << 40, 0], "one": np.ones((1, 9), np.float32)}),
    "Clip": ([helper.make_node("Clip", ["v", "w"], ["big"])], {"v": np.ones((1 << 15, 1), np.float32), "w": np.ones((1, 1 << 15), np.float32)}),
    "PRelu": ([helper.make_node("PRelu", ["v", "w"], ["big"])], {"v": np.ones((1 << 15, 1), np.float32), "w": np.ones((1, 1 << 15), np.float32)}),
    "BatchNormalization": ([helper.make_node("BatchNormalization", ["v", *["w"] * 4], ["big"])],
                           {"v": np.ones((1 << 15, 1), np.float32), "w": np.ones(1 << 15, np.float32)}),
    "DequantizeLinear": ([helper.make_node("DequantizeLinear", ["v", "w"], ["big"])],
                         {"v": np.ones((1 << 15, 1), np.int8), "w": np.ones(1 << 15, np.float32)}),
    "blocks of DequantizeLinear": ([helper.make_node("DequantizeLinear", ["v", "w"], ["big"], block_size=1 << 40)],
                                   {"v": np.ones((4, 4), np.int8), "w": np.ones((4, 2), np.float32)}),
    "steps of ScatterND": ([helper.make_node("ScatterND", ["w", "i", "v"], ["big"])],
                           {"w": np.ones((1, 1 << 16), np.float32), "i": np.zeros((1 << 14, 1), np.int64), "v": np.ones((1 << 14, 1), np.float32)}),
    "Gather": ([helper.make_node("Gather", ["w", "i"], ["g"]), helper.make_node("Gather", ["g", "i"], ["big"], axis=1)],
               {"w": np.ones((1, 1, 99), np.float32), "i": np.zeros(1 << 13, np.int64)}),
    "Add": ([helper.make_node("Add", ["v", "w"], ["big"])], {"v": np.ones((1 << 15, 1), np.float32), "w": np.ones((1, 1 << 15), np.float32)}),
    "MatMul": ([helper.make_node("MatMul", ["v", "w"], ["big"])], {"v": np.ones((1 << 15, 1), np.float32), "w": np.ones((1, 1 << 15), np.float32)}),
    "Concat of Concat": ([helper.make_node("Concat", [f"c{i}"] * 9, [f"c{i + 1}"], axis=0) for i in range(20)]
                         + [helper.make_node("Identity", ["c20"], ["big"])], {"c0": np.float32([1])}),
    "steps of products": ([helper.make_node("MatMul", ["w" if i == 0 else f"c{i}", "w"], [f"c{i + 1}"]) for i in range(99)]
                          + [helper.make_node("Identity", ["c99"], ["big"])], {"w": np.eye(512, dtype=np.float32)}),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_constants_of_gigabytes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "ROOM", 1 << 26)
    nodes, arrays = BOMBS[name]
    file = written(tmp_path, model_of([*nodes, SUM, USE], arrays))
    tracemalloc.start()
    try:
        with pytest.raises(Error, match=r"its constants (have|need) .*for a file of this size|do not fit together") as caught:
            load(file)
        assert tracemalloc.get_traced_memory()[1] < 2 * budget.ROOM + (1 << 26)
    finally:
        tracemalloc.stop()
    assert caught.value.layer and caught.value.fix and caught.value.place == str(file)


def test_sparse_constants_of_gigabytes(tmp_path: Path) -> None:
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.float32([1]), "w"), numpy_helper.from_array(np.array([0]), "i"), [1 << 20, 1 << 20])
    held = helper.make_node("Constant", [], ["w"], sparse_value=sparse)
    for model in (model_of([ADD], sparse=[sparse]), model_of([held, ADD])):
        with pytest.raises(Error, match="its constants have"):
            load(written(tmp_path, model))


SPLIT = [helper.make_node("SplitToSequence", ["x"], ["q"], axis=3), helper.make_node("SequenceAt", ["q", "zero"], ["y"])]


@pytest.mark.parametrize(
    "nodes, sizes, fact",
    [
        ([helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")], (2, 2), "its constants have"),
        ([helper.make_node("Trilu", ["x"], ["y"])], (1 << 20, 1 << 20), "its constants have"),
        (SPLIT, (2, 1 << 40), r"an axis of 1099511627776 cannot be divided into parts of 1 \(at most [0-9,]+ parts\)"),
    ],
)
def test_small_models_of_large_layers(tmp_path: Path, nodes: list[Any], sizes: tuple[int, int], fact: str) -> None:
    model = model_of(nodes, {"s": np.float32([1, 1, 1e8, 1e8]), "zero": np.int64(0)})
    for axis, size in zip((2, 3), sizes):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    for dim in model.graph.output[0].type.tensor_type.shape.dim:
        dim.Clear()
    with pytest.raises(Error, match=fact):
        load(written(tmp_path, model))


@pytest.mark.parametrize("position, fact", [(7, "it takes place 7 of a sequence of 3"), (-4, "it takes place -4 of a sequence of 3")])
def test_places_outside_a_sequence(tmp_path: Path, position: int, fact: str) -> None:
    nodes = [helper.make_node("SplitToSequence", ["x"], ["q"], axis=1), helper.make_node("SequenceAt", ["q", "i"], ["y"])]
    model = model_of(nodes, {"i": np.int64(position)})
    for size in model.graph.output[0].type.tensor_type.shape.dim:
        size.Clear()
    with pytest.raises(Error, match=fact):
        load(written(tmp_path, model))


def test_parts_of_a_constant(tmp_path: Path) -> None:
    nodes = [helper.make_node("SplitToSequence", ["c", "n"], ["q"], axis=1), helper.make_node("SequenceAt", ["q", "i"], ["w"]), ADD]
    array = np.arange(24, dtype=np.float32).reshape(1, 6, 2, 2)
    for sizes in (np.int64(3), np.array([3, 3])):
        (blob,) = values_of(written(tmp_path, model_of(nodes, {"c": array, "n": sizes, "i": np.int64(1)})))
        np.testing.assert_array_equal(blob.reshape(-1), array[:, 3:].reshape(-1))


@pytest.mark.parametrize("size", [0, -1, [4], [-1, 4], [1 << 40]])
def test_parts_of_no_size(tmp_path: Path, size: Any) -> None:
    nodes = [helper.make_node("SplitToSequence", ["x", "n"], ["q"], axis=1), helper.make_node("SequenceAt", ["q", "i"], ["y"])]
    with pytest.raises(Error, match="an axis of 3 cannot be divided into parts of"):
        load(written(tmp_path, model_of(nodes, {"n": np.array(size), "i": np.int64(0)})))


def doubling(depth: int, last: str) -> list[Any]:
    """Return functions f0, f1, .., each of which calls the next one twice."""
    functions = []
    for number in range(depth):
        inner, domain = (f"f{number + 1}", "own") if number < depth - 1 else (last, "own" if last.startswith("f") else "")
        nodes = [helper.make_node(inner, ["a"], ["b"], domain=domain), helper.make_node(inner, ["b"], ["c"], domain=domain)]
        functions.append(helper.make_function("own", f"f{number}", ["a"], ["c"], nodes, [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]))
    return functions


MANY, NESTED = "make [0-9,]+ nodes, and at most 100,000 are accepted", "call themselves, or are nested over 100 deep"


@pytest.mark.parametrize("depth, last, fact", [(40, "Relu", MANY), (1, "f0", NESTED), (3, "f0", NESTED), (500, "Relu", NESTED)])
def test_functions_that_expand_without_limit(tmp_path: Path, depth: int, last: str, fact: str) -> None:
    model = model_of([helper.make_node("f0", ["x"], ["y"], domain="own")], functions=doubling(depth, last))
    with pytest.raises(Error, match=f"its functions {fact}"):
        load(written(tmp_path, model))


def test_functions_of_functions(tmp_path: Path) -> None:
    net, _ = load(written(tmp_path, model_of([helper.make_node("f0", ["x"], ["y"], domain="own")], functions=doubling(4, "Relu"))))
    assert len(net.layer) == 17


def test_the_budget_grows_with_the_file() -> None:
    mine = budget.Budget(room=0, steps=0)
    with pytest.raises(Error, match="its constants have 1 bytes; for a file of this size they may have 0 bytes"):
        mine.spend(1)
    mine.earn(np.ones(100, np.float32))
    mine.spend(3200, 6400)
    with pytest.raises(Error, match="its constants need 1 steps"):
        mine.spend(0, 1)


# Inputs and attributes of each operator that is folded.
UNARY = (
    "Acos", "Asin", "Atan", "Cosh", "Elu", "HardSigmoid", "LeakyRelu", "LpNormalization", "Selu", "Sinh", "Softsign",
    "Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "IsInf", "IsNaN", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softmax",
    "Softplus", "Sqrt", "Tan", "Tanh", "Identity", "Flatten", "Shape", "Size", "Transpose", "Trilu", "ArgMax", "ArgMin", "NonZero", "Max", "Mean", "Min",
    "Sum", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    "Clip",
)  # fmt: skip
BINARY = ("Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Pow", "PRelu", "Sub")
INPUTS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    **{name: ([X], {}) for name in UNARY},
    **{name: ([X, np.ones((5, 1, 3, 4), np.float32)], {}) for name in BINARY},
    **{name: ([np.ones((3, 1), bool), np.ones(4, bool)], {}) for name in ("And", "Or", "Xor")},
    **{name: ([np.ones((3, 1), np.int32), np.ones(4, np.int32)], {}) for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mod")},
    "Not": ([np.ones(4, bool)], {}), "BitwiseNot": ([np.ones(4, np.int32)], {}), "Where": ([np.ones((3, 1), bool), X, X], {}),
    "Cast": ([X], {"to": TensorProto.INT64}), "CastLike": ([X, np.ones(1, np.int64)], {}),
    "DequantizeLinear": ([np.ones((2, 3), np.int8), np.ones(3, np.float32), np.ones(3, np.int8)], {}),
    "QuantizeLinear": ([np.ones((2, 3), np.float32), np.ones(3, np.float32), np.ones(3, np.int8)], {}),
    "Concat": ([X, X], {"axis": 1}), "ConstantOfShape": ([np.array([2, 3])], {}), "Expand": ([X, np.array([5, 1, 3, 4])], {}),
    "EyeLike": ([np.ones((3, 4), np.float32)], {}),
    "Pad": ([X, np.array([1, 0, 0, 0, 2, 0])], {}), "Range": ([np.array(1), np.array(10), np.array(4)], {}), "Reshape": ([X, np.array([-1, 6])], {}),
    "Slice": ([X, np.array([1]), np.array([9]), np.array([2])], {}), "Split": ([X], {"axis": 1, "num_outputs": 2}),
    "Squeeze": ([np.ones((1, 3), np.float32)], {}), "Unsqueeze": ([X, np.array([1])], {}), "Tile": ([X, np.array([2, 1, 3])], {}),
    "Compress": ([X, np.array([True, False])], {"axis": 0}), "Gather": ([X, np.array([[0, 1, 1]])], {"axis": 2}),
    "GatherElements": ([X, np.zeros((2, 3, 4), np.int64)], {}), "GatherND": ([X, np.array([[0, 1]])], {}),
    "ScatterElements": ([X, np.zeros((1, 1, 1), np.int64), np.ones((1, 1, 1), np.float32)], {}),
    "ScatterND": ([X, np.array([[0, 1]]), np.ones((1, 4), np.float32)], {}), "OneHot": ([np.array([1, -1]), np.array(3), np.array([0.0, 2.0], np.float32)], {}),
    "CumSum": ([X, np.array(1)], {}),
    "DepthToSpace": ([np.ones((1, 8, 2, 3), np.float32)], {"blocksize": 2}), "SpaceToDepth": ([np.ones((1, 2, 4, 6), np.float32)], {"blocksize": 2}),
    "BatchNormalization": ([X, *[np.ones(3, np.float32)] * 4], {}),
    "MatMul": ([X, np.ones((2, 4, 7), np.float32)], {}), "Gemm": ([np.ones((2, 3), np.float32), np.ones((3, 5), np.float32)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FOLDED))
def test_the_size_of_a_constant_is_known_before(name: str) -> None:
    arrays, attributes = INPUTS[name]
    given, outputs = [f"i{number}" for number in range(len(arrays))], ["o", "p"][: 2 if name == "Split" else 1]
    node = node_of(helper.make_node(name, given, outputs, **attributes))
    graph = Graph("m.onnx", "g", 21, [node], [], outputs, dict(zip(given, arrays)), opset_import=[helper.make_opsetid("", 21)])
    assert constant.is_folded(graph, node)
    results = constant.computed(graph, node)
    paid = budget.ROOM - graph.budget.room
    assert paid == sum(result.nbytes for result in results) or (name in ("Compress", "NonZero") and paid >= sum(result.nbytes for result in results))
    assert budget.STEPS - graph.budget.steps >= sum(array.size for array in (*arrays, *results))


@pytest.mark.parametrize("number", [np.array(2), np.array([2]), np.array([2], np.int32)], ids=["number", "list", "int32"])
@pytest.mark.parametrize("name, expected", [("OneHot", [[0, 1], [0, 0], [1, 0], [0, 0]]), ("CumSum", None)])
def test_numbers_that_are_lists_of_one(name: str, number: np.ndarray, expected: Any) -> None:
    arrays = {"x": np.array([-1, 5, 0, -3]), "n": number, "v": np.array([0.0, 1.0], np.float32)} if name == "OneHot" else {"x": X, "n": number}
    node = node_of(helper.make_node(name, list(arrays), ["y"]))
    graph = Graph("m.onnx", "g", 17, [node], [], ["y"], dict(arrays), opset_import=[helper.make_opsetid("", 17)])
    np.testing.assert_allclose(constant.computed(graph, node)[0], np.cumsum(X, 2) if expected is None else expected)


@pytest.mark.parametrize("scale, options", [((), {}), ((3,), {}), ((2,), {"axis": 0}), ((2, 2), {"axis": 1, "block_size": 2})])
def test_scales_that_fit(scale: tuple[int, ...], options: dict[str, int]) -> None:
    arrays = {"x": np.arange(6, dtype=np.int8).reshape(2, 3), "s": np.full(scale, 0.5, np.float32)}
    node = node_of(helper.make_node("DequantizeLinear", ["x", "s"], ["y"], **options))
    graph = Graph("m.onnx", "g", 21, [node], [], ["y"], dict(arrays), opset_import=[helper.make_opsetid("", 21)])
    np.testing.assert_array_equal(constant.computed(graph, node)[0], arrays["x"] * np.float32(0.5))


# -- verification and names ------------------------------------------------------------------------------------------


def test_the_reference_runs_only_what_the_net_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # importing it fails
    unused = helper.make_node("Loop", ["", "true", "one"], ["unused"], body=endless("").attribute[0].g)
    taken = helper.make_graph([endless(""), helper.make_node("Relu", ["x"], ["y"])], "then", [], [info("y", 1, 3, 2, 2)])
    other = helper.make_graph([endless(""), helper.make_node("Add", ["x", "k"], ["z"])], "else", [], [info("z", 1, 3, 2, 2)])
    model = model_of([unused, helper.make_node("If", ["true"], ["y"], then_branch=taken, else_branch=other)], {"true": True, "one": np.float32(1)})
    assert main(["convert", str(written(tmp_path, model)), str(tmp_path / "n.prototxt"), str(tmp_path / "n.caffemodel")]) == 0
    assert "equal to ocaffe's outputs in onnx.reference" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["\nlayer { name: 'i' type: 'Python' }\n#", "\rlayer {}", "\u2028layer {}", "\x85layer {}", "\x1b[2J", "\udcff"])
def test_the_name_of_the_file_stays_in_its_comment(tmp_path: Path, ending: str) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])])
    text = import_model.prototxt_of(load(written(tmp_path, model))[0], f"folder/m{ending}.onnx").decode()
    comment, rest = text.split("\n", 1)
    assert comment.startswith("# Converted from m\\") and comment.endswith("by ocaffe.") and comment.isprintable() and "Python" not in rest
    assert import_model.prototxt_of(load(written(tmp_path, model))[0], "größe 1.onnx").decode().startswith("# Converted from größe 1.onnx by")
