"""Plan and time a net without its data: each data layer whose source is missing gets a database of a random image, or an HDF5 file.

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
from ocaffe.data.databases.proposals import write_proposals
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.errors import Error, Place, shape_text
from ocaffe.formats.blob import write_blobproto
from ocaffe.formats.param_str import read_settings, with_settings
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.ir.tensor import Shape
from ocaffe.shown import command
from ocaffe.support.whole import whole

DATABASES = ("Data", "AnnotatedData")
ROWS = "HDF5Data"
REGIONS, REGIONS_MODULE = "RoIData", "roi_data_layer.layer"
SAMPLED = 5  # tops of a RoIData with samples of proposals, or more
FILES = {"ImageData": "image_data_param", "WindowData": "window_data_param"}  # layers of image files: a Data layer has the same tops
PAIRS = {"DenseImageData": "dense_image_data_param", "ImageSegData": "image_data_param", "ImageLabelmapData": "image_data_param"}  # lists with label images
VIDEOS = "VideoData"
RECORDS, BYTES = 1000, 32 << 20  # of a database: few, but the end of the data is not reached in each batch
Image = tuple[int, int, int]  # channels, height, width
Tops = dict[str, Shape]  # by the names of tops


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

    def complete(self, net: Any, shape: Image | Tops | None = None) -> Any:
        """Return the net with a database in the place of each missing source. `shape`: that of the images, if the layers do not say it, or shapes of tops.

        A layer without a database, whose tops all have a shape, becomes an Input layer; so does one with a list of label images. Raises Error.
        """
        net = upgrade_net(net)
        tops = shape if isinstance(shape, dict) else {}
        known = {name for layer in net.layer if not layer.bottom for name in layer.top}
        unknown = tops.keys() - known
        if unknown:
            fact = f"--shape names '{min(unknown)}', which is not a top of a data layer"
            fix = f"name one of {', '.join(sorted(known)[:6])} before the ':'" if known else "remove --shape: no layer needs it"
            raise Error(fact, place=net.source_file or None, fix=fix)
        given = shape if isinstance(shape, tuple) else None
        for layer in net.layer:
            evaluate = layer.detection_evaluate_param
            if evaluate.name_size_file and not os.path.exists(evaluate.name_size_file):
                self._note(f"{evaluate.name_size_file} does not exist: sizes of images are not used")
                evaluate.ClearField("name_size_file")
            own = given or _image_of(layer, tops)
            if layer.type == REGIONS or layer.python_param.module == REGIONS_MODULE:
                self._complete_regions(layer, own)
            elif layer.type == ROWS:
                batches = {each.hdf5_data_param.batch_size for each in net.layer if each.type == ROWS and list(each.top) == list(layer.top)}
                self._complete_rows(layer, tops, net.source_file, batches)
            elif layer.type not in (*DATABASES, *FILES) and layer.top and not layer.bottom and tops.keys() >= set(layer.top):
                self._become_input(layer, [tops[name] for name in layer.top])
            if layer.type == VIDEOS and layer.top:
                self._refuse_missing(layer, net.source_file)
            if layer.type not in (*DATABASES, *FILES, *PAIRS):
                continue
            param = layer.data_param if layer.type in DATABASES else getattr(layer, {**FILES, **PAIRS}[layer.type])
            if os.path.exists(param.source):
                continue
            image = own or image_of(layer)
            if image is not None and layer.type in PAIRS:
                batch, (_, height, width) = max(1, param.batch_size), image
                shapes: list[Shape] = [(batch, *image), (batch, 1, height, width), (batch, 1, 1, 2)]
                self._become_input(layer, shapes[: len(layer.top)])
                continue
            if image is None:
                fact = f"{param.source} does not exist, and the layer does not say the size of its images"
                place, title = Place.of(net.source_file, layer.source_line), f"'{layer.name}' ({layer.type})"
                fix = "give channels, height and width of its images: --shape 3x224x224 for example; or make the data"
                raise Error(fact, place=place, layer=title, fix=fix)
            self._note(f"{param.source} does not exist: images of {shape_text(image)} are assumed")
            self._complete(layer, param, image)
        return net

    def _complete_regions(self, layer: Any, image: Image | None) -> None:
        """Give a layer of images with regions a database, if its own is missing. The images have the given size, or the largest that its settings allow."""
        own = read_settings(layer.python_param.param_str)
        if os.path.exists(str(own.get("source", ""))):
            return
        if image is None and "scales" in own and "max_size" in own:
            image = 3, int(max(own["scales"])), int(own["max_size"])
        if image is None:
            return
        self._note(f"{own.get('source', 'the database')} does not exist: images of {shape_text(image)} are assumed")
        values: dict[str, Any] = {"source": self._database(image, True), "scales": [min(image[1:])], "max_size": max(image[1:])}
        if len(layer.top) >= SAMPLED and not os.path.exists(str(own.get("proposals", ""))):
            values["proposals"] = self._proposals(image)
        layer.python_param.param_str = with_settings(layer.python_param.param_str, values)

    def _complete_rows(self, layer: Any, tops: Tops, file: str, batches: set[int]) -> None:
        """Give an HDF5Data layer a file of rows, if its list of files is missing. The first top has random values, the others are 0.

        The shapes of --shape are those of the tops if all begin with the batch size, or with another one of `batches`: those of the layers of all phases
        with these tops. Else they are those of the rows.
        """
        p = layer.hdf5_data_param
        if os.path.exists(p.source):
            return
        place, title = Place.of(file, layer.source_line), f"'{layer.name}' ({layer.type})"
        missing = [name for name in layer.top if name not in tops]
        if missing:
            shapes = ",".join(f"{name}:{p.batch_size}x{size}" for name, size in zip(layer.top, ("3x32x32", *["1"] * len(layer.top))))
            fact = f"{p.source or 'the source'} does not exist, and --shape does not say the shape of '{missing[0]}'"
            raise Error(fact, place=place, layer=title, fix=f"{command('--shape', shapes)}, with the right sizes; or make the data")
        begins = {tops[name][0] for name in layer.top}
        whole = begins == {p.batch_size} or (len(begins) == 1 and begins <= batches)
        rows = {name: tops[name][1:] if whole else tops[name] for name in layer.top}
        self._note(f"{p.source} does not exist: {', '.join(f'{name} of {shape_text((p.batch_size, *row))}' for name, row in rows.items())} is assumed")
        path = os.path.join(self.folder, "-".join(f"{name}-{'x'.join(map(str, row))}".replace("/", "_") for name, row in rows.items()))
        if not os.path.exists(f"{path}.txt"):
            import h5py  # slow to import, and only this layer uses it

            rng = np.random.default_rng(0)
            with h5py.File(f"{path}.h5", "w") as out:
                for index, (name, row) in enumerate(rows.items()):
                    shape = (max(1, p.batch_size), *row)
                    out[name] = np.zeros(shape, np.float32) if index else rng.standard_normal(shape).astype(np.float32)
            with open(f"{path}.txt", "w") as text:
                text.write(f"{path}.h5\n")
        p.source = f"{path}.txt"

    def _refuse_missing(self, layer: Any, file: str) -> None:
        """Raise Error for a VideoData whose list is missing: the shapes of its tops depend on the fork."""
        p = layer.video_data_param
        if p.source and not os.path.exists(p.source):
            shapes = ",".join(f"{name}:{max(1, p.batch_size)}{size}" for name, size in zip(layer.top, ("x3x16x112x112", *[""] * len(layer.top))))
            fact = f"{p.source} does not exist, and --shape does not say the shapes of {', '.join(map(repr, layer.top))}"
            fix = f"{command('--shape', shapes)}, with the right sizes; or make the data"
            raise Error(fact, place=Place.of(file, layer.source_line), layer=f"'{layer.name}' ({layer.type})", fix=fix)

    def _become_input(self, layer: Any, shapes: Sequence[Shape]) -> None:
        """Make an Input layer of `layer`, with the shapes of its tops."""
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
                for number in range(_records(image)):
                    out.put(b"%08d" % number, content)
        return path

    def _proposals(self, image: Image) -> str:
        """Return the path of a file with the box of the whole image, and its left half, for each record of the database."""
        path = os.path.join(self.folder, f"proposals-{shape_text(image).replace(' ', '')}.npz")
        if not os.path.exists(path):
            _, height, width = image
            boxes = np.array([[0, 0, width - 1, height - 1], [0, 0, width // 2, height - 1]], np.float32)
            count = _records(image)
            write_proposals(path, [boxes] * count, [np.ones(2, np.float32)] * count)
        return path

    def _mean(self, image: Image) -> str:
        path = os.path.join(self.folder, f"mean-{shape_text(image).replace(' ', '')}.binaryproto")
        if not os.path.exists(path):
            write_blobproto(path, np.zeros((1, *image), np.float32))
        return path


def _records(image: Image) -> int:
    """Return the number of records of a database of images."""
    return max(min(RECORDS, BYTES // (image[0] * image[1] * image[2])), 1)


def parse_shape(text: str) -> Image | Tops | None:
    """Parse --shape: `3x224x224`, or with a batch before it, or `data:2x3x8x8,label:2x1` for tops. None for an empty text. Raises Error."""
    if not text:
        return None
    if ":" in text:
        tops: Tops = {}
        for part in text.split(","):
            name, _, sizes = part.rpartition(":")
            numbers = sizes.strip().lower().split("x")
            if not name.strip() or not all(whole(number) > 0 for number in numbers):
                raise Error(f"--shape has '{part}'", fix="TOP:SIZExSIZEx.., for example data:2x3x8x8,label:2x1")
            tops[name.strip()] = tuple(map(int, numbers))
        return tops
    words = text.lower().replace(",", "x").split("x")
    if len(words) not in (3, 4) or not all(whole(word.strip()) > 0 for word in words):
        raise Error(f"--shape is '{text}'", fix="channels, height and width of an image: --shape 3x224x224; or shapes of tops: --shape data:2x3x8x8,label:2x1")
    channels, height, width = (int(word) for word in words[-3:])
    return channels, height, width


def _image_of(layer: Any, tops: Tops) -> Image | None:
    """Return the image that shapes of tops give to the first top of a layer."""
    shape = tops.get(layer.top[0], ()) if layer.top else ()
    return (shape[-3], shape[-2], shape[-1]) if len(shape) in (3, 4) else None


def image_of(layer: Any) -> Image | None:
    """Return the shape of an image that the fields of a data layer say, three channels if they do not say it; None if they do not say the size."""
    transform, files = layer.transform_param, layer.dense_image_data_param if layer.type == "DenseImageData" else layer.image_data_param
    gray = transform.force_gray or (layer.type in ("ImageData", *PAIRS) and not files.is_color)
    sizes: Sequence[tuple[int, int]] = (
        (files.new_height, files.new_width),
        *((change.height, change.width) for change in transform.resize_param),
        (transform.crop_h, transform.crop_w),
        (transform.crop_size,) * 2,
        (layer.window_data_param.crop_size,) * 2,
    )
    size = next((size for size in sizes if all(size)), None)
    return (1 if gray else 3, *size) if size else None
