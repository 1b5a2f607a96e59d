"""onnx's reference evaluator as the judge of a model where onnxruntime is missing or too old, and the nodes that it cannot judge."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx

from ocaffe.convert.pieces import prune, reads, subgraphs

# The operators that onnx 1.23's evaluator computes wrong or refuses, and in which nodes. onnxruntime computes them right.
UNJUDGED: dict[str, Callable[[onnx.NodeProto], bool]] = {
    "ConvTranspose": lambda node: any(attribute.name == "group" and attribute.i > 1 for attribute in node.attribute),
    "LRN": lambda node: True,
}


def unjudged(model: onnx.ModelProto) -> dict[str, str]:
    """Return the values that depend on a node of UNJUDGED, and the operator of the first such node."""
    found: dict[str, str] = {}
    for node in model.graph.node:
        operator = _operator(node) or next((found[name] for name in reads(node) if name in found), "")
        if operator:
            found |= dict.fromkeys(node.output, operator)
    return found


def _operator(node: onnx.NodeProto) -> str:
    """Return the operator of a node, or of one in its subgraphs, if it is in UNJUDGED, else an empty text."""
    if node.op_type in UNJUDGED and UNJUDGED[node.op_type](node):
        return node.op_type
    return next(filter(None, (_operator(inner) for graph in subgraphs(node) for inner in graph.node)), "")


def evaluator(model: onnx.ModelProto, names: list[str]) -> Callable[..., Any]:
    """Return a function that computes the values `names`, and no others. It does not need `model` any more."""
    from onnx.reference import ReferenceEvaluator

    own = onnx.ModelProto()
    own.CopyFrom(model)
    del own.graph.output[:]
    own.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    prune(own.graph)
    return ReferenceEvaluator(own).run
