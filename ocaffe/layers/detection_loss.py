"""DetectionLoss of MS-CNN: the loss of a detection branch."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.loss.softmax import softmax
from ocaffe.layers.base import Layer, register, stated
from ocaffe.layers.loss import ignored
from ocaffe.layers.mscnn import normal

MODES = ("random", "bootstrap", "mixture", "all")
BOX = 4  # numbers of a box
LEAST = 4  # negative cells that are kept for each class


@register("DetectionLoss")
class DetectionLoss(Layer):
    """Cross-entropy of the classes and smooth L1 of the boxes in the cells of a detection branch; the top is 1 x 1 x 1 x 2.

    Bottom 0 is N x (cls_num + 4) x H x W: scores with the background first, then the shift and growth of a box of field_w x field_h pixels. Bottom 1 is
    N x 6 x H x W: the class, x and y of the centre, width and height of the true box, and the overlap. Cells with a class count, and of the background cells
    with an overlap below bg_threshold some: `random` draws bg_multiple for each cell with a class, `bootstrap` takes as many with the largest score of each
    class, `mixture` half of both, `all` takes all. iou_weighted weights cells with a class by the overlap; pos_neg_weighted gives both kinds the weights
    1 / (1 + bg_multiple) and the rest. objectness has the classes 0 and 1. Cells with ignore_label do not count.
    The first number is the class loss, divided by the number of cells, plus lambda times the box loss, divided by the number of coordinates. The second is
    the latter term; it passes no gradient. The cells are chosen on the host, as in the fork. As there, boxes are limited by field_xyr and field_whr, which
    the gradient does not see. bb_smooth: false takes half the squares. If no background cell is kept, the fork's gradient is NaN with pos_neg_weighted.
    Source: zhaoweicai/mscnn, src/caffe/layers/detection_loss_layer.cpp.
    """

    origin = "MS-CNN"
    bottoms = 2
    is_loss = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, truth) = self.own(), bottoms
        meanings = {
            "cls_num": "the number of classes, with the background among them", "field_h": "the rows of a box of this scale, in pixels",
            "field_w": "the columns of a box of this scale, in pixels", "downsample_rate": "the pixels between two cells of bottom 0",
        }  # fmt: skip
        self.positive(p, meanings)
        self.check(p.coord_num == BOX, stated(p, "coord_num"), "write coord_num: 4, the numbers of a box")
        self.check(
            not p.objectness or p.cls_num == 2,
            f"objectness is true, and cls_num is {p.cls_num}",
            "write cls_num: 2, for background and object, or remove objectness",
        )
        self.check(p.field_whr > 1, stated(p, "field_whr"), "set field_whr above 1")
        self.check(p.field_xyr > 0, stated(p, "field_xyr"), "set field_xyr above 0")
        self.check_axes(x, "N x C x H x W", values=True)
        fix = f"set num_output of the layer before to {p.cls_num + BOX}: cls_num + 4"
        self.check(x[1] == p.cls_num + BOX, f"bottom 0 is {shape_text(x)}: {x[1]} channels, and cls_num is {p.cls_num}", fix)
        fits = truth[:1] == x[:1] and truth[1:2] >= (BOX + 2,) and truth[2:] == x[2:]
        fix = f"give bottom 1 the shape {shape_text((x[0], BOX + 2, *x[2:]))}: class, x, y, width, height, overlap in each cell"
        self.check(fits, f"bottom 0 is {shape_text(x)}, bottom 1 is {shape_text(truth)}", fix)
        self.means, self.deviations = normal(self)
        self.ignore = ignored(self.param.loss_param)
        self.mode = p.sample_mode if p.sample_mode in MODES else "all"
        self.cells = math.prod(x[2:])
        return [(1, 1, 1, 2)]

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, (scores, truth) = self.own(), (bottom.data for bottom in bottoms)
        images, cells, keep = scores.shape[0], self.cells, rec.saved if rec.train else rec.scratch
        self.prob: Ref = keep("prob", (images, p.cls_num, cells))
        self.weights: Ref = keep("weights", (images, 2, cells))  # of the class term and of the box term
        softmax(rec, self._part(scores, 0, p.cls_num), self.prob, 1)
        reads = [scores, truth]
        if self.mode in ("random", "mixture"):
            draws = rec.scratch("draws", (images, max(cells * p.bg_multiple, LEAST * (p.cls_num - 1))))
            pointwise(rec, "y0 = uniform", writes=[draws], random="cells")
            reads.append(draws)
        weights = self.weights

        def choose(commands: Any) -> None:
            commands.write(weights, self.cell_weights(*(np.array(commands.read(ref), np.float32) for ref in reads)))

        rec.host(choose, reads=reads, writes=[weights], what="DetectionLoss")
        terms = [rec.scratch(name, ()) for name in ("classes", "boxes")]
        text = f"{self._label()}; v0 = label == x2 ? -log(x0 < FLT_MIN ? FLT_MIN : x0) * x3 : 0"
        reduce(rec, text, reads=self._class_reads(rec, truth), writes=[terms[0]], axes=[0, 1, 2])
        parts = [f"(fabs(d{k}) < 1 ? 0.5 * d{k} * d{k} : fabs(d{k}) - 0.5)" if p.bb_smooth else f"0.5 * d{k} * d{k}" for k in range(BOX)]
        reduce(rec, f"{self._distances()}; v0 = x10 > 0 ? x10 * ({' + '.join(parts)}) : 0", reads=self._box_reads(rec, scores, truth), writes=[terms[1]],
               axes=[0, 1], scalars=self._scalars())  # fmt: skip
        pointwise(rec, "y0 = x0 + x1; y1 = x1", reads=list(terms), writes=[tops[0].data.view((), k) for k in (0, 1)])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "labels"})
        if not propagate[0]:
            return
        assert tops[0].diff is not None
        p, dx, truth = self.own(), rec.diff_of(bottoms[0]), bottoms[1].data
        gradient: Read = (tops[0].diff.view(()), 0)
        text = f"{self._label()}; y0 = (x0 - (label == x2 ? 1 : 0)) * x3 * x4"
        pointwise(rec, text, reads=[*self._class_reads(rec, truth), gradient], writes=[self._part(dx, 0, p.cls_num)])
        slopes = [f"fmin(fmax(d{k}, -1), 1)" if p.bb_smooth else f"d{k}" for k in range(BOX)]
        text = f"{self._distances()}; g = x10 * x11; " + "; ".join(f"y{k} = x10 > 0 ? g * {slopes[k]} : 0" for k in range(BOX))
        writes = [self._plane(dx, p.cls_num + k) for k in range(BOX)]
        pointwise(rec, text, reads=[*self._box_reads(rec, bottoms[0].data, truth), gradient], writes=writes, scalars=self._scalars())

    def _part(self, ref: Ref, first: int, count: int) -> Ref:
        return ref.view((ref.shape[0], count, self.cells), first * self.cells, ref.batch_stride)

    def _plane(self, ref: Ref, number: int) -> Ref:
        return ref.view((ref.shape[0], self.cells), number * self.cells, ref.batch_stride)

    def _label(self) -> str:
        return "label = fmin(trunc(x1), 1)" if self.own().objectness else "label = trunc(x1)"

    def _class_reads(self, rec: Recorder, truth: Ref) -> list[Read]:
        """Return x0 .. x3: probabilities, labels, numbers of the classes, weights."""
        numbers = np.arange(self.own().cls_num, dtype=np.float32)[:, None]
        return [self.prob, (self._part(truth, 0, 1), 0), (rec.constant("numbers", numbers), 1), (self._part(self.weights, 0, 1), 0)]

    def _box_reads(self, rec: Recorder, scores: Ref, truth: Ref) -> list[Read]:
        """Return x0 .. x10: the outputs of the branch, the true box, column and row of the cell's centre, and the weight."""
        outputs: list[Read] = [self._plane(scores, self.own().cls_num + k) for k in range(BOX)]
        truths: list[Read] = [self._plane(truth, 1 + k) for k in range(BOX)]
        rows, columns = (np.indices(scores.shape[2:], np.float32).reshape(2, -1) + np.float32(0.5)) * np.float32(self.own().downsample_rate)
        return [*outputs, *truths, (rec.constant("across", columns), 1), (rec.constant("down", rows), 1), self._plane(self.weights, 1)]

    def _distances(self) -> str:
        """Return statements for d0 .. d3, the distances of the limited outputs from the true ones."""
        true = ["(x4 - x8) / side_w", "(x5 - x9) / side_h", "log(fmax(x6, 2) / side_w)", "log(fmax(x7, 2) / side_h)"]
        limits = ["xyr"] * 2 + ["whr"] * 2
        return "; ".join(f"d{k} = fmin(fmax(x{k}, least_{limits[k]}), most_{limits[k]}) - ({true[k]} - mean{k}) / std{k}" for k in range(BOX))

    def _scalars(self) -> dict[str, float]:
        p = self.own()
        result: dict[str, float] = {}
        for name, limit, (i, j) in (("xyr", 1 / p.field_xyr, (0, 1)), ("whr", math.log(p.field_whr), (2, 3))):
            mean, deviation = (self.means[i] + self.means[j]) / 2, math.sqrt(self.deviations[i] * self.deviations[j])
            result |= {f"least_{name}": (-limit - mean) / deviation, f"most_{name}": (limit - mean) / deviation}
        result |= {f"mean{k}": self.means[k] for k in range(BOX)} | {f"std{k}": self.deviations[k] for k in range(BOX)}
        return {**result, "side_w": float(p.field_w), "side_h": float(p.field_h)}

    def cell_weights(self, scores: np.ndarray, truth: np.ndarray, draws: np.ndarray | None = None) -> np.ndarray:
        """Return the weights of all cells, N x 2 x cells, divided by their numbers: of the class term, and lambda times that of the box term."""
        p, images = self.own(), len(scores)
        flat = truth.reshape(images, truth.shape[1], -1)
        given = np.trunc(flat[:, 0]).astype(int)
        positive, overlap = given != 0, flat[:, BOX + 1]
        free = ~positive & (overlap < p.bg_threshold)
        kept = np.zeros(free.shape, bool)
        for image in range(images):
            kept[image] = self._kept(free[image], np.minimum(given[image], 1) if p.objectness else given[image], scores[image].reshape(scores.shape[1], -1),
                                     None if draws is None else draws[image])  # fmt: skip
        weights = np.where(positive & p.iou_weighted, overlap, 1).astype(float)
        if p.pos_neg_weighted and (total := weights[positive].sum()):
            share, count, others = 1 / (1 + p.bg_multiple), kept.sum() + positive.sum(), weights[kept].sum()
            weights *= np.where(positive, share * count / total, (1 - share) * count / others if others else 0)
        label = np.minimum(given, 1) if p.objectness else given
        counts = (positive | kept) & ~(bool(self.ignore[0]) & (label == self.ignore[1]))
        boxes = positive & ~(bool(self.ignore[0]) & (given == self.ignore[1]))
        terms = counts * weights / max(1, counts.sum()), boxes * (getattr(p, "lambda") / max(1, BOX * boxes.sum()))
        return np.ascontiguousarray(np.stack(terms, 1), np.float32)

    def _kept(self, free: np.ndarray, labels: np.ndarray, scores: np.ndarray, draws: np.ndarray | None) -> np.ndarray:
        """Return which background cells of one image are kept. `free`: those that may be."""
        p, kept = self.own(), np.zeros(free.shape, bool)
        if self.mode == "all":
            return free
        ratio = 0.5 if self.mode == "mixture" else 1.0
        if draws is not None:
            count = max(int((labels != 0).sum() * p.bg_multiple * ratio), LEAST * (p.cls_num - 1))
            kept[np.minimum((draws[:count] * len(free)).astype(int), len(free) - 1)] = True
            kept &= free
        if self.mode in ("bootstrap", "mixture"):
            cells = np.flatnonzero(free)
            for number in range(1, p.cls_num):
                count = max(LEAST, int((labels == number).sum() * p.bg_multiple * ratio))
                kept[cells[np.lexsort((cells, scores[number, cells]))[::-1][:count]]] = True
        return kept
