"""Pooling of regions of interest into a fixed number of bins: roi_pooling.cl and psroi_pooling.cl."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocaffe.ir.kernel import JOIN, Given, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

BINS, PS_BINS = (Kernel(f"{file}.bins", read("rois"), write("bins"), can=JOIN) for file in ("roi_pooling", "psroi_pooling"))
FORWARD, PS_FORWARD = (Kernel(f"{file}.forward", read("x"), read("bins"), write("y"), can=JOIN) for file in ("roi_pooling", "psroi_pooling"))
FORWARD_INDEX = Kernel("roi_pooling.forward_index", read("x"), read("bins"), write("y"), write("index"), can=JOIN)
BACKWARD, BACKWARD_PLANE = (
    Kernel(f"roi_pooling.{function}", read("dy"), read("index"), read("bins"), write("dx"), can=JOIN) for function in ("backward", "backward_plane")
)
PS_BACKWARD, PS_BACKWARD_PLANE = (
    Kernel(f"psroi_pooling.{function}", read("dy"), read("bins"), write("dx"), can=JOIN) for function in ("backward", "backward_plane")
)
GPU_GROUP = 64
CPU_PIECE = 64  # outputs per CPU work-item: about the bins of one channel
CHANNELS = 4  # CHANNELS in roi_pooling.cl
INDEX = {"uint16": "ushort", "uint32": "uint"}  # types of an index, in numpy and in OpenCL C


def launch(rec: Recorder, given: Given, size: tuple[int, ...], args: Sequence[Any], defines: Mapping[str, object] | None = None) -> None:
    """Record a launch. Work-groups along the first axis have one work-item on CPUs and several on GPUs."""
    first = 1 if rec.target.is_cpu else rec.target.group(GPU_GROUP)
    rec.launch(given, args=args, size=size, local=(first, *[1] * (len(size) - 1)), defines=defines)


@dataclass(frozen=True)
class RoiPooling:
    """Max pooling of regions into `bins` (rows, columns) of the plane after corners are multiplied by `scale`."""

    bins: tuple[int, int]
    scale: float

    @property
    def row(self) -> int:
        """Integers per region in `bins`."""
        return 1 + 2 * sum(self.bins)

    @staticmethod
    def index_dtype(x: Ref) -> str:
        """Return the smallest type for a place in a plane, with a spare value for an empty bin."""
        return "uint16" if x.shape[2] * x.shape[3] <= 0xFFFF else "uint32"

    def locate(self, rec: Recorder, rois: Ref, x: Ref, bins: Ref) -> None:
        """bins = the positions of the bins of each region in the plane (R x row)."""
        count = rois.shape[0]
        args = [count, x.shape[0], *x.shape[2:], *self.bins, self.scale]
        launch(rec, BINS(rois=rois, bins=bins), (count,), args=args, defines=self._defines(x))

    def forward(self, rec: Recorder, x: Ref, bins: Ref, y: Ref, index: Ref | None) -> None:
        """y (R x C x bins) = the maxima; with `index`, which is like y, their places in the plane."""
        count, piece = y.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
        args = [count, piece, *x.shape[2:], *self.bins]
        size = -(-count // piece), y.shape[0]
        launch(rec, (FORWARD if index is None else FORWARD_INDEX)(x=x, bins=bins, y=y, index=index), size, args=args, defines=self._defines(x))

    def backward(self, rec: Recorder, dy: Ref, index: Ref, bins: Ref, dx: Ref) -> None:
        """dx = the gradient. Each pixel sums over the regions in their order."""
        images, planes, height, width = dx.shape
        args = [dy.shape[0], planes, height, width, *self.bins, rec.accumulates(dx)]
        cpu = rec.target.is_cpu
        size = (planes, images) if cpu else (height * width, -(-planes // CHANNELS), images)
        launch(rec, (BACKWARD_PLANE if cpu else BACKWARD)(dy=dy, index=index, bins=bins, dx=dx), size, args=args, defines=self._defines(dx))

    def _defines(self, x: Ref) -> dict[str, object]:
        return {"INDEX": INDEX[self.index_dtype(x)], "CHANNELS": CHANNELS}


@dataclass(frozen=True)
class PsRoiPooling:
    """Mean pooling of regions into group x group bins, each from separate channels (position-sensitive)."""

    group: int
    scale: float

    @property
    def row(self) -> int:
        """Integers per region in `bins`."""
        return 1 + 4 * self.group

    def locate(self, rec: Recorder, rois: Ref, x: Ref, bins: Ref) -> None:
        """bins = the positions of the bins of each region in the plane (R x row)."""
        count = rois.shape[0]
        args = [count, x.shape[0], *x.shape[2:], self.group, self.scale]
        launch(rec, PS_BINS(rois=rois, bins=bins), (count,), args=args)

    def forward(self, rec: Recorder, x: Ref, bins: Ref, y: Ref) -> None:
        """y (R x C / group^2 x group x group) = the means; 0 where a bin is empty."""
        count, piece = y.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
        args = [count, piece, *x.shape[2:], self.group]
        launch(rec, PS_FORWARD(x=x, bins=bins, y=y), (-(-count // piece), y.shape[0]), args=args)

    def backward(self, rec: Recorder, dy: Ref, bins: Ref, dx: Ref) -> None:
        """dx = the gradient. Each pixel sums over the regions in their order."""
        images, planes, height, width = dx.shape
        args = [dy.shape[0], planes, height, width, self.group, rec.accumulates(dx)]
        cpu = rec.target.is_cpu
        kernel, size = (PS_BACKWARD_PLANE, planes) if cpu else (PS_BACKWARD, planes * height * width)
        launch(rec, kernel(dy=dy, bins=bins, dx=dx), (size, images), args=args)
