"""The task of images with one class each: a small residual net, scored by the share of right images."""
from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.evaluation.confusion import Confusion
from ocaffe.evaluation.picture import confusion_png
from ocaffe.evaluation.scores import evaluate
from ocaffe.fit.data_counts import of_lists
from ocaffe.fit.files import CONFUSION
from ocaffe.fit.head import START, train_head
from ocaffe.fit.page import Data, Group, Shown
from ocaffe.fit.see import CLASSES
from ocaffe.fit.start import NET, NONE, begin_of, mirrored
from ocaffe.fit.task import Result, Task, Wanted
from ocaffe.fit.worst import Found, Scores, confused, looked_at, worst
from ocaffe.formats.text import parse
from ocaffe.zoo.images import find_images
from ocaffe.zoo.project import Project, begin, write_project
from ocaffe.zoo.templates import template
from ocaffe.zoo.unreadable import Check
from ocaffe.zoo.weights import check_weights


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
        names, scores = _names(project), Scores()
        confusion = evaluate(project.path("train_val.prototxt"), weights, project.accuracy, device, images=project.images.test.images, tell=scores.add)
        return _Classified(confusion, names, _groups(project, weights, device, names, scores.rows()))

    def data(self, project: Project) -> Data:
        return of_lists(project, _names(project))


def _names(project: Project) -> list[str]:
    return project.images.classes or [str(number) for number in range(project.classes)]


def _groups(project: Project, weights: str, device: Device, names: Sequence[str], rows: np.ndarray) -> list[Group]:
    """Return the worst images, and those of the most frequent mistakes."""
    lowest, pairs = worst(rows), confused(rows)
    pictures = looked_at(project, weights, device, [*lowest, *itertools.chain(*pairs)])

    def shown(images: Sequence[Found]) -> list[Shown]:
        return [Shown(pictures[each].pictures, f"{pictures[each].name}: {_said(each, names)}") for each in images if each in pictures]

    heat = " The color shows which places count for the given class (Grad-CAM)." if any(len(each.pictures) > 1 for each in pictures.values()) else ""
    groups = [Group("Worst images", f"The images for testing with the lowest probability of their class; mistakes come first.{heat}", shown(lowest))]
    for images in pairs:
        groups.append(Group(f"{names[images[0].true]} taken for {names[images[0].best]}", "", shown(images)))
    return groups


def _said(found: Found, names: Sequence[str]) -> str:
    if found.true == found.best:
        return f"{names[found.true]} {100 * found.right:.1f} %, right"
    return f"{names[found.best]} {100 * found.probability:.1f} %; right is {names[found.true]}, {100 * found.right:.1f} %"


class _Classified(Result):
    """A confusion matrix."""

    def __init__(self, confusion: Confusion, names: Sequence[str], groups: Sequence[Group]) -> None:
        self.confusion, self.names, self._groups = confusion, names, groups

    def record(self) -> dict[str, Any]:
        return self.confusion.record(self.names)

    def lines(self) -> Iterator[str]:
        yield from self.confusion.table(self.names)
        yield from self.confusion.mistakes(self.names)

    def sentence(self) -> str:
        return f"accuracy {100 * self.confusion.accuracy:.1f} % on {self.confusion.images} images"

    def pictures(self) -> dict[str, bytes]:
        return {CONFUSION: confusion_png(self.confusion, self.names)}

    def groups(self) -> Sequence[Group]:
        return self._groups
