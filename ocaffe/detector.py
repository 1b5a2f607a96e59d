"""`Detector`: computes class scores of windows of images, as in R-CNN."""
from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.errors import Error, WrongValue, shape_text
from ocaffe.io import load_image, resize_image
from ocaffe.tools.recognise import ImageNet

Window: TypeAlias = "Sequence[int]"  # ymin, xmin, ymax, xmax


class Detector(ImageNet):
    """A net that scores windows of images: `Detector(deploy, weights, mean=..., context_pad=16)`."""

    def __init__(
        self,
        model_file: str,
        pretrained_file: str,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        context_pad: int | None = None,
        *,
        keep: Iterable[str] | None = None,
        device: Device | str | None = None,
    ) -> None:
        """Load a net and set the preprocessing of windows. Raises Error.

        `context_pad`: width in pixels of the border of the net's input that shows the surroundings of a window. The others are as for Classifier.
        """
        super().__init__(
            model_file, pretrained_file, mean=mean, input_scale=input_scale, raw_scale=raw_scale, channel_swap=channel_swap, keep=keep, device=device
        )
        self.configure_crop(context_pad)

    def configure_crop(self, context_pad: int | None) -> None:
        """Set the number of pixels around a window that show its surroundings; None or 0: none.

        Raises Error if context_pad is too large for the input, or if the input is not square.
        """
        pad = int(context_pad or 0)
        edge = min(self.size)
        if not 0 <= 2 * pad < edge:
            raise WrongValue(f"context_pad is {pad}, the net's input {self.size[0]} x {self.size[1]}", fix=f"give a context_pad from 0 to {(edge - 1) // 2}")
        if pad and self.size[0] != self.size[1]:
            fact = f"context_pad is {pad}, and the net's input {self.size[0]} x {self.size[1]} is not square"
            raise WrongValue(fact, fix="give context_pad=0, or a net with a square input")
        self.context_pad = pad

    def detect_windows(self, images_windows: Iterable[tuple[Any, Iterable[Window]]]) -> list[dict[str, Any]]:
        """Return a dict for each window with 'window' (as given), 'prediction' (scores of the classes) and 'filename'.

        `images_windows`: pairs of an image file (or an image, height x width x channels) and its windows (ymin, xmin, ymax, xmax), in pixels.
        Raises Error for a window that covers no pixel.
        """
        found: list[dict[str, Any]] = []

        def crops() -> Iterator[np.ndarray]:
            for image, windows in images_windows:
                pixels = image if isinstance(image, np.ndarray) else load_image(str(image), self.channels == 3)
                for window in windows:
                    found.append({"window": window, "filename": None if isinstance(image, np.ndarray) else image})
                    try:
                        yield self.crop(pixels, window)
                    except Error as problem:
                        raise Error(problem.fact, place=found[-1]["filename"], fix="correct or remove the window") from None

        scores = self.scores(crops())
        for detection, row in zip(found, scores):
            detection["prediction"] = row.reshape(-1)
        return found

    def detect_selective_search(self, image_fnames: Iterable[str]) -> list[dict[str, Any]]:
        """Return the scores of the windows that selective search proposes, as `detect_windows` does.

        Raises Error if the module selective_search_ijcv_with_python (which needs MATLAB) is not installed.
        """
        try:
            search = importlib.import_module("selective_search_ijcv_with_python")
        except ImportError:
            fix = "detect_windows with windows of any proposal method"
            raise Error("the module selective_search_ijcv_with_python, a front end of a MATLAB program, is not installed", fix=fix) from None
        names = [str(name) for name in image_fnames]
        return self.detect_windows(list(zip(names, search.get_windows(names))))

    def crop(self, im: np.ndarray, window: Window) -> np.ndarray:
        """Return a window of an image. With context_pad the window is enlarged and resized to the net's input.

        context_pad pixels on each side then show the surroundings. Pixels outside the image have the mean's value.

        Raises Error for an empty window.
        """
        box = np.array(window, np.float64)
        if not self.context_pad:
            part = im[int(window[0]) : int(window[2]), int(window[1]) : int(window[3])]
        else:
            edge = self.size[1]
            half = (box[2:] - box[:2] + 1) / 2 * (edge / (edge - 2 * self.context_pad))
            middle = box[:2] + (box[2:] - box[:2] + 1) / 2
            box = np.round(np.concatenate([middle - half, middle + half]))
            scale = edge / (box[2:] - box[:2] + 1)
            pad = [round(float(n)) for n in np.maximum(0, -box[:2]) * scale]
            box = np.clip(box, 0, [*im.shape[:2]] * 2)
            size = [min(round(float(n)), edge - before) for n, before in zip((box[2:] - box[:2] + 1) * scale, pad)]
            y, x, bottom, right = box.astype(int)
            part = im[y:bottom, x:right]
        if not part.size:
            fact = f"the window ymin, xmin, ymax, xmax = {', '.join(map(str, window))} covers no pixel of an image of {shape_text(im.shape[:2])}"
            raise WrongValue(fact, fix="correct the window: ymin < ymax and xmin < xmax, inside the image")
        if not self.context_pad:
            return part
        whole = np.array(np.broadcast_to(self.crop_mean, (*self.size, self.channels)), np.float32)
        whole[pad[0] : pad[0] + size[0], pad[1] : pad[1] + size[1]] = resize_image(part, size)
        return whole

    @property
    def crop_mean(self) -> np.ndarray:
        """The image that preprocessing maps to zeros, height x width x channels."""
        return self.transformer.deprocess(self.input, np.zeros((self.channels, *self.size), np.float32))
