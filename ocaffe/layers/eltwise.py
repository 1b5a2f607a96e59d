"""Eltwise: product, weighted sum or maximum of bottoms with equal shapes."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, ResidualSum, pointwise
from ocaffe.kernels.expression.sums import runs
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.layers.base import Layer, LayerClass, register, times
from ocaffe.onnx.graph import OnnxGraph

AT_ONCE = 16  # bottoms of one launch: kernels with many operands build slowly, and some devices limit the arguments


def _equal(first: Shape, other: Shape, bottom: int) -> str:
    """Return the remedy for a bottom of another shape than the first."""
    unequal = [axis for axis, (a, b) in enumerate(zip(first, other)) if a != b]
    if len(first) != len(other):
        return f"add a Reshape layer that gives bottom {bottom} {len(first)} axes"
    if unequal == [1]:
        return f"set num_output of the layer before bottom {bottom} to {first[1]}"
    if 0 in unequal:
        return f"give bottom {bottom} the batch size {first[0]}"
    return f"give bottom {bottom} the shape {shape_text(first)} by the stride and pad of the layers before; a Crop layer cuts a larger image"


@register("Eltwise")
class Eltwise(Layer):
    """Elementwise PROD, SUM (weighted by `coeff`) or MAX of two or more bottoms. As in FlowNet's nets, one bottom with a coeff is multiplied by it.

    MAX, ties: of the first two bottoms the second wins; a later one wins only if it is larger. PROD keeps the bottoms for backward, MAX keeps an
    index, SUM keeps nothing.

    With `coeff_blob` (LRCN), the last bottom has the weights of a SUM: one for each other bottom, and for each index of their first axes.
    """

    bottoms = (1, None)
    passes_diff = True

    by_sample = True

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        return BlobWeightedSum if param.eltwise_param.coeff_blob else cls

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.operation, self.stable = p.operation, p.stable_prod_grad
        for i, shape in enumerate(bottoms):
            fact = f"bottom {i} is {shape_text(shape)}, bottom 0 is {shape_text(bottoms[0])}: they must be equal"
            self.check(shape == bottoms[0], fact, _equal(bottoms[0], shape, i))
        count = len(p.coeff)
        scaled = self.operation == proto.EltwiseParameter.SUM and count == 1
        self.check(len(bottoms) > 1 or scaled, "1 bottom is given", "give two bottoms or more, or write operation: SUM and a coeff, which multiplies bottom 0")
        self.check(
            not count or self.operation == proto.EltwiseParameter.SUM,
            f"coeff is given with operation: {p.EltwiseOp.Name(p.operation)}, and weights a sum only",
            "write operation: SUM, or remove coeff",
        )
        self.check(
            count in (0, len(bottoms)),
            f"{count} coeff for {len(bottoms)} bottoms",
            f"write coeff {times(len(bottoms))}, one for each bottom, or remove it",
        )
        self.coeff = [float(c) for c in p.coeff] or [1.0] * len(bottoms)
        return [bottoms[0]]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        reads, y = [bottom.data for bottom in bottoms], tops[0].data
        if self.operation == proto.EltwiseParameter.MAX:
            self.forward_max(rec, reads, y)
            return
        sums = self.operation == proto.EltwiseParameter.SUM
        for start, some in runs(reads, AT_ONCE):
            weighted = {f"c{i}": c for i, c in enumerate(self.coeff[start : start + len(some)]) if c != 1} if sums else {}
            terms = [f"c{i} * x{i}" if f"c{i}" in weighted else f"x{i}" for i in range(len(some))]
            means = ResidualSum() if sums and len(reads) == 2 and not weighted else None
            _continue(rec, (" + " if sums else " * ").join([*(["m0"] if start else []), *terms]), some, y, weighted, means)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.operation == proto.EltwiseParameter.PROD:
            y = graph.values[bottoms[0]]
            for bottom in bottoms[1:]:
                y = graph.op("Mul", y, bottom, to=tops[0] if bottom is bottoms[-1] else None)
        elif self.operation == proto.EltwiseParameter.SUM:
            terms = [bottom if c == 1 else graph.op("Mul", bottom, c) for bottom, c in zip(bottoms, self.coeff)]
            graph.op("Add" if len(terms) == 2 else "Sum", *terms, to=tops[0])
        else:
            graph.op("Max", *bottoms, to=tops[0])

    def forward_max(self, rec: Recorder, reads: list[Ref], y: Ref) -> None:
        if rec.train:
            self.index = rec.saved("index", y.shape, np.uint8 if len(reads) <= 256 else np.uint32)
        for start, some in runs(reads, AT_ONCE):
            values, index = ("m0", "m1") if start else ("y0", "y1")
            steps = [] if start else ["index = x0 > x1 ? 0 : 1", "y0 = x0 > x1 ? x0 : x1"]
            for i in range(0 if start else 2, len(some)):
                steps += [f"index = x{i} > {values} ? {start + i} : {'index' if i or not start else index}", f"{values} = x{i} > {values} ? x{i} : {values}"]
            if rec.train:
                steps.append(f"{index} = index")
            else:
                steps = [step for step in steps if step.startswith(values)]
            written = [y, self.index] if rec.train else [y]
            pointwise(rec, "; ".join(steps), reads=some, writes=[] if start else written, modifies=written if start else [])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy = tops[0].diff
        assert dy is not None
        wanted = [i for i, bottom in enumerate(bottoms) if propagate[i]]
        if self.operation == proto.EltwiseParameter.SUM:
            for i in [i for i in wanted if self.coeff[i] == 1 and bottoms[i].diff is None]:
                alias_diff(rec, bottoms[i], tops[0])
                wanted.remove(i)
        elif self.operation == proto.EltwiseParameter.PROD and self.stable and len(bottoms) > AT_ONCE:
            self.backward_products(rec, dy, bottoms, wanted)
            return
        for _, some in runs(wanted, AT_ONCE):
            scalars: dict[str, float] = {}
            if self.operation == proto.EltwiseParameter.SUM:
                terms = ["x0" if self.coeff[i] == 1 else f"c{i} * x0" for i in some]
                reads, scalars = [dy], {f"c{i}": self.coeff[i] for i in some if self.coeff[i] != 1}
            elif self.operation == proto.EltwiseParameter.MAX:
                reads, terms = [dy, self.index], [f"x1 == {i} ? x0 : 0" for i in some]
            elif self.stable:
                used = [i for i in range(len(bottoms)) if any(i != j for j in some)]
                names = {i: f"x{1 + k}" for k, i in enumerate(used)}
                reads = [dy, *(bottoms[i].data for i in used)]
                terms = [" * ".join(["x0", *(names[i] for i in used if i != j)]) for j in some]
            else:
                reads = [dy, tops[0].data, *(bottoms[i].data for i in some)]
                terms = [f"x0 * x1 / x{2 + k}" for k in range(len(some))]
            text = "; ".join(f"y{k} = {term}" for k, term in enumerate(terms))
            pointwise(rec, text, reads=reads, writes=[rec.diff_of(bottoms[i]) for i in some], scalars=scalars)

    def backward_products(self, rec: Recorder, dy: Ref, bottoms: list[Blob], wanted: Sequence[int]) -> None:
        """Record the stable gradient of a product of many bottoms: for each of them the product of the others, in several launches."""
        for j in wanted:
            others = [bottom.data for i, bottom in enumerate(bottoms) if i != j]
            product = rec.scratch("product", dy.shape)
            for start, some in runs(others, AT_ONCE):
                _continue(rec, " * ".join(["m0" if start else f"x{len(some)}", *(f"x{i}" for i in range(len(some)))]), some if start else [*some, dy], product)
            pointwise(rec, "y0 = x0", reads=[product], writes=[rec.diff_of(bottoms[j])])


def _continue(
    rec: Recorder, value: str, reads: Sequence[Read], y: Ref, scalars: Mapping[str, float] | None = None, means: ResidualSum | None = None
) -> None:
    """Record the next launch of an operation over many values. The first one writes y. A value with m0, which is y, goes on from there."""
    if value.startswith("m0"):
        pointwise(rec, f"m0 = {value}", reads=reads, modifies=[y], scalars=scalars, means=means)
    else:
        pointwise(rec, f"y0 = {value}", reads=reads, writes=[y], scalars=scalars, means=means)


class BlobWeightedSum(Layer):
    """The sum of n bottoms, weighted by `coeff` and by the last bottom, n x .., whose further axes are the first axes of the others.

    As in the fork, the last bottom gets no gradient. Source: LisaAnne/lisa-caffe-public, src/caffe/layers/eltwise_layer.cpp.
    """

    origin = "LRCN"
    bottoms = (2, None)
    message = "eltwise_param"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (*summands, weights) = self.own(), bottoms
        x, n, self.lead = summands[0], len(summands), tuple(weights[1:])
        self.check(p.operation == p.SUM, "coeff_blob is true, and operation is not SUM", "set operation: SUM in eltwise_param, or remove coeff_blob")
        for i, shape in enumerate(summands[1:], 1):
            self.check(shape == x, f"bottom {i} is {shape_text(shape)}, bottom 0 is {shape_text(x)}: they must be equal", _equal(x, shape, i))
        fact = f"the last bottom, with the coefficients, is {shape_text(weights)}, and bottom 0 is {shape_text(x)}"
        self.check(
            weights[:1] == (n,) and self.lead == x[: len(self.lead)],
            fact,
            f"give a last bottom of {shape_text((n, *x[:1]))}: a coefficient for each bottom before it and each sample",
        )
        self.check(len(p.coeff) in (0, n), f"{len(p.coeff)} coeff for {n} bottoms", f"write coeff {times(n)}, one for each bottom but the last, or not at all")
        self.coeff = [float(c) for c in p.coeff] or [1.0] * n
        return [x]

    def force_backward(self, bottom: int) -> bool:
        return bottom < len(self.coeff)

    def weights(self, bottoms: list[Blob]) -> list[Read]:
        """Return the coefficients of each summand, to be broadcast to its further axes."""
        size = math.prod(self.lead)
        return [(bottoms[-1].data.view(self.lead, i * size), 0) for i in range(len(self.coeff))]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        weights = self.weights(bottoms)
        for start, some in runs(bottoms[:-1], AT_ONCE // 2):
            n = len(some)
            terms = [f"c{i} * x{n + i} * x{i}" for i in range(n)]
            reads: list[Read] = [*(bottom.data for bottom in some), *weights[start : start + n]]
            scalars = {f"c{i}": c for i, c in enumerate(self.coeff[start : start + n])}
            _continue(rec, " + ".join([*(["m0"] if start else []), *terms]), reads, tops[0].data, scalars)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        weights = self.weights(bottoms)
        for i, (bottom, wanted) in enumerate(zip(bottoms, propagate)):
            if not wanted:
                continue
            assert bottom.diff is not None
            if i == len(self.coeff):
                pointwise(rec, "y0 = 0", writes=[bottom.diff])
            else:
                pointwise(rec, "y0 = c * x1 * x0", reads=[tops[0].diff, weights[i]], writes=[bottom.diff], scalars={"c": self.coeff[i]})

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        total: str | None = None
        for i, (bottom, c) in enumerate(zip(bottoms, self.coeff)):
            part = graph.op("Slice", bottoms[-1], [i], [i + 1], [0])
            shape = [graph.fixed(bottom, axis) if axis < len(self.lead) else 1 for axis in range(len(bottom.shape))]
            weight = graph.reshape(part, shape)
            term = graph.op("Mul", graph.op("Mul", bottom, weight), c, to=tops[0] if len(self.coeff) == 1 else None)
            last = i == len(self.coeff) - 1
            total = term if total is None else graph.op("Add", total, term, to=tops[0] if last else None)
