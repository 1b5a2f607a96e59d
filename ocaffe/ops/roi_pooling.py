"""Pooling of regions of interest into a fixed number of bins: kernels/roi_pooling.cl and kernels/psroi_pooling.cl."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

GPU_GROUP = 64
CPU_PIECE = 64  # outputs per CPU work-item: about the bins of one channel
CHANNELS = 4  # CHANNELS in roi_pooling.cl
INDEX = {"uint16": "ushort", "uint32": "uint"}  # types of an index, in numpy and in OpenCL C


def launch(rec: Recorder, kernel: str, size: tuple[int, ...], **operands: Any) -> None:
    """Record a launch. Work-groups along the first axis have one work-item on CPUs and several on GPUs."""
    first = 1 if rec.target.is_cpu else rec.target.group(GPU_GROUP)
    rec.launch(kernel, size=size, local=(first, *[1] * (len(size) - 1)), **operands)


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
        launch(rec, "roi_pooling.bins", (count,), reads=[rois], writes=[bins], args=args, defines=self._defines(x))

    def forward(self, rec: Recorder, x: Ref, bins: Ref, y: Ref, index: Ref | None) -> None:
        """y (R x C x bins) = the maxima; with `index`, which is like y, their places in the plane."""
        count, piece = y.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
        function, writes = ("forward", [y]) if index is None else ("forward_index", [y, index])
        args = [count, piece, *x.shape[2:], *self.bins]
        size = -(-count // piece), y.shape[0]
        launch(rec, f"roi_pooling.{function}", size, reads=[x, bins], writes=writes, args=args, defines=self._defines(x))

    def backward(self, rec: Recorder, dy: Ref, index: Ref, bins: Ref, dx: Ref) -> None:
        """dx = the gradient. Each pixel sums over the regions in their order."""
        images, planes, height, width = dx.shape
        args = [dy.shape[0], planes, height, width, *self.bins, rec.accumulates(dx)]
        cpu = rec.target.is_cpu
        function = "backward_plane" if cpu else "backward"
        size = (planes, images) if cpu else (height * width, -(-planes // CHANNELS), images)
        launch(rec, f"roi_pooling.{function}", size, reads=[dy, index, bins], writes=[dx], args=args, defines=self._defines(dx))

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
        launch(rec, "psroi_pooling.bins", (count,), reads=[rois], writes=[bins], args=args)

    def forward(self, rec: Recorder, x: Ref, bins: Ref, y: Ref) -> None:
        """y (R x C / group^2 x group x group) = the means; 0 where a bin is empty."""
        count, piece = y.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
        args = [count, piece, *x.shape[2:], self.group]
        launch(rec, "psroi_pooling.forward", (-(-count // piece), y.shape[0]), reads=[x, bins], writes=[y], args=args)

    def backward(self, rec: Recorder, dy: Ref, bins: Ref, dx: Ref) -> None:
        """dx = the gradient. Each pixel sums over the regions in their order."""
        images, planes, height, width = dx.shape
        args = [dy.shape[0], planes, height, width, self.group, rec.accumulates(dx)]
        cpu = rec.target.is_cpu
        function, size = ("backward_plane", planes) if cpu else ("backward", planes * height * width)
        launch(rec, f"psroi_pooling.{function}", (size, images), reads=[dy, bins], writes=[dx], args=args)
