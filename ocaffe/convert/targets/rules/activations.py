"""Elementwise functions by simpler ones. All are exact but for rounding; Gelu's error is stated at its rule."""
from __future__ import annotations

import math

import numpy as np

from ocaffe.convert.targets.rewriter import Item, Rewriter, rule
from ocaffe.convert.targets.view import View

FLOAT_MAX = float(np.finfo(np.float32).max)
TINY = 1e-37  # the square of values that no function here tells from 0
TAIL = 6.0  # beyond it 1 - erf is below single precision
# The coefficients of g with P(u) = sigmoid(g(u)), by least squares from 0 to TAIL, weighted for the error of Gelu
LOGIT = (
    -1.9744666e-05, 1.59607976, -0.00165263002, 0.0768715105, -0.00583024945, 0.00456860007, -0.00208469672, 0.000357018048, -2.15626443e-05,
)  # fmt: skip
# erf(z) = 1 - (a1 t + .. + a5 t^5) exp(-z^2) with t = 1 / (1 + p z), error 1.5e-7. Source: Abramowitz and Stegun, formula 7.1.26.
ERF = 0.3275911, (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def power(net: Rewriter, x: View, *, scale: float = 1, shift: float = 0, power: float = 1, part: str = "", wish: str = "") -> View:
    """Return (shift + scale x)^power. Nothing is added if that is x."""
    given = {"power": power, "scale": scale, "shift": shift}
    fields = {name: value for name, value in given.items() if value != (0 if name == "shift" else 1)}
    return net.add("Power", [x], fields, part=part, wish=wish) if fields or wish else x


def product(net: Rewriter, one: View, two: View, part: str = "", wish: str = "") -> View:
    return net.add("Eltwise", [one, two], {"operation": 0}, part=part, wish=wish)


@rule("Swish")
def swish(net: Rewriter, item: Item) -> View:
    """x sigmoid(beta x)."""
    x = item.bottoms[0]
    gate = net.add("Sigmoid", [power(net, x, scale=item.own.beta, part="beta")], part="sigmoid")
    return product(net, x, gate, wish=item.wishes[0])


@rule("HardSigmoid")
def hard_sigmoid(net: Rewriter, item: Item) -> View:
    line = power(net, item.bottoms[0], scale=item.own.alpha, shift=item.own.beta, part="line")
    return net.add("Clip", [line], {"min": 0.0, "max": 1.0}, wish=item.wishes[0])


@rule("HardSwish")
def hard_swish(net: Rewriter, item: Item) -> View:
    """x min(max(x + 3, 0), 6) / 6."""
    x = item.bottoms[0]
    if net.accepts("ReLU6"):
        gate = net.add("ReLU6", [power(net, x, shift=3, part="shift")], part="relu6")
        gate = power(net, gate, scale=1 / 6, part="sixth")
    else:
        gate = net.add("Clip", [power(net, x, scale=1 / 6, shift=0.5, part="line")], {"min": 0.0, "max": 1.0}, part="gate")
    return product(net, x, gate, wish=item.wishes[0])


@rule("ReLU6")
def relu6(net: Rewriter, item: Item) -> View:
    x, slope = item.bottoms[0], item.own.negative_slope
    if slope:
        x = net.add("ReLU", [x], {"negative_slope": slope}, part="relu")
        return net.add("Clip", [x], {"min": -FLOAT_MAX, "max": 6.0}, wish=item.wishes[0])
    return net.add("Clip", [x], {"min": 0.0, "max": 6.0}, wish=item.wishes[0])


@rule("BReLU")
def brelu(net: Rewriter, item: Item) -> View:
    return net.add("Clip", item.bottoms, {"min": item.own.minval, "max": item.own.maxval}, wish=item.wishes[0])


@rule("Clip")
def clip(net: Rewriter, item: Item) -> View:
    """Cut below by ReLU(x - min), above by max - ReLU(max - x). ReLU6 does both, scaled."""
    x, low, high, wish = item.bottoms[0], item.own.min, item.own.max, item.wishes[0]
    if net.accepts("ReLU6") and -FLOAT_MAX < low < high < FLOAT_MAX:
        if (low, high) == (0, 6):
            return net.add("ReLU6", [x], wish=wish)
        scale = 6 / (high - low)
        top = net.add("ReLU6", [power(net, x, scale=scale, shift=-low * scale, part="widen")], part="relu6")
        return power(net, top, scale=1 / scale, shift=low, part="narrow", wish=wish)
    bounded = high < FLOAT_MAX
    if low > -FLOAT_MAX:
        x = net.add("ReLU", [power(net, x, shift=-low, part="above")], part="low" if bounded or low else "", wish="" if bounded or low else wish)
    else:
        low = 0.0
    if bounded:
        x = net.add("ReLU", [power(net, x, scale=-1, shift=high - low, part="below")], part="high")
        return power(net, x, scale=-1, shift=high, part="end", wish=wish)
    return power(net, x, shift=low, part="end", wish=wish if low else "")


@rule("Mish")
def mish(net: Rewriter, item: Item) -> View:
    """x tanh(log(1 + e^x))."""
    x = item.bottoms[0]
    gate = net.add("TanH", [net.add("BNLL", [x], part="softplus")], part="tanh")
    return product(net, x, gate, wish=item.wishes[0])


@rule("ELU")
def elu(net: Rewriter, item: Item) -> View:
    """max(x, 0) + alpha (e^min(x, 0) - 1)."""
    x = item.bottoms[0]
    above = net.add("ReLU", [x], part="above")
    below = net.add("ReLU", [power(net, x, scale=-1, part="minus")], part="below")
    below = net.add("Exp", [below], {"scale": -1.0}, part="exp")
    total = net.add("Eltwise", [above, below], {"coeff": [1.0, item.own.alpha]}, part="sum")
    return power(net, total, shift=-item.own.alpha, part="end", wish=item.wishes[0])


@rule("PReLU")
def prelu(net: Rewriter, item: Item) -> View | None:
    """max(x, 0) + slope min(x, 0)."""
    x, slope = item.bottoms[0], item.arrays[0]
    if slope.size == 1:
        return net.add("ReLU", [x], {"negative_slope": float(slope.reshape(()))}, wish=item.wishes[0])
    above = net.add("ReLU", [x], part="above")
    below = net.add("ReLU", [power(net, x, scale=-1, part="minus")], part="below")
    scaled = net.add("Scale", [below], part="slope", arrays=[-slope.reshape(-1)])
    return net.add("Eltwise", [above, scaled], wish=item.wishes[0])


@rule("Gelu")
def gelu(net: Rewriter, item: Item) -> View:
    """x P(x) with the normal distribution function P, as max(x, 0) - |x| (1 - P(|x|)).

    Of erf: the formula has an error of 1.5e-7, which is rounding in single precision. The tanh form is x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
    """
    x, wish = item.bottoms[0], item.wishes[0]
    if item.own.approximate:
        slope = 2 * math.sqrt(2 / math.pi)
        inner = power(net, product(net, x, x, "square"), scale=0.044715 * slope, shift=slope, part="line")
        gate = net.add("Sigmoid", [product(net, x, inner, "cubic")], part="sigmoid")
        return product(net, x, gate, wish=wish)
    near, factors = ERF
    size = net.add("AbsVal", [x], part="abs")
    t = power(net, size, scale=near / math.sqrt(2), shift=1, power=-1, part="t")
    tail = power(net, t, scale=factors[-1], shift=factors[-2], part="a4")
    for number, factor in reversed(list(enumerate(factors[:-2], 1))):
        tail = power(net, product(net, tail, t, f"t{number}"), shift=factor, part=f"a{number}")
    bell = net.add("Exp", [power(net, size, power=2, part="square")], {"scale": -0.5}, part="bell")
    tail = net.add("Eltwise", [tail, t, bell, size], {"operation": 0}, part="tail")
    return net.add("Eltwise", [net.add("ReLU", [x], part="relu"), tail], {"coeff": [1.0, -0.5]}, wish=wish)


@rule("AbsVal")
def absolute(net: Rewriter, item: Item) -> View:
    x = item.bottoms[0]
    above = net.add("ReLU", [x], part="above")
    below = net.add("ReLU", [power(net, x, scale=-1, part="minus")], part="below")
    return net.add("Eltwise", [above, below], wish=item.wishes[0])


@rule("Exp")
def exponential(net: Rewriter, item: Item) -> View:
    """e^y = sigmoid(y) / sigmoid(-y)."""
    own, log = item.own, 1.0 if item.own.base == -1 else math.log(item.own.base)
    y = power(net, item.bottoms[0], scale=own.scale * log, shift=own.shift * log, part="exponent")
    above = net.add("Sigmoid", [y], part="above")
    below = net.add("Sigmoid", [power(net, y, scale=-1, part="minus")], part="below")
    return product(net, above, power(net, below, power=-1, part="inverse"), wish=item.wishes[0])


@rule("Gelu")
def gelu_of_sigmoid(net: Rewriter, item: Item) -> View:
    """max(x, 0) - |x| sigmoid(-g(min(|x|, 6))), with a polynomial g for the logarithm of P / (1 - P). The error is at most 4e-7."""
    x = item.bottoms[0]
    size = net.add("AbsVal", [x], part="abs")
    near = net.add("Clip", [size], {"min": 0.0, "max": TAIL}, part="near")
    g = power(net, near, scale=LOGIT[-1], shift=LOGIT[-2], part="g0")
    for number, factor in enumerate(reversed(LOGIT[:-2]), 1):
        g = power(net, product(net, g, near, f"p{number}"), shift=factor, part=f"g{number}")
    gate = net.add("Sigmoid", [power(net, g, scale=-1, part="minus")], part="sigmoid")
    tail = product(net, gate, size, part="tail")
    above = net.add("ReLU", [x], part="relu")
    return net.add("Eltwise", [above, tail], {"coeff": [1.0, -1.0]}, wish=item.wishes[0])


@rule("Power")
def affine(net: Rewriter, item: Item) -> View | None:
    """Scale and shift by constants as a Scale layer, a whole power by products."""
    own, x, wish = item.own, item.bottoms[0], item.wishes[0]
    if own.power not in (1, 2, 3) or not x.shape:
        return None
    if own.scale != 1 or own.shift or own.power == 1:
        channels = x.shape[1] if len(x.shape) > 1 else 1
        arrays = [np.full(channels, own.scale), np.full(channels, own.shift)]
        last = own.power == 1
        x = net.as_shape(x, (*x.shape, 1)) if len(x.shape) == 1 else x
        x = net.add("Scale", [x], {"bias_term": True}, part="" if last else "line", wish=wish if last and len(item.shape) > 1 else "", arrays=arrays)
        if last:
            return net.as_shape(x, item.shape)
    return net.add("Eltwise", [x] * int(own.power), {"operation": 0}, wish=wish)


@rule("Power")
def of_response(net: Rewriter, item: Item) -> View | None:
    """x^p by LRN of single channels, which is x (k + x^2)^-beta with beta = (1 - p) / 2, for x from 1e-15 to 1e19. Of 0 it is 0."""
    own, shape = item.own, item.shape
    if own.power >= 1 or own.power % 2 == 0 or not shape or not net.accepts("LRN"):
        return None
    x = power(net, item.bottoms[0], scale=own.scale, shift=own.shift, part="line")
    whole = shape if len(shape) == 4 else (shape[0], math.prod(shape[1:]), 1, 1)
    fields = {"local_size": 1, "alpha": 1.0, "beta": (1 - own.power) / 2, "k": TINY}
    return net.as_shape(net.add("LRN", [net.as_shape(x, whole)], fields, wish=item.wishes[0] if whole == shape else ""), shape)


@rule("Bias")
def bias(net: Rewriter, item: Item) -> View | None:
    """A Scale layer with ones; of two values of one shape a sum."""
    if len(item.bottoms) == 2:
        return net.add("Eltwise", item.bottoms, wish=item.wishes[0]) if item.bottoms[0].shape == item.bottoms[1].shape else None
    shift = item.arrays[0]
    fields = {"axis": item.own.axis, "num_axes": item.own.num_axes, "bias_term": True}
    return net.add("Scale", item.bottoms, fields, wish=item.wishes[0], arrays=[np.ones_like(shift), shift])


@rule("Dropout", "Split")
def same(net: Rewriter, item: Item) -> list[View]:
    return [item.bottoms[0]] * len(item.wishes)
