"""Resample and Downsample: other sizes of images and of flow, as FlowNet computes them."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.layers.base import register
from ocaffe.layers.plane_map import MappedPlanes
from ocaffe.onnx.graph import OnnxGraph


def cubic(x: float) -> float:
    """Keys' kernel with the parameter -1/2."""
    x = abs(x)
    return x * x * (1.5 * x - 2.5) + 1 if x <= 1 else x * (x * (2.5 - 0.5 * x) - 4) + 2 if x < 2 else 0.0


def triangle(x: float) -> float:
    return max(0.0, 1 - abs(x))


def rounded(x: float) -> int:
    """Round halves away from zero, as C's round."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


class Resized(MappedPlanes):
    """Base: the size of the top is that of a second bottom, or in the fields `height` and `width` of the message, with a prefix."""

    origin = "FlowNet, FlowNet 2"
    bottoms = (1, 2)
    prefix = ""

    def sizes(self, bottoms: Sequence[Shape]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return height and width of bottom 0, and of the top."""
        p, image = self.own(), self.image(bottoms[0])
        if len(bottoms) == 2:
            self.check(
                len(bottoms[1]) == 4,
                f"bottom 1 is {shape_text(bottoms[1])}, it must be N x C x H x W",
                "give a blob with the height and width of the top as bottom 1",
            )
            return image, (bottoms[1][2], bottoms[1][3])
        height, width = (f"{self.prefix}{name}" for name in ("height", "width"))
        size = getattr(p, height), getattr(p, width)
        meaning = "the {} of the top: 1 or more; or give a blob of its size as bottom 1"
        self.positive(p, {height: meaning.format("rows"), width: meaning.format("columns")})
        return image, size


@register("Resample")
class Resample(Resized):
    """Resizes N x C x H x W to height x width, or to the size of a second bottom; `type` is LINEAR, CUBIC or NEAREST.

    Output i of n lies at i s + s' / 2 - 1/2 of the H inputs, with s = H / n, and s' that of the other axis, as in FlowNet's code. Weights are divided by
    their sum. LINEAR and CUBIC stretch the weights by s where an axis shrinks, unless antialias is false. FlowNet's layer has no gradient; here it has one.
    Source: lmb-freiburg/flownet2, src/caffe/layers/resample_layer.cu.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.check(p.type != p.AREA, "type is AREA, which FlowNet refuses too", "write type: LINEAR, CUBIC or NEAREST")
        image, size = self.sizes(bottoms)
        steps = [np.float32(n) / np.float32(m) for n, m in zip(image, size)]
        smooth = bool(p.antialias) and max(steps) > 1
        matrices = [self._matrix(n, m, float(s), float(other), smooth) for n, m, s, other in zip(image, size, steps, reversed(steps))]
        return self.plan(bottoms[0], *matrices)

    def _matrix(self, inputs: int, outputs: int, step: float, other: float, smooth: bool) -> np.ndarray:
        p = self.own()
        result = np.zeros((outputs, inputs))
        weigh: Callable[[float], float] = cubic if p.type == p.CUBIC else triangle
        scale = 1 / step if smooth else 1.0
        radius = 2 if step < 1 else math.ceil((4 if p.type == p.CUBIC else 2) / scale)
        for i, row in enumerate(result):
            center = i * step + other / 2 - 0.5
            middle = rounded(center)
            if p.type == p.NEAREST:
                row[min(max(middle, 0), inputs - 1)] = 1
                continue
            for j in range(max(0, middle - radius), min(inputs, middle + radius + 1)):
                row[j] = weigh(scale * (center - j))
            total = row.sum()
            row[:] = row / total if total else 0
        return result


@register("Downsample")
class Downsample(Resized):
    """Resizes N x C x H x W to top_height x top_width, or to the size of a second bottom: means with weights that fall linearly around each pixel.

    The corners of both images coincide. NaN (flow that is not known) has no weight; the mean is NaN if NaN has more than half as much weight as the rest.
    If the sizes are equal, no data moves. FlowNet's layer has no gradient; here it has one. Source: lmb-freiburg/flownet2,
    src/caffe/layers/downsample_layer.cu.
    """

    prefix = "top_"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        image, size = self.sizes(bottoms)
        self.moves_data = image != size
        fact = f"the top would be {shape_text(size)}, bottom 0 is {shape_text(image)}: the corners of both coincide, so the top has 2 rows and columns at least"
        self.check(not self.moves_data or min(size) > 1, fact, "set the height and width of the top to 2 or more")
        return self.plan(bottoms[0], *(self._matrix(n, m) for n, m in zip(image, size)))

    @staticmethod
    def _matrix(inputs: int, outputs: int) -> np.ndarray:
        if inputs == outputs:
            return np.eye(inputs)
        result, step = np.zeros((outputs, inputs)), (inputs - 1) / (outputs - 1)
        for i, row in enumerate(result):
            center, radius = i * step, math.ceil(step)
            for j in range(max(0, rounded(center) - radius), min(inputs, rounded(center) + radius + 1)):
                row[j] = max(0.0, 1 - abs(j - center) / step) if step else 1.0
        return result

    def _totals(self) -> np.ndarray:
        """The sum of the weights of each output pixel."""
        return np.float32(np.outer(self.map.rows.sum(1), self.map.columns.sum(1)))

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if not self.moves_data:
            rec.alias(tops[0], bottoms[0])
            return
        x, y = bottoms[0].data, tops[0].data
        known, valid, sums = (rec.scratch(name, shape) for name, shape in (("known", x.shape), ("valid", x.shape), ("sums", y.shape)))
        self.weights = (rec.saved if rec.train else rec.scratch)("weights", y.shape)
        pointwise(rec, "n = x0 == x0; y0 = n ? x0 : 0; y1 = n ? 1 : 0", reads=[x], writes=[known, valid])
        self.map.forward(rec, known, sums)
        self.map.forward(rec, valid, self.weights)
        pointwise(rec, "y0 = x2 - x1 > 0.5 * x1 ? NAN : x0 / x1", reads=[sums, self.weights, self._total(rec)], writes=[y])

    def _total(self, rec: Recorder) -> Read:
        return rec.constant("totals", self._totals()), 2

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if not self.moves_data:
            graph.alias(tops[0], bottoms[0])
            return
        known = graph.op("Not", graph.op("IsNaN", bottoms[0]))
        valid = graph.cast(known, np.float32)
        zero, half = 0.0, 0.5
        kept = graph.op("Where", known, bottoms[0], zero)
        sums, weights = (graph.op("MatMul", np.float32(self.map.rows), graph.op("MatMul", each, np.float32(self.map.columns.T))) for each in (kept, valid))
        lost = graph.op("Greater", graph.op("Sub", self._totals(), weights), graph.op("Mul", weights, half))
        graph.op("Where", lost, math.nan, graph.op("Div", sums, weights), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy = tops[0].diff
        assert dy is not None
        if propagate[0] and self.moves_data:
            dx, x = bottoms[0].diff, bottoms[0].data
            assert dx is not None
            share, spread = rec.scratch("share", dy.shape), rec.scratch("spread", dx.shape)
            pointwise(rec, "y0 = x2 - x1 > 0.5 * x1 ? 0 : x0 / x1", reads=[dy, self.weights, self._total(rec)], writes=[share])
            self.map.backward(rec, share, spread)
            pointwise(rec, "y0 = x1 == x1 ? x0 : 0", reads=[spread, x], writes=[dx])
        elif propagate[0]:
            alias_diff(rec, bottoms[0], tops[0])
        super().backward(rec, tops, bottoms, [False, *propagate[1:]])
