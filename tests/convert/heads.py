"""Small detectors in torch.nn with the operators of YOLO and NanoDet exports, written from the papers. `MODELS` maps names to functions of a ModelProto.

`model` exports one of the `NETS` in other opsets, by the other exporter, and with `decoded=False` without the decoding of boxes.
"""
from __future__ import annotations

import contextlib
import io
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import onnx
import torch
from torch import nn
from torch.nn import functional as F

from tests.convert.torch_nets import Make, Residual, Shuffled, cba

STRIDES = (8, 16, 32)
CLASSES, BINS = 3, 16
IMAGE = 1, 3, 64, 96
conv = partial(cba, act=nn.SiLU)
Maps = Sequence[torch.Tensor]


# -- blocks ----------------------------------------------------------------------------------------------------------


class Focus(nn.Module):
    """Four images of every second pixel, as channels. `order` is that of their first row and column."""

    def __init__(self, o: int, order: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.order, self.conv = order, conv(12, o, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(torch.cat([x[..., row::2, column::2] for row, column in self.order], 1))


def bottleneck(channels: int) -> nn.Module:
    return Residual(nn.Sequential(conv(channels, channels), conv(channels, channels, 3)), act=None)


class Csp(nn.Module):
    """Blocks on half of the channels, beside the other half: C3 of YOLOv5."""

    def __init__(self, i: int, o: int, inner: Callable[[int], nn.Module] = bottleneck) -> None:
        super().__init__()
        self.left, self.right, self.body, self.join = conv(i, o // 2), conv(i, o // 2), inner(o // 2), conv(o, o)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(torch.cat([self.body(self.left(x)), self.right(x)], 1))


class Chunked(nn.Module):
    """Both halves of the channels and the results of all blocks: C2f of YOLOv8."""

    def __init__(self, i: int, o: int, inner: Callable[[int], nn.Module] = bottleneck) -> None:
        super().__init__()
        self.first, self.body, self.join = conv(i, o), nn.ModuleList([inner(o // 2), inner(o // 2)]), conv(2 * o, o)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for body in self.body:
            parts.append(body(parts[-1]))
        return self.join(torch.cat(parts, 1))


class Elan(nn.Module):
    """All steps of a chain of convolutions, as in YOLOv7."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.left, self.right, self.join = conv(i, o // 2), conv(i, o // 2), conv(2 * o, o)
        self.chain = nn.ModuleList(nn.Sequential(conv(o // 2, o // 2, 3), conv(o // 2, o // 2, 3)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.left(x), self.right(x)]
        for step in self.chain:
            parts.append(step(parts[-1]))
        return self.join(torch.cat(parts[::-1], 1))


class Halved(nn.Module):
    """Half of the size by a maximum and by a convolution."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.pooled = nn.Sequential(nn.MaxPool2d(2, 2), conv(i, o // 2))
        self.strided = nn.Sequential(conv(i, o // 2), conv(o // 2, o // 2, 3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.strided(x), self.pooled(x)], 1)


class Pyramid(nn.Module):
    """Maxima of several windows: one window three times (SPPF), or three windows (SPP)."""

    def __init__(self, channels: int, windows: Sequence[int] = (5, 5, 5)) -> None:
        super().__init__()
        self.chained = len(set(windows)) == 1
        self.first, self.last = conv(channels, channels // 2), conv(2 * channels, channels)
        self.pools = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in windows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.first(x)]
        for pool in self.pools:
            parts.append(pool(parts[-1] if self.chained else parts[0]))
        return self.last(torch.cat(parts, 1))


class Attention(nn.Module):
    """Attention between all pixels, with a depthwise convolution of the values as their places: that of YOLO11."""

    def __init__(self, channels: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.size, self.key = heads, channels // heads, channels // heads // 2
        self.mixed, self.place, self.last = cba(channels, 2 * channels, act=None), cba(channels, channels, 3, g=channels, act=None), conv(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        q, k, v = self.mixed(x).view(batch, self.heads, 2 * self.key + self.size, height * width).split([self.key, self.key, self.size], 2)
        weights = ((q.transpose(-2, -1) @ k) * self.key**-0.5).softmax(-1)
        y = (v @ weights.transpose(-2, -1)).view(batch, channels, height, width) + self.place(v.reshape(batch, channels, height, width))
        return x + self.last(y)


class Ghost(nn.Module):
    """Half of the channels by a convolution, the other half from these by a depthwise one."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        act = partial(nn.LeakyReLU, 0.1)
        self.main, self.cheap = cba(i, o // 2, act=act), cba(o // 2, o // 2, 3, g=o // 2, act=act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.main(x)
        return torch.cat([x, self.cheap(x)], 1)


class Implicit(nn.Module):
    """A learned number for each channel, added or multiplied."""

    def __init__(self, channels: int, multiplied: bool) -> None:
        super().__init__()
        self.multiplied, self.implicit = multiplied, nn.Parameter(torch.rand(1, channels, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.implicit if self.multiplied else x + self.implicit


# -- body ------------------------------------------------------------------------------------------------------------


class Body(nn.Module):
    """Three maps of strides 8, 16 and 32, from coarse to fine and back."""

    def __init__(
        self, widths: Sequence[int], stem: nn.Module, block: Make, pyramid: nn.Module, down: Make | None = None,
        *, up: Make | None = None, backbone: Make | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        down = down or partial(conv, k=3, s=2)
        a, b, c = widths
        self.stem = stem
        stages = [(a // 2, a), (a, b), (b, c)]
        self.stages = nn.ModuleList(backbone(i, o, 2) if backbone else nn.Sequential(down(i, o), block(o, o)) for i, o in stages)
        self.pyramid, self.up = pyramid, up() if up else nn.Upsample(scale_factor=2, mode="nearest")
        self.lower = nn.ModuleList([conv(c, b), conv(b, a)])
        self.finer = nn.ModuleList([block(2 * b, b), block(2 * a, a)])
        self.down = nn.ModuleList([down(a, a), down(b, b)])
        self.coarser = nn.ModuleList([block(2 * a, b), block(2 * b, c)])

    def forward(self, x: torch.Tensor) -> Maps:
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        top = self.lower[0](self.pyramid(maps[2]))
        middle = self.lower[1](self.finer[0](torch.cat([self.up(top), maps[1]], 1)))
        fine = self.finer[1](torch.cat([self.up(middle), maps[0]], 1))
        middle = self.coarser[0](torch.cat([self.down[0](fine), middle], 1))
        return [fine, middle, self.coarser[1](torch.cat([self.down[1](middle), top], 1))]


# -- heads -----------------------------------------------------------------------------------------------------------

ANCHORS = (((10, 13), (16, 30), (33, 23)), ((30, 61), (62, 45), (59, 119)), ((116, 90), (156, 198), (373, 326)))


def grid(height: int, width: int, shift: float = 0.0) -> torch.Tensor:
    """Return the column and row of each pixel, height x width x 2."""
    rows, columns = torch.meshgrid(torch.arange(height).float(), torch.arange(width).float(), indexing="ij")
    return torch.stack((columns, rows), 2) + shift


class AnchorHead(nn.Module):
    """Three anchors in each pixel, as YOLOv5 and YOLOv7 have them. `form`: "split" or "assigned", how the decoding is written."""

    def __init__(self, widths: Iterable[int], form: str, implicit: bool = False) -> None:
        super().__init__()
        self.form, self.values = form, CLASSES + 5
        self.last = nn.ModuleList(
            nn.Sequential(Implicit(width, False), nn.Conv2d(width, 3 * self.values, 1), Implicit(3 * self.values, True)) if implicit
            else nn.Conv2d(width, 3 * self.values, 1) for width in widths
        )  # fmt: skip
        self.register_buffer("anchors", torch.tensor(ANCHORS).float().view(3, 1, 3, 1, 1, 2))
        self.decoded = True

    def forward(self, maps: Maps) -> Any:
        found = []
        for number, (x, last, stride) in enumerate(zip(maps, self.last, STRIDES)):
            batch, _, height, width = x.shape
            x = last(x).view(batch, 3, self.values, height, width).permute(0, 1, 3, 4, 2).contiguous()
            if not self.decoded:
                found.append(x)
                continue
            if self.form == "split":
                xy, wh, rest = x.sigmoid().split((2, 2, CLASSES + 1), 4)
                places = grid(height, width, -0.5).view(1, 1, height, width, 2).expand(1, 3, height, width, 2)
                y = torch.cat(((xy * 2 + places) * stride, (wh * 2) ** 2 * self.anchors[number].expand(1, 3, height, width, 2), rest), 4)
            else:
                y = x.sigmoid()
                y[..., 0:2] = (y[..., 0:2] * 2.0 - 0.5 + grid(height, width).view(1, 1, height, width, 2)) * stride
                y[..., 2:4] = (y[..., 2:4] * 2) ** 2 * self.anchors[number]
            found.append(y.view(batch, -1, self.values))
        return torch.cat(found, 1) if self.decoded else tuple(found)


class DistanceHead(nn.Module):
    """Distances to the four sides as distributions over 16 bins, beside the classes: the head of YOLOv8 and YOLO11.

    `depthwise`: YOLO11's branch of the classes. `separate`: without decoding, boxes and scores are outputs of their own, as chips want them.
    """

    def __init__(self, widths: Iterable[int], depthwise: bool = False, separate: bool = False) -> None:
        super().__init__()
        self.separate, self.decoded = separate, True

        def branch(width: int, values: int, thin: bool) -> nn.Module:
            steps = [conv(width, width, 3, g=width if thin else 1), *([conv(width, width)] if thin else []), conv(width, width, 3)]
            return nn.Sequential(*steps, nn.Conv2d(width, values, 1))

        self.boxes = nn.ModuleList(branch(width, 4 * BINS, False) for width in widths)
        self.scores = nn.ModuleList(branch(width, CLASSES, depthwise) for width in widths)
        self.mean = nn.Conv2d(BINS, 1, 1, bias=False)
        self.mean.weight.data = torch.arange(BINS).float().view(1, BINS, 1, 1)

    def forward(self, maps: Maps) -> Any:
        pairs = [(box(x), score(x)) for x, box, score in zip(maps, self.boxes, self.scores)]
        if not self.decoded:
            return tuple(itertools.chain(*pairs)) if self.separate else tuple(torch.cat(pair, 1) for pair in pairs)
        batch = maps[0].shape[0]
        x = torch.cat([torch.cat(pair, 1).view(batch, 4 * BINS + CLASSES, -1) for pair in pairs], 2)
        box, scores = x.split((4 * BINS, CLASSES), 1)
        box = self.mean(box.view(batch, 4, BINS, -1).transpose(2, 1).softmax(1)).view(batch, 4, -1)
        sizes = [tuple(map(int, each.shape[2:])) for each in maps]
        centre = torch.cat([grid(*size, 0.5).view(-1, 2) for size in sizes]).transpose(0, 1).unsqueeze(0)
        strides = torch.cat([torch.full((1, size[0] * size[1]), float(stride)) for size, stride in zip(sizes, STRIDES)], 1)
        before, behind = box.chunk(2, 1)
        first, last = centre - before, centre + behind
        return torch.cat((torch.cat(((first + last) / 2, last - first), 1) * strides, scores.sigmoid()), 1)


class DecoupledHead(nn.Module):
    """A box, an objectness and classes in each pixel, from two branches: YOLOX. `form`: as in AnchorHead."""

    def __init__(self, widths: Iterable[int], hidden: int, form: str) -> None:
        super().__init__()
        self.form, self.decoded = form, True

        def each(make: Callable[[], nn.Module]) -> nn.ModuleList:
            return nn.ModuleList(make() for _ in STRIDES)

        self.stems = nn.ModuleList(conv(width, hidden) for width in widths)
        self.branches = nn.ModuleList(each(lambda: nn.Sequential(conv(hidden, hidden, 3), conv(hidden, hidden, 3))) for _ in range(2))
        self.box, self.object, self.classes = (each(partial(nn.Conv2d, hidden, values, 1)) for values in (4, 1, CLASSES))

    def forward(self, maps: Maps) -> Any:
        found = []
        for number, x in enumerate(maps):
            x = self.stems[number](x)
            scores, boxes = (branch[number](x) for branch in self.branches)
            found.append(torch.cat([self.box[number](boxes), self.object[number](boxes).sigmoid(), self.classes[number](scores).sigmoid()], 1))
        x = torch.cat([each.flatten(2) for each in found], 2).permute(0, 2, 1)
        if not self.decoded:
            return x
        sizes = [tuple(map(int, each.shape[2:])) for each in maps]
        places = torch.cat([grid(*size).view(1, -1, 2) for size in sizes], 1)
        strides = torch.cat([torch.full((1, size[0] * size[1], 1), float(stride)) for size, stride in zip(sizes, STRIDES)], 1)
        if self.form == "split":
            return torch.cat([(x[..., :2] + places) * strides, torch.exp(x[..., 2:4]) * strides, x[..., 4:]], -1)
        x[..., :2] = (x[..., :2] + places) * strides
        x[..., 2:4] = torch.exp(x[..., 2:4]) * strides
        return x


class FocalHead(nn.Module):
    """Classes and distributions of four distances from one depthwise branch: NanoDet-Plus. Without decoding only the classes have a sigmoid."""

    def __init__(self, widths: Iterable[int], bins: int = 8) -> None:
        super().__init__()
        act = partial(nn.LeakyReLU, 0.1)
        self.bins, self.decoded = bins, True
        self.branches = nn.ModuleList(nn.Sequential(cba(w, w, 5, g=w, act=act), cba(w, w, act=act), nn.Conv2d(w, CLASSES + 4 * bins, 1)) for w in widths)
        self.register_buffer("project", torch.arange(bins).float())

    def forward(self, maps: Maps) -> Any:
        found = []
        for x, branch in zip(maps, self.branches):
            scores, boxes = branch(x).split([CLASSES, 4 * self.bins], 1)
            found.append(torch.cat([scores.sigmoid(), boxes], 1).flatten(2))
        y = torch.cat(found, 2).permute(0, 2, 1)
        if not self.decoded:
            return y
        batch, count, _ = y.shape
        scores, boxes = y.split([CLASSES, 4 * self.bins], 2)
        distances = F.linear(F.softmax(boxes.reshape(batch, count, 4, self.bins), -1), self.project.view(1, -1)).reshape(batch, count, 4)
        sizes = [tuple(map(int, each.shape[2:])) for each in maps]
        centre = torch.cat([grid(*size).view(1, -1, 2) * stride for size, stride in zip(sizes, STRIDES)], 1)
        strides = torch.cat([torch.full((1, size[0] * size[1], 1), float(stride)) for size, stride in zip(sizes, STRIDES)], 1)
        distances = distances * strides
        places = [centre[..., side % 2] + (distances[..., side] if side > 1 else -distances[..., side]) for side in range(4)]
        corners = [place.clamp(0, limit) for place, limit in zip(places, [IMAGE[3], IMAGE[2]] * 2)]
        return torch.cat([torch.stack(corners, -1), scores], -1)


# -- nets ------------------------------------------------------------------------------------------------------------


class Detector(nn.Module):
    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))


WIDTHS = 16, 24, 32
BY_ROWS, BY_COLUMNS = ((0, 0), (0, 1), (1, 0), (1, 1)), ((0, 0), (1, 0), (0, 1), (1, 1))


def _stem() -> nn.Module:
    return nn.Sequential(conv(3, 8, 6, 2, p=2), conv(8, 8, 3, 2))


def _focus(order: Sequence[tuple[int, int]]) -> nn.Module:
    return nn.Sequential(Focus(8, order), conv(8, 8, 3, 2))


def _shuffled() -> Body:
    stem = nn.Sequential(cba(3, 8, 3, 2, act=partial(nn.LeakyReLU, 0.1)), nn.MaxPool2d(3, 2, 1))
    up = partial(nn.Upsample, scale_factor=2, mode="bilinear", align_corners=False)
    return Body(WIDTHS, stem, Ghost, nn.Identity(), up=up, backbone=Shuffled)


def _elan() -> Body:
    stem = nn.Sequential(conv(3, 8, 3), conv(8, 8, 3, 2), conv(8, 8, 3, 2))
    return Body(WIDTHS, stem, Elan, Pyramid(32, (5, 9, 13)), Halved)


class Net(NamedTuple):
    make: Callable[[], nn.Module]
    opset: int = 12
    decoded: bool = True


NETS = {
    "yolov5": Net(lambda: Detector(Body(WIDTHS, _stem(), Csp, Pyramid(32)), AnchorHead(WIDTHS, "split")), 12),
    "yolov5-focus": Net(lambda: Detector(Body(WIDTHS, _focus(BY_COLUMNS), Csp, Pyramid(32, (5, 9, 13))), AnchorHead(WIDTHS, "assigned")), 11),
    "yolov7": Net(lambda: Detector(_elan(), AnchorHead(WIDTHS, "assigned", implicit=True)), 12),
    "yolov8": Net(lambda: Detector(Body(WIDTHS, _stem(), Chunked, Pyramid(32)), DistanceHead(WIDTHS)), 13),
    "yolov8-raw": Net(lambda: Detector(Body(WIDTHS, _stem(), Chunked, Pyramid(32)), DistanceHead(WIDTHS, separate=True)), 12, False),
    "yolo11": Net(lambda: Detector(
        Body(WIDTHS, _stem(), partial(Chunked, inner=lambda c: Csp(c, c)), nn.Sequential(Pyramid(32), Chunked(32, 32, Attention))),
        DistanceHead(WIDTHS, depthwise=True)), 17),
    "yolox": Net(lambda: Detector(Body(WIDTHS, _focus(BY_ROWS), Csp, Pyramid(32, (5, 9, 13))), DecoupledHead(WIDTHS, 16, "assigned")), 11),
    "nanodet-plus": Net(lambda: Detector(_shuffled(), FocalHead(WIDTHS)), 11, False),
}  # fmt: skip


def model(name: str, opset: int = 0, decoded: bool | None = None, dynamo: bool = False, open_batch: bool = False) -> onnx.ModelProto:
    """Return one of the NETS with random weights, as PyTorch exports it. 0 and None mean the net's own opset and form."""
    made = NETS[name]
    torch.manual_seed(0)
    net = made.make()
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.5)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.8, 1.6)
            nn.init.normal_(module.bias, std=0.3)
            module.running_mean.normal_(0, 0.2)  # type: ignore[union-attr, operator]
            module.running_var.uniform_(0.4, 0.8)  # type: ignore[union-attr, operator]
    net.head.decoded = made.decoded if decoded is None else decoded
    options: dict[str, Any] = {"optimize": True, "verbose": False, "external_data": False} if dynamo else {}
    if open_batch:
        options |= {"dynamic_shapes": ({0: torch.export.Dim("batch")},)} if dynamo else {"dynamic_axes": {"images": {0: "batch"}}}
    x, stream = torch.rand(2 if open_batch and dynamo else 1, *IMAGE[1:]), io.BytesIO()
    found = net.eval()(x)
    options["output_names"] = [f"output{number}" for number in range(len(found) if isinstance(found, tuple) else 1)]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), stream, opset_version=opset or made.opset, dynamo=dynamo, input_names=["images"], **options)
    return onnx.load_model_from_string(stream.getvalue())


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {name: partial(model, name) for name in NETS}
