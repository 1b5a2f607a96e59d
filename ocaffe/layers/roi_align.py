"""ROIAlign: the means of interpolated values in the bins of regions of interest."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.kernel import JOIN, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, LayerClass, register
from ocaffe.layers.roi_pooling import check_regions, without_gradient
from ocaffe.layers.roi_warping import GridAlign
from ocaffe.onnx.graph import OnnxGraph

FORWARD = Kernel("roi_align.forward", read("x"), read("roi"), write("y"), can=JOIN)
BACKWARD = Kernel("roi_align.backward", read("dy"), read("roi"), write("dx"), can=JOIN)

CPU_PIECE, GPU_GROUP = 64, 64  # elements per CPU work-item, work-items of a GPU work-group
MODES_SINCE = 16  # since this opset RoiAlign says where the centers of pixels are; before, it is "output_half_pixel"


@register("ROIAlign")
class ROIAlign(Layer):
    """The mean of interpolated values in each of pooled_h x pooled_w bins of each region: R x C x pooled_h x pooled_w.

    Bottoms: N x C x H x W, and regions R x 5 (image, x1, y1, x2, y2), which get no gradient. Corners are multiplied by spatial_scale. A bin has
    sampling_ratio^2 values, by default about one per pixel. Values more than a pixel outside the image are 0. With half_pixel, corners are shifted by
    half a pixel, as `aligned` in torchvision; without it, a region has at least one pixel. A region whose image does not exist gives NaN. The fields are
    those of the caffe.proto of Huawei's HiSilicon and Ascend tools; roi_end_mode is only 0 here, because its meaning is not published.
    """

    origin = "Huawei's HiSilicon and Ascend caffe.proto"
    bottoms = 2

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        return GridAlign if param.HasField("roi_pooling_param") else cls

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, rois) = self.own(), bottoms
        self.positive(p, {"pooled_h": "the rows of bins (7 in Mask R-CNN)", "pooled_w": "the columns of bins (7 in Mask R-CNN)"})
        self.check(p.roi_end_mode == 0, f"roi_end_mode is {p.roi_end_mode}, whose meaning is not published", "remove roi_end_mode, or write roi_end_mode: 0")
        check_regions(self, x, rois)
        return [(rois[0], x[1], p.pooled_h, p.pooled_w)]

    def _settings(self) -> list[object]:
        p = self.own()
        return [p.pooled_h, p.pooled_w, np.float32(p.spatial_scale), max(0, p.sampling_ratio), p.half_pixel]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, y = bottoms[0].data, tops[0].data
        count, piece = y.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
        args = [count, piece, x.shape[0], *x.shape[2:], *self._settings()]
        local = (1, 1) if rec.target.is_cpu else (GPU_GROUP, 1)
        rec.launch(FORWARD(x=x, roi=bottoms[1].data, y=y), args=args, size=(-(-count // piece), y.shape[0]), local=local)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        if without_gradient(rec, bottoms, propagate):
            return
        dy, dx = tops[0].diff, bottoms[0].diff
        assert dy is not None and dx is not None
        images, channels, height, width = dx.shape
        args = [dy.shape[0], height, width, *self._settings(), rec.accumulates(dx)]
        rec.launch(BACKWARD(dy=dy, roi=bottoms[1].data, dx=dx), args=args, size=(channels, images), local=(1, 1))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        p = self.own()
        rois = graph.values[bottoms[1]] if len(bottoms[1].shape) == 2 else graph.reshape(bottoms[1], (-1, 5))
        image, corners = graph.ops("Split", rois, [1, 4], to=[None, None], axis=1)
        images = graph.cast(graph.reshape(image, (-1,)), np.int64)
        if graph.opset < MODES_SINCE and p.half_pixel:
            raise graph.refused(f"half_pixel needs opset {MODES_SINCE}, this is opset {graph.opset}", f"write --opset={MODES_SINCE}")
        mode = {"coordinate_transformation_mode": "half_pixel" if p.half_pixel else "output_half_pixel"} if graph.opset >= MODES_SINCE else {}
        graph.op("RoiAlign", bottoms[0], corners, images, to=tops[0], output_height=p.pooled_h, output_width=p.pooled_w,
                 sampling_ratio=max(0, p.sampling_ratio), spatial_scale=p.spatial_scale, mode="avg", **mode)  # fmt: skip
