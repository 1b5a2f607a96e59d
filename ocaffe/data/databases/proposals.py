"""Files of region proposals: for each image of a database, in its order, the boxes that may have an object.

A file is numpy's .npz with `counts` (the number of proposals of each image), `boxes` (all of them, n x 4: x1, y1, x2, y2 in pixels of the stored image, both
corners inside) and `scores` (n).
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.errors import Error, shape_text
from ocaffe.formats.nearby import MissingPath
from ocaffe.formats.numpy_file import read_npz
from ocaffe.support.files import atomic_write, check_plain

MAKE = "make it by `ocaffe dataset proposals`"
WRITE = 'save it by np.savez("FILE.npz", counts=counts, boxes=boxes), with int64 counts and float32 boxes'


def write_proposals(path: str, boxes: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> None:
    """Write the proposals of each image: n x 4 boxes and n scores."""
    counts = np.array([len(each) for each in boxes], np.int64)
    with atomic_write(path) as out:
        np.savez(
            out,
            counts=counts,
            boxes=np.concatenate([np.empty((0, 4), np.float32), *boxes]).astype(np.float32),
            scores=np.concatenate([np.empty(0, np.float32), *scores]).astype(np.float32),
        )


def read_proposals(path: str) -> list[np.ndarray]:
    """Return the boxes of each image, float32. Raises Error without a place."""
    try:
        check_plain(path)
    except OSError as problem:
        raise MissingPath(f"the proposals {path} cannot be read: {problem.strerror or problem}", path, "proposals", MAKE) from None
    fix = f"{WRITE}, or {MAKE}"
    try:
        found = read_npz(path, fix)
    except Error as problem:
        raise Error(f"{path} is no .npz file with the arrays counts and boxes: {problem.fact}", fix=problem.fix) from None
    for name in ("counts", "boxes"):
        if name not in found:
            raise Error(f"{path} is no .npz file with the arrays counts and boxes: it has no {name!r}", fix=fix)
    counts, boxes = found["counts"], found["boxes"]
    if counts.ndim != 1 or counts.dtype.kind != "i":
        fact = f"counts in {path} is {shape_text(counts.shape)} of type {counts.dtype}, and must be one row of whole numbers"
        raise Error(fact, fix="save the number of boxes of each image: counts=np.array([...], np.int64)")
    if (counts < 0).any():
        raise Error(f"counts in {path} has {counts.min()} for image {counts.argmin()}", fix="save the number of boxes of each image in counts, 0 or more")
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise Error(f"boxes in {path} is {shape_text(boxes.shape)}, and must be N x 4", fix="save a row x1, y1, x2, y2 in pixels for each box")
    if len(boxes) != counts.sum():
        fact = f"{path} has {len(boxes)} boxes, and the sum of its counts is {counts.sum()}"
        raise Error(fact, fix="save in counts how many rows of boxes each image has, in the order of the database")
    if boxes.dtype != np.float32:
        raise Error(f"boxes in {path} is of type {boxes.dtype}, and must be float32", fix="save them with boxes=boxes.astype(np.float32)")
    finite = np.isfinite(boxes).all(1)
    wrong = ~finite | (boxes[:, 2:] < boxes[:, :2]).any(1)
    if wrong.any():
        row = int(wrong.argmax())
        image = int(np.searchsorted(counts.cumsum(), row, "right"))
        fact = f"box {row} in {path}, of image {image}, is {', '.join(f'{value:g}' for value in boxes[row])}"
        raise Error(fact, fix="save x1, y1, x2, y2 with x1 <= x2 and y1 <= y2" if finite[row] else "save finite numbers in boxes")
    return np.split(boxes, counts.cumsum()[:-1]) if len(counts) else []
