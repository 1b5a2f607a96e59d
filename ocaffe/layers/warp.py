"""FlowWarp and Warp: images that a flow moves. Grid: the places of pixels."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.kernels.resampling.grid_sample import Sampler, inside
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.onnx.sampling import pixel_sample


def pixels(height: int, width: int) -> np.ndarray:
    """Return the columns and the rows of all pixels: 2 x height x width."""
    rows, columns = np.indices((height, width), np.float32)
    return np.stack([columns, rows])


class Sampled(Layer):
    """Base: bottom 0 is N x C x H x W, and bottom 1 has places or a flow in pixels, N x 2 x H x W: columns and rows."""

    bottoms = 2
    by_sample = True
    inplace_top = False
    sampler: ClassVar[Sampler] = Sampler(pixels=True, planar=True)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, places = bottoms
        self.check_axes(x, "N x C x H x W", values=True)
        wanted = (x[0], 2, *x[2:])
        self.check(
            places == wanted,
            f"bottom 1 is {shape_text(places)}, bottom 0 is {shape_text(x)}",
            f"give bottom 1 the shape {shape_text(wanted)}: the shift of each pixel in columns and rows",
        )
        return [x]

    def onnx_sampled(self, graph: OnnxGraph, image: Blob, places: str, to: Blob | None) -> str:
        """Add the nodes that sample an image at `places` (N x 2 x H x W, in pixels)."""
        size = graph.fixed(image, 2), graph.fixed(image, 3)
        grid = graph.op("Transpose", places, perm=[0, 2, 3, 1])
        return pixel_sample(graph, graph.values[image], grid, size, "border" if self.sampler.border else "zeros", to)


@register("Warp")
class Warp(Sampled):
    """The values of bottom 0 (N x C x H x W) at the places in bottom 1 (N x 2 x H x W: columns and rows in pixels), interpolated between four pixels.

    Pixels outside the image are 0. Both bottoms get gradients. Grid and Eltwise make places from a flow.
    Source: twhui/LiteFlowNet, src/caffe/layers/warp_layer.cu.
    """

    origin = "LiteFlowNet"
    message = ""

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.sampler.forward(rec, bottoms[0].data, bottoms[1].data, tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.onnx_sampled(graph, bottoms[0], graph.values[bottoms[1]], tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy = tops[0].diff
        assert dy is not None
        if propagate[0]:
            self.sampler.backward_image(rec, dy, bottoms[1].data, rec.diff_of(bottoms[0]))
        if propagate[1]:
            self.sampler.backward_grid(rec, dy, bottoms[0].data, bottoms[1].data, rec.diff_of(bottoms[1]))


@register("FlowWarp")
class FlowWarp(Sampled):
    """The values of bottom 0 (N x C x H x W) at each pixel plus the flow in bottom 1 (N x 2 x H x W: columns and rows), interpolated between four pixels.

    Where the place is outside the image, the top is 0, or NaN with fill_value: NOT_A_NUMBER. The image has no pixel before 0, and its last row and column
    reach to H and W. Both bottoms get gradients. Source: lmb-freiburg/flownet2, src/caffe/layers/flow_warp_layer.cpp.
    """

    origin = "FlowNet 2"
    sampler = Sampler(pixels=True, planar=True, border=True)

    def _places(self, rec: Recorder, flow: Ref) -> Ref:
        """Record the launch that adds the pixels to the flow, and return the places."""
        places = rec.scratch("places", flow.shape)
        grid: Read = (rec.constant("pixels", pixels(*flow.shape[2:])), 1)
        pointwise(rec, "y0 = x0 + x1", reads=[flow, grid], writes=[places])
        return places

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, y = self.own(), tops[0].data
        places, sampled = self._places(rec, bottoms[1].data), rec.scratch("sampled", y.shape)
        self.sampler.forward(rec, bottoms[0].data, places, sampled)
        inside(rec, sampled, places, (y.shape[2], y.shape[3]), "NAN" if p.fill_value == p.NOT_A_NUMBER else "0", y)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        height, width = (graph.fixed(bottoms[0], axis) for axis in (2, 3))
        places = graph.op("Add", bottoms[1], pixels(height, width)[None])
        below = graph.op("Less", places, np.array([width, height], np.float32).reshape(1, 2, 1, 1))
        within = graph.cast(graph.op("And", graph.op("Not", graph.op("Less", places, 0.0)), below), np.float32)
        columns, rows = graph.ops("Split", within, [1, 1], to=[None, None], axis=1)
        both = graph.op("Greater", graph.op("Mul", columns, rows), 0.5)
        p = self.own()
        outside = np.nan if p.fill_value == p.NOT_A_NUMBER else 0.0
        graph.op("Where", both, self.onnx_sampled(graph, bottoms[0], places, None), outside, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy = tops[0].diff
        assert dy is not None
        places, masked = self._places(rec, bottoms[1].data), rec.scratch("masked", dy.shape)
        inside(rec, dy, places, (dy.shape[2], dy.shape[3]), "0", masked)
        if propagate[0]:
            self.sampler.backward_image(rec, masked, places, rec.diff_of(bottoms[0]))
        if propagate[1]:
            self.sampler.backward_grid(rec, masked, bottoms[0].data, places, rec.diff_of(bottoms[1]))


@register("Grid")
class Grid(Layer):
    """The column and the row of each pixel of an N x C x H x W bottom: N x 2 x H x W. Only the size of the bottom is used; its gradient is 0.

    Source: twhui/LiteFlowNet, src/caffe/layers/grid_layer.cpp.
    """

    origin = "LiteFlowNet"
    message = ""
    by_sample = True
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x = bottoms[0]
        self.check_axes(x, "N x C x H x W")
        return [(x[0], 2, *x[2:])]

    def force_backward(self, bottom: int) -> bool:
        return False

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        grid: Read = (rec.constant("pixels", pixels(*tops[0].shape[2:])), 1)
        pointwise(rec, "y0 = x0", reads=[grid], writes=[tops[0].data])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        height, width = (graph.fixed(tops[0], axis) for axis in (2, 3))
        graph.op("Expand", pixels(height, width)[None], graph.sizes(tops[0], 1, tops[0].shape[1:]), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        if propagate[0]:
            pointwise(rec, "y0 = 0", writes=[rec.diff_of(bottoms[0])])
