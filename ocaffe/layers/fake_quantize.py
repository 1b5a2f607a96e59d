"""FakeQuantize: values on the grid of a chip's integers."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe import proto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.onnx.graph import OnnxGraph

SCALE = "float s = fmax(x1, FLT_MIN)"
POWER = "float s = exp2(rint(log2(fmax(x1, FLT_MIN))))"


@register("FakeQuantize")
class FakeQuantize(Layer):
    """y = (q - zero_point) s with the integer q = round(x / s) + zero_point, bounded by least and most. Halves are rounded to the even integer.

    Blob 0 is the scale s, one number. A solver learns it: its gradient is that of LSQ (Esser et al., 2020, arXiv 1902.08153), and the gradient of x passes
    where q is not bounded. With power_of_two, s is rounded to a power of two. NaN stays NaN.
    """

    origin = "ocaffe"
    by_sample = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.check(p.least < p.most, f"least is {p.least}, most is {p.most}", "set most above least, for example least: -128 most: 127")
        fact = f"zero_point is {p.zero_point}, outside of {p.least} to {p.most}"
        self.check(p.least <= p.zero_point <= p.most, fact, f"set zero_point from {p.least} to {p.most}")
        self.check(0 < p.scale < math.inf, f"scale is {p.scale:g}", "set scale to a number above 0")
        self.bounds = {"least": float(p.least - p.zero_point), "most": float(p.most - p.zero_point)}
        self.scale = POWER if p.power_of_two else SCALE
        self.features = max(1, math.prod(bottoms[0][1:]))
        return [bottoms[0]]

    def parameters(self) -> Sequence[ParamBlob]:
        return [ParamBlob((1,), proto.FillerParameter(type="constant", value=self.own().scale))]

    @property
    def _read(self) -> Read:
        return self.params[0].data.view(()), 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        text = f"{self.scale}; y0 = x0 == x0 ? fmin(fmax(rint(x0 / s), least), most) * s : x0"
        pointwise(rec, text, reads=[bottoms[0].data, self._read], writes=[tops[0].data], scalars=self.bounds)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy, x, gradient = tops[0].diff, bottoms[0].data, self.params[0].diff
        assert dy is not None
        ratio = f"{self.scale}; float v = x0 / s; float q = rint(v)"
        if gradient is not None:
            factor = 1 / math.sqrt(self.features * self.bounds["most"]) if self.bounds["most"] > 0 else 1.0
            text = f"{ratio}; v0 = x2 * (q < least ? least : q > most ? most : q - v)"
            reads: list[Read] = [x, self._read, dy]
            flat = gradient.view(())
            reduce(rec, text, reads=reads, writes=[flat], axes=range(len(x.shape)), scalars={**self.bounds, "factor": factor}, finish="y0 = v0 * factor")
        if propagate[0]:
            assert bottoms[0].diff is not None
            text = f"{ratio}; y0 = q < least || q > most ? 0 : x2"
            pointwise(rec, text, reads=[x, self._read, dy], writes=[bottoms[0].diff], scalars=self.bounds)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write QuantizeLinear and DequantizeLinear in the smallest integers that hold least and most, with Clip where they hold more."""
        p = self.own()
        kind = graph.integers(p.least, p.most)
        if not np.isfinite(graph.array(self.params[0])).all():
            raise graph.refused("its scale is not finite", "quantize the net again")
        value, zero = self.scale_of(graph.array(self.params[0])), np.asarray(p.zero_point, kind)
        x: Blob | str = bottoms[0]
        if (p.least, p.most) != (np.iinfo(kind).min, np.iinfo(kind).max):
            x = graph.op("Clip", x, float(self.bounds["least"] * value), float(self.bounds["most"] * value))
        q = graph.op("QuantizeLinear", x, graph.constant(value), graph.constant(zero))
        graph.op("DequantizeLinear", q, graph.constant(value), graph.constant(zero), to=tops[0])

    def scale_of(self, array: np.ndarray) -> np.ndarray:
        """Return the scale that values of blob 0 stand for."""
        scale = np.maximum(np.asarray(array, np.float32).reshape(()), np.finfo(np.float32).tiny)
        return np.asarray(np.exp2(np.rint(np.log2(scale))) if self.own().power_of_two else scale, np.float32)
