"""PassThrough: cells of pixels become channels."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import register
from ocaffe.layers.permute import Permuted


@register("PassThrough")
class PassThrough(Permuted):
    """Space to depth: N x C x H x W becomes N x (C h w) x (H / h) x (W / w) for cells of h x w pixels (block_height, block_width).

    Channel c of the pixel (i, j) of a cell becomes channel (i w + j) C + c. Source: winggan/caffe, src/caffe/layers/pass_through_layer.cpp at
    8c4cb4c and reorganize_layer.cpp at c881363. num_output may be left out; ports of YOLO for other runtimes give it.
    """

    origin = "winggan/caffe, YOLO ports"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        h, w = p.block_height, p.block_width
        self.positive(p, {"block_height": "the rows of a cell (2 in YOLOv2 and YOLOv5)", "block_width": "the columns of a cell (2 in YOLOv2 and YOLOv5)"})
        self.check_axes(x, "N x C x H x W")
        fits = x[2] % h == 0 and x[3] % w == 0
        self.check(
            fits,
            f"cells of {h} x {w} do not divide the {x[2]} x {x[3]} pixels of bottom {shape_text(x)}",
            f"give an image whose height {h} and whose width {w} divides",
        )
        channels = x[1] * h * w
        self.check(
            p.num_output in (0, channels),
            f"num_output is {p.num_output}, {h} x {w} cells of {x[1]} channels give {channels}",
            f"remove num_output, or write num_output: {channels}",
        )
        split = (*x[:2], x[2] // h, h, x[3] // w, w)
        return self.plan(x, split, (0, 3, 5, 1, 2, 4), (x[0], channels, x[2] // h, x[3] // w))
