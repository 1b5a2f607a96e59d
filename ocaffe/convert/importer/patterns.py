"""Rewrites that recombine operators that exporters decompose: a table of patterns, and functions for rewrites that need more than a pattern."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe.convert.importer.graph import FLOATS, WHOLE, Graph, Node
from ocaffe.convert.importer.grids import pairs
from ocaffe.convert.importer.match import match

Check = Callable[[Graph, dict[str, str]], "dict[str, Any] | None"]  # returns the attributes of the new node, or None if the pattern does not apply


def _sixths(inner: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the terms for a sixth of a term."""
    return [("Div", inner, 6.0), ("Mul", inner, 1 / 6)]


_CUT = [("Clip", ("Add", "x", 3.0), 0.0, 6.0), ("Clip", ("Add", "x", 3.0), {"min": 0.0, "max": 6.0}), ("Min", ("Relu", ("Add", "x", 3.0)), 6.0)]
_ERF = [("Add", ("Erf", inner), 1.0) for inner in (("Div", "x", math.sqrt(2)), ("Mul", "x", math.sqrt(0.5)))]
_CUBE = [("Mul", ("Mul", "x", "x"), "x"), ("Mul", "x", ("Mul", "x", "x")), ("Pow", "x", 3.0)]
_TANH = [
    ("Add", ("Tanh", ("Mul", ("Add", "x", ("Mul", cube, 0.044715)), math.sqrt(2 / math.pi))), 1.0) for cube in _CUBE
]  # fmt: skip


def _halves(term: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the terms for x * term / 2, in any order."""
    return [("Mul", ("Mul", "x", term), 0.5), ("Mul", ("Mul", "x", 0.5), term), ("Mul", "x", ("Mul", term, 0.5)), ("Div", ("Mul", "x", term), 2.0)]


# Pattern, equivalent operator, and its attributes. Its inputs are the names of the pattern in alphabetical order, lower case first.
TABLE: list[tuple[tuple[Any, ...], str, dict[str, Any]]] = [
    *((form, "HardSwish", {}) for cut in _CUT for form in _sixths(("Mul", "x", cut))),
    *((form, "HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}) for cut in _CUT for form in _sixths(cut)),
    (("Mul", "x", ("HardSigmoid", "x", {"alpha": 1 / 6, "beta": 0.5})), "HardSwish", {}),
    (("Mul", "x", ("Sigmoid", "x")), "Swish", {}),
    (("Mul", "x", ("Tanh", ("Softplus", "x"))), "Mish", {}),
    *((form, "Gelu", {}) for inner in _ERF for form in _halves(inner)),
    *((form, "Gelu", {"approximate": "tanh"}) for inner in _TANH for form in _halves(inner)),
    (("Where", ("Greater", "x", 20.0), "x", ("Softplus", "x")), "Softplus", {}),
    (("Min", ("Max", "x", 0.0), 6.0), "Clip", {"min": 0.0, "max": 6.0}),
    (("Min", ("Relu", "x"), 6.0), "Clip", {"min": 0.0, "max": 6.0}),
]


def rewrite(graph: Graph) -> None:
    """Apply all rewrites, and drop the nodes that no node reads afterwards."""
    for step in (pairs, _quotients, _table, _masks, _norms, _root_means, _root_means, _shuffles, _biases, _transposed, _pads, _slices, _directions):
        step(graph)
        graph.prune()


def _replace(graph: Graph, old: Node, new: Node) -> None:
    graph.nodes[graph.nodes.index(old)] = new


def _table(graph: Graph) -> None:
    producers = graph.producers()
    for node in list(graph.nodes):
        for pattern, op, attributes in TABLE:
            found = match(graph, producers, pattern, node)
            if found is not None:
                new = Node(op, [found[name] for name in sorted(found, key=str.swapcase)], node.outputs, dict(attributes), node.name)
                _replace(graph, node, new)
                producers.update(dict.fromkeys(new.outputs, new))
                break


def _quotients(graph: Graph) -> None:
    """Replace divisions of floats whose result is rounded, because Caffe's layers multiply by a reciprocal. Leave out casts of rounded values."""
    producers = graph.producers()
    for node in list(graph.nodes):
        source = producers.get(node.input(0))
        rounds = node.op in ("Floor", "Ceil") or (node.op == "Cast" and node.get("to") in WHOLE)
        if source is None or not rounds or graph.types[node.inputs[0]].tensor_type.elem_type not in FLOATS:
            continue
        if source.op == "Div" and source.input(0) in graph.types:
            new = Node("Quotient", list(source.inputs), node.outputs, {"rounding": node.op}, node.name)
        elif node.op == "Cast" and source.op in ("Floor", "Ceil", "Round", "Quotient"):
            new = Node("Identity", list(node.inputs), node.outputs, name=node.name)
        else:
            continue
        _replace(graph, node, new)
        producers.update(dict.fromkeys(new.outputs, new))


def _masks(graph: Graph) -> None:
    """Remove the replacement of NaN behind a softmax of masked values if the mask is constant and leaves a value in each row: then there is no NaN."""
    producers = graph.producers()
    for node in list(graph.nodes):
        found = match(graph, producers, ("Where", ("IsNaN", "x"), 0.0, "x"), node)
        if found is None or node.outputs[0] in graph.outputs or producers[found["x"]].op != "Softmax":
            continue
        masked = match(graph, producers, ("Softmax", ("Add", "y", "M")), producers[found["x"]])
        if masked is not None and producers[found["x"]].get("axis", -1) in (-1, len(graph.shape(found["x"])) - 1):
            mask = graph.constants[masked["M"]]
            if mask.shape[-1:] == graph.shape(found["x"])[-1:] and np.isfinite(mask).any(-1).all() and not np.isnan(mask).any():
                for other in graph.nodes:
                    other.inputs = [found["x"] if name == node.outputs[0] else name for name in other.inputs]


def _norms(graph: Graph) -> None:
    """Recombine the operators that PyTorch writes for a layer norm before opset 17. Scale and bias follow as Mul and Add."""
    producers = graph.producers()
    mean = ("ReduceMean", "x")
    pattern = ("Div", ("Sub", "x", mean), ("Sqrt", ("Add", ("ReduceMean", ("Pow", ("Sub", "x", mean), 2.0)), "E")))
    for node in list(graph.nodes):
        found = match(graph, producers, pattern, node)
        if found is None or graph.constants[found["E"]].size != 1:
            continue
        axes = len(graph.shape(found["x"]))
        reduced = [sorted(axis % axes for axis in producer.get("axes", [])) for producer in _reductions(producers, node)]
        if reduced[0] and reduced[0] == reduced[1] == list(range(reduced[0][0], axes)):
            attributes = {"axis": reduced[0][0], "epsilon": float(graph.constants[found["E"]].reshape(()))}
            _replace(graph, node, Node("LayerNormalization", [found["x"]], node.outputs, attributes, node.name))


def _reductions(producers: dict[str, Node], node: Node) -> list[Node]:
    """Return the two ReduceMean nodes of a layer norm: of the values, and of the squares."""
    centred, root = (producers[name] for name in node.inputs)
    summed = producers[root.inputs[0]]
    return [producers[centred.inputs[1]], next(producers[name] for name in summed.inputs if name in producers)]


_ROOT = ("Sqrt", ("Add", "m", "E"))
_SCALED = [("Mul", "x", ("Reciprocal", _ROOT)), ("Mul", "x", ("Div", 1.0, _ROOT)), ("Div", "x", _ROOT)]
_SQUARE = [("Pow", "x", 2.0), ("Mul", "x", "x")]
_MEAN = [form for square in _SQUARE for form in (("ReduceMean", square), ("ReduceMean", square, "A"))]  # the axes are an attribute or an input


def _root_means(graph: Graph) -> None:
    """Recombine the operators that exporters write for an RMS norm before opset 23. The scale follows as a Mul."""
    producers = graph.producers()
    for node in list(graph.nodes):
        found = next(filter(None, (match(graph, producers, form, node) for form in _SCALED)), None)
        if found is None or found["m"] not in producers or graph.constants[found["E"]].size != 1:
            continue
        means = [match(graph, producers, form, producers[found["m"]]) for form in _MEAN]
        if not any(bound is not None and bound["x"] == found["x"] for bound in means):
            continue
        shape, kept = graph.shape(found["x"]), graph.shape(found["m"])
        first = next((axis for axis, (size, mean) in enumerate(zip(shape, kept)) if size != mean), len(shape) - 1)
        if len(kept) == len(shape) and set(kept[first:]) == {1}:
            attributes = {"axis": first, "epsilon": float(graph.constants[found["E"]].reshape(()))}
            _replace(graph, node, Node("RMSNormalization", [found["x"]], node.outputs, attributes, node.name))


def _shuffles(graph: Graph) -> None:
    """Replace Reshape, Transpose and Reshape that exchange two factors of the channel axis by a ChannelShuffle."""
    producers = graph.producers()
    pattern = ("Reshape", ("Transpose", ("Reshape", "x", "A"), {"perm": [0, 2, 1, 3, 4]}), "B")
    for node in list(graph.nodes):
        found = match(graph, producers, pattern, node)
        if found is None or graph.shape(found["x"]) != graph.shape(node.outputs[0]):
            continue
        shape = graph.shape(found["x"])
        split = graph.shape(producers[producers[node.inputs[0]].inputs[0]].outputs[0])
        if len(shape) == 4 and split == (shape[0], split[1], shape[1] // split[1], *shape[2:]):
            _replace(graph, node, Node("ChannelShuffle", [found["x"]], node.outputs, {"group": split[1]}, node.name))


def _biases(graph: Graph) -> None:
    """Fuse MatMul and the following Add of a row into one product with a bias."""
    producers, consumers = graph.producers(), graph.consumers()
    for node in list(graph.nodes):
        found = match(graph, producers, ("Add", ("MatMul", "x", "W"), "B"), node)
        if found is None:
            continue
        weight, bias = graph.shape(found["W"]), graph.constants[found["B"]]
        product = next(producers[name] for name in node.inputs if name in producers and producers[name].op == "MatMul")
        row = len(weight) == 2 and bias.size == weight[1] and bias.shape[-1:] == weight[1:] and bias.ndim <= len(graph.shape(product.outputs[0]))
        if row and consumers[product.outputs[0]] == [node] and product.outputs[0] not in graph.outputs:
            graph.constants[found["B"]] = bias.reshape(-1)
            _replace(graph, node, Node("MatMul", [found["x"], found["W"], found["B"]], node.outputs, {}, product.name))


def _transposed(graph: Graph) -> None:
    """Fuse a Transpose of the last two axes into the following product of two computed tensors, as attention has it."""
    producers = graph.producers()
    for node in graph.nodes:
        before = producers.get(node.inputs[1]) if node.op == "MatMul" else None
        if before is None or before.op != "Transpose":
            continue
        axes = len(graph.shape(before.inputs[0]))
        if axes > 1 and list(before.get("perm", range(axes)[::-1])) == [*range(axes - 2), axes - 1, axes - 2]:
            node.inputs[1] = before.inputs[0]
            node.attributes["transpose_b"] = True


def _pads(graph: Graph) -> None:
    """Fuse a Pad with zeros around the image into the pads of the following Conv."""
    producers = graph.producers()
    for node in graph.nodes:
        pad = producers.get(node.inputs[0]) if node.op == "Conv" else None
        if pad is None or pad.op != "Pad" or pad.get("mode", "constant") != "constant" or node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            continue
        sizes = _padding(graph, pad)
        if sizes is None or any((*sizes[0][:2], *sizes[1][:2])) or min((*sizes[0], *sizes[1])) < 0:
            continue
        axes = len(sizes[0]) - 2
        own = node.get("pads", [0] * 2 * axes)
        node.attributes["pads"] = [a + b for a, b in zip((*sizes[0][2:], *sizes[1][2:]), own)]
        node.attributes.pop("auto_pad", None)
        node.inputs[0] = pad.inputs[0]


def _padding(graph: Graph, pad: Node) -> tuple[list[int], list[int]] | None:
    """Return the padding before and after each axis, or None if it is not zeros or does not cover every axis."""
    axes = len(graph.shape(pad.outputs[0]))
    sizes = pad.get("pads") or (graph.constants[pad.input(1)].tolist() if pad.input(1) in graph.constants else [])
    value = pad.get("value", 0.0) if not pad.input(2) else graph.constants.get(pad.input(2))
    if len(sizes) != 2 * axes or pad.input(3) or value is None or getattr(value, "any", lambda: bool(value))():
        return None
    return sizes[:axes], sizes[axes:]


def _slices(graph: Graph) -> None:
    """Replace consecutive Slices that cover a tensor by a Split. PyTorch exports `chunk` as such Slices."""
    consumers = graph.consumers()
    for x, nodes in consumers.items():
        slices = [(node, cut) for node in nodes if node.op == "Slice" and x in graph.types and (cut := _cut(graph, node, x))]
        for axis in sorted({cut[0] for _, cut in slices}):
            parts = sorted((cut[1], cut[2], graph.nodes.index(node)) for node, cut in slices if cut[0] == axis)
            edges = [0, *(end for _, end, _ in parts)]
            if len(parts) < 2 or [start for start, _, _ in parts] != edges[:-1] or edges[-1] != graph.shape(x)[axis]:
                continue
            members = [graph.nodes[index] for _, _, index in parts]
            new = Node("Split", [x], [node.outputs[0] for node in members], {"axis": axis}, members[0].name)
            _replace(graph, min(members, key=graph.nodes.index), new)
            graph.nodes = [node for node in graph.nodes if node not in members]


def _cut(graph: Graph, node: Node, x: str) -> tuple[int, int, int] | None:
    """Return axis, start and end of a Slice with constant bounds along one axis with step 1, else None."""
    settings = [node.get(name) or (graph.constants[tensor].ravel().tolist() if (tensor := node.input(1 + index)) in graph.constants else None)
                for index, name in enumerate(("starts", "ends", "axes", "steps"))]  # fmt: skip
    starts, ends, axes, steps = settings
    if not starts or not ends or len(starts) != 1 or (steps or [1]) != [1]:
        return None
    axis = (axes or [0])[0] % len(graph.shape(x))
    start, end, _ = slice(starts[0], ends[0]).indices(graph.shape(x)[axis])
    return (axis, start, end) if start < end else None


def _directions(graph: Graph) -> None:
    """Let a recurrent node with the attribute `joined` write T x N x directions H. Exporters join its directions by a Squeeze, or a Transpose and a Reshape."""
    consumers = graph.consumers()
    for node in list(graph.nodes):
        if node.op not in ("LSTM", "GRU") or not node.outputs[0]:
            continue
        steps, directions, sequences, units = graph.shape(node.outputs[0])
        chain = [node]
        for op in ("Squeeze",) if directions == 1 else ("Transpose", "Reshape"):
            readers = consumers.get(chain[-1].outputs[0], [])
            exchanged = op != "Transpose" or (readers and readers[0].get("perm") == [0, 2, 1, 3])
            if len(readers) == 1 and readers[0].op == op and exchanged and chain[-1].outputs[0] not in graph.outputs:
                chain.append(readers[0])
        if len(chain) == 1 + directions and graph.shape(chain[-1].outputs[0]) == (steps, sequences, directions * units):
            node.outputs[0] = chain[-1].outputs[0]
            node.attributes["joined"] = 1
            graph.nodes = [other for other in graph.nodes if other not in chain[1:]]
