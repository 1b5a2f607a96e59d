"""MarginInnerProduct of SphereFace."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.layers.base import Arity, Layer, ParamBlob, register

SIGNS = "s0 = sign(c); s1 = sign(fabs(c) - 0.5); s2 = s0 * (1 + s1) - 2; s3 = s0 * sign(2 * c * c - 1); s4 = 2 * s0 + s3 - 3"
# Per margin m, in terms of the cosine c: psi(m angle), and the components of its derivative along the weights and along x (times |x|).
MARGINS = {
    1: ("2 * s0 * c * c - 1", "4 * s0 * c", "2 * s0 * c * c + 1"),
    2: ("s1 * (4 * c * c * c - 3 * c) + s2", "s1 * (12 * c * c - 3)", "8 * s1 * c * c * c - s2"),
    3: (
        "s3 * (8 * c * c * c * c - 8 * c * c + 1) + s4",
        "s3 * (32 * c * c * c - 16 * c)",
        "s3 * (24 * c * c * c * c - 8 * c * c - 1) - s4",
    ),
}


@register("MarginInnerProduct")
class MarginInnerProduct(Layer):
    """Scores x w^T with unit rows w; the label's score s becomes (lambda s + |x| psi(m angle)) / (1 + lambda), which enforces an angular margin.

    Bottoms: x, labels. Tops: scores and lambda = max(base (1 + gamma it)^-power, lambda_min); `it` counts forward passes and starts at `iteration`.
    Forward normalizes the rows of blob 0 (num_output, K) in place. As in the fork, the margin's part of x's gradient has unit length, and the
    gradient of the weights ignores the margin.
    """

    origin = "SphereFace"
    bottoms: ClassVar[Arity] = 2
    tops = 2
    inplace_top = False
    passes: Ref | None = None  # the number of forward passes

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, labels) = self.own(), bottoms
        self.positive(p, {"num_output": "the number of classes"})
        axis = self.axis(p.axis, x)
        self.rows, self.inputs, self.outputs = math.prod(x[:axis]), math.prod(x[axis:]), p.num_output
        self.check(
            math.prod(labels) == self.rows,
            f"bottom 1 is {shape_text(labels)}, bottom 0 is {shape_text(x)}",
            f"give {self.rows} labels as bottom 1, one for each sample",
        )
        return [(*x[:axis], self.outputs), (1,)]

    def parameters(self) -> Sequence[ParamBlob]:
        return [ParamBlob((self.outputs, self.inputs), self.own().weight_filler)]

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, weight = self.own(), self.params[0].data
        x = bottoms[0].data.view((self.rows, self.inputs))
        lengths = rec.scratch("lengths", (self.outputs,))
        reduce(rec, "v0 = x0 * x0", reads=[weight], writes=[lengths], axes=[1], finish="y0 = sqrt(v0)")
        pointwise(rec, "m0 = m0 / x0", reads=[(lengths.view((self.outputs, 1)), 0)], modifies=[weight], side_effect=True)
        self.anneal(rec, tops[1].data)
        keep = rec.saved if rec.train else rec.scratch
        self.products = keep("products", (self.rows, self.outputs))
        gemm(rec, x, weight, self.products, trans_b=True, mergeable=False)
        y = tops[0].data.view((self.rows, self.outputs))
        self.norms = keep("norms", (self.rows, 1))
        reduce(rec, "v0 = x0 * x0", reads=[x], writes=[self.norms.view((self.rows,))], axes=[1], finish="y0 = sqrt(v0)")
        if p.type not in MARGINS:
            pointwise(rec, "y0 = x0", reads=[self.products], writes=[y])
            return
        psi = MARGINS[p.type][0]
        text = f"c = x0 / x1; {SIGNS}; y0 = trunc(x2) == x3 ? (x4 * x0 + x1 * ({psi})) / (1 + x4) : x0"
        pointwise(rec, text, reads=self.operands(rec, bottoms, tops), writes=[y])

    def anneal(self, rec: Recorder, top: Ref) -> None:
        """Record the launch that counts the pass and writes lambda."""
        p = self.own()
        if self.passes is None:
            self.passes = Ref(f"{self.param.name}.passes", (1,), Role.STATE, value=float(p.iteration))
        text = "m0 = m0 + 1; y0 = fmax(base * pow(1 + gamma * m0, -power), least)"
        scalars = {"base": float(p.base), "gamma": float(p.gamma), "power": float(p.power), "least": float(p.lambda_min)}
        pointwise(rec, text, writes=[top], modifies=[self.passes], scalars=scalars, side_effect=True)

    def operands(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> list[Read]:
        """Return the products, the norms of x, the labels, the indices of the classes, and lambda."""
        numbers = rec.constant("classes", np.arange(self.outputs, dtype=np.float32))
        labels = bottoms[1].data.view((self.rows, 1))
        return [self.products, (self.norms, 0), (labels, 0), (numbers, 1), (tops[1].data.view(()), 0)]

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "labels"})
        assert tops[0].diff is not None
        dy, x = tops[0].diff.view((self.rows, self.outputs)), bottoms[0].data.view((self.rows, self.inputs))
        weight = self.params[0]
        if propagate[0]:
            assert bottoms[0].diff is not None
            dx = bottoms[0].diff.view((self.rows, self.inputs))
            if self.own().type not in MARGINS:
                gemm(rec, dy, weight.data, dx)
            else:
                self.spread(rec, self.operands(rec, bottoms, tops), dy, x, dx)
        if weight.diff is not None:
            gemm(rec, dy, x, weight.diff, trans_a=True)

    def spread(self, rec: Recorder, operands: list[Read], dy: Ref, x: Ref, dx: Ref) -> None:
        """Record dx: the gradient of the scores without margin, and the margin's gradient along the label's weights and along x."""
        _, along_w, along_x = MARGINS[self.own().type]
        text = f"c = x0 / x1; {SIGNS}; w = {along_w}; a = -({along_x}) / x1; length = sqrt(w * w + a * a)"
        mixed, parallel, through = rec.scratch("mixed", dy.shape), rec.scratch("parallel", (self.rows,)), rec.scratch("through", dx.shape)
        pointwise(rec, f"{text}; y0 = trunc(x2) == x3 ? x5 * (x4 + w / length) / (1 + x4) : x5", reads=[*operands, dy], writes=[mixed])
        reduce(rec, f"{text}; v0 = trunc(x2) == x3 ? x5 * a / length / (1 + x4) : 0", reads=[*operands, dy], writes=[parallel], axes=[1])
        gemm(rec, mixed, self.params[0].data, through)
        pointwise(rec, "y0 = x0 + x1 * x2", reads=[through, x, (parallel.view((self.rows, 1)), 0)], writes=[dx])


@register("LargeMarginInnerProduct")
class LargeMarginInnerProduct(MarginInnerProduct):
    """Scores x w^T; the label's score s becomes (lambda s + |x| |w| psi(m angle)) / (1 + lambda), which enforces an angular margin (L-Softmax).

    Bottoms: x, labels, and optionally the weights (num_output, K), which are blob 0 else. Tops: scores and lambda, as in MarginInnerProduct. The weights
    are not normalized, and the gradients are exact. Sources: wy1iu/LargeMargin_Softmax_Loss; happynear/caffe-windows,
    src/caffe/layers/largemargin_inner_product_layer.cpp.
    """

    origin = "L-Softmax"
    message = "largemargin_inner_product_param"
    bottoms = (2, 3)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms[:2])
        for weights in bottoms[2:]:
            wanted = (self.outputs, self.inputs)
            self.check(
                math.prod(weights) == math.prod(wanted),
                f"bottom 2 is {shape_text(weights)}, bottom 0 is {shape_text(bottoms[0])}, and num_output is {self.outputs}",
                f"give bottom 2 the shape {shape_text(wanted)}: a row of weights for each class",
            )
        return tops

    def parameters(self) -> Sequence[ParamBlob]:
        return super().parameters() if len(self.param.bottom) == 2 else []

    def force_backward(self, bottom: int) -> bool:
        return bottom != 1

    def _weights(self, bottoms: list[Blob]) -> Ref:
        return self.params[0].data if len(bottoms) == 2 else bottoms[2].data.view((self.outputs, self.inputs))

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, weights = bottoms[0].data.view((self.rows, self.inputs)), self._weights(bottoms)
        self.anneal(rec, tops[1].data)
        keep = rec.saved if rec.train else rec.scratch
        self.products, self.norms, self.lengths = keep("products", (self.rows, self.outputs)), keep("norms", (self.rows, 1)), keep("lengths", (self.outputs,))
        gemm(rec, x, weights, self.products, trans_b=True, mergeable=False)
        for values, norms in ((x, self.norms.view((self.rows,))), (weights, self.lengths)):
            reduce(rec, "v0 = x0 * x0", reads=[values], writes=[norms], axes=[1], finish="y0 = sqrt(v0)")
        y = tops[0].data.view((self.rows, self.outputs))
        if self.own().type not in MARGINS:
            pointwise(rec, "y0 = x0", reads=[self.products], writes=[y])
            return
        text = f"size = x1 * x5 + 1e-9; c = x0 / size; {SIGNS}; y0 = trunc(x2) == x3 ? (x4 * x0 + size * ({MARGINS[self.own().type][0]})) / (1 + x4) : x0"
        pointwise(rec, text, reads=[*self.operands(rec, bottoms, tops), (self.lengths, 1)], writes=[y])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "labels"})
        assert tops[0].diff is not None
        dy, x, weights = tops[0].diff.view((self.rows, self.outputs)), bottoms[0].data.view((self.rows, self.inputs)), self._weights(bottoms)
        dx = rec.diff_of(bottoms[0]).view(x.shape) if propagate[0] else None
        dw = self.params[0].diff if len(bottoms) == 2 else rec.diff_of(bottoms[2]).view(weights.shape) if propagate[2] else None
        mixed = dy
        along: Ref | None = None
        if self.own().type in MARGINS:
            _, along_w, along_x = MARGINS[self.own().type]
            reads = [*self.operands(rec, bottoms, tops), (self.lengths, 1), dy]
            text = f"c = x0 / (x1 * x5 + 1e-9); {SIGNS}; y0 = trunc(x2) == x3 ? x6 * (x4 + {along_w}) / (1 + x4) : x6"
            mixed, along = rec.scratch("mixed", dy.shape), rec.scratch("along", dy.shape)
            pointwise(rec, f"{text}; y1 = trunc(x2) == x3 ? -x6 * ({along_x}) / (1 + x4) : 0", reads=reads, writes=[mixed, along])
        if dx is not None:
            self._gradient(rec, mixed, weights, along, x, dx, rows=True)
        if dw is not None:
            self._gradient(rec, mixed, x, along, weights, dw, rows=False)

    def _gradient(self, rec: Recorder, mixed: Ref, other: Ref, along: Ref | None, own: Ref, to: Ref, rows: bool) -> None:
        """Record the gradient of x (`rows`) or of the weights: a product with the other operand, and a part along the operand itself."""
        if along is None:
            gemm(rec, mixed, other, to, trans_a=not rows)
            return
        through, parallel = rec.scratch("through" if rows else "through_weights", to.shape), rec.scratch("parallel" if rows else "turn", (to.shape[0], 1))
        gemm(rec, mixed, other, through, trans_a=not rows, mergeable=False)
        reads: list[Read] = [along, (self.norms, 0), (self.lengths, 1)]
        ratio = "x2 / x1" if rows else "x1 / (x2 + 1e-9)"
        flat = parallel.view((to.shape[0],))
        reduce(rec, f"v0 = x0 * {ratio}", reads=reads, writes=[flat], axes=[1 if rows else 0])
        pointwise(rec, "y0 = x0 + x1 * x2", reads=[through, own, (parallel, 0)], writes=[to])
