"""From an image file to the input of a net, as the data layer of its training did it: resized, cropped in the middle, less the mean, scaled."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from PIL import Image

from ocaffe import proto
from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.data.changes.resizing import Resizing, without_padding
from ocaffe.data.changes.transform import check_values
from ocaffe.data.databases.database import open_database
from ocaffe.data.databases.datum import raw_shape
from ocaffe.data.decoding.decode import MAX_PIXELS, Color, open_image, planes
from ocaffe.data.stores.label_names import is_database
from ocaffe.errors import Error, shape_text, within
from ocaffe.support.finite import LARGEST
from ocaffe.tools.recognise import read_mean

PADDED = proto.ResizeParameter.FIT_LARGE_SIZE_AND_PAD
DATA = ("Data", "ImageData", "AnnotatedData", "DenseImageData", "RoIData")


class Padding(NamedTuple):
    """Fields of a resize_param with FIT_LARGE_SIZE_AND_PAD: the name of pad_mode, and pad_value."""

    mode: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Preprocessing:
    """The settings. `shape`: channels (in the order blue, green, red), height and width of the net's input.

    `resized`: height and width before the crop. `mean`: one value, one per channel, or channels x height x width of the resized image.
    `padding`: the image keeps its aspect ratio, and is padded to `resized`. None: it is warped.
    """

    shape: tuple[int, int, int]
    resized: tuple[int, int]
    mean: np.ndarray
    scale: float = 1.0
    padding: Padding | None = None
    batch: ClassVar[int] = 32  # images of a run

    def __call__(self, content: bytes) -> tuple[np.ndarray, ...]:
        """Return the input for an image file, channels x height x width, as the only one. Raise Error without a place."""
        pixels = self._cropped(self._resize(planes(open_image(content, MAX_PIXELS), Color.GRAY if self.shape[0] == 1 else Color.COLOR)))
        return (np.float32((pixels.astype(np.float32) - self._mean()) * np.float32(self.scale)),)

    def picture(self, values: np.ndarray) -> Image.Image:
        """Return an input of the net, channels x height x width, as the RGB picture from which it was made."""
        pixels = np.clip(np.rint(values / np.float32(self.scale or 1) + self._mean()), 0, 255).astype(np.uint8)
        return Image.fromarray(np.ascontiguousarray(pixels[::-1].transpose(1, 2, 0)) if len(pixels) == 3 else pixels[0]).convert("RGB")

    def _mean(self) -> np.ndarray:
        return self._cropped(self.mean) if self.mean.ndim == 3 else self.mean.reshape(-1, 1, 1)

    def _cropped(self, image: np.ndarray) -> np.ndarray:
        """Return the middle of a resized image."""
        _, height, width = self.shape
        y, x = (self.resized[0] - height) // 2, (self.resized[1] - width) // 2
        return image[:, y : y + height, x : x + width]

    def _resize(self, image: np.ndarray) -> np.ndarray:
        if self.padding is None:
            return resize(image, *self.resized)
        mode = proto.ResizeParameter.Pad_mode.Value(self.padding.mode)
        height, width = self.resized
        param = proto.ResizeParameter(resize_mode=PADDED, height=height, width=width, pad_mode=mode, pad_value=self.padding.values)
        return Resizing(param).apply(image, self.resized, Interpolation.LINEAR)

    def in_image(self, boxes: np.ndarray, image: tuple[int, int]) -> np.ndarray:
        """Convert boxes (n x 4: left, top, right, bottom), as shares of the resized image, to shares of the image. `image`: its height and width."""
        return boxes if self.padding is None else without_padding(boxes, image, self.resized)

    def check(self, place: str) -> None:
        """Raise Error if the settings contradict each other."""
        channels, height, width = self.shape
        if self.resized[0] < height or self.resized[1] < width:
            fact = f"images of {shape_text(self.resized)} are smaller than the net's input, {height} x {width}"
            fix = f"--resize {max(self.resized[0], height)},{max(self.resized[1], width)}, or another of at least {height},{width}"
            raise Error(fact, place=place, fix=fix)
        largest = (255 + float(np.abs(self.mean).max(initial=0))) * abs(self.scale)
        if largest > LARGEST:
            fact = f"the mean and the scale {self.scale:g} would give values up to {largest:g}, and floats of 32 bits end at {LARGEST:g}"
            raise Error(fact, place=place, fix="give --mean and --scale as in the training, such as --mean 104,117,123 --scale 1")
        fits = self.mean.shape == (channels, *self.resized) if self.mean.ndim == 3 else self.mean.size in (1, channels)
        if not fits:
            fact = f"the mean is {shape_text(self.mean.shape)}, and the images are {shape_text((channels, *self.resized))}"
            raise Error(fact, place=place, fix=f"give --mean an image of {shape_text((channels, *self.resized))}, or {channels} values, one for each channel")


def of_layer(layer: Any, shape: tuple[int, int, int] | None, resized: tuple[int, int] | None, place: str) -> Preprocessing:
    """Return the settings of a data layer in TEST.

    `shape`: the net's input, None if only the layer says it. `resized`: height and width, in place of those of the layer.
    Raises Error if nothing says the size to which images were resized.
    """
    transform = layer.transform_param
    with within(place, f"'{layer.name}' ({layer.type})"):
        check_values(transform)
    crop = (transform.crop_h, transform.crop_w) if transform.crop_h else (transform.crop_size,) * 2 if transform.crop_size else None
    change = None if resized else _resize_param(layer, place)
    padding = None
    if change is not None and change.resize_mode == PADDED:
        padding = Padding(proto.ResizeParameter.Pad_mode.Name(change.pad_mode), tuple(change.pad_value))
    resized = resized or ((change.height, change.width) if change else _resized(layer))
    resized = resized or (shape[1:] if shape and not crop else None)  # without a crop all images have the size of the input
    if resized is None:
        fact = f"nothing says to which size the images of layer '{layer.name}' were resized"
        raise Error(fact, place=place, fix="give the size: --resize HEIGHT,WIDTH, for example --resize 256,256")
    shape = shape or (_channels(layer), *(crop or resized))
    mean = np.array(transform.mean_value, np.float32) if transform.mean_value else np.zeros(1, np.float32)
    if transform.mean_file:
        mean = mean_of(transform.mean_file)
    return Preprocessing(shape, resized, mean, float(transform.scale), padding)


def mean_of(text: str) -> np.ndarray:
    """Return the mean in `text`: a .binaryproto or .npy file, or values separated by commas. Raise Error, also for NaN and infinity."""
    words = text.split(",")
    try:
        values = [float(word) for word in words]
    except ValueError:
        return read_mean(text)
    for word, value in zip(words, values):
        if not abs(value) <= LARGEST:
            fact = f"the mean has '{word[:60]}', which is no finite float of 32 bits"
            raise Error(fact, place="--mean", fix="--mean VALUE, or --mean BLUE,GREEN,RED, with finite numbers such as --mean 104,117,123")
    return np.array(values, np.float32)


def _channels(layer: Any) -> int:
    if layer.type == "ImageData":
        return 3 if layer.image_data_param.is_color else 1
    if layer.type == "DenseImageData":
        return 3 if layer.dense_image_data_param.is_color else 1
    found = _stored(layer)
    return found[0] if found else 1 if layer.transform_param.force_gray else 3


def _resize_param(layer: Any, place: str) -> Any:
    """Return the resize_param that a layer always applies, None without one. Raise Error for images that keep their aspect ratio without padding."""
    for change in layer.transform_param.resize_param if layer.type not in ("ImageData", "DenseImageData") else ():
        if change.resize_mode not in (proto.ResizeParameter.WARP, PADDED):
            mode = proto.ResizeParameter.Resize_mode.Name(change.resize_mode)
            fact = f"resize_mode of layer '{layer.name}' is {mode}, and images are prepared by WARP and FIT_LARGE_SIZE_AND_PAD"
            raise Error(fact, place=place, fix="give --resize HEIGHT,WIDTH, which does not keep the aspect ratio")
        if change.prob == 1 and list(change.interp_mode) == [proto.ResizeParameter.LINEAR]:
            return change
    return None


def _resized(layer: Any) -> tuple[int, int] | None:
    """Return height and width of the images before the crop, None if the layer does not say it. `_resize_param` precedes it."""
    if layer.type == "ImageData":
        p = layer.image_data_param
        return (p.new_height, p.new_width) if p.new_height else None
    if layer.type == "DenseImageData":
        p = layer.dense_image_data_param
        return (p.new_height, p.new_width) if p.new_height else None
    found = _stored(layer)
    return found[1:] if found else None


def _stored(layer: Any) -> tuple[int, int, int] | None:
    """Return the shape of the first record of a database, None if it is an encoded file, has boxes, or there is no database."""
    data = layer.data_param
    if layer.type != "Data":
        return None
    return raw_shape(open_database(data.source, data.backend)) if is_database(data.source) else None
