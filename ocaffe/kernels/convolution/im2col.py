"""Unroll the windows of an image to columns, and the adjoint: conv_unroll.cl."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ocaffe.ir.kernel import Kernel
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.convolution.conv_unroll import FOLD, UNROLL


@dataclass(frozen=True)
class Columns:
    """All windows over an image, with one number per spatial axis in each field."""

    size: Shape
    out: Shape
    kernel: Shape
    stride: Shape
    pad: Shape
    dilation: Shape

    def unroll(self, rec: Recorder, x: Ref, y: Ref) -> None:
        """y (N x C taps x *out) = for each tap of the windows, its pixels of x (N x C x *size), or 0 outside the image."""
        channels = x.dense_stride // math.prod(self.size)
        self._launch(rec, UNROLL, y, [], math.prod(self.out), channels * math.prod(self.kernel), x=x, axes=self._axes(rec), columns=y)

    def fold(self, rec: Recorder, y: Ref, x: Ref) -> None:
        """The adjoint of `unroll`: each pixel of x = the sum of its copies in y, tap by tap."""
        channels = x.dense_stride // math.prod(self.size)
        self._launch(rec, FOLD, x, [False, rec.accumulates(x)], math.prod(self.size), channels, columns=y, axes=self._axes(rec), bias=y, x=x)

    def _axes(self, rec: Recorder) -> Ref:
        return rec.constant("axes", np.array([self.size, self.out, self.kernel, self.stride, self.pad, self.dilation], np.int32))

    def _launch(self, rec: Recorder, kernel: Kernel, to: Ref, args: Sequence[int], elements: int, rows: int, **operands: Ref) -> None:
        each = elements if rec.target.is_cpu else 1
        rec.launch(
            kernel(**operands),
            args=[math.prod(self.size), math.prod(self.out), math.prod(self.kernel), each, *args],
            size=(-(-elements // each), rows, to.shape[0]),
            defines={"AXES": len(self.size)},
        )
