"""Converts class folders to databases for training and testing, with lists and the names of the classes beside them."""
from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.data.source import RECORDS, permutation
from ocaffe.data.stores.folder import HELD_OUT, TRAINING, ClassFolders, class_folders, skipped_text, split_of, subfolders
from ocaffe.data.stores.labels_txt import LABELS, labels_bytes, numbering
from ocaffe.data.stores.text_list import list_content, unlisted
from ocaffe.errors import Error, shape_text
from ocaffe.support import log
from ocaffe.support.files import new_entries
from ocaffe.tools.datasets.encode import Recipe, datum_of
from ocaffe.tools.datasets.imageset import Entry, Made, write_records

SHARE = 0.2  # of each class, for testing
_SOURCE = "convert_imageset.cpp"


class Settings(NamedTuple):
    """How to make the databases.

    `share` of each class is for testing. `seed` decides which images, and with `shuffle` their order. `most_bad` images may be left out because they
    cannot be read. `check_size` rejects images of different sizes.
    """

    recipe: Recipe = Recipe()
    share: float = SHARE
    seed: int = 0
    shuffle: bool = True
    check_size: bool = False
    most_bad: int = 0


class Parts(NamedTuple):
    """The classes, the images of each part by its name, and the count of other files."""

    classes: list[str]
    entries: dict[str, list[Entry]]
    skipped: Counter[str]


def make_databases(root: str, out: str, settings: Settings) -> list[str]:
    """Make `out`/train_lmdb and `out`/test_lmdb of the class folders in `root`. Return lines for the user. Raise Error.

    The subfolders train and test (or val) of `root` are the parts if it has them. Otherwise each class is divided by `settings.share`. Beside the
    databases are a list of each part (train.txt) and labels.txt; the databases have a labels.txt too. All get their names when all are complete.
    """
    check_apart(root, out)
    parts = divide(root, settings)
    databases = {part: f"{part}_lmdb" for part in parts.entries}
    lists = {part: f"{part}.txt" for part in parts.entries}
    bad = _Bad(root, settings.most_bad, sum(map(len, parts.entries.values())))

    def make(entry: Entry) -> Made:
        made = datum_of(os.path.join(root, entry.name), int(entry.last), settings.recipe)
        return made.datum, made.shape

    lines, names = [], labels_bytes(parts.classes)
    with new_entries(out, (*databases.values(), *lists.values(), LABELS)) as folder:
        for part, entries in parts.entries.items():
            shown = os.path.join(out, databases[part])
            with LmdbWriter(str(folder / databases[part])) as writer:
                alike = os.path.join(out, lists[part]) if settings.check_size else None
                shapes = write_records(writer, entries, make, bad.leave_out, alike, _SOURCE)
                if not writer.count:
                    raise Error(f"none of the {len(entries)} images of {shown} can be read", fix=f"replace the files in {root} by images that open")
                writer.attach(LABELS, names)
            lines.append(f"{shown}: {writer.count} images of {len(parts.classes)} classes, {_sizes(list(shapes))}")
        for part, entries in parts.entries.items():
            (folder / lists[part]).write_bytes(list_bytes([entry for entry in entries if entry not in bad.entries]))
        (folder / LABELS).write_bytes(names)
    lines.append(f"{', '.join(os.path.join(out, name) for name in (*lists.values(), LABELS))}: the names of the images, relative to {root}, and of the classes")
    if bad.entries:
        lines.append(f"{len(bad.entries)} images cannot be read and are left out")
    if parts.skipped:
        lines.append(skipped_text(parts.skipped).removeprefix("; "))
    return lines


class _Bad:
    """The images that cannot be read, of `total` ones. More than `most` are an Error."""

    def __init__(self, root: str, most: int, total: int) -> None:
        self.root, self.most, self.total, self.entries = root, most, total, set[Entry]()

    def leave_out(self, entry: Entry, problem: Error) -> None:
        self.entries.add(entry)
        path = os.path.join(self.root, entry.name)
        if len(self.entries) > self.most:
            allowed = f"; {self.most} others are left out already" if self.most else ""
            fix = f"{problem.fix or 'replace or remove the file'}, or leave out all that cannot be read: --skip-bad-records {self.total}"
            raise Error(f"{path}: {problem.fact}{allowed}", fix=fix)
        log.warning(f"{_SOURCE}:1", f"{path}: {problem.fact}. It is left out ({len(self.entries)} of at most {self.most}).")


def check_apart(root: str, out: str) -> None:
    """Raise Error if `out` lies in `root`, where the databases would be classes the next time."""
    inner, outer = os.path.realpath(out), os.path.realpath(root)
    if inner == outer or inner.startswith(os.path.join(outer, "")):
        raise Error(f"the folder for the databases, {out}, lies in the folder of the images, {root}", fix="choose a folder outside of it")


def divide(root: str, settings: Settings, images: Callable[..., ClassFolders] = class_folders) -> Parts:
    """Divide the images of class folders for training and testing. The subfolders train and test (or val) of `root` are the parts if it has them.

    `images` lists them, those for training first.
    """
    if not 0 <= settings.share < 1:
        raise Error(f"--test is {settings.share:g}", fix="a share of the images from 0 on and below 1: --test 0.2")
    skipped: Counter[str] = Counter()
    folders, _ = subfolders(root, skipped)
    parts = split_of(folders)
    if not parts:
        listed = images(root)
        return Parts(listed.classes, _divided(listed, settings), listed.skipped)
    if others := sorted(set(folders) - set(parts)):
        fact = f"the folder {root} has the parts {' and '.join(parts)} and another subfolder, '{others[0]}'"
        raise Error(fact, fix=f"move it away, or give one folder of classes: {os.path.join(root, parts[0])}")
    if settings.share != SHARE:
        fact = f"--test is {settings.share:g}, and the folder {root} is divided already: {' and '.join(parts)}"
        raise Error(fact, fix=f"leave out --test, or give one folder of classes: {os.path.join(root, parts[0])}")
    classes = numbering(root)
    entries: dict[str, list[Entry]] = {}
    for part in parts:
        listed = images(os.path.join(root, part), classes)
        classes = listed.classes
        skipped += listed.skipped
        name = TRAINING[0] if part == parts[0] else HELD_OUT[0] if len(parts) == 2 else part
        entries[name] = _entries(listed, np.arange(len(listed.names)), f"{part}/", name, settings)
    return Parts(classes, entries, skipped)


def _divided(listed: ClassFolders, settings: Settings) -> dict[str, list[Entry]]:
    """Return the images for training and testing. Of a class of two or more images, both parts have at least one. Other classes do not matter."""
    testing = np.zeros(len(listed.names), bool)
    for label, name in enumerate(listed.classes):
        rows = np.flatnonzero(listed.labels == label)
        wanted = round(len(rows) * settings.share)
        count = min(max(wanted, 1), len(rows) - 1) if settings.share and len(rows) > 1 else 0
        testing[rows[permutation(_key(settings.seed, name), RECORDS, 0, len(rows))[:count]]] = True
    chosen = {"train": ~testing, "test": testing} if settings.share else {"train": ~testing}
    if settings.share and not testing.any():
        raise Error(f"no class in {listed.root} has two images, so that none is left for testing", fix="--test 0, or add images")
    return {part: _entries(listed, np.flatnonzero(rows), "", part, settings) for part, rows in chosen.items()}


def _entries(listed: ClassFolders, rows: np.ndarray, prefix: str, part: str, settings: Settings) -> list[Entry]:
    """Return the lines of a part's list. `prefix` is put before the names."""
    if settings.shuffle:
        rows = rows[permutation(_key(settings.seed, part), RECORDS, 1, len(rows))]
    entries = [Entry(line, prefix + listed.names[row], str(listed.labels[row])) for line, row in enumerate(rows.tolist(), 1)]
    if problem := unlisted((entry.name for entry in entries), listed.root):
        raise problem
    return entries


def _key(seed: int, name: str) -> tuple[int, int]:
    return seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(os.fsencode(name))


def list_bytes(entries: Sequence[Entry]) -> bytes:
    """Return the content of a list of image files. Raise Error."""
    return list_content(f"{entry.name} {entry.last}" for entry in entries)


def _sizes(shapes: Sequence[tuple[int, int, int]]) -> str:
    """Describe the sizes of images, with the remedy if a net needs one size."""
    if len(shapes) == 1:
        return shape_text(shapes[0])
    return f"{len(shapes)} sizes such as {shape_text(shapes[0])} and {shape_text(shapes[1])} (a net needs a crop_size, or --resize_height and --resize_width)"
