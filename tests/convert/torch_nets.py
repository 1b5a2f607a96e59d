"""Image networks in torch.nn at full size, written from the papers' tables, for tests that export them. `NETS` maps their usual names to them.

`build` asserts the parameter counts, which are published with torchvision's weights. Only inception_v3's count includes auxiliary classifiers.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

Make = Callable[..., nn.Module]


class Spec(NamedTuple):
    make: Callable[[], nn.Module]
    parameters: int
    size: int = 224  # side of the square image


def build(name: str, seed: int = 0) -> nn.Module:
    """Return the network with random weights, biases and running statistics that keep the scale of activations over the depth."""
    torch.manual_seed(seed)
    spec = NETS[name]
    net = spec.make()
    count = sum(parameter.numel() for parameter in net.parameters())
    assert count == spec.parameters, f"{name} has {count} parameters, {spec.parameters} are published"
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1)
            nn.init.normal_(module.bias, std=0.2)
            module.running_mean.normal_(0, 0.2)  # type: ignore[union-attr, operator]
            module.running_var.uniform_(0.8, 1.6)  # type: ignore[union-attr, operator]
    return net


# -- shared building blocks --------------------------------------------------------------------------------------------


def cba(i: int, o: int, k: Any = 1, s: int = 1, g: int = 1, act: Make | None = nn.ReLU, *, p: Any = None, eps: float = 1e-5, m: float = 0.1) -> nn.Sequential:
    """Return convolution, batch normalization and activation, padded so that stride 1 keeps the size."""
    pad = (k // 2 if isinstance(k, int) else tuple(n // 2 for n in k)) if p is None else p
    layers = [nn.Conv2d(i, o, k, s, pad, groups=g, bias=False), nn.BatchNorm2d(o, eps=eps, momentum=m)]
    return nn.Sequential(*layers, *([act()] if act else []))


class SqueezeExcite(nn.Module):
    """Scales each channel by a factor computed from the means of all channels."""

    def __init__(self, channels: int, squeezed: int, act: Make = nn.ReLU, gate: Make = nn.Sigmoid) -> None:
        super().__init__()
        self.pool, self.act, self.gate = nn.AdaptiveAvgPool2d(1), act(), gate()
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(self.expand(self.act(self.reduce(self.pool(x)))))


class Residual(nn.Module):
    """act(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, act: Make | None = nn.ReLU) -> None:
        super().__init__()
        self.body, self.shortcut, self.act = body, shortcut or nn.Identity(), act() if act else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.body(x) + self.shortcut(x))


class Joined(nn.Module):
    """The outputs of several branches as channels of one tensor."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def pooled(*layers: nn.Module) -> nn.Sequential:
    """Return means over the image, then fully connected layers."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *layers)


# -- AlexNet, VGG, SqueezeNet ------------------------------------------------------------------------------------------


def dense_head(channels: int, size: int, hidden: int = 4096, first: bool = True) -> list[nn.Module]:
    drop = [nn.Dropout(), nn.Dropout()]
    linear = [nn.Linear(channels * size * size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    order = [drop[0], *linear[:2], drop[1], *linear[2:]] if first else [*linear[:2], drop[0], *linear[2:], drop[1]]
    return [nn.AdaptiveAvgPool2d(size), nn.Flatten(), *order, nn.Linear(hidden, 1000)]


def alexnet() -> nn.Module:
    layers: list[nn.Module] = []
    for i, o, k, s, p, pool in ((3, 64, 11, 4, 2, 1), (64, 192, 5, 1, 2, 1), (192, 384, 3, 1, 1, 0), (384, 256, 3, 1, 1, 0), (256, 256, 3, 1, 1, 1)):
        layers += [nn.Conv2d(i, o, k, s, p), nn.ReLU(inplace=True)] + [nn.MaxPool2d(3, 2)] * pool
    return nn.Sequential(*layers, *dense_head(256, 6))


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers, *dense_head(512, 7, first=False))


def squeezenet1_0() -> nn.Module:
    def conv(i: int, o: int, k: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(i, o, k, padding=k // 2), nn.ReLU())

    def fire(i: int, squeezed: int, o: int) -> nn.Sequential:
        return nn.Sequential(conv(i, squeezed, 1), Joined(conv(squeezed, o, 1), conv(squeezed, o, 3)))

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    return nn.Sequential(
        nn.Conv2d(3, 96, 7, 2), nn.ReLU(), pool(), fire(96, 16, 64), fire(128, 16, 64), fire(128, 32, 128), pool(), fire(256, 32, 128),
        fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256), pool(), fire(512, 64, 256), nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(), pooled(),
    )  # fmt: skip


# -- ResNet and RegNet -------------------------------------------------------------------------------------------------


def resnet(depths: Iterable[int], *, bottleneck: bool = True, groups: int = 1, base: int = 64) -> nn.Module:
    layers: list[nn.Module] = [cba(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        width, outputs = 64 * 2**stage, 64 * 2**stage * (4 if bottleneck else 1)
        for block in range(depth):
            stride = 2 if stage and not block else 1
            if bottleneck:
                inner = width * base // 64 * groups
                body = nn.Sequential(cba(channels, inner), cba(inner, inner, 3, stride, groups), cba(inner, outputs, act=None))
            else:
                body = nn.Sequential(cba(channels, width, 3, stride), cba(width, width, 3, act=None))
            shortcut = cba(channels, outputs, 1, stride, act=None) if stride > 1 or channels != outputs else None
            layers.append(Residual(body, shortcut))
            channels = outputs
    return nn.Sequential(*layers, pooled(nn.Linear(channels, 1000)))


def regnet_y_400mf() -> nn.Module:
    layers: list[nn.Module] = [cba(3, 32, 3, 2)]
    channels = 32
    for width, depth in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for block in range(depth):
            stride = 1 if block else 2
            squeeze = SqueezeExcite(width, round(channels * 0.25))
            body = nn.Sequential(cba(channels, width), cba(width, width, 3, stride, width // 8), squeeze, cba(width, width, act=None))
            layers.append(Residual(body, cba(channels, width, 1, stride, act=None) if stride > 1 or channels != width else None))
            channels = width
    return nn.Sequential(*layers, pooled(nn.Linear(channels, 1000)))


# -- MobileNets, MNASNet, EfficientNet ---------------------------------------------------------------------------------


def divisible(value: float, by: int = 8) -> int:
    """Return the nearest multiple that is at most a tenth below."""
    near = max(by, int(value + by / 2) // by * by)
    return near + by if near < 0.9 * value else near


def inverted(i: int, o: int, k: int, s: int, hidden: int, act: Make, squeeze: nn.Module | None = None, **norm: float) -> nn.Module:
    """Return an inverted residual: 1 x 1 expansion, depthwise, optional squeeze and excite, 1 x 1 projection.

    It has a shortcut if the shape stays the same.
    """
    layers: list[nn.Module] = [cba(i, hidden, act=act, **norm)] if hidden != i else []
    layers.append(cba(hidden, hidden, k, s, hidden, act, **norm))
    body = nn.Sequential(*layers, *([squeeze] if squeeze else []), cba(hidden, o, act=None, **norm))
    return Residual(body, act=None) if s == 1 and i == o else body


def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [cba(3, 32, 3, 2, act=nn.ReLU6)]
    channels = 32
    for expand, width, depth, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(depth):
            layers.append(inverted(channels, width, 3, 1 if block else stride, channels * expand, nn.ReLU6))
            channels = width
    return nn.Sequential(*layers, cba(channels, 1280, act=nn.ReLU6), pooled(nn.Dropout(0.2), nn.Linear(1280, 1000)))


LARGE = [  # kernel, hidden, outputs, squeeze, hard swish, stride
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1), (5, 120, 40, 1, 0, 1),
    (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1),
    (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1),
]  # fmt: skip
SMALL = [
    (3, 16, 16, 1, 0, 2), (3, 72, 24, 0, 0, 2), (3, 88, 24, 0, 0, 1), (5, 96, 40, 1, 1, 2), (5, 240, 40, 1, 1, 1), (5, 240, 40, 1, 1, 1),
    (5, 120, 48, 1, 1, 1), (5, 144, 48, 1, 1, 1), (5, 288, 96, 1, 1, 2), (5, 576, 96, 1, 1, 1), (5, 576, 96, 1, 1, 1),
]  # fmt: skip


def mobilenet_v3(table: list[tuple[int, ...]], last: int, hidden: int) -> nn.Module:
    norm = {"eps": 1e-3, "m": 0.01}
    layers: list[nn.Module] = [cba(3, 16, 3, 2, act=nn.Hardswish, **norm)]
    channels = 16
    for kernel, width, outputs, squeeze, hard, stride in table:
        excite = SqueezeExcite(width, divisible(width / 4), gate=nn.Hardsigmoid) if squeeze else None
        layers.append(inverted(channels, outputs, kernel, stride, width, nn.Hardswish if hard else nn.ReLU, excite, **norm))
        channels = outputs
    head = pooled(nn.Linear(last, hidden), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(hidden, 1000))
    return nn.Sequential(*layers, cba(channels, last, act=nn.Hardswish, **norm), head)


def mnasnet1_0() -> nn.Module:
    m = 3e-4
    layers: list[nn.Module] = [cba(3, 32, 3, 2, m=m), cba(32, 32, 3, 1, 32, m=m), cba(32, 16, act=None, m=m)]
    channels = 16
    for width, kernel, stride, expand, depth in ((24, 3, 2, 3, 3), (40, 5, 2, 3, 3), (80, 5, 2, 6, 3), (96, 3, 1, 6, 2), (192, 5, 2, 6, 4), (320, 3, 1, 6, 1)):
        for block in range(depth):
            layers.append(inverted(channels, width, kernel, 1 if block else stride, channels * expand, nn.ReLU, m=m))
            channels = width
    return nn.Sequential(*layers, cba(channels, 1280, m=m), pooled(nn.Dropout(0.2), nn.Linear(1280, 1000)))


def efficientnet(wide: float, deep: float, dropout: float) -> nn.Module:
    def width(channels: int) -> int:
        return divisible(channels * wide)

    channels = width(32)
    layers: list[nn.Module] = [cba(3, channels, 3, 2, act=nn.SiLU)]
    stages = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1))
    for expand, kernel, stride, outputs, depth in stages:
        for block in range(-int(-depth * deep // 1)):
            hidden = divisible(channels * expand)
            excite = SqueezeExcite(hidden, max(1, channels // 4), nn.SiLU)
            layers.append(inverted(channels, width(outputs), kernel, 1 if block else stride, hidden, nn.SiLU, excite))
            channels = width(outputs)
    return nn.Sequential(*layers, cba(channels, 4 * channels, act=nn.SiLU), pooled(nn.Dropout(dropout), nn.Linear(4 * channels, 1000)))


# -- DenseNet ----------------------------------------------------------------------------------------------------------


class Grown(nn.Module):
    """Concatenates x and the channels that a layer computes from it."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet(depths: tuple[int, ...], growth: int, first: int) -> nn.Module:
    layers: list[nn.Module] = [cba(3, first, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = first
    for stage, depth in enumerate(depths):
        layers += [Grown(channels + block * growth, growth) for block in range(depth)]
        channels += depth * growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        if stage < len(depths) - 1:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2, 2)]
            channels //= 2
    return nn.Sequential(*layers, pooled(nn.Linear(channels, 1000)))


# -- GoogLeNet, Inception v3 -------------------------------------------------------------------------------------------


def googlenet() -> nn.Module:
    conv = partial(cba, eps=1e-3)

    def pool(k: int, s: int = 2) -> nn.Module:
        return nn.MaxPool2d(k, s, k // 2 if s == 1 else 0, ceil_mode=True)

    def inception(i: int, a: int, b: int, bb: int, c: int, cc: int, d: int) -> nn.Module:
        return Joined(conv(i, a), nn.Sequential(conv(i, b), conv(b, bb, 3)), nn.Sequential(conv(i, c), conv(c, cc, 3)), nn.Sequential(pool(3, 1), conv(i, d)))

    return nn.Sequential(
        conv(3, 64, 7, 2), pool(3), conv(64, 64), conv(64, 192, 3), pool(3),
        inception(192, 64, 96, 128, 16, 32, 32), inception(256, 128, 128, 192, 32, 96, 64), pool(3),
        inception(480, 192, 96, 208, 16, 48, 64), inception(512, 160, 112, 224, 24, 64, 64), inception(512, 128, 128, 256, 24, 64, 64),
        inception(512, 112, 144, 288, 32, 64, 64), inception(528, 256, 160, 320, 32, 128, 128), pool(2),
        inception(832, 256, 160, 320, 32, 128, 128), inception(832, 384, 192, 384, 48, 128, 128), pooled(nn.Dropout(0.2), nn.Linear(1024, 1000)),
    )  # fmt: skip


class InceptionV3(nn.Module):
    """The auxiliary classifier is not used in inference, but its parameters are counted."""

    def __init__(self) -> None:
        super().__init__()
        conv = partial(cba, eps=1e-3)

        def chain(*layers: nn.Module) -> nn.Sequential:
            return nn.Sequential(*layers)

        def mean(i: int, o: int) -> nn.Sequential:
            return chain(nn.AvgPool2d(3, 1, 1), conv(i, o))

        def a(i: int, pool: int) -> nn.Module:
            return Joined(conv(i, 64), chain(conv(i, 48), conv(48, 64, 5)), chain(conv(i, 64), conv(64, 96, 3), conv(96, 96, 3)), mean(i, pool))

        def c(w: int) -> nn.Module:
            row, column = (1, 7), (7, 1)
            double = chain(conv(768, w), conv(w, w, column), conv(w, w, row), conv(w, w, column), conv(w, 192, row))
            return Joined(conv(768, 192), chain(conv(768, w), conv(w, w, row), conv(w, 192, column)), double, mean(768, 192))

        def e(i: int) -> nn.Module:
            def both() -> nn.Module:
                return Joined(conv(384, 384, (1, 3)), conv(384, 384, (3, 1)))

            return Joined(conv(i, 320), chain(conv(i, 384), both()), chain(conv(i, 448), conv(448, 384, 3), both()), mean(i, 192))

        self.body = chain(
            conv(3, 32, 3, 2, p=0), conv(32, 32, 3, p=0), conv(32, 64, 3), nn.MaxPool2d(3, 2), conv(64, 80), conv(80, 192, 3, p=0), nn.MaxPool2d(3, 2),
            a(192, 32), a(256, 64), a(288, 64),
            Joined(conv(288, 384, 3, 2, p=0), chain(conv(288, 64), conv(64, 96, 3), conv(96, 96, 3, 2, p=0)), nn.MaxPool2d(3, 2)),
            c(128), c(160), c(160), c(192),
        )  # fmt: skip
        self.aux = chain(nn.AvgPool2d(5, 3), conv(768, 128), conv(128, 768, 5, p=0), pooled(nn.Linear(768, 1000)))
        long = chain(conv(768, 192), conv(192, 192, (1, 7)), conv(192, 192, (7, 1)), conv(192, 192, 3, 2, p=0))
        reduce = Joined(chain(conv(768, 192), conv(192, 320, 3, 2, p=0)), long, nn.MaxPool2d(3, 2))
        self.head = chain(reduce, e(1280), e(2048), pooled(nn.Dropout(), nn.Linear(2048, 1000)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


# -- ShuffleNet v2 -----------------------------------------------------------------------------------------------------


class Shuffled(nn.Module):
    """Half of the channels pass unchanged, or are convolved too if the size halves. Then both halves are interleaved."""

    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        half = o // 2

        def thin(channels: int) -> nn.Sequential:
            return cba(channels, channels, 3, stride, channels, None)

        self.left = nn.Sequential(thin(i), cba(i, half)) if stride > 1 else None
        self.right = nn.Sequential(cba(i if stride > 1 else half, half), thin(half), cba(half, half))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = (x, x) if self.left else x.chunk(2, 1)
        y = torch.cat([self.left(left) if self.left else left, self.right(right)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def shufflenet_v2_x1_0() -> nn.Module:
    layers: list[nn.Module] = [cba(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 24
    for width, depth in ((116, 4), (232, 8), (464, 4)):
        layers += [Shuffled(channels if not block else width, width, 1 if block else 2) for block in range(depth)]
        channels = width
    return nn.Sequential(*layers, cba(464, 1024), pooled(nn.Linear(1024, 1000)))


NETS = {
    "alexnet": Spec(alexnet, 61_100_840),
    "vgg16": Spec(vgg16, 138_357_544),
    "resnet18": Spec(lambda: resnet((2, 2, 2, 2), bottleneck=False), 11_689_512),
    "resnext50_32x4d": Spec(lambda: resnet((3, 4, 6, 3), groups=32, base=4), 25_028_904),
    "wide_resnet50_2": Spec(lambda: resnet((3, 4, 6, 3), base=128), 68_883_240),
    "efficientnet_b0": Spec(lambda: efficientnet(1.0, 1.0, 0.2), 5_288_548),
    "efficientnet_b4": Spec(lambda: efficientnet(1.4, 1.8, 0.4), 19_341_616, 380),
    "regnet_y_400mf": Spec(regnet_y_400mf, 4_344_144),
    "squeezenet1_0": Spec(squeezenet1_0, 1_248_424),
    "mobilenet_v2": Spec(mobilenet_v2, 3_504_872),
    "mobilenet_v3_large": Spec(lambda: mobilenet_v3(LARGE, 960, 1280), 5_483_032),
    "mobilenet_v3_small": Spec(lambda: mobilenet_v3(SMALL, 576, 1024), 2_542_856),
    "densenet121": Spec(lambda: densenet((6, 12, 24, 16), 32, 64), 7_978_856),
    "densenet161": Spec(lambda: densenet((6, 12, 36, 24), 48, 96), 28_681_000),
    "googlenet": Spec(googlenet, 6_624_904),
    "inception_v3": Spec(InceptionV3, 27_161_264, 299),
    "shufflenet_v2_x1_0": Spec(shufflenet_v2_x1_0, 2_278_604),
    "mnasnet1_0": Spec(mnasnet1_0, 4_383_312),
}
