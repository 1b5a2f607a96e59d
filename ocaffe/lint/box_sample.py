"""A sample of the boxes of an AnnotatedData or RoIData layer, for the rules: as the database stores them, and as the net gets them."""
from __future__ import annotations

import contextlib
import itertools
import os
from functools import cached_property
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.boxes import Boxes, read_annotated
from ocaffe.data.databases.database import Database, Reader, key_text
from ocaffe.data.sources.annotated import AnnotatedSource
from ocaffe.data.sources.roidb import open_annotated
from ocaffe.errors import Error
from ocaffe.graph.build import build
from ocaffe.lint.data import param_of
from ocaffe.lint.rules import Job, View

RECORDS = 1000  # that are read at most
IMAGE, LABEL, CORNERS, DIFFICULT = 0, 1, slice(3, 7), 7  # columns of a row of boxes
_MAX_BYTES = 1 << 28  # of records that are read at most
_TOGETHER = 100


class BoxSample:
    """The boxes of the first records. Rows have the columns of AnnotatedData's second top; column IMAGE is the number of the record, or of the draw."""

    def __init__(self, database: Database, source: AnnotatedSource | None) -> None:
        """`source`: of an AnnotatedData layer. RoIData changes no boxes, so nothing is drawn for it."""
        self.database, self._source = database, source
        self.keys: list[str] = []
        self._plans = source.plans() if source is not None else iter(())
        self._drawn = [np.empty((0, 8), np.float32)]
        self.shapes: list[tuple[int, tuple[int, int, int]]] = []  # of the images that were drawn: record; channels, height, width

    @cached_property
    def stored(self) -> np.ndarray:
        """The boxes as they are stored, n x 8. Raises Error for a record that cannot be read."""
        database, rows, keys, size = self.database, [np.empty((0, 8), np.float32)], list[str](), 0
        reader = Reader(database)
        for first in range(0, min(database.entries, RECORDS), _TOGETHER):
            for key, value in reader.read(first, min(_TOGETHER, database.entries - first)):
                try:
                    boxes = Boxes.of(read_annotated(value))
                except Error as problem:
                    with self._source.located() if self._source is not None else contextlib.nullcontext():
                        raise database.fault(problem, len(keys), key) from None
                rows.append(boxes.rows(len(keys)))
                keys.append(key_text(key))
                size += len(value)
            if size > _MAX_BYTES:
                break
        self.keys = keys
        return np.concatenate(rows)

    def drawn(self, count: int) -> np.ndarray:
        """Return the boxes of the first `count` images that the net gets, after all transformations, n x 8. Raise Error for a damaged record."""
        for record, plan in itertools.islice(self._plans, max(0, count - len(self.shapes))):
            self._drawn.append(plan.scene.boxes.rows(len(self.shapes)))
            self.shapes.append((record, plan.parts[0].shape))
        rows = np.concatenate(self._drawn)
        return rows[rows[:, IMAGE] < count]

    @property
    def text(self) -> str:
        """The records of `stored`, for messages."""
        database, read = self.database, len(self.keys)
        return f"{'all' if read == database.entries else f'the first {read:,} of'} {database.entries:,} records of {database.path}"

    def key(self, row: np.ndarray) -> str:
        """Return the key of the record of a row of `stored`."""
        return self.keys[int(row[IMAGE])]


def sample_of(job: Job, view: View, layer: Any) -> BoxSample | None:
    """Return the sample of a layer with boxes. Return None for another layer, one without labels, and for data that is missing or has no boxes."""
    if layer is None or layer.type not in ("AnnotatedData", "RoIData") or len(layer.top) < 2 or not os.path.exists(param_of(layer).source):
        return None
    key = f"{view.file.path} {layer.source_line} {layer.name} {view.phase}"
    if key not in job.samples:
        job.samples[key] = _sample(view, layer)
    sample: BoxSample | None = job.samples[key]
    return sample


def _sample(view: View, layer: Any) -> BoxSample | None:
    if layer.type == "RoIData":
        return BoxSample(open_annotated(param_of(layer).source), None)
    source = _opened(view, layer)
    return BoxSample(source.database, source) if source is not None and source.boxed else None


def _opened(view: View, layer: Any) -> AnnotatedSource | None:
    """Open the data of the layer alone, because the net may have mistakes. Return None if it cannot be opened; the rule `impossible` tells why."""
    net = proto.NetParameter(source_file=view.net.source_file, layer=[layer])
    with contextlib.suppress(Error):
        (node,) = build(net, view.phase).nodes
        source: AnnotatedSource = node.layer.source
        return source
    return None
