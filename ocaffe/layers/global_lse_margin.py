"""GlobalLSEMargin: a margin that a training measures, and a factor, for the cosines of classes."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import TEST_PHASE, Layer, ParamBlob, register
from ocaffe.onnx.graph import OnnxGraph

SCALE = 30  # the first value of a scale without a filler
FIRST_LOOPS, NEAR, STEADY = 20, 0.1, 0.001  # of the mean shift: its steps in the first pass, its reach, and the change at which it ends
OLD = 0.9  # the share of the margin that a pass keeps


@register("GlobalLSEMargin")
class GlobalLSEMargin(Layer):
    """y = s (x - m at the label's class) for cosines x (N x C) and N labels; with a third bottom of N norms, each sample has its norm in the place of s.

    Blob 0 is the scale s: 30 or its filler's, limited to min_value and max_value of scale_param. It is learned. Blob 1 is the margin m, which a TRAIN pass
    moves by a tenth to the mean of x - lse of the labels' classes that are within 0.1 of it; lse is log(sum of exp(s x) of the other classes) / s. The first
    pass takes the centre of most of them. A margin below 0 does nothing. Its change has no gradient. A second top has 5 numbers: the scale or the mean norm,
    and the means of the labels' cosines, of lse and of the largest other cosine, at least -1; then the margin. In TEST the fork moves the margin too; here
    it stays. Where no value is within 0.1 of the mean, the fork never ends; here the mean counts.
    Source: happynear/caffe-windows, src/caffe/layers/global_lse_margin_layer.cu.
    """

    origin = "happynear/caffe-windows"
    message = "scale_param"
    bottoms, tops = (2, 3), (1, 2)
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check_axes(x, "N x C x ..", values=True)
        for index, other in enumerate(bottoms[1:], 1):
            fact = f"bottom {index} is {shape_text(other)}, bottom 0 is {shape_text(x)}"
            self.check(math.prod(other) == x[0], fact, f"give {x[0]} {'labels' if index == 1 else 'norms'} as bottom {index}, one for each sample")
        self.bounds = [float(getattr(p, name)) if p.HasField(name) else bound for name, bound in (("min_value", 0.0), ("max_value", math.inf))]
        self.check(self.bounds[0] <= self.bounds[1], f"min_value is {self.bounds[0]:g}, max_value is {self.bounds[1]:g}", "set min_value to max_value or less")
        self.grid = x[0], math.prod(x[1:])
        return [x, (5,)][: max(1, len(self.param.top))]

    def parameters(self) -> Sequence[ParamBlob]:
        p, zero = self.own(), proto.FillerParameter(value=0)
        filler = p.filler if p.HasField("filler") else proto.FillerParameter(value=SCALE)
        return [ParamBlob((1,), filler, learned=len(self.param.bottom) == 2), ParamBlob((1,), zero, learned=False)]

    def force_backward(self, bottom: int) -> bool:
        return bottom != 1

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        (samples, classes), (scale, margin) = self.grid, (param.data for param in self.params)
        if self.phase == proto.TRAIN and len(bottoms) == 2:
            low, high = (float(np.clip(bound, -3e38, 3e38)) for bound in self.bounds)
            pointwise(rec, "m0 = fmin(fmax(m0, low), high)", modifies=[scale], scalars={"low": low, "high": high}, side_effect=True)
        x, single = bottoms[0].data.view(self.grid), (samples, 1)
        labels: list[Read] = [(bottoms[1].data.view(single), 0), (rec.constant("classes", np.arange(classes, dtype=np.float32)), 1)]
        factor: Read = (bottoms[2].data.view(single), 0) if len(bottoms) > 2 else (scale.view(()), 0)
        largest, own, lse = (rec.scratch(name, (samples,)) for name in ("largest", "own", "lse"))
        reduce(rec, "v0 = trunc(x1) == x2 ? -1 : fmax(x0, -1)", reads=[x, *labels], writes=[largest], axes=[1], op="max")
        reduce(rec, "v0 = trunc(x1) == x2 ? x0 : 0", reads=[x, *labels], writes=[own], axes=[1])
        sums, terms = rec.scratch("sums", (samples,)), [x, *labels, factor, (largest.view(single), 0)]
        reduce(rec, "v0 = trunc(x1) == x2 ? 0 : exp(x3 * (x0 - x4))", reads=terms, writes=[sums], axes=[1])
        one: Read = bottoms[2].data.view((samples,)) if len(bottoms) > 2 else (scale.view(()), 0)
        pointwise(rec, "y0 = log(x0) / x1 + x2", reads=[sums, one, largest], writes=[lse])
        if self.phase == proto.TRAIN:

            def move(commands: Any) -> None:
                margins = np.array(commands.read(own), np.float32) - np.array(commands.read(lse), np.float32)
                commands.write(margin, np.array([moved(margins, float(np.array(commands.read(margin))[0]))], np.float32))

            rec.host(move, reads=[own, lse], modifies=[margin], what="GlobalLSEMargin")
        reads: list[Read] = [x, *labels, factor, (margin.view(()), 0)]
        pointwise(rec, "y0 = x3 * (trunc(x1) == x2 ? x0 - fmax(x4, 0) : x0)", reads=reads, writes=[tops[0].data.view(self.grid)])
        if len(tops) > 1:
            for k, ref in enumerate((bottoms[2].data.view((samples,)) if len(bottoms) > 2 else scale, own, lse, largest)):
                n = {"n": float(ref.count)}
                reduce(rec, "v0 = x0", reads=[ref], writes=[tops[1].data.view((), k)], axes=[0], finish="y0 = v0 / n", scalars=n)
            pointwise(rec, "y0 = x0", reads=[margin.view(())], writes=[tops[1].data.view((), 4)])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.phase == proto.TRAIN or len(tops) > 1:
            raise graph.refused("it has a second top, or is in the TRAIN phase, in which it moves its margin", f"{TEST_PHASE}, and without a second top")
        factor = graph.reshape(bottoms[2], (-1, 1)) if len(bottoms) > 2 else graph.parameter(self.params[0])
        labels = graph.cast(graph.reshape(bottoms[1], (-1, 1)), np.int64)
        own = graph.cast(graph.op("Equal", labels, np.arange(self.grid[1], dtype=np.int64)[None]), np.float32)
        less = graph.op("Mul", own, graph.op("Max", graph.parameter(self.params[1]), 0.0))
        moved = graph.op("Mul", graph.op("Sub", graph.reshape(bottoms[0], (-1, self.grid[1])), less), factor)
        graph.reshape(moved, (-1, *tops[0].shape[1:]), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "labels"})
        assert tops[0].diff is not None
        dy, y, single = tops[0].diff.view(self.grid), tops[0].data.view(self.grid), (self.grid[0], 1)
        scale = self.params[0]
        if len(bottoms) == 2 and scale.diff is not None:
            reads: list[Read] = [dy, y, (scale.data.view(()), 0)]
            reduce(rec, "v0 = x0 * x1 / x2", reads=reads, writes=[scale.diff.view(())], axes=[0, 1])
        if propagate[0]:
            factor: Ref = bottoms[2].data.view(single) if len(bottoms) > 2 else scale.data.view(())
            pointwise(rec, "y0 = x0 * x1", reads=[dy, (factor, 0)], writes=[rec.diff_of(bottoms[0]).view(self.grid)])
        if len(bottoms) > 2 and propagate[2]:
            reads = [dy, y, (bottoms[2].data.view(single), 0)]
            reduce(rec, "v0 = x0 * x1 / x2", reads=reads, writes=[rec.diff_of(bottoms[2]).view((self.grid[0],))], axes=[1])


def moved(margins: np.ndarray, margin: float) -> float:
    """Return the margin after a pass, or the same if the margins are not finite."""
    mean = float(margins.mean())
    place = centre(margins, mean if margin == 0 else margin, FIRST_LOOPS if margin == 0 else 1)
    if math.isnan(place):
        return margin
    return place if margin == 0 else OLD * margin + (1 - OLD) * place


def centre(margins: np.ndarray, place: float, loops: int) -> float:
    """Return the place after `loops` steps of a mean shift."""
    for _ in range(loops):
        near = margins[abs(margins - place) < NEAR]
        if not len(near):
            near = margins[abs(margins - margins.mean()) < NEAR]
        last, place = place, float(near.mean() if len(near) else margins.mean())
        if abs(last - place) < STEADY:
            break
    return place
