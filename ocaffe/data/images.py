"""The source of a Data layer: images of a database, raw or encoded. They are staged without conversion to float."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.database import Item, Reader, key_text, open_database
from ocaffe.data.datum import Alike, DatumReader
from ocaffe.data.decode import Color, image_shape, open_image
from ocaffe.data.order import Order
from ocaffe.data.pictures import Picture, PictureSource
from ocaffe.data.source import Note, check_fields
from ocaffe.data.transform import Transform
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place
from ocaffe.model.wire import Malformed

RESTART: Note = ("data_layer.cpp:73", "Restarting data prefetching from start.")
FIELDS = {
    "source", "batch_size", "backend", "rand_skip", "force_encoded_color", "threads", "parser_threads", "shuffle", "prefetch",
    "cache", "precache",  # NVCaffe's; they do not change results
}  # fmt: skip


class ImageSource(PictureSource):
    """Batches of a database of Datums."""

    restart = RESTART
    one_size = "make the database with one size (convert_imageset --resize_height --resize_width)"

    def __init__(
        self, param: Any, transform: Transform, labels: bool, *, workers: int | None = None, place: Place | None = None, layer: str | None = None
    ) -> None:
        """`param` is the DataParameter; `labels`: the layer has a top for labels; `workers`: threads that decode images (default: one per core)."""
        self.place, self.layer = place, layer
        with self.located():
            check_fields(param, FIELDS, "data_param", "remove it")
            color = Color.COLOR if param.force_encoded_color and transform.color is Color.UNCHANGED else transform.color
            self.database = open_database(param.source, param.backend)
            order = Order(self.database.entries, bool(param.shuffle), int(param.rand_skip))
            self.what = f"database {self.database.path}"
            self._parse = DatumReader()
            super().__init__(int(param.batch_size), order, transform, labels, color, workers or param.parser_threads or param.threads, place, layer)
            self.records = Records(self.database, order.shuffle, self.workers)
            self._look()
        kind = proto.DataParameter.DB.Name(param.backend).lower()
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = ((f"db_{kind}.cpp:35", f"Opened {kind} {param.source}"), *transform.notes, ("data_layer.cpp:45", f"output data size: {size}"))
        if transform.color is not Color.UNCHANGED and not self._encoded:
            self.notes += (("data_transformer.cpp:55", "force_color and force_gray only for encoded datum"),)

    def _look(self) -> None:
        self._encoded = self._pictures([0])[0].file is not None
        super()._look()

    def _open(self, records: list[int]) -> list[Picture] | Alike:
        items = self.records.read(records)
        return self._alike(items) or [self._picture(record, item) for record, item in zip(records, items)]

    def _alike(self, items: list[Item]) -> Alike | None:
        """Return the whole batch at once if its records are small raw images like the first record, else None."""
        if not hasattr(self, "_first") or self._first.dtype != np.uint8:
            return None
        alike = self._parse.alike([value for _, value in items])
        return alike if alike and alike.shape == self._checked and not (self.labels and None in alike.labels) else None

    def _picture(self, record: int, item: Item) -> Picture:
        key, value = item
        name = f"key '{key_text(key)}'"
        try:
            datum = self._parse(value)
            if datum.encoded:
                if datum.pixels is None:
                    raise Error("it is encoded, but has no data")
                file = open_image(datum.pixels, self.transform.max_pixels)
                picture = Picture(record, name, datum.label, image_shape(file, self.color), file, None)
            else:
                picture = Picture(record, name, datum.label, datum.shape, None, datum.values)
            self._check(picture.shape)
            if self.labels and datum.label is None:
                raise Error("it has no label, and the layer has a top for labels", fix="remove the second top, or make the database with labels")
        except Malformed as problem:
            raise self.records.fault(Error(f"it is not a Datum: {problem.fact} at byte {problem.at}"), record, name) from None
        except Error as problem:
            raise self._fault(problem, record, name) from None
        return picture

    def _name(self, record: int) -> str:
        return f"key '{key_text(self.records.read([record])[0][0])}'"

    def _fault(self, problem: Error, record: int, name: str) -> Error:
        return self.records.fault(problem, record, name)


class Records:
    """Reads the records of a database by number. `random`: the numbers are in random order."""

    def __init__(self, database: Any, random: bool, workers: Workers) -> None:
        self.database = database
        self.read = Reader(database, random, workers).records

    def fault(self, problem: Error, record: int, name: str) -> Error:
        """Return `problem` with the place of the record called `name`."""
        return Error(f"database {self.database.path}, record {record} ({name}): {problem.fact}", fix=problem.fix or "make the database again, or copy it again")
