"""Export ROIPooling and PSROIPooling as single operators that OpenCV has.

A maximum of a bin comes from a table of maxima, a mean of a bin from sums over all pixels above and to the left.
"""
from __future__ import annotations

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.onnx.graph import OnnxGraph, Value

FAR = 1e8  # pixels, beyond every plane: as in kernels/detection/regions/roi_pooling.cl
KNOWN = 4  # planes: the size of a region up to which the sizes of its bins are looked up


def psroi_pooled(graph: OnnxGraph, bins: int, scale: float, x: Blob, rois: Blob, to: Blob) -> None:
    """Write y (R x K x bins x bins) from x (N x K bins^2 x H x W) and rois (R x 5).

    The formulas are those of kernels/detection/regions/psroi_pooling.cl.
    """
    outputs, (height, width) = to.shape[1], (graph.fixed(x, axis) for axis in (2, 3))
    # In double precision: a mean is a small difference of sums over the whole plane.
    sums = graph.cast(x, np.float64)
    for axis in (2, 3):
        sums = graph.op("CumSum", sums, np.array(axis, np.int64))
    sums = graph.reshape(graph.op("Pad", sums, [0, 0, 1, 1, 0, 0, 0, 0], np.zeros((), np.float64)), (-1,))
    rows = graph.reshape(rois, (-1, 5))
    image = graph.cast(graph.reshape(graph.part(rows, 1, 0, 1), (-1, 1, 1, 1)), np.int64)
    # Positions index the flattened sums: image and channel, row, column.
    channels = np.arange(outputs * bins * bins, dtype=np.int64).reshape(1, outputs, bins, bins)
    plane = graph.op("Add", graph.op("Mul", image, np.array(channels.size, np.int64)), channels)
    plane = graph.op("Mul", plane, np.array((height + 1) * (width + 1), np.int64))
    tops, ends = _edges(graph, rows, 2, bins, height, scale, (-1, 1, bins, 1))
    lefts, rights = _edges(graph, rows, 1, bins, width, scale, (-1, 1, 1, bins))

    def upto(row: str, column: str) -> str:
        """Return the sum over all pixels before this row and column."""
        place = graph.op("Add", graph.op("Add", plane, graph.op("Mul", row, np.array(width + 1, np.int64))), column)
        return graph.op("Gather", sums, place)

    lower, upper = (graph.op("Sub", upto(row, rights), upto(row, lefts)) for row in (ends, tops))
    area = graph.cast(graph.op("Mul", graph.op("Sub", ends, tops), graph.op("Sub", rights, lefts)), np.float64)
    mean = graph.op("Div", graph.op("Sub", lower, upper), graph.op("Max", area, np.ones((), np.float64)))
    graph.cast(mean, np.float32, to)


def _edges(graph: OnnxGraph, rows: str, first: int, bins: int, size: int, scale: float, shape: tuple[int, ...]) -> tuple[str, str]:
    """Return start and end of the bins along one axis as int64 of `shape`. Columns `first` and `first` + 2 hold the corners."""
    start = graph.op("Mul", rounded(graph, graph.part(rows, 1, first, first + 1)), scale)
    end = graph.op("Mul", graph.op("Add", rounded(graph, graph.part(rows, 1, first + 2, first + 3)), 1.0), scale)
    extent = graph.op("Div", graph.op("Max", graph.op("Sub", end, start), 0.1), float(bins))

    def edge(kind: str, number: int) -> str:
        steps = np.arange(number, number + bins, dtype=np.float32)[None]
        at = graph.op(kind, graph.op("Add", graph.op("Mul", extent, steps), start))
        return graph.reshape(graph.cast(graph.op("Clip", at, 0.0, float(size)), np.int64), shape)

    return edge("Floor", 0), edge("Ceil", 1)


def rounded(graph: OnnxGraph, x: Value) -> str:
    """Round halves away from zero; ONNX's Round rounds them to even. x + 0.5 would itself be rounded, so the fraction decides."""
    size = graph.op("Abs", x)
    whole = graph.op("Floor", size)
    more = graph.op("Floor", graph.op("Mul", graph.op("Sub", size, whole), 2.0))
    return graph.op("Mul", graph.op("Sign", x), graph.op("Add", whole, more))


def roi_pooled(graph: OnnxGraph, bins: tuple[int, int], scale: float, x: Blob, rois: Value, to: Blob) -> None:
    """Write y (R x C x bins) from x (N x C x H x W) and rois (R x 5).

    The formulas of the bins are those of roi_pooling.cl. A table has the maxima of all windows whose sides are powers of 2, as rows of C values.
    A bin's maximum is that of four windows, two along each axis, with the longest sides that fit.
    """
    channels, height, width = (graph.fixed(x, axis) for axis in (1, 2, 3))
    pixels = graph.op("Transpose", graph.reshape(x, (-1, channels, height * width)), perm=[0, 2, 1])
    # Row 0 of an image has the zeros of empty bins.
    table = graph.op("Pad", pixels, [0, 1, 0, 0, 0, 0], np.zeros((), np.float32), mode="constant")
    table, tall, count = _maxima(graph, table, 1 + height * width, height, width)
    table, wide, count = _maxima(graph, table, count, width, 1)
    rows = graph.reshape(rois, (-1, 5))
    image = graph.cast(graph.reshape(graph.part(rows, 1, 0, 1), (-1, 1, 1)), np.int64)
    image = graph.op("Mul", image, np.array(count, np.int64))
    lines = _windows(graph, _pooled_edges(graph, rows, 2, bins[0], height, scale, (-1, bins[0], 1)), 1 + tall, height, width, count)
    columns = _windows(graph, _pooled_edges(graph, rows, 1, bins[1], width, scale, (-1, 1, bins[1])), wide, width, 1, count)
    table = graph.reshape(table, (-1, channels))
    found = []
    for line in lines:
        for column in columns:
            place = graph.op("Max", graph.op("Add", line, column), np.array(0, np.int64))
            found.append(graph.op("Gather", table, graph.op("Add", image, place)))
    graph.op("Transpose", graph.op("Max", *found), perm=[0, 3, 1, 2], to=to)


def _maxima(graph: OnnxGraph, x: str, count: int, size: int, stride: int) -> tuple[str, np.ndarray, int]:
    """Append the maxima of windows with 2, 4, .. elements along an axis of `size` elements to the `count` rows of x (axis 1).

    Rows with the distance `stride` are neighbours along the axis. Return the rows, the first row of each side, and the number of rows. Windows that
    extend beyond the axis have wrong maxima, which no bin reads.
    """
    parts, starts, side = [x], [0], 1
    while 2 * side <= size:
        starts.append(starts[-1] + count)
        count -= side * stride
        parts.append(graph.op("Max", *(graph.part(parts[-1], 1, first, first + count) for first in (0, side * stride))))
        side *= 2
    return graph.op("Concat", *parts, axis=1), np.array(starts, np.int64), starts[-1] + count


def _windows(graph: OnnxGraph, edges: tuple[str, str], starts: np.ndarray, size: int, stride: int, count: int) -> list[str]:
    """Return the rows of the first and the last window of each bin along an axis of the table. They are negative if the bin is empty."""
    first, end = edges
    length = graph.op("Sub", end, first)
    lengths = np.arange(size + 1)
    level = np.log2(np.maximum(lengths, 1)).astype(int)
    base = np.where(lengths == 0, -2 * count, starts[level])
    first = graph.op("Add", graph.op("Gather", base, length), graph.op("Mul", first, np.array(stride, np.int64)))
    rest = np.maximum(lengths - 2**level, 0) * stride
    return [first, graph.op("Add", first, graph.op("Gather", rest, length))]


def _pooled_edges(graph: OnnxGraph, rows: str, first: int, bins: int, size: int, scale: float, shape: tuple[int, ...]) -> tuple[str, str]:
    """Return start and end of ROIPooling's bins along one axis as int64 of `shape`. Columns `first` and `first` + 2 hold the corners."""
    low, high = (graph.op("Clip", rounded(graph, graph.op("Mul", graph.part(rows, 1, column, column + 1), scale)), -FAR, FAR)
                 for column in (first, first + 2))  # fmt: skip
    extent = graph.op("Max", graph.op("Add", graph.op("Sub", high, low), 1.0), 1.0)
    extent = _quotient(graph, extent, bins, KNOWN * size)

    def edge(kind: str, number: int) -> str:
        steps = np.arange(number, number + bins, dtype=np.float32)[None]
        at = graph.op("Add", graph.op(kind, graph.op("Mul", extent, steps)), low)
        return graph.reshape(graph.cast(graph.op("Clip", at, 0.0, float(size)), np.int64), shape)

    return edge("Floor", 0), edge("Ceil", 1)


def _quotient(graph: OnnxGraph, x: str, divisor: int, most: int) -> str:
    """Return x / divisor in float32 for whole numbers x. Up to `most` it is looked up: OpenVINO 2026.4 multiplies by 1 / divisor, which is not the same."""
    few = graph.op("Min", x, float(most))
    known = graph.op("Gather", np.arange(most + 1, dtype=np.float32) / np.float32(divisor), graph.cast(few, np.int64))
    return graph.op("Where", graph.op("Equal", x, few), known, graph.op("Div", x, float(divisor)))
