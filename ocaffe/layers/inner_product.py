"""InnerProduct: the fully connected layer."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import reduce
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.kernels.quantization import integer
from ocaffe.layers.base import Layer, ParamBlob, WeightOutputs, register
from ocaffe.onnx.graph import OnnxGraph


@register("InnerProduct")
class InnerProduct(Layer):
    """y = x W^T + b; the axes from `axis` on are the K inputs, the axes before it the batch.

    Blobs: weight (num_output, K), or (K, num_output) with `transpose`; bias (num_output).
    """

    inplace_top = False
    gradient_in_rows = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        param, (x,) = self.own(), bottoms
        self.positive(param, {"num_output": "the number of outputs"})
        self.first = axis = self.axis(param.axis, x)
        self.rows, self.inputs, self.outputs = math.prod(x[:axis]), math.prod(x[axis:]), param.num_output
        self.check(
            self.inputs > 0,
            f"the axes from {axis} on of bottom {shape_text(x)} have no values: a size is 0",
            "give bottom 0 at least 1 value along each axis",
        )
        return [(*x[:axis], self.outputs)]

    def parameters(self) -> Sequence[ParamBlob]:
        param = self.own()
        shape = (self.inputs, self.outputs) if param.transpose else (self.outputs, self.inputs)
        weight = ParamBlob(shape, param.weight_filler)
        return [weight, ParamBlob((self.outputs,), param.bias_filler)] if param.bias_term else [weight]

    def weight_outputs(self) -> WeightOutputs:
        return WeightOutputs((self.inputs, self.outputs), (1,)) if self.own().transpose else WeightOutputs((self.outputs, self.inputs), (0,))

    def flops(self) -> int:
        return 2 * self.rows * self.inputs * self.outputs

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        bias = self.params[1].data if len(self.params) > 1 else None
        x, y = self._matrix(bottoms[0].data, self.inputs), self._matrix(tops[0].data, self.outputs)
        settings = self.integers()
        if settings is None:
            gemm(rec, x, self.params[0].data, y, trans_b=not self.own().transpose, bias=bias)
        else:
            self.check(not self.own().transpose, "input_scale and transpose: true are given", "remove input_scale")
            integer.inner_product(rec, x, self.params[0].data, self.weight_scales, bias, y, settings)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        matrix = len(tops[0].shape) == 2
        direct = matrix and len(bottoms[0].shape) == 2
        rounded = self.param.HasField("weight_quantization_param")
        if direct:
            x = graph.values[bottoms[0]]
        elif rounded:  # onnxruntime moves a DequantizeLinear behind Reshape, and not behind Flatten
            x = graph.reshape(bottoms[0], (-1, self.inputs))
        else:
            x = graph.op("Flatten", bottoms[0], axis=self.first)
        weight, *bias = self.params
        # onnxruntime 1.32 rounds the inputs of a Gemm whose integers have a column for each output, and says so nowhere.
        w = graph.by_output(weight) if rounded else graph.parameter(weight)
        by_output = rounded or not self.own().transpose
        y = graph.op("Gemm", x, w, *map(graph.parameter, bias), to=tops[0] if matrix else None, transB=int(by_output))
        if not matrix:
            graph.reshape(y, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        x, dy, weight = self._matrix(bottoms[0].data, self.inputs), self._matrix(tops[0].diff, self.outputs), self.params[0]
        transpose = self.own().transpose
        if propagate[0]:
            assert bottoms[0].diff is not None
            gemm(rec, dy, weight.data, self._matrix(bottoms[0].diff, self.inputs), trans_b=transpose)
        if len(self.params) > 1 and self.params[1].diff is not None:
            reduce(rec, "v0 = x0", reads=[dy], writes=[self.params[1].diff], axes=[0])
        if weight.diff is not None:
            first, second = (x, dy) if transpose else (dy, x)
            for start, rows in rec.gradient_rows(weight.diff):
                gemm(rec, first.view((self.rows, rows.shape[0]), start, first.batch_stride), second, rows, trans_a=True)

    def _matrix(self, ref: Ref, columns: int) -> Ref:
        return ref.view((self.rows, columns))
