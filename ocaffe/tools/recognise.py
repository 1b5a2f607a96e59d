"""Deploy nets on images: the common base of `Classifier` and `Detector`."""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.errors import Error, shape_text
from ocaffe.formats.blob import read_finite
from ocaffe.io import Transformer


class ImageNet(Net):
    """A net in TEST phase with one image input. Images are height x width x channels, as `io.load_image` gives them.

    `transformer` preprocesses the images. `crop_dims` are the height and width of the net's input.
    """

    def __init__(
        self,
        model_file: str,
        pretrained_file: str,
        *,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        keep: Iterable[str] | None = None,
        device: Device | str | None = None,
    ) -> None:
        super().__init__(model_file, phase=proto.TEST, weights=pretrained_file, keep=keep, device=device)
        if not self.inputs:
            raise Error("the net has no input", place=model_file, fix="give the deploy.prototxt, not the net for training")
        self.input = self.inputs[0]
        shape = self.blobs[self.input].shape
        if len(shape) != 4 or shape[1] not in (1, 3):
            fix = "give a net whose input is N x 3 x height x width for color images, or N x 1 x height x width for gray ones"
            raise Error(f"the input '{self.input}' is {shape_text(shape)}", place=model_file, fix=fix)
        _, self.channels, *size = shape
        self.crop_dims = np.array(size)
        self.transformer = Transformer({self.input: shape})
        self.transformer.set_transpose(self.input, (2, 0, 1))
        if mean is not None:
            self.transformer.set_mean(self.input, mean)
        self.transformer.set_raw_scale(self.input, raw_scale)
        self.transformer.set_input_scale(self.input, input_scale)
        if channel_swap:
            self.transformer.set_channel_swap(self.input, channel_swap)

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the input."""
        return int(self.crop_dims[0]), int(self.crop_dims[1])

    def scores(self, images: Iterable[np.ndarray]) -> np.ndarray:
        """Return the rows of the first output for images of any size; `transformer` resizes them. The net keeps its batch size. Raise Error without images."""
        rows: list[np.ndarray] = []
        images = iter(images)
        rows_of_net = self.blobs[self.input].shape[0]
        while chunk := list(itertools.islice(images, rows_of_net)):
            batch = np.zeros((rows_of_net, self.channels, *self.size), np.float32)
            for row, image in zip(batch, chunk):
                if image.ndim != 3 or image.shape[2] != self.channels:
                    fix = f"read it by io.load_image(file, color={self.channels == 3})"
                    if image.ndim == 3 and image.shape[0] == self.channels:
                        fix = "give the channels last: image.transpose(1, 2, 0)"
                    raise Error(f"an image is {shape_text(image.shape)}, the net takes height x width x {self.channels}", fix=fix)
                row[...] = self.transformer.preprocess(self.input, image)
            rows.append(np.array(self.forward(None, None, None, **{self.input: batch})[self.outputs[0]][: len(chunk)]))
        if not rows:
            raise Error("there are no images", fix="give at least one")
        return np.concatenate(rows)


def read_mean(path: str) -> np.ndarray:
    """Return a mean image (.npy or .binaryproto) as channels x height x width, or means per channel, float32. Raise Error, also for NaN and infinity."""
    mean = read_finite(path)
    return np.asarray(mean[0] if mean.ndim == 4 and len(mean) == 1 else mean)
