"""Elementwise functions of one bottom. Each is a class with the function and its derivative as text.

`value` is y in terms of x. `derivative` is dy/dx in terms of x and y; statements may precede it. Backward keeps those of x and y alive that it names.
If it names only y, the layer can work in place. Other names in the texts are fields of the layer's parameter message, listed in `fields`.
"""
from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Bounded, pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


class Activation(Layer):
    """Base of the elementwise layers of one bottom."""

    value: str
    derivative: str
    fields: ClassVar[tuple[str, ...]] = ()
    bounds: tuple[float, float] | None = None  # (lower, upper), if the function only clamps x to them
    in_pieces: ClassVar[bool] = False  # the derivative uses y only to choose a piece of the function; x would select the same piece
    by_sample = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.scalars = {field: float(getattr(self.own(), field)) for field in self.fields}
        return [bottoms[0]]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        text = _assign("y0 = {}", self.value, {"x": "x0"})
        pointwise(rec, text, reads=[bottoms[0].data], writes=[tops[0].data], scalars=self.scalars, means=None if self.bounds is None else Bounded(*self.bounds))

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        kept = {name: blob.data for name, blob in (("x", bottoms[0]), ("y", tops[0])) if re.search(rf"\b{name}\b", self.derivative)}
        text = _assign("y0 = x0 * ({})", self.derivative, {name: f"x{1 + i}" for i, name in enumerate(kept)})
        pointwise(rec, text, reads=[tops[0].diff, *kept.values()], writes=[bottoms[0].diff], scalars=self.scalars)


def _assign(form: str, text: str, names: dict[str, str]) -> str:
    """Return statements and a last term as a text that assigns the term, with x and y renamed."""
    *statements, term = text.split(";")
    text = "; ".join([*(statement.strip() for statement in statements), form.format(term.strip())])
    return re.sub(r"\b[xy]\b", lambda match: names[match[0]], text)


@register("Sigmoid")
class Sigmoid(Activation):
    """y = 1 / (1 + e^-x)."""

    value = "1 / (1 + exp(-x))"
    derivative = "y * (1 - y)"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Sigmoid", bottoms[0], to=tops[0])


@register("TanH")
class TanH(Activation):
    """y = tanh x."""

    value = "tanh(x)"
    derivative = "1 - y * y"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Tanh", bottoms[0], to=tops[0])


@register("AbsVal")
class AbsVal(Activation):
    """y = |x|; the derivative at 0 is 0."""

    value = "fabs(x)"
    derivative = "sign(x)"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Abs", bottoms[0], to=tops[0])


@register("Sin")
class Sin(Activation):
    """y = sin x."""

    origin = "ocaffe"
    message = ""
    value = "sin(x)"
    derivative = "cos(x)"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Sin", bottoms[0], to=tops[0])


@register("Cos")
class Cos(Activation):
    """y = cos x."""

    origin = "ocaffe"
    message = ""
    value = "cos(x)"
    derivative = "-sin(x)"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Cos", bottoms[0], to=tops[0])


@register("BNLL")
class BNLL(Activation):
    """y = log(1 + e^x), computed without overflow."""

    value = "fmax(x, 0) + log1p(exp(-fabs(x)))"
    derivative = "1 / (1 + exp(-x))"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Softplus", bottoms[0], to=tops[0])


@register("Clip")
class Clip(Activation):
    """y = x clamped to [min, max]; the derivative at the bounds is 1."""

    value = "fmin(fmax(x, min), max)"
    derivative = "x >= min && x <= max"
    fields = ("min", "max")

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        for field, bound in zip(self.fields, ("lower", "upper")):
            self.check(self.own().HasField(field), f"clip_param has no {field}", f"{self.written(f'{field}: N')}, where N is the {bound} bound")
        tops = super().infer(*bottoms)
        self.bounds = self.scalars["min"], self.scalars["max"]
        return tops

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Clip", bottoms[0], self.scalars["min"], self.scalars["max"], to=tops[0])


@register("BReLU")
class BReLU(Activation):
    """y = x clamped to [minval, maxval], by default [0, 1]; the derivative at the bounds is 1.

    The fork's GPU code equals its CPU code for these defaults alone; here the CPU code counts. Source: yanhuama/mycaffe, src/caffe/layers/brelu_layer.cpp.
    """

    origin = "DehazeNet forks (yanhuama/mycaffe)"
    value = "fmin(fmax(x, minval), maxval)"
    derivative = "x >= minval && x <= maxval"
    fields = ("minval", "maxval")

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        self.bounds = self.scalars["minval"], self.scalars["maxval"]
        self.check(self.bounds[0] < self.bounds[1], f"minval is {self.bounds[0]:g}, maxval is {self.bounds[1]:g}", "set minval to less than maxval")
        return tops

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Clip", bottoms[0], self.scalars["minval"], self.scalars["maxval"], to=tops[0])


@register("ELU")
class ELU(Activation):
    """y = x for x > 0, else alpha (e^x - 1)."""

    value = "x > 0 ? x : alpha * expm1(x)"
    fields = ("alpha",)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        # y has the sign of x unless alpha is negative.
        self.derivative = f"{'y' if self.scalars['alpha'] >= 0 else 'x'} > 0 ? 1 : alpha + y"
        return tops

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Elu", bottoms[0], to=tops[0], alpha=self.scalars["alpha"])


@register("Swish")
class Swish(Activation):
    """y = x / (1 + e^(-beta x))."""

    value = "x / (1 + exp(-beta * x))"
    derivative = "s = 1 / (1 + exp(-beta * x)); s * (1 + beta * x * (1 - s))"
    fields = ("beta",)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Mul", bottoms[0], graph.op("Sigmoid", graph.affine(bottoms[0], self.scalars["beta"], 0)), to=tops[0])


@register("ReLU6")
class ReLU6(Activation):
    """y = min(x for x > 0 else negative_slope x, 6); the derivative at 0 is negative_slope, at 6 it is 0."""

    origin = "MobileNet v2 forks"
    value = "r = x > 0 ? x : negative_slope * x; r > 6 ? 6 : r"
    fields = ("negative_slope",)
    in_pieces = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        # y and x are in the same piece of the three unless negative_slope is negative.
        at = "y" if self.scalars["negative_slope"] >= 0 else "x"
        self.derivative = f"{at} > 0 ? {at} < 6 : negative_slope"
        return tops

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, slope = graph.values[bottoms[0]], self.scalars["negative_slope"]
        if slope:
            graph.op("Min", graph.op("LeakyRelu", x, alpha=slope), 6.0, to=tops[0])
        else:
            graph.op("Clip", x, 0.0, 6.0, to=tops[0])


@register("HardSwish")
class HardSwish(Activation):
    """y = x min(max(x + 3, 0), 6) / 6; the derivative at -3 is -1/2, at 3 it is 3/2."""

    origin = "synopsys-caffe, micronet-caffe"
    message = ""
    value = "x * fmin(fmax(x + 3, 0), 6) / 6"
    derivative = "x < -3 ? 0 : x > 3 ? 1 : (2 * x + 3) / 6"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Mul", bottoms[0], graph.op("HardSigmoid", bottoms[0], alpha=1 / 6, beta=0.5), to=tops[0])


@register("HardSigmoid")
class HardSigmoid(Activation):
    """y = alpha x + beta clamped to [0, 1]; the derivative at the bounds is 0."""

    origin = "synopsys-caffe"
    value = "r = alpha * x + beta; r < 0 ? 0 : r > 1 ? 1 : r"
    derivative = "y > 0 && y < 1 ? alpha : 0"
    fields = ("alpha", "beta")

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("HardSigmoid", bottoms[0], to=tops[0], **self.scalars)


@register("Mish")
class Mish(Activation):
    """y = x tanh(log(1 + e^x))."""

    origin = "YOLOv4 ports, synopsys-caffe"
    message = ""
    # tanh(log(1 + n)) = w / (w + 2) with n = e^x and w = n (n + 2). For x above 20 it is 1 in float; clamping x avoids an overflow.
    value = "n = exp(fmin(x, 20)); w = n * (n + 2); x * (w / (w + 2))"
    derivative = "t = fmin(x, 20); n = exp(t); w = n * (n + 2); (w + 4 * t * n * (n + 1) / (w + 2)) / (w + 2)"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write Mish without the operator Mish, which opset 18 introduced."""
        graph.op("Mul", bottoms[0], graph.op("Tanh", graph.op("Softplus", bottoms[0])), to=tops[0])


@register("Threshold")
class Threshold(Activation):
    """y = 1 for x > threshold, else 0."""

    value = "x > threshold"
    fields = ("threshold",)
    has_backward = False

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.cast(graph.op("Greater", bottoms[0], self.scalars["threshold"]), np.float32, tops[0])


@register("IsNaN")
class IsNaN(Activation):
    """y = 1 where x is not a number, else 0."""

    origin = "ocaffe"
    message = ""
    value = "x != x"
    has_backward = False

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.cast(graph.op("IsNaN", bottoms[0]), np.float32, tops[0])


class _Rounding(Activation):
    """Base of the layers that are ONNX's operator of the same name."""

    origin = "ocaffe"
    message = ""
    has_backward = False

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op(type(self).__name__, bottoms[0], to=tops[0])


@register("Floor")
class Floor(_Rounding):
    """y = the largest whole number that is not above x."""

    value = "floor(x)"


@register("Ceil")
class Ceil(_Rounding):
    """y = the smallest whole number that is not below x."""

    value = "ceil(x)"


@register("Round")
class Round(_Rounding):
    """y = the whole number nearest to x, the even one of two."""

    value = "rint(x)"


class _Logarithmic(Activation):
    """Base of Exp and Log. Base -1 means e."""

    fields = ("base", "scale", "shift")

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        base = self.scalars.pop("base")
        self.check(base > 0 or base == -1, f"base is {base:g}", "set base to a number above 0, or remove it for base e")
        self.scalars["rate"] = self.rate(1.0 if base == -1 else math.log(base))
        return tops

    def rate(self, log_base: float) -> float:
        return log_base


@register("Exp")
class Exp(_Logarithmic):
    """y = base^(shift + scale x)."""

    value = "exp(rate * (shift + scale * x))"
    derivative = "rate * scale * y"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        rate = self.scalars["rate"]
        graph.op("Exp", graph.affine(bottoms[0], rate * self.scalars["scale"], rate * self.scalars["shift"]), to=tops[0])


@register("Log")
class Log(_Logarithmic):
    """y = log(shift + scale x) / log(base)."""

    value = "log(shift + scale * x) * rate"
    derivative = "rate * scale / (shift + scale * x)"

    def rate(self, log_base: float) -> float:
        self.check(log_base != 0, "base is 1, and there is no logarithm of base 1", "set base to another number above 0, or remove it for base e")
        return 1 / log_base

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        x = graph.op("Log", graph.affine(bottoms[0], self.scalars["scale"], self.scalars["shift"]))
        graph.op("Mul", x, self.scalars["rate"], to=tops[0])


@register("Power")
class Power(Activation):
    """y = (shift + scale x)^power."""

    fields = ("power", "scale", "shift")
    forms = {  # value and derivative for powers that need no pow
        0.0: ("1", "0"),
        1.0: ("shift + scale * x", "scale"),
        2.0: ("t = shift + scale * x; t * t", "2 * scale * (shift + scale * x)"),
    }

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        general = ("pow(shift + scale * x, power)", "scale * power * pow(shift + scale * x, power - 1)")
        self.value, self.derivative = self.forms.get(self.scalars["power"], general)
        return tops

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        power, scale, shift = (self.scalars[name] for name in self.fields)
        if power == 0:
            graph.alias(tops[0], graph.full_like(bottoms[0], 1))
        elif power == 1:
            graph.affine(bottoms[0], scale, shift, tops[0])
        else:
            x = graph.affine(bottoms[0], scale, shift)
            graph.op("Mul", x, x, to=tops[0]) if power == 2 else graph.op("Pow", x, power, to=tops[0])


@register("NegReLU")
class NegReLU(Activation):
    """y = x for negative x, else negative_slope x. Source: lmb-freiburg/flownet2, src/caffe/layers/neg_relu_layer.cpp."""

    origin = "FlowNet 2"
    message = "relu_param"
    fields = ("negative_slope",)
    value = "x < 0 ? x : negative_slope * x"
    derivative = "x < 0 ? 1 : negative_slope"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Add", graph.op("Min", bottoms[0], 0.0), graph.op("Mul", graph.op("Relu", bottoms[0]), self.scalars["negative_slope"]), to=tops[0])


@register("NegSquare")
class NegSquare(Activation):
    """y = -x^2. LiteFlowNet's layer takes the gradient from values that it did not set; here it is -2 x.

    Source: twhui/LiteFlowNet, src/caffe/layers/negsquare_layer.cu.
    """

    origin = "LiteFlowNet"
    message = ""
    value = "-x * x"
    derivative = "-2 * x"

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Neg", graph.op("Mul", bottoms[0], bottoms[0]), to=tops[0])

