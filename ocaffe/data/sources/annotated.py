"""The source of an AnnotatedData layer (SSD): images with boxes, distorted, expanded, sampled, resized, cropped and mirrored together."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.joins import Join, Joins
from ocaffe.data.changes.resizing import Resizing
from ocaffe.data.changes.transform import HEIGHT, MEAN_X, MEAN_Y, MIRROR, WIDTH, Layout, Transform
from ocaffe.data.databases.database import open_database
from ocaffe.data.decoding.decode import Color
from ocaffe.data.effort import Laps
from ocaffe.data.source import BatchInfo, aligned, check_fields
from ocaffe.data.sources.database_images import FIELDS, RESTART, DatumStore
from ocaffe.data.sources.floats import FloatLayout
from ocaffe.data.stagers.annotated_stager import AnnotatedStager, Frame, Plan, Scene, Whole
from ocaffe.data.stagers.staged import StagedSource
from ocaffe.errors import Error, Place, shape_text
from ocaffe.ir.tensor import Shape

TRANSFORM_FIELDS = frozenset({"resize_param", "noise_param", "distort_param", "expand_param", "emit_constraint", "mosaic", "mixup"})
FIELDS_OF_BOXES = {"batch_sampler", "label_map_file", "anno_type", "yolo_data_type", "yolo_data_jitter", "train_diffcult"}
_BOX = 8  # columns of the label top
_LIST = (300, 5)  # of an image in the label top with yolo_data_type 1: boxes, and columns class, centre x, centre y, width, height
_NO_BOX = np.full((1, _BOX), -1, np.float32)
_EXACT = 16  # rows of boxes
_USUAL = 32  # boxes of an image for which a batch buffer has room


def _rows_for(boxes: int) -> int:
    """Return the rows of the label top for a number of boxes: at least 1, and above 16 one of 16, 24, 32, 48, 64, 96 and so on.

    Each number of rows compiles the net again, and the boxes of large batches would take any number.
    """
    if boxes <= _EXACT:
        return max(boxes, 1)
    power = 1 << (boxes - 1).bit_length()
    return power * 3 // 4 if boxes <= power * 3 // 4 else power


class Batch(NamedTuple):
    """A batch before it is filled."""

    records: list[tuple[int, ...]]  # of each image: its own, and those that are joined to it
    found: list[tuple[Any, ...]]
    frame: Frame
    space: int  # bytes of its images in the usual size


class AnnotatedSource(StagedSource):
    """Batches of a database of AnnotatedDatums. Several threads may fill batches at the same time."""

    _stager: AnnotatedStager

    def __init__(
        self,
        param: Any,
        annotated: Any,
        transform_param: Any,
        transform: Transform,
        labels: bool,
        *,
        workers: int | None = None,
        place: Place | None = None,
        layer: str | None = None,
    ) -> None:
        """`param` is the DataParameter, `annotated` the AnnotatedDataParameter.

        `labels`: the layer has a top for labels. `workers`: number of threads that decode images.
        """
        self.place, self.layer = place, layer
        with self.located():
            check_fields(param, FIELDS, "data_param", "remove it")
            check_fields(annotated, FIELDS_OF_BOXES, "annotated_data_param", "remove it")
            transform.refuse_skipping()
            self.database = open_database(param.source, param.backend)
            joins = Joins.read(transform_param, transform.train)
            store = DatumStore(self.database, bool(param.shuffle) or joins is not None)
            super().__init__(store, param, workers or param.parser_threads or param.threads, place, layer)
            self.transform, self.labels, self.difficult = transform, labels, bool(annotated.train_diffcult)
            color = Color.COLOR if param.force_encoded_color and transform.color is Color.UNCHANGED else transform.color
            self._stager = AnnotatedStager(store.opener, transform, annotated, transform_param, self.batch, color, labels)
            first, *others = self._first_plans()
            self._first, self._rows = self._layout(first.scene), max(len(first.boxes), 1)
            self._largest = max((self._layout(plan.scene) for plan in (first, *others)), key=lambda layout: layout.nbytes)
        kind = proto.DataParameter.DB.Name(param.backend).lower()
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = (
            (f"db_{kind}.cpp:35", f"Opened {kind} {param.source}"),
            *transform.notes,
            ("annotated_data_layer.cpp:62", f"output data size: {size}"),
        )

    def _first_plans(self) -> list[Plan]:
        """Return plans of the first record: one for each size of the images."""
        (found,) = self._find([0])
        try:
            (content,) = self._stager.read([found])
            self._stager.boxed |= self._stager.parse(content).HasField("type")
            sizes: list[Resizing | None] = [*self._stager.resizings.all] or [None]
            return [self._stager.planner(Frame(self.key, range(1)), each).part(0, 0, content) for each in sizes]
        except Error as problem:
            raise self.store.fault(problem, 0, found) from None

    @property
    def boxed(self) -> bool:
        """Whether the second top has boxes."""
        return self._stager.boxed

    # -- shapes ------------------------------------------------------------------------------------------------------

    def _layout(self, scene: Scene) -> Layout:
        return Layout(self.batch, *scene.shape, np.dtype(np.uint8))

    def shapes(self) -> list[Shape]:
        return self._tops(self._first, self._rows)

    def _tops(self, layout: Layout, rows: int) -> list[Shape]:
        label: Shape = (self.batch, 1, 1, 1)
        if self.boxed:
            label = (self.batch, 1, *_LIST) if self._stager.lists else (1, 1, rows, _BOX)
        return [(self.batch, layout.channels, layout.height, layout.width), label][: 1 + self.labels]

    @property
    def nbytes(self) -> int:
        return self._largest.nbytes + aligned(4 * self.batch * (math.prod(_LIST) if self._stager.lists else _BOX * _USUAL))

    @property
    def space(self) -> int:
        return self._largest.table_at

    def layout(self, tops: list[Shape]) -> tuple[Layout, FloatLayout | None]:
        """Return the layouts of a buffer for tops of these shapes: of the images with their labels, and of the rows of boxes if there are any."""
        layout = replace(self._first, channels=tops[0][1], height=tops[0][2], width=tops[0][3])
        return layout, FloatLayout([tops[1]], layout.nbytes) if self.boxed and self.labels else None

    # -- batches -----------------------------------------------------------------------------------------------------

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        with self.located():
            batch, crew = self._taken(index)
            results = crew.results(index) if crew is not None else None
            if crew is not None and results is not None:
                info = self._write(batch, [scene for result in results for scene in result.scenes], buffer)
                if info.nbytes > buffer.nbytes or crew.copy(index, buffer, self._layout(results[0].scenes[0]).table_at):
                    return info
            plans = self._plans(batch)
            info = self._write(batch, [plan.scene for plan in plans], buffer)
            if info.nbytes <= buffer.nbytes:
                rooms = self._layout(plans[0].scene).pixels(buffer)
                self._threads.run(partial(self._stage, batch, n, plan, room) for n, (plan, room) in enumerate(zip(plans, rooms)))
            return info

    def _plan(self, index: int) -> Batch:
        positions = self.share.positions(index, self.batch)
        with self._finding:
            records = self.order.records(self.key, positions)
        return self._found(records, positions)

    def _found(self, records: Sequence[int], positions: range) -> Batch:
        """Return the batch of these records and of those that are joined to them."""
        stager, joins = self._stager, tuple[Join, ...]()
        if stager.joins is not None:
            joins = tuple(stager.joins.draw(self.key, position, self.store.entries) for position in positions)
        groups = [(record, *(joins[n].others if joins else ())) for n, record in enumerate(records)]
        found = iter(self._find([record for own in groups for record in own]))
        return Batch(groups, [tuple(itertools.islice(found, len(own))) for own in groups], Frame(self.key, positions, joins), self.space)

    def _sender(self) -> Callable[[Any], Any]:
        sent = self.store.sent
        return lambda found: tuple(map(sent, found))

    def _plans(self, batch: Batch) -> list[Whole]:
        """Return the plans of all images. Raise Error with the record's place."""
        planner, plans = self._stager.planner(batch.frame), []
        for n, contents in enumerate(self._stager.contents(batch.found)):
            parts: list[Plan] = []
            try:
                for content in contents:
                    parts.append(planner.part(n, len(parts), content))
                plans.append(planner.whole(n, parts))
            except Error as problem:
                raise self._fault(problem, batch, n, len(parts) % len(contents)) from None
        return plans

    def plans(self) -> Iterator[tuple[int, Whole]]:
        """Yield records and plans as for batches, but in the order of the database, without end. Raise Error for a damaged record."""
        for first in itertools.count(step=self.batch):
            positions = range(first, first + self.batch)
            records = [position % self.store.entries for position in positions]
            with self.located():
                plans = self._plans(self._found(records, positions))
            yield from zip(records, plans)

    def _stage(self, batch: Batch, n: int, plan: Whole, room: np.ndarray) -> None:
        laps, images = Laps(), list[np.ndarray]()
        try:
            for part in plan.parts:
                images.append(self._stager.image(part))
        except Error as problem:
            raise self._fault(problem, batch, n, len(images)) from None
        self._stager.stage(plan, images, room, laps)
        self.effort.add(laps.seconds)

    def _fault(self, problem: Error, batch: Batch, n: int, part: int = 0) -> Error:
        return self.store.fault(problem, batch.records[n][part], batch.found[n][part])

    def _write(self, batch: Batch, scenes: list[Scene], buffer: np.ndarray) -> BatchInfo:
        """Write all but the pixels to the buffer, if it is large enough. Raise Error if the images or the labels do not fit."""
        self._check_alike(batch, scenes)
        layout = self._layout(scenes[0])
        boxes = np.concatenate([scene.boxes.rows(n) for n, scene in enumerate(scenes)])
        listed = self._listed(batch, scenes) if self._stager.lists and self.boxed else None
        tops = self._tops(layout, _rows_for(len(boxes)))
        rows = self.layout(tops)[1]
        notes = (RESTART,) if any(own[0] == self.order.entries - 1 for own in batch.records) else ()
        info = BatchInfo(tuple(tops), rows.nbytes if rows else layout.nbytes, notes)
        if info.nbytes > buffer.nbytes:
            return info
        table = layout.table(buffer)
        table[...] = 0
        table[:, HEIGHT : WIDTH + 1] = layout.height, layout.width
        table[:, MEAN_Y : MEAN_X + 1] = [scene.corner for scene in scenes]
        table[:, MIRROR] = [scene.mirror for scene in scenes]
        layout.labels(buffer)[:] = [scene.label for scene in scenes]
        if rows is not None:
            (view,) = rows.views(buffer)
            if listed is None:
                view[0, 0, : len(boxes)], view[0, 0, len(boxes) :] = boxes, _NO_BOX
            else:
                view[:, 0] = listed
        if self.boxed:
            self._check_labels(batch, boxes[:, 1], boxes[:, 0])
        else:
            self._check_labels(batch, layout.labels(buffer), np.arange(self.batch))
        return info

    def _listed(self, batch: Batch, scenes: list[Scene]) -> np.ndarray:
        """Return the boxes of each image: class from 0 on, centre, width and height, then zeros."""
        result = np.zeros((len(scenes), *_LIST), np.float32)
        for n, (own, scene) in enumerate(zip(result, scenes)):
            about, corners = scene.boxes.about, scene.boxes.corners
            chosen = np.ones(len(about), bool) if self.difficult else about[:, 2] == 0
            if chosen.sum() > len(own):
                fact = f"it has {chosen.sum()} boxes, and a list of yolo_data_type: 1 has at most {len(own)}"
                problem = Error(fact, fix=f"keep at most {len(own)} boxes in this record of the database, as the losses of YOLO read no more")
                raise self._fault(problem, batch, n)
            low, high = corners[chosen, :2], corners[chosen, 2:]
            own[: len(low)] = np.concatenate([about[chosen, :1] - 1, (low + high) / 2, high - low], 1)
        return result

    def _check_labels(self, batch: Batch, labels: np.ndarray, owners: np.ndarray) -> None:
        """Raise Error for a label that a reader of the top does not accept. `owners`: the images of the labels."""
        wrong = self.wrong_label(1, labels)
        if wrong is not None:
            raise self._fault(wrong[1], batch, int(owners[wrong[0]]))

    def _check_alike(self, batch: Batch, scenes: list[Scene]) -> None:
        for found, scene in zip(batch.found, scenes):
            if scene.shape != scenes[0].shape:
                colors = scene.shape[0] != scenes[0].shape[0]
                raise Error(
                    f"database {self.database.path}: the image of {self.store.name(found[0])} is {shape_text(scene.shape)}, "
                    f"that of {self.store.name(batch.found[0][0])} in the same batch is {shape_text(scenes[0].shape)}",
                    fix="set force_color: true" if colors else "set resize_param, crop_size, or batch_size: 1",
                )
