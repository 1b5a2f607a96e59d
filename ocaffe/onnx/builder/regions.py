"""Export PSROIPooling, for which ONNX has no operator: means of bins come from sums over all pixels above and to the left."""
from __future__ import annotations

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.onnx.builder.graph import OnnxGraph, Value


def psroi_pooled(graph: OnnxGraph, bins: int, scale: float, x: Blob, rois: Blob, to: Blob) -> None:
    """Write y (R x K x bins x bins) from x (N x K bins^2 x H x W) and rois (R x 5).

    The formulas are those of kernels/psroi_pooling.cl.
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
    start = graph.op("Mul", _rounded(graph, graph.part(rows, 1, first, first + 1)), scale)
    end = graph.op("Mul", graph.op("Add", _rounded(graph, graph.part(rows, 1, first + 2, first + 3)), 1.0), scale)
    extent = graph.op("Div", graph.op("Max", graph.op("Sub", end, start), 0.1), float(bins))

    def edge(kind: str, number: int) -> str:
        steps = np.arange(number, number + bins, dtype=np.float32)[None]
        at = graph.op(kind, graph.op("Add", graph.op("Mul", extent, steps), start))
        return graph.reshape(graph.cast(graph.op("Clip", at, 0.0, float(size)), np.int64), shape)

    return edge("Floor", 0), edge("Ceil", 1)


def _rounded(graph: OnnxGraph, x: Value) -> str:
    """Round halves away from zero; ONNX's Round rounds them to even."""
    return graph.op("Mul", graph.op("Sign", x), graph.op("Floor", graph.op("Add", graph.op("Abs", x), 0.5)))
