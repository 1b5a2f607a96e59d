"""What the name of a blob stands for while parts of a net run.

Layers that work in place make several values of one name, each with memory of its own. In Caffe they are one buffer, which holds what the layer that ran last
left there.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ocaffe.ir.graph import Blob, Graph

What = Literal["data", "diff"]


class Names:
    """For each name of several values the one that it stands for now, as data and as diff."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        made: dict[str, list[tuple[int, Blob]]] = {}
        for index, node in enumerate(graph.nodes):
            for top in node.tops:
                made.setdefault(top.name, []).append((index, top))
        self.values = {name: values for name, values in made.items() if len(values) > 1}  # with the index of the layer that makes each
        self.now: dict[str, dict[str, Blob]] = {"data": {}, "diff": {}}

    def restart(self, forward: bool, backward: bool) -> None:
        """Whole passes were run, or none."""
        for name, values in self.values.items():
            self.now["data"][name] = values[-1 if forward else 0][1]
            self.now["diff"][name] = values[0 if backward else -1][1]

    def enter(self, what: What, index: int) -> Iterator[tuple[Blob, Blob]]:
        """From here on names stand for the values that layer `index` works on; pairs of what a name stood for and stands for, where they differ."""
        made_before = index - 1 if what == "data" else index
        for name, values in self.values.items():
            wanted = next((blob for at, blob in reversed(values) if at <= made_before), values[0][1])
            if wanted is not self.now[what][name]:
                yield self.now[what][name], wanted
                self.now[what][name] = wanted

    def ran(self, what: What, first: int, last: int) -> None:
        """Layers `first` to `last` ran, forward or backward."""
        for index in range(first, last + 1) if what == "data" else range(first, last - 1, -1):
            node = self.graph.nodes[index]
            self.now[what].update({blob.name: blob for blob in (node.tops if what == "data" else node.bottoms) if blob.name in self.values})
