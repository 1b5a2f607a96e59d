"""The nets of benchmarks/segmentation.py in PyTorch, from their prototxts and with given weights."""
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from ocaffe import proto

Step = Callable[..., Any]


class Peer(nn.Module):
    """The layers of a TRAIN net up to the scores, and its loss."""

    def __init__(self, message: Any, first: dict[str, list[np.ndarray]]) -> None:
        """`first`: the weights of each layer."""
        super().__init__()
        self.held = nn.ParameterList()
        self.rates: list[tuple[nn.Parameter, float, float]] = []  # parameter, factor of its rate, factor of its decay
        self.steps: list[tuple[Step, list[str], list[str]]] = []
        for layer in message.layer:
            if layer.type == "SoftmaxWithLoss":
                self.end, p = layer.bottom[0], layer.loss_param
                self.ignored = p.ignore_label
                weights = torch.tensor(list(p.class_weighting)) if p.weight_by_label_freqs else None
                self.register_buffer("weights", weights)
            elif layer.type != "DenseImageData":
                made = getattr(self, f"_{layer.type.lower()}")(layer, self.learned(layer, first.get(layer.name, [])))
                self.steps.append((made, list(layer.bottom), list(layer.top)))

    def learned(self, layer: Any, blobs: list[np.ndarray]) -> list[nn.Parameter]:
        if layer.type == "BatchNorm":
            return [nn.Parameter(torch.tensor(blob), requires_grad=False) for blob in blobs]
        made = []
        for index, blob in enumerate(blobs):
            given = layer.param[index] if index < len(layer.param) else proto.ParamSpec()
            made.append(nn.Parameter(torch.tensor(blob), requires_grad=given.lr_mult != 0))
            self.held.append(made[-1])
            if given.lr_mult:
                self.rates.append((made[-1], given.lr_mult, given.decay_mult))
        return made

    def _convolution(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        p = layer.convolution_param
        pad, stride, dilation = (values[0] if values else default for values, default in ((p.pad, 0), (p.stride, 1), (p.dilation, 1)))
        return lambda x: F.conv2d(x, blobs[0], blobs[1] if len(blobs) > 1 else None, stride, pad, dilation, p.group)

    def _deconvolution(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        p = layer.convolution_param
        pad, stride = p.pad[0] if p.pad else 0, p.stride[0] if p.stride else 1
        return lambda x: F.conv_transpose2d(x, blobs[0], blobs[1] if len(blobs) > 1 else None, stride, pad, groups=p.group)

    def _relu(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        return lambda x: F.relu(x)

    def _dropout(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        return lambda x: F.dropout(x, layer.dropout_param.dropout_ratio, self.training)

    def _lrn(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        p = layer.lrn_param
        return lambda x: F.local_response_norm(x, p.local_size, p.alpha, p.beta, p.k)

    def _pooling(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        p = layer.pooling_param
        return lambda x: F.max_pool2d(x, p.kernel_size, p.stride, ceil_mode=True, return_indices=len(layer.top) == 2)

    def _upsample(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        p = layer.upsample_param
        return lambda x, mask: F.max_unpool2d(x, mask, 2, output_size=(2 * x.shape[2] - p.pad_out_h, 2 * x.shape[3] - p.pad_out_w))

    def _bn(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        return lambda x: F.batch_norm(x, None, None, blobs[0].flatten(), blobs[1].flatten(), training=True, eps=1e-9)

    def _batchnorm(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        mean, variance = (nn.Parameter(torch.full_like(blobs[0], value), requires_grad=False) for value in (0.0, 1.0))
        self.held.extend((mean, variance))
        p, weight = layer.batch_norm_param, [0.0]

        def step(x: torch.Tensor) -> torch.Tensor:
            if self.training:
                weight[0] = weight[0] * p.moving_average_fraction + 1  # Caffe's third blob: the sum of the weights of the average
            return F.batch_norm(x, mean, variance, None, None, self.training, 1 / max(weight[0], 1), p.eps)

        return step

    def _scale(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        return lambda x: x * blobs[0].reshape(1, -1, 1, 1) + (blobs[1].reshape(1, -1, 1, 1) if len(blobs) > 1 else 0)

    def _eltwise(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        return lambda x, y: x + y

    def _crop(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        at = layer.crop_param.offset[0]
        return lambda x, like: x[:, :, at : at + like.shape[2], at : at + like.shape[3]]

    def _concat(self, layer: Any, blobs: list[nn.Parameter]) -> Step:
        return lambda *parts: torch.cat(parts, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return the scores, N x classes x height x width."""
        values: dict[str, torch.Tensor] = {"data": data}
        for step, bottoms, tops in self.steps:
            made = step(*(values[name] for name in bottoms))
            values.update(zip(tops, made if isinstance(made, tuple) else (made,)))
        return values[self.end]

    def optimizer(self, settings: Any) -> Any:
        groups = [{"params": [parameter], "lr": 1.0, "weight_decay": settings.weight_decay * decay} for parameter, _, decay in self.rates]
        if settings.type == "Adam":
            return torch.optim.Adam(groups, betas=(settings.momentum, settings.momentum2), eps=settings.delta)
        return torch.optim.SGD(groups, momentum=settings.momentum)

    def step(self, optimizer: Any, rate: float, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Train with a batch, and return the loss. Weights of classes do not change the number by which it is divided, as in SegNet's fork."""
        for group, (_, factor, _) in zip(optimizer.param_groups, self.rates):
            group["lr"] = rate * factor
        target = labels[:, 0].long()
        total = F.cross_entropy(self(images), target, self.weights, ignore_index=self.ignored, reduction="sum")
        loss = total / (target != self.ignored).sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())
