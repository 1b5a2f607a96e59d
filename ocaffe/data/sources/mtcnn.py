"""The source of an MTCNNData layer: images with a label, a box, and optionally the points of a face."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.data.changes.transform import Layout, Transform
from ocaffe.data.databases.database import Database
from ocaffe.data.databases.datum import Alike
from ocaffe.data.sources.database_images import DatumOpener, DatumStore, ImageSource
from ocaffe.data.stores.store import Record
from ocaffe.errors import Error, Place
from ocaffe.ir.tensor import Shape
from ocaffe.support.kinds import kind_of

BOX = ("xmin", "ymin", "xmax", "ymax")
POINTS = 10  # x and y of five points


class MtcnnOpener(DatumOpener):
    """Parses MTCNNDatums. The labels of a record are its label, its box, and with `points` the points."""

    points = False

    def parse(self, content: Any) -> Record:
        try:
            record = proto.MTCNNDatum.FromString(bytes(content))
        except DecodeError as problem:
            kind = kind_of(bytes(content[:512]))
            fix = "write records that are MTCNNDatum messages; a database of Datum messages is for a layer of type: \"Data\""
            raise Error(f"it is {kind.name}, not an MTCNNDatum" if kind is not None else f"it is not an MTCNNDatum: {problem}", fix=fix) from None
        if not record.HasField("datum"):
            raise Error("the MTCNNDatum has no datum", fix="set datum in each record to its image, as the tools of the MTCNN forks do")
        points = list(record.pts) if self.points else []
        if self.points and len(points) != POINTS:
            fix = f"write {POINTS} pts to each record, or remove the fourth top"
            raise Error(f"it has {len(points)} pts, there must be {POINTS}: x and y of five points", fix=fix)
        image = super().parse(record.datum.SerializeToString())
        return image._replace(label=[float(image.label or 0), *(getattr(record.rois, side) for side in BOX), *points])


class MtcnnStore(DatumStore):
    """The MTCNNDatums of a database."""

    def __init__(self, database: Database, random: bool, points: bool) -> None:
        super().__init__(database, random)
        self.opener = MtcnnOpener(self._reader.cursor, database.path)
        self.opener.points = points

    def alike(self, found: Sequence[Any]) -> Alike | None:
        return None


class MtcnnSource(ImageSource):
    """Batches of a database of MTCNNDatums. The tops are images, labels, boxes, points; in a buffer an image has 5 labels, or 15 with points."""

    def __init__(self, param: Any, transform: Transform, tops: int, *, place: Place | None = None, layer: str | None = None) -> None:
        """`param` is the DataParameter. `tops`: the number of tops of the layer; the second one has the labels, the fourth one the points."""
        self.count, self.points = tops, tops > 3
        super().__init__(param, transform, tops > 1, place=place, layer=layer)

    def _tops(self, layout: Layout) -> list[Shape]:
        data = (self.batch, *self.transform.output(layout.channels, layout.height, layout.width))
        tops: list[Shape] = [data, (self.batch,), (self.batch, len(BOX)), (self.batch, POINTS)]
        return tops[: self.count]

    def open(self, database: Database, random: bool) -> DatumStore:
        return MtcnnStore(database, random, self.points)
