"""Compute nodes whose inputs are constants.

A model may come from anybody, and onnx's reference evaluator would run whatever it has: endless loops, decoders of images that start programs. So only the
operators in FOLDED run. The size of each result is known before it is made, and a budget limits sizes and steps.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import TensorProto, TypeProto, defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from ocaffe.convert.importer.graph import Graph, Node, array_of, dense_of
from ocaffe.errors import Error, shape_text
from ocaffe.ir.tensor import Shape

ELEMENTWISE = frozenset((
    "Abs", "Acos", "Add", "And", "Asin", "Atan", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal",
    "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual", "HardSigmoid", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min",
    "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus",
    "Softsign", "Sqrt", "Sub", "Sum", "Tan", "Tanh", "Where", "Xor",
))  # fmt: skip
FOLDED = ELEMENTWISE | frozenset((
    # types
    "Cast", "CastLike", "DequantizeLinear", "QuantizeLinear",
    # shapes
    "Concat", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Flatten", "Identity", "Pad", "Range", "Reshape", "Shape", "Size", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze",
    # places
    "ArgMax", "ArgMin", "Compress", "Gather", "GatherElements", "GatherND", "NonZero", "OneHot", "ScatterElements", "ScatterND",
    # sums
    "BatchNormalization", "CumSum", "Gemm", "LpNormalization", "MatMul", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
))  # fmt: skip
# The steps of operators that take more than one for each input and each value of the result. The evaluator computes places in loops of Python.
STEPS: dict[str, Callable[[list[np.ndarray], int], int]] = {
    **dict.fromkeys(("Gemm", "MatMul"), lambda inputs, values: values * max(inputs[0].shape[-2:], default=1)),
    **dict.fromkeys(("Erf", "GatherElements"), lambda inputs, values: LOOP * values),
    "GatherND": lambda inputs, values: values + LOOP * inputs[1].size,
    "ScatterElements": lambda inputs, values: values + LOOP * inputs[1].size,
    "ScatterND": lambda inputs, values: values + math.prod(inputs[1].shape[:-1]) * (LOOP + math.prod(inputs[0].shape[(inputs[1].shape or (0,))[-1] :])),
}
LOOP = 100
EVALUATED_AS = {"DequantizeLinear": 19, "QuantizeLinear": 19}  # the evaluator has no older ones. They compute the same
NUMBERS = ("CumSum", "OneHot")  # the second input is one number. Runtimes take a list of one too, and the evaluator does not
KINDS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64, "value_string": object, "value_strings": object}
WRONG_NODE = "correct this node in the program that makes the model"
_TERM = r"[A-Za-z ]*(\.\.\.)?[A-Za-z ]*"
EQUATION = re.compile(rf"{_TERM}(,{_TERM}){{0,63}}(->{_TERM})?")  # of Einsum
MOST_LETTERS = 1000
SMALL = 1024  # values; shapes, axes and scales have fewer, and weights have more


def held(graph: Graph, node: Node) -> np.ndarray:
    """Return the values of a Constant. They are in the file."""
    if len(node.attributes) != 1:
        raise failed(graph, node, f"a Constant has one value, this one has {len(node.attributes)}")
    ((kind, value),) = node.attributes.items()
    if kind == "sparse_value":
        return dense_of(value, graph.place, graph.budget)
    array = array_of(value, graph.place) if kind == "value" else np.array(value, KINDS[kind])
    graph.budget.earn(array)
    return array


def is_folded(graph: Graph, node: Node) -> bool:
    """Whether `computed` may compute a node: of numbers, all known, by an operator in FOLDED."""
    known = all(name in graph.constants and not is_text(graph.constants[name]) for name in node.inputs if name)
    return known and node.op in FOLDED and node.message is not None and not (node.op == "Cast" and node.get("to") == TensorProto.STRING)


def is_text(array: np.ndarray) -> bool:
    return array.dtype.kind in "OSU"


def computed(graph: Graph, node: Node) -> list[np.ndarray]:
    """Return the outputs of a node that `is_folded`. Raises Error if the budget of the graph does not allow it."""
    feeds = {name: graph.constants[name] for name in node.inputs if name}
    node.message.input[:] = node.inputs
    made, arrays = list(_sizes(graph, node)), [graph.constants[name] for name in node.inputs if name]
    values = sum(count for count, _ in made)
    steps = STEPS[node.op](arrays, values) if node.op in STEPS else values * max(1, len(arrays))
    graph.budget.spend(sum(size for _, size in made), steps + sum(array.size for array in arrays))
    given, outputs = ([helper.make_value_info(name, TypeProto()) for name in names if name] for names in (feeds, node.outputs))
    if node.op in NUMBERS and arrays[1].size == 1:
        node.message.input[1] = number = f"{node.inputs[1]} number"
        feeds[number] = arrays[1].reshape(())
        given.append(helper.make_value_info(number, TypeProto()))
    alone = helper.make_graph([node.message], "constant", given, outputs)  # for a single node the evaluator ignores the opset, for a graph it does not
    try:
        results = ReferenceEvaluator(alone, opsets={"": max(graph.opset, EVALUATED_AS.get(node.op, 0))}).run(None, feeds)
    except Exception as problem:  # the evaluator has no exception type
        raise failed(graph, node, problem) from None
    return [np.asarray(value) for value in results]


def _sizes(graph: Graph, node: Node) -> Iterator[tuple[int, int]]:
    """Yield the values and the bytes of each output, at least as many as the evaluator makes. Raises Error where the inputs do not tell them."""
    arrays = [graph.constants[name] for name in node.inputs if name]
    if node.op in ("NonZero", "Compress"):  # their size depends on values, but is limited
        count = arrays[0].size * (max(1, arrays[0].ndim) if node.op == "NonZero" else 1)
        yield count, count * 8
        return
    least = 0
    if node.op in ELEMENTWISE:  # numpy broadcasts to all inputs, where ONNX may broadcast to the first one only
        try:
            least = math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))
        except ValueError as problem:
            raise failed(graph, node, problem) from None
    elif node.op == "Tile":  # numpy repeats along one axis after the other, and the last one may have no values
        least = arrays[0].size * math.prod(max(1, times) for times in arrays[1].ravel().tolist())
    elif not _fitting(node, arrays):
        raise failed(graph, node, f"its inputs do not fit together: they are {', '.join(shape_text(array.shape) for array in arrays)}")
    found = inferred(graph, node, {name: helper.np_dtype_to_tensor_dtype(graph.constants[name].dtype) for name in node.inputs if name})
    for name in filter(None, node.outputs):
        shape = shape_of(found[name]) if name in found else None
        if shape is None or min(shape, default=0) < 0:
            raise failed(graph, node, "its inputs do not tell the size of its result")
        count = max(least, math.prod(shape))
        yield count, count * helper.tensor_dtype_to_np_dtype(found[name].tensor_type.elem_type).itemsize


def _fitting(node: Node, arrays: list[np.ndarray]) -> bool:
    """Whether the inputs for each channel have a value for each channel. The evaluator would broadcast to any other number."""
    x, others = arrays[0].shape, [array.shape for array in arrays[1:]]
    if node.op == "BatchNormalization":
        return all(shape == x[1:2] for shape in others)
    if node.op in ("DequantizeLinear", "QuantizeLinear") and any(math.prod(shape) != 1 for shape in others):
        axis, each = node.get("axis", 1), node.get("block_size", 0)
        if not -len(x) <= axis < len(x):
            return False
        wanted = [-(-size // each) if place == axis % len(x) else size for place, size in enumerate(x)] if each > 0 else [x[axis]]
        return all(list(shape) == wanted for shape in others)
    return True


def inferred(graph: Graph, node: Node, kinds: dict[str, int], newest: int = 0) -> dict[str, Any]:
    """Return the types of the outputs as onnx infers them. `kinds` are the types of the constants, `newest` is an opset that replaces an older one."""
    _check_places(graph, node)
    types = {name: graph.types[name] for name in node.inputs if name in graph.types}
    types |= {name: helper.make_tensor_type_proto(kind, graph.constants[name].shape) for name, kind in kinds.items()}
    data = {name: graph.constants[name] for name in kinds if graph.constants[name].size <= SMALL}
    values = {name: numpy_helper.from_array(array.astype(helper.tensor_dtype_to_np_dtype(kinds[name]), copy=False), name) for name, array in data.items()}
    node.message.input[:] = node.inputs
    schema = defs.get_schema(node.op, max(graph.opset, newest), "")
    try:
        return dict(shape_inference.infer_node_outputs(schema, node.message, types, values, opset_imports=list(graph.opset_import)))
    except Exception as problem:  # of onnx, also for a number of a type that does not exist
        raise failed(graph, node, problem) from None


def _is_equation(text: Any) -> bool:
    """Whether onnx can take the text as an equation of Einsum. Its letters are bounded by the axes of a tensor, so a longer text has no meaning."""
    text = text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)
    return len(text) <= MOST_LETTERS and EQUATION.fullmatch(text) is not None


def _check_places(graph: Graph, node: Node) -> None:
    """Raise Error for an axis that the first input lacks, or an output that the node lacks. onnx reads memory outside of its arrays for some of them."""
    parts = node.get("num_outputs", len(node.outputs))
    if parts != len(node.outputs):
        raise failed(graph, node, f"num_outputs is {parts}, and it has {len(node.outputs)} outputs")
    if node.get("hidden_size", 1) < 1:
        raise failed(graph, node, f"its hidden_size is {node.get('hidden_size')}, and it has 1 or more")
    if node.op == "Einsum" and not _is_equation(node.get("equation", "")):
        raise failed(graph, node, "its equation is not terms of letters, with at most one '...' each")  # onnx never ends for '......'
    x = node.input(0)
    if x not in graph.constants and (x not in graph.types or shape_of(graph.types[x]) is None):
        return
    rank = len(graph.shape(x))
    for name, least in (("axis", -rank), ("batch_dims", 0)):
        value = node.get(name, 0)
        if not least <= value <= rank:
            raise failed(graph, node, f"{name} is {value}, and '{x}' is {shape_text(graph.shape(x))}")


def shape_of(kind: Any) -> Shape | None:
    """Return the shape in a TypeProto, None if it does not tell all sizes."""
    tensor = kind.tensor_type
    known = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    return tuple(dim.dim_value for dim in tensor.shape.dim) if known else None


def failed(graph: Graph, node: Node, problem: Any) -> Error:
    """Return the error for a node that contradicts itself. `problem`: the fact, or an exception of onnx or numpy."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    fact = f"its inputs do not fit together: {text}" if isinstance(problem, Exception) else text
    return Error(fact, place=graph.place, layer=node.title, fix=graph.remedy(node, WRONG_NODE))
