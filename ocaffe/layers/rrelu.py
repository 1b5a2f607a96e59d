"""RReLU: a ReLU with a random slope."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe import proto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.layers.base import TEST_PHASE, Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("RReLU")
class RReLU(Layer):
    """y = x for x > 0, else x / a; TRAIN draws a for each value, uniformly in [lb, ub); in TEST a is (ub - lb) / (log |ub| - log |lb|).

    The derivative at 0 is 1 / a. Backward draws the same random numbers again. Source: ducha-aiki/caffe, src/caffe/layers/rrelu_layer.cpp at
    e823e7c. Defaults of lb and ub are not known, so both must be given.
    """

    origin = "ducha-aiki/caffe"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        lower, upper = float(p.lb), float(p.ub)
        self.check(
            p.HasField("lb") and p.HasField("ub"),
            f"rrelu_param has no {'ub' if p.HasField('lb') else 'lb'}",
            f"{self.written('lb: A ub: B')}, the bounds of the divisor, A below B",
        )
        self.check(upper > lower, f"lb is {lower:g}, ub is {upper:g}", "set lb below ub")
        self.check(lower * upper > 0, f"lb is {lower:g}, ub is {upper:g}: a divisor could be 0", "set both above 0, or both below 0")
        self.training = self.phase == proto.TRAIN
        mean = (upper - lower) / (math.log(abs(upper)) - math.log(abs(lower)))
        self.scalars = {"lower": lower, "width": upper - lower} if self.training else {"mean": mean}
        return [bottoms[0]]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.apply(rec, [bottoms[0].data, bottoms[0].data], tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.training:
            raise graph.refused("it draws slopes at random in the TRAIN phase", TEST_PHASE)
        graph.op("LeakyRelu", bottoms[0], to=tops[0], alpha=1 / self.scalars["mean"])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        self.apply(rec, [tops[0].diff, bottoms[0].data], bottoms[0].diff)

    def apply(self, rec: Recorder, reads: list[Read], write: Ref) -> None:
        """Write reads[0] where reads[1] is positive, else reads[0] / a."""
        divisor = "(lower + width * uniform)" if self.training else "mean"
        random = "slopes" if self.training else None
        pointwise(rec, f"y0 = x1 > 0 ? x0 : x0 / {divisor}", reads=reads, writes=[write], scalars=self.scalars, random=random)
