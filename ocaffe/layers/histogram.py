"""Histogram: how many values of a blob have which magnitude."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.quantization.histogram import BINS, histogram
from ocaffe.layers.base import Layer, register


@register("Histogram")
class Histogram(Layer):
    """Top 0: counts of the values by magnitude, first of positive, then of negative values, last the number of infinities and NaN.

    There are 2048 bins for each sign: from 2^-16 to 2^16, 64 for each power of two, of equal width. Zero and smaller magnitudes are in the first bin of
    their sign. Top 1: the largest x and the largest -x. `ocaffe quantize` chooses scales from them.
    """

    origin = "ocaffe"
    message = ""
    tops = 2
    has_backward = False
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.check_filled(bottoms[0])
        return [(2 * BINS + 1,), (2,)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        histogram(rec, bottoms[0].data, tops[0].data, tops[1].data)
