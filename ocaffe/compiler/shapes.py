"""`Shapes`: the present shapes of a net. They follow its inputs, and the sizes that layers measure as they run."""
from __future__ import annotations

from ocaffe.errors import Error
from ocaffe.graph.build import infer_shapes
from ocaffe.ir.graph import Blob, Graph
from ocaffe.ir.layer import AbstractLayer
from ocaffe.ir.tensor import Shape


class Shapes:
    """The shapes of all blobs of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inferences = 0  # how often shapes were inferred since the net was built
        self._fitting: dict[Blob, Shape] | None = None  # the last shapes of all blobs without an unfit layer, if there is one now
        self._key: tuple[int, tuple[Shape, ...]] | None = None  # (inferences at that time, key)

    def key(self) -> tuple[Shape, ...]:
        """Return the shapes that determine all others: of inputs, of data tops and of tops with a measured extent."""
        if self._key is None or self._key[0] != self.inferences:
            shapes = tuple(blob.shape for node in self.graph.nodes if not node.bottoms or node.layer.extent is not None for blob in node.tops)
            self._key = self.inferences, shapes
        return self._key[1]

    def reshape(self, shapes: dict[str, Shape], strict: bool = True) -> None:
        """Infer all shapes again from new shapes of Input tops. Parameters must keep their shapes.

        After an Error the net is as before. If not `strict`, layers that cannot have their new shapes become unfit: as in Caffe, a run of a part that
        ends before them is possible.
        """
        old = {blob: blob.shape for node in self.graph.nodes for blob in node.tops}
        extents = [node.layer.extent for node in self.graph.nodes]
        for node in self.graph.nodes:
            node.layer.extent = None  # was measured for the old shapes
        self.inferences += 1
        try:
            given = {blob: shapes.get(blob.name, shape) for blob, shape in old.items() if not (blob.producer and blob.producer.bottoms)}
            infer_shapes(self.graph, given, strict)
        except Error:
            for node, extent in zip(self.graph.nodes, extents):
                node.layer.extent = extent
            infer_shapes(self.graph, self._fitting or old)  # restores the state that layers set in infer
            self._fitting = None
            raise
        if not any(node.unfit for node in self.graph.nodes):
            self._fitting = None
        elif self._fitting is None:
            self._fitting = old

    def check_fit(self, first: int, last: int) -> None:
        """Raise the Error of the first unfit layer from index `first` to `last`. The net then has its last shapes without an unfit layer."""
        if self._fitting is None:
            return
        problem = next((node.unfit for node in self.graph.nodes[first : last + 1] if node.unfit), None)
        if problem is not None:
            fitting, self._fitting = self._fitting, None
            self.inferences += 1
            infer_shapes(self.graph, fitting)
            raise problem

    def measured(self, layer: AbstractLayer, extent: tuple[int, ...]) -> None:
        """Infer all shapes again, because a layer has measured another extent of its tops."""
        layer.extent = extent
        self.inferences += 1
        infer_shapes(self.graph, {blob: blob.shape for node in self.graph.nodes if not node.bottoms for blob in node.tops})
