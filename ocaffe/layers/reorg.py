"""Reorg: darknet's rearrangement of pixels into channels."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.rearrange import inverse
from ocaffe.layers.base import register, stated
from ocaffe.layers.permute import Permuted


@register("Reorg")
class Reorg(Permuted):
    """Darknet's rearrangement of N x C x H x W into N x (C stride^2) x (H / stride) x (W / stride), or the inverse with `reverse`.

    It is not a plain space-to-depth. The bottom's values are viewed as C / stride^2 channels of (H stride) x (W stride) pixels, that is as
    stride^2 phases of H x W pixels. The top holds them phase by phase. `reverse` inverts this.
    """

    origin = "YOLOv2, Intel Caffe"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        s = p.stride
        self.check(
            s > 0,
            stated(p, "stride"),
            "set stride to 1 or more (2 in YOLOv2)"
            if p.HasField("stride")
            else f"{self.written('stride: N')}, where N is the factor of the sizes (2 in YOLOv2)",
        )
        self.check_axes(x, "N x C x H x W")
        n, c, h, w = x
        self.check(c % (s * s) == 0, f"stride {s} squared, {s * s}, does not divide the {c} channels of bottom {shape_text(x)}",
                   f"set num_output of the layer before to a multiple of {s * s}, or change stride")  # fmt: skip
        fits = h % s == 0 and w % s == 0
        self.check(
            p.reverse or fits,
            f"stride {s} does not divide the {h} x {w} pixels of bottom {shape_text(x)}",
            f"give an image whose height and width {s} divides",
        )
        # The larger image's axes: channel, row, phase of the row, column, phase of the column.
        image, phases_first = (n, c // (s * s), h, s, w, s), (0, 3, 5, 1, 2, 4)
        if not p.reverse:
            return self.plan(x, image, phases_first, (n, c * s * s, h // s, w // s))
        phases = tuple(image[axis] for axis in phases_first)
        return self.plan(x, phases, inverse(phases_first), (n, c // (s * s), h * s, w * s))
