"""The boxes of all images of an annotated database, read at once: the roidb of py-faster-rcnn.

Boxes are x1, y1, x2, y2 in pixels of the stored image. Both corners belong to the box.
"""
from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.boxes import Boxes, read_annotated
from ocaffe.data.databases.database import Database, Item, Reader, open_database
from ocaffe.data.decoding.decode import Color, open_image
from ocaffe.errors import Error

_AT_ONCE = 64  # records


@dataclass(frozen=True)
class Entry:
    """An image: the number of its record, height and width, its boxes (G x 4), their labels (G), and whether they are difficult (G)."""

    record: int
    size: tuple[int, int]
    boxes: np.ndarray
    labels: np.ndarray
    difficult: np.ndarray


def open_annotated(path: str) -> Database:
    """Return the LMDB or LevelDB at `path`. Raises Error."""
    lmdb = os.path.exists(os.path.join(path, "data.mdb")) or not os.path.exists(os.path.join(path, "CURRENT"))
    return open_database(path, proto.DataParameter.LMDB if lmdb else proto.DataParameter.LEVELDB)


def read_roidb(database: Database) -> list[Entry]:
    """Return an entry for each record, in the order of the database. Raises Error for a record without boxes in its format, or with an unreadable image."""
    reader, found = Reader(database), []
    for first in range(0, database.entries, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, database.entries))
        for number, item in zip(numbers, reader.records(numbers)):
            try:
                found.append(_entry(number, item))
            except Error as problem:
                raise database.fault(problem, number, item[0]) from None
    return found


def parse(item: Item) -> proto.AnnotatedDatum:
    """Return the message of a record. Raises Error without a place."""
    annotated = read_annotated(item[1])
    if annotated.type != proto.AnnotatedDatum.BBOX or not annotated.HasField("datum"):
        raise Error("it has an image without boxes", fix="make the database by `ocaffe dataset voc`, or by convert_annoset")
    return annotated


def _entry(number: int, item: Item) -> Entry:
    annotated = parse(item)
    datum = annotated.datum
    height, width = open_image(datum.data).shape(Color.COLOR)[1:] if datum.encoded else (datum.height, datum.width)
    boxes = Boxes.of(annotated)
    return Entry(number, (height, width), pixels(boxes.corners, (height, width)), boxes.about[:, 0].astype(int), boxes.about[:, 2] != 0)


def pixels(corners: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return boxes in pixels from edges in shares of an image (n x 4). A box has at least one pixel and lies inside the image."""
    height, width = size
    last = np.array([width, height] * 2, np.float64) - 1
    edges = corners.astype(np.float64) * (last + 1)
    low = np.clip(edges[:, :2], 0, last[:2])
    high = np.clip(edges[:, 2:] - 1, low, last[:2])
    return np.concatenate([low, high], 1)


def flipped(boxes: np.ndarray, width: int) -> np.ndarray:
    """Return the boxes of the mirrored image of this width."""
    return np.stack([width - boxes[:, 2] - 1, boxes[:, 1], width - boxes[:, 0] - 1, boxes[:, 3]], 1)
