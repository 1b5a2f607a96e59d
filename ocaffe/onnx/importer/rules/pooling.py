"""MaxPool, AveragePool, LpPool's global relatives, and means over the image."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.layers.window import Window
from ocaffe.onnx.importer.builder import Builder
from ocaffe.onnx.importer.graph import Node
from ocaffe.onnx.importer.rules import operator
from ocaffe.onnx.importer.rules.shape import flatten_to
from ocaffe.onnx.importer.rules.windows import Windows, padded

METHODS = {"MaxPool": "MAX", "AveragePool": "AVE", "GlobalMaxPool": "MAX", "GlobalAveragePool": "AVE", "ReduceMax": "MAX", "ReduceMean": "AVE"}
LOWEST = float(np.finfo(np.float32).min)


@operator("MaxPool", "AveragePool")
def pool(net: Builder, node: Node) -> None:
    """Caffe pads as much behind as before, and ignores (MAX, avg_include_pad: false) or clips (AVE) what a window has beyond: so pads behind that
    only let one more window begin are its rounding up. Where that does not give the outputs that are wanted, the image is padded first."""
    x = net.bottom(node)
    net.check(node, len(node.outputs) == 1 or not node.outputs[1], "the indices of the maxima are wanted, which count over the whole batch in ONNX")
    image, wanted = net.shape(x)[2:], net.output_shape(node)[2:]
    windows = Windows.read(net, node, image, node.get("kernel_shape"))
    if set(windows.kernel) == {1} and wanted == image and windows.symmetric and not any(windows.begin):
        net.alias(node, x)
        return
    average, counted = node.op == "AveragePool", bool(node.get("count_include_pad"))
    fitting = _rounding(windows, image, wanted)
    # The divisor of AVE counts the padding behind, as far as it is as wide as that before.
    clipped = average and counted and windows.begin != windows.end
    if fitting is None or clipped:
        net.check(node, not average or counted or not any((*windows.begin, *windows.end)),
                  f"pads {[*windows.begin, *windows.end]} that are not counted and no rounding of Caffe gives {shape_text(wanted)}")  # fmt: skip
        x = padded(net, node, x, windows, 0 if average else LOWEST)
        windows = windows.without_pads()
        fitting = _rounding(windows, net.shape(x)[2:], wanted)
        net.check(node, fitting, f"no rounding of Caffe gives {shape_text(wanted)} of {shape_text(net.shape(x)[2:])}")
    parameters: dict[str, Any] = {"pool": METHODS[node.op], "round_mode": fitting}
    for name, values, default in (("kernel", windows.kernel, None), ("stride", windows.stride, 1), ("pad", windows.begin, 0)):
        parameters.update(_sizes(name, values, default))
    if average and not counted and any(windows.begin):
        parameters["avg_include_pad"] = False
    if max(windows.dilation) > 1:
        parameters["dilation"] = windows.dilation
    net.layer(node, "Pooling", [x], parameters)


def _rounding(windows: Windows, image: tuple[int, ...], wanted: tuple[int, ...]) -> str | None:
    """The round_mode with which Caffe's pooling, padded as before the image, makes `wanted` outputs."""
    caffe = Window(windows.kernel, windows.stride, windows.begin, windows.dilation)
    for mode in ("FLOOR", "CEIL"):
        if caffe.outputs(image, mode == "CEIL") == wanted:
            return mode
    return None


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


@operator("ReduceMean", "ReduceMax", "ReduceSum", "ReduceSumSquare", "ReduceL1")
def reduce(net: Builder, node: Node) -> None:
    """Over the image: a global Pooling. Over the last axes: a Reduction."""
    x = net.bottom(node)
    shape = net.shape(x)
    given = net.setting(node, "axes", 1)
    if not given and node.get("noop_with_empty_axes"):
        net.alias(node, x)
        return
    axes = sorted(axis % len(shape) for axis in (given or range(len(shape))))
    if node.op in METHODS and axes == list(range(2, len(shape))) and len(axes) in (2, 3):
        _whole_image(net, node, METHODS[node.op])
        return
    operations = {"ReduceMean": "MEAN", "ReduceSum": "SUM", "ReduceSumSquare": "SUMSQ", "ReduceL1": "ASUM"}
    net.check(node, node.op in operations, f"a maximum over axes {axes} of {shape_text(shape)}; a Caffe layer takes it over an image", "ReduceMean")
    last = list(range(len(shape) - len(axes), len(shape)))
    if axes != last:  # bring the axes to the end
        order = [axis for axis in range(len(shape)) if axis not in axes] + axes
        x = net.layer(node, "Permute", [x], {"order": order}, part="order")
    kept = node.get("keepdims", 1)
    parameters = {"operation": operations[node.op], "axis": last[0]}
    top = net.layer(node, "Reduction", [x], parameters, part="reduced" if kept else "")
    if kept:
        flatten_to(net, node, top, net.output_shape(node))


def _whole_image(net: Builder, node: Node, method: str) -> None:
    wanted = net.output_shape(node)
    flat = len(wanted) == 2
    top = net.layer(node, "Pooling", [net.bottom(node)], {"pool": method, "global_pooling": True}, part="pool" if flat else "")
    if flat:
        flatten_to(net, node, top, wanted)
