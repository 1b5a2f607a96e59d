"""Stages images with boxes: distorts, expands, samples, resizes, crops and mirrors them. Threads and other processes do it in the same way.

A Plan holds all random choices for an image and the resulting boxes. It is made before the image is decoded, so the shapes of a batch are known at
once. Only the part of the image that remains at the end is processed.
"""
from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.boxes import Boxes, read_annotated
from ocaffe.data.changes.distort import Step, add_noise, check_distortion, check_noise, draw, in_ssds_form
from ocaffe.data.changes.joins import ALONE, Join, Joins, joined, joined_boxes, key_of_part
from ocaffe.data.changes.resample import Interpolation
from ocaffe.data.changes.resizing import Resizing, Resizings, Size
from ocaffe.data.changes.samplers import Samplers, jittered
from ocaffe.data.changes.transform import Samples, Transform
from ocaffe.data.databases.datum import refuse_unmarked
from ocaffe.data.databases.lmdb_file import Arena
from ocaffe.data.decoding.decode import Color, decoded, open_image
from ocaffe.data.dice import Dice
from ocaffe.data.effort import COPY, DECODE, DISK, Laps
from ocaffe.data.stagers.crew import Chunk, Large
from ocaffe.data.stores.store import Opener
from ocaffe.errors import Error, shape_text
from ocaffe.ir.layer import MOST_ELEMENTS

_ALMOST_ONE = 1e-2  # a smaller expansion is skipped
Shape3 = tuple[int, int, int]


class Frame(NamedTuple):
    """A batch: the key of its random numbers, the positions of its images in the endless sequence of records, and how each is joined of several."""

    key: tuple[int, int]
    positions: range
    joins: tuple[Join, ...] = ()  # empty: of no image


class Scene(NamedTuple):
    """A staged image without its pixels. `shape`: channels, height and width. `corner`: of the crop, y and x."""

    shape: Shape3
    boxes: Boxes
    label: int
    corner: Size
    mirror: bool


class Result(NamedTuple):
    """The staged images of a chunk, and the seconds of work by kind."""

    scenes: list[Scene]
    seconds: dict[str, float]


@dataclass
class Plan:
    """The transformations of one image, with all random choices made."""

    datum: Any
    file: Any  # the opened image, of which only the header has been read
    shape: Shape3  # of the image as stored
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

    @property
    def scene(self) -> Scene:
        return Scene((self.shape[0], *self.crop), self.boxes, self.datum.label, self.corner, self.mirror)


class Whole(NamedTuple):
    """The plan of an image that may be joined of several. `scene`: the whole."""

    parts: list[Plan]
    join: Join
    scene: Scene


class Planner:
    """Plans the images of a batch."""

    def __init__(self, stager: AnnotatedStager, frame: Frame, resizing: Resizing | None) -> None:
        self._stager, self._frame, self._resizing = stager, frame, resizing
        self._samples: dict[int, Samples] = {}  # by the number of the part

    def part(self, n: int, part: int, content: Any) -> Plan:
        """Plan image number `part` of those that are joined to image n of the batch, from its record's content. Raise Error without a place."""
        key = key_of_part(self._frame.key, part)
        if part not in self._samples:
            self._samples[part] = self._stager.transform.samples(key, self._frame.positions)
        return self._stager.planned(key, self._frame.positions[n], self._resizing, self._samples[part], n, content)

    def whole(self, n: int, parts: list[Plan]) -> Whole:
        """Return image n of the batch, made of its parts. Raise Error without a place."""
        join = self._frame.joins[n] if self._frame.joins else ALONE
        if len(parts) == 1:
            return Whole(parts, join, parts[0].scene)
        shapes = [plan.scene.shape for plan in parts]
        other = next((shape for shape in shapes if shape != shapes[0]), None)
        if other is not None:
            fact = f"its image is {shape_text(shapes[0])}, and one that mosaic or mixup joins to it is {shape_text(other)}"
            raise Error(fact, fix="set force_color: true" if other[0] != shapes[0][0] else "set resize_param or crop_size in transform_param")
        boxes = joined_boxes(join, [plan.boxes for plan in parts], shapes[0][1:], self._stager.emit)
        return Whole(parts, join, parts[0].scene._replace(boxes=boxes, mirror=False))


class AnnotatedStager:
    """The settings of a source of images with boxes. Any number of threads may use it. It can be pickled if its opener can."""

    def __init__(self, opener: Opener, transform: Transform, annotated: Any, param: Any, batch: int, color: Color, labels: bool) -> None:
        """`annotated` is the AnnotatedDataParameter, `param` the TransformationParameter, `batch` the number of images of a batch.

        `labels`: the layer has a top for labels. Raises Error without a place.
        """
        self.opener, self.transform, self.annotated, self.param, self.batch, self.color, self.labels = opener, transform, annotated, param, batch, color, labels
        self.largest: int | None = None  # pixels of an image that is not Large; None: there are no other processes
        self.boxed = annotated.HasField("anno_type")  # the second top has boxes
        if annotated.yolo_data_type not in (0, 1):
            fix = "set yolo_data_type: 0 (rows of boxes, for SSD) or 1 (lists of boxes, for RegionLoss and Yolov3)"
            raise Error(f"yolo_data_type is {annotated.yolo_data_type}", fix=fix)
        self.lists, self.jitter = annotated.yolo_data_type == 1, float(annotated.yolo_data_jitter)
        if self.lists and not 0 <= self.jitter < 1:
            raise Error(f"yolo_data_jitter is {self.jitter:g}", fix="set yolo_data_jitter to a share of the image, 0 or more and below 1")
        self.samplers = list(annotated.batch_sampler)
        self.resizings, self.noise = Resizings(param.resize_param, batch), _single(param, "noise_param")
        self.joins = Joins.read(param, transform.train)
        self.distort, self.expand, self.emit = (_given(param, field) for field in ("distort_param", "expand_param", "emit_constraint"))
        self._check_settings()
        self._windows = Samplers(self.samplers)
        self._checked: tuple[int, ...] | None = None
        self._memory = threading.local()

    def __reduce__(self) -> Any:
        messages = self.annotated.SerializeToString(), self.param.SerializeToString()
        return _again, (self.opener, self.transform, *messages, self.batch, self.color, self.labels, self.boxed, self.largest)

    def _check_settings(self) -> None:
        if self.noise is not None:
            check_noise(self.noise)
        if self.distort is not None:
            self.distort = in_ssds_form(self.distort)
            check_distortion(self.distort)
        if self.expand is not None and self.expand.max_expand_ratio < 1:
            raise Error(f"max_expand_ratio is {self.expand.max_expand_ratio:g}", fix="set max_expand_ratio in expand_param to 1 or more")
        for each in self.samplers:
            low, high, thin, wide = (getattr(each.sampler, f) for f in ("min_scale", "max_scale", "min_aspect_ratio", "max_aspect_ratio"))
            if not 0 < low <= high <= 1:
                fix = "set both in sampler so that 0 < min_scale <= max_scale <= 1"
                raise Error(f"a sampler of batch_sampler has min_scale {low:g} and max_scale {high:g}", fix=fix)
            if not 0 < thin <= wide:
                fix = "set both in sampler so that 0 < min_aspect_ratio <= max_aspect_ratio"
                raise Error(f"a sampler of batch_sampler has min_aspect_ratio {thin:g} and max_aspect_ratio {wide:g}", fix=fix)

    # -- records -----------------------------------------------------------------------------------------------------

    def read(self, found: Sequence[Any]) -> Sequence[Any]:
        """Return the contents of found records. They are valid until the thread's next call. Raise Error."""
        arena: Arena | None = getattr(self._memory, "arena", None)
        if arena is None:
            arena = self._memory.arena = Arena()
        return self.opener.read(found, arena)

    def contents(self, found: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the contents of the records of each image. They are valid until the thread's next call. Raise Error."""
        read = iter(self.read([each for own in found for each in own]))
        return [list(itertools.islice(read, len(own))) for own in found]

    def parse(self, content: Any) -> Any:
        """Return the AnnotatedDatum in a record's content. Raise Error without a place."""
        parsed = read_annotated(content)
        if not parsed.HasField("datum"):
            fix = 'read this database by a layer of type: "Data", or make one with boxes by `ocaffe dataset voc` or `ocaffe convert_annoset`'
            raise Error("it is a Datum, an image without boxes", fix=fix)
        return parsed

    # -- plans -------------------------------------------------------------------------------------------------------

    def planner(self, frame: Frame, resizing: Resizing | None = None) -> Planner:
        """Return the planner of a batch. `resizing`: the one of the batch, if it is not drawn."""
        return Planner(self, frame, resizing or self.resizings.of_batch(frame.key, frame.positions[0]))

    def planned(self, key: tuple[int, int], position: int, resizing: Resizing | None, crops: Samples, n: int, content: Any) -> Plan:
        """Return the plan of an image from its record's content. Raise Error without a place."""
        annotated = self.parse(content)
        datum = annotated.datum
        file = open_image(datum.data, self.transform.max_pixels) if datum.encoded else None
        shape = file.shape(self.color) if file is not None else (datum.channels, datum.height, datum.width)
        if file is None and len(datum.data) != shape[0] * shape[1] * shape[2]:
            if datum.float_data:
                raise Error("its image has float_data", fix="write the pixels as bytes in data, where the database is written")
            refuse_unmarked(datum.data[:64])
            fix = "set channels, height and width of the datum to the shape of its data, where the database is written"
            raise Error(f"it has {len(datum.data)} bytes for an image of {shape_text(shape)}", fix=fix)
        if self.largest is not None and shape[1] * shape[2] > self.largest:
            raise Large(f"it has {shape[1] * shape[2]:,} pixels")
        if self.boxed and self.labels and annotated.type != proto.AnnotatedDatum.BBOX:
            fix = "make the database with boxes by `ocaffe dataset voc`, or remove anno_type from annotated_data_param to read labels of images"
            raise Error(f"its annotations are of type {annotated.type}, not BBOX", fix=fix)
        if self.labels and not self.boxed and not datum.HasField("label"):
            raise Error("it has no label and no type of annotations", fix="remove the second top, or set anno_type: BBOX in annotated_data_param")
        if self.distort is not None and shape[0] != 3:
            fix = "set force_color: true in transform_param" if file is not None else "make the database without --gray"
            raise Error(f"distort_param is set, and the image has {shape[0]} channels", fix=fix)
        plan = self._drawn(n, Dice(key, position), Boxes.of(annotated), shape, resizing, crops)
        plan.datum, plan.file = datum, file
        return plan

    def _drawn(self, n: int, dice: Dice, boxes: Boxes, shape: Shape3, resizing: Resizing | None, crops: Samples) -> Plan:
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
        found = self._windows.windows(boxes.corners, dice)
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
        if channels * math.prod(window[2:]) > MOST_ELEMENTS:
            expanded = shape_text((channels, *window[2:]))
            fact = f"an image of {shape_text((height, width))} would be expanded to {expanded} values, and the limit is {MOST_ELEMENTS:,}"
            raise Error(fact, fix="set a smaller max_expand_ratio in expand_param, such as SSD's 4")
        if (channels, *resized) != self._checked:
            self.transform.check(channels, *resized)
            self._checked = (channels, *resized)
        *_, top, left, mirror, _ = crops.at(n, (channels, *resized))[1]
        corner, crop = (top, left), self.transform.output(channels, *resized)[1:]
        part = np.array([corner[1], corner[0], corner[1] + crop[1], corner[0] + crop[0]], np.float32) / np.array([*resized[::-1]] * 2, np.float32)
        boxes = boxes.within(part, self.emit)
        if mirror:
            boxes = boxes.mirrored()
        if resizing is not None:
            boxes = replace(boxes, corners=resizing.extrapolated(boxes.corners, before, part))
        return Plan(None, None, shape, boxes, dice, steps, size, at, window, resizing, method, resized, corner, crop, bool(mirror))

    # -- pixels ------------------------------------------------------------------------------------------------------

    def write(self, frame: Frame, chunk: Chunk, buffer: np.ndarray) -> Result:
        """Write the images of a chunk to a buffer of images of the size of the first one.

        Images that differ in size, or are too large for the buffer, raise another exception.
        """
        laps = Laps()
        contents = self.contents(chunk.found)
        laps.end(DISK)
        planner = self.planner(frame)
        plans = [planner.whole(n, [planner.part(n, i, content) for i, content in enumerate(own)]) for n, own in zip(chunk.images, contents)]
        laps.end(DECODE)
        size = math.prod(plans[0].scene.shape)
        for n, plan in zip(chunk.images, plans):
            self.stage(plan, [self.image(part) for part in plan.parts], buffer[n * size : (n + 1) * size], laps)
        return Result([plan.scene for plan in plans], laps.seconds)

    def stage(self, plan: Whole, images: list[np.ndarray], room: np.ndarray, laps: Laps) -> None:
        """Join the images that `image` has made of the parts, and write the result to `room`."""
        if len(images) > 1:
            images = [image[:, :, ::-1] if part.mirror else image for part, image in zip(plan.parts, images)]
            images = [joined(plan.join, images)]
        laps.end(DECODE)
        room.reshape(plan.scene.shape)[...] = images[0]
        laps.end(COPY)

    def image(self, plan: Plan) -> np.ndarray:
        """Compute the image that `plan` describes, which is not mirrored yet. Raise Error without a place."""
        if plan.file is not None:
            with decoded(plan.file, self.color) as pixels:
                ground = self._cut(pixels.transpose(2, 0, 1), plan)
        else:
            ground = self._cut(np.frombuffer(plan.datum.data, np.uint8).reshape(plan.shape), plan)
        image = ground if plan.resizing is None else plan.resizing.apply(ground, plan.resized, plan.method)
        if self.noise is not None:
            image = add_noise(image, self.noise, plan.dice)
        (y, x), (height, width) = plan.corner, plan.crop
        return image[:, y : y + height, x : x + width]

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


def _again(opener: Opener, transform: Transform, annotated: bytes, param: bytes, *settings: Any) -> AnnotatedStager:
    """Return a pickled stager. Messages cannot be pickled."""
    messages = proto.AnnotatedDataParameter.FromString(annotated), proto.TransformationParameter.FromString(param)
    *rest, boxed, largest = settings
    stager = AnnotatedStager(opener, transform, *messages, *rest)
    stager.boxed, stager.largest = boxed, largest
    return stager


def _given(message: Any, field: str) -> Any:
    """Return a message field, or None if it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def _single(message: Any, field: str) -> Any:
    """Return the value of a repeated message field, or None if it is empty. Raise Error if it has several values."""
    values = getattr(message, field)
    if len(values) > 1:
        raise Error(f"transform_param has {len(values)} {field}", fix=f"keep one {field}, and remove the others")
    return values[0] if values else None
