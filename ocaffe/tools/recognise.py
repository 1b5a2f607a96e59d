"""Deploy nets on images: whole ones, averaged over ten crops, and windows of them with some context."""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.errors import Error, shape_text
from ocaffe.io import Transformer, centre, oversample, resize_image
from ocaffe.model.blob import read_blobproto
from ocaffe.net import Net

CROPS = 10  # of oversample
Window = tuple[int, int, int, int]  # ymin, xmin, ymax, xmax


class Recogniser:
    """A net in TEST phase with one image input, and how images get into it. Images are height x width x channels, as `io.load_image` gives them."""

    def __init__(
        self, model: str, weights: str, device: Device, *, mean: np.ndarray | None, raw_scale: float, input_scale: float, channel_swap: Sequence[int]
    ) -> None:
        """`mean`: channels x height x width, or a value per channel; a scale of 1 and an empty `channel_swap` do nothing. Raises Error."""
        self.net = Net(model, phase=proto.TEST, weights=weights, keep=[], device=device)
        if not self.net.inputs:
            raise Error("the net has no input", place=model, fix="give the deploy.prototxt, not the net for training")
        self.input = self.net.inputs[0]
        shape = self.net.blobs[self.input].shape
        if len(shape) != 4 or shape[1] not in (1, 3):
            raise Error(f"the input '{self.input}' is {shape_text(shape)}", place=model, fix="n x 3 x height x width for color images, n x 1 for gray ones")
        self.batch, self.channels, *size = shape
        self.size = int(size[0]), int(size[1])
        self.transformer = Transformer({self.input: shape})
        self.transformer.set_transpose(self.input, (2, 0, 1))
        if mean is not None:
            self.transformer.set_mean(self.input, mean)
        if raw_scale != 1:
            self.transformer.set_raw_scale(self.input, raw_scale)
        if input_scale != 1:
            self.transformer.set_input_scale(self.input, input_scale)
        if channel_swap and self.channels == 3:
            self.transformer.set_channel_swap(self.input, channel_swap)

    def classify(self, images: Iterable[np.ndarray], image_dims: Sequence[int], ten: bool = True) -> np.ndarray:
        """A row of the net's first output for each image: resized to `image_dims`, then ten crops averaged, or the centre alone."""

        def crops() -> Iterator[np.ndarray]:
            for image in images:
                resized = resize_image(image, image_dims)
                if ten:
                    yield from oversample([resized], self.size)
                else:
                    y, x = centre(resized.shape, self.size)
                    if min(y, x) < 0:
                        raise Error(f"the net takes {shape_text(self.size)}, the images become {shape_text(resized.shape[:2])}", fix="larger --images_dim")
                    yield resized[y : y + self.size[0], x : x + self.size[1]]

        scores = self.scores(crops())
        return scores.reshape(len(scores) // CROPS, CROPS, -1).mean(1) if ten else scores

    def detect(self, crops: Iterable[np.ndarray]) -> np.ndarray:
        """A row of the net's first output for each crop, which is resized to the input."""
        return self.scores(crops)

    def scores(self, images: Iterable[np.ndarray]) -> np.ndarray:
        """The rows of the first output for images that only have to be preprocessed, in batches of the net."""
        rows: list[np.ndarray] = []
        images = iter(images)
        while chunk := list(itertools.islice(images, self.batch)):
            batch = np.zeros((self.batch, self.channels, *self.size), np.float32)
            for row, image in zip(batch, chunk):
                row[...] = self.transformer.preprocess(self.input, image)
            self.net.blobs[self.input].data = batch
            rows.append(np.array(self.net.forward()[self.net.outputs[0]][: len(chunk)]))
        if not rows:
            raise Error("there is no image to work on", fix="check the input file")
        return np.concatenate(rows)

    def crop(self, image: np.ndarray, window: Window, context: int = 0) -> np.ndarray:
        """A window of the image, as it is, or with `context` pixels of the net's input around it on each side; what lies outside the image is the mean.

        The net's input has to be square for context, as in R-CNN. Raises Error for an empty window.
        """
        box = np.array(window, np.float64)
        if not context:
            part = image[window[0] : window[2], window[1] : window[3]]
        else:
            edge = self.size[1]
            half = (box[2:] - box[:2] + 1) / 2 * (edge / (edge - 2 * context))
            middle = box[:2] + (box[2:] - box[:2] + 1) / 2
            box = np.round(np.concatenate([middle - half, middle + half]))
            scale = edge / (box[2:] - box[:2] + 1)
            pad = [round(float(n)) for n in np.maximum(0, -box[:2]) * scale]
            box = np.clip(box, 0, [*image.shape[:2]] * 2)
            size = [min(round(float(n)), edge - before) for n, before in zip((box[2:] - box[:2] + 1) * scale, pad)]
            y, x, bottom, right = box.astype(int)
            part = image[y:bottom, x:right]
        if not part.size:
            raise Error(f"the window ymin, xmin, ymax, xmax = {', '.join(map(str, window))} covers no pixel of an image of {shape_text(image.shape[:2])}")
        if not context:
            return part
        whole = np.array(np.broadcast_to(self._mean_image(), (*self.size, self.channels)), np.float32)
        whole[pad[0] : pad[0] + size[0], pad[1] : pad[1] + size[1]] = resize_image(part, size)
        return whole

    def _mean_image(self) -> np.ndarray:
        """What preprocessing turns into zeros, height x width x channels."""
        return self.transformer.deprocess(self.input, np.zeros((self.channels, *self.size), np.float32))

    def close(self) -> None:
        self.net.close()


def read_mean(path: str) -> np.ndarray:
    """A mean image, .npy or .binaryproto, as channels x height x width, or channel means. Raises Error."""
    mean: Any = read_blobproto(path)
    return mean[0] if mean.ndim == 4 and len(mean) == 1 else mean
