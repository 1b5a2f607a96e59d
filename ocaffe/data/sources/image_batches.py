"""The source of Data and ImageData: batches of images of one size. If the images are cropped, only the crop is staged.

A worker reads, decodes and crops whole records, so that their bytes stay in its cache.
"""
from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.bad_records import BadRecords
from ocaffe.data.changes.transform import HEIGHT, MEAN_X, MEAN_Y, MIRROR, WIDTH, Layout, Transform
from ocaffe.data.databases.datum import Alike
from ocaffe.data.decoding.decode import Color
from ocaffe.data.source import BatchInfo, Note
from ocaffe.data.stagers.crew import Chunk, Large
from ocaffe.data.stagers.staged import StagedSource
from ocaffe.data.stagers.stager import Frame, Picture, Stager, Unfit
from ocaffe.data.stores.store import Store
from ocaffe.errors import Error, Place
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.tensor import Shape

_SMALL = 1 << 15  # bytes of an image; smaller raw images are copied faster than they are sent to a process


class Batch(NamedTuple):
    """A batch before it is filled. `name` is that of its first image, for messages."""

    records: list[int]
    found: list[Any]
    alike: Alike | None
    frame: Frame
    name: str
    info: BatchInfo

    @property
    def space(self) -> int | None:
        return None if self.alike is not None else self.frame.layout.nbytes


class PictureSource(StagedSource):
    """Batches of the images of a store. Several threads may fill batches at the same time."""

    _stager: Stager

    def __init__(
        self,
        store: Store,
        param: Any,
        transform: Transform,
        labels: bool,
        color: Color,
        workers: int | None,
        *,
        resized: tuple[int, int] | None = None,
        restart: Note | None = None,
        place: Place | None = None,
        layer: str | None = None,
    ) -> None:
        """`param` has batch_size, shuffle and rand_skip. `labels`: the layer has a top for labels. `workers`: their number (default: one per core).

        `resized`: height and width to which image files are resized. `restart`: a log line for the batch with the last record.
        """
        super().__init__(store, param, workers, place, layer)
        if transform.soft_classes and not labels:
            raise Error("mixup and cutmix change the labels, and the layer has no top for labels", fix="add the second top, or remove mixup and cutmix")
        self.transform, self.labels, self.color, self.restart = transform, labels, color, restart
        self._stager = Stager(store.opener, transform, color, resized, labels)
        self._bad = BadRecords(transform.skipped, store.entries)
        first, _ = self._header(0)
        self.encoded, self.labelled = first.file is not None, first.record.label is not None
        dtype = first.record.values.dtype if first.record.values is not None else np.dtype(np.uint8)
        self._slow = first.record.values is None or first.record.values.nbytes > _SMALL
        count = 1 if np.ndim(first.record.label) == 0 else len(first.record.label)
        self._first = transform.layout(self.batch, first.shape, dtype, self.encoded, count)
        if transform.soft_classes:
            self.limits[1] = [LabelRange(f"{layer} (label_classes)", transform.soft_classes)]
        self._one_shape = transform.fixed or (resized is not None and color is not Color.UNCHANGED)  # of all batches, whatever their images are

    # -- shapes ------------------------------------------------------------------------------------------------------

    def shapes(self) -> list[Shape]:
        return self._tops(self._first)

    @property
    def nbytes(self) -> int:
        return self._first.nbytes

    @property
    def space(self) -> int:
        return self._first.nbytes

    @property
    def worth_processes(self) -> bool:
        return self._slow

    def layout(self, top: Shape) -> Layout:
        """Return the layout of a buffer for a data top of shape `top`."""
        return self._first if self.transform.fixed else replace(self._first, channels=top[1], height=top[2], width=top[3])

    def _tops(self, layout: Layout) -> list[Shape]:
        data = (self.batch, *self.transform.output(layout.channels, layout.height, layout.width))
        each = self.transform.soft_classes or layout.label_count
        label = (self.batch,) if each == 1 else (self.batch, each)
        return [data, label] if self.labels else [data]

    # -- records -----------------------------------------------------------------------------------------------------

    def _instead(self, record: int, found: Any, problem: Error, name: str = "") -> int:
        """Return the record that takes the place of a bad one. Raise Error if none may. `name`: of the first image of the batch."""
        fault = self.store.fault(problem, record, found)
        if isinstance(problem, Unfit):
            if not problem.fix:
                fault.fact += f" ({name})"
                fault.fix = f"set crop_size, {self.store.one_size}, or batch_size: 1"
            raise fault
        self._bad.add(record, fault)
        return self._bad.good(record)

    def _header(self, record: int) -> tuple[Picture, str]:
        """Return the header and the name of a record, or of the next one that is not bad."""
        while True:
            (found,) = self._find([record])
            try:
                return self._stager.picture(self._stager.read([found])[0]), self.store.name(found)
            except Error as problem:
                record = self._instead(record, found, problem)

    # -- batches -----------------------------------------------------------------------------------------------------

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        with self.located():
            batch, crew = self._taken(index)
            layout = batch.frame.layout
            if layout.nbytes > buffer.nbytes:
                return batch.info
            staged = crew.staged(index, buffer, layout.nbytes) if crew is not None and batch.alike is None else contextlib.nullcontext((buffer, None))
            with staged as (memory, results):
                if batch.alike is not None:
                    self._cut(batch, batch.alike, memory)
                elif results is not None:
                    self._write(batch, [], memory, [problem for result in results for problem in result.problems])
                else:
                    self._write(batch, self._chunks(batch), memory, [])
                self._check_labels(batch, memory)
            return batch.info if memory is buffer else replace(batch.info, buffer=memory)

    def _check_labels(self, batch: Batch, buffer: np.ndarray) -> None:
        """Raise Error with the record's place at a label that a reader does not accept."""
        layout = batch.frame.layout
        wrong = self.wrong_label(1, layout.labels(buffer))
        if wrong is not None:
            n = wrong[0] // layout.label_count
            raise self.store.fault(wrong[1], batch.records[n], batch.found[n])

    def _plan(self, index: int) -> Batch:
        """Return the batch number `index` with the places of its records."""
        positions = self.share.positions(index, self.batch)
        with self._finding:
            records = [self._bad.good(record) for record in self.order.records(self.key, positions)]
            found = list(self.store.find(records))
        alike = self._alike(found)
        layout, shape, name = self._first, None, ""
        if not (self._one_shape or alike):
            picture, name = self._header(records[0])
            shape = picture.shape
            layout = replace(layout, channels=shape[0], height=shape[1], width=shape[2])
        notes = (self.restart,) if self.restart and self.order.entries - 1 in records else ()
        return Batch(records, found, alike, Frame(self.key, positions, layout, shape), name, BatchInfo(tuple(self._tops(layout)), layout.nbytes, notes))

    def _chunks(self, batch: Batch) -> list[Chunk]:
        size = max(1, -(-self.batch // (2 * self._threads.count)))
        numbers = [tuple(range(at, min(at + size, self.batch))) for at in range(0, self.batch, size)]
        return [Chunk(images, tuple(batch.found[images[0] : images[-1] + 1])) for images in numbers]

    def _write(self, batch: Batch, chunks: list[Chunk], buffer: np.ndarray, problems: list[tuple[int, Error]]) -> None:
        """Write chunks of a batch. Other records take the places of bad ones: those in `problems` and those that are found."""
        while chunks or problems:
            for result in self._threads.run(partial(self._stager.write, batch.frame, chunk, buffer) for chunk in chunks):
                self.effort.add(result.seconds)
                problems += result.problems
            chunks = []
            for n, problem in sorted(problems, key=lambda pair: pair[0]):
                if not isinstance(problem, Large):
                    batch.records[n] = self._instead(batch.records[n], batch.found[n], problem, batch.name)
                    (batch.found[n],) = self._find([batch.records[n]])
                chunks.append(Chunk((n,), (batch.found[n],)))
            problems = []

    def _alike(self, found: Sequence[Any]) -> Alike | None:
        """Return the whole batch at once if its records are small raw images like the first record, else None."""
        if self.encoded or self._first.dtype != np.uint8 or not self.transform.crops_alike:
            return None
        alike = self.store.alike(found)
        if alike is None or alike.shape != self._stager.checked or (self.labels and None in alike.labels):
            return None
        return alike

    def _cut(self, batch: Batch, alike: Alike, buffer: np.ndarray) -> None:
        """Write the crops of images of one shape, their table and their labels."""
        layout, count = batch.frame.layout, len(alike.pixels)
        table, samples = layout.table(buffer), self.transform.samples(self.key, batch.frame.positions)
        images = alike.pixels.reshape(count, *alike.shape)
        crops = layout.pixels(buffer).reshape(count, layout.channels, layout.height, layout.width)
        corners = samples.corners(np.broadcast_to(alike.shape[1:], (count, 2)))
        if crops.shape == images.shape:
            crops[...] = images
        else:
            for crop, image, (y, x) in zip(crops, images, corners.tolist()):
                crop[...] = image[:, y : y + layout.height, x : x + layout.width]
        table[...] = 0
        table[:, HEIGHT : WIDTH + 1] = layout.height, layout.width
        table[:, MEAN_Y : MEAN_X + 1] = corners
        table[:, MIRROR] = samples.mirror
        layout.labels(buffer)[...] = [label or 0 for label in alike.labels]
