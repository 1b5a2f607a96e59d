"""The source of a VideoData layer (TSN): frames of videos, which are image files in a folder for each video."""
from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.data.changes.transform import HEIGHT, MEAN_X, MEAN_Y, MIRROR, WIDTH, Layout, Transform, as_values
from ocaffe.data.decoding.decode import Color, decoded
from ocaffe.data.dice import Dice
from ocaffe.data.order import Order
from ocaffe.data.source import BatchInfo, Source, check_fields
from ocaffe.data.sources.file_images import new_size
from ocaffe.data.stores.file_store import whole_number
from ocaffe.data.stores.text_list import Line, Listing, read_image
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place, shape_text
from ocaffe.ir.tensor import Shape

_FIELDS = {
    "source", "batch_size", "rand_skip", "shuffle", "new_height", "new_width", "new_length", "num_segments", "modality", "name_pattern", "grayscale",
    "length_first", "step", "rand_step",
    "encoded",  # without effect, as in TSN
}  # fmt: skip
PATTERNS = "image_%04d.jpg", "flow_%c_%04d.jpg"  # the default name_pattern of RGB and FLOW
RATIOS = (1.0, 0.875, 0.75, 0.66)
# Quarters of the room around a crop, down and across: corners, centre, middles of the sides, quarters
PLACES = ((0, 0), (0, 4), (4, 0), (4, 4), (2, 2), (0, 2), (4, 2), (2, 0), (2, 4), (1, 1), (1, 3), (3, 1), (3, 3))
_LINE = "the folder of a video's frames, their number, and its label"


class Video(NamedTuple):
    """A line of the list."""

    folder: str
    frames: int
    label: int


class Window(NamedTuple):
    """The part of a frame that becomes a sample."""

    y: int
    x: int
    height: int
    width: int


@dataclass(frozen=True)
class RandomCrops:
    """TSN's crops in TRAIN: of sizes that `ratios` gives, in fixed places. Each is then resized to `crop`.

    multi_scale: the sides are the smaller side of the frame times two of the ratios, which are at most `distort` apart in the list. A side that differs
    from the crop's by less than 3 pixels is the crop's. fix_crop: the places are the corners and the centre; more_fix_crop adds eight between them.
    """

    crop: tuple[int, int]
    ratios: tuple[float, ...]  # empty: the size is the crop's
    distort: int
    fixed: bool
    more: bool

    @classmethod
    def of(cls, param: Any, crop: tuple[int, int] | None) -> RandomCrops | None:
        """Return the crops of a TransformationParameter, or None if they are as in Caffe. Raise Error without a place."""
        if not (param.multi_scale or param.fix_crop):
            return None
        name = "multi_scale" if param.multi_scale else "fix_crop"
        if crop is None:
            raise Error(f"{name} is set, and crop_size is not", fix="set crop_size in transform_param to the side of the net's input, in pixels")
        if param.mean_file:
            fact = f"{name} and mean_file are both set, and crops of several sizes have no place in a mean image"
            raise Error(fact, fix=as_values(param.mean_file))
        ratios = tuple(param.scale_ratios) or RATIOS
        if not all(0 < ratio <= 1 for ratio in ratios):
            fix = "set each scale_ratios to a share of the frame's smaller side, above 0 and at most 1"
            raise Error(f"scale_ratios are {', '.join(f'{ratio:g}' for ratio in ratios)}", fix=fix)
        return cls(crop, ratios if param.multi_scale else (), int(param.max_distort), bool(param.fix_crop), bool(param.more_fix_crop))

    def draw(self, dice: Dice, height: int, width: int) -> Window:
        """Return a random window of a frame of this size."""
        sizes = [self.crop]
        if self.ratios:
            sides = [max(1, int(min(height, width) * np.float32(ratio))) for ratio in self.ratios]
            rows, columns = ([own if abs(side - own) < 3 else side for side in sides] for own in self.crop)
            sizes = [(h, w) for i, h in enumerate(rows) for j, w in enumerate(columns) if abs(i - j) <= self.distort]
        h, w = sizes[dice.below(len(sizes))]
        if not self.fixed:
            return Window(dice.below(height - h + 1), dice.below(width - w + 1), h, w)
        places = PLACES if self.more else PLACES[:5]
        row, column = places[dice.below(len(places))]
        return Window((height - h) // 4 * row, (width - w) // 4 * column, h, w)


class VideoSource(Source):
    """Batches of frames: `num_segments` times `new_length` frames of a video are the channels of one sample.

    A video is divided into segments of equal length. In TRAIN, the first frame of a segment's frames is random, else they are in its middle. In segments
    that are shorter than new_length, the video's first frames are taken. A frame has three channels, one with `grayscale`, or as FLOW two: the files of
    x and of y. With `length_first` the first channel of all frames of a segment comes first, then the second; then `step` takes every so many frames of
    RGB, in TRAIN with `rand_step` each up to step - 1 frames later.

    is_flow: where a sample is mirrored, channels with even numbers, which are those of x, become 255 - value.
    """

    def __init__(
        self,
        param: Any,
        transform_param: Any,
        transform: Transform,
        labels: bool,
        *,
        workers: int | None = None,
        place: Place | None = None,
        layer: str | None = None,
    ) -> None:
        """`param` is the VideoDataParameter, `transform_param` the TransformationParameter of `transform`. `labels`: the layer has a top for labels.

        `workers`: threads that read and decode (default: one per core).
        """
        super().__init__(place, layer)
        with self.located():
            if param.HasField("video_type") or param.video_file:
                fact = f"{param.video_file or 'a camera'} is to be read (SSD's VideoData), and ocaffe has no decoder of videos"
                raise Error(fact, fix="write the frames to a folder with another tool, and use ImageData or TSN's fields of video_data_param")
            check_fields(param, _FIELDS, "video_data_param", "remove it, or set it in transform_param")
            for name in ("batch_size", "num_segments", "new_length"):
                if not getattr(param, name):
                    raise Error(f"{name} is {'0' if param.HasField(name) else 'missing'}", fix=f"set {name} in video_data_param to at least 1")
            transform.refuse_skipping()
            self.batch, self.segments, self.length = int(param.batch_size), int(param.num_segments), int(param.new_length)
            self.flow = param.modality == proto.VideoDataParameter.FLOW
            self.depth = 1 if self.flow or param.grayscale else 3  # channels of a file
            self.length_first, self.step, self.rand_step = bool(param.length_first), max(1, int(param.step)), bool(param.rand_step)
            if self.step > 1 and (self.flow or not self.length_first):
                other = "modality is FLOW" if self.flow else "length_first is false"
                fact = f"step is {self.step}, and {other}: TSN takes every so many frames with modality: RGB and length_first: true only"
                raise Error(fact, fix="remove step from video_data_param" + ("" if self.flow else ", or set length_first: true"))
            self.signed = bool(transform_param.is_flow)
            self.pattern, self.transform, self.labels = self._pattern(param.name_pattern), transform, labels
            self.crops = RandomCrops.of(transform_param, transform.crop) if transform.train else None
            self.resized = new_size(param)
            self.list = Listing(param.source, _LINE)
            self.videos = [self._video(line) for line in self.list.lines]
            self.order = Order(len(self.videos), bool(param.shuffle), int(param.rand_skip))
            self.workers = Workers(workers)
            height, width = self._size(0, self._files(0, Dice((0, 0), 0))[0])
            self._layout = Layout(self.batch, *transform.output(self.channels, height, width), np.dtype(np.uint8))
            transform.check(self.channels, height, width)
        self.notes = (*transform.notes,)

    @property
    def channels(self) -> int:
        """The channels of a sample."""
        return self.per_frame * self.frames * self.segments

    @property
    def frames(self) -> int:
        """The frames of a segment in a sample."""
        return -(-self.length // self.step)

    @property
    def per_frame(self) -> int:
        """The channels of a frame."""
        return 2 if self.flow else self.depth

    def _pattern(self, pattern: str) -> str:
        """Return name_pattern. Raise Error unless it takes the number of a frame, and before it for FLOW the letter x or y."""
        modality, example = ("FLOW", "flow_%c_%05d.jpg") if self.flow else ("RGB", "img_%05d.jpg")
        pattern = pattern or PATTERNS[self.flow]
        try:
            pattern % (("x", 1) if self.flow else (1,))
        except (TypeError, ValueError):
            takes = "%c for x or y, then %d for the number of the frame" if self.flow else "%d for the number of the frame, and no other %"
            fact = f"name_pattern is {pattern!r}, and modality {modality} needs {takes}"
            raise Error(fact, fix=f'name_pattern: "{example}" with the names of your files, or modality: {"RGB" if self.flow else "FLOW"}') from None
        return pattern

    def _video(self, line: Line) -> Video:
        words = line.text.rsplit(None, 2)
        try:
            video = Video(words[0], whole_number(words[1]), whole_number(words[2]))
        except (IndexError, ValueError):
            fact = f"{self.list.source}, line {line.number}: '{line.text}' does not end in two whole numbers of 32 bits"
            raise Error(fact, fix=f"write {_LINE} into each line") from None
        if video.frames < self.length:
            fact = f"{self.list.source}, line {line.number}: the video has {video.frames} frames, new_length is {self.length}"
            raise Error(fact, fix=f"set new_length to at most {video.frames}, or remove the line of the video")
        return video

    # -- shapes ------------------------------------------------------------------------------------------------------

    def shapes(self) -> list[Shape]:
        layout = self._layout
        tops: list[Shape] = [(self.batch, layout.channels, layout.height, layout.width), (self.batch, 1, 1, 1)]
        return tops[: 1 + self.labels]

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    def layout(self) -> Layout:
        return self._layout

    # -- batches -----------------------------------------------------------------------------------------------------

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        positions, layout = self.share.positions(index, self.batch), self._layout
        with self.located():
            records = self.order.records(self.key, positions)
            dice = [Dice(self.key, position) for position in positions]
            files = [self._files(record, own) for record, own in zip(records, dice)]
            sizes = np.array(self.workers.run([partial(self._size, record, own[0]) for record, own in zip(records, files)]))
            corners, mirror = self.transform.place(self.key, positions, sizes)
            table, pixels = layout.table(buffer), layout.pixels(buffer)
            table[...] = 0
            table[:, HEIGHT : WIDTH + 1] = layout.height, layout.width
            table[:, MEAN_Y : MEAN_X + 1], table[:, MIRROR] = corners, mirror
            windows = [Window(y, x, layout.height, layout.width) for y, x in corners.tolist()]
            if self.crops is not None:
                windows = [self.crops.draw(own, *size) for own, size in zip(dice, sizes.tolist())]
            self.workers.run(
                partial(self._stage, record, name, tuple(size), window, room.reshape(layout.channels, layout.height, layout.width), i, self.signed and mirrored)
                for record, own, size, window, room, mirrored in zip(records, files, sizes.tolist(), windows, pixels, mirror.tolist())
                for i, name in enumerate(own)
            )
            layout.labels(buffer)[:] = [self.videos[record].label for record in records]
        return BatchInfo(tuple(self.shapes()), layout.nbytes)

    def _files(self, record: int, dice: Dice) -> list[str]:
        """Return the files of a sample, in the order of its channels."""
        video = self.videos[record]
        each, names = video.frames // self.segments, []
        for segment in range(self.segments):
            room = each - self.length
            first = segment * each + (dice.below(room + 1) if self.transform.train else (room + 1) // 2) if room >= 0 else 0
            for number in range(first + 1, first + self.length + 1, self.step):
                if self.rand_step and self.transform.train:
                    number = min(number + dice.below(self.step), video.frames)
                values = [("x", number), ("y", number)] if self.flow else [(number,)]
                names += [f"{video.folder}/{self.pattern % value}" for value in values]
        return names

    def _size(self, record: int, name: str) -> tuple[int, int]:
        """Return the height and width of a frame after resizing."""
        if self.resized:
            return self.resized
        try:
            height, width = read_image(name, self.transform.max_pixels).shape(Color.GRAY)[1:]
            return height, width
        except Error as problem:
            raise self.list.fault(problem, record, name) from None

    def _places(self, file: int) -> range:
        """Return the channels of a sample that a file fills. `file`: its number among those of the sample."""
        kinds = 2 if self.flow else 1
        frame, kind = divmod(file, kinds)
        if not self.length_first:
            return range(file * self.depth, (file + 1) * self.depth)
        segment, frame = divmod(frame, self.frames)
        first = (segment * self.per_frame + kind * self.depth) * self.frames + frame
        return range(first, first + self.depth * self.frames, self.frames)

    def _stage(self, record: int, name: str, size: tuple[int, int], window: Window, sample: np.ndarray, file: int, negated: bool) -> None:
        """Decode a frame and write its crop to its channels of the sample. `negated`: channels with even numbers become 255 - value."""
        places = self._places(file)
        room = sample[places.start : places.stop : places.step]
        try:
            with decoded(read_image(name, self.transform.max_pixels), Color.GRAY if self.depth == 1 else Color.COLOR) as pixels:
                image = pixels.transpose(2, 0, 1)
                if self.resized:
                    image = resize(image, *self.resized, Interpolation.LINEAR)
                if image.shape[1:] != size:
                    fix = "set new_height and new_width in video_data_param"
                    raise Error(f"the frame is {shape_text(image.shape[1:])}, the first one {shape_text(size)}", fix=fix)
                part = image[:, window.y : window.y + window.height, window.x : window.x + window.width]
                if self.crops is not None and part.shape != room.shape:
                    part = resize(part, room.shape[1], room.shape[2], Interpolation.LINEAR)
                if part.shape != room.shape:
                    fact = f"the frame is {shape_text(part.shape[1:])}, that of the first video {shape_text(room.shape[1:])}"
                    raise Error(fact, fix="set crop_size in transform_param, or new_height and new_width in video_data_param")
                room[...] = part
                if negated:
                    even = [i for i, place in enumerate(places) if place % 2 == 0]
                    room[even] = 255 - room[even]
        except Error as problem:
            raise self.list.fault(problem, record, name) from None

    def close(self) -> None:
        self.workers.close()
