"""The images for testing that a classifier takes for another class, and the images of its most frequent mistakes."""
from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.decoding.decode import read_file
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.errors import Error
from ocaffe.evaluation.answers import picture_of
from ocaffe.evaluation.deploy import deploy_net
from ocaffe.evaluation.grad_cam import GradCam, overlay
from ocaffe.evaluation.preprocessing import Preprocessing
from ocaffe.evaluation.sidecar import read_sidecar
from ocaffe.formats.text import read_net
from ocaffe.zoo.project import Project

WORST, PAIRS, OF_PAIR = 12, 4, 3  # images with the lowest probabilities; the most frequent mistakes, and the images of each


class Scores:
    """The class and the probabilities of each image for testing, in the order of the data."""

    def __init__(self) -> None:
        self._batches: list[np.ndarray] = []

    def add(self, labels: np.ndarray, scores: np.ndarray) -> None:
        """Take a batch: N numbers, and N x classes scores before or after a Softmax."""
        scores, labels = scores.astype(np.float64), labels.astype(np.int64)
        if scores.min() < 0 or not np.allclose(scores.sum(1), 1, atol=1e-3):
            scores = np.exp(scores - scores.max(1, keepdims=True))
            scores /= scores.sum(1, keepdims=True)
        rows, best = np.arange(len(labels)), scores.argmax(1)
        self._batches.append(np.stack([labels, best, scores[rows, labels], scores[rows, best]], 1))

    def rows(self) -> np.ndarray:
        """Return, for each image: its class, the class with the best score, and the probabilities of both."""
        return np.concatenate(self._batches) if self._batches else np.zeros((0, 4))


class Found(NamedTuple):
    """An image: its number among those for testing, the classes and their probabilities."""

    number: int
    true: int
    best: int
    right: float  # the probability of `true`
    probability: float  # of `best`


def worst(rows: np.ndarray) -> list[Found]:
    """Return the images with the lowest probability of their class, lowest first. Wrong ones precede right ones."""
    order = np.lexsort((rows[:, 2], rows[:, 0] == rows[:, 1]))[:WORST]
    return [_found(rows, number) for number in order.tolist()]


def confused(rows: np.ndarray) -> list[list[Found]]:
    """Return some images of each of the most frequent mistakes, with the surest one first."""
    wrong = np.flatnonzero(rows[:, 0] != rows[:, 1])
    _, inverse, counts = np.unique(rows[wrong, :2], axis=0, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(-1)
    groups = [wrong[inverse == pair] for pair in np.argsort(-counts, kind="stable")[:PAIRS].tolist()]
    return [[_found(rows, number) for number in group[np.argsort(-rows[group, 3], kind="stable")][:OF_PAIR].tolist()] for group in groups]


def _found(rows: np.ndarray, number: int) -> Found:
    true, best, right, probability = rows[number].tolist()
    return Found(number, int(true), int(best), right, probability)


class Looked(NamedTuple):
    """The name of an image, and its pictures: the image, and the places that count for the class with the best score, if they are known."""

    name: str
    pictures: list[Image.Image]


def looked_at(project: Project, weights: str, device: Device, images: Sequence[Found]) -> dict[Found, Looked]:
    """Return pictures of some images for testing, as far as they can be had."""
    files = contents(project, [each.number for each in images])
    found = {each: Looked(files[each.number][0], [picture_of(files[each.number][1])]) for each in images if each.number in files}
    settings = read_sidecar(weights)
    if found and settings is not None and isinstance(prepared := settings[0], Preprocessing):
        net = project.path("deploy.prototxt")
        # The training has ended well. A layer without a backward pass costs the colors alone.
        with contextlib.suppress(Error), GradCam(deploy_net(read_net(net), prepared.shape, net), weights, device) as cam:
            for each, looked in found.items() if cam.known else ():
                (values,) = prepared(files[each.number][1])
                looked.pictures.append(overlay(prepared.picture(values), cam(values, each.best)))
    return found


def contents(project: Project, numbers: Sequence[int]) -> dict[int, tuple[str, bytes]]:
    """Return names and files of images for testing, by number. Images that cannot be had as a file are left out."""
    part, found = project.images.test, dict[int, tuple[str, bytes]]()
    if part.bad:  # others take the places of records that cannot be decoded
        return found
    if project.images.backend is not None:
        reader = Reader(open_database(part.source, project.images.backend))
        for number in sorted(set(numbers)):
            [(key, value)] = reader.read(number)
            datum = proto.Datum.FromString(bytes(value))
            name = bytes(key).decode("utf-8", "surrogateescape")
            if content := datum.data if datum.encoded else _png(datum):
                found[number] = (name, content)
        return found
    files = ListFiles(part.source, "", 1, False)
    for number in sorted(set(numbers)):
        with contextlib.suppress(Error):
            name = files.file(number).path
            found[number] = (name, read_file(os.path.join(part.root, name)))
    return found


def _png(datum: proto.Datum) -> bytes:
    """Return raw pixels, blue first, as a PNG file; b'' if they are no picture."""
    if datum.channels not in (1, 3) or len(datum.data) != datum.channels * datum.height * datum.width:
        return b""
    pixels = np.frombuffer(datum.data, np.uint8).reshape(datum.channels, datum.height, datum.width)[::-1].transpose(1, 2, 0)
    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0] if datum.channels == 1 else pixels).save(stream, "PNG")
    return stream.getvalue()
