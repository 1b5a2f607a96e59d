"""Limits of the comparison of a net with its ONNX model. Shapes tell what it takes, before an input is drawn.

A file of a few bytes can describe blobs of any size, and a recurrent layer of any number of time steps.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ocaffe.cl.free_memory import free_memory
from ocaffe.errors import Error, shape_text
from ocaffe.ir.graph import Blob, Graph, Node
from ocaffe.layers.conv_lstm import ConvLSTM
from ocaffe.layers.pooling import Pooling
from ocaffe.layers.recurrent import Recurrent
from ocaffe.shown import flag

COPIES, DRAWN = 8, 2  # of each compared blob, and more of each input: the net, the model and its pieces have their own, with and without rounding errors
INNER = 2  # copies of the blobs that the model does not have and that a layer still needs: only the net has them, and they share memory
WEIGHTS = 6  # copies of the weights: the file, its message, the net, the model in the runtime and its pieces
SHARE = 0.75  # of the free memory
UNKNOWN = 8 << 30  # bytes that are free where the system does not say
MOST_OPERATIONS = 1 << 43  # of a pass; VGG-16 takes 2^41 for a batch of 64
MOST_USES = 1 << 16  # of blobs by layers, in each time step. A use takes 1 to 3 ms, since the net is compiled for each batch


@dataclass(frozen=True)
class Cost:
    """The memory in bytes, the operations of a pass, how often layers use blobs, and where each is largest."""

    memory: int
    operations: int
    uses: int
    largest: Blob
    slowest: Node
    longest: Node

    @property
    def excess(self) -> tuple[str, str]:
        """The cause and the layer if a comparison takes too much, else two empty texts."""
        free = free_memory(None, "cpu", frozenset()) or UNKNOWN
        if self.memory > SHARE * free:
            blob = f"blob '{self.largest.name}' is {shape_text(self.largest.shape)}"
            fact = f"needs about {_gib(self.memory)} of memory ({blob}), and at most {_gib(int(SHARE * free))} of the {_gib(free)} that are free are accepted"
            return fact, "" if self.largest.producer is None else self.largest.producer.layer.title
        if self.operations > MOST_OPERATIONS:
            fact = f"needs {self.operations:.2g} operations for a pass, and at most {MOST_OPERATIONS:.2g} are accepted"
            return fact, self.slowest.layer.title
        if self.uses > MOST_USES:
            fact = f"reads and writes {self.uses:,} blobs, counted for each time step, and at most {MOST_USES:,} are accepted"
            return fact, self.longest.layer.title
        return "", ""


class Compared(Protocol):
    """A net that is compared: the graph, the layers of its message, the blobs that are compared, and the weights."""

    @property
    def graph(self) -> Graph: ...

    @property
    def layers(self) -> Iterable[Any]: ...

    @property
    def named(self) -> Container[str]: ...

    @property
    def weights(self) -> Mapping[Any, np.ndarray]: ...


def cost(compared: Compared, times: float) -> Cost:
    """Return what a comparison takes. `times`: how many times as large as the net's own batch the largest compared batch is."""
    graph = compared.graph
    blobs = [graph.blobs[name] for name in {top for layer in compared.layers for top in layer.top}]
    inner = {blob for blob in blobs if blob.name not in compared.named}
    values = COPIES * sum(blob.count for blob in blobs if blob not in inner) + INNER * _held(graph, inner) + DRAWN * sum(blob.count for blob in graph.inputs)
    memory = 4 * math.ceil(times * values) + WEIGHTS * sum(array.nbytes for array in compared.weights.values())
    own = {layer.name for layer in compared.layers}  # a graph has further Splits
    operations, uses = ({node: of(node) for node in graph.nodes if node.name in own} for of in (_operations, _uses))
    largest = max(blobs, key=lambda blob: blob.count)
    return Cost(memory, math.ceil(times * sum(operations.values())), sum(uses.values()), largest, max(operations, key=operations.__getitem__),
                max(uses, key=uses.__getitem__))  # fmt: skip


def _held(graph: Graph, blobs: Container[Blob]) -> int:
    """Return the largest number of values that these blobs hold at a time, from the layer that makes one to the last that reads it."""
    copied, last = dict[Blob, Blob](), dict[Blob, int]()
    for number, node in enumerate(graph.nodes):
        for blob in (*node.bottoms, *node.tops):
            last[copied.get(blob, blob)] = number
        if node.type == "Split":
            copied |= dict.fromkeys(node.tops, copied.get(node.bottoms[0], node.bottoms[0]))
    changes = [0] * (len(graph.nodes) + 1)
    for number, node in enumerate(graph.nodes):
        for blob in node.tops:
            if blob in blobs and blob not in copied:
                changes[number] += blob.count
                changes[last[blob] + 1] -= blob.count
    return max(itertools.accumulate(changes))


def check_cost(compared: Compared, place: str, batch: Mapping[str, int], other: int, what: str = "model") -> None:
    """Raise Error if the comparison takes too much memory or work.

    `batch` is the axis of the batch in each input that has one. `other` is another batch that is compared, 0 if there is none. The error says with
    `what` the net is compared.
    """
    shapes = {blob.name: list(blob.shape) for blob in compared.graph.inputs}
    size = next((shapes[name][axis] for name, axis in batch.items()), 1)
    fact, layer = cost(compared, max(1, other / size)).excess
    if not fact:
        return
    fix = "--noverify writes the file without comparing"
    if size > 1 and not cost(compared, (3 if other else 1) / size).excess[0]:
        for name, axis in batch.items():
            shapes[name][axis] = 1
        smaller = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
        fix += f"; {flag('shape', smaller)} makes and compares a net for a batch of 1"
    raise Error(f"the comparison with the {what} {fact}", place=place, layer=layer or None, fix=fix)


def _operations(node: Node) -> int:
    window = math.prod(node.layer.pool.kernel) if isinstance(node.layer, Pooling) else 0
    return node.layer.flops() + window * sum(top.count for top in node.tops)


def _uses(node: Node) -> int:
    """Return the bottoms and tops of a layer, times its time steps: a recurrent layer runs each step by itself."""
    steps = node.layer.steps if isinstance(node.layer, (ConvLSTM, Recurrent)) else 1
    return (len(node.bottoms) + len(node.tops)) * steps


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size < 1 << 60 else f"2^{math.log2(size):.0f} bytes"
