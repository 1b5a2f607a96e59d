"""The task of images with one class each: a small residual net, scored by the share of right images."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.evaluation.confusion import Confusion
from ocaffe.evaluation.picture import confusion_png
from ocaffe.evaluation.scores import evaluate
from ocaffe.fit.see import CLASSES
from ocaffe.fit.task import Result, Task, Wanted
from ocaffe.formats.text import parse
from ocaffe.zoo.images import Images, find_images, typical_side
from ocaffe.zoo.project import Project, begin, write_project
from ocaffe.zoo.unreadable import Check
from ocaffe.zoo.weights import check_weights

NET = "resnet20"  # a small residual net, for images of any size
SIDES = (32, 64)  # of its images: the smaller one for images up to 48 pixels, the larger one for others
EPOCHS = 20  # from fillers
PICTURE = "confusion.png"


class Classes(Task):
    """Images with one class each."""

    name = CLASSES
    score = "accuracy"

    def project(self, wanted: Wanted) -> Project:
        choices, net = wanted.choices, wanted.net or NET
        begin(net, wanted.out, wanted.again)  # its errors, and those of the weights, come before the images are decoded
        check_weights(choices.weights)
        check = Check(parse(choices.transform, proto.TransformationParameter, "--transform").max_image_pixels)
        images = find_images(wanted.data, wanted.out, choices.val, choices.share, choices.seed, check)
        epochs = choices.epochs or (0 if choices.weights else EPOCHS)
        filled = replace(choices, size=choices.size or side_of(net, images), epochs=epochs)
        return write_project(net, images, wanted.out, filled, wanted.target, wanted.again)

    def test(self, project: Project, weights: str, device: Device) -> Result:
        images = project.images
        confusion = evaluate(project.path("train_val.prototxt"), weights, project.accuracy, device, images=images.test.images)
        return _Classified(confusion, images.classes or [str(number) for number in range(project.classes)])


def side_of(net: str, images: Images) -> int:
    """Return the side of the net's images; 0: as published."""
    if net != NET or images.stored:
        return 0
    return SIDES[typical_side(images) > sum(SIDES) // 2]


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
