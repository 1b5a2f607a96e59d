"""Images with boxes that are made of several: four in a square (mosaic), and two that shine through each other (mixup).

The settings are the fields `mosaic` and `mixup` of transform_param. All random choices depend on the seed and on the position of the record in the
training, so a batch is the same however many threads or processes make it.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.changes.augment import beta
from ocaffe.data.changes.boxes import Boxes
from ocaffe.data.changes.resample import resize
from ocaffe.data.source import JOINS, bit_generator
from ocaffe.errors import Error

SQUARE = 4  # images of a mosaic
_WORDS = 24  # for each position: 3 for the window, 4 for records, 2 whether, then those of the share
_MOST_ALPHA = 100.0
_SPREAD = 0x9E3779B97F4A7C15  # an odd number, so that keys of parts differ in all bits


class Window(NamedTuple):
    """The part of the square that is shown: its sides as a share of the square's, and its place as a share of the room that is left."""

    side: float
    down: float
    across: float


class Join(NamedTuple):
    """How an image is joined: of four images if there is a window, and one more, which has the share 1 - `share`, if `mixed`."""

    window: Window | None
    mixed: bool
    share: float
    others: tuple[int, ...]  # records of all images but the first


ALONE = Join(None, False, 1.0, ())


@dataclass(frozen=True)
class Joins:
    """The settings. A probability of 0: never."""

    mosaic: float
    low: float
    high: float
    mixup: float
    alpha: float

    @staticmethod
    def read(param: Any, train: bool) -> Joins | None:
        """Return the settings of a TransformationParameter, None if it has none or is that of TEST. Raise Error."""
        square, mix = param.mosaic, param.mixup
        for name, prob in (("mosaic", square.prob), ("mixup", mix.prob)):
            if not 0 <= prob <= 1:
                raise Error(f"{name} has prob {prob:g}", fix=f"set prob in {name} to a probability from 0 to 1")
        if not 0 < square.min_scale <= square.max_scale <= 1:
            fact = f"mosaic has min_scale {square.min_scale:g} and max_scale {square.max_scale:g}"
            raise Error(fact, fix="set both in mosaic so that 0 < min_scale <= max_scale <= 1; 0.5 and 1 are the defaults")
        if not 0 < mix.alpha <= _MOST_ALPHA:
            raise Error(f"mixup has alpha {mix.alpha:g}", fix=f"mixup {{ alpha: 8 }}, or another alpha above 0 and up to {_MOST_ALPHA:g}")
        probs = [prob if train and param.HasField(name) else 0.0 for name, prob in (("mosaic", square.prob), ("mixup", mix.prob))]
        return Joins(probs[0], square.min_scale, square.max_scale, probs[1], mix.alpha) if any(probs) else None

    def draw(self, key: tuple[int, int], position: int, records: int) -> Join:
        """Return the choices for the image at `position` of the endless sequence of records. `records`: of the database."""
        dice = (bit_generator(key, JOINS, position * (_WORDS // 4)).random_raw(_WORDS) >> np.uint64(11)) * 2.0**-53
        number = [int(share * records) for share in dice[3:7]]
        square, mixed = dice[7] < self.mosaic, dice[8] < self.mixup
        window = Window(self.low + (self.high - self.low) * float(dice[0]), float(dice[1]), float(dice[2])) if square else None
        others = (*number[: SQUARE - 1], number[SQUARE - 1])[slice(0 if square else SQUARE - 1, SQUARE if mixed else SQUARE - 1)]
        return Join(window, bool(mixed), beta(self.alpha, dice[9:].tolist()) if mixed else 1.0, others)


def key_of_part(key: tuple[int, int], part: int) -> tuple[int, int]:
    """Return the key of the random numbers of image number `part` of a join. The first image has the numbers that it would have alone."""
    return key[0], key[1] ^ part * _SPREAD & 0xFFFFFFFFFFFFFFFF


def joined_boxes(join: Join, parts: list[Boxes], size: tuple[int, int], emit: Any) -> Boxes:
    """Return the boxes of the joined image, from those of its parts. `size`: height and width of each. `emit`: an EmitConstraint or None."""
    boxes = parts[0]
    if join.window is not None:
        square = []
        for i, part in enumerate(parts[:SQUARE]):
            corner = np.array([i % 2, i // 2] * 2, np.float32)
            square.append((part.corners + corner) / np.float32(2))
        top, left, rows, columns = _window(join.window, size)
        edges = np.array([left, top, left + columns, top + rows], np.float32) / np.array([2 * size[1], 2 * size[0]] * 2, np.float32)
        boxes = Boxes(np.concatenate([part.about for part in parts[:SQUARE]]), np.concatenate(square)).within(edges, emit)
    if join.mixed:
        boxes = Boxes(np.concatenate([boxes.about, parts[-1].about]), np.concatenate([boxes.corners, parts[-1].corners]))
    return boxes


def joined(join: Join, images: list[np.ndarray]) -> np.ndarray:
    """Return the joined image of bytes, channels x height x width, from its parts, which all have its shape."""
    image = images[0]
    if join.window is not None:
        height, width = image.shape[1:]
        top, left, rows, columns = _window(join.window, (height, width))
        shown = np.empty((len(image), rows, columns), np.uint8)
        for i, part in enumerate(images[:SQUARE]):
            y, x = i // 2 * height - top, i % 2 * width - left  # of the part in the window
            to = slice(max(y, 0), min(y + height, rows)), slice(max(x, 0), min(x + width, columns))
            if to[0].start < to[0].stop and to[1].start < to[1].stop:
                shown[:, to[0], to[1]] = part[:, to[0].start - y : to[0].stop - y, to[1].start - x : to[1].stop - x]
        image = resize(shown, height, width)
    if join.mixed:
        share = np.float32(join.share)
        image = np.rint(share * image + (1 - share) * images[-1]).astype(np.uint8)
    return image


def _window(window: Window, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return row, column, rows and columns of the window in the square, whose sides are twice `size`."""
    rows, columns = (max(1, round(2 * side * window.side)) for side in size)
    return int(window.down * (2 * size[0] - rows + 1)), int(window.across * (2 * size[1] - columns + 1)), rows, columns
