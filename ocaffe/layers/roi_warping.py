"""ROIWarping, ROIAlignment and MS-CNN's ROIAlign: interpolated values in the bins of regions."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.detection.regions import region_values
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.layers.roi_pooling import check_regions, onnx_padded, padded, without_gradient
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.onnx.regions import rounded as onnx_rounded
from ocaffe.onnx.sampling import pixel_sample
from ocaffe.support import log

AXES = (("row", "x1", "x3", "height", "down"), ("column", "x0", "x2", "width", "across"))  # index of a bin, corners, size of the image, number of values


class RegionValues(Layer):
    """Base of the layers. `text` computes the bins (`row`, `column`: the first value; `down`, `across`: the number of values) by expressions."""

    bottoms = 2
    more = 0  # rows and columns of the top beyond pooled_h and pooled_w
    pad_ratio = 0.0

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, rois) = self.own(), bottoms
        self.positive(p, {"pooled_h": "the rows of bins (14 in MNC)", "pooled_w": "the columns of bins (14 in MNC)"})
        check_regions(self, x, rois)
        self.counts = (p.pooled_h + self.more, p.pooled_w + self.more)
        self.index = np.indices(self.counts, np.float32).reshape(2, -1)
        return [(rois[0], x[1], *self.counts)]

    def text(self, index: str, low: str, high: str, size: str, count: str, to: tuple[str, str]) -> str:
        """Return the statements of one axis: the first value and the number of values. `low` and `high` are corners in pixels of the image."""
        raise NotImplementedError

    def _scalars(self, x: Shape) -> dict[str, float]:
        p = self.own()
        return {"height": float(x[2]), "width": float(x[3]), "down": float(p.pooled_h), "across": float(p.pooled_w), "scale": float(p.spatial_scale)}

    def _corners(self, rec: Recorder, rois: Ref) -> list[Read]:
        """Return the reads x0 .. x5 of an expression over R x points: x1, y1, x2, y2, and the row and column of a bin."""
        regions = rois.shape[0]
        corners: list[Read] = [(rois.view((regions, 1), k, rois.batch_stride), 0) for k in range(1, 5)]
        return [*corners, *((rec.constant(name, self.index[k]), 1) for k, name in enumerate(("rows", "columns")))]

    def _bins(self, rec: Recorder, rois: Ref, x: Shape) -> Ref:
        regions, points = rois.shape[0], self.index.shape[1]
        bins = rec.scratch("bins", (regions, 4, points))
        text = "; ".join(self.text(*axis, (f"y{k}", f"y{k + 2}")) for k, axis in enumerate(AXES)).replace("row", "x4").replace("column", "x5")
        writes = [bins.view((regions, points), k * points, 4 * points) for k in range(4)]
        rois = padded(rec, rois, self.pad_ratio)
        pointwise(rec, text, reads=self._corners(rec, rois), writes=writes, scalars=self._scalars(x))
        return bins

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, rois = bottoms[0].data, bottoms[1].data
        region_values.values(rec, x, rois, self._bins(rec, rois, x.shape), tops[0].data)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        if without_gradient(rec, bottoms, propagate):
            return
        assert tops[0].diff is not None
        rois = bottoms[1].data
        region_values.backward_image(rec, tops[0].diff, rois, self._bins(rec, rois, bottoms[0].shape), rec.diff_of(bottoms[0]))

    def _places(self, graph: OnnxGraph, axis: int, low: str, high: str, size: int) -> tuple[str, str | None]:
        """Add the nodes for the places of one axis, R x bins in pixels, and for whether they count (None: all)."""
        raise NotImplementedError

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, ends = bottoms[0], self.counts
        rois = graph.reshape(onnx_padded(graph, bottoms[1], self.pad_ratio), (-1, 5))
        image, *corners = graph.ops("Split", rois, [1] * 5, to=[None] * 5, axis=1)
        scaled = [graph.op("Mul", corner, float(self.own().spatial_scale)) for corner in corners]
        images = graph.op("Gather", x, graph.cast(graph.reshape(image, (-1,)), np.int64), axis=0)
        rows, columns = (self._places(graph, axis, scaled[1 - axis], scaled[3 - axis], x.shape[2 + axis]) for axis in (0, 1))
        lines = [graph.reshape(rows[0], (-1, ends[0], 1, 1)), graph.reshape(columns[0], (-1, 1, ends[1], 1))]
        zero = graph.op("Mul", graph.op("Add", *lines), 0.0)
        places = graph.op("Concat", graph.op("Add", lines[1], zero), graph.op("Add", lines[0], zero), axis=3)
        counts = [(each, shape) for (_, each), shape in ((rows, (-1, 1, ends[0], 1)), (columns, (-1, 1, 1, ends[1]))) if each is not None]
        y = pixel_sample(graph, images, places, (x.shape[2], x.shape[3]), "border", None if counts else tops[0])
        for k, (each, shape) in enumerate(counts):
            y = graph.op("Mul", y, graph.reshape(each, shape), to=tops[0] if k == len(counts) - 1 else None)


def rounded(term: str) -> str:
    """Halves away from zero, as in C."""
    return f"copysign(floor(fabs({term}) + 0.5), {term})"


@register("ROIWarping")
class ROIWarping(RegionValues):
    """The value at the first corner of each of pooled_h x pooled_w bins of each region, interpolated between four pixels: R x C x pooled_h x pooled_w.

    Bottoms: N x C x H x W, and regions R x 5 (image, x1, y1, x2, y2). Corners are multiplied by spatial_scale and rounded, halves away from zero. A value
    more than half a pixel outside the image is 0. A region whose image does not exist gives NaN. Regions get MNC's gradient, in which rounding counts as
    nothing, a bin's part of its region is measured with one pixel more, and values in the last row or column count as constant. Where a region is smaller
    than its bins, MNC's gradient of the image leaves values out; here it is complete.
    Source: daijifeng001/caffe-mnc, src/caffe/layers/roi_warping_layer.cu.
    """

    origin = "MNC"
    message = "roi_warping_param"

    def text(self, index: str, low: str, high: str, size: str, count: str, to: tuple[str, str]) -> str:
        start, end = f"{low}_{index}", f"{high}_{index}"
        place = f"{start} + {index} * fmax({end} - {start}, 0) / {count}"
        return (f"{start} = {rounded(f'({low} * scale)')}; {end} = {rounded(f'({high} * scale)')}; {to[0]} = {place}; "
                f"{to[1]} = {to[0]} < -0.5 || {to[0]} > {size} - 0.5 ? 0 : 1")  # fmt: skip

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        super().backward(rec, tops, bottoms, [propagate[0], False])
        if not propagate[1]:
            return
        dy, x, rois, to = tops[0].diff, bottoms[0].data, bottoms[1].data, rec.diff_of(bottoms[1])
        assert dy is not None
        regions, points = rois.shape[0], self.index.shape[1]
        columns = [to.view((regions,), k, 5) for k in range(5)]
        if not regions:
            pointwise(rec, "y0 = 0", writes=[to])
            return
        bins, moved = self._bins(rec, rois, x.shape), rec.scratch("places.diff", (regions, 2, points))
        region_values.backward_places(rec, dy, x, rois, bins, moved)
        pointwise(rec, "y0 = 0", writes=[columns[0]])
        scalars = self._scalars(x.shape)
        for axis, size in enumerate(("height", "width")):
            reads: list[Read] = [*self._corners(rec, rois)[1 - axis : 4 - axis : 2]]
            reads += [part.view((regions, points), axis * points, stride) for part, stride in ((bins, 4 * points), (moved, 2 * points))]
            text = f"low = {rounded('(x0 * scale)')}; high = {rounded('(x1 * scale)')}; place = fmin(fmax(x2, 0), {size} - 1)"
            text += "; m = (place - low) / fmax(high - low + 1, 1); v0 = x3 * (1 - m); v1 = x3 * m"
            finish = "y0 = v0 * scale; y1 = v1 * scale"
            writes = [columns[2 - axis], columns[4 - axis]]
            reduce(rec, text, reads=reads, writes=writes, axes=[1], finish=finish, scalars={name: scalars[name] for name in (size, "scale")})

    def _places(self, graph: OnnxGraph, axis: int, low: str, high: str, size: int) -> tuple[str, str | None]:
        count = self.counts[axis]
        ends = [onnx_rounded(graph, each) for each in (low, high)]
        extent = graph.op("Max", graph.op("Sub", ends[1], ends[0]), 0.0)
        steps = (np.arange(count, dtype=np.float32) / count)[None]
        places = graph.op("Add", ends[0], graph.op("Mul", extent, steps))
        counts = graph.op("And", graph.op("GreaterOrEqual", places, -0.5), graph.op("LessOrEqual", places, size - 0.5))
        return places, graph.cast(counts, np.float32)


@register("ROIAlignment")
class ROIAlignment(RegionValues):
    """The mean of interpolated values in each of pooled_h x pooled_w bins of each region: R x C x pooled_h x pooled_w.

    Bottoms: N x C x H x W, and regions R x 5 (image, x1, y1, x2, y2), which get no gradient. Corners are multiplied by spatial_scale, and the second corner
    belongs to the region. A bin is cut at the borders of the image. Its values begin at its corner and are one pixel apart. With sampling_ratio: 1, a field
    of ocaffe, a bin has one value in its middle, as in another fork whose fields are the same. An empty bin is 0. A region whose image does not exist gives
    NaN. The gradient is that of the fork's GPU code; its CPU code reads wrong weights.
    Source: GuohongWu/caffe-windows, src/caffe/layers/roi_alignment_layer.cu.
    """

    origin = "Mask R-CNN forks (GuohongWu/caffe-windows)"
    message = "roi_alignment_param"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.check(
            p.sampling_ratio <= 1,
            f"sampling_ratio is {p.sampling_ratio}, {self.param.type} takes 0 or 1",
            "set sampling_ratio to 0 or 1, or use the type ROIAlign with roi_align_param",
        )
        if not p.HasField("sampling_ratio"):
            told = "taken as GuohongWu's ROIAlignment, with values one pixel apart; roi_alignment_param { sampling_ratio: 1 } says that of one value for a bin"
            log.warn_once("roi_alignment_layer.cpp:1", f"{self.title}: {told}")
        return super().infer(*bottoms)

    def text(self, index: str, low: str, high: str, size: str, count: str, to: tuple[str, str]) -> str:
        start, bin, end = f"{low}_{index}", f"bin_{index}", f"{high}_{index}"
        last = f"{size} - 1" if self.own().sampling_ratio else size
        edges = [f"fmin(fmax({start} + ({index} + {k}) * {bin}, 0), {last})" for k in (0, 1)]
        text = f"{start} = {low} * scale; {bin} = fmax({high} * scale - {start} + 1, 1) / {count}; {index}_a = {edges[0]}; {end} = {edges[1]}; "
        if self.own().sampling_ratio:
            return text + f"{to[0]} = ({index}_a + {end}) / 2; {to[1]} = 1"
        return text + f"{to[0]} = {index}_a; {to[1]} = ceil({end} - {index}_a)"

    def _places(self, graph: OnnxGraph, axis: int, low: str, high: str, size: int) -> tuple[str, str | None]:
        if not self.own().sampling_ratio:
            raise graph.refused("its bins have different numbers of values, with sampling_ratio: 0", "write sampling_ratio: 1, or use the type ROIAlign")
        count = self.counts[axis]
        extent: Any = graph.op("Max", graph.op("Add", graph.op("Sub", high, low), 1.0), 1.0)
        edges = []
        for k in (0, 1):
            steps = ((np.arange(count, dtype=np.float32) + k) / count)[None]
            edges.append(graph.op("Clip", graph.op("Add", low, graph.op("Mul", extent, steps)), 0.0, float(size - 1)))
        return graph.op("Mul", graph.op("Add", *edges), 0.5), None


class GridAlign(RegionValues):
    """MS-CNN's ROIAlign: values at the corners of pooled_h x pooled_w bins: R x C x (pooled_h + 1) x (pooled_w + 1).

    Bottoms: N x C x H x W, and regions R x 5 (image, x1, y1, x2, y2), which get no gradient. pad_ratio makes a region wider and higher by that part of its
    size on each side. Then corners are multiplied by spatial_scale, and half a pixel is subtracted. Values more than half a pixel outside the image are 0,
    and so are those of a region without a size. A region whose image does not exist gives NaN.
    Source: zhaoweicai/mscnn, src/caffe/layers/roi_align_layer.cu.
    """

    type = "ROIAlign"
    origin = "MS-CNN"
    more = 1

    def own(self) -> Any:
        return self.param.roi_pooling_param

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.check(
            not self.param.HasField("roi_align_param"),
            "roi_align_param and roi_pooling_param are both given",
            "remove roi_pooling_param; for MS-CNN's layer, remove roi_align_param",
        )
        self.pad_ratio = float(self.own().pad_ratio)
        return super().infer(*bottoms)

    def text(self, index: str, low: str, high: str, size: str, count: str, to: tuple[str, str]) -> str:
        start, extent = f"{low}_{index}", f"{high}_{index}"
        return (f"{start} = {low} * scale - 0.5; {extent} = {high} * scale - 0.5 - {start}; {to[0]} = {start} + {index} * {extent} / {count}; "
                f"{to[1]} = {extent} <= 0 || {to[0]} < -0.5 || {to[0]} > {size} - 0.5 ? 0 : 1")  # fmt: skip

    def _places(self, graph: OnnxGraph, axis: int, low: str, high: str, size: int) -> tuple[str, str | None]:
        start, extent = graph.op("Sub", low, 0.5), graph.op("Sub", high, low)
        count = self.counts[axis]
        places = graph.op("Add", start, graph.op("Mul", extent, (np.arange(count, dtype=np.float32) / (count - 1))[None]))
        counts = graph.op("And", graph.op("GreaterOrEqual", places, -0.5), graph.op("LessOrEqual", places, size - 0.5))
        return places, graph.cast(graph.op("And", counts, graph.op("Greater", extent, 0.0)), np.float32)
