"""The nets of prototxts in PyTorch, and the time of a step in each of PyTorch's ways to run it.

A step of TRAIN is forward, backward and SGD's update, of TEST forward. BatchNorm and the Scale after it are one batch_norm. ReLU works in place where the
prototxt says so. A blob is released after its last use. Weights are random.
"""
from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from ocaffe import proto
from ocaffe.graph.build import build

LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
# Matrix products in TF32, convolutions in TF32, and autocast to bfloat16. `default`: PyTorch without settings
MATHS = {"strict": (False, False, False), "default": (False, True, False), "tf32": (True, True, False), "autocast": (True, True, True)}
CAPTURED_AFTER = 3  # steps: cuDNN chooses its algorithms, the optimizer makes its state


class Way(NamedTuple):
    """`mode`: eager, graph (a CUDA graph of the whole step) or compile (such a graph of the net that torch.compile made)."""

    math: str
    layout: str
    mode: str


class Step(NamedTuple):
    """A layer, or BatchNorm and Scale. `last`: blobs that no later layer uses."""

    run: Callable[..., torch.Tensor]
    bottoms: list[str]
    top: str
    last: list[str]


def _pair(values: Any, h: int, w: int, default: int) -> tuple[int, int]:
    """Return a size that a prototxt gives once, for each axis, or as h and w."""
    if h or w:
        return h, w
    given = [values] if isinstance(values, int) else list(values)
    return (given[0], given[-1]) if given else (default, default)


class TorchNet(nn.Module):
    """A net of one phase with Input layers. `forward` takes a tensor per input, and returns the loss, or the last blob."""

    def __init__(self, message: Any, phase: int) -> None:
        super().__init__()
        self.train(phase == proto.TRAIN)
        self.inputs = [top for layer in message.layer if layer.type == "Input" for top in layer.top]
        self._shapes = {name: blob.shape for name, blob in build(message, phase, lambda source, text: None).blobs.items()}
        self.steps: list[Step] = []
        self.losses: dict[str, float] = {}
        layers = [layer for layer in message.layer if layer.type != "Input"]
        scales = {layer.bottom[0]: layer for layer in layers if layer.type == "Scale" and len(layer.bottom) == 1}
        while layers:
            layer = layers.pop(0)
            scale = scales.get(layer.top[0]) if layer.type == "BatchNorm" else None
            if scale is not None:
                layers.remove(scale)
            run = self._batch_norm(layer, scale) if layer.type == "BatchNorm" else getattr(self, f"_{layer.type.lower()}")(layer)
            top = (scale or layer).top[0]
            later = {bottom for other in layers for bottom in other.bottom}
            self.steps.append(Step(run, list(layer.bottom), top, [bottom for bottom in layer.bottom if bottom != top and bottom not in later]))
            if layer.type == "SoftmaxWithLoss":
                self.losses[top] = layer.loss_weight[0] if layer.loss_weight else 1.0

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        blobs = dict(zip(self.inputs, given))
        for step in self.steps:
            result = step.run(*(blobs[bottom] for bottom in step.bottoms))
            for name in step.last:
                blobs.pop(name, None)
            blobs[step.top] = result
        if not self.losses:
            return result
        return torch.stack([weight * blobs[top] for top, weight in self.losses.items()]).sum()

    def _weights(self, *shape: int, value: float | None = None) -> nn.Parameter:
        """Register a parameter: one value, or the noise that keeps the variance of ReLU's results."""
        fan = max(1, torch.Size(shape[1:]).numel())
        made = nn.Parameter(torch.full(shape, value) if value is not None else torch.randn(shape) * (2 / fan) ** 0.5)
        self.register_parameter(f"p{len(list(self.parameters()))}", made)
        return made

    def _convolution(self, layer: Any) -> Callable[..., torch.Tensor]:
        p = layer.convolution_param
        size, stride = _pair(p.kernel_size, p.kernel_h, p.kernel_w, 1), _pair(p.stride, p.stride_h, p.stride_w, 1)
        pad, dilation = _pair(p.pad, p.pad_h, p.pad_w, 0), _pair(p.dilation, 0, 0, 1)
        weight = self._weights(p.num_output, self._shapes[layer.bottom[0]][1] // p.group, *size)
        bias = self._weights(p.num_output, value=0.0) if p.bias_term else None
        return lambda x: F.conv2d(x, weight, bias, stride, pad, dilation, p.group)

    def _innerproduct(self, layer: Any) -> Callable[..., torch.Tensor]:
        p = layer.inner_product_param
        weight = self._weights(p.num_output, torch.Size(self._shapes[layer.bottom[0]][1:]).numel())
        bias = self._weights(p.num_output, value=0.0) if p.bias_term else None
        return lambda x: F.linear(x.flatten(1), weight, bias)

    def _batch_norm(self, layer: Any, scale: Any) -> Callable[..., torch.Tensor]:
        p, channels = layer.batch_norm_param, self._shapes[layer.bottom[0]][1]
        mean, variance = torch.zeros(channels), torch.ones(channels)
        name = f"norm{len(self.steps)}"
        self.register_buffer(f"{name}_mean", mean)
        self.register_buffer(f"{name}_variance", variance)
        weight = self._weights(channels, value=1.0) if scale is not None else None
        bias = self._weights(channels, value=0.0) if scale is not None and scale.scale_param.bias_term else None

        def run(x: torch.Tensor) -> torch.Tensor:
            own, spread = getattr(self, f"{name}_mean"), getattr(self, f"{name}_variance")
            return F.batch_norm(x, own, spread, weight, bias, self.training, 1 - p.moving_average_fraction, p.eps)

        return run

    def _scale(self, layer: Any) -> Callable[..., torch.Tensor]:
        channels = self._shapes[layer.bottom[0]][1]
        weight, bias = self._weights(channels, 1, 1, value=1.0), self._weights(channels, 1, 1, value=0.0) if layer.scale_param.bias_term else 0.0
        return lambda x: x * weight + bias

    def _pooling(self, layer: Any) -> Callable[..., torch.Tensor]:
        p = layer.pooling_param
        maximum = p.pool == proto.PoolingParameter.MAX
        if p.global_pooling:
            return (lambda x: x.amax((2, 3), keepdim=True)) if maximum else lambda x: x.mean((2, 3), keepdim=True)
        size, stride = _pair(p.kernel_size, p.kernel_h, p.kernel_w, 1), _pair(p.stride, p.stride_h, p.stride_w, 1)
        pad = _pair(p.pad, p.pad_h, p.pad_w, 0)
        ceil = p.round_mode == proto.PoolingParameter.CEIL
        if maximum:
            return lambda x: F.max_pool2d(x, size, stride, pad, ceil_mode=ceil)
        return lambda x: F.avg_pool2d(x, size, stride, pad, ceil_mode=ceil)

    def _lrn(self, layer: Any) -> Callable[..., torch.Tensor]:
        p = layer.lrn_param
        return lambda x: F.local_response_norm(x, p.local_size, p.alpha, p.beta, p.k)

    def _relu(self, layer: Any) -> Callable[..., torch.Tensor]:
        slope, inplace = layer.relu_param.negative_slope, layer.bottom[0] == layer.top[0]
        return (lambda x: F.leaky_relu(x, slope, inplace)) if slope else lambda x: F.relu(x, inplace)

    def _relu6(self, layer: Any) -> Callable[..., torch.Tensor]:
        return lambda x: F.relu6(x, layer.bottom[0] == layer.top[0])

    def _clip(self, layer: Any) -> Callable[..., torch.Tensor]:
        p, inplace = layer.clip_param, layer.bottom[0] == layer.top[0]
        return lambda x: F.hardtanh(x, p.min, p.max, inplace)

    def _dropout(self, layer: Any) -> Callable[..., torch.Tensor]:
        return lambda x: F.dropout(x, layer.dropout_param.dropout_ratio, self.training)

    def _eltwise(self, layer: Any) -> Callable[..., torch.Tensor]:
        assert layer.eltwise_param.operation == proto.EltwiseParameter.SUM and not layer.eltwise_param.coeff, "only sums"
        return lambda first, *others: sum(others, first)

    def _concat(self, layer: Any) -> Callable[..., torch.Tensor]:
        return lambda *x: torch.cat(x, layer.concat_param.axis)

    def _flatten(self, layer: Any) -> Callable[..., torch.Tensor]:
        return lambda x: x.flatten(1)

    def _softmax(self, layer: Any) -> Callable[..., torch.Tensor]:
        return lambda x: x.softmax(1)

    def _softmaxwithloss(self, layer: Any) -> Callable[..., torch.Tensor]:
        return lambda x, label: F.cross_entropy(x.float(), label.long())


def made_step(net: TorchNet, given: list[torch.Tensor], way: Way) -> Callable[[], torch.Tensor]:
    """Return a function that runs a step on `given`, which stay in place, and returns its loss or last blob."""
    matmul, convolution, half = MATHS[way.math]
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution
    place, train = given[0].device.type, net.training
    run: Callable[..., torch.Tensor] = torch.compile(net) if way.mode == "compile" else net
    # A graph must not keep the casts of weights: they change with each update.
    cast = (lambda: torch.autocast(place, torch.bfloat16, cache_enabled=way.mode == "eager")) if half else contextlib.nullcontext
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=True) if train else None

    def step() -> torch.Tensor:
        if optimizer is None:
            with torch.no_grad(), cast():
                return run(*given)
        optimizer.zero_grad(set_to_none=True)  # after the update it would make a step on a CPU a fifth slower: the allocator returns the memory
        with cast():
            loss = run(*given)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if way.mode == "eager" or place == "cpu":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(CAPTURED_AFTER):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


def measure(message: Any, phase: int, way: Way, steps: int, warm: int, classes: int, place: str = "cuda", copies: bool = False) -> float:
    """Return ms of a step. On a GPU without `copies` steps are queued, and the mean counts. With them each step copies a batch of images from pinned memory
    and reads its result, and the median counts. On a CPU the median counts too, because other processes disturb single steps."""
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    layout: Any = LAYOUTS[way.layout]
    net = TorchNet(message, phase).to(place).to(memory_format=layout)
    shapes = [tuple(shape.dim) for layer in message.layer if layer.type == "Input" for shape in layer.input_param.shape]
    given = [torch.randn(shape).to(place, memory_format=layout) if len(shape) == 4 else (torch.arange(shape[0]) % classes).to(place) for shape in shapes]
    host = torch.randn(shapes[0]).to(memory_format=layout)
    host = host.pin_memory() if place == "cuda" else host
    finish = torch.cuda.synchronize if place == "cuda" else lambda: None
    step = made_step(net, given, way)

    def run(count: int) -> None:
        for _ in range(count):
            if copies:
                given[0].copy_(host, non_blocking=True)
            result = step()
            if copies:
                result.cpu()
        finish()

    run(warm)
    times = []
    each = 1 if copies or place == "cpu" else steps
    for _ in range(steps // each):
        begin = time.perf_counter()
        run(each)
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times) / each
