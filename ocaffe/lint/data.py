"""Facts about data for the rules: number of samples, and labels. The results are None or empty if the data is missing."""
from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.databases.datum import DatumReader
from ocaffe.data.decoding.decode import Color, open_image, open_pillow, planes, read_file
from ocaffe.data.sources.dense import PairFiles
from ocaffe.data.sources.roidb import open_annotated
from ocaffe.data.stores.opening import open_files
from ocaffe.errors import Error
from ocaffe.formats.hdf5_files import Hdf5Files
from ocaffe.formats.param_str import read_settings
from ocaffe.formats.wire import Malformed
from ocaffe.layers.base import param_field
from ocaffe.layers.roi_data import SAMPLE
from ocaffe.support.files import text_lines
from ocaffe.tools.py_faster_rcnn import SAMPLED

PARAMS = {
    "Data": "data_param", "AnnotatedData": "data_param", "ImageData": "image_data_param", "HDF5Data": "hdf5_data_param", "RoIData": "python_param",
    "DenseImageData": "dense_image_data_param",
}  # fmt: skip
MAX_LABELS = 20_000  # records that are read at most
MAX_MASKS = 50  # that are read at most
_MAX_BYTES = 1 << 28  # of records that are read at most
_TOGETHER = 100


def param_of(layer: Any) -> Any:
    """Return the settings with source and batch_size. Return None if the layer is not a data layer with such settings. Raise Error for a wrong param_str."""
    if layer.type == "RoIData":
        own = settings_of(layer)
        images = own.get("ims_per_batch", SAMPLE["ims_per_batch"]) if len(layer.top) == SAMPLED else 1
        return SimpleNamespace(source=own.get("source", ""), batch_size=images, shuffle=True)
    return getattr(layer, PARAMS[layer.type]) if layer.type in PARAMS else None


def settings_of(layer: Any) -> dict[str, Any]:
    """Return the settings in the param_str of a layer of Faster R-CNN. Raise Error."""
    return read_settings(layer.python_param.param_str)


def samples(layer: Any) -> int | None:
    """Return the number of samples of a data layer, or None if it cannot be determined."""
    with contextlib.suppress(Error, OSError, KeyError, IndexError):
        param = param_of(layer)
        if layer.type == "RoIData":
            return open_annotated(param.source).entries
        if layer.type in ("Data", "AnnotatedData"):
            return open_database(param.source, param.backend).entries
        if layer.type == "ImageData":
            return open_files(param).entries
        if layer.type == "DenseImageData":
            return PairFiles(param.source, param.root_folder).entries
        if layer.type == "HDF5Data":
            return _hdf5_rows(param.source, layer.top[0])
    return None


def source_of(layer: Any) -> str | None:
    """Return the file or folder that a data layer reads, None if it reads none."""
    if layer.type in PARAMS:
        return str(param_of(layer).source)
    name = param_field(layer.type)
    own = getattr(layer, name) if name else None
    return str(own.source) if own is not None and "source" in own.DESCRIPTOR.fields_by_name else None


def absent(layer: Any) -> bool:
    """Return whether the source of a data layer does not exist. A pattern of tar shards exists if it has a sample."""
    source = source_of(layer)
    return bool(source) and not os.path.exists(source or "") and samples(layer) is None


def labels(layer: Any) -> list[int]:
    """Return the labels of the first samples of a Data or ImageData layer, in order."""
    param = param_of(layer)
    with contextlib.suppress(Error, OSError, Malformed, ValueError):
        if layer.type == "ImageData":
            found = open_files(param).labels
            return [int(label) for label in found[:MAX_LABELS, 0]] if found.shape[1] == 1 else []
        if layer.type == "Data" and param.backend == proto.DataParameter.LMDB:
            database = open_database(param.source, param.backend)
            parse = DatumReader()
            reader, numbers, size = Reader(database), list[int](), 0
            for first in range(0, min(database.entries, MAX_LABELS), _TOGETHER):
                for _, value in reader.read(first, min(_TOGETHER, database.entries - first)):
                    label = parse(value).label
                    numbers += [] if label is None else [label]
                    size += len(value)
                if size > _MAX_BYTES:
                    break
            return numbers
    return []


def mask_labels(layer: Any) -> dict[int, str]:
    """Return the labels in the first masks of a DenseImageData layer, each with a file that has it."""
    found: dict[int, str] = {}
    with contextlib.suppress(Error, OSError):
        files = PairFiles(layer.dense_image_data_param.source, layer.dense_image_data_param.root_folder)
        for _, mask in files.find(range(min(files.entries, MAX_MASKS))):
            for label in np.unique(planes(open_image(read_file(mask)), Color.GRAY)).tolist():
                found.setdefault(label, mask)
    return found


def has_palette(mask: str) -> bool:
    """Return whether an image file has a palette. DenseImageData reads the gray levels of its colors, not the indices."""
    return bool(open_pillow(read_file(mask)).mode == "P")


def _hdf5_rows(source: str, name: str) -> int:
    rows = 0
    with Hdf5Files() as files:
        for path in "".join(text_lines(source)).split():
            rows += files.members(path)[name].shape[0]
    return rows
