"""Gelu."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ocaffe.ir.graph import Blob
from ocaffe.ir.tensor import Shape
from ocaffe.layers.activation import Activation
from ocaffe.layers.base import register

if TYPE_CHECKING:
    from ocaffe.onnx.graph import OnnxGraph

RATE = math.sqrt(2 / math.pi)  # in the tanh approximation


@register("Gelu")
class Gelu(Activation):
    """y = x (1 + erf(x / sqrt 2)) / 2; `approximate` uses the tanh approximation of ONNX."""

    origin = "ocaffe"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        if self.own().approximate:
            share = f"t = tanh({RATE!r} * (x + 0.044715 * x * x * x)); s = 0.5 * (1 + t)"
            slope = f"0.5 * (1 - t * t) * {RATE!r} * (1 + 0.134145 * x * x)"
        else:
            share = f"s = 0.5 * (1 + erf({math.sqrt(0.5)!r} * x))"
            slope = f"{1 / math.sqrt(2 * math.pi)!r} * exp(-0.5 * x * x)"
        self.value, self.derivative = f"{share}; x * s", f"{share}; s + x * {slope}"
        return tops

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write operators that all opsets have. Opset 20 introduced Gelu."""
        x = graph.values[bottoms[0]]
        if self.own().approximate:
            cube = graph.op("Mul", x, graph.op("Mul", x, x))
            share = graph.op("Tanh", graph.op("Mul", graph.op("Add", x, graph.op("Mul", cube, 0.044715)), RATE))
        else:
            share = graph.op("Erf", graph.op("Mul", x, math.sqrt(0.5)))
        graph.op("Mul", graph.op("Mul", x, graph.op("Add", share, 1.0)), 0.5, to=tops[0])
