"""Models that were exported with a fixed batch: their constants contain it, in the shapes of Reshapes and as repeated values."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.convert.importer.graph import Graph, Node
from ocaffe.convert.importer.scattered import covers
from ocaffe.ir.tensor import Shape

# Operators whose inputs have one batch: those that broadcast, and the others with the default of their attribute axis, along which the sizes may differ.
BROADCASTING = ("Add", "Sub", "Mul", "Div", "Where")
EXACT = {"Concat": None, "GRU": None, "LSTM": None, "GatherElements": 0, "ScatterElements": 0, "Scatter": 0, "ScatterND": None}


def reopen(graph: Graph, node: Node) -> None:
    """Replace constants of a node by those for the batch of the graph, as far as they tell where the original batch is."""
    if not graph.batch or graph.open:
        return
    shapes = [graph.shape(name) for name in node.inputs if name in graph.types]
    for index, name in reversed(list(enumerate(node.inputs))):  # the updates of a ScatterND before its places
        if name not in graph.constants or not shapes:
            continue
        if node.op == "Reshape" and index == 1:
            changed = _dims(graph.constants[name], shapes[0], graph.sizes)
        elif node.op == "ScatterND" and index == 1:
            changed = _further(graph, node)
        elif node.op in EXACT or (node.op in BROADCASTING and graph.sizes[0] > 1):
            changed = _repeated(graph, name, shapes, node.get("axis", EXACT.get(node.op)))
        else:
            continue
        if changed is not None:
            node.inputs[index] = f"{name} of {node.outputs[0]}"  # other nodes may read the same constant
            graph.constants[node.inputs[index]] = changed
            if name in graph.trained:
                graph.trained.add(node.inputs[index])


def _repeated(graph: Graph, name: str, shapes: Sequence[Shape], joined: int | None) -> np.ndarray | None:
    """Return a constant that has the original batch where others have the new one, with the new batch. Its values there must be equal."""
    array, (own, batch) = graph.constants[name], graph.sizes
    axes = [axis for axis, size in enumerate(array.shape) if size == own and any(len(x) == array.ndim and x[axis] == batch for x in shapes)]
    axes = [axis for axis in axes if joined is None or axis != joined % array.ndim]
    if len(axes) != 1:
        return None
    one = array.take([0], axes[0])
    if not np.array_equal(array, np.broadcast_to(one, array.shape)):
        return None
    graph.budget.spend(one.nbytes * batch, array.size)
    return np.repeat(one, batch, axes[0])


def _further(graph: Graph, node: Node) -> np.ndarray | None:
    """Return the places of a ScatterND that count along the original batch, continued along the new one."""
    places, data, updates = graph.constants[node.inputs[1]], graph.shape(node.inputs[0]), graph.shape(node.inputs[2])
    (own, batch), columns = graph.sizes, places.shape[-1] if places.ndim > 1 else 0
    axes = [axis for axis, (size, wanted) in enumerate(zip(places.shape[:-1], updates)) if (size, wanted) == (own, batch)]
    found = [(axis, column) for axis in axes for column in range(min(columns, len(data))) if data[column] == batch and covers(places, axis, column, own)]
    if len(found) != 1:
        return None
    ((axis, column),) = found
    graph.budget.spend(places.nbytes // own * batch, places.size // own * batch)
    more = np.repeat(places.take([0], axis), batch, axis)
    more[..., column] = np.arange(batch).reshape(-1, *[1] * (places.ndim - 2 - axis))
    return more


def _dims(array: np.ndarray, x: Shape, sizes: tuple[int, int]) -> np.ndarray | None:
    """Return the shape that a Reshape of x makes for the new batch."""
    (own, batch), dims = sizes, array.ravel().tolist()
    axis = _axis(x, dims, own, batch)
    if axis is None or dims[axis] <= 0:
        return None
    dims[axis] = dims[axis] * batch // own
    return np.array(dims, np.int64)


def _axis(x: Shape, dims: list[int], own: int, batch: int) -> int | None:
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
    if math.prod(wanted) != count or min(wanted, default=0) <= 0:
        return None
    strides = [math.prod(wanted[axis + 1 :]) for axis in range(len(wanted))]
    behind = math.prod(x[before[0] + 1 :])
    distances = behind * (x[before[0]] // batch), behind  # the batch is the first or the last factor of its axis
    exact = [axis for distance in distances for axis, size in enumerate(wanted) if (size, strides[axis]) == (own, distance)]
    if exact:
        return exact[0]
    holding = [axis for axis, size in enumerate(wanted) if strides[axis] <= distances[0] and distances[0] * own <= strides[axis] * size]
    if not holding:
        return None
    return holding[0 if len(wanted) < len(x) else -1]  # a batch of 1 ends one axis and begins the next; fewer axes mean that axes are merged
