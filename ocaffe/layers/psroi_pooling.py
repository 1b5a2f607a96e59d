"""PSROIPooling: the means of the bins of regions of interest, with separate channels for each bin."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.regions.roi_pooling import PsRoiPooling
from ocaffe.layers.base import Layer, register
from ocaffe.layers.roi_pooling import check_regions, without_gradient
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.onnx.regions import psroi_pooled


@register("PSROIPooling")
class PSROIPooling(Layer):
    """Position-sensitive average pooling of regions: bin (row, column) of output k averages channel (k g + row) g + column with g = group_size.

    N x (output_dim g^2) x H x W with regions R x 5 (image, x1, y1, x2, y2) gives R x output_dim x g x g. Corners are rounded, halves away from zero,
    then multiplied by spatial_scale. An empty bin gives 0. A region whose image does not exist gives NaN. Regions get no gradient.
    """

    origin = "R-FCN, Intel Caffe"
    bottoms = 2

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, rois) = self.own(), bottoms
        self.positive(p, {"output_dim": "the channels of the top", "group_size": "the rows and columns of bins of a region"})
        check_regions(self, x, rois)
        channels = p.output_dim * p.group_size**2
        fact = f"bottom 0 has {x[1]} channels, output_dim {p.output_dim} and group_size {p.group_size} need {channels}"
        self.check(x[1] == channels, fact, f"set num_output of the layer of bottom 0 to {channels}, or correct output_dim and group_size")
        self.pool = PsRoiPooling(p.group_size, p.spatial_scale)
        return [(rois[0], p.output_dim, p.group_size, p.group_size)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, y = bottoms[0].data, tops[0].data
        self.bins = (rec.saved if rec.train else rec.scratch)("bins", (y.shape[0], self.pool.row), "int32")
        self.pool.locate(rec, bottoms[1].data, x, self.bins)
        self.pool.forward(rec, x, self.bins, y)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        psroi_pooled(graph, self.own().group_size, self.pool.scale, bottoms[0], bottoms[1], tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        if not without_gradient(rec, bottoms, propagate):
            assert tops[0].diff is not None and bottoms[0].diff is not None
            self.pool.backward(rec, tops[0].diff, self.bins, bottoms[0].diff)
