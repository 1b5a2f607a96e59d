"""How many images each class has, and how large they are, for the page."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import numpy as np

from ocaffe.data.decoding.decode import open_pillow, read_file
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.errors import Error
from ocaffe.fit.page import Data
from ocaffe.zoo.project import Project

LOOKED_AT = 200  # images, for their sizes


def of_lists(project: Project, names: Sequence[str], tags: bool = False) -> Data:
    """Return the data of lists of image files. `tags`: each line has 0 or 1 for each name, else the number of a class. Of databases nothing is known."""
    if project.images.backend is not None:
        return Data()
    parts = [ListFiles(part.source, "", len(names) if tags else 1, False) for part in (project.images.train, project.images.test)]
    counts = [_counts(part.labels, len(names), tags) for part in parts]
    train, root = parts[0], project.images.train.root
    paths = [os.path.join(root, train.file(record).path) for record in range(0, train.entries, max(1, train.entries // LOOKED_AT))]
    return Data([(name, int(first), int(second)) for name, first, second in zip(names, *counts)], sides(paths))


def _counts(labels: np.ndarray, names: int, tags: bool) -> np.ndarray:
    return (labels == 1).sum(0) if tags else np.bincount(labels[:, 0].astype(np.int64), minlength=names)


def sides(paths: Sequence[str]) -> list[int]:
    """Return the shorter side of each image file that can be read, in pixels."""
    found = []
    for path in paths:
        with contextlib.suppress(Error), open_pillow(read_file(path)) as image:
            found.append(min(image.size))
    return found
