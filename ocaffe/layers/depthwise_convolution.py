"""The depthwise convolutions of forks: Convolution under other names. `group` and the channels select the kernels, not the layer type."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import register
from ocaffe.layers.convolution import Convolution


@register("DepthwiseConvolution")
class DepthwiseConvolution(Convolution):
    """Convolution under another name; it is depthwise if `group` is the number of channels."""

    origin = "yonghenglh6/DepthwiseConvolution"


@register("ConvolutionDepthwise")
class ConvolutionDepthwise(Convolution):
    """Convolution of N x C x H x W with one filter per channel; num_output and group are ignored, both are C.

    Blobs: weight (C, 1, kernel_h, kernel_w), bias (C).
    """

    origin = "BVLC Caffe PR 5665, MobileNet forks"
    bottoms, tops = 1, 1

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x = bottoms[0]
        self.check_axes(x, "N x C x H x W")
        self.check(
            self.axis(self.own().axis, x) == 1,
            f"axis is {self.own().axis}, and the channels must be axis 1",
            "remove axis, or use the type Convolution with group",
        )
        return super().infer(*bottoms)

    def counts(self, channels: int) -> tuple[int, int]:
        return channels, channels
