"""Parameter."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.onnx.graph import OnnxGraph


@register("Parameter")
class Parameter(Layer):
    """The top is a learned tensor of the given `shape`, initially zero, or filled by blob_filler (NormFace). Blob: the tensor."""

    bottoms = 0
    moves_data = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.check(self.own().HasField("shape"), "shape is missing", "write the shape: parameter_param { shape { dim: .. dim: .. } }")
        self.shape = tuple(self.own().shape.dim)
        self.check(all(size > 0 for size in self.shape), f"shape {' x '.join(map(str, self.shape))} has a dim below 1", "set each dim to 1 or more")
        return [self.shape]

    def parameters(self) -> Sequence[ParamBlob]:
        return [ParamBlob(self.shape, self.own().blob_filler)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        tops[0].data = self.params[0].data.view(self.shape, name=tops[0].name)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.alias(tops[0], graph.parameter(self.params[0], self.shape))

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if self.params[0].diff is not None:
            pointwise(rec, "y0 = x0", reads=[tops[0].diff], writes=[self.params[0].diff])
