"""Evaluate a net in double precision with PyTorch, with random errors of single precision if wanted. The spread of the results shows what rounding can do.

Each rule computes the tops of a layer from its bottoms and parameters; PyTorch gives the gradients. The rules are written from Caffe's definitions, in the
plainest way. Values after a type without a rule are NaN.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ocaffe import proto
from ocaffe.layers.base import param_field, registry
from tests.oracle import values
from tests.oracle.case import Case, is_value
from tests.oracle.graph import UNDEFINED, Graph

EPSILON = 2e-7  # relative error of an operation in single precision, with the sums inside of it
WITHOUT_GRADIENT = (
    "Accuracy", "ArgMax", "Threshold", "DetectionOutput", "DetectionEvaluate", "PriorBox", "EvalDetection", "ContinuationIndicator", "DummyData",
)  # fmt: skip
FAULTS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)  # of a rule for a form that it does not have
FLT_MIN = float(np.finfo(np.float32).tiny)
Tensor = torch.Tensor
Round = Callable[[Tensor], Tensor]


class At:
    """A layer while it is evaluated: bottoms `x`, parameters `p`, its own message `own`, and `kept`, its values from pass to pass.

    `r` adds errors of single precision to a value inside of the layer.
    """

    def __init__(self, layer: Any, train: bool, bottoms: Sequence[Tensor], parameters: Sequence[Tensor], kept: dict[str, Any], r: Round) -> None:
        self.layer, self.train, self.x, self.p, self.kept, self.r = layer, train, bottoms, parameters, kept, r
        self.own = getattr(layer, param_field(layer.type), None)

    def axis(self, name: str = "axis") -> int:
        value = getattr(self.own, name)
        return value + self.x[0].dim() if value < 0 else value


class Evaluation:
    """The arrays of one evaluation, keyed as those of the workers. `noise` is the seed of the errors; None for exact values.

    `graph.arrays` are Caffe's. With a seed `free`, layers that compare values (`UNDEFINED`) get a random value in place of each NaN.
    """

    def __init__(self, case: Case, graph: Graph, noise: int | None = None, free: int | None = None) -> None:
        self.case, self.graph, self.net = case, graph, graph.net
        shapes = {key: array.shape for key, array in graph.arrays.items()}
        self.rng = np.random.default_rng(noise) if noise is not None else None
        self.chooser = np.random.default_rng(free) if free is not None else None
        self.kept: dict[str, dict[str, Any]] = {}
        self.arrays: dict[str, np.ndarray] = {}
        owners: dict[str, Tensor] = {}
        self.parameters: dict[str, list[Tensor]] = {}
        for layer in self.net.layer:
            for index in range(100):
                key = f"parameter 0/{layer.name}/{index}"
                if key not in shapes:
                    break
                specs = case.weights.get(layer.name, [])
                drawn = values.draw(specs[index] if index < len(specs) else values.WEIGHTS, shapes[key], case.seed, "weights", layer.name, index)
                shared = layer.param[index].name if index < len(layer.param) else ""
                tensor = torch.tensor(drawn, dtype=torch.float64, requires_grad=True)
                if shared:
                    owner = owners.setdefault(shared, tensor)
                    owner.data = tensor.data  # the last layer that was filled counts
                    tensor = owner
                self.parameters.setdefault(layer.name, []).append(tensor)
        self.stopped, self.unknown, self.shapes = "", set[str](), shapes
        for step in range(len(case.steps)):
            try:
                self._pass(step)
            except FAULTS as error:  # a pass that both programs refuse, or a form without a rule
                self.stopped = f"pass {step} is not evaluated: {error}"
                break

    def rounded(self, tensor: Tensor) -> Tensor:
        """The tensor with errors of single precision, in its values and in its gradient."""
        if self.rng is None:
            return tensor
        tensor = tensor * (1 + EPSILON * torch.tensor(self.rng.standard_normal(tuple(tensor.shape))))
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: grad * (1 + EPSILON * torch.tensor(self.rng.standard_normal(tuple(grad.shape)))))
        return tensor

    def chosen(self, x: Tensor, key: str) -> Tensor:
        """The tensor with random values where it or Caffe's array is NaN."""
        assert self.chooser is not None
        undefined = torch.isnan(x.detach())
        caffe = self.graph.arrays.get(key)
        if caffe is not None and caffe.shape == tuple(x.shape):
            undefined |= torch.tensor(np.isnan(caffe))
        size = float(x.detach()[~undefined].abs().amax()) if bool((~undefined).any()) else 1.0
        return Replaced.apply(x, undefined, torch.tensor(self.chooser.standard_normal(tuple(x.shape)) * 2 * size))

    def _inputs(self, layer: Any, step: int) -> list[Tensor]:
        """The tops of a layer without bottoms. Those of MemoryData are Caffe's; the comparison of both programs judges them."""
        if layer.type == "MemoryData":
            return [torch.tensor(self.graph.arrays[f"data {step}/{top}"], dtype=torch.float64) for top in layer.top]
        shapes = dict(self.case.shapes)
        for change in self.case.steps[: step + 1]:
            shapes.update(change.shapes)
        drawn = [values.draw(self.case.inputs[top], shapes[top], self.case.seed, "input", top, step) for top in layer.top]
        return [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in drawn]

    def _unknown(self, at: At) -> list[Tensor]:
        """NaN for the tops of a type without a rule, and as the gradients of its bottoms if it has a backward pass."""
        self.unknown.add(at.layer.type)
        differentiable = [x for x in (*at.x, *at.p) if x.requires_grad] if at.layer.type not in WITHOUT_GRADIENT else []
        zero = sum((x.sum() * 0 for x in differentiable), torch.zeros((), dtype=torch.float64))
        return [torch.full(shape, torch.nan, dtype=torch.float64) * (1 + zero) for shape in at.kept["shapes"]]

    def _pass(self, step: int) -> None:
        case = self.case
        blobs: dict[str, Tensor] = {}
        first: dict[str, Tensor] = {}  # the first value of each name: its gradient is what backward leaves in the blob
        for tensors in self.parameters.values():
            for tensor in tensors:
                tensor.grad = None
        objective, loss = torch.zeros((), dtype=torch.float64), 0.0
        read: set[str] = set()
        weighted: set[str] = set()
        whole = {name for name, spec in case.inputs.items() if not is_value(spec)}  # labels and other choices have no errors
        for layer in self.net.layer:
            if layer.type in ("Input", "MemoryData"):
                tops = self._inputs(layer, step)
                whole.update(layer.top[1:] if layer.type == "MemoryData" else ())
            else:
                rule = RULES.get(layer.type, self._unknown)
                whole.update(top for top in layer.top if layer.type == "Split" and layer.bottom[0] in whole)
                bottoms = [blobs[name] if name in whole else self.rounded(blobs[name]) for name in layer.bottom]
                if self.chooser is not None and layer.type in UNDEFINED:
                    bottoms = [self.chosen(x, f"data {step}/{name}") for x, name in zip(bottoms, layer.bottom)]
                runs = layer.name in self.graph.backward
                bottoms = [x if runs and down else x.detach() for x, down in zip(bottoms, self.graph.down[layer.name])]
                parameters = [self.rounded(tensor) for tensor in self.parameters.get(layer.name, [])]
                parameters = [x if runs and self.graph.learns(layer, index) else x.detach() for index, x in enumerate(parameters)]
                at = At(layer, case.phase == "TRAIN", bottoms, parameters, self.kept.setdefault(layer.name, {}), self.rounded)
                at.kept["parameters"] = self.parameters.get(layer.name, [])
                at.kept["shapes"] = [self.shapes.get(f"data {step}/{top}", ()) for top in layer.top]
                try:
                    made = rule(at)
                except FAULTS:  # a form without a rule
                    made = self._unknown(at)
                tops = [top if name in whole else self.rounded(top) for name, top in zip(layer.top, made)]
            read.update(layer.bottom)
            is_loss = registry()[layer.type].is_loss
            for index, (name, top) in enumerate(zip(layer.top, tops)):
                needed = top.requires_grad
                top = top if needed else top.detach().requires_grad_()  # with propagate_down: true, any blob can have a diff
                top.retain_grad()
                passes = layer.name in self.graph.backward and any(self.graph.down[layer.name])
                if name not in first or (name in layer.bottom and not passes):  # without a gradient to the bottom, the blob has that of the top
                    first[name] = top
                blobs[name] = top
                read.discard(name)
                weight = layer.loss_weight[index] if index < len(layer.loss_weight) else float(is_loss and index == 0)
                if weight:
                    weighted.add(name)
                    objective = objective + (weight * top.sum() if needed or name in self.graph.needed else 0)
                    loss += weight * float(top.detach().sum())
        outputs = [name for name in blobs if name not in read]
        for name in case.diffs:
            made = [layer.type for layer in self.net.layer if name in layer.top]
            if name in outputs and name not in weighted and made[-1] not in ("Input", "MemoryData", "DummyData"):  # ocaffe keeps none for data
                drawn = values.draw(values.NORMAL, tuple(blobs[name].shape), case.seed, "diff", name, step)
                objective = objective + (blobs[name] * torch.tensor(drawn, dtype=torch.float64)).sum()
        for name in outputs:
            if blobs[name].requires_grad:
                objective = objective + (blobs[name] * 0).sum()  # layers run backward with a diff of 0, too, and make NaN of it
        for name, tensor in blobs.items():
            self.arrays[f"data {step}/{name}"] = tensor.detach().numpy().copy()
            if name in outputs:
                self.arrays[f"output {step}/{name}"] = tensor.detach().numpy().copy()
        self.arrays[f"loss {step}/loss"] = np.array(loss)
        if objective.requires_grad:
            objective.backward()
        for name, tensor in first.items():
            if tensor.grad is not None:
                self.arrays[f"diff {step}/{name}"] = tensor.grad.numpy().copy()
            else:
                self.arrays[f"diff {step}/{name}"] = np.zeros(tuple(tensor.shape))
        for layer_name, tensors in self.parameters.items():
            for index, tensor in enumerate(tensors):
                self.arrays[f"parameter {step}/{layer_name}/{index}"] = tensor.detach().numpy().copy()
                grad = tensor.grad.numpy().copy() if tensor.grad is not None else np.zeros(tuple(tensor.shape))
                self.arrays[f"parameter diff {step}/{layer_name}/{index}"] = grad


class BySlope(torch.autograd.Function):
    """A function whose gradient is computed from its rounded value, as in single precision: near saturation that of tanh(x) is 1 - y^2 with few digits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Round, slope: Round, r: Round) -> Tensor:
        y = value(x)
        ctx.save_for_backward(r(y.detach()))
        ctx.slope = slope
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.slope(ctx.saved_tensors[0]), None, None, None


class ByMoments(torch.autograd.Function):
    """y = (x - mean) / deviation, whose gradient is computed from the rounded y, as in single precision: the mean of y can be far from 0 if x varies little.

    If eps is not in the square root, as in MVN, this is not the derivative: Caffe's gradient ignores eps in that of the deviation.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, deviation: Tensor, axes: list[int], r: Round) -> Tensor:
        ctx.save_for_backward(r(y), deviation)
        ctx.axes, ctx.r = axes, r
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        y, deviation = ctx.saved_tensors
        mean, product = (ctx.r(value.mean(ctx.axes, keepdim=True)) for value in (grads[0], ctx.r(grads[0] * y)))
        return (grads[0] - mean - ctx.r(y * product)) / deviation, *[None] * 4


class Replaced(torch.autograd.Function):
    """Other values in some places. The gradient passes everywhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, others: Tensor) -> Tensor:
        return torch.where(places, others, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None, None


def tanh(at: At, x: Tensor) -> Tensor:
    return BySlope.apply(x, torch.tanh, lambda y: 1 - y * y, at.r)


def sigmoid(at: At, x: Tensor) -> Tensor:
    """As Caffe computes it, 0.5 tanh(0.5 x) + 0.5: values near 0 have few digits."""

    def value(x: Tensor) -> Tensor:
        inner = torch.tanh(0.5 * x.detach())
        return torch.sigmoid(x) + 0.5 * (at.r(inner) - inner)

    return BySlope.apply(x, value, lambda y: y * (1 - y), at.r)


def tanh_of_gate(at: At, x: Tensor) -> Tensor:
    """As Caffe's recurrent layers compute it: small values have few digits."""
    return BySlope.apply(x, lambda x: 2 * at.r(torch.sigmoid(2 * x)) - 1, lambda y: 1 - y * y, at.r)


# Rules. Each gets the layer and returns its tops.


def each(function: Callable[[At, Tensor], Tensor]) -> Callable[[At], list[Tensor]]:
    return lambda at: [function(at, at.x[0])]


def power(at: At, x: Tensor) -> Tensor:
    own = at.own
    inner = own.shift + own.scale * x
    return inner**own.power if own.power != 1 else inner


def exp(at: At, x: Tensor) -> Tensor:
    own = at.own
    base = math.log(own.base) if own.base != -1 else 1.0
    return torch.exp(base * (own.shift + own.scale * x))


def log(at: At, x: Tensor) -> Tensor:
    own = at.own
    base = math.log(own.base) if own.base != -1 else 1.0
    return torch.log(own.shift + own.scale * x) / base


def softmax(at: At, x: Tensor) -> Tensor:
    powers = at.r(torch.exp(at.r(x) - x.detach().amax(at.axis(), keepdim=True)))
    return at.r(powers) / at.r(at.r(powers).sum(at.axis(), keepdim=True))


def mish(at: At, x: Tensor) -> Tensor:
    """With the errors of log(1 + exp(x)): small values have few digits."""
    inner = 1 + torch.exp(x.detach().clamp(max=80))
    return x * torch.tanh(F.softplus(x, threshold=80) + (at.r(inner) - inner) / inner)


def prelu(at: At, x: Tensor) -> Tensor:
    slope = at.p[0] if at.own.channel_shared else at.p[0].reshape(-1, *[1] * (x.dim() - 2))
    return torch.where(x > 0, x, slope * x)


def spread(at: At, operand: Tensor) -> Tensor:
    """The operand of Scale or Bias in the axes of bottom 0."""
    axis = at.axis() if operand.dim() else 0
    return operand.reshape(*operand.shape, *[1] * (at.x[0].dim() - axis - operand.dim()))


def scale(at: At) -> list[Tensor]:
    rest = list(at.p)
    operand = at.x[1] if len(at.x) > 1 else rest.pop(0)
    y = at.x[0] * spread(at, operand)
    return [y + spread(at, rest[0]) if at.own.bias_term else y]


def bias(at: At) -> list[Tensor]:
    return [at.x[0] + spread(at, at.x[1] if len(at.x) > 1 else at.p[0])]


def channels(x: Tensor, values: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (x.dim() - 2))


def moments(at: At, x: Tensor, axes: list[int]) -> tuple[Tensor, Tensor]:
    """Mean and variance along axes, with kept axes. Each use of a value has errors of its own."""
    mean = at.r(at.r(x).mean(axes, keepdim=True))
    return mean, at.r((at.r(at.r(x) - mean) ** 2).mean(axes, keepdim=True))


def normalized(at: At, x: Tensor, axes: list[int], eps: float, in_root: bool) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - mean) / sqrt(variance + eps), or / (sqrt(variance) + eps), with the mean and the variance."""
    flat = x.detach()
    mean, variance = moments(at, flat, axes)
    deviation = at.r(torch.sqrt(variance + eps) if in_root else torch.sqrt(variance) + eps)
    y = at.r(at.r(flat) - mean) / deviation
    return ByMoments.apply(x, y, deviation, axes, at.r), mean, variance


def batch_norm(at: At) -> list[Tensor]:
    own, x = at.own, at.x[0]
    use = own.use_global_stats if own.HasField("use_global_stats") else not at.train
    mean_sum, var_sum, factor = at.kept["parameters"]
    if use:
        share = 0.0 if float(factor.detach()) == 0 else 1 / factor.detach()
        mean, var = channels(x, mean_sum.detach() * share), channels(x, var_sum.detach() * share)
    else:
        y, mean, var = normalized(at, x, [axis for axis in range(x.dim()) if axis != 1], own.eps, True)
        size, kept = x.numel() / x.shape[1], own.moving_average_fraction
        with torch.no_grad():
            factor.data = factor.data * kept + 1
            mean_sum.data = mean_sum.data * kept + mean.detach().reshape(-1)
            var_sum.data = var_sum.data * kept + var.detach().reshape(-1) * (size / (size - 1) if size > 1 else 1)
        return [y]
    return [at.r(at.r(x) - mean) / at.r(torch.sqrt(var + own.eps))]


def bn(at: At) -> list[Tensor]:
    own, x = at.own, at.x[0]
    slope, offset = at.p[:2]
    mean, var = (channels(x, tensor.detach()) for tensor in at.kept["parameters"][2:])
    if at.train and not own.frozen:
        y, mean, var = normalized(at, x, [axis for axis in range(x.dim()) if axis != 1], own.eps, True)
        for tensor, new in zip(at.kept["parameters"][2:], (mean, var)):
            tensor.data = tensor.data * own.momentum + new.detach().reshape(tensor.shape) * (1 - own.momentum)
        return [at.r(y) * channels(x, slope) + channels(x, offset)]
    return [at.r(at.r(at.r(x) - mean) / at.r(torch.sqrt(var + own.eps))) * channels(x, slope) + channels(x, offset)]


def lrn(at: At) -> list[Tensor]:
    own, x = at.own, at.x[0]
    size = own.local_size
    if own.norm_region == own.ACROSS_CHANNELS:
        padded = F.pad(x * x, (0, 0, 0, 0, size // 2, size // 2))
        sums = sum(padded[:, offset : offset + x.shape[1]] for offset in range(size))
        running = (x * x).detach().cumsum(1)  # Caffe adds a channel and subtracts another
        sums = sums + (at.r(running) - running)
        return [x / at.r(at.r(own.k + own.alpha / size * sums) ** own.beta)]
    pooled = average(x * x, (size, size), (1, 1), ((size - 1) // 2,) * 2, x.shape[2:])
    return [x / at.r(at.r(1 + own.alpha * pooled) ** own.beta)]


def mvn(at: At) -> list[Tensor]:
    own, x = at.own, at.x[0]
    x = x.reshape(*x.shape, *[1] * (4 - x.dim()))  # the top has four axes
    axes = [1, 2, 3] if own.across_channels else [2, 3]
    return [normalized(at, x, axes, own.eps, False)[0] if own.normalize_variance else at.r(at.r(x) - at.r(at.r(x).mean(axes, keepdim=True)))]


def normalize(at: At) -> list[Tensor]:
    """SSD multiplies the gradient by the scale last. With a scale per channel that is not the derivative."""
    own, x = at.own, at.x[0]
    axes = [1, 2, 3] if own.across_spatial else [1]
    scale = at.p[0] if own.channel_shared else channels(x, at.p[0].reshape(-1))
    x = x.detach() + scale.detach() * (x - x.detach())
    y = at.r(at.r(x) / at.r(torch.sqrt(at.r((at.r(x) ** 2).sum(axes, keepdim=True) + own.eps))))
    return [y - y.detach() + y.detach() * scale]


def eltwise(at: At) -> list[Tensor]:
    own, y = at.own, at.x[0]
    if own.operation == own.SUM:
        return [sum(weight * x for weight, x in zip(own.coeff or [1.0] * len(at.x), at.x))]
    for number, x in enumerate(at.x[1:]):
        y = y * x if own.operation == own.PROD else torch.where(x > y if number else ~(y > x), x, y)  # of equal values the second counts, then the first
    return [y]


def spatial(own: Any, name: str, axes: int, default: int) -> tuple[int, ...]:
    """A size for each axis of the image."""
    stem = name.removesuffix("_size")
    if axes == 2 and (own.HasField(f"{stem}_h") or own.HasField(f"{stem}_w")):
        return getattr(own, f"{stem}_h"), getattr(own, f"{stem}_w")
    given = getattr(own, name)
    listed = list(given) if hasattr(given, "extend") else [given] if own.HasField(name) else []
    listed = listed or [default]
    return tuple(listed * axes if len(listed) == 1 else listed)


def convolution(at: At) -> list[Tensor]:
    own = at.own
    axes = at.x[0].dim() - 2
    if at.axis() != 1:
        raise ValueError("Convolution with another axis has no rule")
    stride, pad = spatial(own, "stride", axes, 1), spatial(own, "pad", axes, 0)
    dilation = tuple(list(own.dilation) * axes if len(own.dilation) == 1 else list(own.dilation) or [1] * axes)
    weight, rest = at.p[0], at.p[1] if len(at.p) > 1 else None
    backwards = at.layer.type == "Deconvolution"
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d) if backwards else (F.conv1d, F.conv2d, F.conv3d)
    group = at.x[0].shape[1] if at.layer.type == "ConvolutionDepthwise" else own.group
    if backwards:
        return [function[axes - 1](x, weight, rest, stride, pad, 0, group, dilation) for x in at.x]
    return [function[axes - 1](x, weight, rest, stride, pad, dilation, group) for x in at.x]


def im2col(at: At) -> list[Tensor]:
    own, x = at.own, at.x[0]
    kernel = spatial(own, "kernel_size", 2, 1)
    stride, pad, dilation = spatial(own, "stride", 2, 1), spatial(own, "pad", 2, 0), spatial(own, "dilation", 2, 1) if len(own.dilation) else (1, 1)
    columns = F.unfold(x, kernel, dilation, pad, stride)
    sizes = [(size + 2 * p - (d * (k - 1) + 1)) // s + 1 for size, p, d, k, s in zip(x.shape[2:], pad, dilation, kernel, stride)]
    return [columns.reshape(x.shape[0], -1, *sizes)]


def windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int], outputs: Sequence[int], empty: float) -> Tensor:
    """The values of each window: N x C x outputs x kernel, with `empty` outside of the image."""
    far = [max((count - 1) * s - p + k - size, 0) for count, s, p, k, size in zip(outputs, stride, pad, kernel, x.shape[2:])]
    x = F.pad(x, (pad[1], far[1], pad[0], far[0]), value=empty)
    x = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])
    return x[:, :, : outputs[0], : outputs[1]]


def average(x: Tensor, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int], outputs: Sequence[int], whole: bool = False) -> Tensor:
    """AVE pooling. The divisor counts the padding, but nothing beyond it. `whole`: all of the window counts, but not in the gradient."""
    sums = windows(x, kernel, stride, pad, outputs, 0.0).sum((4, 5))
    lengths = []
    for count, k, s, p, size in zip(outputs, kernel, stride, pad, x.shape[2:]):
        lengths.append(torch.tensor([min(o * s - p + k, size + p) - (o * s - p) for o in range(count)], dtype=torch.float64))
    y = sums / (lengths[0][:, None] * lengths[1][None, :])
    return y + (sums / math.prod(kernel) - y).detach() if whole else y


def mask(x: Tensor, own: Any, top: Sequence[int]) -> Tensor:
    """The number of the first largest pixel of each window, or -1 for a window without pixels."""
    kernel, stride, pad = (spatial(own, name, 2, default) for name, default in (("kernel_size", 1), ("stride", 1), ("pad", 0)))
    if own.global_pooling:
        kernel = tuple(x.shape[2:])
    numbers = torch.arange(math.prod(x.shape[2:]), dtype=torch.float64).reshape(1, 1, *x.shape[2:]).expand(x.shape)
    values = windows(x.detach(), kernel, stride, pad, top[2:], -float(np.finfo(np.float32).max)).flatten(4)
    return windows(numbers, kernel, stride, pad, top[2:], -1.0).flatten(4).gather(4, values.argmax(4, keepdim=True))[..., 0]


def pooled(x: Tensor, own: Any, maximum: bool, whole: bool = False) -> Tensor:
    image = x.shape[2:]
    kernel = tuple(image) if own.global_pooling else spatial(own, "kernel_size", 2, 1)
    stride, pad = spatial(own, "stride", 2, 1), spatial(own, "pad", 2, 0)
    up = own.round_mode == own.CEIL and own.ceil_mode
    outputs = []
    for size, k, s, p in zip(image, kernel, stride, pad):
        room = size + 2 * p - k
        count = (-(-room // s) if up else room // s) + 1
        outputs.append(count - 1 if any(pad) and (count - 1) * s >= size + p else count)
    if maximum:
        return windows(x, kernel, stride, pad, outputs, -float(np.finfo(np.float32).max)).amax((4, 5))
    return average(x, kernel, stride, pad, outputs, whole)


def pooling(at: At, whole: bool = False) -> list[Tensor]:
    y = pooled(at.x[0], at.own, at.own.pool == at.own.MAX, whole)
    return [y, mask(at.x[0], at.own, y.shape)][: len(at.layer.top)]


def spp(at: At, whole: bool = False) -> list[Tensor]:
    x, parts = at.x[0], []
    for level in range(at.own.pyramid_height):
        bins = 2**level
        own = proto.PoolingParameter()
        for name, size in zip("hw", x.shape[2:]):
            kernel = math.ceil(size / bins)
            setattr(own, f"kernel_{name}", kernel)
            setattr(own, f"stride_{name}", kernel)
            setattr(own, f"pad_{name}", (kernel * bins - size + 1) // 2)
        parts.append(pooled(x, own, at.own.pool == at.own.MAX, whole))
    return [torch.cat([part.reshape(x.shape[0], -1) for part in parts], 1)] if len(parts) > 1 else parts


def upsample(at: At) -> list[Tensor]:
    return [at.x[0].repeat_interleave(at.own.scale or 1, 2).repeat_interleave(at.own.scale or 1, 3)]


def concat(at: At) -> list[Tensor]:
    return [torch.cat(list(at.x), at.own.concat_dim if at.own.HasField("concat_dim") else at.axis())]


def cut(at: At) -> list[Tensor]:
    axis = at.own.slice_dim if at.own.HasField("slice_dim") else at.axis()
    size = at.x[0].shape[axis]
    points = list(at.own.slice_point) or [size // len(at.layer.top) * number for number in range(1, len(at.layer.top))]
    return [at.x[0].narrow(axis, start, end - start) for start, end in zip([0, *points], [*points, size])]


def flatten(at: At) -> list[Tensor]:
    first, last = at.axis(), at.axis("end_axis")
    return [at.x[0].flatten(first, last) if first <= last else at.x[0].unsqueeze(first)]


def reshape(at: At) -> list[Tensor]:
    own, x = at.own, at.x[0]
    first = own.axis if own.axis >= 0 else own.axis + x.dim() + 1
    last = x.dim() if own.num_axes == -1 else first + own.num_axes
    sizes = [x.shape[first + number] if size == 0 else size for number, size in enumerate(own.shape.dim)]
    if -1 in sizes:
        rest = math.prod(size for size in (*x.shape[:first], *sizes, *x.shape[last:]) if size != -1)
        sizes[sizes.index(-1)] = x.numel() // rest
    return [x.reshape(*x.shape[:first], *sizes, *x.shape[last:])]


def permute(at: At) -> list[Tensor]:
    order = list(at.own.order)
    return [at.x[0].permute(*order, *(axis for axis in range(at.x[0].dim()) if axis not in order))]


def tile(at: At) -> list[Tensor]:
    return [torch.cat([at.x[0]] * at.own.tiles, at.axis())]


def reduction(at: At) -> list[Tensor]:
    own, x = at.own, at.x[0]
    axes = tuple(range(at.axis(), x.dim()))
    value = {own.SUM: lambda: x.sum(axes), own.ASUM: lambda: x.abs().sum(axes), own.SUMSQ: lambda: (x * x).sum(axes), own.MEAN: lambda: x.mean(axes)}
    return [own.coeff * value[own.operation]()]


def crop(at: At) -> list[Tensor]:
    x, axis, offsets = at.x[0], at.axis(), list(at.own.offset)
    for number in range(axis, x.dim()):
        offset = 0 if not offsets else offsets[0] if len(offsets) == 1 else offsets[number - axis]
        x = x.narrow(number, offset, at.x[1].shape[number])
    return [x]


def shuffle(at: At) -> list[Tensor]:
    x, group = at.x[0], at.own.group
    return [x.reshape(x.shape[0], group, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape)]


def argmax(at: At) -> list[Tensor]:
    """Of equal values the last is the largest."""
    own, x = at.own, at.x[0].detach()
    along = own.HasField("axis")
    x = x.movedim(at.axis(), -1) if along else x.reshape(len(x), 1, -1)
    values_, places = torch.sort(x.flip(-1), dim=-1, descending=True, stable=True)
    values_, places = values_[..., : own.top_k], (x.shape[-1] - 1 - places[..., : own.top_k]).double()
    if along:
        return [(values_ if own.out_max_val else places).movedim(-1, at.axis())]
    y = torch.cat([places, values_] if own.out_max_val else [places], 1)
    return [y.reshape(*y.shape, *[1] * (at.x[0].dim() - 3))]


def rows(at: At) -> list[Tensor]:
    return [at.x[0][at.x[1].detach().long()]]


def filtered(at: At) -> list[Tensor]:
    chosen = at.x[-1].detach() != 0
    return [x[chosen] for x in at.x[:-1]]


def inner_product(at: At) -> list[Tensor]:
    own, x, axis = at.own, at.x[0], at.axis()
    flat = x.reshape(*x.shape[:axis], -1)
    y = flat @ (at.p[0] if own.transpose else at.p[0].T)
    return [y + at.p[1] if own.bias_term else y]


def embed(at: At) -> list[Tensor]:
    y = at.p[0][at.x[0].detach().long()]
    return [y + at.p[1] if at.own.bias_term else y]


def lstm(at: At) -> list[Tensor]:
    x, keep = at.x[0], at.x[1].detach()
    steps, samples, size = x.shape[0], x.shape[1], at.own.num_output
    rest = list(at.x[2:])
    exposed = at.own.expose_hidden
    states = [rest.pop(-2)[0], rest.pop(-1)[0]] if exposed else at.kept.get("states") or [torch.zeros(samples, size, dtype=torch.float64)] * 2
    if exposed:
        states = [state.detach() for state in states]
    weights = list(at.p)
    gates_x = x.reshape(steps, samples, -1) @ weights[0].T + weights[1]
    if rest:
        gates_x = gates_x + rest[0].reshape(samples, -1) @ weights[2].T
    h, c = states
    outputs = []
    for step in range(steps):
        on = keep[step][:, None]
        i, f, o, g = (gates_x[step] + (h * on) @ weights[-1].T).chunk(4, 1)
        c = sigmoid(at, f) * (c * on) + sigmoid(at, i) * tanh_of_gate(at, g)
        h = sigmoid(at, o) * tanh_of_gate(at, c)
        outputs.append(h)
    at.kept["states"] = [h.detach(), c.detach()]
    return [torch.stack(outputs), *([h[None].detach(), c[None].detach()] if exposed else [])]


def rnn(at: At) -> list[Tensor]:
    x, keep = at.x[0], at.x[1].detach()
    steps, samples, size = x.shape[0], x.shape[1], at.own.num_output
    rest, weights = list(at.x[2:]), list(at.p)
    exposed = at.own.expose_hidden
    h = rest.pop(-1)[0].detach() if exposed else at.kept.get("state", torch.zeros(samples, size, dtype=torch.float64))
    part = x.reshape(steps, samples, -1) @ weights[0].T + weights[1]
    if rest:
        part = part + rest[0].reshape(samples, -1) @ weights[2].T
    hidden, outputs = weights[-3], []
    for step in range(steps):
        h = tanh(at, part[step] + (h * keep[step][:, None]) @ hidden.T)
        outputs.append(tanh(at, h @ weights[-2].T + weights[-1]))
    at.kept["state"] = h.detach()
    return [torch.stack(outputs), *([h[None].detach()] if exposed else [])]


def lstm_unit(at: At) -> list[Tensor]:
    previous, gates, keep = at.x[0], at.x[1], at.x[2].detach()[..., None]
    i, f, o, g = gates.chunk(4, 2)
    c = sigmoid(at, f) * (previous * keep) + sigmoid(at, i) * tanh_of_gate(at, g)
    return [c, sigmoid(at, o) * tanh_of_gate(at, c)]


def lstm_of_sequences(at: At) -> list[Tensor]:
    """One sequence, whose gradients are limited step by step."""
    x, own = at.x[0], at.own
    steps, size, limit = x.shape[0], own.num_output, own.clipping_threshold
    keep = at.x[1].detach().reshape(-1) if len(at.x) > 1 else torch.tensor([0.0] + [1.0] * (steps - 1), dtype=torch.float64)
    h, c = at.kept.get("states") or [torch.zeros(1, size, dtype=torch.float64)] * 2
    of_x, outputs = x.reshape(steps, 1, -1) @ at.p[0].T + at.p[2], []
    for step in range(steps):
        gates = of_x[step] + (h * keep[step]) @ at.p[1].T
        if limit and gates.requires_grad:
            gates.register_hook(lambda grad: grad.clamp(-limit, limit))
        i, f, o, g = gates.chunk(4, 1)
        c = sigmoid(at, f) * (c * keep[step]) + sigmoid(at, i) * tanh(at, g)
        h = sigmoid(at, o) * tanh(at, c)
        outputs.append(h)
    at.kept["states"], at.kept["hidden"] = [h.detach(), c.detach()], outputs
    return [torch.stack(outputs)]


def python(at: At) -> list[Tensor]:
    """The layers of `python_layers`."""
    x, made = at.x, at.own.layer
    if made == "Affine":
        a, b = (float(number) for number in at.own.param_str.split())
        return [a * x[0] + b]
    if made == "Gain":
        return [channels(x[0], at.p[0]) * x[0] ** 2]
    y = x[0] * x[1]
    return [y, y.reshape(len(y), -1).sum(1)]


def reorg(at: At) -> list[Tensor]:
    """darknet's order: the bottom counts as an image with more pixels and fewer channels."""
    (n, c, h, w), s = at.x[0].shape, at.own.stride
    phases = at.x[0].reshape(n, c // (s * s), h, s, w, s).permute(0, 3, 5, 1, 2, 4)
    return [phases.reshape(n, c * s * s, h // s, w // s)]


def divisor(at: At, mode: int, all: int, valid: int, samples: int) -> float:
    loss = at.layer.loss_param
    if not loss.HasField("normalization") and loss.HasField("normalize"):
        mode = loss.VALID if loss.normalize else loss.BATCH_SIZE
    elif loss.HasField("normalization"):
        mode = loss.normalization
    return max(1.0, {loss.FULL: all, loss.VALID: valid, loss.BATCH_SIZE: samples, loss.NONE: 1}[mode])


def by_class(at: At, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """The scores as positions x classes, the labels, and which of these count."""
    x, labels = at.x[0], at.x[1].detach().reshape(-1).long()
    flat = x.movedim(axis, -1).reshape(-1, x.shape[axis])
    loss = at.layer.loss_param
    counts = labels != loss.ignore_label if loss.HasField("ignore_label") else torch.ones_like(labels, dtype=torch.bool)
    return flat, labels, counts


def softmax_loss(at: At) -> list[Tensor]:
    axis = at.layer.softmax_param.axis
    axis += at.x[0].dim() if axis < 0 else 0
    flat, labels, counts = by_class(at, axis)
    logs = at.r(torch.log_softmax(at.r(flat), 1))
    values_ = -logs[torch.arange(len(labels)), torch.where(counts, labels, 0)]
    total = (values_.clamp(max=-math.log(FLT_MIN)).detach() + values_ - values_.detach())[counts].sum()
    positions = len(labels)
    return [total / divisor(at, at.layer.loss_param.VALID, positions, int(counts.sum()), math.prod(at.x[0].shape[:axis]))]


def infogain(at: At) -> list[Tensor]:
    axis = at.axis()
    flat, labels, counts = by_class(at, axis)
    gains = at.x[2].detach().reshape(flat.shape[1], -1)[torch.where(counts, labels, 0)]
    logs = at.r(torch.log_softmax(at.r(flat), 1))
    logs = logs + (logs.clamp(min=math.log(1e-20)) - logs).detach()  # the limit changes the loss, not the gradient
    total = -(gains * logs)[counts].sum()
    return [total / divisor(at, at.layer.loss_param.VALID, len(labels), int(counts.sum()), math.prod(at.x[0].shape[:axis]))]


def multinomial(at: At) -> list[Tensor]:
    flat, labels = at.x[0].reshape(at.x[0].shape[0], -1), at.x[1].detach().reshape(-1).long()
    return [-torch.log(flat[torch.arange(len(labels)), labels]).sum() / len(labels)]


def sigmoid_loss(at: At) -> list[Tensor]:
    x, labels, loss = at.x[0], at.x[1].detach(), at.layer.loss_param
    counts = labels.long() != loss.ignore_label if loss.HasField("ignore_label") else torch.ones_like(labels, dtype=torch.bool)
    ones = torch.ones_like(x).detach()  # Caffe adds 1 to the exponential before the logarithm, and loses what is below its rounding
    total = (F.binary_cross_entropy_with_logits(x, labels, reduction="none") + at.r(ones) - ones)[counts].sum()
    return [total / divisor(at, loss.BATCH_SIZE, x.numel(), int(counts.sum()), x.shape[0])]


def hinge(at: At) -> list[Tensor]:
    x = at.x[0].reshape(at.x[0].shape[0], -1)
    sign = torch.ones_like(x)
    sign[torch.arange(len(x)), at.x[1].detach().reshape(-1).long()] = -1
    margins = torch.relu(1 + sign * x)
    return [(margins if at.own.norm == at.own.L1 else margins**2).sum() / len(x)]


def contrastive(at: At) -> list[Tensor]:
    own = at.own
    squares = ((at.x[0] - at.x[1]) ** 2).reshape(len(at.x[0]), -1).sum(1)
    apart = torch.relu(own.margin - squares) if own.legacy_version else torch.relu(own.margin - torch.sqrt(squares)) ** 2
    same = at.x[2].detach().reshape(-1).long() != 0
    return [torch.where(same, squares, apart).sum() / (2 * len(squares))]


def axpy(at: At) -> list[Tensor]:
    return [at.x[0].reshape(*at.x[0].shape[:2], 1, 1) * at.x[1] + at.x[2]]


def interp(at: At) -> list[Tensor]:
    own, x = at.own, at.x[0]
    if own.pad_beg or own.pad_end:
        x = x[:, :, -own.pad_beg : x.shape[2] + own.pad_end, -own.pad_beg : x.shape[3] + own.pad_end]
    sizes = []
    for size, given in zip(x.shape[2:], (own.height, own.width)):
        shrunk = (size - 1) // own.shrink_factor + 1
        sizes.append(given if own.HasField("height") else shrunk + (shrunk - 1) * (own.zoom_factor - 1))
    return [F.interpolate(x, sizes, mode="bilinear", align_corners=True)]


def parameter(at: At) -> list[Tensor]:
    return [at.p[0]]


RULES: dict[str, Callable[[At], list[Tensor]]] = {
    "AbsVal": each(lambda at, x: x.abs()),
    "Lstm": lstm_of_sequences,
    "Python": python,
    "Reorg": reorg,
    "BNLL": each(lambda at, x: F.softplus(x, threshold=100)),
    "Sigmoid": each(sigmoid),
    "TanH": each(tanh),
    "Mish": each(mish),
    "ReLU6": each(lambda at, x: torch.where(x > 0, x, 0 * x).clamp(max=6)),
    "ReLU": each(lambda at, x: torch.where(x > 0, x, at.own.negative_slope * x)),
    "ELU": each(lambda at, x: torch.where(x > 0, x, at.own.alpha * (at.r(torch.exp(x.clamp(max=0))) - 1))),
    "Swish": each(lambda at, x: x * sigmoid(at, at.own.beta * x)),
    "Clip": each(lambda at, x: x.clamp(at.own.min, at.own.max)),
    "Threshold": each(lambda at, x: (x > at.own.threshold).double()),
    "Power": each(power),
    "Exp": each(exp),
    "Log": each(log),
    "Dropout": each(lambda at, x: x),
    "PReLU": each(prelu),
    "Softmax": each(softmax),
    "Reverse": each(lambda at, x: x.flip(at.own.axis[0] if len(at.own.axis) else 0)),
    "Scale": scale, "Bias": bias, "BatchNorm": batch_norm, "BN": bn, "LRN": lrn, "MVN": mvn, "Normalize": normalize, "Eltwise": eltwise, "Axpy": axpy,
    "Convolution": convolution, "Deconvolution": convolution, "ConvolutionDepthwise": convolution, "Im2col": im2col, "Pooling": pooling, "SPP": spp,
    "Interp": interp, "Upsample": upsample, "Concat": concat, "Slice": cut, "Split": lambda at: [at.x[0].clone() for _ in at.layer.top],
    "Silence": lambda at: [], "Flatten": flatten, "Reshape": reshape, "Permute": permute, "Tile": tile, "Reduction": reduction, "Crop": crop,
    "ShuffleChannel": shuffle, "BatchReindex": rows, "Filter": filtered, "Parameter": parameter, "InnerProduct": inner_product, "Embed": embed,
    "ArgMax": argmax,
    "DummyData": lambda at: [torch.zeros(shape, dtype=torch.float64) for shape in at.kept["shapes"]],  # the package fills zeros
    "MatMul": lambda at: [at.x[0] @ at.x[1].T], "LSTM": lstm, "RNN": rnn, "LSTMUnit": lstm_unit, "SoftmaxWithLoss": softmax_loss, "InfogainLoss": infogain,
    "MultinomialLogisticLoss": multinomial, "SigmoidCrossEntropyLoss": sigmoid_loss,
    "EuclideanLoss": lambda at: [((at.x[0] - at.x[1]) ** 2).sum() / (2 * at.x[0].shape[0])], "HingeLoss": hinge, "ContrastiveLoss": contrastive,
}  # fmt: skip
