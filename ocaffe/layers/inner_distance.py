"""InnerDistance: distances to learned centres."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import pointwise, reduce
from ocaffe.kernels.loss.distance import distances, distances_backward
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.onnx.graph import OnnxGraph


def matrix(ref: Ref, rows: int, columns: int) -> Ref:
    """Return a matrix in dense memory: with a stride of its own no copy is elided that would leave gaps."""
    return ref.view((rows, columns), 0, columns)


@register("InnerDistance")
class InnerDistance(Layer):
    """y[m, n] = the squared distance of x[m] and w[n] (distance_type L2), or the sum of |x - w| (L1), plus b[n] with bias_term.

    The axes of x from `axis` on are one vector. Blobs: w (num_output, K), or (K, num_output) with `transpose`, and b. A second bottom replaces w, a
    third one b. With `normalize`, forward divides the rows of the blob w by their lengths, in place.

    Source: happynear/caffe-windows, src/caffe/layers/inner_distance_layer.cpp at 6301f95. The default of bias_term is not known, so it must be given.
    """

    origin = "happynear"
    bottoms = (1, 3)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.positive(p, {"num_output": "the number of centres"})
        self.check(
            p.HasField("bias_term"),
            "bias_term is missing",
            f"{self.written('bias_term: false')}, or bias_term: true for a bias that is added to the distances",
        )
        self.check(p.distance_type in ("L1", "L2"), f"distance_type is {p.distance_type!r}", 'write distance_type: "L1" or distance_type: "L2"')
        axis = self.axis(p.axis, x)
        self.rows, self.inputs, self.outputs = math.prod(x[:axis]), math.prod(x[axis:]), p.num_output
        self.weights: Shape = (self.inputs, self.outputs) if p.transpose else (self.outputs, self.inputs)
        self.normalized = bool(p.normalize) and len(bottoms) == 1
        self.check(
            not (self.normalized and p.transpose),
            "normalize and transpose are both true, and rows only are normalized",
            "remove normalize, or transpose",
        )
        self.check(p.bias_term or len(bottoms) < 3, "3 bottoms are given, and bias_term is false", "remove bottom 2, or write bias_term: true")
        self.check(not p.bias_term or len(bottoms) != 2, "2 bottoms are given, and bias_term is true", "give the bias as bottom 2, or write bias_term: false")
        for i, (given, wanted) in enumerate(zip(bottoms[1:], (self.weights, (self.outputs,))), 1):
            self.check(
                math.prod(given) == math.prod(wanted),
                f"bottom {i} is {shape_text(given)}, bottom 0 is {shape_text(x)}, and num_output is {p.num_output}",
                f"give bottom {i} the shape {shape_text(wanted)}: {'the centres' if i == 1 else 'the bias'}",
            )
        return [(*x[:axis], self.outputs)]

    def parameters(self) -> Sequence[ParamBlob]:
        p = self.own()
        blobs = [ParamBlob(self.weights, p.weight_filler), *([ParamBlob((self.outputs,), p.bias_filler)] if p.bias_term else [])]
        return blobs if len(self.param.bottom) == 1 else []

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        weight, bias = self.operands(bottoms)
        if self.normalized:
            lengths = rec.scratch("lengths", (self.outputs, 1))
            reduce(rec, "v0 = x0 * x0", reads=[weight], writes=[lengths], axes=[1], finish="y0 = sqrt(v0 + 1e-6)")
            pointwise(rec, "m0 = m0 / x0", reads=[(lengths, 0)], modifies=[weight], side_effect=True)
        y = matrix(tops[0].data, self.rows, self.outputs)
        distances(rec, matrix(bottoms[0].data, self.rows, self.inputs), weight, y, **self.how())
        if bias is not None:
            pointwise(rec, "m0 = m0 + x0", reads=[(bias, 1)], modifies=[y])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, given = self.own(), list(bottoms[1:]) or self.params
        weight, *bias = (graph.parameter(value) if not isinstance(value, Blob) else graph.values[value] for value in given)
        weight = graph.reshape(weight, self.weights)
        weight = graph.op("Transpose", weight, perm=[1, 0]) if p.transpose else weight
        if self.normalized:
            squares = graph.reduce("ReduceSum", graph.op("Mul", weight, weight), [1])
            weight = graph.op("Div", weight, graph.op("Sqrt", graph.op("Add", squares, 1e-6)))
        difference = graph.op("Sub", graph.reshape(bottoms[0], (-1, 1, self.inputs)), weight)
        terms = graph.op("Mul", difference, difference) if p.distance_type == "L2" else graph.op("Abs", difference)
        y = graph.reduce("ReduceSum", terms, [2], keepdims=False)
        for value in bias:
            y = graph.op("Add", y, graph.reshape(value, (self.outputs,)))
        graph.reshape(y, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        weight, _ = self.operands(bottoms)
        dy = matrix(tops[0].diff, self.rows, self.outputs)
        diffs = [bottom.diff if wanted else None for bottom, wanted in zip(bottoms, propagate)]
        learned = diffs[1:] or [parameter.diff for parameter in self.params]
        if len(learned) > 1 and learned[1] is not None:
            reduce(rec, "v0 = x0", reads=[dy], writes=[learned[1].view((self.outputs,), 0, 1)], axes=[0])
        dw = None if learned[0] is None else matrix(learned[0], *self.weights)
        dx = None if diffs[0] is None else matrix(diffs[0], self.rows, self.inputs)
        distances_backward(rec, matrix(bottoms[0].data, self.rows, self.inputs), weight, dy, dx, dw, **self.how())

    def how(self) -> dict[str, bool]:
        return {"squares": self.own().distance_type == "L2", "transposed": self.own().transpose}

    def operands(self, bottoms: list[Blob]) -> tuple[Ref, Ref | None]:
        """Return the weights and the bias."""
        values = [bottom.data for bottom in bottoms[1:]] or [parameter.data for parameter in self.params]
        return matrix(values[0], *self.weights), values[1].view((self.outputs,), 0, 1) if len(values) > 1 else None
