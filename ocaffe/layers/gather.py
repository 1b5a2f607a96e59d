"""Gather, GatherElements and GatherND: values of bottom 0 whose places bottom 1 gives."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.kernels.rearrange.rows import gather, gather_adjoint
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph

EXACT = 2**24  # floats count exactly up to here


class Gathered(Layer):
    """Base: the top consists of rows of bottom 0. The number of a row is that of `base` plus the indices in bottom 1 times `weights`."""

    origin = "ocaffe"
    bottoms = 2
    inplace_top = False
    sizes: Sequence[int]  # of the axes that the indices name; a negative index counts from the end
    weights: Sequence[int]  # rows from one value to the next along each of these axes
    base: Callable[[], np.ndarray]  # makes one number for each row of the top; a shape alone needs none
    copies: int = 1  # the indices are used so often, one copy after another
    values: int  # of a row

    def plan(self, x: Shape, named: Sequence[int], inner: int, top: Shape) -> Sequence[Shape]:
        """Check the sizes. Set `sizes`, `values`, `rows` and `count`, the rows of the top. Return the top shapes.

        `named` are the axes of x that the indices name.
        """
        self.sizes, self.values = [x[axis] for axis in named], inner
        self.rows, self.count = math.prod(x) // max(1, inner), math.prod(top) // max(1, inner)
        self.check(
            0 not in x and 0 not in top,
            f"bottom 0 is {shape_text(x)}, the top would be {shape_text(top)}: an axis has the size 0",
            "give both bottoms at least 1 value along each axis",
        )
        self.check(self.rows < EXACT, f"bottom 0 ({shape_text(x)}) has {self.rows:,} places to choose from, and indices are floats, exact below {EXACT:,}",
                   "give a smaller bottom 0, for example by a Slice layer before it")  # fmt: skip
        return [top]

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.numbers = (rec.saved if rec.train else rec.scratch)("rows", (self.count,), np.int32)
        count, tuples = len(self.sizes), self.count // self.copies
        parts = [bottoms[1].data.view((tuples,), k, count) for k in range(count)]
        steps = [f"i{k} = trunc(x{k}); p{k} = i{k} < 0 ? i{k} + size{k} : i{k}" for k in range(count)]
        row = " + ".join([f"x{count}", *(f"p{k} * weight{k}" for k in range(count))])
        valid = " && ".join(f"p{k} >= 0 && p{k} < size{k}" for k in range(count))
        scalars = {f"{name}{k}": float(value) for name, values in (("size", self.sizes), ("weight", self.weights)) for k, value in enumerate(values)}
        base, domain = rec.constant("base", self.base().astype(np.int32).reshape(-1)), (self.copies, tuples)
        reads: list[Read] = [*((part, 1) for part in parts), base]
        text = "; ".join([*steps, f"y0 = {valid} ? {row} : -1"])
        pointwise(rec, text, reads=reads, writes=[self.numbers.view(domain)], scalars=scalars)
        gather(rec, self._rows(bottoms[0].data, self.rows), self.numbers, self._rows(tops[0].data, self.count))

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "the indices"})
        if propagate[0]:
            assert tops[0].diff is not None and bottoms[0].diff is not None
            gather_adjoint(rec, self._rows(tops[0].diff, self.count), self.numbers, self._rows(bottoms[0].diff, self.rows))

    def _rows(self, ref: Ref, rows: int) -> Ref:
        return ref.view((rows, self.values))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        attributes = {field.name: value for field, value in self.own().ListFields()}
        graph.op(self.type, bottoms[0], graph.cast(bottoms[1], np.int64), to=tops[0], **attributes)


@register("Gather")
class Gather(Gathered):
    """The slices of bottom 0 along `axis` that the indices in bottom 1 name; the shape of bottom 1 replaces the axis.

    A negative index counts from the end. An index out of range gives NaN and no gradient.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, ids = bottoms
        axis = self.axis(self.own().axis, x)
        before, count = math.prod(x[:axis]), math.prod(ids)
        self.weights, self.copies = [1], before
        self.base = lambda: np.repeat(np.arange(before) * x[axis], count)
        return self.plan(x, [axis], math.prod(x[axis + 1 :]), (*x[:axis], *ids, *x[axis + 1 :]))


@register("GatherElements")
class GatherElements(Gathered):
    """The value of bottom 0 for each index in bottom 1: its place is that of the index, but the index along `axis`.

    Bottom 1 has as many axes as bottom 0, and along the other axes at most its size. Other indices are as in Gather.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, ids = bottoms
        axis = self.axis(self.own().axis, x)
        fits = len(x) == len(ids) and all(small <= large for k, (small, large) in enumerate(zip(ids, x)) if k != axis)
        fix = f"give bottom 1 {len(x)} axes, as bottom 0 has"
        if len(x) == len(ids):
            fix = f"give bottom 1 at most the sizes of bottom 0, except along axis {axis}"
        self.check(fits, f"bottom 1 is {shape_text(ids)}, bottom 0 is {shape_text(x)}", fix)
        strides = [math.prod(x[k + 1 :]) for k in range(len(x))]
        places = np.indices(ids, sparse=True)
        self.weights = [strides[axis]]
        others = [place * stride for k, (place, stride) in enumerate(zip(places, strides)) if k != axis]
        self.base = lambda: np.broadcast_to(sum(others), ids)
        return self.plan(x, [axis], 1, ids)


@register("GatherND")
class GatherND(Gathered):
    """The parts of bottom 0 that tuples of indices name: the last axis of bottom 1 holds indices of the first axes after `batch_dims` common ones.

    Other indices are as in Gather.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        (x, ids), batch = bottoms, self.own().batch_dims
        length = ids[-1] if ids else 0
        fits = len(ids) > batch and x[:batch] == ids[:batch] and 1 <= length <= len(x) - batch
        first, most = "".join(f"{size} x " for size in x[:batch]), len(x) - batch
        fix = f"give bottom 1 as {first}.. x K: K indices, from 1 to {most}" if most > 0 else f"set batch_dims to less than {len(x)}"
        self.check(fits, f"bottom 1 is {shape_text(ids)}, bottom 0 is {shape_text(x)}, batch_dims is {batch}", fix)
        named = range(batch, batch + length)
        self.weights = [math.prod(x[axis + 1 : batch + length]) for axis in named]
        per_batch, tuples = math.prod(x[batch : batch + length]), math.prod(ids[batch:-1])
        self.base = lambda: np.repeat(np.arange(math.prod(x[:batch])) * per_batch, tuples)
        inner = x[batch + length :]
        return self.plan(x, named, math.prod(inner), (*ids[:-1], *inner))
