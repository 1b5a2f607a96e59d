"""Rules of Conv and ConvTranspose."""
from __future__ import annotations

from typing import Any

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node
from ocaffe.convert.importer.rules import operator
from ocaffe.convert.importer.rules.product import blobs_of
from ocaffe.convert.importer.rules.shape import slice_axes
from ocaffe.convert.importer.rules.windows import Windows, padded


@operator("Conv")
def conv(net: Builder, node: Node) -> None:
    x, weight, bias = net.bottom(node), net.constant(node, 1), net.constant(node, 2)
    windows = Windows.read(net, node, net.shape(x)[2:], weight.shape[2:])
    if not windows.symmetric:  # TensorFlow's SAME padding may add one pixel more at the end
        x = padded(net, node, x, windows)
        windows = windows.without_pads()
    net.layer(node, "Convolution", [x], _parameters(node, windows, weight.shape[0], bias is not None), blobs=blobs_of(weight, bias))


@operator("ConvTranspose")
def conv_transpose(net: Builder, node: Node) -> None:
    """Use the smaller of the pads at begin and end as Caffe's pad. The rest is cropped, or added (output_padding)."""
    x, weight, bias = net.bottom(node), net.constant(node, 1), net.constant(node, 2)
    windows = Windows.read(net, node, net.shape(x)[2:], weight.shape[2:])
    group, wanted = node.get("group", 1), net.output_shape(node)[2:]
    begin = _begin_of_transposed(node, windows, net.shape(x)[2:], wanted)
    size = tuple(s * (n - 1) + e for s, n, e in zip(windows.stride, net.shape(x)[2:], windows.extent))
    end = tuple(n - b - w for n, b, w in zip(size, begin, wanted))  # negative if output_padding extends beyond the last window
    pad = tuple(max(0, min(b, e)) for b, e in zip(begin, end))
    parameters = _parameters(node, Windows(windows.kernel, windows.stride, windows.dilation, pad, pad), weight.shape[1] * group, bias is not None)
    exact = begin == end == pad
    beyond = [max(0, -e) for e in end]
    late = bias is not None and any(beyond)  # pixels outside all windows hold only the bias
    if late:
        parameters["bias_term"] = False
    top = net.layer(node, "Deconvolution", [x], parameters, part="" if exact else "whole", blobs=blobs_of(weight, None if late else bias))
    if exact:
        return
    cut = {2 + i: (b - p, b - p + w - more) for i, (b, p, w, more) in enumerate(zip(begin, pad, wanted, beyond))}
    top = slice_axes(net, node, top, cut, "cut", last=not any(beyond))
    if any(beyond):
        top = net.layer(node, "Pad", [top], {"begin": [0] * len(beyond), "end": beyond}, part="pad" if late else "")
    if late:
        net.layer(node, "Bias", [top], suffix="bias", blobs=[bias])


def _begin_of_transposed(node: Node, windows: Windows, image: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Return the pads at begin. If output_shape is given, they follow from it."""
    if "output_shape" not in node.attributes and node.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        return windows.begin
    extra = node.get("output_padding", [0] * len(image))
    total = [s * (n - 1) + o + e - w for s, n, o, e, w in zip(windows.stride, image, extra, windows.extent, wanted)]
    return tuple(t // 2 if node.get("auto_pad") == "SAME_UPPER" else t - t // 2 for t in total)


def _parameters(node: Node, windows: Windows, outputs: int, biased: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = {"num_output": outputs, "kernel_size": _short(windows.kernel)}
    for name, values, default in (("stride", windows.stride, 1), ("pad", windows.begin, 0), ("dilation", windows.dilation, 1)):
        if set(values) != {default}:
            parameters[name] = _short(values)
    if node.get("group", 1) != 1:
        parameters["group"] = node.get("group")
    if not biased:
        parameters["bias_term"] = False
    return parameters


def _short(values: tuple[int, ...]) -> list[int]:
    return [values[0]] if len(set(values)) == 1 else list(values)
