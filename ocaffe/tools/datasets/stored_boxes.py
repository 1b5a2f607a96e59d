"""The boxes of a whole database of annotated images."""
from __future__ import annotations

import os

import numpy as np
from tqdm import tqdm

from ocaffe import proto
from ocaffe.data.changes.boxes import Boxes, area, read_annotated
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.errors import Error


def corners_of(database: str) -> tuple[np.ndarray, int]:
    """Return the corners of all boxes with an area, as fractions of the image (n x 4, float32), and the number of images. Raise Error."""
    backend = proto.DataParameter.LEVELDB if os.path.exists(os.path.join(database, "CURRENT")) else proto.DataParameter.LMDB
    opened = open_database(database, backend)
    reader, found = Reader(opened), [np.empty((0, 4), np.float32)]
    for record in tqdm(range(opened.entries), desc="boxes", disable=None):
        ((key, value),) = reader.read(record)
        try:
            found.append(Boxes.of(read_annotated(value)).corners)
        except Error as problem:
            raise opened.fault(problem, record, key) from None
    corners = np.concatenate(found)
    return corners[area(corners) > 0], opened.entries
