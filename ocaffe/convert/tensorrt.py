"""Which nodes of an ONNX model the parser of TensorRT does not list, or lists with a restriction that they break.

The facts are those of docs/operators.md of github.com/onnx/onnx-tensorrt at 96e781103c of 2024-06-17, the release for TensorRT 10.1. TensorRT itself has not
run these models.
"""
from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import onnx
from onnx import TensorProto

from ocaffe.convert.importer.graph import array_of
from ocaffe.convert.pieces import kinds_of, subgraphs
from ocaffe.errors import Error

VERSION = "TensorRT 10.1"
OPSETS = (9, 20)
MOST_OF_TOPK = 3839
HALF = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16))
FLOAT = HALF | {TensorProto.BFLOAT16}
WHOLE = frozenset((TensorProto.INT32, TensorProto.INT64))
BOOL = frozenset((TensorProto.BOOL,))
# Types of the elements that an operator takes
TYPES: dict[str, frozenset[int]] = {name: kinds for names, kinds in {
    "Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Celu Clip Conv ConvTranspose Cos Cosh CumSum Dropout Einsum Elu Erf Exp Floor GRU "
    "Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization HardSigmoid HardSwish Hardmax ImageScaler InstanceNormalization IsInf LRN LSTM "
    "LayerNormalization LeakyRelu Log LogSoftmax LpNormalization LpPool MatMul MaxPool MeanVarianceNormalization PRelu ParametricSoftplus Pow QuantizeLinear "
    "RNN RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal Resize Round ScaledTanh Scan Selu Sigmoid Sin Sinh Softmax Softplus "
    "Softsign Sqrt Tan Tanh ThresholdedRelu Upsample": FLOAT,
    "DeformConv GridSample Mish NonMaxSuppression NonZero RoiAlign": HALF,
    "Abs Add ArgMax ArgMin DepthToSpace Div Equal Gelu Greater GreaterOrEqual IsNaN Less LessOrEqual Max Mean Min Mod Mul Neg Pad Range ReduceL1 ReduceL2 "
    "ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Scatter ScatterElements ScatterND Shrink Sign "
    "SpaceToDepth Sub Sum TopK": FLOAT | WHOLE,
    "Concat Constant ConstantOfShape Expand EyeLike Flatten Gather GatherElements GatherND Identity If Loop OneHot Reshape ReverseSequence Shape Size Slice "
    "Split Squeeze Tile Transpose Trilu Unsqueeze Where": FLOAT | WHOLE | BOOL,
    "And Not Or Xor": BOOL,
    "Cast CastLike": FLOAT | WHOLE | BOOL | {TensorProto.UINT8},
    "DequantizeLinear": frozenset((TensorProto.INT8, TensorProto.FLOAT8E4M3FN, TensorProto.INT4)),
}.items() for name in names.split()}  # fmt: skip
OPERAND = {"Where": 1}  # the input whose type counts, if it is not the first
CONSTANT = {  # inputs that must be constants
    "CumSum": (1,), "Slice": (3,), "Squeeze": (1,), "Unsqueeze": (1,), "Pad": (3,), "OneHot": (1,),
    **dict.fromkeys((name for name in TYPES if name.startswith("Reduce")), (1,)),
}  # fmt: skip
MODES = {  # of Resize
    "coordinate_transformation_mode": ("half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn", "asymmetric", "align_corners"),
    "mode": ("nearest", "linear"), "nearest_mode": ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"), "keep_aspect_ratio_policy": ("stretch",),
}  # fmt: skip
Settings = Mapping[str, Any]


def _of_pool(node: onnx.NodeProto, settings: Settings, constants: Mapping[str, Any]) -> str:
    if len(settings.get("kernel_shape", (1, 1))) not in (2, 3):
        return "it pools images and volumes alone"
    if max(settings.get("dilations", (1,))) > 1:
        return "its dilations must be 1"
    return "it has no indices as a second output" if len(node.output) > 1 and node.output[1] else ""


def _of_topk(node: onnx.NodeProto, settings: Settings, constants: Mapping[str, Any]) -> str:
    count = constants.get(node.input[1])
    if settings.get("sorted", 1) != 1:
        return "sorted must be 1"
    return f"it takes at most {MOST_OF_TOPK} values, here {int(count.max())}" if count is not None and count.max() > MOST_OF_TOPK else ""


def _of_resize(node: onnx.NodeProto, settings: Settings, constants: Mapping[str, Any]) -> str:
    wrong = [f"{name} {settings[name].decode()}" for name, known in MODES.items() if name in settings and settings[name].decode() not in known]
    return f"it does not take {wrong[0]}" if wrong else "it does not take antialias" if settings.get("antialias") else ""


def _of_recurrent(node: onnx.NodeProto, settings: Settings, constants: Mapping[str, Any]) -> str:
    wrong = next((name for name in ("input_forget", "layout") if settings.get(name)), "")
    return f"{wrong} must be 0" if wrong else ""


RESTRICTIONS: dict[str, Callable[[onnx.NodeProto, Settings, Mapping[str, Any]], str]] = {
    "AveragePool": _of_pool, "MaxPool": _of_pool, "LpPool": _of_pool, "TopK": _of_topk, "Resize": _of_resize, "LSTM": _of_recurrent, "GRU": _of_recurrent,
    "ScatterND": lambda node, settings, constants: "it has no reduction" if settings.get("reduction", b"none") != b"none" else "",
    "LayerNormalization": lambda node, settings, constants: "it has one output" if any(node.output[1:]) else "",
}  # fmt: skip
DYNAMIC = ("NonZero", "NonMaxSuppression")  # operators whose results have sizes that depend on values


def unlisted(model: onnx.ModelProto) -> list[str]:
    """Return a text for each kind of node that the list lacks or restricts: the operator, the reason, how many nodes, and the first of them."""
    found: dict[tuple[str, str], list[str]] = {}
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 0)
    kinds = kinds_of(model) | {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for node, constants in _nodes(model.graph, {}):
        reason = _reason(node, kinds, constants)
        if reason:
            found.setdefault((node.op_type, reason), []).append(node.name or next(iter(node.output), ""))
    texts = [f"{op}: {reason} ({len(names)}, first '{names[0]}')" for (op, reason), names in found.items()]
    wrong = [] if OPSETS[0] <= opset <= OPSETS[1] else [f"opset {opset}: it takes {OPSETS[0]} to {OPSETS[1]} (--opset 17)"]
    return wrong + texts


def dynamic(model: onnx.ModelProto) -> bool:
    """Whether the sizes of results depend on values."""
    return any(node.op_type in DYNAMIC for node, _ in _nodes(model.graph, {}))


def _nodes(graph: onnx.GraphProto, outer: MutableMapping[str, Any]) -> Iterator[tuple[onnx.NodeProto, Mapping[str, Any]]]:
    """Yield the nodes of a graph and of those inside, with the constants that they can read: the value of a single number, else None."""
    constants = ChainMap({tensor.name: _number(tensor) for tensor in graph.initializer}, outer)
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            constants[node.output[0]] = next((_number(item.t) for item in node.attribute if item.name == "value"), None)
        yield node, constants
        for inner in subgraphs(node):
            yield from _nodes(inner, constants)


def _number(tensor: onnx.TensorProto) -> Any:
    if list(tensor.dims) not in ([], [1]) or tensor.data_location == TensorProto.EXTERNAL:
        return None
    with contextlib.suppress(Error):  # of damaged data
        return array_of(tensor, "")
    return None


def _reason(node: onnx.NodeProto, kinds: Mapping[str, int], constants: Mapping[str, Any]) -> str:
    """Return why the list does not cover a node, or an empty text."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in TYPES:
        return "it is not in the list"
    at = OPERAND.get(node.op_type, 0)
    tensors = [*(node.input[at : at + 1] if node.input else node.output[:1]), *(node.output[:1] if node.op_type == "Cast" else [])]
    kind = next((kinds[name] for name in tensors if kinds.get(name, TensorProto.FLOAT) not in TYPES[node.op_type]), None)
    if kind == TensorProto.DOUBLE:
        return "it computes in double precision, which TensorRT makes single"
    if kind is not None:
        return f"it does not take {TensorProto.DataType.Name(kind)}"
    computed = next((at for at in CONSTANT.get(node.op_type, ()) if at < len(node.input) and node.input[at] and node.input[at] not in constants), None)
    if computed is not None:
        return f"its input {computed} must be a constant"
    restriction = RESTRICTIONS.get(node.op_type)
    settings = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute} if restriction else {}
    return restriction(node, settings, constants) if restriction else ""
