"""Fold constants and infer the shapes of all other tensors, without running the model."""
from __future__ import annotations

import collections

import numpy as np
from onnx import helper

from ocaffe.convert.importer.constant import computed, failed, held, inferred, is_folded, is_text, shape_of
from ocaffe.convert.importer.graph import FLOATS, Graph, Node, at, node_of
from ocaffe.convert.importer.grids import follow
from ocaffe.convert.importer.modes import check_modes
from ocaffe.convert.importer.reopen import reopen
from ocaffe.errors import Error, shape_text

# With ceil_mode, PyTorch and all runtimes drop a window that starts after the image. ONNX's shape inference does so since this opset.
INFERRED_AS = {"MaxPool": 22, "AveragePool": 22}
NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}  # second operands that change nothing
MOST_PARTS = 1 << 16  # of a sequence
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
        with at(graph, node):
            check_modes(graph, node)
            reopen(graph, node)
            if _constant(graph, node):
                continue
            if node.op == "SplitToSequence":
                node = _split(graph, node, sequences)
            elif node.op == "SequenceAt" and node.inputs[0] in sequences:
                node = _taken(graph, node, sequences[node.inputs[0]])
            else:
                _infer(graph, node)
            if all(name in graph.constants for name in node.outputs):
                continue  # a part of a constant
        if _changes_nothing(graph, node) and node.outputs[0] not in graph.outputs:
            same[node.outputs[0]] = node.inputs[0]
        else:
            kept.append(node)
    graph.nodes = kept
    graph.prune()


def _branch(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes of the branch that an If with a known condition takes. Their names are unique in the whole model."""
    inner = node.get("then_branch" if graph.constants[node.inputs[0]].all() else "else_branch")
    graph.add(inner)
    passed = [node_of(helper.make_node("Identity", [item.name], [output])) for item, output in zip(inner.output, node.outputs)]
    return [*map(node_of, inner.node), *passed]


def _constant(graph: Graph, node: Node) -> bool:
    """Compute the outputs of the node if they are constant. Return whether they are."""
    constants, inputs = graph.constants, [name for name in node.inputs if name]
    if node.op == "Shape" and inputs[0] in graph.types:
        shape = graph.shape(inputs[0])
        constants[node.outputs[0]] = np.array(shape[node.get("start", 0) : node.get("end", len(shape))], np.int64)
    elif node.op == "Size" and inputs[0] in graph.types:
        constants[node.outputs[0]] = np.array(int(np.prod(graph.shape(inputs[0]))), np.int64)
    elif node.op == "CastLike" and inputs[0] in constants and inputs[1] in graph.types:
        kind = helper.tensor_dtype_to_np_dtype(graph.types[inputs[1]].tensor_type.elem_type)
        graph.budget.spend(constants[inputs[0]].size * kind.itemsize, constants[inputs[0]].size)
        constants[node.outputs[0]] = constants[inputs[0]].astype(kind)
        _trained(graph, node)
    elif node.op == "Constant":
        constants[node.outputs[0]] = held(graph, node)
    elif is_folded(graph, node):
        constants.update(zip(filter(None, node.outputs), computed(graph, node)))
        _trained(graph, node)
        follow(graph, node)
    else:
        return False
    return True


def _trained(graph: Graph, node: Node) -> None:
    """Mark a constant that is computed from a parameter as a parameter."""
    if any(name in graph.trained for name in node.inputs):
        graph.trained.update(node.outputs)


def _infer(graph: Graph, node: Node) -> None:
    """Infer the types of the outputs of a node and check them against the declared shapes."""
    if "." in node.op:
        return  # of another domain; it is reported later with all operators without a rule
    if any(name not in graph.constants and name not in graph.types for name in node.inputs if name):
        return  # it follows an operator of another domain
    kinds = {name: _single(helper.np_dtype_to_tensor_dtype(graph.constants[name].dtype)) for name in node.inputs if name in graph.constants}
    found = inferred(graph, node, kinds, INFERRED_AS.get(node.op, 0))
    if node.op in LIKE_INPUT and not found:
        found = {node.outputs[0]: helper.make_tensor_type_proto(FLOATS[0], graph.shape(node.inputs[0]))}
    for name in filter(None, node.outputs):
        if name in found and shape_of(found[name]) is not None:
            kind = found[name].tensor_type
            kind.elem_type = _single(kind.elem_type)
            graph.types[name] = found[name]
            _compare(graph, node, name)


def _single(kind: int) -> int:
    """Return FLOAT for floats of any precision, so that a node's inputs have one type. Constant folding keeps the original precision."""
    return FLOATS[0] if kind in FLOATS else kind


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
            place=graph.place, layer=node.title,
            fix=f"correct the shape of '{name}' in the model's graph.{'output' if name in graph.outputs else 'value_info'}, or remove it there",
        )  # fmt: skip


def _changes_nothing(graph: Graph, node: Node) -> bool:
    if node.op == "Cast":  # a Cast of images (UINT8) or indices (ArgMax) is kept, because later nodes read it, until a rule removes it
        kind = graph.types.get(node.inputs[0])
        return node.get("to") in FLOATS and kind is not None and kind.tensor_type.elem_type in FLOATS
    if node.op in NEUTRAL and node.input(1) in graph.constants:
        values = graph.constants[node.inputs[1]]
        neutral = values.size == 1 and not is_text(values) and float(values.reshape(())) == NEUTRAL[node.op]
        return neutral and graph.shape(node.inputs[0]) == graph.shape(node.outputs[0])
    if node.op == "CastLike":
        return node.inputs[0] in graph.types and graph.types[node.outputs[0]].tensor_type.elem_type in FLOATS
    return node.op == "Identity"


def _split(graph: Graph, node: Node, sequences: dict[str, list[str]]) -> Node:
    """Return the Split that replaces a SplitToSequence whose parts SequenceAt reads."""
    x = node.inputs[0]
    shape = graph.shape(x)
    axis = node.get("axis", 0) % max(1, len(shape))
    sizes = graph.constants[node.input(1)] if node.input(1) in graph.constants else np.array(1)
    whole = shape[axis] if shape else 0
    if sizes.ndim == 0 and int(sizes) > 0 and whole // int(sizes) < MOST_PARTS:
        sizes = np.array([int(sizes)] * (whole // int(sizes)) + [whole % int(sizes)] * (whole % int(sizes) > 0))
    if sizes.ndim != 1 or not 0 < sizes.size <= MOST_PARTS or sizes.min() < 0 or sum(sizes.tolist()) != whole:
        given = f"parts of {sizes.tolist()}" if sizes.size < 10 else f"{sizes.size} parts"
        many = f" (at most {MOST_PARTS:,} parts)" if sizes.ndim == 0 and sizes > 0 else ""
        raise failed(graph, node, f"an axis of {whole} cannot be divided into {given}{many}")
    if x in graph.constants:
        graph.budget.spend(graph.constants[x].nbytes)
    taken, parts = set(graph.producers()), [f"{node.outputs[0]}_{index}" for index in range(len(sizes))]
    while taken.intersection(parts):  # PyTorch's exporter calls the sequences of a model split, split_1, ..
        parts = [f"{part}_" for part in parts]
    first = 0
    for part, size in zip(parts, sizes):
        if x in graph.constants:
            graph.constants[part] = graph.constants[x].take(range(first, first + int(size)), axis)
        else:
            kind = graph.types[x].tensor_type.elem_type
            graph.types[part] = helper.make_tensor_type_proto(kind, (*shape[:axis], int(size), *shape[axis + 1 :]))
        first += int(size)
    sequences[node.outputs[0]] = parts
    made = Node("Split", [x], parts, {"axis": axis}, node.name)
    _trained(graph, made)
    return made


def _taken(graph: Graph, node: Node, parts: list[str]) -> Node:
    """Return the node that replaces a SequenceAt: it takes one of the parts."""
    position = graph.constants.get(node.inputs[1])
    if position is None or position.size != 1 or not -len(parts) <= int(position.item()) < len(parts):
        text = "a computed place" if position is None else f"place {position.tolist()}"
        fix = "export with a constant place" if position is None else f"export with a place from {-len(parts)} to {len(parts) - 1}"
        raise Error(f"it takes {text} of a sequence of {len(parts)}", place=graph.place, layer=node.title, fix=graph.remedy(node, fix))
    part, taken = parts[int(position.item())], node.outputs[0]
    if part in graph.constants:
        graph.constants[taken] = graph.constants[part]
    else:
        graph.types[taken] = graph.types[part]
    made = Node("Identity", [part], [taken], name=node.name)
    _trained(graph, made)
    return made
