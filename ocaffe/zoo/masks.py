"""Finds the images and masks of a training: the folder that `ocaffe dataset masks` writes."""
from __future__ import annotations

import os
from functools import partial
from typing import NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.decoding.decode import Color, open_image, open_pillow
from ocaffe.data.stores.labels_txt import LABELS, given_labels
from ocaffe.data.stores.text_list import Listing, read_listed
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, shape_text
from ocaffe.formats.text import read
from ocaffe.tools.datasets.mask_set import WEIGHTS
from ocaffe.zoo.images import Images, Part

TRAIN, TEST = ("train", "trainval"), ("val", "test")  # names of lists; the first that exists counts
FIX = "give a folder with train.txt, test.txt and labels.txt; `ocaffe dataset masks` writes it"


class Masks(NamedTuple):
    """Images with masks. `sizes`: height and width of each image. `gray`: no image has colors. `weights`: of the classes, [] if they are not known."""

    images: Images
    sizes: np.ndarray
    gray: bool
    weights: list[float]


def find_masks(data: str, val: str = "") -> Masks:
    """Find the lists of images and masks in the folder `data`. `val`: the list for testing. Raise Error.

    The headers of all files are read, so that a mask of another size, and one that is not gray, are found before the training.
    """
    if not os.path.isdir(data):
        raise Error(f"{data} is not a folder", place="--data", fix=FIX)
    parts, headers = [], []
    workers = Workers()
    try:
        for path in (_list(data, TRAIN), val or _list(data, TEST)):
            root = os.path.join(os.path.dirname(path), "")
            listed = Listing(path, "the file of an image and that of its mask")
            headers += workers.run(partial(_header, listed, record, root) for record in range(len(listed.lines)))
            parts.append(Part(path, len(listed.lines), root))
    finally:
        workers.close()
    names = given_labels(data)
    path = os.path.join(data, WEIGHTS)
    weights = list(read(path, proto.LayerParameter).loss_param.class_weighting) if os.path.exists(path) else []
    if names and weights and len(names) != len(weights):
        fact = f"it has {len(weights)} weights, and {LABELS} has {len(names)} classes"
        raise Error(fact, place=path, fix=f"write {len(names)} weights, one for each class, or remove the file")
    sizes = np.array([header[0] for header in headers])
    return Masks(Images(parts[0], parts[1], names), sizes, all(header[1] for header in headers), weights)


def _list(data: str, names: tuple[str, ...]) -> str:
    paths = [os.path.join(data, f"{name}.txt") for name in names]
    found = next((path for path in paths if os.path.isfile(path)), "")
    if not found:
        raise Error(f"{data} has neither {' nor '.join(map(os.path.basename, paths))}", place="--data", fix=FIX)
    return found


def _header(listed: Listing, record: int, root: str) -> tuple[tuple[int, int], bool]:
    """Return height and width of a pair, and whether the image is gray."""
    words = listed.lines[record].words
    if len(words) != 2:
        number = listed.lines[record].number
        raise Error(f"{listed.source}, line {number}: {len(words)} words", fix="write the file of an image and that of its mask in each line")
    path = ""
    try:
        path = root + words[0]
        image = open_image(read_listed(path))
        size = image.shape(Color.GRAY)[1:]
        path = root + words[1]
        mask = open_pillow(read_listed(path))
        if mask.mode != "L":
            raise Error(f"the mask's pixels are of type {mask.mode}, not gray levels of 8 bits", fix="convert the masks by `ocaffe dataset masks`")
        if (mask.height, mask.width) != size:
            fact = f"the mask is {shape_text((mask.height, mask.width))}, the image {words[0]} is {shape_text(size)}"
            raise Error(fact, fix=f"resize the mask to {shape_text(size)} without new levels (nearest neighbor)")
    except Error as problem:
        raise listed.fault(problem, record, path) from None
    return size, image.gray
