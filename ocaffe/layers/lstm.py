"""LSTM over the time steps of a batch of sequences."""
from __future__ import annotations

from typing import ClassVar

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.layers.base import Arity, register
from ocaffe.layers.lstm_unit import BACKWARD, FORWARD, GATES, cell, gates_of
from ocaffe.layers.recurrent import Recurrent
from ocaffe.onnx.graph import OnnxGraph


@register("LSTM")
class LSTM(Recurrent):
    """Long short-term memory over T time steps: c = f c' + i g and h = o tanh(c); c' and h' are c and h of the previous step.

    i, f, o = sigmoid and g = tanh of W_x x + b + W_h h' (+ W_static x_static), in this order in the weights. cont multiplies c' and h'. The top is h.
    Bottoms, tops and blobs: see `Recurrent`. Backward reads the gates, the cells and the top. It overwrites the gates with their inputs' gradients.
    """

    bottoms: ClassVar[Arity] = (2, 5)
    tops: ClassVar[Arity] = (1, 3)
    gates = GATES
    states = ("h", "c")
    inside = "unit"
    limit = 0.0  # of the magnitude of the gradients of the gates' inputs; 0: none

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        super().forward(rec, bottoms, tops)
        if self.own().debug_info:
            after = self.cells.view((self.steps, self.sequences, self.units), self.sequences * self.units)
            self.show(rec, "Forward", [("c", after), ("h", tops[0].data)])

    def keep_initial(self, rec: Recorder) -> list[Ref]:
        # The cells before the first step and after every step. If no launch reads them later, two buffers alternate.
        kept = self.steps + 1 if rec.train or self.own().debug_info else 2
        self.cells = rec.saved("cells", (kept, self.sequences, self.units))
        return [self._cell(0)]

    def step(self, rec: Recorder, t: int, product: Ref, top: Ref) -> None:
        inputs = "; ".join(f"in_{gate} = m{k} + x{k}" for k, gate in enumerate("ifog"))
        more, reads, writes = self.hand_over(t, 6, 2, ("h", "c"))
        text = f"{inputs}; before = x4; cont = x5; {FORWARD}; m0 = i; m1 = f; m2 = o; m3 = g; y0 = c; y1 = h{more}"
        pointwise(
            rec,
            text,
            reads=[*gates_of(product, self.sequences, self.units), self._cell(t), self.cont_of(t), *reads],
            writes=[self._cell(t + 1), self.at(top, t), *writes],
            modifies=self._gates(t),
            side_effect=True,
        )

    def onnx_weights(self, graph: OnnxGraph) -> list[str]:
        """ONNX has the gates in the order i, o, f, g, and two biases."""
        weights = []
        for parameter in (self.params[0], self._recurrent, self._bias):
            i, f, o, g = np.split(graph.array(parameter), GATES)
            array = np.concatenate([i, o, f, g])
            weights.append(graph.constant((array if array.ndim > 1 else np.concatenate([array, 0 * array]))[None], str(parameter)))
        return weights

    def onnx_step(self, graph: OnnxGraph, product: str, before: list[str], keep: str) -> list[str]:
        c, h = cell(graph, graph.split(product, [None] * GATES, 1, [self.units] * GATES), before[1], keep, [None, None])
        return [h, c]

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        dh, final = tops[0].diff, self.final_diffs(tops)
        self.dc = dc = rec.scratch("dc", (self.sequences, self.units))
        scalars = {"limit": self.limit} if self.limit else {}

        def step(t: int, product: Ref | None) -> None:
            reads: list[Read] = [self.at(dh, t), self._cell(t + 1), self._cell(t)]
            limited = "".join(f"; d_{gate} = fmin(fmax(d_{gate}, -limit), limit)" for gate in "ifog") if self.limit else ""
            text = f"c = x1; before = x2; i = m0; f = m1; o = m2; g = m3; {{}}; {BACKWARD}{limited}; m0 = d_i; m1 = d_f; m2 = d_o; m3 = d_g; {{}} = d_before"
            if product is None:
                more = {name: f"x{len(reads) + k}" for k, name in enumerate(final)}
                start = f"dh = x0 + {more.get('h', 0)}; dc = {more.get('c', 0)}" if final else "dh = x0; dc = 0"
                reads += final.values()
                pointwise(rec, text.format(start, "y0"), reads=reads, writes=[dc], modifies=self._gates(t), scalars=scalars, side_effect=True)
            else:
                reads += [product, self.cont_of(t + 1)]
                text = text.format("dh = x0 + x3 * x4; dc = m4", "m4")
                pointwise(rec, text, reads=reads, modifies=[*self._gates(t), dc], scalars=scalars, side_effect=True)

        self.through_time(rec, propagate, self.steps_data, step)
        self.show(rec, "Backward", [("gate_input", self.steps_data)])
        self.finish_backward(rec, self.steps_data, tops[0].data, bottoms, propagate)

    def initial_gradients(self, rec: Recorder, diffs: Ref) -> list[Ref]:
        return [*super().initial_gradients(rec, diffs), self.dc]

    def _gates(self, t: int) -> list[Ref]:
        return gates_of(self.steps_data, self.sequences, self.units, t * self.sequences * GATES * self.units)

    def _cell(self, t: int) -> Ref:
        """Return the cells before step t, which are those after step t - 1."""
        return self.cells.view((self.sequences, self.units), t % self.cells.shape[0] * self.sequences * self.units, self.units)
