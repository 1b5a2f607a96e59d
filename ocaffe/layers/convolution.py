"""Convolution over up to three axes, with groups, strides, padding and dilation."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ocaffe.errors import shape_text
from ocaffe.graph.ir import Blob, Ref, Shape
from ocaffe.graph.recorder import Recorder
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.ops import convolution
from ocaffe.ops.convolution import ConvGeometry, Triple


class Window:
    """Kernel, stride, pad and dilation of a ConvolutionParameter, one number per spatial axis.

    Each is given once, once per axis, or as _h and _w for two axes; never in two ways, which Caffe refuses too.
    """

    def __init__(self, layer: Layer, param: Any, axes: int) -> None:
        self.kernel = self._read(layer, param, axes, "kernel_size", "kernel", None)
        self.stride = self._read(layer, param, axes, "stride", "stride", 1)
        self.pad = self._read(layer, param, axes, "pad", "pad", 0)
        self.dilation = self._read(layer, param, axes, "dilation", "", 1)
        layer.check(all(self.kernel), f"kernel_size is {shape_text(self.kernel)}", "kernel_size must be positive")
        layer.check(all(self.stride), f"stride is {shape_text(self.stride)}", "stride must be positive")
        layer.check(all(self.dilation), f"dilation is {shape_text(self.dilation)}", "dilation must be positive")

    @staticmethod
    def _read(layer: Layer, param: Any, axes: int, field: str, stem: str, default: int | None) -> tuple[int, ...]:
        values = list(getattr(param, field))
        pair = [f"{stem}_{side}" for side in "hw"] if stem else []
        given = [name for name in pair if param.HasField(name)]
        if given:
            layer.check(axes == 2, f"{given[0]} is given, but the layer has {axes} spatial axes", f"give {field} once per axis")
            layer.check(not values, f"{field} and {' and '.join(given)} are both given", "give one of the two forms")
            layer.check(len(given) == 2 or default == 0, f"{given[0]} is given alone", f"give {pair[0]} and {pair[1]}")
            return tuple(getattr(param, name) for name in pair)
        layer.check(values or default is not None or not axes, f"{field} is missing", f"give {field} once, or once for each of the {axes} spatial axes")
        if not values and default is not None:
            values = [default]
        layer.check(len(values) in (1, axes), f"{field} is given {len(values)} times for {axes} spatial axes", f"give {field} once, or {axes} times")
        return tuple(values * axes if len(values) == 1 else values)

    def extent(self) -> tuple[int, ...]:
        """Pixels that a window spans."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation))


def triple(values: Sequence[int], fill: int) -> Triple:
    """Up to three numbers, padded in front."""
    padded = (*(fill,) * (3 - len(values)), *values)
    return padded[0], padded[1], padded[2]


@register("Convolution")
class Convolution(Layer):
    """Caffe's Convolution: out = floor((in + 2 pad - extent) / stride) + 1. Every bottom gives one top, all with the same filters.

    Blobs: weight (num_output, channels / group, *kernel), bias (num_output). Axes before `axis` are one batch.
    """

    bottoms, tops = (1, None), (1, None)
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        param, x = self.own(), bottoms[0]
        self.check(len(self.param.top) == len(bottoms), f"{len(bottoms)} bottoms and {len(self.param.top)} tops", "give one top per bottom")
        for other in bottoms[1:]:
            self.check(other == x, f"bottoms differ: {shape_text(x)} and {shape_text(other)}", "all bottoms of a Convolution need one shape")
        axis = self.axis(param.axis, x)
        spatial = x[axis + 1 :]
        self.check(len(spatial) <= 3, f"bottom {shape_text(x)} has {len(spatial)} spatial axes behind axis {axis}; up to 3 are supported")
        self.check(param.num_output > 0, "num_output is missing or 0", "give num_output, the number of filters")
        channels, group = x[axis], param.group
        self.check(group > 0 and channels % group == 0, f"group {group} does not divide the {channels} input channels")
        self.check(param.num_output % group == 0, f"group {group} does not divide num_output {param.num_output}")
        self.window = window = Window(self, param, len(spatial))
        extent = window.extent()
        for size, pad, span in zip(spatial, window.pad, extent):
            self.check(
                size + 2 * pad >= span,
                f"the window spans {shape_text(extent)} pixels, more than the padded {shape_text(spatial)} image (pad {shape_text(window.pad)})",
                "use a larger image, a smaller kernel or more padding",
            )
        out = tuple((n + 2 * p - e) // s + 1 for n, p, e, s in zip(spatial, window.pad, extent, window.stride))
        self.geometry = ConvGeometry(
            math.prod(x[:axis]), channels, param.num_output, group, triple(spatial, 1), triple(out, 1),
            triple(window.kernel, 1), triple(window.stride, 1), triple(window.pad, 0), triple(window.dilation, 1),
        )  # fmt: skip
        self.samples = axis == 1
        return [(*x[:axis], param.num_output, *out)] * len(bottoms)

    def parameters(self) -> Sequence[ParamBlob]:
        param, g = self.own(), self.geometry
        weight = ParamBlob((g.num_output, g.group_channels, *self.window.kernel), param.weight_filler)
        return [weight, ParamBlob((g.num_output,), param.bias_filler)] if param.bias_term else [weight]

    def flops(self) -> int:
        g = self.geometry
        return 2 * g.batch * g.num_output * g.positions * g.depth * len(self.param.top)

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        bias = self.params[1].data if len(self.params) > 1 else None
        for bottom, top in zip(bottoms, tops):
            convolution.forward(rec, self.geometry, self._batch(bottom.data), self.params[0].data, bias, self._batch(top.data))

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        weight = self.params[0]
        bias = self.params[1] if len(self.params) > 1 else None
        for bottom, top, wanted in zip(bottoms, tops, propagate):
            assert top.diff is not None
            dy = self._batch(top.diff)
            if weight.diff is not None:
                convolution.backward_filter(rec, self.geometry, self._batch(bottom.data), dy, weight.diff)
            if bias is not None and bias.diff is not None:
                convolution.backward_bias(rec, self.geometry, dy, bias.diff)
            if wanted:
                assert bottom.diff is not None
                convolution.backward_data(rec, self.geometry, dy, weight.data, self._batch(bottom.diff))
            rec.enter(rec.layer, rec.phase)  # the next bottom adds to the gradients of this one

    def _batch(self, ref: Ref) -> Ref:
        """The Ref with its leading axes as one batch axis."""
        g = self.geometry
        return ref if self.samples else ref.view((g.batch, ref.count // g.batch))
