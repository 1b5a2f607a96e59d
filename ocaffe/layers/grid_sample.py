"""GridSample: values of images at computed places."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.resampling.grid_sample import Sampler
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph

PARAMETER = proto.GridSampleParameter
SINCE = 16  # the first opset with GridSample
LINEAR_SINCE = 20  # since this opset the mode is "linear", before "bilinear"


@register("GridSample")
class GridSample(Layer):
    """The values of the images in bottom 0 (N x C x H x W) at the places in bottom 1 (N x h x w x 2): N x C x h x w.

    A place is (column, row); -1 and 1 are the centers of the border pixels with align_corners, else the outer edges. BILINEAR interpolates between four
    pixels. Outside the image the value is 0 (ZEROS) or that of the border (BORDER). Both bottoms get gradients, as in PyTorch.
    """

    origin = "ocaffe"
    bottoms = 2
    by_sample = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, grid = bottoms
        self.check_axes(x, "N x C x H x W")
        self.check(min(x[2:]) > 0, f"bottom 0 is {shape_text(x)}, an image without pixels", "give an image of at least 1 x 1 pixels")
        fits = len(grid) == 4 and grid[0] == x[0] and grid[3] == 2
        self.check(
            fits,
            f"bottom 1 is {shape_text(grid)}, bottom 0 is {shape_text(x)}",
            f"give bottom 1 as {x[0]} x H x W x 2: the column and row of each pixel of the top",
        )
        return [(x[0], x[1], *grid[1:3])]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.sampler.forward(rec, bottoms[0].data, bottoms[1].data, tops[0].data)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        x, grid = (bottom.data for bottom in bottoms)
        dy, (dx, dgrid) = tops[0].diff, (bottom.diff for bottom in bottoms)
        assert dy is not None
        if propagate[0]:
            assert dx is not None
            self.sampler.backward_image(rec, dy, grid, dx)
        if propagate[1]:
            assert dgrid is not None
            self.sampler.backward_grid(rec, dy, x, grid, dgrid)

    @property
    def sampler(self) -> Sampler:
        p = self.own()
        return Sampler(bool(p.align_corners), nearest=p.mode == PARAMETER.NEAREST, border=p.padding == PARAMETER.BORDER)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        p = self.own()
        if graph.opset < SINCE:
            raise graph.refused(f"ONNX has GridSample since opset {SINCE}, this is opset {graph.opset}", f"write --opset={SINCE}")
        mode = "nearest" if p.mode == PARAMETER.NEAREST else "linear" if graph.opset >= LINEAR_SINCE else "bilinear"
        padding = PARAMETER.Padding.Name(p.padding).lower()
        graph.op("GridSample", *bottoms, to=tops[0], mode=mode, padding_mode=padding, align_corners=int(p.align_corners))
