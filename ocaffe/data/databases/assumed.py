"""Plan and time a net without its data: each data layer whose source is missing gets a database of a random image.

The layer stays a data layer, so that plans include its staging and timings include its transform.
"""
from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.errors import Error, Place, shape_text
from ocaffe.formats.blob import write_blobproto
from ocaffe.formats.param_str import read_settings, with_settings
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.ir.tensor import Shape

DATABASES = ("Data", "AnnotatedData")
REGIONS = "RoIData"
FILES = {"ImageData": "image_data_param", "WindowData": "window_data_param"}  # layers of image files: a Data layer has the same tops
RECORDS, BYTES = 1000, 32 << 20  # of a database: few, but the end of the data is not reached in each batch
HDF5 = "HDF5Data"
Image = tuple[int, int, int]  # channels, height, width
Given = Image | dict[str, Shape]  # of all images, or of tops by their names


@contextlib.contextmanager
def assumed_data() -> Iterator[AssumedData]:
    """Context in which assumed databases exist."""
    with tempfile.TemporaryDirectory(prefix="ocaffe-") as folder:
        yield AssumedData(folder)


class AssumedData:
    """Databases in a temporary folder. `notes` names each source that is missing, and the shape that is assumed, once each. A missing name_size_file
    is left out."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.notes: list[str] = []

    def complete(self, net: Any, given: Given | None = None) -> Any:
        """Return the net with a database in the place of each missing source. `given`: shapes that the layers do not say. Raises Error.

        A layer without a database, whose tops are all in `given`, becomes an Input layer.
        """
        net = upgrade_net(net)
        tops = given if isinstance(given, dict) else {}
        unknown = set(tops) - {top for layer in net.layer if not layer.bottom for top in layer.top}
        if unknown:
            raise Error(f"--shape names '{min(unknown)}', which no data layer makes", place=net.source_file or None, fix="give the tops of data layers")
        for layer in net.layer:
            evaluate = layer.detection_evaluate_param
            if evaluate.name_size_file and not os.path.exists(evaluate.name_size_file):
                self._note(f"{evaluate.name_size_file} does not exist: sizes of images are not used")
                evaluate.ClearField("name_size_file")
            if layer.type == REGIONS:
                self._complete_regions(layer)
            named = [tops[top] for top in layer.top if top in tops]
            if layer.type == HDF5 and not os.path.exists(layer.hdf5_data_param.source):
                self._complete_arrays(layer, tops, net.source_file)
            elif named and len(named) == len(layer.top) and not layer.bottom and layer.type not in (*DATABASES, *FILES, HDF5):
                self._become_input(layer, named)
            if layer.type not in (*DATABASES, *FILES):
                continue
            param = layer.data_param if layer.type in DATABASES else getattr(layer, FILES[layer.type])
            if os.path.exists(param.source):
                continue
            image = given if isinstance(given, tuple) else _image_of(tops, layer) or _image(layer)
            if image is None:
                fact = f"{param.source} does not exist, and the layer does not say the size of its images"
                place, title = Place.of(net.source_file, layer.source_line), f"'{layer.name}' ({layer.type})"
                raise Error(fact, place=place, layer=title, fix="--shape 3x224x224, or make the data")
            self._note(f"{param.source} does not exist: images of {shape_text(image)} are assumed")
            self._complete(layer, param, image)
        return net

    def _complete_regions(self, layer: Any) -> None:
        """Give a layer of images with regions a database, if its own is missing. The images have the largest size that its settings allow."""
        own = read_settings(layer.python_param.param_str)
        if os.path.exists(str(own.get("source", ""))) or "scales" not in own or "max_size" not in own:
            return
        image = 3, int(max(own["scales"])), int(own["max_size"])
        self._note(f"{own.get('source')} does not exist: images of {shape_text(image)} are assumed")
        layer.python_param.param_str = with_settings(layer.python_param.param_str, {"source": self._database(image, True)})

    def _complete_arrays(self, layer: Any, tops: dict[str, Shape], file: str) -> None:
        """Give an HDF5Data layer, whose list of files is missing, a file of zeros with a dataset of the given shape for each top. Raises Error."""
        import h5py  # slow to import

        param, names = layer.hdf5_data_param, list(layer.top)
        if not all(tops.get(name) for name in names):
            example = ",".join(f"{name}:{param.batch_size}x{size}" for name, size in zip(names, ("3x32x32", *["1"] * len(names))))
            fact = f"{param.source or 'the source'} does not exist, and the shapes of the tops are unknown"
            raise Error(fact, place=Place.of(file, layer.source_line), layer=f"'{layer.name}' ({layer.type})", fix=f"--shape {example}, with the right sizes")
        stem = os.path.join(self.folder, f"{layer.name.replace(os.sep, '-')}-{layer.source_line}")
        with h5py.File(f"{stem}.h5", "w") as out:
            for name in names:
                out[name] = np.zeros(tops[name], np.float32)
        with open(f"{stem}.txt", "w", encoding="utf-8") as listed:
            listed.write(f"{stem}.h5\n")
        self._note(f"{param.source} does not exist: zeros of {', '.join(f'{name} {shape_text(tops[name])}' for name in names)} are assumed")
        param.source, param.batch_size = f"{stem}.txt", tops[names[0]][0]

    def _become_input(self, layer: Any, shapes: Sequence[Shape]) -> None:
        made = proto.LayerParameter(name=layer.name, type="Input", top=layer.top, include=layer.include, exclude=layer.exclude, source_line=layer.source_line)
        for shape in shapes:
            made.input_param.shape.add(dim=shape)
        self._note(f"'{layer.name}' ({layer.type}) is an Input layer here: {', '.join(map(shape_text, shapes))}")
        layer.CopyFrom(made)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _complete(self, layer: Any, param: Any, image: Image) -> None:
        boxes = layer.type == "AnnotatedData"
        if layer.type in FILES:
            batch = param.batch_size
            if layer.type == "WindowData" and not layer.HasField("transform_param"):
                layer.transform_param.crop_size = param.crop_size
            layer.ClearField(FILES[layer.type])
            layer.type = "Data"
            layer.data_param.batch_size = batch
        layer.data_param.source, layer.data_param.backend = self._database(image, boxes), proto.DataParameter.LMDB
        transform = layer.transform_param
        if transform.mean_file and not os.path.exists(transform.mean_file):
            transform.mean_file = self._mean(image)

    def _database(self, image: Image, boxes: bool) -> str:
        path = os.path.join(self.folder, shape_text(image).replace(" ", "") + ("-boxes" if boxes else ""))
        if not os.path.exists(path):
            channels, height, width = image
            pixels = np.random.default_rng(0).integers(0, 256, image, np.uint8)
            datum = proto.Datum(channels=channels, height=height, width=width, data=pixels.tobytes(), label=0)
            record = proto.AnnotatedDatum(datum=datum, type=proto.AnnotatedDatum.BBOX) if boxes else datum
            if boxes:
                record.annotation_group.add(group_label=1).annotation.add().bbox.CopyFrom(proto.NormalizedBBox(xmax=1, ymax=1))
            content = record.SerializeToString()
            with LmdbWriter(path) as out:
                for number in range(max(min(RECORDS, BYTES // len(content)), 1)):
                    out.put(b"%08d" % number, content)
        return path

    def _mean(self, image: Image) -> str:
        path = os.path.join(self.folder, f"mean-{shape_text(image).replace(' ', '')}.binaryproto")
        if not os.path.exists(path):
            write_blobproto(path, np.zeros((1, *image), np.float32))
        return path


def parse_shape(text: str) -> Given | None:
    """Parse --shape: `3x224x224`, or with a batch before it; or tops with their whole shapes. None for an empty text. Raises Error."""
    if not text:
        return None
    if ":" in text:
        return dict(map(_named, text.split(",")))
    words = text.lower().replace(",", "x").split("x")
    if len(words) not in (3, 4) or not all(word.strip().isdigit() and int(word) for word in words):
        raise Error(f"--shape is '{text}'", fix="channels, height and width of an image: --shape 3x224x224; or --shape data:2x3x224x224,label:2")
    channels, height, width = (int(word) for word in words[-3:])
    return channels, height, width


def _named(text: str) -> tuple[str, Shape]:
    name, _, shape = text.rpartition(":")
    words = shape.lower().split("x")
    if not name or not all(word.strip().isdigit() and int(word) for word in words):
        raise Error(f"--shape has '{text}'", fix="a top and its whole shape: --shape data:2x3x224x224,label:2")
    return name.strip(), tuple(map(int, words))


def _image_of(tops: dict[str, Shape], layer: Any) -> Image | None:
    """Return the shape of an image of the given shape of the first top, None if there is none."""
    shape = tops.get(layer.top[0], ()) if layer.top else ()
    return (shape[-3], shape[-2], shape[-1]) if len(shape) > 2 else None


def _image(layer: Any) -> Image | None:
    """Return the shape of an image that the fields of a data layer say, three channels if they do not say it; None if they do not say the size."""
    transform, files = layer.transform_param, layer.image_data_param
    gray = transform.force_gray or (layer.type == "ImageData" and not files.is_color)
    sizes: Sequence[tuple[int, int]] = (
        (files.new_height, files.new_width),
        *((change.height, change.width) for change in transform.resize_param),
        (transform.crop_h, transform.crop_w),
        (transform.crop_size,) * 2,
        (layer.window_data_param.crop_size,) * 2,
    )
    size = next((size for size in sizes if all(size)), None)
    return (1 if gray else 3, *size) if size else None
