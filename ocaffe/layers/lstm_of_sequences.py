"""Lstm: the LSTM of the text recognition forks, which needs no sequence indicators."""
from __future__ import annotations

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
    of the gradients of the gates' inputs. Source: junhyukoh/caffe-lstm, as src/caffe/layers/lstm_layer_Junhyuk.cpp in fireae/caffe_latte at 4bcd7ab.
    """

    origin = "text recognition forks"
    message = "lstm_param"
    bottoms = (1, 2)
    tops = 1

    def own(self) -> Any:
        p = self.param.lstm_param
        return proto.RecurrentParameter(num_output=p.num_output, weight_filler=p.weight_filler, bias_filler=p.bias_filler)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.param.lstm_param, bottoms[0]
        fact = f"batch_size is {p.batch_size}, bottom 0 is {shape_text(x)}"
        self.check(not p.batch_size or x[1:2] == (p.batch_size,), fact, "bottom 0 as T x N x ... with N samples, and no batch_size")
        self.limit = float(p.clipping_threshold)
        return super().infer(x, bottoms[1] if len(bottoms) > 1 else x[:2])

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
        if len(bottoms) == 1:
            indicators = Blob("indicators", bottoms[0].shape[:2])
            indicators.data = rec.constant("indicators", self.starts())
            bottoms = [*bottoms, indicators]
        super().forward(rec, bottoms, tops)

    def onnx_first(self, graph: OnnxGraph, bottoms: list[Blob]) -> bool | None:
        return False if len(bottoms) == 1 else super().onnx_first(graph, bottoms)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        super().backward(rec, tops, bottoms, [propagate[0], any(propagate[1:])])

    def starts(self) -> np.ndarray:
        """Return indicators of sequences that all start in the first step."""
        result = np.ones((self.steps, self.sequences), np.float32)
        result[:1] = 0
        return result
