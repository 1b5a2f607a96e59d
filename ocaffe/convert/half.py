"""Convert a model to fp16: weights and insensitive operators use 16 bits. Inputs, outputs and sensitive layers keep 32 bits."""
from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
OPERATORS = frozenset((
    "Abs", "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "ConvTranspose", "Elu", "Flatten", "Gather", "Gemm",
    "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "Identity", "LeakyRelu", "Max", "MaxPool", "Min", "Mul", "PRelu", "Pad", "Relu", "Reshape",
    "Resize", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Unsqueeze",
))  # fmt: skip
DATA_INPUTS = {"Resize": 1}  # operators whose other float inputs (scales) always have 32 bits
# Layers with sums of squares, exponentials of coordinates, or choices that rounding would change.
PRECISE = frozenset((
    "ArgMax", "BN", "CTCGreedyDecoder", "DetectionOutput", "LRN", "MVN", "Normalize", "PSROIPooling", "Proposal", "ROIPooling", "YoloDetectionOutput",
    "Yolov3DetectionOutput",
))  # fmt: skip
LARGEST = float(np.finfo(np.float16).max)


def to_half(model: onnx.ModelProto, weights: dict[str, np.ndarray], precise: Collection[str]) -> onnx.ModelProto:
    """Convert `model`, whose shapes are inferred, to 16 bits where an operator allows it. Nodes named in `precise` keep 32 bits.

    Casts are inserted between the two. `weights` are the values of the model's last inputs. They are converted in place.
    """
    graph = model.graph
    small = {tensor.name: tensor for tensor in graph.initializer}
    floats = {info.name for info in (*graph.input, *graph.value_info, *graph.output) if info.type.tensor_type.elem_type == FLOAT}
    floats |= {name for name, tensor in small.items() if tensor.data_type == FLOAT}
    ends = {info.name for info in graph.output}
    halves = set[str]()  # values in 16 bits
    cast: dict[tuple[str, int], str] = {}
    nodes: list[onnx.NodeProto] = []

    def seen(name: str, wanted: int) -> str:
        """Return the name of a value that holds `name` in the wanted precision. Add a Cast or a converted constant if there is none."""
        if (HALF if name in halves else FLOAT) == wanted:
            return name
        key = name, wanted
        if key not in cast:
            cast[key] = f"{name}/{16 if wanted == HALF else 32}"
            if name in weights:
                weights[cast[key]] = _halved(weights[name])
                graph.input.append(helper.make_tensor_value_info(cast[key], HALF, weights[name].shape))
            elif name in small:
                graph.initializer.append(numpy_helper.from_array(_halved(numpy_helper.to_array(small[name])), cast[key]))
            else:
                nodes.append(helper.make_node("Cast", [name], [cast[key]], cast[key], to=wanted))
            floats.add(cast[key])
        return cast[key]

    for node in list(graph.node):
        half = node.op_type in OPERATORS and node.name not in precise and any(name in floats for name in (*node.input, *node.output))
        for i, name in enumerate(node.input):
            if name in floats:
                node.input[i] = seen(name, HALF if half and i < DATA_INPUTS.get(node.op_type, len(node.input)) else FLOAT)
        nodes.append(node)
        for i, name in enumerate(node.output):
            if half and name in floats and name in ends:
                node.output[i] = f"{name}/16"
                nodes.append(helper.make_node("Cast", [node.output[i]], [name], f"{name}/32", to=FLOAT))
                cast[name, HALF] = node.output[i]
                halves.add(node.output[i])
            elif half and name in floats:
                halves.add(name)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    _drop_unused(model, weights)
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def _halved(array: np.ndarray) -> np.ndarray:
    """Return `array` in 16 bits. Finite values out of range become the largest number."""
    return np.where(np.isfinite(array), np.clip(array, -LARGEST, LARGEST), array).astype(np.float16)


def _drop_unused(model: onnx.ModelProto, weights: dict[str, np.ndarray]) -> None:
    """Remove the constants that no node reads any more."""
    used = set[str]()
    pending = [model.graph]
    while pending:
        for node in pending.pop().node:
            used.update(node.input)
            pending += [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    gone = weights.keys() - used
    for name in gone:
        del weights[name]
    sides: list[tuple[Any, set[str]]] = [(model.graph.initializer, {tensor.name for tensor in model.graph.initializer} - used), (model.graph.input, gone)]
    for parts, unused in sides:
        kept = [part for part in parts if part.name not in unused]
        del parts[:]
        parts.extend(kept)
