"""BatchNorm in the layouts of BVLC Caffe, NVCaffe and Intel's fork, and ChannelNorm, the base that it shares with BN."""
from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.formats.legacy import NVCAFFE_BATCH_NORM
from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.layer import AbstractLayer
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import ChannelAffine, Read, pointwise, reduce
from ocaffe.kernels.expression.sums import add_diffs
from ocaffe.kernels.rearrange.copy import copy as copy_samples
from ocaffe.layers.activation import Activation
from ocaffe.layers.base import TEST_PHASE, Layer, LayerClass, ParamBlob, register
from ocaffe.layers.relu import ReLU
from ocaffe.layers.scale import Scale
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.support import log

CUDNN_MIN_EPS = 1e-5  # CUDNN_BN_MIN_EPSILON, which NVCaffe uses as a lower bound on every device


@dataclass(frozen=True)
class Activated:
    """A pointwise function of x and its derivative in terms of x alone, as texts (ocaffe/layers/activation.py)."""

    value: str
    derivative: str
    scalars: Mapping[str, float]

    def assign(self, form: str, text: str) -> str:
        """Return statements and a last term as a text that assigns the term, with x renamed to `pre`."""
        *statements, term = text.split(";")
        return re.sub(r"\bx\b", "pre", "; ".join([*(statement.strip() for statement in statements), form.format(term.strip())]))


RELU = Activated("x > 0 ? x : slope * x", "x > 0 ? 1 : slope", {"slope": 0.0})
OWN_NAMES = frozenset({"n", "d", "g", "h", "t", "y", "pre", "eps", "mean", "inverse", "variance", "weight"})  # local names in the texts of this module


def _activated(layer: AbstractLayer) -> Activated | None:
    """Return the function of a layer if a normalization can compute it too, else None."""
    if isinstance(layer, ReLU):
        return replace(RELU, scalars={"slope": layer.slope})
    if not isinstance(layer, Activation) or not hasattr(layer, "derivative"):
        return None
    derivative = re.sub(r"\by\b", "x", layer.derivative) if layer.in_pieces else layer.derivative
    names = {*re.findall(r"[A-Za-z_]\w*", f"{layer.value} {derivative}"), *layer.scalars}
    return None if names & OWN_NAMES else Activated(layer.value, derivative, layer.scalars)


class ChannelNorm(Layer):
    """y = (x - mean) / sqrt(variance + eps) for every channel (axis 1), with an optional scale, bias and activation.

    Without these, and with batch statistics, backward reads the top and the inverse deviations; the bottom may be overwritten.
    Otherwise backward reads the bottom.
    """

    eps: float
    of_batch: bool  # True: statistics of the batch, through which gradients pass; False: running statistics
    relu = False
    activation: Activated | None = None  # the ReLU above, or the activation layer fused into this one
    learned: tuple[int | None, int | None] = (None, None)  # indices of the blobs of scale and bias
    mean: Ref | None = None  # computed by forward; None: the running mean is used
    inverse: Ref | None = None  # 1 / sqrt(variance + eps)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x = bottoms[0]
        self.check(len(x) > 0, "bottom 0 is a scalar, without axes", f"give {self.param.type} a bottom with a batch axis: N x C")
        self.channels = x[1] if len(x) > 1 else 1
        self.axes = (0, *range(2, len(x)))
        self.channel_axis = min(1, len(x) - 1)
        return [x]

    def running(self, first: int) -> tuple[list[Read], str]:
        """Return reads (x`first`, ..) and a text that computes `mean` and `inverse` from the running statistics. `eps` is a scalar in it."""
        raise NotImplementedError

    def running_centre(self, first: int) -> tuple[list[Read], str]:
        """Return reads (x`first`, ..) and a text that computes `centre`, a value near the channel's mean that is the same on all ranks."""
        return [], "centre = 0"

    def onnx_running(self, graph: OnnxGraph) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the mean and variance used in place of batch statistics. None means neither subtraction nor division."""
        raise NotImplementedError

    @property
    def by_sample(self) -> bool:
        return not self.of_batch

    def stored(self, blobs: Sequence[np.ndarray | None]) -> Sequence[np.ndarray | None]:
        """Forks store a value for each channel as C, 1 x C or 1 x C x 1 x 1."""
        shapes = [wanted.shape for wanted in self.parameters()]
        alike = len(blobs) == len(shapes)
        return [_shaped(blob, shape) for blob, shape in zip(blobs, shapes)] if alike else blobs

    # -- forward -----------------------------------------------------------------------------------------------------

    def measure(
        self,
        rec: Recorder,
        x: Blob,
        update: str = "",
        modifies: Sequence[Ref] = (),
        scalars: dict[str, float] | None = None,
        reads: Sequence[Read] = (),
        writes: Sequence[Ref] = (),
    ) -> None:
        """Record the batch statistics. `update` computes m0, .. (`modifies`) and y2, .. (`writes`) from `mean`, `variance`, n and x2, .. (`reads`)."""
        self.mean, self.inverse = rec.saved("mean", (self.channels,)), rec.saved("inverse", (self.channels,))
        # One pass computes both moments. Subtracting a value of the channel first avoids cancellation in the squares.
        shift = x.data.view((self.channels,), 0, x.count // (x.shape[0] * self.channels), "shift")
        text, moments = "d = x0 - x1; v0 = d; v1 = d * d", "d = v0 / n; variance = fmax(v1 / n - d * d, 0); mean = x1 + d"
        operands: list[Read] = [x.data, (shift, self.channel_axis)]
        final, written = "y0 = mean; y1 = 1 / sqrt(variance + eps)", [self.mean, self.inverse, *writes]
        n, constants = float(x.count // self.channels), {"eps": self.eps, **(scalars or {})}
        if rec.statistics_ranks == 1:
            finish = f"{moments}; {final}; {update}"
            reduce(rec, text, reads=[*operands, *reads], writes=written, modifies=modifies, axes=self.axes, finish=finish, scalars={"n": n, **constants})
            return
        # Ranks exchange moments around a centre that all have, their running mean, because moments around zero would cancel.
        each, both = (self.channels,), rec.scratch("moments", (2, self.channels))
        first, second, centre = both.view(each), both.view(each, self.channels), rec.scratch("centre", each)
        more, where = self.running_centre(2)
        finish = f"{moments}; {where}; e = mean - centre; y0 = e; y1 = variance + e * e; y2 = centre"
        reduce(rec, text, reads=[*operands, *more], writes=[first, second, centre], axes=self.axes, finish=finish, scalars={"n": n})
        rec.average(both)
        column = (self.channels, 1)
        finish = f"variance = fmax(v1 - v0 * v0, 0); mean = x{2 + len(reads)} + v0; {final}; {update}"
        reduce(
            rec, "v0 = x0; v1 = x1", reads=[first.view(column), second.view(column), *reads, (centre, 0)], writes=written,
            modifies=modifies, axes=[1], finish=finish, scalars={"n": n * rec.statistics_ranks, **constants},
        )  # fmt: skip

    def normalize(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Record the launch that computes the top from the bottom and the statistics. It does not change the running statistics."""
        reads, text = self.statistics(1)
        term, factor, offset = "(x0 - mean) * inverse", "inverse", "-mean * inverse"
        for parameter, sign in ((self.scale, "*"), (self.bias, "+")):
            if parameter is not None:
                reads.append(self.per_channel(parameter.data))
                more = f" {sign} x{len(reads)}"
                term, factor, offset = term + more, factor + more * (sign == "*"), offset + more
        act = self.activation
        affine = None if act else ChannelAffine(text, factor, offset)
        text = f"{text}; pre = {term}; {act.assign('y0 = {}', act.value)}" if act else f"{text}; y0 = {term}"
        scalars = {**self.constants(), **(act.scalars if act else {})}
        pointwise(rec, text, reads=[bottoms[0].data, *reads], writes=[tops[0].data], scalars=scalars, means=affine)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, scale, shift = graph.values[bottoms[0]], self.scale, self.bias
        each = [1] * len(bottoms[0].shape)
        each[self.channel_axis] = self.channels
        gamma = graph.array(scale).reshape(-1) if scale is not None else np.ones(self.channels, np.float32)
        beta = graph.array(shift).reshape(-1) if shift is not None else np.zeros(self.channels, np.float32)
        y = tops[0] if not self.relu else None
        if not self.of_batch:
            statistics = self.onnx_running(graph)
            if statistics is None:
                result = graph.op("Add", graph.op("Mul", x, gamma.reshape(each)), beta.reshape(each), to=y)
            elif len(each) == 1:
                rate = gamma / np.sqrt(statistics[1] + np.float32(self.eps))
                result = graph.op("Add", graph.op("Mul", x, rate), beta - rate * statistics[0], to=y)
            else:
                result = graph.op("BatchNormalization", x, gamma, beta, *statistics, to=y, epsilon=self.eps)
        else:
            mean = graph.reduce("ReduceMean", x, self.axes)
            centred = graph.op("Sub", x, mean)
            variance = graph.reduce("ReduceMean", graph.op("Mul", centred, centred), self.axes)
            result = graph.op("Div", centred, graph.op("Sqrt", graph.op("Add", variance, self.eps)), to=y if self.plain else None)
            if scale is not None:
                result = graph.op("Mul", result, gamma.reshape(each), to=y if shift is None else None)
            if shift is not None:
                result = graph.op("Add", result, beta.reshape(each), to=y)
            for top, value in zip(tops[1:], (mean, variance)):
                graph.reshape(value, to=top)
        if self.relu:
            graph.op("Relu", result, to=tops[0])

    # -- backward ----------------------------------------------------------------------------------------------------

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy, y, dx = tops[0].diff, tops[0].data, bottoms[0].diff
        assert dy is not None
        scale_diff, bias_diff = (parameter.diff if parameter is not None else None for parameter in (self.scale, self.bias))
        through = self.of_batch and propagate[0]
        # g: the gradient before the activation; h: the normalized x
        operands: list[Read] = [dy]
        if self.of_batch and self.plain:
            assert self.inverse is not None
            operands += [y, self.per_channel(self.inverse)]
            text = "h = x1; inverse = x2; g = x0"
        elif through or scale_diff is not None or (self.activation and self.of_batch):
            statistics, where = self.statistics(2)
            operands += [bottoms[0].data, *statistics]
            text = f"{where}; h = (x1 - mean) * inverse; {self.before_activation(operands)}"
        else:
            statistics, where = self.statistics(1)
            operands += statistics
            text = f"{where}; g = x0"
            if self.activation:  # always a ReLU: other activations are fused only with batch statistics
                operands.append(y)
                text = f"{where}; g = x{len(operands) - 1} > 0 ? x0 : slope * x0"
        constants = {**self.constants(), **(self.activation.scalars if self.activation else {})}

        means = rec.scratch("means", (2, self.channels)) if through else None  # of g and g * h
        sums = [means.view((self.channels,), offset) for offset in (0, self.channels)] if means else []
        results = [(ref, f"{value} / n") for ref, value in zip(sums, ("v0", "v1"))]
        results += [(ref, value) for ref, value in ((bias_diff, "v0"), (scale_diff, "v1")) if ref is not None]
        if results:
            products = "; v1 = g * h" if any("v1" in value for _, value in results) else ""
            finish = "; ".join(f"y{i} = {value}" for i, (_, value) in enumerate(results))
            count = {"n": float(bottoms[0].count // self.channels)} if sums else {}
            reduce(
                rec, f"{text}; v0 = g{products}", reads=operands, writes=[ref for ref, _ in results], axes=self.axes, finish=finish,
                scalars={**constants, **count},
            )  # fmt: skip
        if means and rec.statistics_ranks > 1:
            rec.average(means)
        if propagate[0]:
            assert dx is not None
            term = "g * inverse"
            if sums:
                term = f"(g - x{len(operands)} - h * x{len(operands) + 1}) * inverse"
                operands += [self.per_channel(ref) for ref in sums]
            if self.scale is not None:
                term = f"{term} * x{len(operands)}"
                operands.append(self.per_channel(self.scale.data))
            pointwise(rec, f"{text}; y0 = {term}", reads=operands, writes=[dx], scalars=constants)

    def before_activation(self, operands: list[Read]) -> str:
        """Return the text that computes g from h and x0, the top's gradient, and append its operands.

        The text recomputes the activation's input, so that no launch has to save it.
        """
        if self.activation is None:
            return "g = x0"
        text = "pre = h"
        for parameter, sign in ((self.scale, "*"), (self.bias, "+")):
            if parameter is not None:
                text += f" {sign} x{len(operands)}"
                operands.append(self.per_channel(parameter.data))
        return f"{text}; {self.activation.assign('g = x0 * ({})', self.activation.derivative)}"

    # -- help --------------------------------------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        return self.activation is None and self.scale is None and self.bias is None

    @property
    def scale(self) -> Parameter | None:
        return None if self.learned[0] is None else self.params[self.learned[0]]

    @property
    def bias(self) -> Parameter | None:
        return None if self.learned[1] is None else self.params[self.learned[1]]

    def statistics(self, first: int) -> tuple[list[Read], str]:
        """Return reads (x`first`, ..) and a text that computes `mean` and `inverse` from them."""
        if self.mean is None or self.inverse is None:
            return self.running(first)
        return [self.per_channel(self.mean), self.per_channel(self.inverse)], f"mean = x{first}; inverse = x{first + 1}"

    def constants(self) -> dict[str, float]:
        """Return the scalars of the text that `statistics` returns."""
        return {"eps": self.eps} if self.mean is None else {}

    def per_channel(self, ref: Ref) -> Read:
        return ref.view((self.channels,)), self.channel_axis


@register("BatchNorm")
class BatchNorm(ChannelNorm):
    """y = (x - mean) / sqrt(variance + eps) per channel, with batch statistics in TRAIN and running ones in TEST, unless use_global_stats is set.

    Blobs: a sum of means, a sum of variances, and the sum of their weights. Every forward pass with batch statistics multiplies them by
    moving_average_fraction and adds to them. The running mean is blob 0 divided by blob 2. Solvers do not update these blobs.

    Fields of forks:

    * scale_bias, scale_filler or bias_filler (NVCaffe): blobs 3 and 4 are a scale and a bias. Blobs 0 and 1 are running averages with weight 1. As in
      NVCaffe 0.16, scale and bias learn with lr_mult 1 and decay_mult 1, and the statistics do not, whatever the param blocks say. Four param blocks
      are those of NVCaffe 0.15 (scale, bias, mean, variance), which always has scale and bias.
    * use_weight_bias, filler or bias_term (Intel): blobs 3 and 4 are a scale and a bias. Blobs 0 to 2 are sums as in BVLC Caffe. Five param blocks
      whose first two have lr_mult 0 are Intel's.
    * stats_batch_size (Intel), also as bn_stats_batch_size of the net: each group of so many samples has its own batch statistics.
    * relu (Intel) and fused_relu (OpenCL branch): the layer ends with a ReLU.
    * update_global_stats (PSPNet), with use_global_stats in TRAIN: the variance is that of the batch around the running mean. It is added to the sums.
    """

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        return GroupedBatchNorm if param.batch_norm_param.stats_batch_size else cls

    @classmethod
    def recognise(cls, param: Any, blobs: Sequence[np.ndarray | None]) -> None:
        """Recognise a layout with scale and bias by its five blobs.

        The weight (blob 2) is a sum in Intel's fork and 1 in NVCaffe. NVCaffe 0.15 writes 0, and does not read it.
        """
        if len(blobs) == 5 and not (_scale_bias(param) or _weight_bias(param)):
            mean, variance, weight = _ordered(blobs)[:3]
            averages = weight is None or weight.item(0) == 1 or (weight.item(0) == 0 and _has_values(mean, variance))
            setattr(param.batch_norm_param, "scale_bias" if averages else "use_weight_bias", True)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        tops = super().infer(*bottoms)
        given = bool(p.use_global_stats) if p.HasField("use_global_stats") else self.phase == proto.TEST
        self.of_batch = not given
        self.averages = _scale_bias(self.param)
        self.fraction = float(p.moving_average_fraction)
        self.eps = max(float(p.eps), CUDNN_MIN_EPS) if self.averages else float(p.eps)
        self.relu = bool(p.relu or p.fused_relu)
        self.activation = RELU if self.relu else None
        if self.averages or _weight_bias(self.param):
            self.learned = 3, 4 if self.averages or p.bias_term else None
        self.note_specs()
        return tops

    def note_specs(self) -> None:
        """Note param blocks of 0 for scale and bias, which NVCaffe ignores."""
        told = [spec.lr_mult for spec in self.param.param if spec.HasField("lr_mult")]
        if self.averages and told and not any(told):
            self.notes = [("batch_norm_layer.cpp:90", f"{self.param.name}: scale and bias learn with lr_mult 1, as in NVCaffe 0.16, although param has 0")]

    def specs(self) -> Sequence[Any]:
        if not self.averages:
            return super().specs()
        result = [proto.ParamSpec() for _ in range(5)]
        for index, spec in enumerate(result):
            if index < len(self.param.param):
                spec.CopyFrom(self.param.param[index])
            spec.lr_mult = spec.decay_mult = float(index >= 3)
        return result

    @property
    def by_sample(self) -> bool:
        return super().by_sample and not self.own().update_global_stats

    def fuse_with(self, following: Sequence[AbstractLayer]) -> tuple[AbstractLayer, int]:
        """Fuse with a following Scale layer and an activation. Backward then takes two passes instead of five and does not keep the normalized x."""
        result, count = copy.copy(self), 0
        if not self.of_batch or not self.plain:
            return self, 0
        if following and isinstance(following[0], Scale) and following[0].learned and following[0].first == 1 and following[0].shape == (self.channels,):
            count = 1
            result.params = [*self.params[:3], *following[0].params]
            result.learned = 3, 4 if following[0].biased else None
        result.activation = _activated(following[count]) if following[count:] else None
        count += result.activation is not None
        return result, count

    def parameters(self) -> Sequence[ParamBlob]:
        p, zero, one = self.own(), proto.FillerParameter(), proto.FillerParameter(type="constant", value=1)
        each = (self.channels,)
        blobs = [ParamBlob(shape, zero, learned=False) for shape in (each, each, (1,))]
        if self.learned[0] is not None:
            name = "scale_filler" if self.averages else "filler"
            blobs.append(ParamBlob(each, getattr(p, name) if p.HasField(name) else one))
        if self.learned[1] is not None:
            blobs.append(ParamBlob(each, p.bias_filler))
        return blobs

    def stored(self, blobs: Sequence[np.ndarray | None]) -> Sequence[np.ndarray | None]:
        result = list(super().stored(_ordered(blobs)))
        if len(result) < 3 or result[2] is None or result[2].item(0) != 0 or not _has_values(*result[:2]):
            return result
        if self.averages:  # NVCaffe never reads the weight
            result[2] = np.ones_like(result[2])
        else:
            log.warning(
                "net.cpp:744", f"{self.title}: blob 2 of the file, the weight of the running statistics, is 0, but the mean and the variance are not. "
                "As in Caffe, the layer takes 0 for both. If they are the real statistics, set the weight to 1: "
                f"net.params['{self.param.name}'][2].data[...] = 1",
            )  # fmt: skip
        return result

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        mean, variance, weight = (parameter.data for parameter in self.params[:3])
        n = bottoms[0].count // self.channels * rec.statistics_ranks
        self.mean = self.inverse = None
        scalars = {"fraction": self.fraction, "unbiased": n / (n - 1) if n > 1 else 1.0}
        if self.of_batch and self.averages:
            # NVCaffe's averages start as the first batch's statistics. A weight of 0 means that there was no batch yet.
            text = "new = x2 == 0 ? 1 : 1 - fraction; m0 = (1 - new) * m0 + new * mean; m1 = (1 - new) * m1 + new * unbiased * variance"
            self.measure(rec, bottoms[0], text, [mean, variance], scalars, reads=[(weight, 0)])
            pointwise(rec, "m0 = 1", modifies=[weight], side_effect=True)
        elif self.of_batch:
            text = "m0 = fraction * m0 + mean; m1 = fraction * m1 + unbiased * variance; m2 = fraction * m2 + 1"
            self.measure(rec, bottoms[0], text, [mean, variance, weight], scalars)
        elif self.own().update_global_stats and self.phase == proto.TRAIN:
            self.check(
                rec.statistics_ranks == 1,
                "update_global_stats is true, and synchronize_statistics of the solver is true too: the first uses the batch of one rank only",
                "remove update_global_stats from batch_norm_param, or synchronize_statistics from the solver",
            )
            self.update_global(rec, bottoms[0], scalars)
        self.normalize(rec, bottoms, tops)

    def update_global(self, rec: Recorder, x: Blob, scalars: dict[str, float]) -> None:
        """Record PSPNet's update_global_stats: use the running mean, and the variance of the batch around it, and add both to the sums."""
        mean, variance, weight = (parameter.data for parameter in self.params[:3])
        self.mean, self.inverse = rec.saved("mean", (self.channels,)), rec.saved("inverse", (self.channels,))
        pointwise(rec, "y0 = x1 == 0 ? 0 : x0 / x1", reads=[mean, (weight, 0)], writes=[self.mean])
        reduce(
            rec,
            "d = x0 - x1; v0 = d * d",
            reads=[x.data, self.per_channel(self.mean)],
            writes=[self.inverse],
            modifies=[mean, variance, weight],
            axes=self.axes,
            finish="variance = v0 / n; y0 = 1 / sqrt(variance + eps); "
            "m0 = fraction * m0 + x1; m1 = fraction * m1 + unbiased * variance; m2 = fraction * m2 + 1",
            scalars={"n": float(x.count // self.channels), "eps": self.eps, **scalars},
        )

    def running(self, first: int) -> tuple[list[Read], str]:
        mean, variance, weight = (parameter.data for parameter in self.params[:3])
        # Before the first batch, mean and variance are zero.
        text = f"weight = x{first + 2} == 0 ? 0 : 1 / x{first + 2}; mean = weight * x{first}; inverse = 1 / sqrt(weight * x{first + 1} + eps)"
        return [self.per_channel(mean), self.per_channel(variance), (weight, 0)], text

    def running_centre(self, first: int) -> tuple[list[Read], str]:
        mean, _, weight = (parameter.data for parameter in self.params[:3])
        return [self.per_channel(mean), (weight, 0)], f"centre = x{first + 1} == 0 ? 0 : x{first} / x{first + 1}"

    def onnx_running(self, graph: OnnxGraph) -> tuple[np.ndarray, np.ndarray] | None:
        if self.own().update_global_stats and self.phase == proto.TRAIN:
            raise graph.refused("update_global_stats takes the variance of the batch in the TRAIN phase", TEST_PHASE)
        mean, variance, weight = (graph.array(parameter).reshape(-1) for parameter in self.params[:3])
        rate = np.float32(0 if weight.item() == 0 else 1 / weight.item())
        return mean * rate, variance * rate


class GroupedBatchNorm(BatchNorm):
    """A BatchNorm with Intel's stats_batch_size: batch statistics of each group of so many consecutive samples, one group after another."""

    groups = 1

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops, size = super().infer(*bottoms), int(self.own().stats_batch_size)
        if self.of_batch:
            samples = bottoms[0][0]
            self.check(
                samples % size == 0,
                f"the batch has {samples} samples, stats_batch_size is {size}",
                f"set the batch size to a multiple of {size}, or remove stats_batch_size",
            )
            self.groups = max(samples // size, 1)
        return tops

    def fuse_with(self, following: Sequence[AbstractLayer]) -> tuple[AbstractLayer, int]:
        return super().fuse_with(following) if self.groups == 1 else (self, 0)

    def part(self, rec: Recorder, x: Ref, group: int, role: Role = Role.SCRATCH) -> Ref:
        """Return a copy of the samples of a group."""
        size = x.shape[0] // self.groups
        result = rec.scratch("part", (size, *x.shape[1:]), role=role)
        copy_samples(rec, x, result, 0, size, x_start=group * size)
        return result

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.groups == 1:
            super().forward(rec, bottoms, tops)
            return
        self.members: list[BatchNorm] = []
        size = bottoms[0].shape[0] // self.groups
        for group in range(self.groups):
            x, y = (Blob(blob.name, (size, *blob.shape[1:])) for blob in (bottoms[0], tops[0]))
            x.data, y.data = self.part(rec, bottoms[0].data, group), rec.scratch("top", y.shape)
            member = BatchNorm(self.param, self.phase, self.place)
            member.infer(x.shape)
            member.params = self.params
            member.forward(rec, [x], [y])
            copy_samples(rec, y.data, tops[0].data, 0, size, y_start=group * size)
            self.members.append(member)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        if self.groups == 1:
            super().backward(rec, tops, bottoms, propagate)
            return
        assert tops[0].diff is not None
        gradients: dict[int, list[Ref]] = {index: [] for index, parameter in enumerate(self.params) if parameter.diff is not None}
        size = bottoms[0].shape[0] // self.groups
        for group, member in enumerate(self.members):
            member.params = [copy.copy(parameter) for parameter in self.params]
            for index, own in gradients.items():
                own.append(rec.scratch("gradient", self.params[index].shape))
                member.params[index].diff = own[-1]
            x, y = (Blob(blob.name, (size, *blob.shape[1:])) for blob in (bottoms[0], tops[0]))
            if self.plain:
                y.data = self.part(rec, tops[0].data, group)
            else:
                x.data = self.part(rec, bottoms[0].data, group)
            y.diff = self.part(rec, tops[0].diff, group, Role.DIFF)
            x.diff = rec.scratch("diff", x.shape, role=Role.DIFF) if propagate[0] else None
            member.backward(rec, [y], [x], propagate)
            if x.diff is not None:
                assert bottoms[0].diff is not None
                copy_samples(rec, x.diff, bottoms[0].diff, 0, size, y_start=group * size)
        for index, own in gradients.items():
            diff = self.params[index].diff
            assert diff is not None
            add_diffs(rec, own, diff)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.groups > 1:
            raise graph.refused(f"stats_batch_size gives each of {self.groups} groups of samples its own statistics", TEST_PHASE)
        super().onnx(graph, bottoms, tops)


def _scale_bias(param: Any) -> bool:
    """Whether a LayerParameter requests NVCaffe's scale and bias. bias_filler is also a field of Intel's fork."""
    p = param.batch_norm_param
    if _weight_bias(param) or p.HasField("use_weight_bias"):
        return bool(p.scale_bias or p.HasField("scale_filler"))
    return _marked(p) or len(param.param) > 3


def _weight_bias(param: Any) -> bool:
    """Whether a LayerParameter requests Intel's scale and bias. BVLC Caffe has three parameters, so more param blocks are a fork's."""
    p, specs = param.batch_norm_param, param.param
    if p.HasField("use_weight_bias"):
        return bool(p.use_weight_bias)
    return bool(p.HasField("filler") or p.HasField("bias_term") or (len(specs) == 5 and not (specs[0].lr_mult or specs[1].lr_mult) and not _marked(p)))


def _marked(p: Any) -> bool:
    """Whether a BatchNormParameter has a field of NVCaffe."""
    return any(p.HasField(name) and getattr(p, name) for name in NVCAFFE_BATCH_NORM)


def _has_values(*blobs: np.ndarray | None) -> bool:
    return any(blob is not None and blob.any() for blob in blobs)


def _shaped(blob: np.ndarray | None, shape: Shape) -> np.ndarray | None:
    """Return a blob in `shape` if the shapes differ in axes of size 1 only."""
    same = blob is not None and [n for n in blob.shape if n != 1] == [n for n in shape if n != 1]
    return blob.reshape(shape) if blob is not None and same else blob


def _ordered(blobs: Sequence[np.ndarray | None]) -> Sequence[np.ndarray | None]:
    """Return blobs in the order mean, variance, weight, scale, bias. NVCaffe 0.15 and Intel's first releases put scale and bias first."""
    sizes = [blob.size if blob is not None else 0 for blob in blobs]
    in_front = len(sizes) == 5 and sizes[4] == 1 and sizes[2] > 1
    return [*blobs[2:], *blobs[:2]] if in_front else blobs
