"""Boxes around objects of an image, and how cropping and resizing change them (SSD).

Corners are fractions of the image's size, n x 4: xmin, ymin, xmax, ymax. All arithmetic is in float32 as in SSD, because comparisons decide
whether a box touches the edge of a crop.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.dice import Dice

_ROW = 8  # of a label top: image, label, instance, corners, difficult


@dataclass(frozen=True)
class Boxes:
    """Boxes. `about` is n x 3: label, instance, and 1 if the box is difficult."""

    about: np.ndarray
    corners: np.ndarray

    @staticmethod
    def of(datum: Any) -> Boxes:
        """Return the boxes of an AnnotatedDatum."""
        all_of_them = [(group.group_label, each) for group in datum.annotation_group for each in group.annotation]
        about = np.array([(label, each.instance_id, each.bbox.difficult) for label, each in all_of_them], np.float32).reshape(-1, 3)
        corners = [(each.bbox.xmin, each.bbox.ymin, each.bbox.xmax, each.bbox.ymax) for _, each in all_of_them]
        return Boxes(about, np.array(corners, np.float32).reshape(-1, 4))

    def __len__(self) -> int:
        return len(self.about)

    def within(self, window: np.ndarray, emit: Any = None) -> Boxes:
        """Return the boxes as fractions of `window`, clipped to it. Boxes outside it, and boxes that `emit` (an EmitConstraint) rejects, are dropped."""
        corners = self.corners
        keep = ((corners[:, :2] < window[2:]) & (corners[:, 2:] > window[:2])).all(1)
        if emit is not None and emit.emit_type == proto.EmitConstraint.CENTER:
            middle = (corners[:, :2] + corners[:, 2:]) / np.float32(2)
            keep &= ((middle >= window[:2]) & (middle <= window[2:])).all(1)
        elif emit is not None:
            keep &= coverage(corners, window) > np.float32(emit.emit_overlap)
        size = window[2:] - window[:2]
        parts = np.clip((corners - np.tile(window[:2], 2)) / np.tile(size, 2), np.float32(0), np.float32(1))
        keep &= area(parts) > 0
        return Boxes(self.about[keep], parts[keep])

    def mirrored(self) -> Boxes:
        xmin, ymin, xmax, ymax = self.corners.T
        return replace(self, corners=np.stack([1 - xmax, ymin, 1 - xmin, ymax], 1))

    def rows(self, image: int) -> np.ndarray:
        """Return rows of the label top: image, label, instance, xmin, ymin, xmax, ymax, difficult."""
        rows = np.empty((len(self), _ROW), np.float32)
        rows[:, 0], rows[:, 1:3], rows[:, 3:7], rows[:, 7] = image, self.about[:, :2], self.corners, self.about[:, 2]
        return rows


def area(corners: np.ndarray) -> np.ndarray:
    """Return the areas of boxes; 0 if a minimum is above its maximum."""
    size = corners[..., 2:] - corners[..., :2]
    return np.where((size < 0).any(-1), np.float32(0), size[..., 0] * size[..., 1])


def overlap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the area of the intersection of boxes."""
    return area(np.concatenate([np.maximum(first[..., :2], second[..., :2]), np.minimum(first[..., 2:], second[..., 2:])], -1))


def coverage(boxes: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Return the fraction of each box's area that is inside `window`."""
    common = overlap(boxes, window)
    return np.divide(common, area(boxes), out=np.zeros_like(common), where=common > 0)


def jaccard(boxes: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Intersection over union."""
    common = overlap(boxes, window)
    return np.divide(common, area(boxes) + area(window) - common, out=np.zeros_like(common), where=common > 0)


# kind of constraint: its value for windows and objects
_MEASURES = {
    "jaccard_overlap": jaccard,
    "sample_coverage": coverage,
    "object_coverage": lambda windows, objects: coverage(objects, windows),
}


def satisfies(windows: np.ndarray, objects: np.ndarray, constraint: Any) -> np.ndarray:
    """Return which windows satisfy a SampleConstraint.

    A window does if at least one object satisfies the first kind of constraint that is set. SSD also evaluates the later kinds, but they cannot
    change its result.
    """
    for kind, measure in _MEASURES.items():
        low, high = f"min_{kind}", f"max_{kind}"
        if constraint.HasField(low) or constraint.HasField(high):
            values = measure(windows[:, None], objects[None])
            good = np.ones(values.shape, bool)
            if constraint.HasField(low):
                good &= values >= np.float32(getattr(constraint, low))
            if constraint.HasField(high):
                good &= values <= np.float32(getattr(constraint, high))
            return np.asarray(good.any(1))
    return np.ones(len(windows), bool)


def sample(sampler: Any, count: int, dice: Dice) -> np.ndarray:
    """Return `count` random windows of the sizes and aspect ratios of a Sampler, anywhere in the image."""
    draws = dice.uniforms(count, 4)
    scale = sampler.min_scale + (sampler.max_scale - sampler.min_scale) * draws[:, 0]
    ratio = sampler.min_aspect_ratio + (sampler.max_aspect_ratio - sampler.min_aspect_ratio) * draws[:, 1]
    ratio = np.sqrt(np.clip(ratio, scale**2, 1 / scale**2))
    size = np.minimum(np.stack([scale * ratio, scale / ratio], 1), 1)
    corner = draws[:, 2:] * (1 - size)
    return np.concatenate([corner, corner + size], 1).astype(np.float32)


def jittered(jitter: float, keeps_aspect: bool, dice: Dice) -> np.ndarray:
    """Return one random window (1 x 4): of a fifth of the images all, of a fifth all but jitter / 2 of each side at most, else all but jitter.

    Source: eric612/MobileNet-YOLO, src/caffe/util/sampler.cpp at 0b24609.
    """
    kind, *draws = dice.uniforms(5)
    jitter = 0 if kind < 0.2 else jitter / 2 if kind < 0.4 else jitter
    size = 1 - jitter * np.array([draws[0], draws[0] if keeps_aspect else draws[1]])
    corner = np.array(draws[2:]) * (1 - size)
    return np.concatenate([corner, corner + size])[None].astype(np.float32)


def samples(samplers: Any, objects: np.ndarray, dice: Dice) -> np.ndarray:
    """Return all windows (n x 4) that satisfy their BatchSampler. The caller uses one of them."""
    found = [np.empty((0, 4), np.float32)]
    for each in samplers:
        if each.use_original_image:
            windows = sample(each.sampler, each.max_trials, dice)
            windows = windows[satisfies(windows, objects, each.sample_constraint)]
            found.append(windows[: each.max_sample] if each.HasField("max_sample") else windows)
    return np.concatenate(found)
