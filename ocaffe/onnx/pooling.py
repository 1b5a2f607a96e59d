"""Export Caffe's Pooling. Runtimes and opsets disagree on ceil_mode and count_include_pad, so no result here depends on either."""
from __future__ import annotations

import math

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.kernels.pooling.pooling import AVE, MAX, Pool
from ocaffe.onnx.graph import OnnxGraph, Value

LOWEST = np.float32(np.finfo(np.float32).min)  # Caffe's result for a window without a pixel


def pooled(graph: OnnxGraph, p: Pool, x: Value, to: Blob | None = None, mask: Blob | None = None) -> str:
    """Return the pooling of x (batch, channels, image). `mask` is the top with the position of each maximum in its plane."""
    begin = list(p.pad)
    end = [(o - 1) * s + e - n - b for o, s, e, n, b in zip(p.outputs, p.stride, _extent(p), p.image, p.pad)]
    end = [max(0, pad) for pad in end]  # a negative pad would only skip pixels that no window reads
    if p.method == MAX:
        # The same pads at the begin and the end, if they make the same windows: pnnx takes other pads for those of ceil_mode.
        alike = [(n + 2 * b - e) // s + 1 == o for o, s, e, n, b in zip(p.outputs, p.stride, _extent(p), p.image, p.pad)]
        return _max(graph, p, x, begin, [b if same else pad for b, same, pad in zip(begin, alike, end)], to, mask)
    if p.method == AVE:
        return _average(graph, p, x, begin, end, to)
    # STOCHASTIC in TEST: the expectation of a pixel drawn by its value, sum of squares / sum. The number of pixels cancels.
    squares = _sums(graph, p, graph.op("Mul", x, x), end)
    sums = _sums(graph, p, x, end)
    empty = graph.op("Equal", sums, 0.0)
    return graph.op("Where", empty, 0.0, graph.op("Div", squares, graph.op("Where", empty, 1.0, sums)), to=to)


def _extent(p: Pool) -> tuple[int, ...]:
    return tuple(d * (k - 1) + 1 for k, d in zip(p.kernel, p.dilation or (1,) * len(p.kernel)))


def _max(graph: OnnxGraph, p: Pool, x: Value, begin: list[int], end: list[int], to: Blob | None, mask: Blob | None) -> str:
    if p.whole and mask is None and len(p.image) == 2:
        return graph.op("GlobalMaxPool", x, to=to)
    settings = {"kernel_shape": p.kernel, "strides": p.stride, "dilations": p.dilation if p.dilated else None}
    if any(pad >= k for pad, k in zip(end, p.kernel)):  # a window outside the image, which ONNX forbids; it needs stride > kernel
        if mask is not None:
            raise graph.refused("the last window is outside the image, so its maximum has no position", "set round_mode: FLOOR or stride <= kernel_size")
        x, begin, end = padded(graph, x, begin, end, LOWEST), [0] * len(begin), [0] * len(end)
    if mask is None:
        return graph.op("MaxPool", x, to=to, pads=begin + end, **settings)
    y, places = graph.ops("MaxPool", x, to=[to, None], pads=begin + end, **settings)
    # ONNX counts positions through the whole tensor, Caffe within the plane.
    plane = graph.op("Mod", places, np.array(math.prod(p.image), np.int64))
    graph.cast(plane, np.float32, mask)
    return y


def _average(graph: OnnxGraph, p: Pool, x: Value, begin: list[int], end: list[int], to: Blob | None) -> str:
    if p.whole and len(p.image) == 2:
        return graph.op("GlobalAveragePool", x, to=to)
    settings = {"kernel_shape": p.kernel, "strides": p.stride}
    if not any(begin + end):
        return graph.op("AveragePool", x, to=to, **settings)
    if not p.include_pad:
        return graph.op("AveragePool", x, to=to, pads=begin + end, count_include_pad=0, **settings)
    # Pad with explicit zeros: runtimes differ on pads that differ between begin and end, and the classic engine of OpenCV 5.0 ignores count_include_pad.
    share = _shares(p)
    y = graph.op("AveragePool", padded(graph, x, begin, end, np.float32(0)), to=to if (share == 1).all() else None, **settings)
    return y if (share == 1).all() else graph.op("Mul", y, share, to=to)


def _sums(graph: OnnxGraph, p: Pool, x: Value, end: list[int]) -> str:
    """Return means over whole windows, with zeros outside the image."""
    return graph.op("AveragePool", padded(graph, x, [0] * len(end), end, np.float32(0)), kernel_shape=p.kernel, strides=p.stride)


def padded(graph: OnnxGraph, x: Value, begin: list[int], end: list[int], value: np.float32) -> Value:
    if not any(begin + end):
        return x
    return graph.op("Pad", x, [0, 0, *begin, 0, 0, *end], np.asarray(value), mode="constant")  # pnnx does not know that this mode is the default


def _shares(p: Pool) -> np.ndarray:
    """Return pixels of a window / Caffe's divisor. Caffe divides by the pixels of the window that are inside the padded image."""
    result = np.ones((), np.float32)
    for outputs, stride, kernel, size, pad in zip(p.outputs, p.stride, p.kernel, p.image, p.pad):
        first = np.arange(outputs) * stride - pad
        counted = np.minimum(first + kernel, size + pad) - first
        result = result[..., None] * (kernel / counted).astype(np.float32)
    return result
