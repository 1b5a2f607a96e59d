"""Rules of Resize and Upsample.

Each axis is a matrix product. If an Upsample or Interp layer computes the matrices of both axes, the rule adds that layer. Otherwise it adds a frozen
InnerProduct along each axis.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.constant import WRONG_NODE
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.errors import shape_text

# The position of output o of `outs` among `ins` pixels; s is the scale
PLACES: dict[str, Callable[[np.ndarray, Any, int, int], np.ndarray]] = {
    "half_pixel": lambda o, s, ins, outs: (o + 0.5) / s - 0.5,
    "half_pixel_symmetric": lambda o, s, ins, outs: (o + 0.5) / s - 0.5 + ins / 2 * (1 - outs / (ins * s)),
    "pytorch_half_pixel": lambda o, s, ins, outs: (o + 0.5) / s - 0.5 if outs > 1 else 0 * o,
    "align_corners": lambda o, s, ins, outs: o * (ins - 1) / max(1, outs - 1),
    "asymmetric": lambda o, s, ins, outs: o / s,
    "tf_half_pixel_for_nn": lambda o, s, ins, outs: (o + 0.5) / s,
}
ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@operator("Resize", "Upsample")
def resize(net: Builder, node: Node) -> None:
    x, wanted = net.bottom(node), net.output_shape(node)
    shape = net.shape(x)
    fact = f"it resizes {shape_text(shape)} to {shape_text(wanted)}; Caffe's layers resize rows and columns"
    net.check(node, len(shape) in (3, 4) and shape[:2] == wanted[:2], fact)
    if len(shape) == 3:
        line = _matrix(net, node, 2, shape[2], wanted[2])
        if np.array_equal(line, np.eye(shape[2])):
            net.alias(node, x)
        else:
            _product(net, node, x, line, "", axis=2)
        return
    rows, columns = (_matrix(net, node, axis, shape[axis], wanted[axis]) for axis in (2, 3))
    factor = wanted[2] // shape[2]
    if all(np.array_equal(matrix, np.eye(len(matrix))) for matrix in (rows, columns) if matrix.shape[0] == matrix.shape[1]) and shape == wanted:
        net.alias(node, x)
    elif all(np.array_equal(matrix, np.repeat(np.eye(matrix.shape[1]), factor, 0)) for matrix in (rows, columns)):
        net.layer(node, "Upsample", [x], {"scale": factor})
    elif all(np.allclose(matrix, _linear(_corners(matrix), matrix.shape[1]), atol=1e-6) for matrix in (rows, columns)):
        net.layer(node, "Interp", [x], {"height": wanted[2], "width": wanted[3]})
    else:
        top = _product(net, node, x, columns, "columns")
        top = net.layer(node, "Permute", [top], {"order": [0, 1, 3, 2]}, part="turned")
        top = _product(net, node, top, rows, "rows")
        net.layer(node, "Permute", [top], {"order": [0, 1, 3, 2]})


def _product(net: Builder, node: Node, x: str, matrix: np.ndarray, part: str, axis: int = 3) -> str:
    return net.layer(node, "InnerProduct", [x], {"num_output": len(matrix), "axis": axis, "bias_term": False}, part=part, blobs=[matrix], learn=False)


def _matrix(net: Builder, node: Node, axis: int, ins: int, outs: int) -> np.ndarray:
    """Return outs x ins weights: the weight of each input pixel in each output along an axis."""
    early = node.op == "Upsample" or net.graph.opset < 11  # these are always asymmetric, and nearest means floor
    mode = node.get("mode", "nearest")
    where = "asymmetric" if early else node.get("coordinate_transformation_mode", "half_pixel")
    rounding = "floor" if early else node.get("nearest_mode", "round_prefer_floor")
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    for name, value, known in (("mode", mode, ("nearest", "linear", "cubic")), ("coordinate_transformation_mode", where, PLACES),
                               ("nearest_mode", rounding, ROUNDINGS), ("keep_aspect_ratio_policy", policy, ("stretch",)),
                               ("antialias", node.get("antialias", 0), (0,)), ("exclude_outside", node.get("exclude_outside", 0), (0,))):  # fmt: skip
        net.check(node, value in known, f"{name} is {value!r}, which is not supported", f"export with {name} {' or '.join(map(str, known))}")
    net.graph.budget.spend(8 * ins * outs)
    given = net.setting(node, "scales", 1 if early else 2) or []
    named = node.get("axes", range(len(given)))
    scale = dict(zip(named, given)).get(axis, outs / ins)
    fact = f"the scale of axis {axis} is {scale}; a finite number above 0 is needed"
    net.check(node, isinstance(scale, float) and math.isfinite(scale) and scale > 0 and outs, fact, WRONG_NODE)
    # In float32 like the runtimes: rounding decides which of two pixels is nearest.
    places = PLACES[where](np.arange(outs, dtype=np.float32), np.float32(scale), ins, outs)
    if mode == "nearest":
        return np.eye(ins)[np.clip(ROUNDINGS[rounding](places), 0, ins - 1).astype(int)]
    return _linear(places, ins) if mode == "linear" else _cubic(places, ins, node.get("cubic_coeff_a", -0.75))


def _corners(matrix: np.ndarray) -> np.ndarray:
    outs, ins = matrix.shape
    return PLACES["align_corners"](np.arange(outs, dtype=np.float64), 0.0, ins, outs)


def _linear(places: np.ndarray, ins: int) -> np.ndarray:
    return _taps(places, ins, [0.0, 1.0], lambda d: 1 - d)


def _cubic(places: np.ndarray, ins: int, a: float) -> np.ndarray:
    def weight(d: np.ndarray) -> np.ndarray:
        return np.where(d <= 1, ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)

    return _taps(places, ins, [-1.0, 0.0, 1.0, 2.0], weight)


def _taps(places: np.ndarray, ins: int, taps: list[float], weight: Any) -> np.ndarray:
    """Return the matrix that weighs the pixels at the taps of each position by distance. Pixels outside are edge pixels."""
    matrix, first = np.zeros((len(places), ins)), np.floor(places)
    for tap in taps:
        at = np.clip(first + tap, 0, ins - 1).astype(int)
        np.add.at(matrix, (np.arange(len(places)), at), weight(np.abs(places - first - tap)))
    return matrix
