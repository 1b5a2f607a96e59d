#!/usr/bin/env python3
"""An SSD of the zoo, or point_shapes, against the same net in PyTorch, trained on the same batches: mean average precision, and ms per step.

    benchmarks/detection.py FOLDER [--net ssd_shapes] [--iterations 1500] [--batch 32] [--weights FILE] [--device D] [--torch cpu|cuda] [--only ocaffe|torch] ..

FOLDER has annotated databases, as `ocaffe dataset voc` writes them. ocaffe trains by the files that `ocaffe new` writes. PyTorch begins with the same
weights. ocaffe's AnnotatedData layer reads and changes the images of both. PyTorch matches boxes, mines negatives and suppresses detections by the code
below, which is written from the paper. The average precision of both is computed by `precision` below. Weights are tested without a moving average.

With --steps N, both also make N steps on one batch that stays on the device: `resident` has the ms.
"""
import argparse
import collections
import json
import math
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from detect_scenes import spare
from torch import nn
from torch.nn import functional as F

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import select_device
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import read_net, read_solver
from ocaffe.solver.policies import LearningRate
from ocaffe.zoo.detection_project import write_detector
from ocaffe.zoo.project import Choices

OVERLAP, NEGATIVES, NMS, LISTED, KEPT, LEAST = 0.5, 3, 0.45, 400, 200, 0.01  # as in the prototxts of ocaffe/zoo/detectors.py

SEED, POINTS, WARM = 1, 100, 20


class Ssd(nn.Module):
    """The layers of a TRAIN net up to locations and confidences. `priors`: 2 x P x 4, boxes and variances."""

    def __init__(self, message: Any, first: dict[str, list[np.ndarray]], priors: np.ndarray, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.register_buffer("priors", torch.tensor(priors.reshape(2, -1, 4)))
        self.held = nn.ParameterList()
        self.rates: list[tuple[nn.Parameter, float, float]] = []  # parameter, factor of its rate, factor of its decay
        self.norms: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self.steps: list[tuple[Callable[..., torch.Tensor], list[str], str]] = []
        for layer in message.layer:
            rule = getattr(self, f"_{layer.type.lower()}", None)
            if rule is not None:
                self.steps.append((rule(layer, first.get(layer.name, [])), list(layer.bottom), layer.top[0]))

    def learned(self, layer: Any, blobs: list[np.ndarray]) -> list[nn.Parameter]:
        made = []
        for index, blob in enumerate(blobs):
            given = layer.param[index] if index < len(layer.param) else proto.ParamSpec()
            made.append(nn.Parameter(torch.tensor(blob), requires_grad=given.lr_mult != 0))
            self.held.append(made[-1])
            if given.lr_mult:
                self.rates.append((made[-1], given.lr_mult, given.decay_mult))
        return made

    def _convolution(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        p = layer.convolution_param
        weight, *bias = self.learned(layer, blobs)
        pad, stride, dilation = (values[0] if values else default for values, default in ((p.pad, 0), (p.stride, 1), (p.dilation, 1)))
        return lambda x: F.conv2d(x, weight, bias[0] if bias else None, stride, pad, dilation, p.group)

    def _batchnorm(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        channels = len(blobs[0])
        mean, variance = (nn.Parameter(torch.full((channels,), value), requires_grad=False) for value in (0.0, 1.0))
        self.held.extend((mean, variance))
        p, weight = layer.batch_norm_param, [0.0]

        def step(x: torch.Tensor) -> torch.Tensor:
            if self.training:
                weight[0] = weight[0] * p.moving_average_fraction + 1  # Caffe's third blob: the sum of the weights of the average
            return F.batch_norm(x, mean, variance, None, None, self.training, 1 / max(weight[0], 1), p.eps)

        return step

    def _scale(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        weight, bias = self.learned(layer, blobs)
        return lambda x: x * weight[:, None, None] + bias[:, None, None]

    def _normalize(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        (scale,) = self.learned(layer, blobs)
        return lambda x: F.normalize(x, eps=1e-10) * scale.reshape(1, -1, 1, 1)

    def _relu(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        return F.relu

    def _pooling(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        p = layer.pooling_param
        return lambda x: F.max_pool2d(x, p.kernel_size, p.stride, p.pad, ceil_mode=True)

    def _eltwise(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        return torch.add

    def _upsample(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        return lambda x: F.interpolate(x, scale_factor=float(layer.upsample_param.scale))

    def _permute(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        return lambda x: x.permute(*layer.permute_param.order)

    def _flatten(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        return lambda x: x.flatten(1)

    def _concat(self, layer: Any, blobs: list[np.ndarray]) -> Callable[..., torch.Tensor]:
        return lambda *x: torch.cat(x, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return locations N x P x 4 and confidences N x P x classes."""
        blobs = {"data": x}
        for step, bottoms, top in self.steps:
            if all(bottom in blobs for bottom in bottoms):
                blobs[top] = step(*(blobs[bottom] for bottom in bottoms))
        return blobs["mbox_loc"].reshape(len(x), -1, 4), blobs["mbox_conf"].reshape(len(x), -1, self.classes)

    def loss(self, x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Return SSD's loss. `truth`: N x G x 5, labels and boxes of each image, as `padded` makes them."""
        loc, conf = self(x)
        boxes, variances = self.priors
        table = overlap(truth[..., 1:], boxes)  # images x objects x priors
        overlaps, nearest = table.max(1)
        matched = torch.where(overlaps > OVERLAP, nearest, -1)
        images, left = torch.arange(len(x), device=x.device), table.clone()
        for _ in range(truth.shape[1]):  # each object gets its best prior, the best pair first
            most, best = left.flatten(1).max(1)
            row, column = best // table.shape[2], best % table.shape[2]
            matched[images, column] = torch.where(most > 1e-6, row, matched[images, column])
            left[images, row], left[images, :, column] = -1, -1
        positive = matched >= 0
        chosen = truth[images[:, None], matched.clamp(min=0)]
        labels = torch.where(positive, chosen[..., 0], 0).long()
        places = encoded(chosen[..., 1:][positive], boxes.expand_as(loc)[positive], variances.expand_as(loc)[positive])
        each = F.cross_entropy(conf.transpose(1, 2), labels, reduction="none")
        with torch.no_grad():  # the negatives with the least certain background
            rank = torch.where(positive | (overlaps >= OVERLAP), -math.inf, each).argsort(1, descending=True).argsort(1)
            negative = (rank < NEGATIVES * positive.sum(1, keepdim=True)) & ~positive & (overlaps < OVERLAP)
        count = positive.sum().clamp(min=1)
        return (F.smooth_l1_loss(loc[positive], places, reduction="sum") + each[positive | negative].sum()) / count

    def scores(self, conf: torch.Tensor) -> torch.Tensor:
        return conf.softmax(-1)

    @torch.no_grad()
    def detect(self, x: torch.Tensor) -> list[np.ndarray]:
        """Return for each image rows of label, score, left, top, right, bottom."""
        loc, conf = self(x)
        boxes, variances = self.priors
        sides, centres = boxes[:, 2:] - boxes[:, :2], (boxes[:, 2:] + boxes[:, :2]) / 2
        middle, size = centres + loc[..., :2] * variances[:, :2] * sides, sides * torch.exp(loc[..., 2:] * variances[:, 2:])
        corners = torch.cat([middle - size / 2, middle + size / 2], -1).cpu().numpy()
        scores = self.scores(conf).cpu().numpy()
        return [suppressed(corners[image], scores[image]) for image in range(len(x))]


class Points(Ssd):
    """A detector without anchors. The assignment is written from TOOD's paper (arXiv 2108.07755), the losses from those of GFL and CIoU."""

    def __init__(self, message: Any, *others: Any) -> None:
        super().__init__(message, *others)
        self.param = next(layer.aligned_box_loss_param for layer in message.layer if layer.type == "AlignedBoxLoss")

    def scores(self, conf: torch.Tensor) -> torch.Tensor:
        return conf.sigmoid()

    def boxes(self, loc: torch.Tensor) -> torch.Tensor:
        prior, variance = self.priors
        sides, way = prior[:, 2:] - prior[:, :2], loc * variance
        centre, reach = (prior[:, 2:] + prior[:, :2]) / 2 + way[..., :2] * sides, way[..., 2:].exp() * sides / 2
        return torch.cat([centre - reach, centre + reach], -1)

    def loss(self, x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        loc, conf = self(x)
        boxes, prior, true = self.boxes(loc), self.priors[0], truth[..., 1:]
        with torch.no_grad():
            found = boxes.detach()
            sides = (torch.minimum(true[:, :, None, 2:], found[:, None, :, 2:]) - torch.maximum(true[:, :, None, :2], found[:, None, :, :2])).clamp(min=0)
            both = sides.prod(-1)
            overlaps = both / (area(true)[:, :, None] + area(found)[:, None] - both).clamp(min=1e-12)
            way = (prior[:, :2] + prior[:, 2:] - true[:, :, None, :2] - true[:, :, None, 2:]).abs()
            inside = (way < torch.maximum(prior[:, 2:] - prior[:, :2], true[:, :, None, 2:] - true[:, :, None, :2])).all(-1) & (truth[..., :1] > 0)
            labels = truth[..., 0].long()
            scores = conf.sigmoid().transpose(1, 2).gather(1, labels[:, :, None].expand(-1, -1, conf.shape[1]))
            metric = scores**self.param.score_power * overlaps**self.param.overlap_power * inside
            best, places = metric.topk(min(self.param.top_k, metric.shape[2]), 2)
            chosen = torch.zeros_like(metric).scatter(2, places, (best > 1e-30).float()) > 0
            largest, owner = torch.where(chosen, overlaps, -1).max(1)
            positive = largest >= 0
            own = chosen & (torch.arange(truth.shape[1], device=x.device)[:, None] == owner[:, None]) & positive[:, None]
            top = torch.where(own, metric, 0).amax(2, keepdim=True).clamp(min=1e-30)
            targets = (torch.where(own, metric, 0) / top * torch.where(own, overlaps, 0).amax(2, keepdim=True)).sum(1)
            wanted = torch.zeros_like(conf)
            wanted.scatter_(2, labels.gather(1, owner)[..., None], (targets * positive)[..., None])
            divisor = targets.sum().clamp(min=1)
        each = F.binary_cross_entropy_with_logits(conf, wanted, reduction="none") * (wanted - conf.sigmoid()).abs() ** self.param.gamma
        images, priors = positive.nonzero(as_tuple=True)
        located = ciou_loss(boxes[images, priors], true[images, owner[images, priors]]) * targets[images, priors]
        return (each[..., 1:].sum() + self.param.loc_weight * located.sum()) / divisor


def area(boxes: torch.Tensor) -> torch.Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def ciou_loss(boxes: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return 1 - CIoU of boxes that overlap (arXiv 1911.08287)."""
    both = (torch.minimum(boxes[:, 2:], truth[:, 2:]) - torch.maximum(boxes[:, :2], truth[:, :2])).prod(1)
    overlaps = both / (area(boxes) + area(truth) - both)
    whole = torch.maximum(boxes[:, 2:], truth[:, 2:]) - torch.minimum(boxes[:, :2], truth[:, :2])
    way = (boxes[:, :2] + boxes[:, 2:] - truth[:, :2] - truth[:, 2:]) / 2
    sides, wanted = boxes[:, 2:] - boxes[:, :2], truth[:, 2:] - truth[:, :2]
    aspect = 4 / math.pi**2 * (torch.atan(wanted[:, 0] / wanted[:, 1]) - torch.atan(sides[:, 0] / sides[:, 1])) ** 2
    weight = (aspect / (1 - overlaps + aspect).clamp(min=1e-12)).detach()
    return 1 - overlaps + (way**2).sum(1) / (whole**2).sum(1) + weight * aspect


def padded(rows: np.ndarray, images: int) -> np.ndarray:
    """Return N x G x 5, label and box, from rows of image, label, instance, left, top, right, bottom, difficult. Empty boxes fill the places left."""
    own = [rows[rows[:, 0] == image][:, [1, 3, 4, 5, 6]] for image in range(images)]
    made = np.zeros((images, max(1, *map(len, own)), 5), np.float32)
    for image, each in enumerate(own):
        made[image, : len(each)] = each
    return made


def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the intersections over unions of boxes ... x G x 4 and P x 4, ... x G x P."""
    sides = (torch.minimum(a[..., None, 2:], b[:, 2:]) - torch.maximum(a[..., None, :2], b[:, :2])).clamp(min=0)
    both = sides.prod(-1)
    return both / ((a[..., 2:] - a[..., :2]).prod(-1)[..., None] + (b[:, 2:] - b[:, :2]).prod(-1) - both)


def encoded(truth: torch.Tensor, prior: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    sides, own = prior[:, 2:] - prior[:, :2], truth[:, 2:] - truth[:, :2]
    move = ((truth[:, 2:] + truth[:, :2]) - (prior[:, 2:] + prior[:, :2])) / 2 / sides / variance[:, :2]
    return torch.cat([move, torch.log(own / sides) / variance[:, 2:]], -1)


def suppressed(boxes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    rows = []
    for label in range(1, scores.shape[1]):
        order = [prior for prior in np.argsort(-scores[:, label], kind="stable")[:LISTED] if scores[prior, label] > LEAST]
        kept: list[int] = []
        left = np.array(order, int)
        while len(left):
            kept.append(int(left[0]))
            left = left[1:][ious(boxes[kept[-1]], boxes[left[1:]]) <= NMS]
        rows += [(label, scores[prior, label], *boxes[prior]) for prior in kept]
    return np.array(sorted(rows, key=lambda row: -row[1])[:KEPT], np.float64).reshape(-1, 6)


def ious(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of a box with others, n x 4."""
    both = (np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])).clip(min=0).prod(1)
    return both / (np.prod(box[2:] - box[:2]) + (others[:, 2:] - others[:, :2]).prod(1) - both)


def precision(found: list[np.ndarray], truth: list[np.ndarray], classes: int) -> float:
    """Return the mean over the classes of the area under precision and recall. Difficult objects count neither way.

    `found`: rows of `Ssd.detect` for each image. `truth`: for each image rows of label, left, top, right, bottom, difficult.
    """
    areas = []
    for label in range(1, classes):
        own = [boxes[boxes[:, 0] == label] for boxes in truth]
        total = sum(int((boxes[:, 5] == 0).sum()) for boxes in own)
        used = [np.zeros(len(boxes), bool) for boxes in own]
        rows = sorted(((row[1], image, row[2:6]) for image, rows in enumerate(found) for row in rows if row[0] == label), key=lambda row: -row[0])
        hits = []
        for _, image, box in rows:
            shares = ious(box, own[image][:, 1:5])
            best = int(np.argmax(shares)) if len(shares) else -1
            if best >= 0 and shares[best] >= OVERLAP:
                if own[image][best, 5]:
                    continue
                hits.append(not used[image][best])
                used[image][best] = True
            else:
                hits.append(False)
        if total:
            right = np.cumsum(hits)
            recall, exact = right / total, right / np.arange(1, len(hits) + 1)
            areas.append(float((np.diff(recall, prepend=0) * exact).sum()))
    return statistics.mean(areas)


def layers_of(file: str, phase: int) -> Any:
    return filter_net(read_net(file), proto.NetState(phase=phase))


def batches(file: str, phase: int, count: int, device: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield what the net's data layer yields: images and rows of boxes."""
    message = proto.NetParameter(layer=[layer for layer in layers_of(file, phase).layer if layer.type == "AnnotatedData"])
    with ocaffe.Net(message, phase, device=device) as net:
        for _ in range(count):
            net.forward()
            yield np.array(net.blobs["data"].data), np.array(net.blobs["label"].data).reshape(-1, 8)


def ahead(given: Iterator[Any], count: int = 3) -> Iterator[Any]:
    """Yield the same, made by a thread that is up to `count` items ahead."""
    with ThreadPoolExecutor(1) as thread:
        made = collections.deque(thread.submit(next, given, None) for _ in range(count))
        while (item := made.popleft().result()) is not None:
            made.append(thread.submit(next, given, None))
            yield item


def test_ocaffe(file: str, weights: str, count: int, device: Any, classes: int) -> float:
    """Return the precision of the TEST net."""
    message = layers_of(file, proto.TEST)
    kept = proto.NetParameter(layer=[layer for layer in message.layer if layer.type != "DetectionEvaluate"])
    found, truth = [], []
    with ocaffe.Net(kept, proto.TEST, weights=weights, device=device) as net:
        for _ in range(count):
            net.forward()
            rows, boxes = np.array(net.blobs["detection_out"].data).reshape(-1, 7), np.array(net.blobs["label"].data).reshape(-1, 8)
            for image in range(net.blobs["data"].data.shape[0]):
                found.append(rows[(rows[:, 0] == image) & (rows[:, 1] >= 0), 1:].astype(np.float64))
                truth.append(boxes[boxes[:, 0] == image][:, [1, 3, 4, 5, 6, 7]].astype(np.float64))
    return precision(found, truth, classes)


def train_ocaffe(settings: Any, device: Any) -> tuple[list[float], float]:
    """Train and write the weights. Return the losses, and the ms per step of the whole training with its data layer."""
    losses = []
    with ocaffe.get_solver(settings, device=device) as solver:
        solver.step(1)
        begin = time.perf_counter()
        for _ in range(settings.max_iter - 1):
            solver.step(1)
            losses.append(float(solver.net.blobs["mbox_loss"].data))
        ms = 1000 * (time.perf_counter() - begin) / max(settings.max_iter - 1, 1)
        solver.net.save(settings.snapshot_prefix + ".caffemodel")
    return losses, ms


def optimizer_of(net: Ssd, settings: Any, place: str) -> tuple[Any, list[tuple[float, float]]]:
    """Return the optimizer, and the factors of rate and decay of its groups: one group each, so that PyTorch updates many parameters per launch."""
    kinds = sorted({(rate, decay) for _, rate, decay in net.rates})
    groups = [{"params": [parameter for parameter, *kind in net.rates if tuple(kind) == wanted]} for wanted in kinds]
    if settings.type == "Adam":
        return torch.optim.Adam(groups, lr=1.0, betas=(settings.momentum, settings.momentum2), eps=settings.delta, fused=place == "cuda"), kinds
    return torch.optim.SGD(groups, lr=1.0, momentum=settings.momentum), kinds


def resident_torch(net: Ssd, settings: Any, batch: tuple[np.ndarray, np.ndarray], place: str, steps: int) -> float:
    """Return the ms of a step on a batch that stays on the device, the best of both memory formats."""
    boxes, times = torch.from_numpy(padded(batch[1], len(batch[0]))).to(place), []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        images = torch.from_numpy(batch[0]).to(place).to(memory_format=memory_format)
        for parameter in net.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.to(memory_format=memory_format)
        optimizer, _ = optimizer_of(net, settings, place)
        for group in optimizer.param_groups:
            group["lr"] = settings.base_lr / 100
        for count in (WARM, steps):
            begin = time.perf_counter()
            for _ in range(count):
                loss = net.loss(images, boxes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            loss.item()
        times.append(1000 * (time.perf_counter() - begin) / steps)
    return min(times)


def resident_ocaffe(file: str, settings: Any, batch: tuple[np.ndarray, np.ndarray], device: Any, steps: int) -> float:
    """Return the same of ocaffe."""
    message, net = layers_of(file, proto.TRAIN), proto.NetParameter()
    data = net.layer.add(name="data", type="Input", top=["data", "label"])
    for array in (batch[0], batch[1][None, None]):
        data.input_param.shape.add(dim=array.shape)
    net.layer.extend(layer for layer in message.layer if layer.type != "AnnotatedData")
    param = proto.SolverParameter()
    param.CopyFrom(settings)
    for field in ("net", "random_seed", "eval_type", "display"):
        param.ClearField(field)
    param.net_param.CopyFrom(net)
    param.base_lr, param.lr_policy, param.max_iter, param.snapshot_after_train = settings.base_lr / 100, "fixed", 1 << 30, False
    with ocaffe.get_solver(param, device=device) as solver:
        solver.net.blobs["data"].data[...], solver.net.blobs["label"].data[...] = batch[0], batch[1]
        for count in (WARM, steps):
            begin = time.perf_counter()
            solver.step(count)
            device.queue.finish()
        return 1000 * (time.perf_counter() - begin) / steps


def train_torch(net: Ssd, settings: Any, given: Iterator[tuple[np.ndarray, np.ndarray]], place: str) -> tuple[list[float], float]:
    """Train the same net with the same rates. Return the losses, and the median ms of a step without the data layer."""
    rate_of = LearningRate(settings)
    optimizer, kinds = optimizer_of(net, settings, place)
    losses, times = [], []
    for iteration, (images, boxes) in enumerate(given):
        rate, _ = rate_of(iteration)
        for group, (factor, decay) in zip(optimizer.param_groups, kinds):
            group["lr"], group["weight_decay"] = rate * factor, settings.weight_decay * decay
        begin = time.perf_counter()
        loss = net.loss(torch.from_numpy(images).to(place), torch.from_numpy(padded(boxes, len(images))).to(place))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
        if iteration % 500 == 499:
            mean, ms = statistics.mean(losses[-500:]), 1000 * statistics.median(times[-500:])
            print(f"PyTorch: iteration {iteration + 1}, loss {mean:.3f}, {ms:.1f} ms a step without the data", flush=True)
    return losses, 1000 * statistics.median(times)


def curve(losses: list[float]) -> list[float]:
    """Return the means of at most POINTS parts of a training."""
    return [float(part.mean()) for part in np.array_split(losses, min(POINTS, len(losses)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--net", default="ssd_shapes")
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--weights", default="")
    parser.add_argument("--solver", default="", help="more fields of the solver")
    parser.add_argument("--transform", default="", help="more fields of the TRAIN layer's transform_param")
    parser.add_argument("--device", default="")
    parser.add_argument("--math", default="")
    parser.add_argument("--torch", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", default="", choices=("ocaffe", "torch"), help="two processes can train side by side")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    log.quiet()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.math == "tf32"
    device = select_device(options.device or None, math=options.math or None)
    with tempfile.TemporaryDirectory() as folder:
        choices = Choices(batch=options.batch, iterations=options.iterations, weights=options.weights, solver=options.solver, transform=options.transform)
        made = write_detector(options.net, options.folder, f"{folder}/net", choices, device.target)
        spare(made.path("train_val.prototxt"))
        file, classes = made.path("train_val.prototxt"), made.classes + 1
        settings = read_solver(made.path("solver.prototxt"))
        settings.random_seed = SEED  # both begin with the same weights, also in two processes
        for field in ("snapshot", "best_output", "ema_decay", "ema_test"):
            settings.ClearField(field)
        count = settings.test_iter[0]
        for field in ("test_iter", "test_interval"):
            settings.ClearField(field)
        result: dict[str, Any] = {"net": options.net, "images": made.images.train.images, "iterations": options.iterations, "batch": options.batch,
                                  "math": device.target.math}  # fmt: skip
        with ocaffe.get_solver(settings, device=device) as untrained:
            first = {name: [np.array(blob.data) for blob in blobs] for name, blobs in untrained.net.params.items()}
            untrained.net.forward()
            priors = np.array(untrained.net.blobs["mbox_priorbox"].data)
            untrained.net.save(f"{folder}/first.caffemodel")
        message = layers_of(file, proto.TRAIN)
        kind = Points if any(layer.type == "AlignedBoxLoss" for layer in message.layer) else Ssd
        result["untrained"] = test_ocaffe(file, f"{folder}/first.caffemodel", count, device, classes)
        if options.only != "torch":
            losses, ms = train_ocaffe(settings, device)
            result["ocaffe"] = {"map": test_ocaffe(file, settings.snapshot_prefix + ".caffemodel", count, device, classes), "ms": ms, "losses": curve(losses)}
            print(json.dumps(result), flush=True)
        if options.only != "ocaffe":
            peer = kind(message, first, priors, classes).to(options.torch)
            losses, ms = train_torch(peer, settings, ahead(batches(file, proto.TRAIN, options.iterations, device)), options.torch)
            peer.eval()
            found, truth = [], []
            for images, boxes in batches(file, proto.TEST, count, device):
                found += peer.detect(torch.from_numpy(images).to(options.torch))
                truth += [boxes[boxes[:, 0] == image][:, [1, 3, 4, 5, 6, 7]].astype(np.float64) for image in range(len(images))]
            result["PyTorch"] = {"map": precision(found, truth, classes), "ms": ms, "losses": curve(losses), "version": torch.__version__}
            print(json.dumps(result), flush=True)
        if options.steps:
            (batch,) = batches(file, proto.TRAIN, 1, device)
            fresh = kind(message, first, priors, classes).to(options.torch)
            result["resident"] = {"ocaffe": resident_ocaffe(file, settings, batch, device, options.steps),
                                  "PyTorch": resident_torch(fresh, settings, batch, options.torch, options.steps)}  # fmt: skip
            print(json.dumps(result["resident"]), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
