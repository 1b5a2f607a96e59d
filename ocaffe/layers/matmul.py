"""MatMul: the product of two bottoms."""
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import pointwise, reduce
from ocaffe.kernels.matmul.gemm import batched_gemm
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


def _inner(trans_a: bool, trans_b: bool, a: Shape, b: Shape) -> str:
    """Return the remedy for products whose inner sizes differ."""
    if (a[-1] if trans_a else a[-2]) == (b[-1] if trans_b else b[-2]):
        return f"write transpose_a: {str(not trans_a).lower()}, which exchanges the last axes of bottom 0"
    if (a[-2] if trans_a else a[-1]) == (b[-2] if trans_b else b[-1]):
        return f"write transpose_b: {str(not trans_b).lower()}, which exchanges the last axes of bottom 1"
    return f"give bottom 1 {a[-2] if trans_a else a[-1]} {'columns' if trans_b else 'rows'}"


@register("MatMul")
class MatMul(Layer):
    """y = op(a) op(b) over the last two axes; `transpose_a` and `transpose_b` transpose them. The axes before are the batch.

    Source: src/caffe/layers/matmul_layer.cpp of foss-for-synopsys-dwc-arc-processors/synopsys-caffe at b4ed5c36, which has no backward. There the bottoms
    have the same batch. Here the batch is broadcast as in numpy. sophgo/caffe (c7ca6af5) has other fields: dim_1 x dim_2 times (dim_3 x dim_2)^T.
    """

    origin = "synopsys-caffe, sophgo/caffe"
    message = "matmul_param"
    bottoms = 2
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        own = self.own()
        flat = own.HasField("dim_1") or own.HasField("dim_2") or own.HasField("dim_3")
        a, b = self._given_sizes(bottoms) if flat else bottoms
        self.trans_a, self.trans_b = bool(own.transpose_a), flat or bool(own.transpose_b)
        texts = f"bottom 0 is {shape_text(a)}, bottom 1 is {shape_text(b)}"
        self.check(
            len(a) > 1 and len(b) > 1,
            f"{texts}, MatMul takes 2 axes or more",
            f"add a Reshape layer that gives bottom {0 if len(a) < 2 else 1} 2 axes or more",
        )
        m, k = a[-2:][::-1] if self.trans_a else a[-2:]
        inner, n = b[-2:][::-1] if self.trans_b else b[-2:]
        fact = f"{texts}: the product sums over {k} and over {inner} values"
        self.check(k == inner, fact, _inner(self.trans_a, self.trans_b, a, b))
        pairs = list(itertools.zip_longest(reversed(a[:-2]), reversed(b[:-2]), fillvalue=1))
        self.check(
            all(p == q or 1 in (p, q) for p, q in pairs),
            f"{texts}: their batches differ",
            "make the axes before the last two equal, or 1, by a Reshape layer",
        )
        self.batch = tuple(q if p == 1 else p for p, q in reversed(pairs))
        self.a, self.b, self.sizes = a, b, (m, n, k)
        # One matrix b for all rows of a makes a single product.
        self.single = math.prod(b[:-2]) == 1 and not self.trans_a
        self.products = 1 if self.single else math.prod(self.batch)
        return [(*self.batch, m, n)]

    def _given_sizes(self, bottoms: Sequence[Shape]) -> tuple[Shape, Shape]:
        own = self.own()
        a, b = (own.dim_1, own.dim_2), (own.dim_3, own.dim_2)
        for index, (shape, wanted) in enumerate(zip(bottoms, (a, b))):
            fact = f"bottom {index} is {shape_text(shape)}: {math.prod(shape)} values for {shape_text(wanted)}"
            self.check(math.prod(shape) == math.prod(wanted), fact, f"correct dim_2 and dim_{3 if index else 1}, or give {math.prod(wanted)} values")
        return a, b

    @property
    def by_sample(self) -> bool:
        return bool(self.batch) and len(self.a) == len(self.b) and self.a[0] == self.b[0] == self.batch[0]

    def flops(self) -> int:
        return 2 * math.prod(self.batch) * math.prod(self.sizes)

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        a, b = self._operand(rec, bottoms[0].data, self.a), self._operand(rec, bottoms[1].data, self.b)
        batched_gemm(rec, a, b, self._matrices(tops[0].data, self.sizes[1]), self.products, trans_a=self.trans_a, trans_b=self.trans_b)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        a, b, dy = self._operand(rec, bottoms[0].data, self.a), self._operand(rec, bottoms[1].data, self.b), self._matrices(tops[0].diff, self.sizes[1])
        if propagate[0] and self.trans_a:
            self._gradient(rec, bottoms[0], self.a, b, dy, (self.trans_b, True))
        elif propagate[0]:
            self._gradient(rec, bottoms[0], self.a, dy, b, (False, not self.trans_b))
        if propagate[1] and self.trans_b:
            self._gradient(rec, bottoms[1], self.b, dy, a, (True, self.trans_a))
        elif propagate[1]:
            self._gradient(rec, bottoms[1], self.b, a, dy, (not self.trans_a, False))

    def _gradient(self, rec: Recorder, bottom: Blob, shape: Shape, left: Ref, right: Ref, trans: tuple[bool, bool]) -> None:
        """Write the product of `left` and `right` to the diff of a bottom, summed over the axes along which the bottom was broadcast."""
        assert bottom.diff is not None
        wide = self._wide(shape)
        if wide is None:
            batched_gemm(rec, left, right, self._matrices(bottom.diff, shape[-1]), self.products, trans_a=trans[0], trans_b=trans[1])
            return
        each = rec.scratch(f"gradient_{bottom.name}", wide, role=Role.DIFF)
        batched_gemm(rec, left, right, self._matrices(each, shape[-1]), self.products, trans_a=trans[0], trans_b=trans[1])
        own = (1,) * (len(wide) - len(shape)) + shape
        reduce(rec, "v0 = x0", reads=[each], writes=[bottom.diff], axes=[axis for axis, size in enumerate(wide) if size != own[axis]])

    def _operand(self, rec: Recorder, ref: Ref, shape: Shape) -> Ref:
        """Return the matrices of a bottom, one below the other. A bottom that is broadcast is copied."""
        wide = self._wide(shape)
        if wide is None:
            return self._matrices(ref, shape[-1])
        copy = rec.scratch(f"wide_{ref.name}", wide)
        own = ref if ref.shape == shape else ref.view(shape)
        pointwise(rec, "y0 = x0", reads=[(own, len(wide) - len(shape))], writes=[copy])
        return self._matrices(copy, shape[-1])

    def _wide(self, shape: Shape) -> Shape | None:
        """Return the shape to which an operand of this shape is broadcast, or None if its matrices are used as they are."""
        matrices = math.prod(shape[:-2])
        return None if matrices == math.prod(self.batch) or (self.single and matrices == 1) else (*self.batch, *shape[-2:])

    @staticmethod
    def _matrices(ref: Ref, columns: int) -> Ref:
        return ref.view((ref.count // columns if columns else 0, columns), 0, columns)  # a stride of its own: the memory is dense

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        operands = [graph.values[bottom] if shape == bottom.shape else graph.reshape(bottom, shape) for bottom, shape in zip(bottoms, (self.a, self.b))]
        for index, (operand, shape, transposed) in enumerate(zip(operands, (self.a, self.b), (self.trans_a, self.trans_b))):
            if transposed:
                *batch, last, row = range(len(shape))
                operands[index] = graph.op("Transpose", operand, perm=[*batch, row, last])
        graph.op("MatMul", *operands, to=tops[0])
