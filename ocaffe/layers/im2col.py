"""Im2col."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.convolution.im2col import Columns
from ocaffe.layers.base import Layer, register
from ocaffe.layers.convolution import Window
from ocaffe.layers.window import bounded
from ocaffe.onnx.graph import OnnxGraph


@register("Im2col")
class Im2col(Layer):
    """The unrolled windows of a convolution: N x C x *image becomes N x (C * taps) x *windows; pixels outside the image are 0.

    Kernel, stride, pad, dilation and axis are those of Convolution. The axes before `axis` form the batch.
    """

    message = "convolution_param"
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        axis = self.axis(p.axis, x)
        spatial = x[axis + 1 :]
        self.check(
            spatial,
            f"no axes follow axis {axis} of bottom {shape_text(x)}",
            f"set axis to the channels, for example axis: {max(0, len(x) - 3)}, or give a bottom with an image after them",
        )
        w = Window(self, p, len(spatial))
        out, _ = w.outputs(self, spatial)
        self.columns, self.batch_axes = Columns(spatial, out, w.kernel, bounded(w.stride, spatial, w.pad), w.pad, w.dilation), axis
        return [(*x[:axis], x[axis] * math.prod(w.kernel), *out)]

    def batch(self, ref: Ref) -> Ref:
        """Return the Ref with the axes before the channels merged."""
        samples = math.prod(ref.shape[: self.batch_axes])
        return ref if self.batch_axes == 1 else ref.view((samples, ref.count // samples))

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.columns.unroll(rec, self.batch(bottoms[0].data), self.batch(tops[0].data))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        c, shape = self.columns, bottoms[0].shape
        channels, taps = shape[self.batch_axes], math.prod(c.kernel)
        x = graph.values[bottoms[0]] if self.batch_axes == 1 else graph.reshape(bottoms[0], (-1, *shape[self.batch_axes :]))
        # One filter for each tap of each channel: 1 at the tap, 0 elsewhere.
        filters = np.tile(np.eye(taps, dtype=np.float32), (channels, 1)).reshape(channels * taps, 1, *c.kernel)
        window = {"kernel_shape": c.kernel, "strides": c.stride, "pads": c.pad * 2, "dilations": c.dilation, "group": channels}
        y = graph.op("Conv", x, filters, to=tops[0] if self.batch_axes == 1 else None, **window)
        if self.batch_axes != 1:
            graph.reshape(y, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        self.columns.fold(rec, self.batch(tops[0].diff), self.batch(bottoms[0].diff))
