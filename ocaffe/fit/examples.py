"""Draws the answers of a trained net to some images for testing, as `ocaffe predict --annotate` does."""
from __future__ import annotations

import io
from collections.abc import Iterable

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.evaluation.answers import Objects, answers_of, picture_of
from ocaffe.evaluation.deploy import deploy_net
from ocaffe.evaluation.objects import LEAST
from ocaffe.evaluation.prediction import predicted, without_padding
from ocaffe.evaluation.preprocessing import Preprocessing
from ocaffe.evaluation.sidecar import read_sidecar
from ocaffe.formats.text import read_net
from ocaffe.zoo.project import Project

EXAMPLES = 12  # images
FOLDER = "examples"


def drawn(project: Project, weights: str, device: Device, images: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return pictures by their names in OUT. `images`: names and files. Empty if the answers belong to no place in an image."""
    found = read_sidecar(weights)
    if found is None or not isinstance(settings := found[0], Preprocessing):
        return {}
    net = project.path("deploy.prototxt")
    message = deploy_net(read_net(net), settings.shape, net)
    pictures = {}
    with Net(message, phase=proto.TEST, weights=weights, device=device) as made:
        answers = answers_of(made, message, list(found[1]), 1, LEAST)
        for name, content in images if answers.drawn else ():
            output = predicted(made, [settings(content)])
            if settings.padding and isinstance(answers, Objects):
                output = without_padding(output, 0, content, settings)
            file = io.BytesIO()
            answers.draw(picture_of(content), output, 0).save(file, "PNG")
            pictures[f"{FOLDER}/{name}.png"] = file.getvalue()
    return pictures
