"""The common part of losses of detectors with priors: their bottoms, and the bottoms that get gradients."""
from __future__ import annotations

from typing import Any

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer


class BoxLoss(Layer):
    """Bottoms: locations, scores, priors, true boxes 1 x 1 x G x 8. `kernels`: record the loss, and return what records the two gradients."""

    bottoms = 4
    is_loss = True
    kernels: Any

    def check_truth(self, truth: Shape) -> None:
        fits = len(truth) == 4 and truth[:2] == (1, 1) and truth[3] == 8
        self.check(fits, f"bottom 3 is {shape_text(truth)}, it must be 1 x 1 x G x 8", "give the second top of an AnnotatedData layer as bottom 3")

    def force_backward(self, bottom: int) -> bool:
        return bottom < 2

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        loc, conf, priors, truth = (bottom.data for bottom in bottoms)
        self.truth = truth.view((truth.shape[2], 8))
        self.losses = self.kernels.forward(rec, loc, conf, priors, self.truth, tops[0].data)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {2: "priors", 3: "true boxes"})
        loc, conf, priors, _ = bottoms
        weight = tops[0].diff
        assert weight is not None
        if propagate[0]:
            assert loc.diff is not None
            self.losses.loc_backward(rec, loc.data, priors.data, self.truth, weight, loc.diff)
        if propagate[1]:
            assert conf.diff is not None
            self.losses.conf_backward(rec, conf.data, self.truth, weight, conf.diff)
