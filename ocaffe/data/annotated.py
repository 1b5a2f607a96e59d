"""The source of an AnnotatedData layer (SSD): images with boxes, distorted, expanded, sampled, resized, cropped and mirrored together.

A Plan holds all random choices for an image and the resulting boxes. It is made before the image is decoded, so the shapes of a batch are known at
once. Only the part of the image that remains at the end is processed.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.data.boxes import Boxes, jittered, samples
from ocaffe.data.database import Item, Key, key_text, open_database
from ocaffe.data.decode import Color, decoded, open_image
from ocaffe.data.dice import Dice
from ocaffe.data.distort import Step, add_noise, check_distortion, check_noise, draw
from ocaffe.data.floats import FloatLayout
from ocaffe.data.images import FIELDS, RESTART, Records
from ocaffe.data.order import Order
from ocaffe.data.resample import Interpolation
from ocaffe.data.resizing import Resizing, Resizings, Size
from ocaffe.data.source import BatchInfo, Source, aligned, check_fields
from ocaffe.data.transform import HEIGHT, MEAN_X, MEAN_Y, MIRROR, WIDTH, Layout, Transform
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place, shape_text
from ocaffe.ir.tensor import Shape

TRANSFORM_FIELDS = frozenset({"resize_param", "noise_param", "distort_param", "expand_param", "emit_constraint"})
FIELDS_OF_BOXES = {"batch_sampler", "label_map_file", "anno_type", "yolo_data_type", "yolo_data_jitter", "train_diffcult"}
_BOX = 8  # columns of the label top
_LIST = (300, 5)  # of an image in the label top with yolo_data_type 1: boxes, and columns class, centre x, centre y, width, height
_NO_BOX = np.full((1, _BOX), -1, np.float32)
_ALMOST_ONE = 1e-2  # a smaller expansion is skipped
_EXACT = 16  # rows of boxes


def _rows_for(boxes: int) -> int:
    """Return the rows of the label top for a number of boxes: at least 1, and above 16 one of 16, 24, 32, 48, 64, 96 and so on.

    Each number of rows compiles the net again, and the boxes of large batches would take any number.
    """
    if boxes <= _EXACT:
        return max(boxes, 1)
    power = 1 << (boxes - 1).bit_length()
    return power * 3 // 4 if boxes <= power * 3 // 4 else power


@dataclass
class Plan:
    """The transformations of one image, with all random choices made."""

    record: int
    key: Key
    datum: Any
    file: Any  # the opened image, of which only the header has been read
    shape: tuple[int, int, int]  # of the image as stored
    boxes: Boxes  # after all transformations
    dice: Dice
    steps: list[Step]  # of distortion
    size: Size  # of the canvas; larger than the image if the image was expanded
    at: Size  # position of the image on the canvas: y, x
    window: tuple[int, int, int, int]  # the part of the canvas that is used: y, x, height, width
    resizing: Resizing | None
    method: Interpolation  # of resizing
    resized: Size  # of the window after resizing
    corner: Size  # of the crop in the resized window
    crop: Size
    mirror: bool


class AnnotatedSource(Source):
    """Batches of a database of AnnotatedDatums."""

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
        super().__init__(place, layer)
        with self.located():
            check_fields(param, FIELDS, "data_param", "remove it")
            check_fields(annotated, FIELDS_OF_BOXES, "annotated_data_param", "remove it")
            if not param.batch_size:
                raise Error("batch_size is 0", fix="batch_size of at least 1")
            transform.refuse_skipping()
            self.batch, self.transform, self.labels = int(param.batch_size), transform, labels
            self.color = Color.COLOR if param.force_encoded_color and transform.color is Color.UNCHANGED else transform.color
            self.samplers = list(annotated.batch_sampler)
            if annotated.yolo_data_type not in (0, 1):
                raise Error(f"yolo_data_type is {annotated.yolo_data_type}", fix="0: rows of boxes; 1: lists of boxes for RegionLoss and Yolov3")
            self.lists, self.jitter, self.difficult = annotated.yolo_data_type == 1, float(annotated.yolo_data_jitter), bool(annotated.train_diffcult)
            if self.lists and not 0 <= self.jitter < 1:
                raise Error(f"yolo_data_jitter is {self.jitter:g}", fix="a share of the image: 0 or more, below 1")
            self.resizings, self.noise = Resizings(transform_param.resize_param, self.batch), _single(transform_param, "noise_param")
            self.distort, self.expand, self.emit = (_given(transform_param, f) for f in ("distort_param", "expand_param", "emit_constraint"))
            self._check_settings()
            self.database = open_database(param.source, param.backend)
            self.order = Order(self.database.entries, bool(param.shuffle), int(param.rand_skip))
            self.workers = Workers(workers or param.parser_threads or param.threads)
            self.records = Records(self.database, self.order.shuffle)
            self._checked: tuple[int, ...] | None = None
            self.boxed = annotated.HasField("anno_type")
            (item,) = self.records.read([0])
            self.boxed = self.boxed or self._parse(0, item).HasField("type")
            plan = self._plan(0, item, 0, self.resizings.first)
            self._first = self._layout(plan)
            self._rows = max(len(plan.boxes), 1)
        kind = proto.DataParameter.DB.Name(param.backend).lower()
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = (
            (f"db_{kind}.cpp:35", f"Opened {kind} {param.source}"),
            *transform.notes,
            ("annotated_data_layer.cpp:62", f"output data size: {size}"),
        )

    def _check_settings(self) -> None:
        if self.noise is not None:
            check_noise(self.noise)
        if self.distort is not None:
            check_distortion(self.distort)
        if self.expand is not None and self.expand.max_expand_ratio < 1:
            raise Error(f"max_expand_ratio is {self.expand.max_expand_ratio:g}", fix="1 or more")
        for each in self.samplers:
            low, high, thin, wide = (getattr(each.sampler, f) for f in ("min_scale", "max_scale", "min_aspect_ratio", "max_aspect_ratio"))
            if not (0 < low <= high <= 1 and 0 < thin <= wide):
                raise Error(
                    f"a sampler has scales {low:g} to {high:g} and aspect ratios {thin:g} to {wide:g}",
                    fix="0 < min_scale <= max_scale <= 1, 0 < min_aspect_ratio <= max_aspect_ratio",
                )

    # -- shapes ------------------------------------------------------------------------------------------------------

    def _layout(self, plan: Plan) -> Layout:
        return Layout(self.batch, plan.shape[0], *plan.crop, np.dtype(np.uint8))

    def shapes(self) -> list[Shape]:
        return self._tops(self._first, self._rows)

    def _tops(self, layout: Layout, rows: int) -> list[Shape]:
        label: Shape = (self.batch, 1, 1, 1)
        if self.boxed:
            label = (self.batch, 1, *_LIST) if self.lists else (1, 1, rows, _BOX)
        return [(self.batch, layout.channels, layout.height, layout.width), label][: 1 + self.labels]

    @property
    def nbytes(self) -> int:
        return self._first.nbytes + aligned(4 * math.prod(_LIST) * self.batch if self.lists else 4 * _BOX * self._rows)

    def layout(self, tops: list[Shape]) -> tuple[Layout, FloatLayout | None]:
        """Return the layouts of a block for tops of these shapes: of the images with their labels, and of the rows of boxes if there are any."""
        layout = replace(self._first, channels=tops[0][1], height=tops[0][2], width=tops[0][3])
        return layout, FloatLayout([tops[1]], layout.nbytes) if self.boxed and self.labels else None

    # -- plans -------------------------------------------------------------------------------------------------------

    def _parse(self, record: int, item: Item) -> Any:
        try:
            return proto.AnnotatedDatum.FromString(bytes(item[1]))
        except DecodeError:
            raise self.records.fault(Error("it is not an AnnotatedDatum"), record, item[0]) from None

    def _plan(self, record: int, item: Item, position: int, resizing: Resizing | None) -> Plan:
        annotated = self._parse(record, item)
        try:
            datum = annotated.datum
            file = open_image(datum.data, self.transform.max_pixels) if datum.encoded else None
            shape = file.shape(self.color) if file is not None else (datum.channels, datum.height, datum.width)
            if file is None and len(datum.data) != shape[0] * shape[1] * shape[2]:
                raise Error(f"it has {len(datum.data)} bytes for an image of {shape_text(shape)}", fix="make the database with images, not with float_data")
            if self.boxed and self.labels and annotated.type != proto.AnnotatedDatum.BBOX:
                raise Error(f"its annotations are of type {annotated.type}", fix="BBOX")
            if self.labels and not self.boxed and not datum.HasField("label"):
                raise Error("it has no label and no type of annotations", fix="remove the second top, or set anno_type: BBOX")
            if self.distort is not None and shape[0] != 3:
                raise Error(f"distort_param is set, and the image has {shape[0]} channels", fix="force_color: true")
            plan = self._drawn(Dice(self.key, position), Boxes.of(annotated), shape, position, resizing)
        except Error as problem:
            raise self.records.fault(problem, record, item[0]) from None
        plan.record, plan.key, plan.datum, plan.file = record, item[0], datum, file
        return plan

    def _drawn(self, dice: Dice, boxes: Boxes, shape: tuple[int, int, int], position: int, resizing: Resizing | None) -> Plan:
        """Make all random choices for an image of `shape`, and transform its boxes accordingly."""
        channels, height, width = shape
        steps = draw(self.distort, dice) if self.distort is not None else []
        size, at = (height, width), (0, 0)
        if self.expand is not None and dice.uniform() <= self.expand.prob and self.expand.max_expand_ratio - 1 >= _ALMOST_ONE:
            ratio = dice.uniform(1, self.expand.max_expand_ratio)
            size = int(height * ratio), int(width * ratio)
            at = int(dice.uniform(0, size[0] - height)), int(dice.uniform(0, size[1] - width))
            (y, x), whole = at, np.array([width, height] * 2, np.float32)
            boxes = boxes.within(np.array([-x, -y, size[1] - x, size[0] - y], np.float32) / whole, self.emit)
        window = (0, 0, *size)
        found = samples(self.samplers, boxes.corners, dice)
        if self.lists and not self.samplers:
            found = jittered(self.jitter, resizing is not None and resizing.keeps_aspect, dice)
        if len(found):
            chosen = np.clip(found[dice.below(len(found))], 0, 1)
            xmin, ymin, xmax, ymax = (float(edge) for edge in chosen * np.array([size[1], size[0]] * 2, np.float32))
            window = int(ymin), int(xmin), max(int(ymax - ymin), 1), max(int(xmax - xmin), 1)
            boxes = boxes.within(chosen, self.emit)
        method = Interpolation.LINEAR
        resized = before = window[2:]
        if resizing is not None:
            methods = resizing.param.interp_mode
            if methods:
                method = Interpolation(methods[dice.below(len(methods))])
            resized = resizing.new_size(before)
            boxes = replace(boxes, corners=resizing.resized(boxes.corners, before))
        if (channels, *resized) != self._checked:
            self.transform.check(channels, *resized)
            self._checked = (channels, *resized)
        corners, mirror = self.transform.place(self.key, range(position, position + 1), np.array([resized]))
        corner, crop = (int(corners[0, 0]), int(corners[0, 1])), self.transform.output(channels, *resized)[1:]
        part = np.array([corner[1], corner[0], corner[1] + crop[1], corner[0] + crop[0]], np.float32) / np.array([*resized[::-1]] * 2, np.float32)
        boxes = boxes.within(part, self.emit)
        if mirror[0]:
            boxes = boxes.mirrored()
        if resizing is not None:
            boxes = replace(boxes, corners=resizing.extrapolated(boxes.corners, before, part))
        return Plan(0, b"", None, None, shape, boxes, dice, steps, size, at, window, resizing, method, resized, corner, crop, bool(mirror[0]))

    # -- batches -----------------------------------------------------------------------------------------------------

    def fill(self, index: int, block: np.ndarray) -> BatchInfo:
        positions = self.share.positions(index, self.batch)
        with self.located():
            records = self.order.records(self.key, positions)
            items = self.records.read(records)
            resizing = self.resizings.of_batch(self.key, positions[0])
            plans = [self._plan(record, item, position, resizing) for position, record, item in zip(positions, records, items)]
            layout = self._layout(plans[0])
            self._check_alike(plans)
            boxes = np.concatenate([plan.boxes.rows(n) for n, plan in enumerate(plans)])
            listed = self._listed(plans) if self.lists and self.boxed else None
            boxes = np.concatenate([boxes, _NO_BOX.repeat(_rows_for(len(boxes)) - len(boxes), 0)])
            tops = self._tops(layout, len(boxes))
            rows = self.layout(tops)[1]
            notes = (RESTART,) if self.order.entries - 1 in records else ()
            info = BatchInfo(tuple(tops), rows.nbytes if rows else layout.nbytes, notes)
            if info.nbytes > block.nbytes:
                return info
            if rows is not None:
                if listed is None:
                    rows.views(block)[0][0, 0] = boxes
                else:
                    rows.views(block)[0][:, 0] = listed
            table = layout.table(block)
            table[...] = 0
            table[:, HEIGHT : WIDTH + 1] = layout.height, layout.width
            table[:, MEAN_Y : MEAN_X + 1] = [plan.corner for plan in plans]
            table[:, MIRROR] = [plan.mirror for plan in plans]
            layout.labels(block)[:] = [plan.datum.label for plan in plans]
            if self.boxed:
                real = boxes[boxes[:, 0] >= 0]
                self._check_labels(real[:, 1], [plans[int(owner)] for owner in real[:, 0]])
            else:
                self._check_labels(layout.labels(block), plans)
            self.workers.run(partial(self._stage, plan, room) for plan, room in zip(plans, layout.pixels(block)))
        return info

    def _listed(self, plans: list[Plan]) -> np.ndarray:
        """Return the boxes of each image: class from 0 on, centre, width and height, then zeros."""
        result = np.zeros((len(plans), *_LIST), np.float32)
        for own, plan in zip(result, plans):
            about, corners = plan.boxes.about, plan.boxes.corners
            chosen = np.ones(len(about), bool) if self.difficult else about[:, 2] == 0
            if chosen.sum() > len(own):
                problem = Error(f"it has {chosen.sum()} boxes, a list of yolo_data_type 1 has {len(own)}", fix="yolo_data_type: 0, or fewer boxes")
                raise self.records.fault(problem, plan.record, plan.key)
            low, high = corners[chosen, :2], corners[chosen, 2:]
            own[: len(low)] = np.concatenate([about[chosen, :1] - 1, (low + high) / 2, high - low], 1)
        return result

    def _check_labels(self, labels: np.ndarray, plans: list[Plan]) -> None:
        wrong = self.wrong_label(1, labels)
        if wrong is not None:
            plan = plans[wrong[0]]
            raise self.records.fault(wrong[1], plan.record, plan.key)

    def _check_alike(self, plans: list[Plan]) -> None:
        shapes = [(plan.shape[0], *plan.crop) for plan in plans]
        for plan, shape in zip(plans, shapes):
            if shape != shapes[0]:
                raise Error(
                    f"database {self.database.path}: the image of key '{key_text(plan.key)}' is {shape_text(shape)}, "
                    f"that of key '{key_text(plans[0].key)}' in the same batch is {shape_text(shapes[0])}",
                    fix="set resize_param, crop_size, or batch_size: 1",
                )

    def _stage(self, plan: Plan, room: np.ndarray) -> None:
        """Compute the image that `plan` describes and write it to `room`."""
        try:
            if plan.file is not None:
                with decoded(plan.file, self.color) as pixels:
                    ground = self._cut(pixels.transpose(2, 0, 1), plan)
            else:
                ground = self._cut(np.frombuffer(plan.datum.data, np.uint8).reshape(plan.shape), plan)
            image = ground if plan.resizing is None else plan.resizing.apply(ground, plan.resized, plan.method)
            if self.noise is not None:
                image = add_noise(image, self.noise, plan.dice)
            (y, x), (height, width) = plan.corner, plan.crop
            room.reshape(plan.shape[0], height, width)[...] = image[:, y : y + height, x : x + width]
        except Error as problem:
            raise self.records.fault(problem, plan.record, plan.key) from None

    def _cut(self, image: np.ndarray, plan: Plan) -> np.ndarray:
        """Return the window of `plan`: the distorted image on a canvas of mean values."""
        channels, height, width = plan.shape
        top, left, down, across = plan.window
        begin = [max(start, place) for start, place in zip((top, left), plan.at)]
        end = [min(start + count, place + size) for start, count, place, size in zip((top, left), (down, across), plan.at, (height, width))]
        inside = begin[0] < end[0] and begin[1] < end[1]
        ground = np.empty((channels, down, across), np.uint8)
        ground[...] = self._ground(plan)
        if inside:
            part = np.ascontiguousarray(image[:, begin[0] - plan.at[0] : end[0] - plan.at[0], begin[1] - plan.at[1] : end[1] - plan.at[1]])
            for step in plan.steps:
                part = step(part)
            ground[:, begin[0] - top : end[0] - top, begin[1] - left : end[1] - left] = part
        return ground

    def _ground(self, plan: Plan) -> np.ndarray:
        """Return the color around an expanded image: the mean values, or black."""
        mean = self.transform.mean
        if mean is None or mean.ndim == 3:
            return np.zeros((1, 1, 1), np.uint8)
        return np.clip(np.rint(np.broadcast_to(mean, plan.shape[0])), 0, 255).astype(np.uint8)[:, None, None]

    def close(self) -> None:
        self.workers.close()



def _given(message: Any, field: str) -> Any:
    """Return a message field, or None if it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def _single(message: Any, field: str) -> Any:
    """Return the value of a repeated message field, or None if it is empty. Raise Error if it has several values."""
    values = getattr(message, field)
    if len(values) > 1:
        raise Error(f"transform_param has {len(values)} {field}", fix="keep one of them")
    return values[0] if values else None
