"""QuantizeLinear with DequantizeLinear behind it: values on a grid. Constants on a grid are folded; here it is found whether a layer rounds them itself."""
from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.importer.graph import Graph, Node
from ocaffe.ir.layer import WeightOutputs
from ocaffe.ir.weight_grid import weight_integers

KINDS = ("int8", "uint8", "int16", "uint16")
MOVING = ("Transpose", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten")  # operators that keep constants on their grid
UNITS = 4 * 2.0**-24  # the error of a scale that is computed again, as a share of the largest weight


def pairs(graph: Graph) -> None:
    """Replace QuantizeLinear and DequantizeLinear of the same grid by a FakeQuantize. Its attributes are the fields of the layer."""
    producers, first = graph.producers(), dict[str, str]()
    for number, node in enumerate(graph.nodes):
        source = producers.get(node.input(0))
        if node.op != "DequantizeLinear" or source is None or source.op != "QuantizeLinear":
            continue
        fields = _fields(graph, source)
        if fields is None or fields != _fields(graph, node):
            continue
        q, y = source.outputs[0], node.outputs[0]
        graph.nodes[number] = (
            Node("Identity", [first[q]], [y], name=node.name) if q in first else Node("FakeQuantize", [source.inputs[0]], [y], fields, source.name)
        )
        first.setdefault(q, y)


def _fields(graph: Graph, node: Node) -> dict[str, Any] | None:
    """Return the fields of a node's grid, None if it is not constant, has more than one scale, or integers that no FakeQuantize has."""
    scale = graph.constants.get(node.input(1))
    zero = graph.constants.get(node.input(2), np.zeros((), np.uint8)) if node.input(2) in graph.constants or not node.input(2) else None
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or zero.dtype.name not in KINDS or "output_dtype" in node.attributes:
        return None
    value = float(scale.reshape(()))
    if not 0 < value < np.inf:
        return None
    bounds = np.iinfo(zero.dtype)
    return {"least": int(bounds.min), "most": int(bounds.max), "zero_point": int(zero.reshape(())), "scale": value}


def follow(graph: Graph, node: Node) -> None:
    """Note that the constant which a node makes is on grids without zero point."""
    if node.op == "DequantizeLinear":
        whole, zero = graph.constants[node.inputs[0]], graph.constants.get(node.input(2))
        if whole.dtype.kind == "i" and whole.dtype.itemsize <= 2 and whole.size and (zero is None or not zero.any()):
            graph.integers[node.outputs[0]] = max(1, -int(whole.min()), int(whole.max())), graph.constants[node.inputs[1]].size > 1
    elif node.op in MOVING and node.inputs[0] in graph.integers:
        graph.integers[node.outputs[0]] = graph.integers[node.inputs[0]]


def rounding(array: np.ndarray, form: WeightOutputs, most: int, several: bool) -> Any:
    """Return the WeightQuantizationParameter of a layer that leaves weights on a grid as they are, None if none does.

    `most` is their largest integer. `several`: they have more scales than one.
    """
    bits = dict.fromkeys([max(8, most.bit_length() + 1), most.bit_length() + 1])
    for number, by_output, power in itertools.product(bits, (several, not several), (False, True)):
        if not 2 <= number <= 16:
            continue
        param = proto.WeightQuantizationParameter(bits=number, per_channel=by_output, power_of_two=power)
        with np.errstate(all="ignore"):  # of weights that are not finite, which nothing leaves as they are
            whole, scales = weight_integers(array, form, param)
            if np.abs((whole * scales).reshape(array.shape) - array).max(initial=0) <= UNITS * np.abs(array).max(initial=0):
                return param
    return None
