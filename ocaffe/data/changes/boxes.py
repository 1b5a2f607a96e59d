"""Boxes around objects of an image, and how cropping and resizing change them (SSD).

Corners are fractions of the image's size, n x 4: xmin, ymin, xmax, ymax. All arithmetic is in float32 as in SSD, because comparisons decide
whether a box touches the edge of a crop.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.support.kinds import kind_of

_ROW = 8  # of a label top: image, label, instance, corners, difficult
_BOTH = [0, 1, 0, 1]  # x and y of both corners


def read_annotated(content: Any) -> Any:
    """Return the AnnotatedDatum in a record. Raise Error without a place."""
    try:
        return proto.AnnotatedDatum.FromString(bytes(content))
    except DecodeError:
        kind = kind_of(bytes(content[:512]))
        fact = f"it is {kind.name}, not an AnnotatedDatum" if kind is not None else "it is not an AnnotatedDatum"
        raise Error(fact, fix="make the database from images and boxes by `ocaffe dataset voc` or `ocaffe convert_annoset`") from None


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
        parts = np.clip((corners - window[_BOTH]) / size[_BOTH], np.float32(0), np.float32(1))
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


def overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the intersection over union of all pairs of boxes, n x m. For large tables it is many times faster than `jaccard`."""
    low = [np.maximum.outer(first[:, axis], second[:, axis]) for axis in range(2)]
    high = [np.minimum.outer(first[:, axis], second[:, axis]) for axis in range(2, 4)]
    common = np.maximum(high[0] - low[0], 0) * np.maximum(high[1] - low[1], 0)
    return np.asarray(common / (np.add.outer(area(first), area(second)) - common))
