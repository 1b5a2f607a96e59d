"""DeformableConvolution: a convolution whose taps are moved by offsets that the net computes."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.kernels.rearrange.rearrange import permute
from ocaffe.kernels.resampling.grid_sample import Sampler, inside
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.layers.convolution import Window, fitting

UNIT = (1, 1, 1)
SWAP = (0, 2, 1, 3)  # images x taps x 2 x pixels to images x 2 x taps x pixels, and back


@register("DeformableConvolution")
class DeformableConvolution(Layer):
    """Convolution of N x C x H x W; bottom 1 (N x 2 K G x h x w) moves each of the K taps of an output pixel by rows and columns.

    The channels are divided into G = deformable_group groups (default 4) with an offset each; channel 2 t of a group has the rows of tap t, 2 t + 1 the
    columns. Values between pixels are interpolated; a place outside the image gives 0, and its last row and column reach to H and W. The values of all taps
    are kept for backward. Blobs are those of Convolution. Sources: msracver/Deformable-ConvNets; unsky/Deformable-ConvNets-caffe,
    caffe/src/caffe/util/deformable_im2col.cu.
    """

    origin = "Deformable ConvNets"
    message = "deformable_convolution_param"
    bottoms = 2
    by_sample = True
    inplace_top = False
    sampler = Sampler(pixels=True, planar=True, border=True, rows_first=True)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, offsets) = self.own(), bottoms
        self.check_axes(x, "N x C x H x W", values=True)
        self.groups = p.deformable_group if p.HasField("deformable_group") else 4
        self.positive(p, {"num_output": "the number of filters"})
        for name, count, of in (("group", p.group, x[1]), ("group", p.group, p.num_output), ("deformable_group", self.groups, x[1])):
            self.check(count > 0 and of % count == 0, f"{name} {count} does not divide {of} channels", f"set {name} to a number that divides {of}")
        self.window = window = Window(self, p, 2)
        out = tuple((n + 2 * b - e) // s + 1 for n, b, e, s in zip(x[2:], window.pad, window.extent(), window.stride))
        self.check(min(out) > 0, f"the window spans {shape_text(window.extent())} pixels of the {shape_text(x[2:])} image (pad {shape_text(window.pad)})",
                   fitting(x[2:], window.pad, window.extent()))  # fmt: skip
        self.taps, self.pixels = window.kernel[0] * window.kernel[1], out[0] * out[1]
        wanted = (x[0], 2 * self.taps * self.groups, *out)
        fact = f"bottom 1 is {shape_text(offsets)}, bottom 0 is {shape_text(x)}, and deformable_group is {self.groups}"
        self.check(
            offsets == wanted,
            fact,
            f"give bottom 1 the shape {shape_text(wanted)}: num_output: {wanted[1]}, and stride and pad as here, in the Convolution before it",
        )
        self.output, line = out, (1, 1, self.pixels)
        self.geometry = ConvGeometry(x[0], x[1] * self.taps, p.num_output, p.group, line, line, UNIT, UNIT, (0, 0, 0), UNIT)
        self.image = (x[0] * self.groups, x[1] // self.groups, *x[2:])
        self.split = (x[0] * self.groups, self.taps, 2, self.pixels)
        return [(x[0], p.num_output, *out)]

    def parameters(self) -> Sequence[ParamBlob]:
        p = self.own()
        weight = ParamBlob((p.num_output, self.geometry.channels // self.taps // p.group, *self.window.kernel), p.weight_filler)
        return [weight, ParamBlob((p.num_output,), p.bias_filler)] if p.bias_term else [weight]

    def flops(self) -> int:
        return self.geometry.flops

    def _places(self, rec: Recorder, offsets: Ref) -> Ref:
        """Record the launches that compute the places of all taps: images x 2 x (taps x pixels), rows first."""
        w = self.window
        i, j, h, v = np.indices((*w.kernel, *self.output), np.float32)
        own = np.stack([h * w.stride[0] - w.pad[0] + i * w.dilation[0], v * w.stride[1] - w.pad[1] + j * w.dilation[1]])
        moved, places = (rec.scratch(name, (self.image[0], 2, self.taps, self.pixels)) for name in ("moved", "places"))
        permute(rec, offsets, moved, self.split, SWAP)
        base: Read = (rec.constant("base", own.reshape(2, self.taps, self.pixels)), 1)
        pointwise(rec, "y0 = x0 + x1", reads=[moved, base], writes=[places])
        return places

    def _columns(self) -> Shape:
        return (self.image[0], self.image[1], self.taps, self.pixels)

    def _line(self, ref: Ref, channels: int) -> Ref:
        return ref.view((self.geometry.batch, channels, self.pixels))

    def _filters(self, ref: Ref) -> Ref:
        return ref.view((ref.shape[0], ref.dense_stride, 1))

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        places = self._places(rec, bottoms[1].data)
        sampled = rec.scratch("sampled", self._columns())
        self.columns = (rec.saved if rec.train else rec.scratch)("columns", self._columns())
        self.sampler.forward(rec, bottoms[0].data.view(self.image), places, sampled)
        inside(rec, sampled, places, (self.image[2], self.image[3]), "0", self.columns, rows_first=True)
        bias = self.params[1].data if len(self.params) > 1 else None
        g = self.geometry
        convolution.forward(rec, g, self._line(self.columns, g.channels), self._filters(self.params[0].data), bias, self._line(tops[0].data, g.num_output))

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        g, weight = self.geometry, self.params[0]
        dy = self._line(tops[0].diff, g.num_output)
        if weight.diff is not None:
            convolution.backward_filter(rec, g, self._line(self.columns, g.channels), dy, self._filters(weight.diff))
        if len(self.params) > 1 and self.params[1].diff is not None:
            convolution.backward_bias(rec, g, dy, self.params[1].diff)
        if not any(propagate):
            return
        places = self._places(rec, bottoms[1].data)
        spread, masked = (rec.scratch(name, self._columns()) for name in ("spread", "masked"))
        convolution.backward_data(rec, g, dy, self._filters(weight.data), self._line(spread, g.channels))
        inside(rec, spread, places, (self.image[2], self.image[3]), "0", masked, rows_first=True)
        if propagate[0]:
            self.sampler.backward_image(rec, masked, places, rec.diff_of(bottoms[0]).view(self.image))
        if propagate[1]:
            moved = rec.scratch("moved.diff", places.shape)
            self.sampler.backward_grid(rec, masked, bottoms[0].data.view(self.image), places, moved)
            permute(rec, moved, rec.diff_of(bottoms[1]), moved.shape, SWAP)
