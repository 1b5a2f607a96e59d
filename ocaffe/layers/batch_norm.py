"""BatchNorm: normalisation of every channel by its mean and deviation; learned scale and bias are a Scale layer's."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.graph.ir import Blob, Ref, Shape
from ocaffe.graph.recorder import Recorder
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.ops.expression import Read, pointwise, reduce


@register("BatchNorm")
class BatchNorm(Layer):
    """y = (x - mean) / sqrt(variance + eps), statistics of the batch in TRAIN, the running ones in TEST (or as use_global_stats says).

    Blobs: sums of means, of variances, and of their weights, each decayed by moving_average_fraction in every forward pass; the running mean is the
    first divided by the third. They never learn. Backward needs the top and the inverse deviations, so the bottom may be overwritten.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check(len(x) > 0, "the bottom is a scalar", "BatchNorm needs a batch axis")
        self.channels = x[1] if len(x) > 1 else 1
        self.axes = (0, *range(2, len(x)))
        self.channel_axis = min(1, len(x) - 1)
        self.global_stats = bool(p.use_global_stats) if p.HasField("use_global_stats") else self.phase == proto.TEST
        self.fraction, self.eps = float(p.moving_average_fraction), float(p.eps)
        return [x]

    def parameters(self) -> Sequence[ParamBlob]:
        zero = proto.FillerParameter()
        return [ParamBlob(shape, zero, learned=False) for shape in ((self.channels,), (self.channels,), (1,))]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x = bottoms[0].data
        if self.global_stats:
            text = "inverse = 1 / sqrt(weight * x2 + eps); y0 = (x0 - weight * x1) * inverse"
            mean, variance, weight = self.running()
            pointwise(rec, f"{WEIGHT}; {text}", reads=[x, mean, variance, weight], writes=[tops[0].data], scalars={"eps": self.eps})
            return
        self.mean, self.inverse = rec.saved("mean", (self.channels,)), rec.saved("inverse", (self.channels,))
        n = bottoms[0].count // self.channels
        # One pass gives both moments: shifted by a value of the channel itself, the squares do not cancel.
        shift = x.view((self.channels,), 0, bottoms[0].count // (bottoms[0].shape[0] * self.channels), "shift")
        reduce(
            rec,
            "d = x0 - x1; v0 = d; v1 = d * d",
            reads=[x, (shift, self.channel_axis)],
            writes=[self.mean, self.inverse],
            modifies=[parameter.data for parameter in self.params],
            axes=self.axes,
            finish="d = v0 / n; variance = fmax(v1 / n - d * d, 0); y0 = x1 + d; y1 = 1 / sqrt(variance + eps); "
            "m0 = fraction * m0 + y0; m1 = fraction * m1 + unbiased * variance; m2 = fraction * m2 + 1",
            scalars={"n": float(n), "eps": self.eps, "fraction": self.fraction, "unbiased": n / (n - 1) if n > 1 else 1.0},
            side_effect=True,
        )
        self.recompute(rec, bottoms, tops)

    def recompute(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        """The top from the bottom and the saved statistics, without touching the running ones."""
        reads = [bottoms[0].data, self.per_channel(self.mean), self.per_channel(self.inverse)]
        pointwise(rec, "y0 = (x0 - x1) * x2", reads=reads, writes=[tops[0].data])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy, y, dx = tops[0].diff, tops[0].data, bottoms[0].diff
        if not propagate[0]:
            return
        assert dy is not None and dx is not None
        if self.global_stats:
            _, variance, weight = self.running()
            text = f"{WEIGHT.replace('x3', 'x2')}; y0 = x0 / sqrt(weight * x1 + eps)"
            pointwise(rec, text, reads=[dy, variance, weight], writes=[dx], scalars={"eps": self.eps})
            return
        mean_dy, mean_dy_y = rec.scratch("mean_dy", (self.channels,)), rec.scratch("mean_dy_y", (self.channels,))
        reduce(
            rec,
            "v0 = x0; v1 = x0 * x1",
            reads=[dy, y],
            writes=[mean_dy, mean_dy_y],
            axes=self.axes,
            finish="y0 = v0 / n; y1 = v1 / n",
            scalars={"n": float(bottoms[0].count // self.channels)},
        )
        reads = [dy, y, *(self.per_channel(ref) for ref in (mean_dy, mean_dy_y, self.inverse))]
        pointwise(rec, "y0 = (x0 - x2 - x1 * x3) * x4", reads=reads, writes=[dx])

    def per_channel(self, ref: Ref) -> Read:
        return ref, self.channel_axis

    def running(self) -> list[Read]:
        """Sums of means, of variances, and of weights."""
        mean, variance, weight = (parameter.data for parameter in self.params)
        return [self.per_channel(mean), self.per_channel(variance), (weight, 0)]


WEIGHT = "weight = x3 == 0 ? 0 : 1 / x3"  # without any batch yet the statistics count as zero
