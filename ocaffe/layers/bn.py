"""BN: batch normalization with scale and bias in one layer, in two variants of different forks."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read
from ocaffe.layers.base import LayerClass, ParamBlob, register
from ocaffe.layers.batch_norm import ChannelNorm
from ocaffe.onnx.graph import OnnxGraph

RUNNING = ("slope_filler", "bias_filler", "momentum", "eps", "frozen", "engine")  # fields of PSPNet's and TSN's BN
FRESH = ("scale_filler", "shift_filler", "bn_mode")  # fields of SegNet's BN


@register("BN")
class BN(ChannelNorm):
    """Batch normalization with scale and bias, with running statistics in PSPNet and TSN (4 blobs), without in SegNet (2 blobs).

    The fields of bn_param select the variant, or else the number of blobs in a weights file does.
    """

    origin = "PSPNet, TSN; SegNet"
    tops = (1, 3)

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        return RunningBN if _given(param, RUNNING) else FreshBN if _given(param, FRESH) else cls

    @classmethod
    def recognise(cls, param: Any, blobs: Sequence[np.ndarray | None]) -> None:
        """Select the variant by the number of blobs: set a field of it to its default value."""
        if _given(param, RUNNING) or _given(param, FRESH):
            return
        if len(blobs) == 4:
            param.bn_param.momentum = param.bn_param.momentum
        elif len(blobs) == 2:
            param.bn_param.bn_mode = proto.BNParameter.LEARN

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        running, fresh = (_given(self.param, names) for names in (RUNNING, FRESH))
        self.check(
            running or fresh,
            "bn_param does not say whether PSPNet's BN or SegNet's is meant",
            "write bn_param { bn_mode: LEARN } for SegNet's BN, or bn_param { momentum: 0.9 } for PSPNet's; or give a weights file, whose 2 or 4 blobs tell",
        )
        self.check(
            not (running and fresh),
            f"bn_param has fields of PSPNet's BN ({', '.join(running)}) and of SegNet's ({', '.join(fresh)})",
            f"remove {' and '.join(fresh)}, or {' and '.join(running)}",
        )
        self.check_axes(bottoms[0], "N x C x ..")
        return super().infer(*bottoms)

    def blob(self, filler: Any, learned: bool = True) -> ParamBlob:
        return ParamBlob((1, self.channels, 1, 1), filler, learned)


class RunningBN(BN):
    """PSPNet's and TSN's BN: y = slope (x - mean) / sqrt(variance + eps) + bias.

    TEST and frozen layers use moving averages of mean and variance. In a frozen layer neither slope and bias nor the averages change.
    """

    tops = (1, 1)
    learned = (0, 1)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.eps, self.momentum, self.frozen = float(p.eps), float(p.momentum), bool(p.frozen)
        self.of_batch = self.phase == proto.TRAIN and not self.frozen
        return super().infer(*bottoms)

    def parameters(self) -> Sequence[ParamBlob]:
        """Return slope, bias, mean and variance. As in PSPNet, slope and bias start at 0 unless they have fillers."""
        p = self.own()
        variance = proto.FillerParameter(type="constant", value=1 if self.frozen else 0)
        learned = [self.blob(filler, not self.frozen) for filler in (p.slope_filler, p.bias_filler)]
        return [*learned, self.blob(proto.FillerParameter(), False), self.blob(variance, False)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.mean = self.inverse = None
        if self.of_batch:
            text = "m0 = momentum * m0 + (1 - momentum) * mean; m1 = momentum * m1 + (1 - momentum) * variance"
            self.measure(rec, bottoms[0], text, [self.params[2].data, self.params[3].data], {"momentum": self.momentum})
        self.normalize(rec, bottoms, tops)

    def running(self, first: int) -> tuple[list[Read], str]:
        reads = [self.per_channel(parameter.data) for parameter in self.params[2:]]
        return reads, f"mean = x{first}; inverse = 1 / sqrt(x{first + 1} + eps)"

    def running_centre(self, first: int) -> tuple[list[Read], str]:
        return [self.per_channel(self.params[2].data)], f"centre = x{first}"

    def onnx_running(self, graph: OnnxGraph) -> tuple[np.ndarray, np.ndarray] | None:
        mean, variance = (graph.array(parameter).reshape(-1) for parameter in self.params[2:])
        return mean, variance


class FreshBN(BN):
    """SegNet's BN: y = scale (x - mean) / sqrt(variance + 1e-9) + shift with batch statistics, also in TEST.

    bn_mode: INFERENCE computes y = scale x + shift. Tops 1 and 2 are the mean and the variance (1 x C x 1 x 1); they pass no gradient.
    """

    learned = (0, 1)
    eps = 1e-9

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.of_batch = self.own().bn_mode == proto.BNParameter.LEARN
        tops, count = super().infer(*bottoms), max(1, len(self.param.top))
        self.check(count != 2, "2 tops are given, SegNet's BN has 1 or 3", "remove top 1, or add top 2: tops 1 and 2 are the mean and the variance")
        self.check(self.of_batch or count == 1, f"bn_mode: INFERENCE computes no mean and variance, and {count} tops are given", "remove tops 1 and 2")
        return [*tops, *[(1, self.channels, 1, 1)] * (count - 1)]

    def parameters(self) -> Sequence[ParamBlob]:
        p = self.own()
        return [self.blob(p.scale_filler), self.blob(p.shift_filler)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.mean = self.inverse = None
        if self.of_batch:
            update = "y2 = mean; y3 = variance" if len(tops) > 1 else ""
            self.measure(rec, bottoms[0], update, writes=[top.data for top in tops[1:]])
        self.normalize(rec, bottoms, tops)

    def running(self, first: int) -> tuple[list[Read], str]:
        """Return mean 0 and inverse 1: with INFERENCE, scale and shift include the statistics."""
        return [], "mean = 0; inverse = 1"

    def onnx_running(self, graph: OnnxGraph) -> None:
        return None

    def constants(self) -> dict[str, float]:
        return {}


def _given(param: Any, names: Sequence[str]) -> list[str]:
    """Return those of the fields that are set in bn_param."""
    return [name for name in names if param.bn_param.HasField(name)]
