"""The base of layers that map every plane of an image by a matrix for the rows and a matrix for the columns."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.resampling.plane_map import PlaneMap
from ocaffe.layers.base import Layer
from ocaffe.onnx.graph import OnnxGraph


class MappedPlanes(Layer):
    """Base: the top of N x C x H x W is rows x plane x columns^T for each plane. `infer` calls `plan` with both matrices.

    A second bottom gives its size alone, and has no gradient.
    """

    inplace_top = False
    by_sample = True
    map: PlaneMap

    def image(self, x: Shape) -> tuple[int, int]:
        """Return the height and width of the bottom."""
        self.check_axes(x, "N x C x H x W", values=True)
        return x[2], x[3]

    def plan(self, x: Shape, rows: np.ndarray, columns: np.ndarray) -> Sequence[Shape]:
        """Set the matrices (outputs x inputs). Return the shapes of the tops for a bottom of shape x."""
        self.map = PlaneMap(rows, columns)
        return [(*x[:2], len(rows), len(columns))]

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.map.forward(rec, bottoms[0].data, tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        wide = graph.op("MatMul", bottoms[0], np.float32(self.map.columns.T))
        graph.op("MatMul", np.float32(self.map.rows), wide, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        if propagate[0]:
            assert tops[0].diff is not None and bottoms[0].diff is not None
            self.map.backward(rec, tops[0].diff, bottoms[0].diff)
        for bottom, wanted in zip(bottoms[1:], propagate[1:]):
            if wanted:
                pointwise(rec, "y0 = 0", writes=[rec.diff_of(bottom)])


def repeated(inputs: int, times: int) -> np.ndarray:
    """Return the matrix that repeats each of `inputs` values `times` times."""
    return np.repeat(np.eye(inputs), times, axis=0)
