"""The source of RoIDataLayer for Fast R-CNN: images with a sample of proposals, their labels and box targets.

Source of the rules: rbgirshick/py-faster-rcnn, lib/roi_data_layer/roidb.py and minibatch.py.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.databases.proposals import read_proposals
from ocaffe.data.dice import Dice
from ocaffe.data.source import CHANGES, RECORDS, permutation
from ocaffe.data.sources.rois import RoiSource, Scaled
from ocaffe.errors import Error, Place


class Matched(NamedTuple):
    """True boxes and proposals of an image (n x 4): the overlap with the true box that overlaps most, its label, and the box (n x 4)."""

    boxes: np.ndarray
    overlaps: np.ndarray
    labels: np.ndarray
    truth: np.ndarray


class SampledRois(RoiSource):
    """Batches of `ims_per_batch` images: data, rois, labels, bbox_targets, bbox_inside_weights, bbox_outside_weights.

    With five tops, the last is missing, as in Fast R-CNN of 2015.

    `normal`: means and standard deviations of the targets (both classes x 4). The targets are less the means, and divided by the deviations.
    """

    def __init__(self, settings: Any, place: Place | None = None, layer: str | None = None, tops: int = 6) -> None:
        """`settings`: the attributes of RoIData's settings, with `proposals`. `tops`: 5 or 6. Raises Error."""
        self.arrays = tops - 1  # beside the data
        self.batch = int(settings.ims_per_batch)
        super().__init__(settings, True, place, layer)
        self.normal = self._normal()

    def prepare(self) -> None:
        p = self.settings
        for name, value in (("ims_per_batch", self.batch), ("batch_size", p.batch_size)):
            if value < 1:
                raise Error(f"{name} is {value}", fix=f"set '{name}' in param_str to at least 1")
        if p.batch_size % self.batch:
            fact = f"batch_size is {p.batch_size} regions, which {self.batch} images (ims_per_batch) cannot share equally"
            raise Error(fact, fix=f"'batch_size': {-(-p.batch_size // self.batch) * self.batch} in param_str, or another multiple of {self.batch}")
        if not p.proposals:
            raise Error("no proposals are given", fix="param_str: \"'proposals': 'proposals.npz', ...\", or `ocaffe train --proposals`; "
                        "`ocaffe dataset proposals` makes the file")  # fmt: skip
        self.proposals = read_proposals(p.proposals)
        if len(self.proposals) != len(self.entries):
            fact = f"{p.proposals} has the proposals for {len(self.proposals)} images, and {p.source} has {len(self.entries)}"
            raise Error(fact, fix=f"make the proposals of {p.source} by `ocaffe dataset proposals`, or correct 'source' or 'proposals'")

    def matched(self, number: int) -> Matched:
        """Return the candidates of image `number`: its true boxes, then its proposals."""
        entry = self.entries[number]
        chosen = self.kept(entry)
        truth, labels = entry.boxes[chosen], entry.labels[chosen]
        boxes = np.concatenate([truth, self.proposals[number].astype(np.float64)])
        if not len(truth):
            return Matched(boxes, np.zeros(len(boxes)), np.zeros(len(boxes), int), np.zeros((len(boxes), 4)))
        table = overlaps(boxes, truth)
        best = table.argmax(1)
        largest = table[np.arange(len(boxes)), best]
        return Matched(boxes, largest, np.where(largest > 0, labels[best], 0), truth[best])

    def _kinds(self, found: Matched) -> tuple[np.ndarray, np.ndarray]:
        """Return which candidates are foreground, and which are background."""
        p = self.settings
        return found.overlaps >= p.fg_thresh, (found.overlaps < p.bg_thresh_hi) & (found.overlaps >= p.bg_thresh_lo)

    def is_used(self, number: int) -> bool:
        return any(kind.any() for kind in self._kinds(self.matched(number)))

    def _normal(self) -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations of the targets of each class."""
        p, classes = self.settings, int(self.settings.num_classes)
        if not p.bbox_normalize_targets:
            return np.zeros((classes, 4)), np.ones((classes, 4))
        if p.bbox_normalize_targets_precomputed:
            return np.tile(np.float64(p.bbox_normalize_means), (classes, 1)), np.tile(np.float64(p.bbox_normalize_stds), (classes, 1))
        counts, sums, squares = np.full((classes, 1), 1e-14), np.zeros((classes, 4)), np.zeros((classes, 4))
        for number in self.used:
            found = self.matched(number)
            examples = found.overlaps >= p.bbox_thresh
            targets = encoded(found.boxes[examples], found.truth[examples])
            for mirrored in (False, True) if p.use_flipped else (False,):
                values = targets * (-1, 1, 1, 1) if mirrored else targets
                np.add.at(counts, found.labels[examples], 1)
                np.add.at(sums, found.labels[examples], values)
                np.add.at(squares, found.labels[examples], values**2)
        means = sums / counts
        deviations = np.sqrt(np.maximum(squares / counts - means**2, 0))
        return means, np.where(deviations > 0, deviations, 1)  # a class with fewer than two different targets has no deviation

    def new_order(self, epoch: int) -> list[int]:
        """Return a random order of batches. With aspect_grouping, wide images come with wide ones, and tall images with tall ones."""
        if self.batch == 1 or not self.settings.aspect_grouping:
            return super().new_order(epoch)
        order = permutation(self.key, RECORDS, epoch, self.images)
        sizes = np.array([self.entries[number].size for number in self.used])[order % len(self.used)]
        tall = sizes[:, 1] < sizes[:, 0]
        grouped = np.concatenate([order[~tall], order[tall]])
        grouped = grouped[: len(grouped) // self.batch * self.batch].reshape(-1, self.batch)
        return grouped[permutation(self.key, CHANGES, epoch, len(grouped))].ravel().tolist()

    def rest(self, images: Sequence[Scaled]) -> list[np.ndarray]:
        found = [np.concatenate(arrays) for arrays in zip(*(self._sample(place, image) for place, image in enumerate(images)))]
        return found[: self.arrays]

    def _sample(self, place: int, image: Scaled) -> tuple[np.ndarray, ...]:
        """Return the arrays for image number `place` of a batch."""
        p, found = self.settings, self.matched(image.entry.record)
        wanted = p.batch_size // self.batch
        foreground, background = (np.flatnonzero(kind) for kind in self._kinds(found))
        dice = Dice(self.key, image.position)
        dice.word()  # it chose the scale
        foreground = _some(foreground, int(np.rint(p.fg_fraction * wanted)), dice)
        background = _some(background, wanted - len(foreground), dice)
        chosen = np.concatenate([foreground, background])
        rois = np.concatenate([np.full((len(chosen), 1), place), image.boxes(found.boxes[chosen])], 1).astype(np.float32)
        labels = found.labels[chosen].astype(np.float32)
        labels[len(foreground) :] = 0
        classes = np.where(found.overlaps[chosen] >= p.bbox_thresh, found.labels[chosen], 0)
        targets = np.zeros((len(chosen), int(p.num_classes), 4), np.float32)
        inside = np.zeros_like(targets)
        rows = np.flatnonzero(classes)
        own = classes[rows]
        values = encoded(image.boxes(found.boxes[chosen[rows]]), image.boxes(found.truth[chosen[rows]]))
        means, deviations = self.normal
        targets[rows, own] = (values - means[own]) / deviations[own]
        inside[rows, own] = p.bbox_inside_weights
        flat = (len(chosen), 4 * int(p.num_classes))
        return rois, labels, targets.reshape(flat), inside.reshape(flat), (inside > 0).astype(np.float32).reshape(flat)


def _some(candidates: np.ndarray, most: int, dice: Dice) -> np.ndarray:
    """Return at most `most` random candidates."""
    order = np.argsort(dice.words(len(candidates)), kind="stable") if len(candidates) else np.empty(0, int)
    return candidates[order[:most]]


def overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the intersection over union of each box of a with each of b. Both corners belong to a box."""
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2]) + 1
    shared = np.where((sides > 0).all(-1), sides.prod(-1), 0)
    own, other = ((boxes[:, 2:] - boxes[:, :2] + 1).prod(1) for boxes in (a, b))
    return np.asarray(shared / (own[:, None] + other[None] - shared))


def encoded(boxes: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the targets from boxes to true boxes: the shift of the centre in sides, and the logarithm of the growth."""
    sides, wanted = boxes[:, 2:] - boxes[:, :2] + 1, truth[:, 2:] - truth[:, :2] + 1
    return np.concatenate([(truth[:, :2] + 0.5 * wanted - boxes[:, :2] - 0.5 * sides) / sides, np.log(wanted / sides)], 1)
