"""LayerNorm, RMSNorm and GroupNorm by sums, powers and products. They are exact: eps is added to the variance, which MVN does not do."""
from __future__ import annotations

import numpy as np

from ocaffe.convert.targets.rewriter import Item, Rewriter, rule, viewed
from ocaffe.convert.targets.rules.activations import power, product
from ocaffe.convert.targets.view import View, size_of


@rule("LayerNorm", "RMSNorm", "GroupNorm")
@viewed("LayerNorm", "RMSNorm", "GroupNorm")
def normalized(net: Rewriter, item: Item) -> View | None:
    """(x - mean) / sqrt(variance + eps) over values that lie together. Values before them and after them in the memory keep their place."""
    x, kind = item.bottoms[0], item.param.type
    if kind == "GroupNorm":
        groups = item.own.group_num
        divided = x.reshaped((x.shape[0], groups, x.shape[1] // groups * size_of(x.order) // max(1, x.shape[0] * x.shape[1])))
        if divided is None:
            return None
        axis = 2
    else:
        divided, axis = x, item.own.axis % len(x.shape)
    parts = divided.place([atom for atoms in divided.axes[axis:] for atom in atoms])
    if parts is None:
        return None
    first, count, last = (size_of(atoms) for atoms in parts)
    whole = net.net.shapes[divided.blob]
    wish = item.wishes[0] if net.is_plain(x) else ""
    centre = kind != "RMSNorm"
    if last == 1:
        with net.attempt() as tried:
            top = _of_rows(net, net.as_shape(divided, (first, count)), item.own.eps, centre)
            made = net.shaped(top.blob, whole, wish) if wish else top.blob
            return tried.done([View(made, x.memory, x.axes)])[0]
    shape = whole if len(whole) == 4 and whole[:2] == (first, count) else (first, count, last, 1)
    top = _of_channels(net, net.as_shape(divided, shape), item.own.eps, centre, wish if shape == whole else "")
    made = net.shaped(top.blob, whole, wish) if wish else top.blob
    return View(made, x.memory, x.axes)


def _of_rows(net: Rewriter, x: View, eps: float, centre: bool) -> View:
    """Normalize each row of P x K values."""
    if centre:
        x = net.add("MVN", [x], {"normalize_variance": False, "across_channels": True}, part="centred")
    square = power(net, x, power=2, part="square")
    variance = net.add("Reduction", [square], {"operation": 4, "axis": 1}, part="variance")
    inverse = power(net, variance, shift=eps, power=-0.5, part="inverse")
    return net.add("Scale", [x, inverse], {"axis": 0}, part="rows")


def _of_channels(net: Rewriter, x: View, eps: float, centre: bool, wish: str) -> View:
    """Normalize the channels of each pixel of N x C x H x W. Where there are no roots, Normalize of SSD has one, with the factor sqrt(C)."""
    channels = x.shape[1]
    if centre:
        mean = _repeated(net, _mean(net, x, -1, "mean"), channels, "means")
        x = net.add("Eltwise", [x, mean], part="centred")
    if net.accepts("Normalize") and not net.accepts("Power"):
        with net.attempt() as tried:
            fields = {"across_spatial": False, "channel_shared": False, "eps": eps * channels}
            return tried.done([net.add("Normalize", [x], fields, part="pixels", wish=wish, arrays=[np.full(channels, channels**0.5)])])[0]
    variance = _mean(net, power(net, x, power=2, part="square"), 1, "variance")
    inverse = power(net, variance, shift=eps, power=-0.5, part="inverse")
    return product(net, x, _repeated(net, inverse, channels, "inverses"), part="pixels", wish=wish)


def _mean(net: Rewriter, x: View, sign: int, part: str) -> View:
    weights = np.full((1, x.shape[1], 1, 1), sign / x.shape[1])
    return net.add("Convolution", [x], {"num_output": 1, "kernel_size": [1], "bias_term": False}, part=part, arrays=[weights])


def _repeated(net: Rewriter, x: View, channels: int, part: str) -> View:
    """Repeat one channel."""
    return net.add("Tile", [x], {"axis": 1, "tiles": channels}, part=part)
