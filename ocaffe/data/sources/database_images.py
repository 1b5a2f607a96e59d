"""The source of a Data layer: images of a database, raw or encoded. They are staged without conversion to float."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe import proto
from ocaffe.data.changes.transform import Transform
from ocaffe.data.databases.database import Cursor, Database, Reader, Unreadable, fault, key_text, open_database
from ocaffe.data.databases.datum import NO_DATA, SMALL, Alike, DatumReader, not_a_datum
from ocaffe.data.databases.lmdb_file import Arena
from ocaffe.data.decoding.decode import Color
from ocaffe.data.source import Note, check_fields
from ocaffe.data.sources.image_batches import PictureSource
from ocaffe.data.stores.store import Opener, Record, Store
from ocaffe.errors import Error, Place
from ocaffe.formats.wire import Malformed

RESTART: Note = ("data_layer.cpp:73", "Restarting data prefetching from start.")
FIELDS = {
    "source", "batch_size", "backend", "rand_skip", "force_encoded_color", "threads", "parser_threads", "shuffle", "prefetch",
    "cache", "precache",  # NVCaffe's; they do not change results
}  # fmt: skip


class ImageSource(PictureSource):
    """Batches of a database of Datums."""

    def __init__(
        self, param: Any, transform: Transform, labels: bool, *, workers: int | None = None, place: Place | None = None, layer: str | None = None
    ) -> None:
        """`param` is the DataParameter; `labels`: the layer has a top for labels; `workers`: threads that decode images (default: one per core)."""
        self.place, self.layer = place, layer
        with self.located():
            check_fields(param, FIELDS, "data_param", "remove it")
            color = Color.COLOR if param.force_encoded_color and transform.color is Color.UNCHANGED else transform.color
            store = self.open(open_database(param.source, param.backend), bool(param.shuffle))
            workers = workers or param.parser_threads or param.threads
            super().__init__(store, param, transform, labels, color, workers, restart=RESTART, place=place, layer=layer)
        kind = proto.DataParameter.DB.Name(param.backend).lower()
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = ((f"db_{kind}.cpp:35", f"Opened {kind} {param.source}"), *transform.notes, ("data_layer.cpp:45", f"output data size: {size}"))
        if transform.color is not Color.UNCHANGED and not self.encoded:
            self.notes += (("data_transformer.cpp:55", "force_color and force_gray only for encoded datum"),)

    def open(self, database: Database, random: bool) -> DatumStore:
        """Return the store of a database. `random`: it is read in random order."""
        return DatumStore(database, random)


class DatumOpener(Opener):
    """Reads and parses the Datums that a cursor finds."""

    def __init__(self, cursor: Cursor, path: str) -> None:
        self._cursor, self._path, self.parser = cursor, path, DatumReader()

    def read(self, found: Sequence[Any], arena: Arena) -> Sequence[Any]:
        try:
            return self._cursor.values(found, arena)
        except Unreadable as problem:
            raise fault(self._path, problem) from None

    def parse(self, content: Any) -> Record:
        try:
            datum = self.parser(content)
        except Malformed as problem:
            raise not_a_datum(problem, content) from None
        if not datum.encoded:
            return Record(datum.label, None, datum.values, datum.shape)
        if datum.pixels is None:
            raise Error("it is encoded, but has no data", fix=NO_DATA)
        return Record(datum.label, datum.pixels.data)


class DatumStore(Store):
    """The Datums of a database. `random`: they are read in random order."""

    one_size = "make the database with one size (convert_imageset --resize_height --resize_width)"

    def __init__(self, database: Database, random: bool) -> None:
        self.database, self.entries = database, database.entries
        self._reader = Reader(database, random)
        self.opener: DatumOpener = DatumOpener(self._reader.cursor, database.path)
        self.portable = database.portable

    def find(self, records: Sequence[int]) -> Sequence[Any]:
        return self._reader.find(records)

    def sent(self, found: Any) -> Any:
        return found if found.content is None else found._replace(content=None)

    def alike(self, found: Sequence[Any]) -> Alike | None:
        if self._reader.size(found[0]) > SMALL:
            return None
        return self.opener.parser.alike(self.opener.read(found, Arena()))

    def name(self, found: Any) -> str:
        return f"key '{key_text(self._reader.key(found))}'"

    def fault(self, problem: Error, record: int, found: Any) -> Error:
        return self.database.fault(problem, record, self._reader.key(found))
