"""Rules of Add, Mul and other operators on two or more tensors, with ONNX's broadcasting."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.convert.importer.rules.pointwise import FLOAT_MAX, bounded
from ocaffe.convert.importer.rules.shape import flatten_to, repeat
from ocaffe.ir.tensor import Shape

# Power's fields for an operator with a number c: if the tensor is the first operand, and if it is the second
NUMBERS: dict[str, tuple[Any, Any]] = {
    "Add": (lambda c: {"shift": c}, lambda c: {"shift": c}),
    "Sub": (lambda c: {"shift": -c}, lambda c: {"scale": -1.0, "shift": c}),
    "Mul": (lambda c: {"scale": c}, lambda c: {"scale": c}),
    "Div": (lambda c: {"scale": 1 / c}, lambda c: {"power": -1.0, "scale": 1 / c}),
    "Pow": (lambda c: {"power": c}, None),
}
AWAY = {"Floor": ("LESS", -1), "Ceil": ("GREATER", 1)}  # rounding of a quotient -> the sign of the missing part if one more step is needed, and the step
SAME = {"Add": {"scale": 2.0}, "Mul": {"power": 2.0}}  # both operands are the same tensor


@operator(*NUMBERS)
def binary(net: Builder, node: Node) -> None:
    first, second = (net.is_constant(node, index) for index in (0, 1))
    if node.op == "Div" and not net.is_float(node, int(first)):
        quotient(net, node)
        return
    if not first and not second:
        _tensors(net, node)
        return
    x, values = net.bottom(node, int(first)), net.constant(node, int(second))
    if values.size == 1 and len(net.output_shape(node)) == len(net.shape(x)):
        _number(net, node, x, float(values.reshape(())), first)
    else:
        _array(net, node, x, values.astype(np.float32), first)


@operator("Quotient")  # made by `patterns`; not an ONNX operator
def quotient(net: Builder, node: Node) -> None:
    """Divide and round the result towards 0, or as the attribute `rounding` says: Floor, Ceil.

    A Power layer multiplies by a reciprocal, and 41 * (1 / 41) is below 1. So the remainder, which is exact, is subtracted before. What is left is a
    multiple, and Round removes the rounding error of the reciprocal.
    """
    a, b, wanted = net.bottom(node, 0), net.bottom(node, 1), net.output_shape(node)
    divisor = net.constant(node, 1) if net.is_constant(node, 1) else None
    net.check(node, divisor is None or divisor.all(), "it divides by 0", "correct the constant in the model")
    number = float(divisor.reshape(())) if divisor is not None and divisor.size == 1 else 0.0
    rest = net.layer(node, "Mod", [a, b], part="rest")
    top = net.layer(node, "Eltwise", [repeat(net, node, a, wanted, "first_"), rest], {"coeff": [1, -1]}, part="multiple")
    if number:
        top = net.layer(node, "Power", [top], {"scale": 1 / number}, part="ratio")
    else:
        b = repeat(net, node, b, wanted, "second_")
        reciprocal = net.layer(node, "Power", [b], {"power": -1.0}, part="reciprocal")
        top = net.layer(node, "Eltwise", [top, reciprocal], {"operation": "PROD"}, part="ratio")
    if node.get("rounding", "") not in AWAY:
        net.layer(node, "Round", [top])
        return
    operation, step = AWAY[node.get("rounding")]
    top = net.layer(node, "Round", [top], part="towards_0")
    if number:
        signed = net.layer(node, "Power", [rest], {"scale": math.copysign(1, number)}, part="sign")
    else:
        signed = net.layer(node, "Eltwise", [rest, b], {"operation": "PROD"}, part="sign")
    away = net.layer(node, "Compare", [signed, net.given(node, np.zeros(1), "zero")], {"operation": operation}, part="away")
    net.layer(node, "Eltwise", [top, away], {"coeff": [1, step]})


def _number(net: Builder, node: Node, x: str, value: float, number_first: bool) -> None:
    fields = NUMBERS[node.op][number_first]
    net.check(node, fields is not None, f"it raises {value:g} to the power of a tensor, which a Power layer cannot")
    fact = "it divides 0 by a tensor, which a Power layer cannot" if number_first else "it divides by 0"
    net.check(node, node.op != "Div" or value != 0, fact, "correct the constant in the model")
    net.layer(node, "Power", [x], fields(value))


def _array(net: Builder, node: Node, x: str, values: np.ndarray, values_first: bool) -> None:
    """Add a Bias or Scale over the constant's axes. It is frozen unless the constant was an initializer: exporters write parameters so."""
    net.check(node, node.op != "Pow", f"it has {values.size} exponents, and a Power layer has one")
    wanted = net.output_shape(node)
    if net.shape(x) != wanted:
        x = repeat(net, node, x, wanted, "wide")
    if values_first and node.op == "Sub":
        x = net.layer(node, "Power", [x], {"scale": -1.0}, part="negative")
    if values_first and node.op == "Div":
        x = net.layer(node, "Power", [x], {"power": -1.0}, part="reciprocal")
    elif node.op == "Div":
        values = 1 / values
    elif node.op == "Sub" and not values_first:
        values = -values
    axis, laid = _span(values, wanted)
    kind = "Bias" if node.op in ("Add", "Sub") else "Scale"
    fields = {name: value for name, value, default in (("axis", axis, 1), ("num_axes", laid.ndim, 1)) if value != default}
    learn = node.input(0 if values_first else 1) in net.graph.trained
    net.layer(node, kind, [x], fields, blobs=[laid], learn=learn)


def _span(values: np.ndarray, wanted: Shape) -> tuple[int, np.ndarray]:
    """Return the first axis of `wanted` along which the values differ, and the values broadcast from that axis to the last such axis."""
    shape = (1,) * (len(wanted) - values.ndim) + values.shape
    axes = [axis for axis, size in enumerate(shape) if size > 1] or [min(1, len(wanted) - 1)]
    first, behind = axes[0], axes[-1] + 1
    return first, np.broadcast_to(values.reshape(shape[first:behind]), wanted[first:behind])


def _tensors(net: Builder, node: Node) -> None:
    a, b = net.bottom(node, 0), net.bottom(node, 1)
    net.check(node, node.op != "Pow", "its exponent is a tensor, and a Power layer has a constant one")
    if a == b and node.op in SAME:
        net.layer(node, "Power", [a], SAME[node.op])
        return
    if node.op == "Div":
        b = net.layer(node, "Power", [b], {"power": -1.0}, part="reciprocal")
    wanted = net.output_shape(node)
    for x, y, first in ((a, b, True), (b, a, False)):
        if net.shape(x) == wanted != net.shape(y) and _leading(net.shape(y), wanted) and (first or node.op != "Sub"):
            _broadcast(net, node, x, y)
            return
    a, b = (x if net.shape(x) == wanted else repeat(net, node, x, wanted, f"{name}_") for x, name in ((a, "first"), (b, "second")))
    eltwise(net, node, [a, b], {"Add": "SUM", "Sub": "SUM"}.get(node.op, "PROD"), [1, -1] if node.op == "Sub" else [])


def _leading(shape: Shape, wanted: Shape) -> int:
    """Return how many leading axes `shape` shares with `wanted` if all its other axes are 1, else 0.

    The result is 2 for one number per channel of each image.
    """
    ends = range(len(wanted) - 1, 0, -1) if len(shape) == len(wanted) else ()
    return next((end for end in ends if shape == (*wanted[:end], *(1,) * (len(wanted) - end))), 0)


def _broadcast(net: Builder, node: Node, x: str, y: str) -> None:
    """Combine x with y, which has only the first axes of x. SENet's attention does this."""
    axes = _leading(net.shape(y), net.shape(x))
    if node.op == "Sub":
        y = net.layer(node, "Power", [y], {"scale": -1.0}, part="negative")
    y = flatten_to(net, node, y, net.shape(y)[:axes], "flat")
    net.layer(node, "Bias" if node.op in ("Add", "Sub") else "Scale", [x, y], {"axis": 0})


def eltwise(net: Builder, node: Node, bottoms: list[str], operation: str, coeff: list[float]) -> None:
    fields: dict[str, Any] = ({"operation": operation} if operation != "SUM" else {}) | ({"coeff": coeff} if coeff else {})
    net.layer(node, "Eltwise", bottoms, fields)


@operator("Max", "Min")
def extreme(net: Builder, node: Node) -> None:
    constants = [index for index in range(len(node.inputs)) if net.is_constant(node, index)]
    lowest = node.op == "Max"
    if len(node.inputs) == 2 and len(constants) == 1 and net.constant(node, constants[0]).size == 1:
        value = float(net.constant(node, constants[0]).reshape(()))
        bounded(net, node, net.bottom(node, 1 - constants[0]), value if lowest else -FLOAT_MAX, FLOAT_MAX if lowest else value)
        return
    wanted = net.output_shape(node)
    bottoms = [repeat(net, node, net.bottom(node, index), wanted, f"{index}_") for index in range(len(node.inputs))]
    if len(bottoms) == 1:
        net.alias(node, bottoms[0])
    elif lowest:
        eltwise(net, node, bottoms, "MAX", [])
    else:  # min(x) = -max(-x)
        bottoms = [net.layer(node, "Power", [x], {"scale": -1.0}, part=f"{index}_negative") for index, x in enumerate(bottoms)]
        top = net.layer(node, "Eltwise", bottoms, {"operation": "MAX"}, part="max")
        net.layer(node, "Power", [top], {"scale": -1.0})


@operator("Sum", "Mean")
def total(net: Builder, node: Node) -> None:
    wanted = net.output_shape(node)
    bottoms = [repeat(net, node, net.bottom(node, index), wanted, f"{index}_") for index in range(len(node.inputs))]
    if len(bottoms) == 1:
        net.alias(node, bottoms[0])
    else:
        eltwise(net, node, bottoms, "SUM", [1 / len(bottoms)] * len(bottoms) if node.op == "Mean" else [])


@operator("Mod")
def mod(net: Builder, node: Node) -> None:
    """Add a Mod layer, whose result has the sign of the first operand. For the sign of the second one (fmod 0), add the second operand and do it again."""
    net.check(node, node.get("fmod") or not net.is_float(node), "fmod is 0, and its inputs are floats", "export with fmod 1, as torch.fmod is")
    zero = net.is_constant(node, 1) and not net.constant(node, 1).all()
    net.check(node, not zero, "it divides by 0", "correct the constant in the model")
    a, b = net.bottom(node, 0), net.bottom(node, 1)
    if node.get("fmod"):
        net.layer(node, "Mod", [a, b])
        return
    top = net.layer(node, "Mod", [a, b], part="rest")
    if net.is_constant(node, 1) and net.constant(node, 1).size == 1:
        top = net.layer(node, "Power", [top], {"shift": float(net.constant(node, 1).reshape(()))}, part="moved")
    else:
        top = net.layer(node, "Eltwise", [top, repeat(net, node, b, net.shape(top), "second_")], part="moved")
    net.layer(node, "Mod", [top, b])
