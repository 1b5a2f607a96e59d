"""Reshapes of a model that was exported with a fixed batch: their constant shapes contain the batch."""
from __future__ import annotations

import math

import numpy as np

from ocaffe.onnx.importer.graph import Graph, Node


def reopen(graph: Graph, node: Node) -> None:
    """Let a Reshape to a constant shape make the batch of the graph, if the shape tells where the original batch is."""
    if node.op != "Reshape" or not graph.batch or graph.open or node.inputs[0] not in graph.types or node.input(1) not in graph.constants:
        return
    (own, batch), x, dims = graph.sizes, graph.shape(node.inputs[0]), graph.constants[node.inputs[1]].ravel().tolist()
    axis = _axis(x, dims, own, batch)
    if axis is not None and dims[axis] > 0:
        dims[axis] = dims[axis] * batch // own
        node.inputs[1] = f"{node.inputs[1]} of {node.outputs[0]}"  # other nodes may read the same constant
        graph.constants[node.inputs[1]] = np.array(dims, np.int64)


def _axis(x: tuple[int, ...], dims: list[int], own: int, batch: int) -> int | None:
    """Return the axis of `dims` that contains the original batch, or None if that is not certain.

    Values that are neighbours along the batch have the same distance in memory before and after a Reshape.
    """
    before = [axis for axis, size in enumerate(x) if size and size % batch == 0]
    if len(before) != 1 or any(dim == 0 and axis >= len(x) for axis, dim in enumerate(dims)):
        return None
    wanted = [x[axis] if dim == 0 else dim for axis, dim in enumerate(dims)]
    if any(dim == 0 and axis in before for axis, dim in enumerate(dims)):
        return None  # copied
    known, count = math.prod(dim for dim in wanted if dim != -1), math.prod(x) // batch * own
    wanted = [count // max(1, known) if dim == -1 else dim for dim in wanted]
    if math.prod(wanted) != count:
        return None
    behind = math.prod(x[before[0] + 1 :])
    for distance in (behind * (x[before[0]] // batch), behind):  # the batch is the first or the last factor of its axis
        strides = [math.prod(wanted[axis + 1 :]) for axis in range(len(wanted))]
        holding = [axis for axis, (size, stride) in enumerate(zip(wanted, strides)) if stride <= distance and distance * own <= stride * size]
        exact = [axis for axis in holding if (wanted[axis], strides[axis]) == (own, distance)]
        if exact or len(holding) == 1:
            return (exact or holding)[0]
    return None
