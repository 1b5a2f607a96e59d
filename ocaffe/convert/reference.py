"""onnx's reference evaluator as the judge of a model where onnxruntime is missing or too old, and the nodes that it cannot judge.

Its pooling visits each window in Python: that took 97 % of the time of GoogLeNet. It has no QuantizeLinear and DequantizeLinear of opsets before 19. So
MaxPool, AveragePool and these two are computed here, by their definition in ONNX.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun

from ocaffe.convert.pieces import prune, reads, subgraphs

# The operators that onnx 1.23's evaluator computes wrong or refuses, and in which nodes. onnxruntime computes them right.
UNJUDGED: dict[str, Callable[[onnx.NodeProto], bool]] = {
    "ConvTranspose": lambda node: any(attribute.name == "group" and attribute.i > 1 for attribute in node.attribute),
    "LRN": lambda node: True,
}
Tell = Callable[[str], None]


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


def evaluator(model: onnx.ModelProto, names: list[str], tell: Tell) -> Callable[..., Any]:
    """Return a function that computes the values `names`, and no others. It does not need `model` any more, and tells each node before it is computed."""
    from onnx.reference import ReferenceEvaluator

    own = onnx.ModelProto()
    own.CopyFrom(model)
    del own.graph.output[:]
    own.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    prune(own.graph)
    pools = [made for kind, made in POOLS.items() if _all_fast(own.graph, kind)]
    old = any(item.domain in ("", "ai.onnx") and item.version < EVALUATED_GRIDS for item in own.opset_import)
    made = ReferenceEvaluator(own, new_ops=[*pools, *((QuantizeLinear, DequantizeLinear) if old else ())])
    for number, node in enumerate(made.rt_nodes_, 1):
        node.run = _told(node.run, tell, f"node {number} of {len(made.rt_nodes_)}, {node.op_type}")  # type: ignore[method-assign]
    return made.run


def _told(run: Callable[..., Any], tell: Tell, text: str) -> Callable[..., Any]:
    def telling(*inputs: Any, **options: Any) -> Any:
        tell(text)
        return run(*inputs, **options)

    return telling


# -- grids -------------------------------------------------------------------------------------------------------------

EVALUATED_GRIDS = 19  # the first opset whose QuantizeLinear and DequantizeLinear the evaluator has


class QuantizeLinear(OpRun):
    """QuantizeLinear of opsets 13 to 18."""

    def _run(self, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None, axis: int | None = None, **settings: Any) -> tuple[np.ndarray]:
        zero = np.zeros((), np.uint8) if zero is None else zero
        bounds = np.iinfo(zero.dtype)
        with np.errstate(invalid="ignore"):
            whole = np.rint(x / _along(scale, x, axis)) + _along(zero, x, axis)
            return (np.clip(whole, bounds.min, bounds.max).astype(zero.dtype),)


class DequantizeLinear(OpRun):
    """DequantizeLinear of opsets 13 to 18."""

    def _run(self, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None = None, axis: int | None = None, **settings: Any) -> tuple[np.ndarray]:
        shift = 0 if zero is None else _along(zero.astype(np.int64), x, axis)
        return (((x.astype(np.int64) - shift).astype(scale.dtype)) * _along(scale, x, axis),)


def _along(values: np.ndarray, x: np.ndarray, axis: int | None) -> np.ndarray:
    """Return values that broadcast to x: one, or one for each place of an axis."""
    return values.reshape([-1 if place == (1 if axis is None else axis) % max(1, x.ndim) else 1 for place in range(x.ndim)]) if values.size > 1 else values


# -- pooling -----------------------------------------------------------------------------------------------------------


class MaxPool(OpRun):
    """MaxPool without indices, with explicit pads."""

    def _run(self, x: np.ndarray, **settings: Any) -> tuple[np.ndarray]:
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        parts = _parts(x, lowest, **settings)
        y = next(parts).copy()
        for part in parts:
            np.maximum(y, part, out=y)
        return (y,)


class AveragePool(OpRun):
    """AveragePool with explicit pads."""

    def _run(self, x: np.ndarray, count_include_pad: int | None = None, **settings: Any) -> tuple[np.ndarray]:
        ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
        total = np.asarray(sum(_parts(x, 0, **settings)))
        count = np.asarray(sum(_parts(ones, 1 if count_include_pad else 0, **settings)))
        return ((total / count).astype(x.dtype),)


POOLS: dict[str, type[OpRun]] = {"MaxPool": MaxPool, "AveragePool": AveragePool}


def _all_fast(graph: onnx.GraphProto, kind: str) -> bool:
    """Whether the classes here can compute all nodes of an operator: they have no indices as a second output, and no automatic pads."""
    nodes = [node for node in graph.node if node.op_type == kind]
    automatic = [item for node in nodes for item in node.attribute if item.name == "auto_pad" and item.s not in (b"", b"NOTSET")]
    return not automatic and all(len(node.output) == 1 for node in nodes)


def _parts(
    x: np.ndarray, value: float, kernel_shape: Sequence[int] = (), strides: Sequence[int] | None = None, dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None, ceil_mode: int | None = None, **others: Any,
) -> Iterator[np.ndarray]:  # fmt: skip
    """Yield the values at each place of the windows, for all windows at once. `value` is that of the padding. A last window may reach behind it."""
    axes = len(kernel_shape)
    strides, dilations, pads = strides or [1] * axes, dilations or [1] * axes, pads or [0] * 2 * axes
    begin, end = pads[:axes], pads[axes:]
    extents = [d * (k - 1) + 1 for k, d in zip(kernel_shape, dilations)]
    outputs = []
    for size, b, e, extent, stride in zip(x.shape[2:], begin, end, extents, strides):
        room = (size + b + e - extent) / stride
        count = (math.ceil(room) if ceil_mode else math.floor(room)) + 1
        outputs.append(count - 1 if ceil_mode and (count - 1) * stride >= size + b else count)  # no window begins behind the image
    reach = [(o - 1) * s + extent for o, s, extent in zip(outputs, strides, extents)]
    behind = [max(0, r - size - b - e) for e, r, size, b in zip(end, reach, x.shape[2:], begin)]
    padded = np.pad(x, [(0, 0), (0, 0), *zip(begin, end)], constant_values=value)
    padded = np.pad(padded, [(0, 0), (0, 0), *((0, more) for more in behind)], constant_values=min(value, 0))
    for place in itertools.product(*map(range, kernel_shape)):
        cuts = [slice(p * d, p * d + (o - 1) * s + 1, s) for p, d, o, s in zip(place, dilations, outputs, strides)]
        inside = (slice(None), slice(None), *cuts)
        yield padded[inside]
