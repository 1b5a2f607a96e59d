"""The source of an ImageData layer: image files that a text file lists, each with its label."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ocaffe.data.decode import Color, ImageFile, open_image, read_file
from ocaffe.data.pictures import PictureSource
from ocaffe.data.source import check_fields
from ocaffe.data.store import Opener, Record, Store
from ocaffe.data.transform import Transform
from ocaffe.errors import Error, Place
from ocaffe.files import check_finite_file

_FIELDS = {
    "source", "batch_size", "rand_skip", "shuffle", "new_height", "new_width", "is_color", "root_folder",
    "threads", "cache", "precache",  # NVCaffe's; they do not change results
    "scale", "mean_file", "crop_size", "mirror",  # without effect, as in Caffe; the net upgrade warns about them
}  # fmt: skip


class Line(NamedTuple):
    """A line of a list: its number from 1 on, and its words."""

    number: int
    words: list[str]


class Listing:
    """The lines of the text file `source`, without blank ones. Errors have no place."""

    def __init__(self, source: str, what: str) -> None:
        """`what` describes a line, for messages."""
        self.source = source
        fix = f"source names a text file, each line of which is {what} (relative to {os.getcwd()})"
        if not source:
            raise Error("source is empty", fix=fix)
        try:
            check_finite_file(source)
            with open(source, encoding="utf-8", errors="surrogateescape") as stream:  # file names may contain any bytes
                self.lines = [Line(number, line.split()) for number, line in enumerate(stream, 1) if line.strip()]
        except (OSError, ValueError) as problem:  # ValueError: the name has a zero byte
            raise Error(f"the list '{source}' cannot be read: {getattr(problem, 'strerror', None) or problem}", fix=fix) from None
        if not self.lines:
            raise Error(f"the list {source} names no image", fix=fix)

    def fault(self, problem: Error, record: int, name: str) -> Error:
        """Return `problem` with the file `name` and the line number added."""
        fix = problem.fix or "correct the list, or replace the file"
        return Error(f"{self.source}, line {self.lines[record].number}: {name}: {problem.fact}", fix=fix)

    def number(self, line: Line, word: str) -> int:
        try:
            return whole_number(word)
        except ValueError:
            fact = f"{self.source}, line {line.number}: the label '{word}' is not a whole number of 32 bits"
            raise Error(fact, fix="each line is a file and its label") from None


def read_image(path: str, limit: int) -> ImageFile:
    """Return the image in a file; only its header is decoded. `limit`: most pixels. Raise Error without a place."""
    return open_image(read_listed(path), limit)


def read_listed(path: str) -> bytes:
    """Return the content of a file. Raise Error without a place."""
    try:
        return read_file(path)
    except Error as problem:
        problem.fix = f"correct its name or root_folder (relative to {os.getcwd()})"
        raise


def whole_number(word: str) -> int:
    """Return a number of a list: an int of C, 32 bits. Raise ValueError."""
    number = int(word)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(word)
    return number


def new_size(param: Any) -> tuple[int, int] | None:
    """Return (new_height, new_width), or None if both are 0. Raise Error if only one is set."""
    height, width = int(param.new_height), int(param.new_width)
    if bool(height) != bool(width):
        raise Error(f"new_height is {height} and new_width {width}", fix="set both, or none of them")
    return (height, width) if height else None


class File(NamedTuple):
    """An image file and its label. `line` is the line of the list, for messages."""

    path: str
    label: int
    line: int


class FileOpener(Opener):
    """Reads image files."""

    def parse(self, content: File) -> Record:
        return Record(content.label, read_listed(content.path))


class ListStore(Store):
    """The image files of a list, each with its label. `root` is prepended to each name."""

    one_size = "set new_height and new_width"

    def __init__(self, listing: Listing, root: str) -> None:
        """Raise Error without a place."""
        self._list, self.what, self.opener = listing, f"list {listing.source}", FileOpener()
        self._files = [self._file(line, root) for line in listing.lines]
        self.entries = len(self._files)

    def _file(self, line: Line, root: str) -> File:
        *words, label = line.words
        if not words:
            raise Error(f"{self._list.source}, line {line.number}: '{label}' has no label", fix="each line is a file, a space, and its label")
        return File(root + " ".join(words), self._list.number(line, label), line.number)

    def find(self, records: Sequence[int]) -> Sequence[File]:
        return [self._files[record] for record in records]

    def name(self, found: File) -> str:
        return found.path

    def fault(self, problem: Error, record: int, found: File) -> Error:
        return self._list.fault(problem, record, found.path)


class ListSource(PictureSource):
    """Batches of image files. Files of several sizes need `new_height` and `new_width`, a crop, or batches of one."""

    def __init__(
        self, param: Any, transform: Transform, labels: bool, *, workers: int | None = None, place: Place | None = None, layer: str | None = None
    ) -> None:
        """`param` is the ImageDataParameter; `labels`: the layer has a top for labels; `workers`: threads that read and decode (default: one per core)."""
        self.place, self.layer = place, layer
        with self.located():
            check_fields(param, _FIELDS, "image_data_param", "remove it")
            store = ListStore(Listing(param.source, "the file of an image, a space, and its label"), param.root_folder)
            workers = workers or (int(param.threads) if param.HasField("threads") else None)
            color = Color.COLOR if param.is_color else Color.GRAY
            super().__init__(store, param, transform, labels, color, workers, resized=new_size(param), place=place, layer=layer)
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = (
            ("image_data_layer.cpp:38", f"Opening file {param.source}"),
            *((("image_data_layer.cpp:53", "Shuffling data"),) if param.shuffle else ()),
            ("image_data_layer.cpp:63", f"A total of {store.entries} images."),
            *transform.notes,
            ("image_data_layer.cpp:90", f"output data size: {size}"),
        )
