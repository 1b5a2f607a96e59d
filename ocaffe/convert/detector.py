"""The raw head of an ONNX detector: its last convolutions, and a note with the formulas that a program needs behind them."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ocaffe.convert.importer.decoding import Level, Unknown, Values, formulas, is_count
from ocaffe.convert.importer.fold import fold
from ocaffe.convert.importer.graph import Graph, array_of, graph_of
from ocaffe.convert.importer.read import opset_of
from ocaffe.errors import Error, shape_text
from ocaffe.ir.tensor import Shape

CONVOLUTIONS = ("Conv", "ConvTranspose")
OTHERS = ("Gemm", "LSTM", "GRU", "RNN", "Einsum", "GlobalAveragePool", "GlobalMaxPool")  # between the last convolutions and the outputs of other nets
SHAPES = ("Shape", "Size")  # what they read has no influence on values
MOST_CHANNELWISE = 4
CHANNELWISE = ("Add", "Mul", "BatchNormalization")  # after a convolution, with a number for each channel: YOLOv7
POINTWISE = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Clip", "Softplus", "Mul", "Identity")  # what may follow a map that is whole


def raw_outputs(model: Any, place: str) -> list[str]:
    """Return the last convolutions before the outputs of a detector, in the order of the file. Raises Error if the model is none."""
    nodes, constants = list(model.graph.node), _constants(model)
    producers = {name: node for node in nodes for name in node.output}
    found: set[str] = set()
    for output in model.graph.output:
        tensors, operators = _last(output.name, producers, constants)
        other = next((node for node in operators if node.op_type in OTHERS and not _counts(node, constants)), None)
        if other is not None or not tensors:
            fact = f"--raw-detection ends a detector at its last convolutions, and '{output.name}' "
            fact += f"is behind {_title(other)}" if other is not None else "does not depend on one"
            raise Error(fact, place=place, fix="leave out --raw-detection; --cut-at names the tensors that are to be the outputs")
        whole = len(tensors) == 1 and all(node.op_type in POINTWISE for node in operators)
        found |= {output.name} if whole else tensors
    order = {name: number for number, node in enumerate(nodes) for name in node.output}
    return sorted(found, key=lambda name: order.get(name, -1))


def _constants(model: Any) -> dict[str, Any]:
    """Return the initializers and the Constants of a model by name, as TensorProtos."""
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    return found | {node.output[0]: item.t for node in model.graph.node if node.op_type == "Constant" for item in node.attribute if item.name == "value"}


def _last(tensor: str, producers: Mapping[str, Any], constants: Mapping[str, Any]) -> tuple[set[str], list[Any]]:
    """Return the last convolutions before a tensor, with the operators of their channels, and all nodes behind them."""
    found, behind, pending, seen = set[str](), list[Any](), [tensor], set[str]()
    while pending:
        name = pending.pop()
        node = producers.get(name)
        if name in seen or node is None:
            continue
        seen.add(name)
        if node.op_type in SHAPES:
            continue
        if _ends(node, producers, constants):
            found.add(name)
        else:
            behind.append(node)
            pending.extend(node.input)
    return found, behind


def _ends(node: Any, producers: Mapping[str, Any], constants: Mapping[str, Any]) -> bool:
    """Whether a node is a convolution that is not the mean over bins, or one with operators for each channel behind it."""
    for _ in range(MOST_CHANNELWISE):
        if node.op_type not in CHANNELWISE:
            break
        known = [name in constants and _of_channels(constants[name]) for name in node.input[:2]]
        if node.op_type != "BatchNormalization" and sum(known) != 1:
            return False
        before = producers.get(node.input[0 if node.op_type == "BatchNormalization" else known.index(False)])
        if before is None:
            return False
        node = before
    return node.op_type in CONVOLUTIONS and not _counts(node, constants)


def _of_channels(tensor: Any) -> bool:
    """Whether a constant has a number for each channel of N x C x H x W."""
    dims = list(tensor.dims)
    return len(dims) in (3, 4) and dims[-2:] == [1, 1] and dims[-3] > 1


def _title(node: Any) -> str:
    return f"'{node.name or node.output[0]}' ({node.op_type})"


# -- the note ----------------------------------------------------------------------------------------------------------


def decoding_note(model: Any, place: str, shapes: Mapping[str, Sequence[int]], outputs: Sequence[str]) -> list[str]:
    """Return lines that say how a program computes the model's outputs from the tensors `outputs`, at which the net ends.

    There are none if a layer with weights is cut off: then the net has been cut for another purpose.
    """
    wanted = [output.name for output in model.graph.output if output.name not in outputs]
    behind = _behind(model, wanted, set(outputs))
    constants = _constants(model)
    weighted = [node for node in behind if node.op_type in (*CONVOLUTIONS, *OTHERS) and not _counts(node, constants)]
    if not wanted or not behind or weighted:
        return []
    lines = [f"note: the net ends before the decoding of {', '.join(wanted)}. It has these outputs:"]
    try:
        graph = graph_of(model, opset_of(model, place), place, shapes=shapes, outputs=list(outputs))
        fold(graph)
        own = {output.name for output in model.graph.output}
        given = _given(graph, [name for name in outputs if name not in own])
        lines += [f"  {letter}: {name} {shape_text(graph.shape(name))}{_stride(values)}" for (name, values), letter in given]
        lines += [f"  {name} {shape_text(graph.shape(name))}, as in the model" for name in outputs if name in own]
        whole = graph_of(model, opset_of(model, place), place, shapes=shapes, outputs=[*wanted, *outputs])
        fold(whole)
        texts, legends = formulas(whole, {name: values for (name, values), _ in given}, wanted)
        lines += ["  Your program computes:", *(f"    {text}" for text in (*texts, *legends))]
    except (Error, Unknown):
        operators = sorted({node.op_type for node in behind if node.op_type != "Constant"})
        lines.append(f"  Your program computes the rest, which has the operators {', '.join(operators)}.")
    made = {name for node in behind for name in node.output} | set(outputs) | set(constants)
    if all(name in made for node in behind for name in node.input if name):
        call = f"onnx.utils.extract_model({place!r}, 'decoding.onnx', {list(outputs)!r}, {wanted!r})"
        lines.append(f"  The rest as a model, for example to compare with: {call}")
    return lines


def _behind(model: Any, wanted: Sequence[str], ends: set[str]) -> list[Any]:
    """Return the nodes that compute the tensors `wanted` from the tensors `ends`."""
    producers = {name: node for node in model.graph.node for name in node.output}
    found: dict[int, Any] = {}
    pending = list(wanted)
    while pending:
        name = pending.pop()
        node = producers.get(name)
        if name not in ends and node is not None and id(node) not in found:
            found[id(node)] = node
            pending.extend(() if node.op_type in SHAPES else node.input)
    return list(found.values())


def _counts(node: Any, constants: Mapping[str, Any]) -> bool:
    """Whether a node computes the mean over bins: its weights are 0, 1, 2 .."""
    weights = constants.get(node.input[1]) if len(node.input) > 1 else None
    sizes = [] if weights is None else [size for size in weights.dims if size > 1]
    with contextlib.suppress(Error):  # the import names a damaged tensor
        return weights is not None and len(sizes) == 1 and is_count(array_of(weights, ""), sizes[0])
    return False


def _given(graph: Graph, outputs: Sequence[str]) -> list[tuple[tuple[str, Values], str]]:
    """Return the tensors that the program gets, with a letter. The tensors of each level have the letters a, b, c .. in their order."""
    image = graph.shape(graph.inputs[0])
    counts: dict[Level, Iterator[str]] = {}
    found = []
    for name in outputs:
        shape = graph.shape(name)
        if len(shape) < 2:
            raise Unknown(name)
        level = _level(shape, image)
        letter = next(counts.setdefault(level, iter("abcdefghijklmnopqrstuvwxyz")), "z")
        axis = 1 if len(shape) in (3, 4) else len(shape) - 1
        found.append(((name, Values(axis, shape[axis], _ranged(letter), (level,))), letter))
    return found


def _ranged(letter: str) -> Any:
    return lambda start, end: f"{letter}[{start}]" if end == start + 1 else f"{letter}[{start}:{end}]"


def _level(shape: Shape, image: Shape) -> Level:
    """Return the level of N x C x H x W, or of N x anchors x H x W x values. Its stride is 0 if the shape does not tell it."""
    height, width = shape[2:4] if len(shape) in (4, 5) and len(image) == 4 else (0, 0)
    strides = {whole / size for whole, size in zip(image[2:], (height, width)) if size}
    return Level(height, width, strides.pop() if len(strides) == 1 else 0)


def _stride(values: Values) -> str:
    (level,) = values.levels
    return f", stride {level.stride:g}" if level.stride else ""
