"""The source of a DummyData layer with random fillers: the number of the batch. The device draws the values (ocaffe/kernels/inputs/filler.py)."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.data.source import ALIGNMENT, BatchInfo, Source
from ocaffe.errors import Place
from ocaffe.ir.tensor import Shape


class BatchNumber(Source):
    """Batch buffers that hold the number of the batch, as uint64. So drawn values are new in each pass, and a resumed run draws them again."""

    nbytes = ALIGNMENT

    def __init__(self, shapes: Sequence[Shape], *, place: Place | None = None, layer: str | None = None) -> None:
        """`shapes`: of the tops that are drawn."""
        super().__init__(place, layer)
        self._shapes = list(shapes)

    def shapes(self) -> list[Shape]:
        return self._shapes

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        if buffer.nbytes >= self.nbytes:
            buffer[: self.nbytes].view(np.uint64)[...] = index * self.share.ranks + self.share.rank
        return BatchInfo((), self.nbytes)  # the shapes never change
