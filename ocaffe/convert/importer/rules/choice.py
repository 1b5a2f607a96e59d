"""Rules of comparisons, logical operators, casts, and choices between values."""
from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import FLOATS, WHOLE, Node
from ocaffe.convert.importer.rules import operator
from ocaffe.convert.importer.rules.shape import FARTHEST, flatten_to

COMPARISONS = {  # operator -> Compare's operation
    "Equal": "EQUAL", "Greater": "GREATER", "GreaterOrEqual": "GREATER_OR_EQUAL", "Less": "LESS", "LessOrEqual": "LESS_OR_EQUAL",
    "And": "AND", "Or": "OR", "Xor": "XOR",
}  # fmt: skip


@operator(*COMPARISONS)
def compare(net: Builder, node: Node) -> None:
    net.layer(node, "Compare", [net.bottom(node, 0), net.bottom(node, 1)], {"operation": COMPARISONS[node.op]})


@operator("Not")
def negation(net: Builder, node: Node) -> None:
    net.layer(node, "Power", [net.bottom(node)], {"scale": -1.0, "shift": 1.0})


@operator("Identity", "Cast", "CastLike")
def identity(net: Builder, node: Node) -> None:
    """Make the input the output. A cast to truth values makes 0 and 1, and one of floats to whole numbers drops the fraction.

    `fold` keeps such nodes only for outputs of the net and changes of the type. All blobs are floats.
    """
    source, target = net.kind(node.inputs[0]), net.kind(node.outputs[0])
    if target == TensorProto.BOOL != source:
        zero = net.free(f"{node.outputs[0]}_zero")
        net.graph.constants[zero] = np.zeros(1)
        compare(net, Node("Xor", [node.inputs[0], zero], node.outputs, name=node.name))
        return
    if node.op != "Identity" and source in FLOATS and target in WHOLE:
        x = net.bottom(node)
        rest = net.layer(node, "Mod", [x, net.given(node, np.ones(1), "one")], part="fraction")
        net.layer(node, "Eltwise", [x, rest], {"coeff": [1, -1]})
        return
    name = TensorProto.DataType.Name(target)
    fact = f"it casts to {name}, in which large numbers lose digits, and Caffe's blobs are floats"
    net.check(node, target in FLOATS or source not in FLOATS or target in WHOLE, fact, "leave the cast out, and cast the net's output")
    net.alias(node, net.bottom(node))


@operator("Where")
def where(net: Builder, node: Node) -> None:
    net.layer(node, "Where", [net.bottom(node, index) for index in range(3)])


@operator("IsNaN")
def is_nan(net: Builder, node: Node) -> None:
    net.layer(node, "IsNaN", [net.bottom(node)])


@operator("OneHot")
def one_hot(net: Builder, node: Node) -> None:
    """Compare the indices with all places of the axis, also as they are counted from its end. Choose between the two values."""
    x, depth, values = net.bottom(node), int(net.number(node, "depth", 1)), net.constant(node, 2)
    net.check(node, not net.is_float(node), "its indices are floats, and it drops their fractions", "export with whole numbers as indices")
    wanted = net.output_shape(node)
    axis = node.get("axis", -1) % len(wanted)
    net.graph.budget.spend(8 * depth)
    places = np.arange(depth).reshape(-1, *[1] * (len(wanted) - axis - 1))
    x = flatten_to(net, node, x, (*wanted[:axis], 1, *wanted[axis + 1 :]), "axes")
    first = net.layer(node, "Compare", [x, net.given(node, places, "places")], part="equal")
    second = net.layer(node, "Compare", [x, net.given(node, places - depth, "places_from_end")], part="equal_from_end")
    off, on = values.reshape(-1).tolist()
    plain = (off, on) == (0, 1)
    top = net.layer(node, "Compare", [first, second], {"operation": "OR"}, part="" if plain else "hot")
    if not plain:
        chosen = [net.given(node, np.full(1, value, np.float32), part) for value, part in ((on, "on"), (off, "off"))]
        net.layer(node, "Where", [top, *chosen])


@operator("Trilu")
def trilu(net: Builder, node: Node) -> None:
    """Choose between the input and 0 by a constant triangle."""
    x = net.bottom(node)
    offset = int(net.number(node, "k", 1, 0) or 0)
    net.graph.budget.spend(8 * math.prod(net.shape(x)[-2:]))
    whole = np.ones(net.shape(x)[-2:])
    offset = min(max(offset, -FARTHEST), FARTHEST)
    triangle = np.triu(whole, offset) if node.get("upper", 1) else np.tril(whole, offset)
    names = [net.free(f"{node.outputs[0]}_{part}") for part in ("triangle", "zero")]
    for name, values in zip(names, (triangle, np.zeros(1))):
        net.graph.constants[name] = values
    held = Node("Where", [names[0], node.inputs[0], names[1]], node.outputs, name=node.name)
    where(net, held)
