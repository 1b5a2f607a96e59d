"""K1_EuclideanLoss and K2_EuclideanLoss, which train binary codes."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register


@register("K2_EuclideanLoss")
class NearHalf(Layer):
    """Half the mean of (x - 0.5)^2 over all values of bottom 0. It makes each bit 1 as often as 0, if bottom 0 has the means of the bits.

    Bottom 1 has the same shape, and its values are not used. As in the fork, its gradient is that of bottom 0. The layer is in no deploy net.
    Source: kevinlin311tw/Caffe-DeepBinaryCode, src/caffe/layers/K2_euclidean_loss_layer.cpp.
    """

    origin = "Caffe-DeepBinaryCode"
    message = ""
    bottoms = 2
    is_loss = True
    sign: ClassVar[str] = ""

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, other = bottoms
        self.check(
            x == other,
            f"bottom 0 is {shape_text(x)}, bottom 1 is {shape_text(other)}: they must be equal",
            f"give bottom 1 the shape {shape_text(x)}, as bottom 0 is",
        )
        self.shape = x or (1,)
        self.scalars = {"n": float(max(math.prod(self.shape), 1))}
        return [()]

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        axes, scalars = range(len(self.shape)), {"n": 2 * self.scalars["n"]}
        finish = f"y0 = {self.sign}v0 / n"
        reduce(rec, "d = x0 - 0.5; v0 = d * d", reads=[bottoms[0].data.view(self.shape)], writes=[tops[0].data], axes=axes, finish=finish, scalars=scalars)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        writes = [bottom.diff.view(self.shape) for bottom, wanted in zip(bottoms, propagate) if wanted and bottom.diff is not None]
        if writes:
            reads: list[Read] = [bottoms[0].data.view(self.shape), (tops[0].diff.view(()), 0)]
            text = "; ".join([f"g = {self.sign}x1 * (x0 - 0.5) / n", *(f"y{i} = g" for i in range(len(writes)))])
            pointwise(rec, text, reads=reads, writes=writes, scalars=self.scalars)


@register("K1_EuclideanLoss")
class FarFromHalf(NearHalf):
    """Minus half the mean of (x - 0.5)^2 over all values of bottom 0. It pushes the values of a Sigmoid to 0 or 1.

    Bottom 1 has the same shape, and its values are not used. As in the fork, its gradient is that of bottom 0. The layer is in no deploy net.
    Source: kevinlin311tw/Caffe-DeepBinaryCode, src/caffe/layers/K1_euclidean_loss_layer.cpp.
    """

    sign = "-"
