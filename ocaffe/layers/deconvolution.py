"""Deconvolution (transposed convolution) over any number of axes."""
from __future__ import annotations

import math

from ocaffe.errors import shape_text
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import Axes, ConvGeometry
from ocaffe.layers.base import WeightOutputs, register
from ocaffe.layers.convolution import Filters


@register("Deconvolution")
class Deconvolution(Filters):
    """Transposed convolution over any number of spatial axes, with out = stride (in - 1) + extent - 2 pad and extent = dilation (kernel - 1) + 1.

    Every bottom gives one top, all with the same filters. Blobs: weight (channels, num_output / group, *kernel), bias (num_output).
    The axes before `axis` form the batch. With `weight_filler { type: "bilinear" }` and group = channels = num_output it resizes images.
    """

    onnx_type = "ConvTranspose"

    def outputs(self, spatial: Shape) -> Axes:
        window = self.window
        out = tuple(s * (n - 1) + e - 2 * p for n, p, e, s in zip(spatial, window.pad, window.extent(), window.stride))
        self.check(
            all(n > 0 for n in out),
            f"pad {shape_text(window.pad)} leaves nothing of the {shape_text([n + 2 * p for n, p in zip(out, window.pad)])} image "
            f"that windows of {shape_text(window.extent())} with stride {shape_text(window.stride)} make of {shape_text(spatial)}",
            f"set pad to {max(0, min(((n + 2 * p - 1) // 2 for n, p in zip(out, window.pad)), default=0))} or less",
        )
        return out

    def walked(self, batch: int, channels: int, outputs: int, group: int, size: Axes, out: Axes) -> ConvGeometry:
        return ConvGeometry(batch, outputs, channels, group, out, size, *self.steps(out))

    def weight_outputs(self) -> WeightOutputs:
        g = self.geometry  # of a convolution: its outputs are the channels here
        return WeightOutputs((g.group, g.num_output // g.group, g.group_channels, math.prod(self.window.kernel)), (0, 2))

    def move(self, rec: Recorder, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
        self.check(self.integers() is None, "input_scale asks for integers, which Convolution and InnerProduct alone compute with", "remove input_scale")
        convolution.backward_data(rec, self.geometry, x, w, y, bias)

    def move_back(self, rec: Recorder, dy: Ref, w: Ref, dx: Ref) -> None:
        convolution.forward(rec, self.geometry, dy, w, None, dx)

    def filter_gradient(self, rec: Recorder, x: Ref, dy: Ref, dw: Ref) -> None:
        convolution.backward_filter(rec, self.geometry, dy, x, dw)
