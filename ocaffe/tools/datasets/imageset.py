"""Converts lists of image files to databases: convert_imageset, and SSD's convert_annoset with boxes."""
from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ocaffe.data.databases.writer import OPENED, WRITERS, Writer
from ocaffe.data.stores.file_store import is_number
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place, shape_text
from ocaffe.support import log
from ocaffe.support.files import text_lines, to_read
from ocaffe.support.here import here
from ocaffe.support.progress import progress

CHUNK = 32  # images are decoded in chunks of this size and then written
GIVE_UP = 5  # unreadable images at the start; then the folder or the list is wrong
REPORT_EVERY = 1000  # images, as in Caffe's tools
_LABELS = range(-(1 << 31), 1 << 31)


class Entry(NamedTuple):
    """A line of a list: its number, the image file, and the word after the last space (a label, or an annotation file)."""

    line: int
    name: str
    last: str


class Unreadable(NamedTuple):
    name: str
    reason: str


Made = tuple[Any, tuple[int, int, int]]  # a message, and the shape of the image in it


def read_list(path: str) -> list[Entry]:
    """Return the lines `FILE LAST` of a list. The last space of a line separates the two. Raise Error."""
    entries = []
    try:
        for number, line in enumerate(text_lines(path), 1):
            name, space, last = line.rstrip().rpartition(" ")
            if not space and last:
                raise Error(f"'{last}' has no space and label", place=Place(path, number), fix="end the line with a space and the label: FILE LABEL")
            if space:
                entries.append(Entry(number, name, last))
    except OSError as problem:
        fix = f"give a list with a line `FILE LABEL` for each image (relative to {here()})"
        raise Error(f"cannot be read: {problem.strerror}", place=path, fix=to_read(path, problem, fix)) from None
    if not entries:
        raise Error("names no image", place=path, fix="write a line `FILE LABEL` for each image")
    return entries


def label_of(entry: Entry, path: str) -> int:
    """Return the label of a line of the list `path`. Raise Error."""
    try:
        label = int(entry.last)
    except ValueError:
        fix = "end the line with a space and a whole number, the label"
        if is_number(entry.last):
            fix = "use whole numbers; for fractions, train with an ImageData layer with label_count: 1 in place of a database"
        raise Error(f"the label '{entry.last}' is not a whole number", place=Place(path, entry.line), fix=fix) from None
    if label not in _LABELS:
        raise Error(f"the label {label} does not fit into 32 bits", place=Place(path, entry.line), fix="number the classes from 0")
    return label


def shuffled(entries: list[Entry], seed: int) -> list[Entry]:
    """Return the entries in random order. Seed 0 gives a different order in each run; any other seed is reproducible."""
    log.info("convert_imageset.cpp:86", "Shuffling data")
    return random.Random(seed or None).sample(entries, len(entries))


def write_set(
    entries: Sequence[Entry], list_path: str, database: str, backend: str, make: Callable[[Entry], Made], check_size: bool, source: str, root: str
) -> list[Unreadable]:
    """Write a database of `make(entry)` for every entry. Return the entries that cannot be read; they are listed in the log too.

    `source` is the name of Caffe's source file for the log. `root` is the prefix of the names. An unfinished database is removed. Raise
    Error if the first five images cannot be read, if none can be read, or with `check_size` if sizes differ.
    """
    log.info(f"{source}:89", f"A total of {len(entries)} images.")
    left_out: list[Unreadable] = []

    def leave_out(entry: Entry, problem: Error) -> None:
        left_out.append(Unreadable(entry.name, problem.fact))
        log.error("io.cpp:76", f"Could not open or find file {root}{entry.name}: {problem.fact}")
        if len(left_out) == GIVE_UP and entry is entries[GIVE_UP - 1]:
            raise none_read(GIVE_UP)

    def none_read(tried: int) -> Error:
        fact = f"none of the {'first ' if tried < len(entries) else ''}{tried} images can be read; the first: {root}{left_out[0].name}: {left_out[0].reason}"
        there = "." if root in ("", "./") else root
        fix = f"the folder ({there}) is prepended to each name unchanged: end it with a slash"
        return Error(fact, place=list_path, fix=fix if not root.endswith("/") else "correct the folder, or the names in the list")

    with WRITERS[backend](database) as writer:
        log.info(OPENED[backend], f"Opened {backend} {database}")
        write_records(writer, entries, make, leave_out, list_path if check_size else None, source)
        if not writer.count:
            raise none_read(len(entries))
    if left_out:
        names = ", ".join(each.name for each in left_out)
        log.warning(f"{source}:1", f"{len(left_out)} of {len(entries)} files cannot be read and are not in {database}: {names}")
    return left_out


def write_records(
    writer: Writer,
    entries: Sequence[Entry],
    make: Callable[[Entry], Made],
    leave_out: Callable[[Entry, Error], None],
    alike: str | None,
    source: str,
) -> dict[tuple[int, int, int], str]:
    """Write `make(entry)` for every entry. Return the shapes of the images, each with the name of its first image.

    `make` runs in several threads. If it raises an Error without a place, `leave_out` is called with the entry and the Error. Keys are Caffe's: the
    number of the entry and its name. `alike` is the list whose images must have one size; None: no such list. Raise Error.
    """
    shapes: dict[tuple[int, int, int], str] = {}
    workers = Workers()
    try:
        with progress(len(entries), "image", os.path.basename(writer.path)) as bar:
            for start in range(0, len(entries), CHUNK):
                chunk = entries[start : start + CHUNK]
                for number, (entry, made) in enumerate(zip(chunk, workers.run(partial(_attempt, make, entry) for entry in chunk)), start):
                    bar.update()
                    if isinstance(made, Error):
                        leave_out(entry, made)
                        continue
                    message, shape = made
                    shapes.setdefault(shape, entry.name)
                    if alike and len(shapes) > 1:
                        raise _differ(shapes, Place(alike, entry.line))
                    writer.put(b"%08d_%s" % (number, os.fsencode(entry.name)), message.SerializeToString())
                    if writer.count % REPORT_EVERY == 0:
                        log.info(f"{source}:145", f"Processed {writer.count} files.")
    finally:
        workers.close()
    if writer.count % REPORT_EVERY:
        log.info(f"{source}:153", f"Processed {writer.count} files.")
    return shapes


def _attempt(make: Callable[[Entry], Made], entry: Entry) -> Made | Error:
    try:
        return make(entry)
    except Error as problem:
        if problem.place is not None:  # it names the list or an annotation file, so the user must correct it
            raise
        return problem


def _differ(shapes: dict[tuple[int, int, int], str], place: Place) -> Error:
    (first, name), (other, second) = list(shapes.items())[:2]
    return Error(
        f"{second} is {shape_text(other)}, {name} is {shape_text(first)}, and --check_size is given", place=place,
        fix=f"--resize_height={first[1]} --resize_width={first[2]} makes all alike; or leave out --check_size",
    )
