"""The source of a DummyData layer with random fillers: each batch has new values."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.data.floats import FloatLayout
from ocaffe.data.source import FILLER, BatchInfo, Source, bit_generator
from ocaffe.errors import Error, Place
from ocaffe.ir.tensor import Shape
from ocaffe.model.fillers import fill


class FillerSource(Source):
    """Batches of one array per (filler, shape)."""

    def __init__(self, fillers: Sequence[Any], shapes: Sequence[Shape], *, place: Place | None = None, layer: str | None = None) -> None:
        super().__init__(place, layer)
        self.fillers = list(fillers)
        self.layout = FloatLayout(shapes)

    def shapes(self) -> list[Shape]:
        return self.layout.shapes

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def fill(self, index: int, block: np.ndarray) -> BatchInfo:
        with self.located():
            for part, (filler, view) in enumerate(zip(self.fillers, self.layout.views(block))):
                rng = np.random.Generator(bit_generator(self.key, FILLER, index << 48, part))
                view[...] = fill(filler, view.shape, rng)
                wrong = self.wrong_label(part, view)
                if wrong is not None:
                    raise Error(f"batch {index}, value {wrong[0]}: {wrong[1].fact}", fix=wrong[1].fix)
        return BatchInfo((), self.nbytes)  # the shapes never change
