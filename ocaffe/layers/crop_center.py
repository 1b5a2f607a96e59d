"""CropCenter: the middle of the bottom."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import register, times
from ocaffe.layers.crop import Cropped
from ocaffe.layers.permute import axes_list


@register("CropCenter")
class CropCenter(Cropped):
    """The middle of the bottom: `crop_size` has one number per axis, which is removed at both ends of the axis.

    Source: lltcggie/caffe, src/caffe/layers/crop_center_layer.cpp at 98f9aea. The upresnet10 models of waifu2x-caffe have the layer.
    """

    origin = "waifu2x (lltcggie/caffe)"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, sizes = bottoms[0], list(self.own().crop_size)
        self.check(
            len(sizes) == len(x),
            f"{len(sizes)} crop_size for the {len(x)} axes of bottom {shape_text(x)}",
            f"write crop_size {times(len(x))}, one for each axis; 0 cuts nothing",
        )
        fits = all(2 * size < n for size, n in zip(sizes, x))
        self.check(
            fits,
            f"crop_size {axes_list(sizes)} leaves nothing of bottom {shape_text(x)}",
            f"write crop_size below half of each axis: at most {axes_list([max(0, (n - 1) // 2) for n in x])}",
        )
        return self.plan(x, sizes, tuple(n - 2 * size for size, n in zip(sizes, x)))
