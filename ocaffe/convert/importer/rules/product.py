"""Rules of matrix products: Gemm, MatMul, Einsum."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.convert.importer.rules.shape import flatten_to
from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape


@operator("Gemm")
def gemm(net: Builder, node: Node) -> None:
    x, weight, bias = net.bottom(node), net.constant(node, 1), net.constant(node, 2)
    net.check(node, not node.get("transA"), "transA is set: a Caffe layer has the batch in the first axis of its input")
    weight = weight * np.float32(node.get("alpha", 1.0))
    outputs = weight.shape[0 if node.get("transB") else 1]
    if bias is not None:
        row = bias.size == 1 or (bias.size == outputs and bias.shape[-1] == outputs)
        net.check(node, row, f"its bias (input C) is {shape_text(bias.shape)}, a row of {outputs} values is expected")
        bias = np.broadcast_to(bias.reshape(-1) * np.float32(node.get("beta", 1.0)), (outputs,))
    _inner_product(net, node, x, weight if node.get("transB") else weight.T, bias)


@operator("MatMul")
def matmul(net: Builder, node: Node) -> None:
    """Add an InnerProduct for a matrix of constant weights, else a MatMul.

    `patterns` adds the bias of an InnerProduct as input 2, and `transpose_b` where the last two axes of input 1 are exchanged before.
    """
    if net.is_constant(node, 1) and net.constant(node, 1).ndim == 2 and not net.is_constant(node, 0):
        _inner_product(net, node, net.bottom(node), net.constant(node, 1).T, net.constant(node, 2))
        return
    a, b = net.bottom(node, 0), net.bottom(node, 1)
    axes = len(net.shape(a)), len(net.shape(b))
    if axes[0] == 1:  # a row
        a = flatten_to(net, node, a, (1, *net.shape(a)), "row")
    if axes[1] == 1:  # a column
        b = flatten_to(net, node, b, (*net.shape(b), 1), "column")
    fields = {"transpose_b": True} if node.get("transpose_b") else {}
    if 1 not in axes:
        net.layer(node, "MatMul", [a, b], fields)
    else:
        flatten_to(net, node, net.layer(node, "MatMul", [a, b], fields, part="product"), net.output_shape(node))


@operator("Einsum")
def einsum(net: Builder, node: Node) -> None:
    """Convert an Einsum of two tensors to a MatMul, with a Permute and a Reshape where the axes are in another order.

    The letters in both tensors and the output are the batch. A letter in both tensors alone is summed over.
    """
    equation = node.get("equation", "").replace(" ", "")
    sides, _, out = equation.partition("->")
    terms = sides.split(",")
    letters = len(terms) == 2 and "->" in equation and all(len(set(term)) == len(term) and term.isalpha() for term in (*terms, out))
    fact = f"its equation is '{node.get('equation', '')}'"
    net.check(node, letters, fact, "export with two tensors and an output, and one letter for each axis, as in 'bik,bkj->bij'")
    tensors = [net.bottom(node, 0), net.bottom(node, 1)]
    for term, x in zip(terms, tensors):
        fact = f"its equation has '{term}' for an input of {shape_text(net.shape(x))}"
        net.check(node, len(term) == len(net.shape(x)), fact, f"export with {len(net.shape(x))} letters there, one for each axis")
    sizes = {letter: size for term, x in zip(terms, tensors) for letter, size in zip(term, net.shape(x))}
    batch = [letter for letter in out if letter in terms[0] and letter in terms[1]]
    summed = [letter for letter in terms[0] if letter in terms[1] and letter not in out]
    own = [[letter for letter in out if letter in term and letter not in batch] for term in terms]
    lone = set(terms[0]) ^ set(terms[1])
    fact = f"its equation '{equation}' sums over {', '.join(sorted(lone - set(out)))} in one tensor alone"
    net.check(node, lone <= set(out), fact, "sum that tensor before (ReduceSum)")
    lead = tuple(sizes[letter] for letter in batch)
    rows, inner, columns = (math.prod(sizes[letter] for letter in names) for names in (own[0], summed, own[1]))
    a = _arranged(net, node, tensors[0], terms[0], [*batch, *own[0], *summed], (*lead, rows, inner), "first")
    b = _arranged(net, node, tensors[1], terms[1], [*batch, *summed, *own[1]], (*lead, inner, columns), "second")
    made = [*batch, *own[0], *own[1]]
    shape, order = tuple(sizes[letter] for letter in made), [made.index(letter) for letter in out]
    steps = [(len(made) != len(lead) + 2, "Reshape"), (order != sorted(order), "Permute")]
    last = next((kind for needed, kind in reversed(steps) if needed), "MatMul")
    top = net.layer(node, "MatMul", [a, b], part="" if last == "MatMul" else "product")
    if steps[0][0]:
        top = flatten_to(net, node, top, shape, "" if last == "Reshape" else "axes")
    if last == "Permute":
        net.layer(node, "Permute", [top], {"order": order})


def _arranged(net: Builder, node: Node, x: str, term: str, wanted: list[str], shape: Shape, part: str) -> str:
    """Permute the axes of x, named by `term`, to `wanted`, and reshape them to `shape`."""
    order = [term.index(letter) for letter in wanted]
    if order != sorted(order):
        x = net.layer(node, "Permute", [x], {"order": order}, part=f"{part}_order")
    return x if net.shape(x) == shape else flatten_to(net, node, x, shape, f"{part}_matrix")


def blobs_of(weight: np.ndarray, bias: np.ndarray | None) -> list[np.ndarray]:
    return [weight] if bias is None else [weight, bias]


def _inner_product(net: Builder, node: Node, x: str, weight: np.ndarray, bias: np.ndarray | None) -> None:
    parameters: dict[str, Any] = {"num_output": weight.shape[0]}
    axes = len(net.shape(x))
    if axes > 2:
        parameters["axis"] = axes - 1
    elif axes == 1:
        x = flatten_to(net, node, x, (1, *net.shape(x)), "row")
    if bias is None:
        parameters["bias_term"] = False
    net.layer(node, "InnerProduct", [x], parameters, blobs=blobs_of(weight, bias))


@operator("CumSum")
def cumulative(net: Builder, node: Node) -> None:
    """Multiply the values along the axis by a frozen triangle of ones."""
    x, axis = net.bottom(node), net.number(node, "axis", 1)
    shape = net.shape(x)
    fact = f"its axis is {axis}, and its input is {shape_text(shape)}"
    net.check(node, -len(shape) <= axis < len(shape), fact, f"export with an axis from {-len(shape)} to {len(shape) - 1}")
    axis, last = int(axis) % len(shape), len(shape) - 1
    net.graph.budget.spend(8 * shape[axis] ** 2)
    ones = np.tril(np.ones((shape[axis], shape[axis])), -1 if node.get("exclusive") else 0)
    weights = ones.T if node.get("reverse") else ones
    order = [*(other for other in range(len(shape)) if other != axis), axis]
    turned = axis != last
    if turned:
        x = net.layer(node, "Permute", [x], {"order": order}, part="order")
    fields = {"num_output": shape[axis], "axis": last, "bias_term": False}
    x = net.layer(node, "InnerProduct", [x], fields, part="sums" if turned else "", suffix="sums" if turned else "", blobs=[weights], learn=False)
    if turned:
        net.layer(node, "Permute", [x], {"order": np.argsort(order).tolist()})
