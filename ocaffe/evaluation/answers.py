"""The answers of a net to images, as records for JSON, as lines for people, and drawn on the images: classes, objects, regions or text."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from ocaffe.api.net import Net
from ocaffe.data.decoding.decode import MAX_PIXELS, Color, open_image, planes
from ocaffe.errors import Error, shape_text
from ocaffe.evaluation.objects import draw_objects, objects
from ocaffe.evaluation.regions import draw_regions, regions
from ocaffe.support.system_fonts import lettering

# layers of detections: their parameters, and the number of classes that num_classes does not count. Label 0 is the background in all of them
DETECTED = {"DetectionOutput": ("detection_output_param", 0), "YoloDetectionOutput": ("yolo_detection_output_param", 1),
            "Yolov3DetectionOutput": ("yolov3_detection_output_param", 1)}  # fmt: skip


class Answers(ABC):
    """Answers of one kind. `labels`: names of the classes by number, [] if they are not known. `drawn`: they can be drawn."""

    drawn = True

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = labels

    @abstractmethod
    def of(self, output: np.ndarray, image: int) -> dict[str, Any]:
        """Return the record of image number `image` of a batch from the net's output."""

    @abstractmethod
    def lines(self, record: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of a record."""

    def draw(self, picture: Image.Image, output: np.ndarray, image: int) -> Image.Image:
        """Return the RGB image with the answers."""
        raise NotImplementedError


class Classes(Answers):
    """The `top` best classes of the image. The output is N x classes."""

    drawn = False

    def __init__(self, labels: Sequence[str], top: int) -> None:
        super().__init__(labels)
        self.top = top

    def of(self, output: np.ndarray, image: int) -> dict[str, Any]:
        scores = output.reshape(len(output), -1)[image]
        best = np.argsort(-scores, kind="stable")[: self.top].tolist()
        return {"top": [{"label": self.labels[i] if self.labels else str(i), "index": i, "score": float(scores[i])} for i in best]}

    def lines(self, record: dict[str, Any]) -> Iterator[str]:
        return (f"{each['score']:.4f}  {each['label']}" for each in record["top"])


class Objects(Answers):
    """The detections with a score of at least `least`. The output is that of a layer in DETECTED, 1 x 1 x n x 7, with boxes relative to the image."""

    def __init__(self, labels: Sequence[str], least: float) -> None:
        super().__init__(labels)
        self.least = least

    def of(self, output: np.ndarray, image: int) -> dict[str, Any]:
        return {"objects": objects(output.reshape(-1, output.shape[-1]), image, self.labels, self.least)}

    def lines(self, record: dict[str, Any]) -> Iterator[str]:
        if not record["objects"]:
            yield f"nothing with a score of {self.least:g} or more"
        for each in record["objects"]:
            yield f"{each['score']:.4f}  {each['label']}  {' '.join(f'{share:.3f}' for share in each['box'])}"

    def draw(self, picture: Image.Image, output: np.ndarray, image: int) -> Image.Image:
        return draw_objects(picture, self.of(output, image)["objects"])


class Regions(Answers):
    """The best class of each pixel. The output is N x classes x height x width."""

    def of(self, output: np.ndarray, image: int) -> dict[str, Any]:
        return {"regions": regions(output[image], self.labels)[1]}

    def lines(self, record: dict[str, Any]) -> Iterator[str]:
        return (f"{100 * each['share']:6.2f} %  {each['label']}" for each in record["regions"])

    def draw(self, picture: Image.Image, output: np.ndarray, image: int) -> Image.Image:
        return draw_regions(picture, regions(output[image], self.labels)[0])


class Text(Answers):
    """The characters of the image. The output is CTCGreedyDecoder's, N x steps x 1 x 1, with -1 after the end."""

    def of(self, output: np.ndarray, image: int) -> dict[str, Any]:
        found = [int(label) for label in output[image].ravel() if label >= 0]
        return {"text": "".join(self.labels[label] for label in found) if self.labels else " ".join(map(str, found))}

    def lines(self, record: dict[str, Any]) -> Iterator[str]:
        yield record["text"] or "no text"

    def draw(self, picture: Image.Image, output: np.ndarray, image: int) -> Image.Image:
        return _with_line(picture, self.of(output, image)["text"], picture.height // 2)


class Tags(Answers):
    """The tags with a score of at least `least`. The output is that of a Sigmoid, N x tags."""

    def __init__(self, labels: Sequence[str], least: float) -> None:
        super().__init__(labels)
        self.least = least

    def of(self, output: np.ndarray, image: int) -> dict[str, Any]:
        scores = output.reshape(len(output), -1)[image]
        best = [i for i in np.argsort(-scores, kind="stable").tolist() if scores[i] >= self.least]
        return {"tags": [{"label": self.labels[i] if self.labels else str(i), "index": i, "score": float(scores[i])} for i in best]}

    def lines(self, record: dict[str, Any]) -> Iterator[str]:
        if not record["tags"]:
            yield f"no tag with a score of {self.least:g} or more"
        yield from (f"{each['score']:.4f}  {each['label']}" for each in record["tags"])

    def draw(self, picture: Image.Image, output: np.ndarray, image: int) -> Image.Image:
        tags = self.of(output, image)["tags"]
        return _with_line(picture, ", ".join(f"{each['label']} {each['score']:.2f}" for each in tags) or "no tag", picture.height // 12)


def _with_line(picture: Image.Image, text: str, size: int) -> Image.Image:
    """Return the image with a line of text below it. `size`: of its letters in pixels, at least 12."""
    [text], font = lettering([text], max(12, size))
    _, _, wide, high = ImageDraw.Draw(picture).textbbox((0, 0), text, font=font)
    made = Image.new("RGB", (max(picture.width, round(wide) + 4), picture.height + round(high) + 6), "white")
    made.paste(picture)
    ImageDraw.Draw(made).text((2, picture.height + 2), text, "black", font)
    return made


def answers_of(net: Net, message: Any, labels: Sequence[str], top: int, least: float) -> Answers:
    """Return the kind of the net's answers, which the last layer of its `message` (NetParameter) decides.

    Raises Error if the number of `labels` does not fit, or for other outputs.
    """
    if len(net.outputs) != 1:
        fix = "give a deploy.prototxt with one output: end the others by Silence, or remove their layers"
        raise Error(f"the net has the outputs {', '.join(net.outputs)}", fix=fix)
    (output,) = net.outputs
    shape = net.blobs[output].data.shape
    last = message.layer[-1]
    found: Answers
    if last.type in DETECTED:
        field, more = DETECTED[last.type]
        classes, found = getattr(last, field).num_classes + more, Objects(labels, least)
    elif last.type == "Sigmoid" and len(shape) > 1 and shape[1] == np.prod(shape[1:]):
        classes, found = shape[1], Tags(labels, least)
    elif last.type == "CTCGreedyDecoder":
        classes, found = net.blobs[last.bottom[0]].data.shape[2], Text(labels)
    elif len(shape) == 4 and shape[2] * shape[3] > 1 and shape[1] > 1:
        classes, found = shape[1], Regions(labels)
    elif len(shape) > 1 and shape[1] == np.prod(shape[1:]):
        classes, found = shape[1], Classes(labels, top)
    else:
        fact = f"the output '{output}' is {shape_text(shape)}: neither one score per class, nor detections, nor a map of scores per class"
        raise Error(fact, fix="give a net that classifies images, finds objects, divides images into regions, or ends with CTCGreedyDecoder")
    if labels and classes != len(labels):
        fact = f"{len(labels)} names of classes are given, and the net has {classes} scores"
        raise Error(fact, place="--labels", fix="give the labels.txt with which the net was trained")
    return found


def picture_of(content: bytes) -> Image.Image:
    """Return the image of a file as the net saw it, upright, in RGB. Raise Error."""
    return Image.fromarray(np.ascontiguousarray(planes(open_image(content, MAX_PIXELS), Color.COLOR)[::-1].transpose(1, 2, 0)))
