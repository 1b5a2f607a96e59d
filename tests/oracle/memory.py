"""What Caffe's own memory gives, in double precision: a net whose blobs share their memory as in Caffe, and whose layers read it when they run backward.

It says whether a known habit of Caffe explains its values: a layer in place on a value that is read later, views that share a diff, a loss weight that is
written once, a pooling of the package. Rules of `tables` that have this evidence cover nothing else.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ocaffe.layers.base import registry
from tests.oracle import values
from tests.oracle.exact import FAULTS, RULES, At, Evaluation, Tensor, pooling, spp
from tests.oracle.graph import OWNERS, loss_weights, shares

KEPT = (  # types whose backward pass uses values that the forward pass kept, or none
    "Pooling", "SPP", "BatchNorm", "BN", "LSTM", "RNN", "Lstm", "SoftmaxWithLoss", "InfogainLoss", "SigmoidCrossEntropyLoss", "EuclideanLoss",
    "HingeLoss", "ContrastiveLoss", "Filter", "BatchReindex", "Embed", "Parameter",
)  # fmt: skip
UNASKED = ("BatchNorm", "Im2col", "LRN", "MVN", "Permute", "Softmax", "Upsample")  # types that do not read propagate_down
FLT_MAX = float(np.finfo(np.float32).max)
KEPT_IN_PLACE = ("PReLU", "Scale")  # they keep a copy of the bottom where they work in place


class Values:
    """Memory that blobs can share."""

    def __init__(self, count: int) -> None:
        self.flat = torch.zeros(count, dtype=torch.float64)


class Blob:
    """A shape with data and diff. A blob gets new memory, with zeros, when its shape needs more than before."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.capacity = -1
        self.data, self.diff = Values(0), Values(0)

    def reshape(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        if math.prod(shape) > self.capacity:
            self.capacity = math.prod(shape)
            self.data, self.diff = Values(self.capacity), Values(self.capacity)

    @property
    def x(self) -> Tensor:
        return self.data.flat[: math.prod(self.shape)].view(self.shape)

    @property
    def dx(self) -> Tensor:
        return self.diff.flat[: math.prod(self.shape)].view(self.shape)


@dataclass
class Ran:
    """A layer after its forward pass: its blobs, and the tensors of its rule."""

    layer: Any
    bottoms: list[Blob]
    tops: list[Blob]
    at: At
    results: list[Tensor]

    @property
    def in_place(self) -> bool:
        return bool(self.tops) and self.tops[0] in self.bottoms


class Memory(Evaluation):
    """The arrays as Caffe's memory has them after each pass."""

    def __init__(self, *arguments: Any) -> None:
        self.blobs: dict[str, Blob] = {}
        self.backward, self.down = arguments[1].of_caffe
        self.inner: dict[str, Blob] = {}  # memory that belongs to layers
        self.weighted: set[str] = set()  # layers whose loss weights are written
        super().__init__(*arguments)

    def _pass(self, step: int) -> None:
        with torch.no_grad():
            ran = [self._forward(layer, step) for layer in self.net.layer]
            read = {bottom for layer in self.net.layer for bottom in layer.bottom if bottom not in layer.top}
            outputs = [name for name in self.blobs if name not in read]
            for name, blob in self.blobs.items():
                self.arrays[f"data {step}/{name}"] = blob.x.numpy().copy()
                if name in outputs:
                    self.arrays[f"output {step}/{name}"] = blob.x.numpy().copy()
            for name in self.case.diffs:
                if name in outputs and name not in self.graph.weighted:
                    blob = self.blobs[name]
                    blob.dx.copy_(torch.tensor(values.draw(values.NORMAL, blob.shape, self.case.seed, "diff", name, step)))
            gradients = {name: [torch.zeros_like(tensor) for tensor in tensors] for name, tensors in self.parameters.items()}
            for one in reversed(ran):
                if one.layer.name in self.backward and (one.bottoms or one.at.p):
                    self._backward(one, step, gradients.get(one.layer.name, []))
            for name, blob in self.blobs.items():
                self.arrays[f"diff {step}/{name}"] = blob.dx.numpy().copy()
            for name, tensors in self.parameters.items():
                for index, tensor in enumerate(tensors):
                    self.arrays[f"parameter {step}/{name}/{index}"] = tensor.detach().numpy().copy()
                    shared = [gradients[other][at] for other, all in self.parameters.items() for at, same in enumerate(all) if same is tensor]
                    self.arrays[f"parameter diff {step}/{name}/{index}"] = sum(shared, torch.zeros_like(tensor)).numpy()

    def _forward(self, layer: Any, step: int) -> Ran:
        bottoms = [self.blobs[name] for name in layer.bottom]
        with torch.enable_grad():
            x = [blob.x.clone().requires_grad_() for blob in bottoms]
            at = At(layer, self.case.phase == "TRAIN", x, self._parameters(layer), self.kept.setdefault(layer.name, {}), self.rounded)
            if layer.type == "Eltwise" and layer.top[0] == layer.bottom[0] and layer.eltwise_param.operation == layer.eltwise_param.MAX:
                at.x = [torch.full_like(x[0], -FLT_MAX).requires_grad_(), *x[1:]]  # Caffe fills the top before it compares
            at.kept["parameters"] = self.parameters.get(layer.name, [])
            at.kept["shapes"] = [self.shapes.get(f"data {step}/{top}", ()) for top in layer.top]
            if layer.type == "LSTM" and x[0].shape[0] == 1 and "states" in at.kept:
                at.kept["states"][0] = self.blobs[layer.top[0]].x[0].clone()  # the last state is the top
            results = self._inputs(layer, step) if layer.type in ("Input", "MemoryData") else self._rule(at, step)
        tops = []
        for name, result in zip(layer.top, results):
            blob = self.blobs.setdefault(name, Blob())
            blob.reshape(tuple(result.shape))
            if shares(layer):
                blob.data = bottoms[0].data
                if layer.type not in ("Split", "Flatten", "Permute"):
                    blob.diff = bottoms[0].diff
            if layer.type in OWNERS:
                inner = self.inner.setdefault(name, Blob())
                inner.reshape(blob.shape)
                blob.data, blob.diff = inner.data, inner.diff
                if layer.type == "Parameter":
                    blob.data.flat = self.parameters[layer.name][0].detach().view(-1)  # the parameter itself
                    blob.dx.zero_()  # by the script, before each pass
            tops.append(blob)
        if layer.name not in self.weighted:  # loss weights are written once, when the net is made
            self.weighted.add(layer.name)
            for blob, weight in zip(tops, loss_weights(layer)):
                if weight:
                    blob.dx.fill_(weight)
        if layer.type == "Eltwise" and tops[0] in bottoms and layer.eltwise_param.operation == layer.eltwise_param.SUM:
            tops[0].x.zero_()
            for weight, blob in zip(layer.eltwise_param.coeff or [1.0] * len(bottoms), bottoms):
                tops[0].x.add_(weight * blob.x)
        elif layer.type == "LRN" and tops[0] in bottoms and layer.lrn_param.norm_region == layer.lrn_param.ACROSS_CHANNELS:
            tops[0].x.copy_(self.rounded((results[0] / bottoms[0].x).detach()) ** 2)  # the factor, times what it has overwritten
        elif not shares(layer) and layer.type != "Parameter" and not (layer.type == "DummyData" and step):  # constants are filled once
            for blob, result in zip(tops, results):
                blob.x.copy_(result.detach() if layer.type in ("Input", "MemoryData") else self.rounded(result.detach()))
        if layer.type == "HingeLoss":  # its margins are in the diff of the scores
            scores, labels = bottoms[0].x.reshape(bottoms[0].shape[0], -1), bottoms[1].x.reshape(-1).long()
            sign = torch.ones_like(scores)
            sign[torch.arange(len(scores)), labels] = -1
            bottoms[0].dx.copy_(torch.relu(1 + sign * scores).reshape(bottoms[0].shape))
        if layer.type == "LSTM" and len(tops) > 1 and tops[0].shape[0] == 1:
            tops[1].data, tops[1].diff = tops[0].data, tops[0].diff
            self.inner[layer.top[1]].data, self.inner[layer.top[1]].diff = tops[0].data, tops[0].diff
        return Ran(layer, bottoms, tops, at, results)

    def _parameters(self, layer: Any) -> list[Tensor]:
        return [self.rounded(tensor.detach()).clone().requires_grad_() for tensor in self.parameters.get(layer.name, [])]

    def _rule(self, at: At, step: int) -> list[Tensor]:
        kind = at.layer.type
        rule = OF_THE_PACKAGE.get(kind) or RULES.get(kind)
        if rule:
            try:
                return rule(at)
            except FAULTS:
                pass
        arrays = [self.graph.arrays.get(f"data {step}/{top}") for top in at.layer.top]  # a type without a rule: Caffe's own values
        return [torch.tensor(array, dtype=torch.float64) for array in arrays if array is not None]

    def _backward(self, ran: Ran, step: int, gradients: list[Tensor]) -> None:
        layer, down = ran.layer, self.down[ran.layer.name]
        if layer.type in UNASKED and not (layer.type == "LRN" and layer.lrn_param.norm_region == layer.lrn_param.WITHIN_CHANNEL):
            down = [True, *down[1:]]
        if layer.type == "LSTMUnit" and any(down):
            down = [True, True, False]
        if layer.type == "Flatten" or (layer.type == "Permute" and shares(layer)):
            ran.bottoms[0].diff = ran.tops[0].diff
        elif layer.type == "Split":
            if down[0]:
                ran.bottoms[0].dx.copy_(self.rounded(sum(top.dx for top in ran.tops)))
        elif shares(layer):
            return
        elif layer.type == "Eltwise":
            self._eltwise(ran, down)
        elif layer.type in BACKWARD:
            if down[0]:
                BACKWARD[layer.type](ran)
            if layer.type == "Normalize":
                self._scale_of_normalize(ran, gradients)
        else:
            self._by_rule(ran, step, down, gradients)

    def _by_rule(self, ran: Ran, step: int, down: list[bool], gradients: list[Tensor]) -> None:
        """The gradients of the rule, at the values that the memory has now or at those that the layer kept."""
        layer, at, results = ran.layer, ran.at, ran.results
        if layer.type not in KEPT and not (layer.type in KEPT_IN_PLACE and ran.in_place) and layer.type in RULES:
            with torch.enable_grad():
                at = At(layer, at.train, [blob.x.clone().requires_grad_() for blob in ran.bottoms], at.p, dict(at.kept), at.r)
                results = self._rule(at, step)
        loss = registry()[layer.type].is_loss
        tops = [self.inner.get(name, top) for name, top in zip(layer.top, ran.tops)]
        pairs = [(y, top.dx.clone()) for y, top in zip(results[:1] if loss else results, tops) if y.requires_grad]
        if layer.type == "RNN" and results[0].shape[0] == 1:  # its TanH reads the top
            y, now = results[0].detach(), tops[0].x
            pairs[0] = pairs[0][0], torch.where(now == y, pairs[0][1], pairs[0][1] * (1 - now * now) / (1 - y * y))
        if layer.type == "Lstm" and pairs:  # the gradients of the recurrence are added to the diff of the top
            tops[0].dx.copy_(torch.stack(torch.autograd.grad(results[0], at.kept["hidden"], pairs[0][1], retain_graph=True)))
        wanted = [*at.x, *at.p]
        found = [None] * len(wanted) if not pairs else torch.autograd.grad([y for y, _ in pairs], wanted, [dy for _, dy in pairs], allow_unused=True)
        for blob, passed, dx, x in zip(ran.bottoms, down, found, at.x):
            if passed:
                missing = torch.zeros_like(x) if layer.type in RULES else torch.full_like(x, torch.nan)
                blob.dx.copy_(self.rounded(dx if dx is not None else missing))
        self._scratch(ran, down)
        for index, (total, dp) in enumerate(zip(gradients, found[len(at.x) :])):
            if dp is not None and self.graph.learns(layer, index):
                total.add_(dp)

    def _scratch(self, ran: Ran, down: list[bool]) -> None:
        """Scale has its products in the diff of its bottom, if that is not written."""
        layer = ran.layer
        if layer.type == "Scale" and not down[0] and not ran.in_place:
            wanted = down[1] if len(ran.bottoms) > 1 else self.graph.learns(layer, 0)
            operand = ran.bottoms[1].shape if len(ran.bottoms) > 1 else ran.at.p[0].shape
            if wanted and math.prod(operand) != math.prod(ran.bottoms[0].shape):
                ran.bottoms[0].dx.copy_(ran.tops[0].dx * ran.bottoms[0].x)

    def _eltwise(self, ran: Ran, down: list[bool]) -> None:
        own, y, dy = ran.layer.eltwise_param, ran.tops[0].x, ran.tops[0].dx
        for index, (blob, passed) in enumerate(zip(ran.bottoms, down)):
            if not passed:
                continue
            if own.operation == own.SUM:
                blob.dx.copy_((own.coeff[index] if own.coeff else 1.0) * dy)
            elif own.operation == own.MAX:
                (chosen,) = torch.autograd.grad(ran.results, ran.at.x[index], [torch.ones_like(y)], retain_graph=True)
                blob.dx.copy_(chosen * dy)
            else:
                others = math.prod((other.x for other in ran.bottoms if other is not blob), start=torch.ones(()).double())
                blob.dx.copy_(others if own.stable_prod_grad else y / blob.x)
                blob.dx.mul_(dy)
            blob.dx.copy_(self.rounded(blob.dx.clone()))

    def _scale_of_normalize(self, ran: Ran, gradients: list[Tensor]) -> None:
        if gradients and self.graph.learns(ran.layer, 0):
            scale = ran.at.p[0].detach()
            products = ran.tops[0].x * ran.tops[0].dx
            shared = ran.layer.norm_param.channel_shared
            gradients[0].add_(products.sum() / scale if shared else products.sum((0, 2, 3)).reshape(scale.shape) / scale)


# Backward passes that read the top, or write the diff in several steps


def sigmoid(ran: Ran) -> None:
    y = ran.tops[0].x
    ran.bottoms[0].dx.copy_(ran.tops[0].dx * ran.at.r(ran.at.r(y) * (1 - y)))


def tanh(ran: Ran) -> None:
    y = ran.at.r(ran.tops[0].x)
    ran.bottoms[0].dx.copy_(ran.at.r(ran.tops[0].dx * (1 - y * y)))


def softmax(ran: Ran) -> None:
    y, dy, axis = ran.tops[0].x, ran.tops[0].dx, ran.at.axis()
    ran.bottoms[0].dx.copy_(ran.at.r(ran.at.r(dy - ran.at.r((ran.at.r(dy * y)).sum(axis, keepdim=True))) * y))


def exp(ran: Ran) -> None:
    own = ran.layer.exp_param
    ran.bottoms[0].dx.copy_(ran.at.r(ran.tops[0].x * ran.tops[0].dx * own.scale * (math.log(own.base) if own.base != -1 else 1.0)))


def log(ran: Ran) -> None:
    own, dx = ran.layer.log_param, ran.bottoms[0].dx
    dx.copy_(own.scale / (math.log(own.base) if own.base != -1 else 1.0) / ran.at.r(own.scale * ran.bottoms[0].x + own.shift))
    dx.mul_(ran.tops[0].dx)


def power(ran: Ran) -> None:
    own, dx, x = ran.layer.power_param, ran.bottoms[0].dx, ran.bottoms[0].x
    factor = own.power * own.scale
    if factor == 0 or own.power == 1:
        dx.fill_(factor)
    elif own.power == 2:
        dx.copy_(factor * ran.at.r(own.scale * x + own.shift))
    elif own.shift == 0:
        dx.copy_(ran.at.r(own.power * ran.tops[0].x / x))
    else:
        dx.copy_(ran.at.r(factor * ran.tops[0].x / ran.at.r(own.scale * x + own.shift)))
    if factor:
        dx.mul_(ran.tops[0].dx)


def elu(ran: Ran) -> None:
    x, y, alpha = ran.bottoms[0].x, ran.tops[0].x, ran.layer.elu_param.alpha
    ran.bottoms[0].dx.copy_(ran.tops[0].dx * torch.where(x > 0, 1.0, ran.at.r(y + alpha)))


def switched(ran: Ran) -> None:
    """Types that multiply the gradient by 1 or by another factor, also if it is NaN."""
    x, y = ran.bottoms[0].x.clone().requires_grad_(), ran.tops[0]
    with torch.enable_grad():
        (result,) = RULES[ran.layer.type](At(ran.layer, ran.at.train, [x], ran.at.p, ran.at.kept, ran.at.r))
        (factor,) = torch.autograd.grad(result, x, torch.ones_like(y.dx))
    ran.bottoms[0].dx.copy_(y.dx * factor)


def swish(ran: Ran) -> None:
    y, beta = ran.tops[0].x, ran.layer.swish_param.beta
    gate = torch.sigmoid(beta * ran.at.x[0].detach())
    ran.bottoms[0].dx.copy_(ran.tops[0].dx * ran.at.r(beta * y + gate * (1 - beta * y)))


def mvn(ran: Ran) -> None:
    own, r = ran.layer.mvn_param, ran.at.r
    shape = ran.tops[0].shape
    x, y, dy = ran.at.x[0].detach().reshape(shape), ran.tops[0].x, ran.tops[0].dx
    axes = [1, 2, 3] if own.across_channels else [2, 3]
    dx = dy - r(dy.mean(axes, keepdim=True))
    if own.normalize_variance:
        dx = (dx - y * r((y * dy).mean(axes, keepdim=True))) / r(r(x.var(axes, keepdim=True, correction=0)).sqrt() + own.eps)
    ran.bottoms[0].dx.copy_(r(dx).reshape(ran.bottoms[0].shape))


def normalize(ran: Ran) -> None:
    own, r, x = ran.layer.norm_param, ran.at.r, ran.bottoms[0].x
    axes = [1, 2, 3] if own.across_spatial else [1]
    scale = ran.at.p[0].detach().reshape(1, -1, 1, 1)
    norm = r(((ran.at.x[0].detach() ** 2).sum(axes, keepdim=True) + own.eps).sqrt())
    dx = r(ran.tops[0].dx - x * r((x * ran.tops[0].dx).sum(axes, keepdim=True)) / norm**2) / norm
    ran.bottoms[0].dx.copy_(r(dx * scale))


def lrn(ran: Ran) -> None:
    own, r, size = ran.layer.lrn_param, ran.at.r, ran.layer.lrn_param.local_size
    kept, x, y, dy = ran.at.x[0].detach(), ran.bottoms[0].x, ran.tops[0].x, ran.tops[0].dx
    if own.norm_region != own.ACROSS_CHANNELS:
        with torch.enable_grad():
            squares = (kept * kept).requires_grad_()
            factors = r(1 + own.alpha * torch.nn.functional.avg_pool2d(squares, size, 1, (size - 1) // 2)) ** -own.beta
            (dsquares,) = torch.autograd.grad(factors, squares, dy * x)
        ran.bottoms[0].dx.copy_(r(dy * factors.detach() + 2 * x * dsquares))
        return

    def near(value: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(value, (0, 0, 0, 0, size // 2, size // 2))
        return sum(padded[:, offset : offset + value.shape[1]] for offset in range(size))

    scale, dx = r(own.k + own.alpha / size * near(kept * kept)), ran.bottoms[0].dx
    dx.copy_(r(scale**-own.beta))
    dx.mul_(dy)
    dx.sub_(2 * own.alpha * own.beta / size * x * r(near(dy * y / scale)))


def lstm_unit(ran: Ran) -> None:
    """With the cells that the top has now."""
    before, gates, keep = ran.bottoms[0], ran.at.x[1].detach(), ran.at.x[2].detach()[..., None]
    i, f, o = (torch.sigmoid(part) for part in gates.chunk(4, 2)[:3])
    g, f, inner = torch.tanh(gates.chunk(4, 2)[3]), f * keep, torch.tanh(ran.tops[0].x)
    dc, dh = ran.tops[0].dx, ran.tops[1].dx
    term = ran.at.r(dc + dh * o * (1 - inner * inner))
    parts = [term * g * i * (1 - i), term * before.x * f * (1 - f), dh * inner * o * (1 - o), term * i * (1 - g * g)]
    ran.bottoms[1].dx.copy_(ran.at.r(torch.cat(parts, 2)))
    before.dx.copy_(ran.at.r(term * f))


def reorg(at: At) -> list[Tensor]:
    """Phase by phase, without darknet's other view of the bottom. The package has no gradient."""
    (n, c, h, w), s = at.x[0].shape, at.own.stride
    return [at.x[0].detach().reshape(n, c, h // s, s, w // s, s).permute(0, 3, 5, 1, 2, 4).reshape(n, c * s * s, h // s, w // s)]


BACKWARD: dict[str, Callable[[Ran], None]] = {
    "Sigmoid": sigmoid, "TanH": tanh, "Softmax": softmax, "Exp": exp, "Log": log, "Power": power, "ELU": elu, "Swish": swish, "MVN": mvn,
    "Normalize": normalize, "LRN": lrn, "LSTMUnit": lstm_unit, "Clip": switched, "ReLU": switched, "ReLU6": switched,
}  # fmt: skip
OF_THE_PACKAGE: dict[str, Callable[[At], list[Tensor]]] = {  # as the package computes them
    "Pooling": lambda at: pooling(at, whole=True),
    "SPP": lambda at: spp(at, whole=True),
    "Reorg": reorg,
}
