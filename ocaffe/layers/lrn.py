"""LRN: local response normalization, across channels or within each."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.graph.ir import Blob, Ref, Shape
from ocaffe.graph.recorder import Recorder
from ocaffe.layers.base import Layer, register
from ocaffe.ops.pooling import rows_of_item

LONGEST_SPAN = 1024  # SPAN of kernels/lrn_cpu.cl
ENOUGH_ITEMS = 1 << 17  # work-items that keep a large GPU busy
FEW_POSITIONS = 1 << 14  # up to here a GPU needs the channels in chunks even if that rules out working in place
GROUP = 64  # work-items of a group on GPUs
CHUNK = 16  # channels of a chunk at the least: each reads local_size - 1 more


@register("LRN")
class LRN(Layer):
    """y = x (k + alpha / n * sum of x^2 over n channels)^-beta; within a channel over n x n pixels, / n^2, and with k = 1, as in Caffe.

    Nothing is saved: backward computes the sums again from the bottom.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        param, x = self.own(), bottoms[0]
        self.check(param.local_size % 2 == 1, f"local_size is {param.local_size}, LRN takes odd values only", "an odd local_size")
        fused = param.fuse_type != param.UNFUSED or param.HasField("pooling_param")
        self.check(not fused, "lrn_param { fuse_type, pooling_param } (a fork's) is not supported", "add a Pooling layer")
        self.across = param.norm_region == param.ACROSS_CHANNELS
        self.check(len(x) == 4, f"bottom 0 is {shape_text(x)}, it must be N x C x H x W", "add a Reshape layer before it")
        return [x]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, y = bottoms[0].data, tops[0].data
        if self.across:
            self._across(rec, "forward", [x], y, inplace=0)
        else:
            self._within(rec, "forward", [x], y)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        x, dy, dx = bottoms[0].data, tops[0].diff, bottoms[0].diff
        assert dy is not None and dx is not None
        if self.across:
            self._across(rec, "backward", [x, dy], dx, rec.accumulates(dx), inplace=1)
        else:
            terms = rec.scratch("terms", x.shape)
            self._within(rec, "terms", [x, dy], terms)
            self._within(rec, "backward", [x, dy, terms], dx, rec.accumulates(dx))

    # -- launches ----------------------------------------------------------------------------------------------------

    def _across(self, rec: Recorder, function: str, reads: list[Ref], write: Ref, *args: bool, inplace: int) -> None:
        param, (samples, channels, height, width) = self.own(), write.shape
        plane = height * width
        size: tuple[int, ...]
        local: tuple[int, ...]
        if rec.target.is_cpu:
            family, part, chunk, local = "lrn_cpu", self._span(rec, samples, plane), channels, (1, 1)
            size = (-(-plane // part), samples)
        else:
            part = chunk = self._chunk(rec, samples * plane, channels)
            family, size, local = "lrn", (plane, -(-channels // chunk), samples), (GROUP, 1, 1)
        rec.launch(
            f"{family}.{function}",
            reads=reads,
            writes=[write],
            args=[channels, plane, part, param.alpha / param.local_size, param.k, param.beta, *args],
            size=size,
            local=local,
            defines=self._defines(),
            inplace=[(inplace, 0)] if chunk >= channels else [],
        )

    @staticmethod
    def _span(rec: Recorder, samples: int, plane: int) -> int:
        """Positions of a CPU's work-item: many, but not so many that cores are idle."""
        spans = -(-4 * rec.target.compute_units // samples)
        return min(LONGEST_SPAN, max(16, -(-plane // spans // 16) * 16))

    @staticmethod
    def _chunk(rec: Recorder, positions: int, channels: int) -> int:
        """Channels of a GPU's work-item: all, so that the launch works in place, unless it is not wanted or leaves the device idle."""
        if not rec.train and positions >= FEW_POSITIONS:
            return channels
        chunks = min(-(-ENOUGH_ITEMS // positions), -(-channels // CHUNK))
        return -(-channels // chunks)

    def _within(self, rec: Recorder, function: str, reads: list[Ref], write: Ref, *args: bool) -> None:
        param, (samples, channels, height, width) = self.own(), write.shape
        size: tuple[int, ...]
        local: tuple[int, ...] = (GROUP, 1)
        if rec.target.is_cpu:
            rows = rows_of_item(rec.target, height, samples * channels)
            family, first, size, local = "lrn_within_cpu", rows, (-(-height // rows), channels, samples), (1, 1, 1)
        else:
            family, first, size = "lrn_within", channels * height * width, (channels * height * width, samples)
        share = param.alpha / param.local_size**2
        rec.launch(
            f"{family}.{function}",
            reads=reads,
            writes=[write],
            args=[first, height, width, share, param.beta, *args],
            size=size,
            local=local,
            defines=self._defines(),
        )

    def _defines(self) -> dict[str, object]:
        param = self.own()
        return {"SIZE": param.local_size, "BETA_075": int(math.isclose(param.beta, 0.75))}
