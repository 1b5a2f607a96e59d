"""The value that a blob's name refers to while parts of a net run.

In-place layers make several values with one name, each with its own memory. In Caffe these values share one buffer,
which holds the result of the layer that ran last.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ocaffe.ir.graph import Blob, Graph

What = Literal["data", "diff"]


class Names:
    """For each name with several values: the value that it refers to now, for data and for diff."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        made: dict[str, list[tuple[int, Blob]]] = {}
        for index, node in enumerate(graph.nodes):
            for top in node.tops:
                made.setdefault(top.name, []).append((index, top))
        self.values = {name: values for name, values in made.items() if len(values) > 1}  # each with the index of the layer that makes it
        self.now: dict[str, dict[str, Blob]] = {"data": {}, "diff": {}}

    def restart(self, forward: bool, backward: bool) -> None:
        """Reset all names after whole passes, or before any pass."""
        for name, values in self.values.items():
            self.now["data"][name] = values[-1 if forward else 0][1]
            self.now["diff"][name] = values[0 if backward else -1][1]

    def enter(self, what: What, index: int) -> Iterator[tuple[Blob, Blob]]:
        """Make the names refer to the values that layer `index` works on. Yield (old value, new value) of each name that changes."""
        made_before = index - 1 if what == "data" else index
        for name, values in self.values.items():
            wanted = next((blob for at, blob in reversed(values) if at <= made_before), values[0][1])
            if wanted is not self.now[what][name]:
                yield self.now[what][name], wanted
                self.now[what][name] = wanted

    def ran(self, what: What, first: int, last: int) -> None:
        """Make the names refer to the results of layers `first` to `last`, which ran forward (data) or backward (diff)."""
        for index in range(first, last + 1) if what == "data" else range(first, last - 1, -1):
            node = self.graph.nodes[index]
            self.now[what].update({blob.name: blob for blob in (node.tops if what == "data" else node.bottoms) if blob.name in self.values})
