"""ContinuationIndicator: the second bottom of LSTM and RNN for sequences of one length."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("ContinuationIndicator")
class ContinuationIndicator(Layer):
    """time_step x batch_size numbers: 0 in the first time step, 1 in the others. With a bottom, its size along `axis` is the batch size.

    Source: intel/caffe, src/caffe/layers/continuation_indicator_layer.cpp at 0275643. The bottom and `axis` are those of the text recognition
    nets of jolibrain/deepdetect, which give no batch_size.
    """

    origin = "Intel Caffe, jolibrain"
    bottoms = (0, 1)
    reads_shapes = True
    has_backward = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, batch = self.own(), self.own().batch_size
        if bottoms:
            self.check(
                not batch,
                f"batch_size is {batch}, and bottom 0 is {shape_text(bottoms[0])}: the batch size is given twice",
                "remove batch_size, or the bottom",
            )
            batch = bottoms[0][self.axis(p.axis, bottoms[0])]
        self.positive(p, {"time_step": "the number of time steps"})
        if not bottoms:
            self.positive(p, {"batch_size": "the number of sequences, or a bottom whose batch has this size"})
        self.check(batch > 0, f"bottom 0 is {shape_text(bottoms[0]) if bottoms else ''}, without a sample", "give a bottom with at least 1 sample")
        return [(p.time_step, batch)]

    def force_backward(self, bottom: int) -> bool:
        return False

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        steps = rec.constant("steps", self.column(tops[0].shape[0]))
        pointwise(rec, "y0 = x0", reads=[(steps, 0)], writes=[tops[0].data])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Expand", self.column(tops[0].shape[0]), [tops[0].shape[0], graph.fixed(tops[0], 1)], to=tops[0])

    @staticmethod
    def column(steps: int) -> np.ndarray:
        """Return the values of one sequence as a column."""
        return np.minimum(np.arange(steps, dtype=np.float32), 1)[:, None]
