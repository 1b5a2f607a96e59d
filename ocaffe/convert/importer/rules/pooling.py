"""Rules of MaxPool, AveragePool, global pooling and reductions."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.convert.importer.rules.shape import flatten_to
from ocaffe.convert.importer.rules.windows import Windows, padded
from ocaffe.layers.window import Window

METHODS = {"MaxPool": "MAX", "AveragePool": "AVE", "GlobalMaxPool": "MAX", "GlobalAveragePool": "AVE", "ReduceMax": "MAX", "ReduceMean": "AVE"}
REDUCTIONS = {"ReduceMean": "MEAN", "ReduceSum": "SUM", "ReduceSumSquare": "SUMSQ", "ReduceL1": "ASUM", "ReduceL2": "SUMSQ"}
KEEPING = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")  # reductions that keep a single value unchanged
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


@operator("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin")
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
        last = node.op != "ReduceL2" and wanted == left
        top = net.layer(node, "Reduction", [x], {"operation": REDUCTIONS[node.op], "axis": len(rest)}, part="" if last else "reduced")
        if last:
            return
        if node.op == "ReduceL2":
            top = net.layer(node, "Power", [top], {"power": 0.5}, part="" if wanted == left else "root")
            if wanted == left:
                return
    else:
        lowest = node.op == "ReduceMin"  # min(x) = -max(-x)
        if lowest:
            x = net.layer(node, "Power", [x], {"scale": -1.0}, part="negative")
        top = flatten_to(net, node, x, (shape[0] if 0 in rest else 1, math.prod(left[0 in rest :]), math.prod(shape[axis] for axis in axes), 1), "plane")
        top = net.layer(node, "Pooling", [top], {"pool": "MAX", "global_pooling": True}, part="pool")
        if lowest:
            top = net.layer(node, "Power", [top], {"scale": -1.0}, part="least")
    flatten_to(net, node, top, wanted)


def _whole_image(net: Builder, node: Node, method: str) -> None:
    x, wanted = net.bottom(node), net.output_shape(node)
    line = len(net.shape(x)) == 3
    if line:
        x = _row(net, node, x)
    flat = line or len(wanted) == 2
    top = net.layer(node, "Pooling", [x], {"pool": method, "global_pooling": True}, part="pool" if flat else "")
    if flat:
        flatten_to(net, node, top, wanted)
