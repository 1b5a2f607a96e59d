"""Fold constants and infer the shapes of all other tensors, without running the model."""
from __future__ import annotations

import collections
from typing import Any

import numpy as np
from onnx import TypeProto, checker, defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from ocaffe.errors import Error, shape_text
from ocaffe.onnx.importer.graph import FLOATS, Graph, Node, array_of, dense_of, node_of
from ocaffe.onnx.importer.reopen import reopen

DRAWS = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")

# With ceil_mode, PyTorch and all runtimes drop a window that starts after the image. ONNX's shape inference does so since this opset.
INFERRED_AS = {"MaxPool": 22, "AveragePool": 22}
NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}  # second operands that change nothing
LIKE_INPUT = ("GroupNormalization",)  # operators that are functions of others; onnx does not infer their shapes


def fold(graph: Graph) -> None:
    """Compute tensors that depend only on constants and shapes, infer all other shapes, and remove nodes that change nothing."""
    same: dict[str, str] = {}  # output of a node that changes nothing -> its input
    sequences: dict[str, list[str]] = {}
    kept: list[Node] = []
    pending = collections.deque(graph.nodes)
    while pending:
        node = pending.popleft()
        node.inputs = [same.get(name, name) for name in node.inputs]
        if node.op == "If" and node.inputs[0] in graph.constants:
            pending.extendleft(reversed(_branch(graph, node)))
            continue
        reopen(graph, node)
        if _constant(graph, node):
            continue
        if node.op == "SplitToSequence":
            node = _split(graph, node, sequences)
        elif node.op == "SequenceAt" and node.inputs[0] in sequences:
            part = sequences[node.inputs[0]][int(graph.constants[node.inputs[1]])]
            graph.types[node.outputs[0]] = graph.types[part]
            node = Node("Identity", [part], node.outputs, name=node.name)
        else:
            _infer(graph, node)
        if _changes_nothing(graph, node) and node.outputs[0] not in graph.outputs:
            same[node.outputs[0]] = node.inputs[0]
        else:
            kept.append(node)
    graph.nodes = kept
    graph.prune()


def _branch(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes of the branch that an If with a known condition takes. Their names are unique in the whole model."""
    inner = node.get("then_branch" if graph.constants[node.inputs[0]].all() else "else_branch")
    graph.constants.update({tensor.name: array_of(tensor, graph.place) for tensor in inner.initializer})
    passed = [node_of(helper.make_node("Identity", [item.name], [output])) for item, output in zip(inner.output, node.outputs)]
    return [*map(node_of, inner.node), *passed]


def _constant(graph: Graph, node: Node) -> bool:
    """Evaluate the node if its outputs are constant. Return whether they are."""
    constants, inputs = graph.constants, [name for name in node.inputs if name]
    if node.op == "Shape" and inputs[0] in graph.types:
        shape = graph.shape(inputs[0])
        constants[node.outputs[0]] = np.array(shape[node.get("start", 0) : node.get("end", len(shape))], np.int64)
    elif node.op == "Size" and inputs[0] in graph.types:
        constants[node.outputs[0]] = np.array(int(np.prod(graph.shape(inputs[0]))), np.int64)
    elif node.op == "CastLike" and inputs[0] in constants and inputs[1] in graph.types:
        kind = graph.types[inputs[1]].tensor_type.elem_type
        constants[node.outputs[0]] = constants[inputs[0]].astype(helper.tensor_dtype_to_np_dtype(kind))
        _trained(graph, node)
    elif node.op == "Constant" and "sparse_value" in node.attributes:
        constants[node.outputs[0]] = dense_of(node.attributes["sparse_value"], graph.place)
    elif all(name in constants for name in inputs) and node.op not in DRAWS and node.message is not None and "." not in node.op:
        feeds = {name: constants[name] for name in inputs}
        node.message.input[:] = node.inputs
        given, made = ([helper.make_value_info(name, TypeProto()) for name in names if name] for names in (feeds, node.outputs))
        alone = helper.make_graph([node.message], "constant", given, made)  # for a single node the evaluator ignores the opset, for a graph it does not
        try:
            values = ReferenceEvaluator(alone, opsets={"": graph.opset}).run(None, feeds)
        except Exception as problem:  # the evaluator has no exception type
            raise _failed(graph, node, problem) from None
        constants.update({name: np.asarray(value) for name, value in zip(filter(None, node.outputs), values)})
        _trained(graph, node)
    else:
        return False
    return True


def _trained(graph: Graph, node: Node) -> None:
    """Mark a constant that is computed from a parameter as a parameter."""
    if any(name in graph.trained for name in node.inputs):
        graph.trained.update(node.outputs)


def _infer(graph: Graph, node: Node) -> None:
    """Infer the types of the outputs of a node and check them against the declared shapes."""
    constants = graph.constants
    if "." in node.op:
        return  # of another domain; it is reported later with all operators without a rule
    types, data = {}, {}
    for name in node.inputs:
        if name in constants:
            tensor = numpy_helper.from_array(_single(constants[name]), name)
            types[name] = helper.make_tensor_type_proto(tensor.data_type, constants[name].shape)
            if constants[name].size <= 1024:  # shapes, axes, scales; never weights
                data[name] = tensor
        elif name in graph.types:
            types[name] = graph.types[name]
        elif name:
            return  # it follows an operator of another domain
    node.message.input[:] = node.inputs
    try:
        found = shape_inference.infer_node_outputs(
            defs.get_schema(node.op, max(graph.opset, INFERRED_AS.get(node.op, 0)), ""), node.message, types, data, opset_imports=list(graph.opset_import)
        )
    except (shape_inference.InferenceError, checker.ValidationError, ValueError) as problem:  # ValueError: a number of a type that does not exist
        raise _failed(graph, node, problem) from None
    if node.op in LIKE_INPUT and not found:
        found = {node.outputs[0]: types[node.inputs[0]]}
    for name in filter(None, node.outputs):
        if name in found and found[name].tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in found[name].tensor_type.shape.dim):
            kind = found[name].tensor_type
            kind.elem_type = FLOATS[0] if kind.elem_type in FLOATS else kind.elem_type
            graph.types[name] = found[name]
            _compare(graph, node, name)


def _single(array: np.ndarray) -> np.ndarray:
    """Return floats of any precision as float32, so that a node's inputs have one type. Constant folding keeps the original precision."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return array.astype(np.float32) if kind in FLOATS else array


def _compare(graph: Graph, node: Node, name: str) -> None:
    """Compare with the shape in the file, which may have the original batch."""
    declared, shape, (own, batch) = graph.declared.get(name), graph.shape(name), graph.sizes
    if declared is None:
        return
    agree = len(declared) == len(shape) and all(said in (None, 0, size) or not size or said * batch == size * own for said, size in zip(declared, shape))
    if not agree:
        text = shape_text(["?" if dim is None else dim for dim in declared])  # type: ignore[misc]
        raise Error(
            f"the file says that '{name}' is {text}, but the operators make it {shape_text(shape)}",
            place=graph.place, layer=node.title, fix="export the model again",
        )  # fmt: skip


def _changes_nothing(graph: Graph, node: Node) -> bool:
    if node.op == "Cast":  # a Cast of images (UINT8) or indices (ArgMax) is kept, because later nodes read it, until a rule removes it
        kind = graph.types.get(node.inputs[0])
        return node.get("to") in FLOATS and kind is not None and kind.tensor_type.elem_type in FLOATS
    if node.op in NEUTRAL and node.input(1) in graph.constants:
        values = graph.constants[node.inputs[1]]
        return values.size == 1 and float(values.reshape(())) == NEUTRAL[node.op] and graph.shape(node.inputs[0]) == graph.shape(node.outputs[0])
    if node.op == "CastLike":
        return node.inputs[0] in graph.types and graph.types[node.outputs[0]].tensor_type.elem_type in FLOATS
    return node.op == "Identity"


def _split(graph: Graph, node: Node, sequences: dict[str, list[str]]) -> Node:
    """Return the Split that replaces a SplitToSequence whose parts SequenceAt reads."""
    x = node.inputs[0]
    shape = graph.shape(x)
    axis = node.get("axis", 0) % len(shape)
    sizes = graph.constants[node.input(1)] if node.input(1) in graph.constants else np.array(1)
    if not sizes.ndim:
        whole, rest = divmod(shape[axis], int(sizes))
        sizes = np.array([int(sizes)] * whole + [rest] * (rest > 0))
    taken, parts = set(graph.producers()), [f"{node.outputs[0]}_{index}" for index in range(len(sizes))]
    while taken.intersection(parts):  # PyTorch's exporter calls the sequences of a model split, split_1, ..
        parts = [f"{part}_" for part in parts]
    for part, size in zip(parts, sizes):
        kind = graph.types[x].tensor_type.elem_type
        graph.types[part] = helper.make_tensor_type_proto(kind, (*shape[:axis], int(size), *shape[axis + 1 :]))
    sequences[node.outputs[0]] = parts
    return Node("Split", [x], parts, {"axis": axis}, node.name)


def _failed(graph: Graph, node: Node, problem: Any) -> Error:
    text = " ".join(str(problem).split()) or type(problem).__name__
    return Error(f"its inputs do not fit together: {text}", place=graph.place, layer=node.title, fix="export the model again")
