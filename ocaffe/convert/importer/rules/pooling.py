"""Rules of MaxPool, AveragePool, global pooling and reductions."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.convert.importer.rules.shape import flatten_to
from ocaffe.convert.importer.rules.windows import Windows, padded
from ocaffe.layers.window import Window

METHODS = {"MaxPool": "MAX", "AveragePool": "AVE", "GlobalMaxPool": "MAX", "GlobalAveragePool": "AVE", "ReduceMax": "MAX", "ReduceMean": "AVE"}
# Operator -> the operation of Caffe's Reduction, and the layer after it: its type, fields and part
REDUCTIONS: dict[str, tuple[str, list[tuple[str, dict[str, Any], str]]]] = {
    "ReduceMean": ("MEAN", []),
    "ReduceSum": ("SUM", []),
    "ReduceSumSquare": ("SUMSQ", []),
    "ReduceL1": ("ASUM", []),
    "ReduceL2": ("SUMSQ", [("Power", {"power": 0.5}, "root")]),
    "ReduceLogSum": ("SUM", [("Log", {}, "log")]),
}
KEEPING = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp")  # reductions that keep a single value unchanged
FLOOR, CEIL = "FLOOR", "CEIL"  # round_mode; CEIL is Caffe's default
LOWEST = float(np.finfo(np.float32).min)


@operator("MaxPool", "AveragePool")
def pool(net: Builder, node: Node) -> None:
    """Add a Pooling, with a Pad before it or a Scale after it if needed. `leave_out` removes a round_mode that changes no size.

    Caffe pads begin and end equally. It ignores (MAX, avg_include_pad: false) or clips (AVE) the part of a window outside the padded image. So pads at
    the end that only allow one more window are Caffe's round_mode CEIL. If no round_mode gives the required outputs, the image is padded first. Means
    are then multiplied by window size / ONNX's divisor. N x C x L is pooled as an image of one row.
    """
    x = net.bottom(node)
    fact = "the model uses the indices of the maxima, which ONNX counts over the whole batch, and Caffe in each plane"
    net.check(node, len(node.outputs) == 1 or not node.outputs[1], fact)
    image, wanted = net.shape(x)[2:], net.output_shape(node)[2:]
    windows = Windows.read(net, node, image, node.get("kernel_shape"))
    if set(windows.kernel) == {1} and wanted == image and windows.symmetric and not any(windows.begin):
        net.alias(node, x)
        return
    line = len(image) == 1
    if line:
        x, windows, image, wanted = _row(net, node, x), windows.of_a_row(), (1, *image), (1, *wanted)
    average, counted = node.op == "AveragePool", bool(node.get("count_include_pad"))
    fitting = _rounding(windows, image, wanted, bool(node.get("ceil_mode")))
    # The divisor of AVE counts padding at the end only up to the width of the padding at the begin.
    clipped = average and counted and windows.begin != windows.end
    shares = np.ones(())
    if fitting is None or clipped:
        if average:
            net.graph.budget.spend(8 * math.prod(wanted))
            shares = _shares(windows, image, wanted, counted)
        whole = windows.around(image, wanted)
        x, windows, fitting = padded(net, node, x, whole, 0 if average else LOWEST), whole.without_pads(), FLOOR
    even = bool((shares == 1).all())
    parameters: dict[str, Any] = {"pool": METHODS[node.op]} | ({"round_mode": FLOOR} if fitting == FLOOR else {})
    for name, values, default in (("kernel", windows.kernel, None), ("stride", windows.stride, 1), ("pad", windows.begin, 0)):
        parameters.update(_sizes(name, values, default))
    if average and not counted and any(windows.begin):
        parameters["avg_include_pad"] = False
    if max(windows.dilation) > 1:
        parameters["dilation"] = windows.dilation
    top = net.layer(node, "Pooling", [x], parameters, part="pool" if line and even else "" if even else "whole")
    if not even:
        top = net.layer(node, "Scale", [top], {"axis": 2, "num_axes": shares.ndim}, part="share" if line else "", suffix="share", blobs=[shares], learn=False)
    if line:
        flatten_to(net, node, top, net.output_shape(node))


def _row(net: Builder, node: Node, x: str) -> str:
    """Return N x C x L as N x C x 1 x L. A Pooling layer takes images and volumes."""
    batch, channels, length = net.shape(x)
    return flatten_to(net, node, x, (batch, channels, 1, length), "row")


def _shares(windows: Windows, image: tuple[int, ...], wanted: tuple[int, ...], counted: bool) -> np.ndarray:
    """Return pixels of a window / ONNX's divisor, which counts pixels of the padded image if `counted`, else of the image."""
    shares = np.ones(())
    for outputs, size, kernel, stride, begin, end in zip(wanted, image, windows.kernel, windows.stride, windows.begin, windows.end):
        first = np.arange(outputs) * stride - begin
        low, high = (-begin, size + end) if counted else (0, size)
        shares = shares[..., None] * (kernel / np.maximum(1, np.minimum(first + kernel, high) - np.maximum(first, low)))
    return shares


def _rounding(windows: Windows, image: tuple[int, ...], wanted: tuple[int, ...], ceil: bool) -> str | None:
    """Return the round_mode that makes Caffe's pooling, with the begin pads on both sides, compute `wanted` outputs, or None.

    If both do, it is that of the model, `ceil`: only it is right where the size of the image follows the batch. With pixels between the windows, ONNX
    drops a last window behind the image, and Caffe without pads does not. Then rounding down is right.
    """
    caffe = Window(windows.kernel, windows.stride, windows.begin, windows.dilation)
    fitting = [mode for mode in (FLOOR, CEIL) if caffe.outputs(image, mode == CEIL) == wanted]
    overlap = all(stride <= extent for stride, extent in zip(windows.stride, windows.extent))
    return fitting[-1 if ceil and overlap else 0] if fitting else None


def _sizes(name: str, values: tuple[int, ...], default: int | None) -> dict[str, Any]:
    if set(values) == {default}:
        return {}
    single = "kernel_size" if name == "kernel" else name
    if len(set(values)) == 1:
        return {single: values[0]}
    return dict(zip((f"{name}_h", f"{name}_w"), values)) if len(values) == 2 else {f"{single}_3d": list(values)}


@operator("GlobalMaxPool", "GlobalAveragePool")
def global_pool(net: Builder, node: Node) -> None:
    _whole_image(net, node, METHODS[node.op])


@operator(*REDUCTIONS, "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSumExp")
def reduce(net: Builder, node: Node) -> None:
    """Add a global Pooling for a reduction over the image. Other axes are moved to the end for a Reduction or a Pooling."""
    x = net.bottom(node)
    shape = net.shape(x)
    given = net.setting(node, "axes", 1)
    if not given and node.get("noop_with_empty_axes"):
        net.check(node, node.op in KEEPING, "it has noop_with_empty_axes and no axes, so it reduces nothing", "export with the axes to reduce")
        net.alias(node, x)
        return
    net.check(node, node.op != "ReduceMean" or net.is_float(node), "it divides whole numbers and drops the rest")
    axes = sorted(axis % len(shape) for axis in (given or range(len(shape))))
    if node.op in METHODS and axes == list(range(2, len(shape))) and len(axes) in (2, 3):
        _whole_image(net, node, METHODS[node.op])
        return
    rest = [axis for axis in range(len(shape)) if axis not in axes]
    if axes != list(range(len(rest), len(shape))):
        x = net.layer(node, "Permute", [x], {"order": rest + axes}, part="order")
    wanted = net.output_shape(node)
    left = tuple(shape[axis] for axis in rest)
    if node.op in REDUCTIONS:
        operation, others = REDUCTIONS[node.op]
        steps = [("Reduction", {"operation": operation, "axis": len(rest)}, "reduced"), *others]
        for kind, fields, part in steps:
            last = part == steps[-1][2] and wanted == left
            x = net.layer(node, kind, [x], fields, part="" if last else part)
        if wanted != left:
            flatten_to(net, node, x, wanted)
    else:
        x = flatten_to(net, node, x, (shape[0] if 0 in rest else 1, math.prod(left[0 in rest :]), math.prod(shape[axis] for axis in axes), 1), "plane")
        flatten_to(net, node, PLANES[node.op](net, node, x), wanted)


def _largest(net: Builder, node: Node, x: str) -> str:
    return net.layer(node, "Pooling", [x], {"pool": "MAX", "global_pooling": True}, part="pool")


def _least(net: Builder, node: Node, x: str) -> str:
    """Compute min(x) = -max(-x)."""
    x = net.layer(node, "Power", [x], {"scale": -1.0}, part="negative")
    return net.layer(node, "Power", [_largest(net, node, x)], {"scale": -1.0}, part="least")


def _multiplied(net: Builder, node: Node, x: str) -> str:
    """Multiply the rows of the first half by those of the second half, until one row is left. A row without a partner waits for the end."""
    rows, waiting = net.shape(x)[2], list[str]()
    while rows > 1:
        half, odd = divmod(rows, 2)
        tops = [net.free(f"{node.outputs[0]}_{part}{rows}") for part in ("first", "second", "odd")[: 2 + odd]]
        net.layer(node, "Slice", [x], {"axis": 2, "slice_point": [half, 2 * half][: 1 + odd]}, part=f"halves{rows}", tops=tops)
        x = net.layer(node, "Eltwise", tops[:2], {"operation": "PROD"}, part=f"product{rows}")
        rows, waiting = half, waiting + tops[2:]
    return net.layer(node, "Eltwise", [x, *waiting], {"operation": "PROD"}, part="product") if waiting else x


def _log_sum_exp(net: Builder, node: Node, x: str) -> str:
    """Compute m + log sum exp(x - m), where m is the maximum. So no power overflows. An infinite m is replaced by the largest number, as inf - inf is NaN."""
    top = flatten_to(net, node, _largest(net, node, x), net.shape(x)[:2], "flat")
    largest = net.layer(node, "Clip", [top], {"min": LOWEST, "max": -LOWEST}, part="largest")
    top = net.layer(node, "Power", [largest], {"scale": -1.0}, part="negative")
    top = net.layer(node, "Bias", [x, top], {"axis": 0}, part="below")
    top = net.layer(node, "Exp", [top], part="exp")
    top = net.layer(node, "Reduction", [top], {"axis": 2}, part="sum")
    top = net.layer(node, "Log", [top], part="log")
    return net.layer(node, "Eltwise", [top, largest], part="above")


# Operator -> the function that reduces axis 2 of N x C x R x 1
PLANES: dict[str, Callable[[Builder, Node, str], str]] = {
    "ReduceMax": _largest, "ReduceMin": _least, "ReduceProd": _multiplied, "ReduceLogSumExp": _log_sum_exp,
}  # fmt: skip


def _whole_image(net: Builder, node: Node, method: str) -> None:
    x, wanted = net.bottom(node), net.output_shape(node)
    line = len(net.shape(x)) == 3
    if line:
        x = _row(net, node, x)
    flat = line or len(wanted) == 2
    top = net.layer(node, "Pooling", [x], {"pool": method, "global_pooling": True}, part="pool" if flat else "")
    if flat:
        flatten_to(net, node, top, wanted)
