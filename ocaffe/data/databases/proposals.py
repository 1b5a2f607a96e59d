"""Files of region proposals: for each image of a database, in its order, the boxes that may have an object.

A file is numpy's .npz with `counts` (the number of proposals of each image), `boxes` (all of them, n x 4: x1, y1, x2, y2 in pixels of the stored image, both
corners inside) and `scores` (n).
"""
from __future__ import annotations

import zipfile
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import Error
from ocaffe.formats.nearby import MissingPath
from ocaffe.support.files import atomic_write, check_finite_file

MAKE = "make it by `ocaffe dataset proposals`"


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
        check_finite_file(path)
        with np.load(path, allow_pickle=False) as found:
            counts, boxes = found["counts"], found["boxes"]
    except OSError as problem:
        raise MissingPath(f"the proposals {path} cannot be read: {problem.strerror or problem}", path, "proposals", MAKE) from None
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as problem:
        raise Error(f"{path} is no file of proposals: {problem}", fix=MAKE) from None
    right = counts.ndim == 1 and counts.dtype.kind == "i" and (counts >= 0).all() and boxes.shape == (counts.sum(), 4) and boxes.dtype == np.float32
    if not right:
        raise Error(f"{path} has {boxes.shape} boxes of type {boxes.dtype} for {counts.shape} counts", fix=MAKE)
    sides = boxes[:, 2:] - boxes[:, :2]
    if not (np.isfinite(boxes).all() and (sides >= 0).all()):
        raise Error(f"{path} has a box that is inverted or not finite", fix=MAKE)
    return np.split(boxes, counts.cumsum()[:-1]) if len(counts) else []
