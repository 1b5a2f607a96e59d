"""ConvLSTM: an LSTM over images, whose products are convolutions."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, ParamBlob, register, times
from ocaffe.layers.convolution import Window, common_groups
from ocaffe.layers.lstm_unit import cell
from ocaffe.onnx.graph import OnnxGraph

GATES = "ifog"
STATES = ("h", "c")
SIGMOIDS = "; ".join(f"{gate} = 1 / (1 + exp(-in_{gate}))" for gate in "ifo")


def _keeping(window: Window) -> str:
    """Return the remedy for a convolution that changes the size of the image."""
    if any(span % 2 == 0 for span in window.extent()):
        return "write stride: 1, an odd kernel_size, and as pad half of it, rounded down"
    high, wide = ((span - 1) // 2 for span in window.extent())
    return f"write stride: 1 and {f'pad: {high}' if high == wide else f'pad_h: {high} pad_w: {wide}'}"


@register("ConvLSTM")
class ConvLSTM(Layer):
    """Long short-term memory over T x N x C x H x W: c = cont f c' + i g and h = o tanh(c); c' and h' are c and h of the previous step.

    i, f, o = sigmoid and g = tanh of W_x * x + W_h * (cont h') + b; i, f and o have also p c', with a factor p for each pixel. The products are convolutions
    that keep H x W. lstm_conv_param gives both, or twice, with the types "input" and "hidden". lstm_debug_param { axis_hadamard num_axes_hadamard } are the
    axes of p, disable_hadamard leaves p out, and ignore_x leaves x out.

    Bottoms: x, cont (T x N), and with recurrent_param { expose_hidden: true } the initial h and c, 1 x N x D x H x W. Tops: h of all steps,
    T x N x D x H x W, and with expose_hidden the final h and c, which pass gradients, as in the fork. Without it a run starts with the final states of the
    previous one. Blobs: W_x, W_h, b, p of i, f and o. Static inputs and `expose` are refused.
    Source: agethen/ConvLSTM-for-Caffe, src/caffe/layers/conv_lstm_layer.cpp.
    """

    origin = "agethen/ConvLSTM-for-Caffe"
    message = "recurrent_param"
    bottoms, tops = (2, 4), (1, 3)
    inplace_top = False
    carried: dict[str, Ref] | None = None

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        param, (x, cont) = self.param, bottoms[:2]
        given, debug = list(param.lstm_conv_param), param.lstm_debug_param
        self.check(
            1 <= len(given) <= 2,
            f"lstm_conv_param is given {times(len(given))}",
            'write lstm_conv_param once, or twice: with type: "input" and with type: "hidden"',
        )
        self.input = given[-1] if given[0].type == "hidden" else given[0]
        self.hidden = given[-1] if given[0].type == "input" else given[0]
        self.check(
            len(x) == 5,
            f"bottom 0 is {shape_text(x)}, ConvLSTM takes T x N x C x H x W",
            "add a Reshape layer that makes 5 axes: time steps, sequences, image",
        )
        self.check_filled(x)
        self.check(
            cont == x[:2],
            f"bottom 1 is {shape_text(cont)}, bottom 0 is {shape_text(x)}",
            f"give cont as bottom 1: {shape_text(x[:2])}, one number for each step of each sequence",
        )
        self.check(
            not debug.expose,
            f"lstm_debug_param has expose: '{', '.join(debug.expose)}'",
            "remove expose; expose_hidden: true gives the final states as tops",
        )
        self.units = self.hidden.num_output
        fact = f"num_output is {self.input.num_output} for the input and {self.units} for the hidden state"
        self.check(self.units > 0 and self.input.num_output == self.units, fact, "set num_output to the same number above 0 in both")
        self.exposed = bool(self.own().expose_hidden)
        count = 2 if self.exposed else 0
        told = f"{len(bottoms)} bottoms and {len(param.top)} tops are given, expose_hidden is {str(self.exposed).lower()}"
        self.check(
            len(bottoms) == 2 + count and len(param.top) == 1 + count,
            told,
            "give h and c before the first step as bottoms 2 and 3, and after the last as tops 1 and 2" if count else "give 2 bottoms, and 1 top",
        )
        self.steps, self.sequences, self.image = x[0], x[1], (self.units, *x[3:])
        state = (1, x[1], *self.image)
        for index, shape in enumerate(bottoms[2:], 2):
            self.check(
                shape == state,
                f"bottom {index} is {shape_text(shape)}, an initial state is {shape_text(state)}",
                f"give an initial state of {shape_text(state)} as bottom {index}",
            )
        self.width = math.prod(self.image)
        self.take_x = not debug.ignore_x
        first, axes = debug.axis_hadamard, debug.num_axes_hadamard
        self.peepholes: tuple[int, Shape] | None = None  # the first axis of N x D x H x W, and the shape of p
        if not debug.disable_hadamard:
            fits = 2 <= first < 5 and 1 <= axes <= 5 - first
            self.check(
                fits,
                f"axis_hadamard is {first}, num_axes_hadamard {axes}",
                "set axis_hadamard to 3 and num_axes_hadamard to 2 for a factor for each pixel, or to 2 and 3 for each channel and pixel",
            )
            self.peepholes = first - 1, state[first : first + axes]
        self.of_x = self._geometry(self.input, x[2], x[3:], self.steps * self.sequences)
        self.of_h = self._geometry(self.hidden, self.units, x[3:], self.sequences)
        return [(*x[:2], *self.image), *[state] * count]

    def _geometry(self, param: proto.ConvolutionParameter, channels: int, size: Shape, batch: int) -> ConvGeometry:
        window = Window(self, param, 2)
        out = tuple((n + 2 * b - e) // s + 1 for n, b, e, s in zip(size, window.pad, window.extent(), window.stride))
        self.check(out == size, f"a convolution makes {shape_text(out)} of {shape_text(size)} pixels, the size must stay", _keeping(window))
        outputs = 4 * self.units
        fits = param.group > 0 and channels % param.group == 0 and outputs % param.group == 0
        self.check(fits, f"group {param.group} does not divide {channels} and {outputs} channels", common_groups(channels, outputs))
        plane = (1, size[0], size[1])
        kernel, stride, pad, dilation = ((lead, *pair) for lead, pair in ((1, window.kernel), (1, window.stride), (0, window.pad), (1, window.dilation)))
        return ConvGeometry(batch, channels, outputs, param.group, plane, plane, kernel, stride, pad, dilation)  # type: ignore[arg-type]

    def parameters(self) -> Sequence[ParamBlob]:
        def filters(g: ConvGeometry, param: proto.ConvolutionParameter) -> ParamBlob:
            return ParamBlob((g.num_output, g.group_channels, *g.kernel[1:]), param.weight_filler)

        blobs = [filters(self.of_x, self.input)] if self.take_x else []
        blobs.append(filters(self.of_h, self.hidden))
        if self.hidden.bias_term:
            blobs.append(ParamBlob((4 * self.units,), self.hidden.bias_filler))
        if self.peepholes is not None:
            blobs += [ParamBlob(self.peepholes[1], proto.FillerParameter(value=1))] * 3
        return blobs

    def force_backward(self, bottom: int) -> bool:
        return bottom != 1

    def flops(self) -> int:
        return (self.of_x.flops if self.take_x else 0) + self.steps * self.of_h.flops

    # The parameters by their names.

    @property
    def _weights(self) -> int:
        """The index of W_h."""
        return int(self.take_x)

    def _peephole_reads(self) -> list[Read]:
        return [] if self.peepholes is None else [(param.data, self.peepholes[0]) for param in self.params[-3:]]

    def _gates(self, ref: Ref, t: int = 0) -> list[Ref]:
        """Return the inputs of the four gates in step t, each N x D x H x W."""
        start = t * self.sequences * 4 * self.width
        return [ref.view((self.sequences, *self.image), start + k * self.width, 4 * self.width) for k in range(4)]

    def _at(self, ref: Ref, t: int) -> Ref:
        """Return step t of a Ref of steps x N x D x H x W."""
        return ref.view((self.sequences, *self.image), t * self.sequences * self.width, self.width)

    def _cont(self, t: int) -> Read:
        return self.cont.view((self.sequences,), t * self.sequences), 0

    def _initial(self, bottoms: list[Blob], tops: list[Blob]) -> tuple[list[Ref], list[Ref]]:
        """Return the initial and the final states."""
        shape = (self.sequences, *self.image)
        if self.exposed:
            return [bottom.data.view(shape) for bottom in bottoms[2:]], [top.data.view(shape) for top in tops[1:]]
        if self.carried is None or self.carried["h"].shape != shape:
            self.carried = {name: Ref(f"{self.param.name}.{name}", shape, Role.STATE, value=0) for name in STATES}
        states = [self.carried[name] for name in STATES]
        return states, states

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        rows, (n, d, h, w) = self.steps * self.sequences, (self.sequences, *self.image)
        self.cont = bottoms[1].data
        initial, final = self._initial(bottoms, tops)
        self.inputs = rec.saved("inputs", (rows, 4 * d, h, w))  # of the gates; each step overwrites its part with the gates, and backward with gradients
        if self.take_x:
            convolution.forward(rec, self.of_x, bottoms[0].data.view(self.of_x.input_shape), self.params[0].data, None, self.inputs)
        else:
            pointwise(rec, "y0 = 0", writes=[self.inputs])
        self.before = rec.saved("before", (self.steps, n, d, h, w))  # cont h', the operand of W_h
        self.cells = rec.saved("cells", (self.steps + 1, n, d, h, w))
        reads: list[Read] = [initial[0], initial[1], self._cont(0)]
        pointwise(rec, "y0 = x0 * x2; y1 = x1", reads=reads, writes=[self._at(self.before, 0), self._at(self.cells, 0)], side_effect=True)
        bias = self.params[self._weights + 1].data if self.hidden.bias_term else None
        product, peeps = rec.scratch("product", (n, 4 * d, h, w)), self._peephole_reads()
        for t in range(self.steps):
            convolution.forward(rec, self.of_h, self._at(self.before, t), self.params[self._weights].data, bias, product)
            text = "; ".join(f"in_{gate} = m{k} + x{k}{f' + x{6 + k} * x4' if peeps and k < 3 else ''}" for k, gate in enumerate(GATES))
            text += f"; {SIGMOIDS}; g = tanh(in_g); c = x5 * f * x4 + i * g; h = o * tanh(c); m0 = i; m1 = f; m2 = o; m3 = g; y0 = c; y1 = h"
            reads = [*self._gates(product), self._at(self.cells, t), self._cont(t), *peeps]
            writes = [self._at(self.cells, t + 1), self._at(tops[0].data, t)]
            if t + 1 < self.steps:
                text += f"; y2 = h * x{len(reads)}"
                reads.append(self._cont(t + 1))
                writes.append(self._at(self.before, t + 1))
            else:
                text += "; y2 = h; y3 = c"
                writes += final
            pointwise(rec, text, reads=reads, writes=writes, modifies=self._gates(self.inputs, t), side_effect=True)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        (d, h, w), cont, outputs = self.image, bottoms[1], 4 * self.units
        hidden = graph.parameter(self.params[self._weights])
        bias = graph.parameter(self.params[self._weights + 1]) if self.hidden.bias_term else None
        peepholes = []
        if self.peepholes is not None:
            axis, shape = self.peepholes
            whole = (*[1] * axis, *shape, *[1] * (4 - axis - len(shape)))
            peepholes = [graph.constant(graph.array(param).reshape(whole)) for param in self.params[-3:]]

        def convolved(g: ConvGeometry, x: str, filters: str, bias: str | None) -> str:
            kernel, stride, dilation, pad = (list(axes[1:]) for axes in (g.kernel, g.stride, g.dilation, g.pad))
            return graph.op("Conv", x, filters, bias, group=g.group, kernel_shape=kernel, strides=stride, dilations=dilation, pads=pad * 2)

        keep, size = graph.op("Unsqueeze", cont, [2]), (outputs, h, w)
        if self.take_x:
            images = graph.reshape(bottoms[0], (-1, *bottoms[0].shape[2:]))
            inputs = graph.reshape(convolved(self.of_x, images, graph.parameter(self.params[0]), None), (*graph.shape(cont), 4 * self.width))
        else:
            inputs, size = graph.op("Mul", keep, 0.0), (1, 1, 1)
        if self.exposed:
            states = [graph.reshape(bottom, (-1, d, h, w)) for bottom in bottoms[2:]]
        else:  # an ONNX model keeps no state between runs
            states = [graph.constant(np.zeros((graph.fixed(cont, 1), d, h, w), np.float32))] * 2

        def step(before: str, cells: str, given: str, kept: str) -> tuple[list[str], str]:
            kept = graph.reshape(kept, (-1, 1, 1, 1))
            product = convolved(self.of_h, graph.op("Mul", before, kept), hidden, bias)
            product = graph.op("Add", product, graph.reshape(given, (-1, *size)))
            gates = list(graph.split(product, [None] * 4, 1, [d] * 4))
            for k, factor in enumerate(peepholes):
                gates[k] = graph.op("Add", gates[k], graph.op("Mul", cells, factor))
            after, value = cell(graph, gates, cells, kept, [None, None])
            return [value, after], value

        steps, sequences = (None if axis in graph.varying.get(cont, {}) else size for axis, size in enumerate(cont.shape))
        *final, collected = graph.loop(steps, sequences, states, [inputs, keep], step)
        graph.alias(tops[0], collected)
        for top, state in zip(tops[1:], final):
            graph.op("Unsqueeze", state, [0], to=top)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "the sequence indicators"})
        assert tops[0].diff is not None
        rows, shape = self.steps * self.sequences, (self.sequences, *self.image)
        dc, product = rec.scratch("dc", shape), rec.scratch("product.diff", shape, role=Role.DIFF)
        filters, peeps = self.params[self._weights], self._peephole_reads()
        line = (self.sequences, 4 * self.units, *self.image[1:])
        parts = [self.inputs.view(line, t * math.prod(line)) for t in range(self.steps)]
        last = [top.diff.view(shape) if top.diff is not None else None for top in tops[1:]]
        for t in reversed(range(self.steps)):
            reads: list[Read] = [self._at(tops[0].diff, t), self._at(self.cells, t + 1), self._at(self.cells, t), self._cont(t), *peeps]
            text = f"i = m0; f = m1; o = m2; g = m3; later = {'0' if t + 1 == self.steps else 'm4'}; dh = x0"
            if t + 1 < self.steps:
                convolution.backward_data(rec, self.of_h, parts[t + 1], filters.data, product)
                text += f" + x{len(reads)} * x{len(reads) + 1}"
                reads += [product, self._cont(t + 1)]
            else:
                for name, ref in zip(("dh", "later"), last):
                    if ref is not None:
                        text += f"; {name} = {name} + x{len(reads)}"
                        reads.append(ref)
            text += "; s = tanh(x1); d = later + dh * o * (1 - s * s); di = d * g * i * (1 - i); df = d * x2 * x3 * f * (1 - f); do = dh * s * o * (1 - o)"
            text += f"; before = d * f * x3{' + di * x4 + df * x5 + do * x6' if peeps else ''}; m0 = di; m1 = df; m2 = do; m3 = d * i * (1 - g * g)"
            gates = self._gates(self.inputs, t)
            if t + 1 == self.steps:
                pointwise(rec, f"{text}; y0 = before", reads=reads, writes=[dc], modifies=gates, side_effect=True)
            else:
                pointwise(rec, f"{text}; m4 = before", reads=reads, modifies=[*gates, dc], side_effect=True)
        self._parameters_backward(rec, bottoms[0], rows)
        if propagate[0]:
            dx = rec.diff_of(bottoms[0])
            if self.take_x:
                convolution.backward_data(rec, self.of_x, self.inputs, self.params[0].data, dx.view(self.of_x.input_shape))
            else:
                pointwise(rec, "y0 = 0", writes=[dx])
        if self.exposed and propagate[2]:
            convolution.backward_data(rec, self.of_h, parts[0], filters.data, product)
            pointwise(rec, "y0 = x0 * x1", reads=[product, self._cont(0)], writes=[rec.diff_of(bottoms[2]).view(shape)])
        if self.exposed and propagate[3]:
            pointwise(rec, "y0 = x0", reads=[dc], writes=[rec.diff_of(bottoms[3]).view(shape)])

    def _parameters_backward(self, rec: Recorder, x: Blob, rows: int) -> None:
        """Record the gradients of all parameters; `inputs` has those of the gates' inputs."""
        every, first = replace(self.of_h, batch=rows), self._weights
        if self.take_x and (diff := self.params[0].diff) is not None:
            convolution.backward_filter(rec, self.of_x, x.data.view(self.of_x.input_shape), self.inputs, diff)
        if (diff := self.params[first].diff) is not None:
            convolution.backward_filter(rec, every, self.before.view((rows, *self.image)), self.inputs, diff)
        if self.hidden.bias_term and (diff := self.params[first + 1].diff) is not None:
            convolution.backward_bias(rec, every, self.inputs, diff)
        if self.peepholes is None:
            return
        axis, shape = self.peepholes
        others = [k for k in range(4) if not axis <= k < axis + len(shape)]
        for k, param in enumerate(self.params[-3:]):
            if param.diff is not None:
                gate = self.inputs.view((rows, *self.image), k * self.width, 4 * self.width)
                reduce(rec, "v0 = x0 * x1", reads=[gate, self.cells.view((rows, *self.image))], writes=[param.diff], axes=others)
