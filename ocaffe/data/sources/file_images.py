"""The source of an ImageData layer: image files with their labels, from a list, a folder, a table or tar shards."""
from __future__ import annotations

from typing import Any

from ocaffe.data.changes.resample import check_pixels
from ocaffe.data.changes.transform import Transform
from ocaffe.data.decoding.decode import Color
from ocaffe.data.source import check_fields
from ocaffe.data.sources.image_batches import PictureSource
from ocaffe.data.stores.folder import FolderFiles
from ocaffe.data.stores.opening import open_files
from ocaffe.errors import Error, Place

_FIELDS = {
    "source", "batch_size", "rand_skip", "shuffle", "new_height", "new_width", "is_color", "root_folder", "label_count",
    "threads", "cache", "precache",  # NVCaffe's; they do not change results
    "scale", "mean_file", "crop_size", "mirror",  # without effect, as in Caffe; the net upgrade warns about them
}  # fmt: skip
_SORTED = "The images are in the order of their classes, so that a batch has few classes: set shuffle: true"


def new_size(param: Any) -> tuple[int, int] | None:
    """Return (new_height, new_width), or None if both are 0. Raise Error if only one is set, or for too many pixels."""
    height, width = int(param.new_height), int(param.new_width)
    if bool(height) != bool(width):
        raise Error(f"new_height is {height} and new_width {width}", fix="set both new_height and new_width, or remove both")
    check_pixels("images of new_height and new_width", height, width, "set new_height and new_width to about the size of the images, or remove both")
    return (height, width) if height else None


class ListSource(PictureSource):
    """Batches of image files. Files of several sizes need `new_height` and `new_width`, a crop, or batches of one."""

    def __init__(
        self, param: Any, transform: Transform, labels: bool, *, workers: int | None = None, place: Place | None = None, layer: str | None = None
    ) -> None:
        """`param` is the ImageDataParameter; `labels`: the layer has a top for labels; `workers`: threads that read and decode (default: one per core)."""
        self.place, self.layer = place, layer
        with self.located():
            check_fields(param, _FIELDS, "image_data_param", "remove it")
            store = open_files(param)
            workers = workers or (int(param.threads) if param.HasField("threads") else None)
            color = Color.COLOR if param.is_color else Color.GRAY
            super().__init__(store, param, transform, labels, color, workers, resized=new_size(param), place=place, layer=layer)
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = (
            *store.notes,
            *((("image_data_layer.cpp:53", "Shuffling data"),) if param.shuffle else ()),
            *((("image_data_layer.cpp:53", _SORTED),) if transform.train and not param.shuffle and isinstance(store, FolderFiles) else ()),
            ("image_data_layer.cpp:63", f"A total of {store.entries} images."),
            *transform.notes,
            ("image_data_layer.cpp:90", f"output data size: {size}"),
        )
