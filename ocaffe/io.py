"""Input and output of images, with the functions of pycaffe's `io`: load, resize, crop, preprocess for deploy nets, convert arrays to messages.

Images are height x width x channels, float32, RGB, with values from 0 to 1. Net inputs are channels x height x width.
"""
from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.data.decoding.decode import open_pillow, read_file, readable
from ocaffe.errors import Error, NoSuchField, NoSuchFile, OutOfRange, UnknownName, UnreadableFile, WrongValue, shape_text
from ocaffe.formats.blob import array_to_blob, blob_to_array
from ocaffe.formats.blob import array_to_datum as array_to_datum_message
from ocaffe.formats.blob import datum_to_array as datum_message_to_array
from ocaffe.proto import caffe_pb2 as caffe_pb2
from ocaffe.support.kinds import kind_of

# Pillow's modes of gray images with more than 8 bits: the value of white. The mode I has 16 bits in PNG and PGM files, and 32 in TIFF files.
_WIDE_GRAY = {"I;16": 65535, "I;16B": 65535, "I": 65535, "I;32": 2**31 - 1, "F": 1}


def load_image(filename: str | BinaryIO, color: bool = True) -> np.ndarray:
    """Load an image file as height x width x 3 (x 1 if `color` is false) in RGB, float32 from 0 to 1. Raises Error if it cannot be read.

    Gray becomes three equal channels, alpha is dropped. Gray images of 16 bits keep them. A TIFF of floats keeps its values.
    `filename` may be an open binary file too. It is read from its beginning, as by scikit-image.
    """
    with _image_file(filename), open_pillow(_content(filename)) as image:
        if image.mode in _WIDE_GRAY:
            largest = _WIDE_GRAY["I;32" if (image.mode, image.format) == ("I", "TIFF") else image.mode]
            pixels = np.asarray(np.asarray(image).astype(np.float32)[..., None] / largest, np.float32)
            return np.repeat(pixels, 3, 2) if color else pixels
        pixels = np.asarray(image.convert("RGB"), np.float32) / np.float32(255)
        gray = np.array([0.2125, 0.7154, 0.0721], np.float32)  # ITU-R BT.709, as in skimage
        if color or image.mode not in ("1", "L", "LA"):
            return pixels if color else np.asarray(pixels @ gray)[..., None]
        return np.asarray(pixels[..., :1])


def __getattr__(name: str) -> Any:
    """Return scikit-image as `skimage`, if it is installed: pycaffe's module imports it, and scripts use it from there."""
    if name != "skimage":
        raise AttributeError(f"module 'ocaffe.io' has no attribute {name!r}")
    try:
        importlib.import_module("skimage.io")
    except ImportError:
        raise NoSuchField("caffe.io.skimage is scikit-image, which is not installed", fix="pip install scikit-image") from None
    return importlib.import_module("skimage")


@contextlib.contextmanager
def _image_file(file: str | BinaryIO) -> Iterator[None]:
    """Turn exceptions of reading an image file into an Error that is an OSError too, as the ones of scikit-image are."""
    try:
        with readable():
            yield
    except Error as problem:
        kind = NoSuchFile if isinstance(file, (str, os.PathLike)) and not os.path.exists(file) else UnreadableFile
        raise kind(problem.fact, place=str(file), fix=problem.fix or "correct the name, or replace the file") from None


def _content(file: str | BinaryIO) -> bytes:
    if isinstance(file, (str, os.PathLike)):
        return read_file(os.fspath(file))
    file.seek(0)
    return file.read()


def resize_image(im: np.ndarray, new_dims: Sequence[int], interp_order: int = 1, *, anti_aliasing: bool = False) -> np.ndarray:
    """Resize `im` (height x width x channels) to (height, width), float32. `interp_order` 1 is bilinear, 0 is nearest neighbour.

    Images with 1 or 3 channels are resized like skimage's `resize`. Positions are relative to pixel centres. Pixels outside the image have its
    smallest value, so the edges of an enlarged image get darker. `anti_aliasing` blurs an image before it shrinks, which is skimage's default since
    0.15, after Caffe's last version. Arrays with other numbers of channels are resized like scipy's `zoom`: the corner pixels stay at the corners.

    Raises Error for another interp_order, and for other axes.
    """
    if interp_order not in (0, 1):
        raise WrongValue(f"interp_order is {interp_order}", place="resize_image", fix="give interp_order=0 (nearest) or interp_order=1 (bilinear)")
    image = np.asarray(im, np.float32)
    new_size = tuple(int(new) for new in new_dims)
    if image.ndim != 3 or not image.size or new_size[2:] not in ((), image.shape[2:]) or len(new_size) < 2 or min(new_size) < 1:
        if image.ndim == 2:
            fix = "give a gray image its axis of channels: im[:, :, np.newaxis]"
        elif image.ndim != 3 or not image.size:
            fix = "give an image of height x width x channels"
        else:
            fix = "give new_dims as (height, width), both at least 1"
        raise WrongValue(f"an array of {shape_text(image.shape)} to {shape_text(new_size)}", place="resize_image", fix=fix)
    zoomed = image.shape[2] not in (1, 3)
    floor = np.float32(0) if zoomed else image.min()
    out = image - floor
    for axis, (old, new) in enumerate(zip(image.shape, new_size[:2])):
        if zoomed:
            out = _resample(out, axis, np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0), interp_order)
        else:
            blur = _gaussian(max(0.0, old / new - 1) / 2 if anti_aliasing else 0.0)
            out = _resample(out, axis, (np.arange(new) + 0.5) * (old / new) - 0.5, interp_order, blur)
    return np.asarray(out + floor, np.float32)


def _gaussian(sigma: float) -> np.ndarray:
    """Return the weights of a blur, as scipy's gaussian_filter has them: up to 4 sigma."""
    radius = int(4 * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / max(sigma, 1e-9)) ** 2)
    return np.asarray(weights / weights.sum())


def _resample(image: np.ndarray, axis: int, at: np.ndarray, order: int, blur: Sequence[float] | np.ndarray = (1.0,)) -> np.ndarray:
    """Return `image` interpolated at the positions `at` along `axis`, after a blur. Pixels outside the image are 0."""
    old = image.shape[axis]
    left = np.floor(at if order else at + 0.5)
    way = at - left if order else np.zeros(len(at))
    weights = np.outer(1 - way, [*blur, 0]) + np.outer(way, [0, *blur])
    total = np.zeros((), np.float32)
    for step, column in enumerate(weights.T.astype(np.float32)):
        place = left.astype(np.intp) - len(blur) // 2 + step
        inside = column * ((place >= 0) & (place < old))
        if inside.any():
            total = total + np.take(image, np.clip(place, 0, old - 1), axis) * np.expand_dims(inside, tuple(n for n in range(image.ndim) if n != axis))
    return np.asarray(total)


def oversample(images: Sequence[np.ndarray], crop_dims: Sequence[int]) -> np.ndarray:
    """Return ten crops of size `crop_dims` (height, width) of each image: four corners, the centre, and the same crops mirrored.

    Raises Error if there is no image, and if a crop is larger than an image.
    """
    height, width = (int(n) for n in crop_dims)
    crops: list[np.ndarray] = []
    for image in images:
        rows, columns = image.shape[:2]
        if rows < height or columns < width:
            fact = f"a crop of {height} x {width} does not fit into an image of {rows} x {columns}"
            raise WrongValue(fact, place="oversample", fix=f"give image_dims of at least {height} x {width}, or images of that size")
        if crops and image.shape[2:] != crops[0].shape[2:]:
            fact = f"images of {shape_text(image.shape)} and of {shape_text(images[0].shape)}"
            raise WrongValue(fact, place="oversample", fix="give images with the same number of channels")
        corners = [(y, x) for y in (0, rows - height) for x in (0, columns - width)]
        corners.append(centre((rows, columns), (height, width)))
        plain = [image[y : y + height, x : x + width] for y, x in corners]
        crops += plain + [crop[:, ::-1] for crop in plain]
    if not crops:
        raise OutOfRange("there is no image to crop", place="oversample", fix="give a list with an image")
    return np.stack(crops).astype(np.float32)


def centre(size: Sequence[int], crop: Sequence[int]) -> tuple[int, int]:
    """Return the upper left corner of the central crop."""
    return int(size[0] / 2 - crop[0] / 2), int(size[1] / 2 - crop[1] / 2)


class Transformer:
    """Converts images to net inputs: resize, transpose, channel_swap, raw_scale, subtract mean, input_scale, in this order.

    All steps except resizing are optional. `inputs` maps the names of inputs to shapes, n x channels x height x width.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs = {name: tuple(int(n) for n in shape) for name, shape in inputs.items()}
        self.transpose: dict[str, tuple[int, ...]] = {}
        self.channel_swap: dict[str, tuple[int, ...]] = {}
        self.raw_scale: dict[str, Any] = {}
        self.mean: dict[str, np.ndarray] = {}
        self.input_scale: dict[str, Any] = {}

    def _check(self, name: str) -> None:
        if name not in self.inputs:
            raise UnknownName(f"'{name}' is not an input of the net", fix=f"name one of its inputs: {', '.join(self.inputs)}")

    def set_transpose(self, name: str, order: Sequence[int]) -> None:
        """Set the order of the axes: (2, 0, 1) for images that are height x width x channels."""
        self._check(name)
        axes = tuple(order)
        if len(axes) != len(self.inputs[name]) - 1:
            fix = f"give {len(self.inputs[name]) - 1} axes" + (": (2, 0, 1) for height x width x channels" if len(self.inputs[name]) == 4 else "")
            raise WrongValue(f"{len(axes)} axes for an input of {shape_text(self.inputs[name][1:])}", fix=fix)
        self.transpose[name] = axes

    def set_channel_swap(self, name: str, order: Sequence[int]) -> None:
        """Set the order of the channels: (2, 1, 0) converts RGB to BGR, which Caffe's reference models require."""
        self._check(name)
        channels = tuple(order)
        if len(channels) != self.inputs[name][1]:
            fact = f"the order of {len(channels)} channels for an input of {self.inputs[name][1]}"
            raise WrongValue(fact, fix=f"give {self.inputs[name][1]} numbers, one for each channel")
        self.channel_swap[name] = channels

    def set_raw_scale(self, name: str, scale: Any) -> None:
        """Set the factor that is applied before the mean is subtracted: 255 for models that were trained on bytes. None removes it."""
        self._check(name)
        self.raw_scale[name] = scale

    def set_mean(self, name: str, mean: np.ndarray) -> None:
        """Set the mean: a value for each channel, or channels x height x width, which is resized to the input if necessary."""
        self._check(name)
        mean = np.asarray(mean, np.float32)
        channels, *size = self.inputs[name][1:]
        if mean.ndim == 1:
            if len(mean) != channels:
                raise WrongValue(f"a mean of {len(mean)} values for an input of {channels} channels", fix=f"give {channels} values, one for each channel")
            mean = mean[:, None, None]
        else:
            mean = mean.reshape((1,) * (3 - mean.ndim) + mean.shape) if mean.ndim < 3 else mean
            if mean.ndim != 3 or len(mean) not in (1, channels):
                fact = f"the mean is {shape_text(mean.shape)}, the input {shape_text(self.inputs[name][1:])}"
                raise WrongValue(fact, fix=f"give {channels} values, one for each channel, or a mean image of {channels} x height x width")
            if mean.shape[1:] not in ((1, 1), tuple(size)):
                mean = resize_image(mean.transpose(1, 2, 0), size).transpose(2, 0, 1)
        self.mean[name] = mean

    def set_input_scale(self, name: str, scale: Any) -> None:
        """Set the factor that is applied after the mean is subtracted: a number, or an array that broadcasts. None removes it."""
        self._check(name)
        self.input_scale[name] = scale

    def preprocess(self, name: str, data: np.ndarray) -> np.ndarray:
        """Return the image `data` as one row of the input, float32. Raises Error if its axes or channels do not match the settings."""
        self._check(name)
        data = np.asarray(data, np.float32)
        try:
            return self._preprocessed(name, data)
        except Error:
            raise
        except (ValueError, IndexError) as problem:
            fact = f"an array of {shape_text(data.shape)} does not become the input '{name}' of {shape_text(self.inputs[name][1:])}: {problem}"
            kind = OutOfRange if isinstance(problem, IndexError) else WrongValue
            first = data.ndim == 3 and len(data) == self.inputs[name][1]
            raise kind(fact, fix=f"give height x width x channels, as io.load_image does{': image.transpose(1, 2, 0)' * first}") from None

    def _preprocessed(self, name: str, data: np.ndarray) -> np.ndarray:
        size = self.inputs[name][2:]
        if data.shape[:2] != size:
            data = resize_image(data, size)
        if name in self.transpose:
            data = data.transpose(self.transpose[name])
        if name in self.channel_swap:
            data = data[list(self.channel_swap[name])]
        if self.raw_scale.get(name) is not None:
            data = data * np.float32(self.raw_scale[name])
        if name in self.mean:
            data = data - self.mean[name]
        if self.input_scale.get(name) is not None:
            data = data * np.float32(self.input_scale[name])
        return np.ascontiguousarray(data, np.float32)

    def deprocess(self, name: str, data: np.ndarray) -> np.ndarray:
        """Invert `preprocess`, except for the resizing. `data` is one row of the input, of any height and width.

        Without an order of axes or channels, axes of size 1 are removed. Raises Error if the axes or channels of `data` do not match the settings.
        """
        self._check(name)
        data = np.array(data, np.float32)
        axes = len(self.inputs[name]) - 1
        row = data[0] if data.ndim == axes + 1 and len(data) == 1 else data.reshape((1,) * (axes - data.ndim) + data.shape)
        try:
            if row.ndim != axes or row.shape[:1] != self.inputs[name][1:2]:
                raise ValueError("wrong number of axes or channels")
            return self._deprocessed(name, row)
        except ValueError as problem:
            fact = f"an array of {shape_text(data.shape)} is no row of the input '{name}' of {shape_text(self.inputs[name][1:])}: {problem}"
            last = data.ndim == 3 and data.shape[2] == self.inputs[name][1]
            fix = "give channels x height x width: image.transpose(2, 0, 1)" if last else "give channels x height x width, such as net.blobs['data'].data[0]"
            raise WrongValue(fact, fix=fix) from None

    def _deprocessed(self, name: str, data: np.ndarray) -> np.ndarray:
        if self.input_scale.get(name) is not None:
            data = data / np.float32(self.input_scale[name])
        if name in self.mean:
            data = data + self.mean[name]
        if self.raw_scale.get(name) is not None:
            data = data / np.float32(self.raw_scale[name])
        if name in self.channel_swap:
            data = data[np.argsort(self.channel_swap[name])]
        if name in self.transpose:
            data = data.transpose(np.argsort(self.transpose[name]))
        return data if name in self.channel_swap or name in self.transpose else data.squeeze()


def blobproto_to_array(blob: Any, return_diff: bool = False) -> np.ndarray:
    """Return a copy of the data of a BlobProto, or of its diff with `return_diff`: float32, or float64 if it stores doubles.

    Its shape is num x channels x height x width if these are set, as in files of 2014. Raises Error if the number of values does not match the shape.
    """
    try:
        return blob_to_array(blob, return_diff)
    except ValueError as problem:
        fix = "set shape, or num, channels, height and width, to the sizes of the values"
        raise WrongValue(f"the values of the BlobProto do not match its shape: {problem}", fix=fix) from None


def array_to_blobproto(arr: np.ndarray, diff: np.ndarray | None = None) -> Any:
    """Return a BlobProto with the data `arr` (and `diff`) and its shape, as float32, which every tool reads."""
    return array_to_blob(np.asarray(arr, np.float32), None if diff is None else np.asarray(diff, np.float32))


def arraylist_to_blobprotovector_str(arraylist: Sequence[np.ndarray]) -> bytes:
    """Return a serialised BlobProtoVector of the arrays."""
    vector = proto.BlobProtoVector()
    vector.blobs.extend(array_to_blobproto(array) for array in arraylist)
    return bytes(vector.SerializeToString())


arraylist_to_blobprotovecor_str = arraylist_to_blobprotovector_str  # pycaffe's spelling


VECTOR = "open the file in mode 'rb', and copy it again in binary mode, until both copies have the same size"


def blobprotovector_str_to_arraylist(str: bytes) -> list[np.ndarray]:
    """Return the arrays of a serialised BlobProtoVector. Raises Error if it cannot be parsed."""
    try:
        return [blobproto_to_array(blob) for blob in proto.BlobProtoVector.FromString(str).blobs]
    except DecodeError as reason:
        kind = kind_of(bytes(str[:512]))
        if kind is not None:
            raise WrongValue(f"the {len(str)} bytes are {kind.name}, not a BlobProtoVector", fix=kind.way or VECTOR) from None
        fact = f"the {len(str)} bytes are a damaged BlobProtoVector, or none: {reason}"
        raise WrongValue(fact, fix=VECTOR) from None


def array_to_datum(arr: np.ndarray, label: int | None = None) -> Any:
    """Return a Datum with `arr`, channels x height x width: bytes if `arr` is uint8, else floats. Raises Error unless it has 3 axes."""
    arr = np.asarray(arr)
    if arr.ndim != 3:
        axis = "give a gray image its axis of channels: array_to_datum(image[np.newaxis])"
        fix = axis if arr.ndim == 2 else "give an array of channels x height x width"
        raise WrongValue(f"a Datum has three axes, the array is {shape_text(arr.shape)}", fix=fix)
    return array_to_datum_message(arr, label)


def datum_to_array(datum: Any) -> np.ndarray:
    """Return the values of a Datum, channels x height x width: uint8, or float32 if it stores floats.

    An encoded image is decoded to BGR, as in Caffe. Raises Error if it cannot be decoded, or if the number of values does not match the shape.
    """
    if datum.encoded:
        try:
            with readable(), open_pillow(datum.data) as image:
                gray = image.mode in ("1", "L", "LA", "I;16")
                pixels = np.asarray(image.convert("L" if gray else "RGB"), np.uint8)
        except Error as problem:
            raise WrongValue(f"the encoded image of a Datum cannot be decoded: {problem.fact}", fix=problem.fix or "encode it again, as JPEG or PNG") from None
        return pixels[None] if gray else np.ascontiguousarray(pixels[..., ::-1].transpose(2, 0, 1))
    try:
        return datum_message_to_array(datum)
    except ValueError:
        shape = shape_text((datum.channels, datum.height, datum.width))
        fix = "set channels, height and width to the shape of its values"
        raise WrongValue(f"a Datum of {shape} holds {len(datum.data) or len(datum.float_data)} values", fix=fix) from None
