"""LpqLoss and FlowNet's L1Loss: norms of the differences at each pixel."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.expression.formula import parse
from ocaffe.layers.base import Layer, register, stated


class FlowLoss(Layer):
    """Base: the sum over all pixels of (sum over channels of (|d| + p_epsilon)^p + q_epsilon)^q, divided by the batch size.

    d is bottom 0, or bottom 0 less bottom 1. NaN (flow that is not known) counts as 0 and has no gradient. With normalize_by_num_entries the divisor is the
    number of values that are not NaN, divided by the channels.
    """

    bottoms = (1, 2)
    is_loss = True
    p, q, shift_p, shift_q = 1.0, 1.0, 0.0, 0.0
    least = 0.0  # values of d below it count as 0
    least_sum = 0.0  # sums over channels below it count as 0

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x = bottoms[0]
        self.check_axes(x, "N x C x ..", values=True)
        if len(bottoms) == 2:
            self.check(
                bottoms[1] == x,
                f"bottom 0 is {shape_text(x)}, bottom 1 is {shape_text(bottoms[1])}",
                f"give bottom 1 the shape {shape_text(x)}, as bottom 0 is",
            )
        self.shape = (x[0], x[1], math.prod(x[2:]))
        self.settings()
        own = self.own()
        self.counted = bool(own.normalize_by_num_entries)
        self.share = 1 / x[1] if own.l2_prescale_by_channels else 1.0
        return [()]

    def settings(self) -> None:
        """Set p, q and the other settings from the message."""
        raise NotImplementedError

    def not_negative(self, *names: str) -> None:
        """Raise the layer's error if one of these settings is below 0."""
        for name in names:
            self.check(getattr(self.own(), name) >= 0, stated(self.own(), name), f"set {name} to 0 or more")

    def _scalars(self, text: str) -> dict[str, float]:
        values = {"p": self.p, "q": self.q, "shift_p": self.shift_p, "shift_q": self.shift_q, "least": self.least, "least_sum": self.least_sum,
                  "share": self.share, "n": float(self.shape[0]), "channels": float(self.shape[1])}  # fmt: skip
        return {name: value for name, value in values.items() if name in parse(text).used}

    def _reads(self, bottoms: list[Blob]) -> tuple[list[Read], str]:
        """Return the bottoms, and the text that computes d, its size s and whether it is known."""
        reads: list[Read] = [bottom.data.view(self.shape) for bottom in bottoms]
        return reads, f"r = {' - '.join(f'x{i}' for i in range(len(reads)))}; known = r == r; s = known ? fabs(r) : 0; s = s < least ? 0 : s"

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        images, _, pixels = self.shape
        keep = rec.saved if rec.train else rec.scratch
        self.sums, known = keep("sums", (images, pixels)), rec.scratch("known", (images, pixels))
        self.divisor: Ref = keep("divisor", ())
        reads, text = self._reads(bottoms)
        text = f"{text}; v0 = pow(s + shift_p, p) * share; v1 = known ? 1 : 0"
        finish = "y0 = v0 < least_sum ? 0 : v0; y1 = v1"
        reduce(rec, text, reads=reads, writes=[self.sums, known], axes=[1], finish=finish, scalars=self._scalars(f"{text}; {finish}"))
        text = "v0 = pow(x0 + shift_q, q); v1 = x1"
        finish = "y1 = v1 / channels; y0 = v0 / y1" if self.counted else "y1 = n; y0 = v0 / y1"
        scalars = self._scalars(f"{text}; {finish}")
        reduce(rec, text, reads=[self.sums, known], writes=[tops[0].data.view(()), self.divisor], axes=[0, 1], finish=finish, scalars=scalars)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        weight = tops[0].diff
        assert weight is not None
        if not any(propagate):
            return
        reads, text = self._reads(bottoms)
        k = len(reads)
        images, _, pixels = self.shape
        reads += [(weight.view(()), 0), (self.divisor, 0), (self.sums.view((images, 1, pixels)), 0)]
        text = f"{text}; total = x{k + 2} + shift_q; outer = total > 0 && x{k + 2} > 0 ? q * pow(total, q - 1) : 0"
        text += "; base = s + shift_p; inner = base > 0 && s > 0 ? p * pow(base, p - 1) * share * sign(r) : 0"
        text += f"; g = known ? x{k} / x{k + 1} * outer * inner : 0"
        signs, writes = [], []
        for sign, bottom, wanted in zip(("", "-"), bottoms, propagate):
            if wanted:
                signs.append(sign)
                writes.append(rec.diff_of(bottom).view(self.shape))
        text += "".join(f"; y{i} = {sign}g" for i, sign in enumerate(signs))
        pointwise(rec, text, reads=reads, writes=writes, scalars=self._scalars(text))


@register("LpqLoss")
class LpqLoss(FlowLoss):
    """The sum over all pixels of (sum over channels of (|d| + p_epsilon)^p + q_epsilon)^q, divided by the batch size.

    d is bottom 0, or bottom 0 less bottom 1. NaN (flow that is not known) counts as 0 and has no gradient. With normalize_by_num_entries the divisor is the
    number of values that are not NaN, divided by the channels. l2_prescale_by_channels divides the sum over channels by their number. p and q are given
    once; FlowNet changes them during a training by pq_episode_starts_at_iter. Source: lmb-freiburg/flownet2, src/caffe/layers/lpq_loss_layer.cu.
    """

    origin = "FlowNet 2"

    def settings(self) -> None:
        own = self.own()
        starts = list(own.pq_episode_starts_at_iter)
        fix = "write p once and q once; a training in parts needs a net and a solver for each part"
        self.check(len(own.p) == len(own.q) == 1, f"lpq_loss_param has {len(own.p)} p and {len(own.q)} q", fix)
        fix = "remove pq_episode_starts_at_iter; a training in parts needs a net and a solver for each part"
        self.check(starts in ([], [0]), f"pq_episode_starts_at_iter is {', '.join(map(str, starts))}, which is not supported", fix)
        self.p, self.q, self.shift_p, self.shift_q = own.p[0], own.q[0], own.p_epsilon, own.q_epsilon
        for name, value in (("p", self.p), ("q", self.q)):
            self.check(value > 0, f"{name} is {value:g}", f"set {name} above 0")
        self.not_negative("p_epsilon", "q_epsilon")


class FlowL1Loss(FlowLoss):
    """FlowNet's L1Loss: sums of |d|, or with l2_per_location of sqrt(sum over channels of d^2 + epsilon)."""

    message = "l1_loss_param"

    def settings(self) -> None:
        own = self.own()
        self.not_negative("epsilon", "plateau")
        if own.l2_per_location:
            self.p, self.q, self.shift_q, self.least_sum = 2.0, 0.5, own.epsilon, own.plateau**2
        else:
            self.least = own.plateau

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        if not self.own().l2_per_location:
            self.share = 1.0
        return tops
