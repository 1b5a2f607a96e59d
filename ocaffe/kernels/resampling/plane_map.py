"""The same linear map of all planes of an image, which is a matrix for the rows and a matrix for the columns."""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul.gemm import gemm

UNIT = (1, 1, 1)


@dataclass(frozen=True)
class PlaneMap:
    """y = rows x columns^T for each plane x. `rows` is OH x H, `columns` OW x W.

    The columns are a product with all rows of all planes. The rows are a convolution with windows of one pixel, whose channels are the rows of a plane.
    """

    rows: np.ndarray
    columns: np.ndarray

    def forward(self, rec: Recorder, x: Ref, y: Ref) -> None:
        """Record the launches that map x (N x C x H x W) to y (N x C x OH x OW)."""
        rows, columns, between = self._operands(rec, x)
        planes, height, width = between.shape
        gemm(rec, x.view((planes * height, x.shape[3])), columns, between.view((planes * height, width)), trans_b=True, mergeable=False)
        convolution.forward(rec, self._geometry(planes), between, rows, None, y.view((planes, len(self.rows), width)))

    def backward(self, rec: Recorder, dy: Ref, dx: Ref) -> None:
        """Record the launches that map the gradient dy of y to the gradient dx of x."""
        rows, columns, between = self._operands(rec, dx)
        planes, height, width = between.shape
        convolution.backward_data(rec, self._geometry(planes), dy.view((planes, len(self.rows), width)), rows, between)
        gemm(rec, between.view((planes * height, width)), columns, dx.view((planes * height, dx.shape[3])), mergeable=False)

    def _operands(self, rec: Recorder, x: Ref) -> tuple[Ref, Ref, Ref]:
        planes, height = math.prod(x.shape[:2]), x.shape[2]
        rows = rec.constant("rows", np.float32(self.rows).reshape(len(self.rows), height, 1))
        columns = rec.constant("columns", np.float32(self.columns))
        return rows, columns, rec.scratch("between", (planes, height, len(self.columns)))

    def _geometry(self, planes: int) -> ConvGeometry:
        out, size = self.rows.shape
        line = (1, 1, len(self.columns))
        return ConvGeometry(planes, size, out, 1, line, line, UNIT, UNIT, (0, 0, 0), UNIT)
