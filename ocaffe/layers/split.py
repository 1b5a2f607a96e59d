"""Split: one value for several consumers. The net builder inserts it for every blob with several consumers."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.sums import add_diffs
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Split")
class Split(Layer):
    """The tops are views of the bottom, and the bottom's diff is the sum of the tops' diffs.

    If a top shares the bottom's diff, its consumer has added to it already. Backward adds the other diffs.
    """

    tops = (1, None)
    moves_data = False
    inplace_top = False

    by_sample = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        return [bottoms[0]] * max(1, len(self.param.top))

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        for top in tops:
            rec.alias(top, bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        for top in tops:
            graph.alias(top, bottoms[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        bottom = bottoms[0].diff
        assert bottom is not None, "the diff of a split bottom is made before backward, so that consumers can share it"
        own = [top.diff for top in tops if top.diff is not None and top.diff.root is not bottom.root]
        add_diffs(rec, own, bottom)
