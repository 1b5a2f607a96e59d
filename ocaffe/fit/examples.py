"""Draws the answers of a trained net to some images for testing, as `ocaffe predict --annotate` does."""
from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.evaluation.answers import Answers, Objects, answers_of, picture_of
from ocaffe.evaluation.deploy import deploy_net
from ocaffe.evaluation.objects import LEAST
from ocaffe.evaluation.prediction import predicted, without_padding
from ocaffe.evaluation.preprocessing import Preprocessing
from ocaffe.evaluation.sidecar import read_sidecar
from ocaffe.formats.text import read_net
from ocaffe.zoo.project import Project

EXAMPLES = 12  # images
FOLDER = "examples"


def answered(
    project: Project, weights: str, device: Device, images: Iterable[tuple[str, bytes]]
) -> Iterator[tuple[str, Callable[[], Image.Image], dict[str, Any]]]:  # fmt: skip
    """Yield the name of each image, a function that draws the answer on it, and the record of the answer. `images`: names and files.

    Empty if nothing says how images are prepared, or if answers of this kind cannot be drawn.
    """
    found = read_sidecar(weights)
    if found is None or not isinstance(settings := found[0], Preprocessing):
        return
    net = project.path("deploy.prototxt")
    message = deploy_net(read_net(net), settings.shape, net)
    with Net(message, phase=proto.TEST, weights=weights, device=device) as made:
        answers = answers_of(made, message, list(found[1]), 1, LEAST)
        for name, content in images if answers.drawn else ():
            output = predicted(made, [settings(content)])
            if settings.padding and isinstance(answers, Objects):
                output = without_padding(output, 0, content, settings)
            yield name, partial(_draw, answers, content, output), answers.of(output, 0)


def _draw(answers: Answers, content: bytes, output: np.ndarray) -> Image.Image:
    return answers.draw(picture_of(content), output, 0)


def drawn(project: Project, weights: str, device: Device, images: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return pictures of `answered` by their names in OUT."""
    return {f"{FOLDER}/{name}.png": png(picture()) for name, picture, _ in answered(project, weights, device, images)}


def png(picture: Image.Image) -> bytes:
    """Return a PNG file."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
