"""Weights on the grid of a chip's integers: what a product reads in place of its weights if its layer has a weight_quantization_param.

The weights themselves stay as they are, and their gradient is that of the rounded ones (the straight-through estimator, Bengio et al., 2013, arXiv
1308.3432). A scale is the largest magnitude of the weights of one output over the largest integer, so weights that are on such a grid stay the same.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ocaffe.ir.graph import Node
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.expression.expression import pointwise, reduce


class RoundedWeights:
    """The rounded weights of one recording."""

    def __init__(self, rec: Recorder) -> None:
        self.rec = rec
        self.made: dict[Node, tuple[Ref, Ref]] = {}

    @contextmanager
    def read_by(self, node: Node, forward: bool) -> Iterator[None]:
        """Within, the node reads rounded weights. Forward computes them, and backward reads the same."""
        if not node.layer.param.HasField("weight_quantization_param"):
            yield
            return
        weight = node.params[0]
        whole = weight.data
        if forward or node not in self.made:
            self.made[node] = self._rounded(node, whole)
        weight.data, node.layer.weight_scales = self.made[node]
        try:
            yield
        finally:
            weight.data, node.layer.weight_scales = whole, None

    def _rounded(self, node: Node, weight: Ref) -> tuple[Ref, Ref]:
        rec, param, form = self.rec, node.layer.param.weight_quantization_param, node.layer.weight_outputs()
        assert form is not None, "build refuses other layers"
        make = rec.saved if rec.train else rec.scratch
        kept = form.kept if param.per_channel else ()
        sizes = tuple(size if axis in kept else 1 for axis, size in enumerate(form.shape))
        scale, rounded = make("weight_scale", sizes), make("rounded_weight", weight.shape)
        whole, axes = weight.view(form.shape), [axis for axis in range(len(form.shape)) if axis not in kept]
        finish = "y0 = v0 > 0 ? exp2(ceil(log2(v0 / most))) : 0" if param.power_of_two else "y0 = v0 / most"
        most = {"most": float(2 ** (param.bits - 1) - 1)}
        flat = scale.view(tuple(form.shape[axis] for axis in kept))
        reduce(rec, "v0 = fabs(x0)", reads=[whole], writes=[flat], axes=axes, op="max", finish=finish, scalars=most)
        text = "y0 = x1 > 0 ? fmin(fmax(rint(x0 / x1), -most), most) * x1 : x0"
        pointwise(rec, text, reads=[whole, (scale, 0)], writes=[rounded.view(form.shape)], scalars=most)
        return rounded, flat
