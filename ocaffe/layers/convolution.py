"""Convolution over any number of axes, with groups, strides, padding and dilation."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import Axes, ConvGeometry
from ocaffe.kernels.expression.expression import Relu, ReluBackward, pointwise
from ocaffe.kernels.quantization import integer
from ocaffe.kernels.rearrange.rearrange import crop, uncrop
from ocaffe.layers.base import Arity, Layer, ParamBlob, WeightOutputs, once_or, register, times
from ocaffe.layers.window import FORKS, bounded, forked
from ocaffe.onnx.graph import OnnxGraph

DILATION = ("dilation", "dilation_h", "dilation_w")
HOLES = ("filter_stride", "filter_stride_h", "filter_stride_w")  # ParseNet's names for it


class Window:
    """Kernel, stride, pad and dilation of a ConvolutionParameter, one number per spatial axis.

    Each is given once, once per axis, or as _h and _w for two axes. Two of these forms together are an error, as in Caffe.
    """

    def __init__(self, layer: Layer, param: Any, axes: int) -> None:
        self.kernel = self._read(layer, param, axes, "kernel_size", "kernel", None)
        self.stride = self._read(layer, param, axes, "stride", "stride", 1)
        self.pad = self._read(layer, param, axes, "pad", "pad", 0)
        holes, names = ([field.name for field, _ in param.ListFields() if field.name in names] for names in (HOLES, DILATION))
        layer.check(not (holes and names), f"{' and '.join(holes + names)} are given, two names for the same setting", f"remove {' and '.join(holes)}")
        word = "filter_stride" if holes else "dilation"
        self.dilation = self._read(layer, param, axes, word, word, 1)
        for field, values in (("kernel_size", self.kernel), ("stride", self.stride), ("dilation", self.dilation)):
            layer.check(all(values), f"{field} is {shape_text(values)}", f"set each {field} to 1 or more")

    @staticmethod
    def _read(layer: Layer, param: Any, axes: int, field: str, stem: str, default: int | None) -> Axes:
        held = {given.name: value for given, value in param.ListFields()}.get(field, [])
        values = [held] if isinstance(held, int) else list(held)
        pair = [f"{stem}_{side}" for side in "hw"]
        fork = forked(layer, param, axes, field, values) if field in FORKS else None
        given = [name for name in pair if param.HasField(name)]
        if fork is not None:
            layer.check(
                not given,
                f"{' and '.join(given)} and {'kernel_depth' if param.HasField('kernel_depth') else FORKS[field][2]} are given",
                f"remove {' and '.join(given)}",
            )
            return fork
        if given:
            layer.check(
                axes == 2,
                f"{given[0]} is given, but the layer has {axes} spatial axes",
                f"replace {' and '.join(given)} by {field}, {times(axes)}" if axes else f"remove {' and '.join(given)}",
            )
            layer.check(not values, f"{field} and {' and '.join(given)} are both given", f"remove {field}, or {' and '.join(given)}")
            layer.check(
                len(given) == 2 or default == 0,
                f"{given[0]} is given alone",
                f"add {pair[0] if given[0] == pair[1] else pair[1]}, or replace {given[0]} by {field}",
            )
            return tuple(getattr(param, name) for name in pair)
        fix = f"{layer.written(f'{field}: N')}, where N is the side of the window in pixels"
        layer.check(values or default is not None or not axes, f"{field} is missing", fix)
        if not values and default is not None:
            values = [default]
        layer.check(len(values) in (1, axes), f"{field} is given {times(len(values))} for {axes} spatial axes", f"give {field} {once_or(axes)}")
        return tuple(values * axes if len(values) == 1 else values)

    def extent(self) -> Axes:
        """The number of pixels that a window spans, per axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation))

    def outputs(self, layer: Layer, image: Shape) -> tuple[Axes, Axes]:
        """Return the number of windows per axis, and by how many pixels a single window reaches beyond the padded image, where it finds zeros.

        It may do so by less than a stride, because Caffe's division rounds towards 0. Raises the layer's error if it reaches farther.
        """
        rooms = [size + 2 * pad - span for size, pad, span in zip(image, self.pad, self.extent())]
        layer.check(
            all(room > -stride for room, stride in zip(rooms, self.stride)),
            f"the window spans {shape_text(self.extent())} pixels, more than the padded {shape_text(image)} image (pad {shape_text(self.pad)})",
            fitting(image, self.pad, self.extent()),
        )
        return tuple(max(room, 0) // stride + 1 for room, stride in zip(rooms, self.stride)), tuple(max(-room, 0) for room in rooms)


def fitting(image: Shape, pad: Axes, span: Axes) -> str:
    """Return the remedy for windows that span more than the padded image."""
    least = [max(n, e - 2 * b) for n, b, e in zip(image, pad, span)]
    most = max((-(-(e - n) // 2) for n, e in zip(image, span)), default=0)
    return f"give an image of at least {shape_text(least)} pixels, a smaller kernel_size, or pad: {most}"


def padded(values: Axes, fill: int) -> Axes:
    """Prepend `fill` up to three numbers, because the kernels have three axes."""
    return (fill,) * (3 - len(values)) + values


class Filters(Layer):
    """Base of Convolution and Deconvolution: every bottom has its own top, and all use the same filters.

    `geometry` is always that of a convolution. Deconvolution applies it backwards.
    """

    message = "convolution_param"
    bottoms: ClassVar[Arity] = (1, None)
    tops: ClassVar[Arity] = (1, None)
    inplace_top = False
    onnx_type: ClassVar[str] = "Conv"
    geometry: ConvGeometry

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        param, x = self.own(), bottoms[0]
        self.check_tops(bottoms)
        for other in bottoms[1:]:
            self.check(
                other == x,
                f"bottoms differ: {shape_text(x)} and {shape_text(other)}",
                f"give each of these bottoms its own {self.param.type} layer, with the same names in param",
            )
        axis = self.axis(param.axis, x)
        channels, spatial = x[axis], x[axis + 1 :]
        outputs, group = self.counts(channels)
        if outputs <= 0:
            self.positive(param, {"num_output": "the number of filters"})
        self.check(group > 0 and channels % group == 0, f"group {group} does not divide the {channels} input channels", common_groups(channels, outputs))
        self.check(outputs % group == 0, f"group {group} does not divide num_output {outputs}", common_groups(channels, outputs))
        self.slope = self.merged_relu()
        self.window = Window(self, param, len(spatial))
        out = self.outputs(spatial)
        self.geometry = self.walked(math.prod(x[:axis]), channels, outputs, group, padded(spatial, 1), padded(out, 1))
        self.samples, self.channel_axis = axis == 1, axis
        self.channels_out = outputs
        return [(*x[:axis], outputs, *out)] * len(bottoms)

    @property
    def by_sample(self) -> bool:
        return self.samples

    def counts(self, channels: int) -> tuple[int, int]:
        """Return num_output and group."""
        return self.own().num_output, self.own().group

    def outputs(self, spatial: Shape) -> Axes:
        """Return the sizes of the tops' spatial axes."""
        raise NotImplementedError

    def walked(self, batch: int, channels: int, outputs: int, group: int, size: Axes, out: Axes) -> ConvGeometry:
        """Return the geometry that maps `channels` of size `size` to `outputs` channels of size `out`."""
        raise NotImplementedError

    def steps(self, image: Axes) -> tuple[Axes, Axes, Axes, Axes]:
        """Return kernel, stride, pad and dilation with three axes each. `image` is the side of the windows."""
        w, pad = self.window, padded(self.window.pad, 0)
        return padded(w.kernel, 1), bounded(padded(w.stride, 1), image, pad), pad, padded(w.dilation, 1)

    def merged_relu(self) -> float | None:
        """Return the negative slope of the ReLU at the end of the layer, a feature of forks, or None if the prototxt does not request it."""
        param = self.own()
        names = param.FuseType
        self.check(
            param.fuse_type in (param.UNFUSED, param.FUSED_CONV_RELU),
            f"fuse_type: {names.Name(param.fuse_type)} (of the OpenCL fork) is not supported",
            "remove fuse_type and add the layers that it merges, Eltwise or ReLU, after this one",
        )
        if param.relu and param.fuse_type == param.FUSED_CONV_RELU:
            raise self.error("relu: true and fuse_type: FUSED_CONV_RELU are both given, but two forks use them for the same ReLU", "remove fuse_type, or relu")
        slope = param.negative_slope if param.relu else param.relu_param.negative_slope if param.fuse_type == param.FUSED_CONV_RELU else None
        self.check(
            slope is None or slope >= 0,
            f"the negative_slope of the merged ReLU is {slope}",
            "set negative_slope to 0 or more, or remove the merged ReLU and add a ReLU layer",
        )
        return slope

    def has_bias(self) -> bool:
        return bool(self.own().bias_term)

    def parameters(self) -> Sequence[ParamBlob]:
        param, g = self.own(), self.geometry
        weight = ParamBlob((g.num_output, g.group_channels, *self.window.kernel), param.weight_filler)
        return [weight, ParamBlob((self.channels_out,), param.bias_filler)] if self.has_bias() else [weight]

    def weight_outputs(self) -> WeightOutputs:
        g = self.geometry
        return WeightOutputs((g.num_output, g.group_channels * math.prod(self.window.kernel)), (0,))

    def flops(self) -> int:
        return self.geometry.flops * len(self.param.top)

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        bias = self.params[1].data if len(self.params) > 1 else None
        for bottom, top in zip(bottoms, tops):
            y = top.data if self.slope is None else Ref(f"{top.name}.linear", top.shape, Role.ACTIVATION)
            self.move(rec, self.batch(bottom.data), self.params[0].data, bias, self.batch(y))
            if self.slope is not None:
                relu = "y0 = x0 > 0 ? x0 : slope * x0"
                pointwise(rec, relu, reads=[y], writes=[top.data], scalars={"slope": self.slope}, means=Relu(self.slope))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        spatial = len(self.window.kernel)
        if not spatial:
            raise graph.refused("it has no spatial axes", f"use an InnerProduct layer with num_output: {self.channels_out}, which does the same")
        operands = [graph.parameter(parameter) for parameter in self.params]
        window = {
            "kernel_shape": self.window.kernel, "strides": self.window.stride, "pads": self.window.pad + self.onnx_ends(), "dilations": self.window.dilation,
            "group": self.geometry.group,
        }  # fmt: skip
        for bottom, top in zip(bottoms, tops):
            x = graph.values[bottom] if self.samples else graph.reshape(bottom, (-1, *bottom.shape[-spatial - 1 :]))
            last = self.samples and self.slope is None
            y = graph.op(self.onnx_type, x, *operands, to=top if last else None, **window)
            if self.slope is not None:
                relu = {"alpha": self.slope} if self.slope else {}
                y = graph.op("LeakyRelu" if self.slope else "Relu", y, to=top if self.samples else None, **relu)
            if not self.samples:
                graph.reshape(y, to=top)

    def onnx_ends(self) -> Axes:
        """Return the padding behind the image."""
        return self.window.pad

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        weight = self.params[0]
        bias = self.params[1] if len(self.params) > 1 else None
        for bottom, top, wanted in zip(bottoms, tops, propagate):
            x, dy = self.batch(bottom.data), self.batch(self.before_relu(rec, top))
            if weight.diff is not None:
                self.filter_gradient(rec, x, dy, weight.diff)
            if bias is not None and bias.diff is not None:
                convolution.backward_bias(rec, self.geometry, dy, bias.diff)
            if wanted:
                assert bottom.diff is not None
                self.move_back(rec, dy, weight.data, self.batch(bottom.diff))
            rec.enter(rec.layer, rec.phase)  # a new node: the gradients of the next bottom are added to those of this one

    def before_relu(self, rec: Recorder, top: Blob) -> Ref:
        """Return the gradient of the merged ReLU's input, or the top's diff without a ReLU. The top has the same sign as that input."""
        assert top.diff is not None
        if self.slope is None:
            return top.diff
        diff = rec.scratch("linear.diff", top.shape, role=Role.DIFF)
        text = "y0 = x1 > 0 ? x0 : slope * x0"
        pointwise(rec, text, reads=[top.diff, top.data], writes=[diff], scalars={"slope": self.slope}, means=ReluBackward(self.slope))
        return diff

    def move(self, rec: Recorder, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
        """Record the launches that compute y from x."""
        raise NotImplementedError

    def move_back(self, rec: Recorder, dy: Ref, w: Ref, dx: Ref) -> None:
        """Record the launches that compute dx from dy."""
        raise NotImplementedError

    def filter_gradient(self, rec: Recorder, x: Ref, dy: Ref, dw: Ref) -> None:
        """Record the launches that compute dw from x and dy."""
        raise NotImplementedError

    def batch(self, ref: Ref) -> Ref:
        """Return the Ref with its leading axes merged into one batch axis."""
        g = self.geometry
        return ref if self.samples else ref.view((g.batch, *ref.shape[self.channel_axis :]))


@register("Convolution")
class Convolution(Filters):
    """Convolution over any number of spatial axes, with out = (in + 2 pad - extent) / stride + 1, rounded towards 0, and extent = dilation (kernel - 1) + 1.

    Every bottom gives one top, all with the same filters. Blobs: weight (num_output, channels / group, *kernel), bias (num_output).
    The axes before `axis` form the batch. With `relu: true` or `fuse_type: FUSED_CONV_RELU`, fields of forks, the layer ends with a ReLU.
    """

    def outputs(self, spatial: Shape) -> Axes:
        out, self.beyond = self.window.outputs(self, spatial)
        return out

    def walked(self, batch: int, channels: int, outputs: int, group: int, size: Axes, out: Axes) -> ConvGeometry:
        size = tuple(pixels + more for pixels, more in zip(size, padded(self.beyond, 0)))
        return ConvGeometry(batch, channels, outputs, group, size, out, *self.steps(size))

    def image(self, rec: Recorder, x: Ref) -> Ref:
        """Return the bottom, with zeros behind it where a window reaches beyond the padded image."""
        if not any(self.beyond):
            return x
        larger = self.larger(rec, x)
        uncrop(rec, x, larger, [0] * len(x.shape))
        return larger

    def larger(self, rec: Recorder, x: Ref) -> Ref:
        return rec.scratch("larger", (*x.shape[:2], *(size + more for size, more in zip(x.shape[2:], self.beyond))))

    def onnx_ends(self) -> Axes:
        return tuple(pad + more for pad, more in zip(self.window.pad, self.beyond))

    def move(self, rec: Recorder, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
        settings = self.integers()
        if settings is None:
            convolution.forward(rec, self.geometry, self.image(rec, x), w, bias, y)
        else:
            integer.convolution(rec, self.geometry, self.image(rec, x), w, self.weight_scales, bias, y, settings)

    def move_back(self, rec: Recorder, dy: Ref, w: Ref, dx: Ref) -> None:
        if not any(self.beyond):
            convolution.backward_data(rec, self.geometry, dy, w, dx)
            return
        larger = self.larger(rec, dx)
        convolution.backward_data(rec, self.geometry, dy, w, larger)
        crop(rec, larger, dx, [0] * len(dx.shape))

    def filter_gradient(self, rec: Recorder, x: Ref, dy: Ref, dw: Ref) -> None:
        convolution.backward_filter(rec, self.geometry, self.image(rec, x), dy, dw)


def common_groups(channels: int, outputs: int) -> str:
    """Return the remedy for a group that does not divide both numbers of channels."""
    both = math.gcd(channels, outputs)
    return f"set group to {both}, which divides {channels} and {outputs}, or change num_output"
