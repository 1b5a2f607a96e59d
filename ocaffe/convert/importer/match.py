"""Matching of patterns of several operators that are equivalent to one operator.

A pattern is a term. A term is one of:

* a name: lower case for a computed tensor, upper case for a constant; the same name always matches the same tensor
* a number: a scalar constant of this value, up to rounding
* a tuple: an operator, the terms of its inputs, and optionally a dict of required attributes

The two inputs of Add and Mul match in either order.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ocaffe.convert.importer.graph import Graph, Node

SWAPPED = ("Add", "Mul")
DEFAULTS = {("HardSigmoid", "beta"): 0.5}  # defaults of attributes that patterns require
NEAR = 1e-3  # relative tolerance of numbers: some exporters write sqrt(2) with four digits


def match(graph: Graph, producers: Mapping[str, Node], pattern: tuple[Any, ...], node: Node) -> dict[str, str] | None:
    """Return the tensors of the names in a pattern if `node` matches its outermost operator, else None."""
    return next(_operator(graph, producers, pattern, node, {}), None)


def _term(graph: Graph, producers: Mapping[str, Node], term: Any, tensor: str, bound: dict[str, str]) -> Iterator[dict[str, str]]:
    if isinstance(term, tuple):
        if tensor in producers:
            yield from _operator(graph, producers, term, producers[tensor], bound)
    elif isinstance(term, str):
        if bound.get(term, tensor) == tensor and term.isupper() == (tensor in graph.constants):
            yield {**bound, term: tensor}
    elif tensor in graph.constants:
        values = graph.constants[tensor]
        if values.size == 1 and abs(float(values.reshape(())) - term) <= NEAR * abs(term):
            yield bound


def _operator(graph: Graph, producers: Mapping[str, Node], pattern: tuple[Any, ...], node: Node, bound: dict[str, str]) -> Iterator[dict[str, str]]:
    op, *terms = pattern
    wanted = terms.pop() if isinstance(terms[-1], dict) else {}
    if node.op != op or len(terms) != len(node.inputs) or not all(_equal(node.get(name, DEFAULTS.get((op, name))), value) for name, value in wanted.items()):
        return
    for inputs in [node.inputs, node.inputs[::-1]] if op in SWAPPED else [node.inputs]:
        yield from _terms(graph, producers, terms, inputs, bound)


def _terms(graph: Graph, producers: Mapping[str, Node], terms: list[Any], inputs: list[str], bound: dict[str, str]) -> Iterator[dict[str, str]]:
    if not terms:
        yield bound
        return
    for found in _term(graph, producers, terms[0], inputs[0], bound):
        yield from _terms(graph, producers, terms[1:], inputs[1:], found)


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return value is not None and bool(np.isclose(value, wanted, rtol=NEAR))
    return bool(value == wanted)
