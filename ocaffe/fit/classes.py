"""The task of images with one class each: a small residual net, scored by the share of right images."""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.evaluation.confusion import Confusion
from ocaffe.evaluation.picture import confusion_png
from ocaffe.evaluation.scores import evaluate
from ocaffe.fit.head import START, train_head
from ocaffe.fit.see import CLASSES
from ocaffe.fit.start import NET, NONE, begin_of, mirrored
from ocaffe.fit.task import Result, Task, Wanted
from ocaffe.formats.text import parse
from ocaffe.zoo.images import find_images
from ocaffe.zoo.project import Project, begin, write_project
from ocaffe.zoo.templates import template
from ocaffe.zoo.unreadable import Check
from ocaffe.zoo.weights import check_weights

PICTURE = "confusion.png"


class Classes(Task):
    """Images with one class each."""

    name = CLASSES
    score = "accuracy"

    def project(self, wanted: Wanted) -> Project:
        choices = wanted.choices
        given = begin(wanted.net or NET, wanted.out, wanted.again)  # its errors, and those of the weights, come before the images are decoded
        check_weights("" if choices.weights == NONE else choices.weights)
        check = Check(parse(choices.transform, proto.TransformationParameter, "--transform").max_image_pixels)
        images = find_images(wanted.data, wanted.out, choices.val, choices.share, choices.seed, check)
        net, choices, notes = begin_of(wanted.net, choices, images, wanted.target)
        if choices.augment is None:
            augment, note = mirrored((given if net == wanted.net else template(net)).augment, images.classes)
            choices, notes = replace(choices, augment=augment), (*notes, *filter(None, [note]))
        made = write_project(net, images, wanted.out, choices, wanted.target, wanted.again)
        return replace(made, notes=(*made.notes, *notes))

    def prepare(self, project: Project, device: Device) -> str:
        return train_head(project, device) if project.begins and not os.path.exists(project.path(START)) else ""

    def test(self, project: Project, weights: str, device: Device) -> Result:
        images = project.images
        confusion = evaluate(project.path("train_val.prototxt"), weights, project.accuracy, device, images=images.test.images)
        return _Classified(confusion, images.classes or [str(number) for number in range(project.classes)])


class _Classified(Result):
    """A confusion matrix."""

    def __init__(self, confusion: Confusion, names: Sequence[str]) -> None:
        self.confusion, self.names = confusion, names

    def record(self) -> dict[str, Any]:
        return self.confusion.record(self.names)

    def lines(self) -> Iterator[str]:
        yield from self.confusion.table(self.names)
        yield from self.confusion.mistakes(self.names)

    def sentence(self) -> str:
        return f"accuracy {100 * self.confusion.accuracy:.1f} % on {self.confusion.images} images"

    def pictures(self) -> dict[str, bytes]:
        return {PICTURE: confusion_png(self.confusion, self.names)}
