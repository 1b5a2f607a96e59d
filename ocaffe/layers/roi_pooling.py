"""ROIPooling: the maxima of the bins of regions of interest."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.detection.regions.roi_pooling import RoiPooling
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph, Value
from ocaffe.onnx.regions import roi_pooled


def check_regions(layer: Layer, x: Shape, rois: Shape) -> None:
    """Raise the layer's error unless the bottoms are N x C x H x W and regions R x 5."""
    layer.check_axes(x, "N x C x H x W")
    values = rois[1:2] if set(rois[2:]) <= {1} else rois[1:]
    layer.check(
        values == (5,),
        f"bottom 1 is {shape_text(rois)}, it must be R x 5: image, x1, y1, x2, y2",
        "give the feature map as bottom 0, and the rois as bottom 1",
    )


def without_gradient(rec: Recorder, bottoms: list[Blob], propagate: list[bool]) -> bool:
    """Record zeros for the regions' diff and, if there are no regions, for both diffs. Return whether no other diff is needed."""
    nothing = bottoms[1].count == 0
    for bottom, wanted, zero in zip(bottoms, propagate, (nothing, True)):
        if wanted and zero:
            assert bottom.diff is not None
            pointwise(rec, "y0 = 0", writes=[bottom.diff])
    return nothing or not propagate[0]


def padded(rec: Recorder, rois: Ref, ratio: float) -> Ref:
    """Return regions R x 5 that are wider and higher by `ratio` of their size on each side, as MS-CNN pads them."""
    if not ratio:
        return rois
    regions = rois.shape[0]
    wider = rec.scratch("padded", (regions, 5))
    text = "w = (x3 - x1 + 1) * ratio; h = (x4 - x2 + 1) * ratio; y0 = x0; y1 = x1 - w; y2 = x2 - h; y3 = x3 + w; y4 = x4 + h"
    columns = [[ref.view((regions,), k, ref.batch_stride) for k in range(5)] for ref in (rois, wider)]
    pointwise(rec, text, reads=columns[0], writes=columns[1], scalars={"ratio": ratio})
    return wider


def onnx_padded(graph: OnnxGraph, rois: Blob, ratio: float) -> Value:
    """Add the nodes of `padded`."""
    if not ratio:
        return rois
    image, low, high = graph.ops("Split", graph.reshape(rois, (-1, 5)), [1, 2, 2], to=[None] * 3, axis=1)
    margin = graph.op("Mul", graph.op("Add", graph.op("Sub", high, low), 1.0), ratio)
    return graph.op("Concat", image, graph.op("Sub", low, margin), graph.op("Add", high, margin), axis=1)


@register("ROIPooling")
class ROIPooling(Layer):
    """The maximum of each of pooled_h x pooled_w bins of each region: R x C x pooled_h x pooled_w.

    Bottoms: N x C x H x W, and regions R x 5 (image, x1, y1, x2, y2). Corners are multiplied by spatial_scale and rounded, halves away from zero; both
    corners belong to the region. Before, MS-CNN's pad_ratio makes a region wider and higher by that part of its size on each side. An empty bin gives 0.
    A region whose image does not exist gives NaN. Backward reads the saved position of each maximum, in two bytes if the plane is small enough. Regions
    get no gradient.
    """

    origin = "Fast R-CNN, R-FCN, Intel Caffe, MS-CNN"
    bottoms = 2

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, rois) = self.own(), bottoms
        self.positive(p, {"pooled_h": "the rows of bins (7 for VGG16)", "pooled_w": "the columns of bins (7 for VGG16)"})
        check_regions(self, x, rois)
        self.pool = RoiPooling((p.pooled_h, p.pooled_w), p.spatial_scale)
        return [(rois[0], x[1], p.pooled_h, p.pooled_w)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, y = bottoms[0].data, tops[0].data
        self.bins = (rec.saved if rec.train else rec.scratch)("bins", (y.shape[0], self.pool.row), "int32")
        self.index: Ref | None = rec.saved("index", y.shape, self.pool.index_dtype(x)) if rec.train else None
        self.pool.locate(rec, padded(rec, bottoms[1].data, float(self.own().pad_ratio)), x, self.bins)
        self.pool.forward(rec, x, self.bins, y, self.index)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        roi_pooled(graph, self.pool.bins, self.pool.scale, bottoms[0], onnx_padded(graph, bottoms[1], float(self.own().pad_ratio)), tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        if not without_gradient(rec, bottoms, propagate):
            assert tops[0].diff is not None and bottoms[0].diff is not None and self.index is not None
            self.pool.backward(rec, tops[0].diff, self.index, self.bins, bottoms[0].diff)
