"""The reference of AlignedBoxLoss: a plain numpy program."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ocaffe.selftest.case import Arrays


def decoded(loc: np.ndarray, priors: np.ndarray, code: str) -> np.ndarray:
    """Return the boxes (P x 4) that an image predicts. priors: 2 x P x 4."""
    boxes, way = priors[0], loc.reshape(-1, 4) * priors[1]
    sides, centres = boxes[:, 2:] - boxes[:, :2], (boxes[:, 2:] + boxes[:, :2]) / 2
    if code == "CENTER_SIZE":
        middle, reach = centres + way[:, :2] * sides, np.exp(way[:, 2:]) * sides / 2
        return np.concatenate([middle - reach, middle + reach], 1)
    return boxes + way * (np.tile(sides, 2) if code == "CORNER_SIZE" else 1)


def overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the intersection over union of boxes with boxes, row by row. That of an inverted box is 0."""
    both = np.maximum(np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2]), 0).prod(1)
    areas = [np.where((box[:, 2:] >= box[:, :2]).all(1), (box[:, 2:] - box[:, :2]).prod(1), 0) for box in (a, b)]
    return np.divide(both, areas[0] + areas[1] - both, out=np.zeros(len(both)), where=both > 0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@dataclass
class Chosen:
    """Values without a gradient: the true box of each trained prior (image, prior, row), their targets, and the weights of the aspects in CIoU."""

    image: np.ndarray
    prior: np.ndarray
    row: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | None = None


@dataclass
class AlignedModel:
    """The loss of x0 (locations), x1 (scores), x2 (priors) and x3 (true boxes). The fields are those of AlignedBoxLossParameter.

    The priors and targets of the first call for some true boxes also hold for later ones, because they have no gradient.
    """

    classes: int
    background: int = 0
    code: str = "CENTER_SIZE"
    top_k: int = 10
    score_power: float = 1
    overlap_power: float = 6
    gamma: float = 2
    loc_weight: float = 2
    use_difficult: bool = True
    known: dict[bytes, Chosen] = field(default_factory=dict)

    def __call__(self, x: Arrays, got: Arrays) -> Arrays:
        priors, truth = x["x2"][0].reshape(2, -1, 4), x["x3"][0, 0]
        boxes = np.stack([decoded(loc, priors, self.code) for loc in x["x0"]])
        scores = x["x1"].reshape(len(boxes), -1, self.classes)
        key = truth.tobytes()
        if key not in self.known:
            self.known[key] = self._choose(boxes, sigmoid(scores), priors[0], truth)
        chosen = self.known[key]
        labels = truth[chosen.row, 1].astype(int)
        wanted = np.zeros(scores.shape)
        wanted[chosen.image, chosen.prior, labels] = chosen.targets
        each = np.logaddexp(0, scores) - scores * wanted
        each *= np.abs(wanted - sigmoid(scores)) ** self.gamma
        if self.background >= 0:
            each[:, :, self.background] = 0
        located = self._box_losses(boxes[chosen.image, chosen.prior], truth[chosen.row, 3:7], chosen)
        total = each.sum() + self.loc_weight * (located * chosen.targets).sum()
        real = (truth[:, 0] >= 0) & (truth[:, 0] < len(boxes))
        wrong = (truth[:, 1] == self.background) | (truth[:, 1] < 0) | (truth[:, 1] >= self.classes)
        return {"y": np.asarray(np.nan if (real & wrong).any() else total / max(chosen.targets.sum(), 1))}

    def _choose(self, boxes: np.ndarray, scores: np.ndarray, priors: np.ndarray, truth: np.ndarray) -> Chosen:
        owner = np.full(boxes.shape[:2], -1)
        largest, aligned, taken = np.full(owner.shape, -1.0), {}, {}
        for g, row in enumerate(truth):
            n, label = int(row[0]), int(row[1])
            if not 0 <= n < len(boxes) or label == self.background or not 0 <= label < self.classes or (row[7] and not self.use_difficult):
                continue
            way = np.abs(priors[:, :2] + priors[:, 2:] - row[3:5] - row[5:7])
            inside = (way < np.maximum(priors[:, 2:] - priors[:, :2], row[5:7] - row[3:5])).all(1)
            overlap = overlaps(boxes[n], np.broadcast_to(row[3:7], boxes[n].shape))
            metric = np.where(inside & (overlap > 0), scores[n, :, label] ** self.score_power * overlap**self.overlap_power, 0)
            best = np.argsort(-metric, kind="stable")[: self.top_k]
            aligned[g], taken[g] = metric, overlap
            for p in best[metric[best] > 1e-30]:
                if overlap[p] > largest[n, p]:
                    owner[n, p], largest[n, p] = g, overlap[p]
        image, prior = np.nonzero(owner >= 0)
        rows = owner[image, prior]
        targets = np.zeros(len(rows))
        for g in set(rows.tolist()):
            own = rows == g
            metric, overlap = aligned[g][prior[own]], taken[g][prior[own]]
            targets[own] = metric / metric.max() * overlap.max()
        return Chosen(image, prior, rows, targets)

    def _box_losses(self, boxes: np.ndarray, truth: np.ndarray, chosen: Chosen) -> np.ndarray:
        """Return 1 - CIoU."""
        overlap = overlaps(boxes, truth)
        whole = np.maximum(boxes[:, 2:], truth[:, 2:]) - np.minimum(boxes[:, :2], truth[:, :2])
        way = (boxes[:, :2] + boxes[:, 2:] - truth[:, :2] - truth[:, 2:]) / 2
        angles = [np.arctan2(box[:, 2] - box[:, 0], box[:, 3] - box[:, 1]) for box in (truth, boxes)]
        aspect = 4 / np.pi**2 * (angles[0] - angles[1]) ** 2
        if chosen.weights is None:
            chosen.weights = aspect / np.maximum(1 - overlap + aspect, 1e-30)
        return 1 - overlap + (way**2).sum(1) / (whole**2).sum(1) + chosen.weights * aspect


def grid(cells: int, unit: float) -> np.ndarray:
    """Return the boxes of a map of cells x cells, P x 4, whose sides are `unit` cells."""
    y, x = (np.mgrid[:cells, :cells].reshape(2, -1) + 0.5) / cells
    reach = unit / cells / 2
    return np.stack([x - reach, y - reach, x + reach, y + reach], 1)


def problem(rng: np.random.Generator, images: int = 3, classes: int = 5, truths: int = 18) -> Arrays:
    """Return bottoms with two maps of cells. True boxes are in clusters, so that several choose the same prior; an image has none."""
    boxes = np.concatenate([grid(8, 2), grid(4, 2)])
    truth = np.zeros((truths, 8))
    truth[:, 0], truth[:, 1] = np.sort(rng.integers(0, max(images - 1, 1), truths)), rng.integers(1, classes, truths)
    centres, sides = rng.uniform(0.2, 0.8, (4, 2))[rng.integers(0, 4, truths)], rng.uniform(0.03, 0.5, (truths, 2))
    truth[:, 3:7] = np.concatenate([centres - sides / 2, centres + sides / 2], 1) + rng.uniform(-0.02, 0.02, (truths, 4))
    truth[:, 7] = rng.uniform(size=truths) < 0.2
    priors = np.stack([boxes.reshape(-1), np.tile([0.2, 0.2, 0.3, 0.3], len(boxes))])[None]
    loc, scores = (rng.standard_normal((images, values * len(boxes))) for values in (4, classes))
    return {"x0": loc, "x1": scores, "x2": priors, "x3": truth[None, None]}
