"""Lstm: the LSTM of the text recognition forks, which needs no sequence indicators."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import ParamBlob, register
from ocaffe.layers.lstm import LSTM
from ocaffe.onnx.graph import OnnxGraph


@register("Lstm")
class Lstm(LSTM):
    """LSTM whose sequences all start in the first time step of each run, unless sequence indicators T x N are given as a second bottom.

    The blobs are W_x, W_h and b. With indicators, a run continues with the final states of the previous run. clipping_threshold limits the magnitude
    of the gradients of the gates' inputs. With batch_size N, bottom 0 may be flat, with T N rows x I; then the top is flat too. Indicators may be
    flat in any case. Source: junhyukoh/caffe-lstm, as src/caffe/layers/lstm_layer_Junhyuk.cpp in fireae/caffe_latte at 4bcd7ab.
    """

    origin = "text recognition forks"
    message = "lstm_param"
    bottoms = (1, 2)
    tops = 1
    unrolled = False

    def own(self) -> Any:
        p = self.param.lstm_param
        return proto.RecurrentParameter(num_output=p.num_output, weight_filler=p.weight_filler, bias_filler=p.bias_filler)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.param.lstm_param, bottoms[0]
        batch = p.batch_size
        self.flat = bool(batch) and x[1:2] != (batch,)
        self.limit = float(p.clipping_threshold)
        if not self.flat:
            flat_indicators = len(bottoms) > 1 and math.prod(bottoms[1]) == math.prod(x[:2])
            return super().infer(x, x[:2] if len(bottoms) < 2 or flat_indicators else bottoms[1])
        fact = f"batch_size is {batch}, bottom 0 is {shape_text(x)}"
        self.check(
            len(x) >= 2 and x[0] % batch == 0,
            fact,
            f"give bottom 0 as T x {batch} x .., or rows whose number is a multiple of {batch}; or correct batch_size",
        )
        steps = (x[0] // batch, batch)
        if len(bottoms) > 1:
            count = math.prod(bottoms[1])
            self.check(
                count == x[0],
                f"bottom 1 is {shape_text(bottoms[1])}, bottom 0 is {shape_text(x)}",
                f"give {x[0]} indicators as bottom 1, one for each row",
            )
        super().infer((*steps, *x[1:]), steps)
        return [(x[0], self.units)]

    def _in_steps(self, blob: Blob, *inner: int) -> Blob:
        """Return a blob of T x N x .. with the memory of a flat one."""
        made = Blob(blob.name, (self.steps, self.sequences, *inner))
        made.data = blob.data.view(made.shape)
        if blob.diff is not None:
            made.diff = blob.diff.view(made.shape)
        return made

    def _blobs(self, bottoms: list[Blob], tops: list[Blob]) -> tuple[list[Blob], list[Blob]]:
        """Return bottoms and tops of T x N x .., with indicators if there are none."""
        first = self._in_steps(bottoms[0], self.inputs) if self.flat else bottoms[0]
        bottoms = [first, *(self._in_steps(bottom) for bottom in bottoms[1:])]
        if self.flat:
            tops = [self._in_steps(tops[0], self.units)]
        return bottoms, tops

    def parameters(self) -> Sequence[ParamBlob]:
        inputs, bias, hidden = super().parameters()
        return [inputs, hidden, bias]

    @property
    def _bias(self) -> Parameter:
        return self.params[2]

    @property
    def _recurrent(self) -> Parameter:
        return self.params[1]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        bottoms, tops = self._blobs(bottoms, tops)
        if len(bottoms) == 1:
            indicators = Blob("indicators", bottoms[0].shape[:2])
            indicators.data = rec.constant("indicators", self.starts())
            bottoms = [*bottoms, indicators]
        super().forward(rec, bottoms, tops)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        for index, bottom in enumerate(bottoms):
            if self.flat if index == 0 else len(bottom.shape) == 1:
                form = f"{self.steps} x {self.sequences}" + (f" x {self.inputs}" if index == 0 else "")
                fix = f"add a Reshape layer to {form} for '{bottom.name}' before this one" + (", and remove batch_size" if self.flat else "")
                raise graph.refused(f"bottom {index}, '{bottom.name}', is flat ({shape_text(bottom.shape)})", fix)
        super().onnx(graph, bottoms, tops)

    def onnx_first(self, graph: OnnxGraph, bottoms: list[Blob]) -> bool | None:
        return False if len(bottoms) == 1 else super().onnx_first(graph, bottoms)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        bottoms, tops = self._blobs(bottoms, tops)
        super().backward(rec, tops, bottoms, [propagate[0], any(propagate[1:])])

    def starts(self) -> np.ndarray:
        """Return indicators of sequences that all start in the first step."""
        result = np.ones((self.steps, self.sequences), np.float32)
        result[:1] = 0
        return result
