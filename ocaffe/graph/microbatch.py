"""Microbatches: the first layers of a net run on some samples at a time, so that their large values exist for these samples alone.

Forward computes the layers before one blob (the cut) microbatch by microbatch, and keeps only the cut. Backward repeats forward of each microbatch, then runs
its backward; the gradients of the microbatches add up. Only the order of sums changes, if every layer computes a sample from the same sample
(`AbstractLayer.by_sample`).
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ocaffe.ir.graph import Blob, Graph, Node
from ocaffe.ir.tensor import Ref, Shape


@dataclass(frozen=True)
class Microbatch:
    """The top of node `cut`, and all layers before it, are computed in `count` microbatches of equal size."""

    cut: int
    count: int


def cuts(graph: Graph, kept: Callable[[str], bool]) -> list[int]:
    """The nodes that can be the cut, the cheapest to recompute first. `kept`: names of blobs that a script reads.

    Of cuts with the same cost, such as a ReLU and the pooling behind it, it is the one with the smallest top.
    """
    best: dict[int, int] = {}
    for index in range(len(graph.nodes)):
        if _can_cut(graph, index, kept):
            flops = sum(graph.nodes[behind].layer.flops() for behind in _behind(graph, index))
            best[flops] = min(best.get(flops, index), index, key=lambda each: graph.nodes[each].tops[0].count)
    return [index for _, index in sorted(best.items())]


def batch_of(graph: Graph, cut: int) -> int:
    """The number of samples of a node's top."""
    return graph.nodes[cut].tops[0].shape[0]


def _behind(graph: Graph, cut: int) -> list[int]:
    """The node and all nodes that its top depends on, without those that feed the net."""
    number = {id(node): index for index, node in enumerate(graph.nodes)}
    found, todo = set[int](), [cut]
    while todo:
        index = todo.pop()
        node = graph.nodes[index]
        if index not in found and node.bottoms:
            found.add(index)
            todo += [number[id(bottom.producer)] for bottom in node.bottoms if bottom.producer is not None]
    return sorted(found)


def _can_cut(graph: Graph, cut: int, kept: Callable[[str], bool]) -> bool:
    top = graph.nodes[cut].tops[:1]
    behind = [graph.nodes[index] for index in _behind(graph, cut)]
    if not behind or len(graph.nodes[cut].tops) != 1 or not graph.nodes[cut].layer.moves_data:
        return False
    inside = set(map(id, behind))
    batch = top[0].shape[:1]

    def fits(blob: Blob) -> bool:
        """Whether a blob has the batch's samples, and only layers inside read it, unless it is the cut."""
        own = blob is top[0] or (blob.consumer is not None and id(blob.consumer) in inside)
        return own and blob.consumer is not None and blob.shape[:1] == batch and not blob.loss_weight and not kept(blob.name)

    def fed(blob: Blob) -> bool:
        return id(blob.producer) in inside or blob.shape[:1] == batch

    return (
        all(node.layer.by_sample for node in behind)
        and all(fits(blob) for node in behind for blob in node.tops)
        and all(fed(blob) for node in behind for blob in node.bottoms)
        and not any(wanted and id(blob.producer) not in inside for node in behind for blob, wanted in zip(node.bottoms, node.propagate))
        and sum(blob.count for node in behind for blob in node.tops) > 2 * top[0].count
    )


class MicrobatchedLayers:
    """The layers of a graph that run in microbatches.

    While a microbatch is current (`current`), the blobs have its shapes and memory.
    """

    def __init__(self, graph: Graph, microbatch: Microbatch) -> None:
        self.count = microbatch.count
        self.indices = _behind(graph, microbatch.cut)
        self.nodes: list[Node] = [graph.nodes[index] for index in self.indices]
        self.last = microbatch.cut
        self.top = graph.nodes[microbatch.cut].tops[0]
        self.size = self.top.shape[0] // microbatch.count
        made = {id(blob) for node in self.nodes for blob in node.tops}
        self.feeds = [blob for node in self.nodes for blob in node.bottoms if id(blob) not in made]
        self.inner = [blob for node in self.nodes for blob in node.tops if blob is not self.top]
        self.shapes: dict[Blob, Shape] = {blob: blob.shape for blob in (*self.feeds, *self.inner, self.top)}

    def begin(self) -> None:
        """Infer the layers' shapes for one microbatch."""
        self._infer(self.size)

    def end(self) -> None:
        """Infer the layers' shapes for the whole batch again."""
        self._infer(self.top.shape[0])
        for blob, shape in self.shapes.items():
            blob.shape = shape

    def _infer(self, size: int) -> None:
        for node in self.nodes:
            node.layer.infer(*((size, *self.shapes[blob][1:]) for blob in node.bottoms))

    @contextmanager
    def current(self, number: int) -> Iterator[None]:
        """Make microbatch `number` current: the blobs are those of its samples."""
        whole = {blob: (blob.data, blob.diff) for blob in (*self.feeds, self.top)}
        for blob, (data, diff) in whole.items():
            blob.data, blob.diff = self._samples(data, number), None if diff is None else self._samples(diff, number)
        for blob in self.inner:
            blob.data, blob.diff = None, None  # type: ignore[assignment]
        for blob, shape in self.shapes.items():
            blob.shape = (self.size, *shape[1:])
        yield
        for blob, (data, diff) in whole.items():
            blob.data, blob.diff = data, diff
        for blob, shape in self.shapes.items():
            blob.shape = shape

    def _samples(self, ref: Ref, number: int) -> Ref:
        return ref.view((self.size, *ref.shape[1:]), number * self.size * ref.batch_stride, ref.batch_stride)
