"""The source of a DenseImageData layer (SegNet): images, each with a label image, whose pixels are labels."""
from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.decode import Color, decoded
from ocaffe.data.listed import new_size
from ocaffe.data.listing import Line, Listing, read_image
from ocaffe.data.order import Order
from ocaffe.data.resample import Interpolation, resize
from ocaffe.data.source import BatchInfo, Source, check_fields
from ocaffe.data.transform import HEIGHT, MEAN_X, MEAN_Y, MIRROR, WIDTH, Layout, Transform
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place, shape_text
from ocaffe.ir.tensor import Shape

_FIELDS = {"source", "batch_size", "rand_skip", "shuffle", "new_height", "new_width", "is_color", "root_folder"}


class Pair(NamedTuple):
    """An image and its label image, of which only the headers have been read; `shape` is the image's after resizing."""

    record: int
    files: tuple[Any, Any]
    shape: tuple[int, int, int]


class DenseImageSource(Source):
    """Batches of image files and label image files, cropped and mirrored in the same way. A block holds the images, followed by the labels, N x 1 x H x W."""

    def __init__(
        self, param: Any, transform: Transform, labels: bool, *, workers: int | None = None, place: Place | None = None, layer: str | None = None
    ) -> None:
        """`param` is the DenseImageDataParameter; `labels`: the layer has a top for labels; `workers`: threads that read and decode (default: one per core)."""
        super().__init__(place, layer)
        with self.located():
            check_fields(param, _FIELDS, "dense_image_data_param", "SegNet ignores it: remove it, or set it in transform_param")
            if not param.batch_size:
                raise Error("batch_size is 0", fix="batch_size of at least 1")
            transform.refuse_skipping()
            self.batch, self.transform, self.labels = int(param.batch_size), transform, labels
            self.color = Color.COLOR if param.is_color else Color.GRAY
            self.resized = new_size(param)
            self.list = Listing(param.source, "the file of an image and that of its labels")
            self._files = [self._pair(line, param.root_folder) for line in self.list.lines]
            self.order = Order(len(self._files), bool(param.shuffle), int(param.rand_skip))
            self.workers = Workers(workers)
            self._checked: tuple[int, int, int] | None = None
            self._first = self._layout(self._open(0))
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = (
            ("dense_image_data_layer.cpp:35", f"Opening file {param.source}"),
            *((("dense_image_data_layer.cpp:45", "Shuffling data"),) if self.order.shuffle else ()),
            ("dense_image_data_layer.cpp:50", f"A total of {self.order.entries} examples."),
            *transform.notes,
            ("dense_image_data_layer.cpp:93", f"output data size: {size}"),
        )

    def _pair(self, line: Line, root: str) -> tuple[str, str]:
        if len(line.words) != 2:
            raise Error(f"{self.list.source}, line {line.number}: {len(line.words)} words", fix="each line is the file of an image and that of its labels")
        return root + line.words[0], root + line.words[1]

    # -- shapes ------------------------------------------------------------------------------------------------------

    def _layout(self, pair: Pair) -> Layout:
        return Layout(self.batch, *self.transform.output(*pair.shape), np.dtype(np.uint8))

    def shapes(self) -> list[Shape]:
        return self._tops(self._first)

    def _tops(self, layout: Layout) -> list[Shape]:
        tops: list[Shape] = [(self.batch, channels, layout.height, layout.width) for channels in (layout.channels, 1)]
        return tops[: 1 + self.labels]

    @property
    def nbytes(self) -> int:
        return sum(layout.nbytes for layout in self.layouts(self.shapes()[0]))

    def layouts(self, top: Shape) -> list[Layout]:
        """Return the layouts of the consecutive parts of a block for a data top of shape `top`: images, then labels if the layer has a top for them."""
        layout = replace(self._first, channels=top[1], height=top[2], width=top[3])
        return [layout, replace(layout, channels=1)][: 1 + self.labels]

    # -- batches -----------------------------------------------------------------------------------------------------

    def fill(self, index: int, block: np.ndarray) -> BatchInfo:
        positions = self.share.positions(index, self.batch)
        with self.located():
            pairs = self.workers.run([partial(self._open, record) for record in self.order.records(self.key, positions)])
            tops = self._tops(self._layout(pairs[0]))
            layouts = self.layouts(tops[0])
            info = BatchInfo(tuple(tops), sum(layout.nbytes for layout in layouts))
            self._check_alike(pairs)
            if info.nbytes > block.nbytes:
                return info
            corners, mirror = self.transform.place(self.key, positions, np.array([pair.shape[1:] for pair in pairs]))
            rooms, begin = [], 0
            for layout in layouts:
                part = block[begin : begin + layout.nbytes]
                table = layout.table(part)
                table[...] = 0
                table[:, HEIGHT : WIDTH + 1] = layout.height, layout.width
                table[:, MEAN_Y : MEAN_X + 1], table[:, MIRROR] = corners, mirror
                rooms.append(layout.pixels(part))
                begin += layout.nbytes
            self.workers.run(
                partial(self._stage, pair, which, (int(corner[0]), int(corner[1])), room[n])
                for n, (pair, corner) in enumerate(zip(pairs, corners))
                for which, room in enumerate(rooms)
            )
        return info

    def _open(self, record: int) -> Pair:
        shapes: list[tuple[int, int, int]] = []
        files: list[Any] = []
        for path, color in zip(self._files[record], (self.color, Color.GRAY)):
            try:
                files.append(read_image(path, self.transform.max_pixels))
                channels, *size = files[-1].shape(color)
                height, width = self.resized or size
                shapes.append((channels, height, width))
                if shapes[0] != self._checked:
                    self.transform.check(*shapes[0])
                    self._checked = shapes[0]
                if shapes[-1][1:] != shapes[0][1:]:
                    raise Error(f"the labels are {shape_text(shapes[1][1:])}, the image {shape_text(shapes[0][1:])}", fix="labels as large as the image")
            except Error as problem:
                raise self.list.fault(problem, record, path) from None
        return Pair(record, (files[0], files[1]), shapes[0])

    def _check_alike(self, pairs: list[Pair]) -> None:
        sizes = [self.transform.output(*pair.shape) for pair in pairs]
        for pair, size in zip(pairs, sizes):
            if size != sizes[0]:
                problem = Error(
                    f"the image is {shape_text(size)}, the first one of its batch is {shape_text(sizes[0])}",
                    fix="set crop_size, new_height and new_width, or batch_size: 1",
                )
                raise self.list.fault(problem, pair.record, self._files[pair.record][0])

    def _stage(self, pair: Pair, which: int, corner: tuple[int, int], room: np.ndarray) -> None:
        """Decode the image (0) or the labels (1) of a pair and write the crop. Labels are resized by nearest neighbour, because they must not be mixed."""
        try:
            with decoded(pair.files[which], (self.color, Color.GRAY)[which]) as pixels:
                image = pixels.transpose(2, 0, 1)
                if self.resized:
                    image = resize(image, *self.resized, (Interpolation.LINEAR, Interpolation.NEAREST)[which])
                height, width = self.transform.crop or image.shape[1:]
                part = image[:, corner[0] : corner[0] + height, corner[1] : corner[1] + width]
                wrong = self.wrong_label(which, part) if which else None
                if wrong is None:
                    room.reshape(part.shape)[...] = part
        except Error as problem:
            raise self.list.fault(problem, pair.record, self._files[pair.record][which]) from None
        if wrong is not None:
            raise self.list.fault(wrong[1], pair.record, self._files[pair.record][which])

    def close(self) -> None:
        self.workers.close()
