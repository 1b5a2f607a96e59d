"""Rules of ScatterND and ScatterElements with constant places. PyTorch writes assignments to slices so: `y[..., :2] = z`."""
from __future__ import annotations

import math

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.convert.importer.rules.shape import flatten_to
from ocaffe.convert.importer.scattered import covers
from ocaffe.errors import shape_text

REDUCTIONS = ("none", "add", "mul", "max", "min")


@operator("ScatterND")
def scatter_nd(net: Builder, node: Node) -> None:
    places, shape, given = _places(net, node), _shape(net, node, 0), _shape(net, node, 2)
    axes = places.shape[-1] if places.ndim else 0
    fact = f"its places are {shape_text(places.shape)}, and its input is {shape_text(shape)}"
    net.check(node, places.ndim and axes <= len(shape), fact, "export with one number in a place for each of the first axes of the input")
    wanted = places.shape[:-1] + shape[axes:]
    net.check(node, wanted == given, f"its updates are {shape_text(given)}, and its places need {shape_text(wanted)}", "correct the updates in the model")
    _scatter(net, node, places)


@operator("ScatterElements", "Scatter")
def scatter_elements(net: Builder, node: Node) -> None:
    """Write the place of each update along all axes, as ScatterND has them."""
    places, shape, given = _places(net, node), _shape(net, node, 0), _shape(net, node, 2)
    fits = places.shape == given and len(given) == len(shape)
    fact = f"its places are {shape_text(places.shape)}, its updates {shape_text(given)}, and its input {shape_text(shape)}"
    net.check(node, fits, fact, "export with as many places as updates, and as many axes as the input has")
    net.graph.budget.spend(16 * len(shape) * places.size)
    along = np.indices(places.shape)
    along[node.get("axis", 0)] = places
    _scatter(net, node, np.moveaxis(along, 0, -1))


def _places(net: Builder, node: Node) -> np.ndarray:
    fix = "assign to a slice with constant bounds; or choose between both tensors with torch.where"
    net.check(node, net.is_constant(node, 1), "its places are computed by the net, and no Caffe layer writes to computed places", fix)
    reduction = node.get("reduction", "none")
    net.check(node, reduction in REDUCTIONS, f"reduction is '{reduction}'", f"export with reduction {', '.join(REDUCTIONS)}")
    places, axis = np.asarray(net.constant(node, 1), np.int64), net.graph.repeated.get(node.input(1))
    return places if axis is None else places.repeat(net.graph.sizes[1], axis)


def _shape(net: Builder, node: Node, index: int) -> tuple[int, ...]:
    """Return the shape of an input. That of a constant without values, which cannot be a blob, is the constant's."""
    empty = net.is_constant(node, index) and not net.constant(node, index).size
    return net.graph.shape(node.inputs[index]) if empty else net.shape(net.bottom(node, index))


def _scatter(net: Builder, node: Node, places: np.ndarray) -> None:
    """Write the updates along axes from `first` on. The places have one number for each of these axes, and all values behind them are written.

    If the updates are a part of one axis, they are concatenated with the parts before and behind. Else each place reads its update, and a mask chooses
    between it and the input.
    """
    shape = _shape(net, node, 0)
    if not math.prod(_shape(net, node, 2)):
        net.alias(node, net.bottom(node, 0))
        return
    sizes = np.array(shape[: places.shape[-1]], np.int64)
    beyond = ((places < -sizes) | (places >= sizes)).reshape(-1, len(sizes)).any(1)
    for wrong in places.reshape(-1, len(sizes))[beyond].tolist():
        raise net.error(node, f"it writes to the place {wrong}, and its input is {shape_text(shape)}", "export with places inside of the input")
    first, places = _needed(np.where(places < 0, places + sizes, places), shape)
    area, rest, count = shape[first : first + places.shape[-1]], shape[first + places.shape[-1] :], math.prod(places.shape[:-1])
    net.graph.budget.spend(8 * math.prod(area))
    flat = np.ravel_multi_index(tuple(places.reshape(count, -1).T), area) if area else np.zeros(count, np.int64)
    fix = "export with a place of its own for each update"
    net.check(node, len(np.unique(flat)) == count, "two of its updates have the same place, so the order decides about the result", fix)
    reduction = node.get("reduction", "none")
    data, updates = net.bottom(node, 0), net.bottom(node, 2)
    wanted = (*shape[:first], *((count,) if area else ()), *rest)
    if net.shape(updates) != wanted:
        updates = flatten_to(net, node, updates, wanted, "updates")
    if not area:
        _combined(net, node, data, updates, reduction, "")
    elif reduction == "none" and len(area) == 1 and (np.diff(flat) == 1).all():
        _replaced(net, node, data, updates, first, int(flat[0]), int(flat[-1]) + 1)
    else:
        source, mask = np.zeros(math.prod(area), np.int64), np.zeros(math.prod(area), bool)
        source[flat], mask[flat] = np.arange(count), True
        updates = net.layer(node, "Gather", [updates, net.given(node, source.reshape(area), "source")], {"axis": first}, part="spread")
        chosen = _combined(net, node, data, updates, reduction, "combined")
        written = net.given(node, mask.reshape(*area, *[1] * len(rest)), "mask")
        net.layer(node, "Where", [written, chosen, data], propagate=[False, True, True])


def _needed(places: np.ndarray, shape: tuple[int, ...]) -> tuple[int, np.ndarray]:
    """Leave out first and last axes that the places cover whole and in order, such as the batch. Return the number of the first axes."""
    first = 0
    while first < len(shape) and covers(places, 0, 0, shape[first]):
        first, places = first + 1, places[0, ..., 1:]
    while places.shape[-1] and covers(places, places.ndim - 2, -1, shape[first + places.shape[-1] - 1]):
        places = places[..., 0, :-1]
    return first, places


def _combined(net: Builder, node: Node, data: str, updates: str, reduction: str, part: str) -> str:
    """Return the updates, combined with the data."""
    if reduction == "none":
        if not part:
            net.alias(node, updates)
        return updates
    if reduction == "min":
        less = net.layer(node, "Compare", [updates, data], {"operation": "LESS"}, part="less")
        return net.layer(node, "Where", [less, updates, data], part=part, propagate=[False, True, True])
    operation = {"add": "SUM", "mul": "PROD", "max": "MAX"}[reduction]
    return net.layer(node, "Eltwise", [data, updates], {"operation": operation}, part=part)


def _replaced(net: Builder, node: Node, data: str, updates: str, axis: int, start: int, end: int) -> None:
    """Concatenate the updates with the parts before and behind them."""
    size = net.shape(data)[axis]
    before, old, behind = (net.free(f"{node.outputs[0]}_{part}") for part in ("before", "old", "behind"))
    tops = [*([before] if start else []), old, *([behind] if end < size else [])]
    net.layer(node, "Slice", [data], {"axis": axis, "slice_point": [point for point in (start, end) if 0 < point < size]}, part="parts", tops=tops)
    net.layer(node, "Silence", [old], part="parts_rest", tops=[])
    net.layer(node, "Concat", [updates if top == old else top for top in tops], {"axis": axis})
