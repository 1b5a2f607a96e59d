"""Batch buffers of floats, one array per top, as HDF5Data and MemoryData stage them."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.data.source import aligned
from ocaffe.ir.kernel import Can, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape

UNPACK = Kernel("transform.unpack", read("block"), write("y"), can=Can(recompute=True))

CPU_PIECE = 4096  # elements that a work-item copies on a CPU
GPU_GROUP = 64


class FloatLayout:
    """A batch buffer that holds a float32 array of each of `shapes`. The first array starts at byte `begin`."""

    def __init__(self, shapes: Sequence[Shape], begin: int = 0) -> None:
        self.shapes = [tuple(shape) for shape in shapes]
        self.offsets: list[int] = []  # bytes
        self.nbytes = begin
        for shape in self.shapes:
            self.offsets.append(self.nbytes)
            self.nbytes += aligned(4 * math.prod(shape))

    def views(self, buffer: np.ndarray) -> list[np.ndarray]:
        """Return the arrays in `buffer`."""
        return [
            buffer[offset : offset + 4 * math.prod(shape)].view(np.float32).reshape(shape) for shape, offset in zip(self.shapes, self.offsets)
        ]

    def record(self, rec: Recorder, staging: Ref, tops: Sequence[Ref]) -> None:
        """Record the copies from a staged batch to the tops."""
        piece = CPU_PIECE if rec.target.is_cpu else 1
        for top, offset in zip(tops, self.offsets, strict=True):
            samples = top.shape[0] if top.shape else 1
            count = top.dense_stride
            rec.launch(
                UNPACK(block=staging, y=top),
                args=[np.uint64(offset), count],
                size=(-(-count // piece), samples),
                local=None if rec.target.is_cpu else (GPU_GROUP, 1),
                defines={"PIECE": piece},
            )
