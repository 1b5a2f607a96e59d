"""Finds the images of a training: class folders, tables, lists or databases, with a part for training and a part for testing."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.databases.database import open_database
from ocaffe.data.databases.datum import raw_shape
from ocaffe.data.decoding.decode import open_pillow, read_file
from ocaffe.data.source import RECORDS, permutation
from ocaffe.data.stores.folder import HELD_OUT, TRAINING, class_folders, skipped_text
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.data.stores.label_names import is_database, label_names
from ocaffe.data.stores.labels_txt import LABELS, given_labels, labels_bytes
from ocaffe.data.stores.table import SUFFIX, TableFiles, is_table
from ocaffe.data.stores.text_list import unlisted
from ocaffe.errors import Error
from ocaffe.formats.nearby import elsewhere
from ocaffe.support.here import here
from ocaffe.tools.datasets.folder_set import SHARE, Settings, check_apart, divide, list_bytes
from ocaffe.tools.datasets.imageset import Entry
from ocaffe.zoo.unreadable import Check

ACCEPTED = "class folders, folders train and val of class folders, a table (.csv), a list (.txt), or a folder with train_lmdb and val_lmdb"
LIST = ".txt"
UNREADABLE = "unreadable.txt"  # the file that names the images that were left out
LOOKED_AT = 50  # images, for their usual size and colors
GRAY = ("1", "L", "LA", "I", "I;16", "F")  # Pillow's modes


class Part(NamedTuple):
    """The images for training or for testing: the source of the data layer and the number of images."""

    source: str
    images: int
    root: str = ""  # root_folder of a list
    bad: int = 0  # records of a database that cannot be decoded


class Images(NamedTuple):
    """The images of a training.

    `classes`: the names of the classes, [] if they are not known. `stored`: channels, height and width of the records of a database, if its first record
    is raw pixels. `backend`: the kind of the database, None for lists of image files. `files`: the contents of new files, by path. `notes`: for the user.
    """

    train: Part
    test: Part
    classes: list[str]
    backend: int | None = None
    stored: tuple[int, int, int] | None = None
    files: dict[str, bytes] = {}
    notes: tuple[str, ...] = ()


def find_images(data: str, out: str, val: str = "", share: float = SHARE, seed: int = 0, check: Check | None = None) -> Images:
    """Find the images in `data`, and those for testing in `val` or in a part of `data`. Raise Error.

    Of class folders and of tables without a part for testing, `share` of the images is for testing; `seed` decides which. Image files get lists in the
    folder `out`, so that both parts have the same numbers of classes. `check` decodes all images. Files that cannot be decoded are left out, and a file in
    `out` names them.
    """
    if not os.path.exists(data):
        found = elsewhere(data)
        where = f"{found.path} exists; or " if found else ""
        raise Error(f"{data} does not exist", fix=f"{where}give {ACCEPTED} (relative to {here()})")
    if val and not os.path.exists(val):
        raise Error(f"{val} does not exist", place="--val", fix=f"correct the path (relative to {here()})")
    if not val and os.path.isdir(data):
        data, val = parts_in(data)
    images = _databases(data, val, check) if is_database(data) else _listed(data, val, out, share, seed, check)
    if check is None or not check.found:
        return images
    path = os.path.join(out, UNREADABLE)
    lines = [f"{each.name}: {each.reason}".replace("\n", " ") for each in check.found]
    note = f"{len(lines)} of {check.images} images cannot be read and are left out; {path} names them"
    return images._replace(files={**images.files, path: os.fsencode("".join(f"{line}\n" for line in lines))}, notes=(*images.notes, note))


def parts_in(folder: str) -> tuple[str, str]:
    """Return the databases, tables or lists for training and for testing in `folder`, else the folder itself and ''."""
    entries = sorted(os.listdir(folder))
    has_folders = any(os.path.isdir(os.path.join(folder, name)) for name in entries)  # which can be classes; then other files do not matter
    for kind, found in (
        ("database", [name for name in entries if is_database(os.path.join(folder, name))]),
        ("table", [name for name in entries if name.lower().endswith(SUFFIX)]),
        ("list", [name for name in entries if name.lower().endswith(LIST) and name != LABELS]),
    ):
        if not found:
            continue
        training, held_out = ([name for word in words for name in found if word in _words(name)] for words in (TRAINING, HELD_OUT))
        if len(training) != 1 or not held_out:
            if kind != "database" and has_folders:
                continue
            fact = f"the folder {folder} has the {kind}s {', '.join(found)}, and not one for training (train) and one for testing (val or test)"
            raise Error(fact, fix=f"give the {kind} for training in place of {folder}, and --val with the {kind} for testing")
        chosen = next((name for name in held_out if "val" in _words(name)), held_out[0])
        return os.path.join(folder, training[0]), os.path.join(folder, chosen)
    return folder, ""


def _words(name: str) -> list[str]:
    return os.path.splitext(name)[0].lower().replace("-", "_").split("_")


def _databases(train: str, test: str, check: Check | None) -> Images:
    if not test:
        raise Error(f"{train} is a database, and none is given for testing", fix="give one for testing too: --val DATABASE")
    if not is_database(test):
        raise Error(f"{train} is a database, and {test} is none", fix="--val with a database, or --data and --val with two folders or lists")
    backend = backend_of(train)
    if backend_of(test) != backend:
        raise Error(f"{train} and {test} are databases of different kinds", fix="give two databases that are both LMDB or both LevelDB")
    opened = {path: open_database(path, backend) for path in (train, test)}
    classes, others = label_names(train), label_names(test)
    if others and classes and others != classes:
        raise Error(f"the {LABELS} of {train} and of {test} differ", fix="make both databases of images with the same classes")
    stored = raw_shape(opened[train])
    encoded = check if stored is None else None
    parts = [Part(path, database.entries, bad=encoded.database(database) if encoded else 0) for path, database in opened.items()]
    return Images(parts[0], parts[1], classes or others, backend, stored)


def backend_of(folder: str) -> int:
    return int(proto.DataParameter.LMDB if os.path.exists(os.path.join(folder, "data.mdb")) else proto.DataParameter.LEVELDB)


class _List(NamedTuple):
    """Image files with the numbers of their classes. The names are relative to `root`."""

    root: str
    names: list[str]
    labels: np.ndarray
    classes: list[str]


def _listed(data: str, val: str, out: str, share: float, seed: int, check: Check | None) -> Images:
    notes: list[str] = []
    if not val and os.path.isdir(data):
        check_apart(data, out)
        parts = divide(data, Settings(share=share, seed=seed), check.folders if check else class_folders)
        names = [name for name in parts.entries if name != "train"]
        if not names:
            raise Error(f"no image of {data} is left for testing", place="--test", fix="a share above 0: --test 0.2")
        held_out = next((name for name in names if name.lower().startswith("val")), names[0])
        entries, root, classes = [parts.entries["train"], parts.entries[held_out]], data, parts.classes
        notes = [skipped_text(parts.skipped).removeprefix("; ")] if parts.skipped else []
        roots = [root, root]
    else:
        train = _read(data, [], check)
        lists = [train, _read(val, train.classes, check)] if val else _split(train, share, seed)
        roots, classes = [each.root for each in lists], train.classes
        entries = [[Entry(i, name, str(int(label))) for i, (name, label) in enumerate(zip(each.names, each.labels), 1)] for each in lists]
    made = []
    files = {}
    for name, rows, root in zip(("train", "val"), entries, roots):
        path = os.path.join(out, f"{name}.txt")
        files[path] = list_bytes(rows)
        made.append(Part(path, len(rows), os.path.join(root, "") if root else ""))
    if classes:
        files[os.path.join(out, LABELS)] = labels_bytes(classes)
    return Images(made[0], made[1], classes, files=files, notes=tuple(notes))


def _read(source: str, classes: Sequence[str], check: Check | None) -> _List:
    """Read class folders, a table or a list. `classes` are the names for training, [] if this is the source for training."""
    if os.path.isdir(source):
        folders = (check.folders if check else class_folders)(source, classes)
        return _List(source, folders.names, folders.labels, folders.classes)
    table = TableFiles(source, "", 1, False) if is_table(source, 1) else ListFiles(source, "", 1, False)
    labels = table.labels[:, 0].astype(np.int64)
    named = table.classes if isinstance(table, TableFiles) else []  # in a list labels are numbers
    if classes and named:
        unknown = sorted(set(named) - set(classes))
        if unknown:
            raise Error(f"{source} has the class '{unknown[0]}', which is not among the classes for training", fix="correct the name, or leave it out")
        labels = np.array([classes.index(name) for name in named])[labels]
    names = [table.file(record).path for record in range(table.entries)]
    if problem := unlisted(names, source):
        raise problem
    root, classes = root_of(source, names[0]), list(classes or named or given_labels(os.path.dirname(source) or "."))
    if check:
        readable = check.files(source, root, names, labels, classes)
        names, labels = list(compress(names, readable)), labels[readable]
    return _List(root, names, labels, classes)


def root_of(table: str, name: str) -> str:
    """Return the folder to which the names of a table or list are relative: '' for the current folder, else that of the table. Raise Error."""
    beside = os.path.dirname(table)
    root = next((folder for folder in ("", beside) if os.path.exists(os.path.join(folder, name))), None)
    if root is None:
        fact = f"the first image of {table}, {name}, is neither in {here()} nor in {beside or '.'}"
        raise Error(fact, fix="make the names relative to one of these folders")
    return root


def _split(listed: _List, share: float, seed: int) -> list[_List]:
    """Divide a table or list by chance. At least one image is in each part."""
    count = len(listed.names)
    if not 0 < share < 1:
        raise Error(f"--test is {share:g}", fix="a share of the images between 0 and 1: --test 0.2")
    if count < 2:
        raise Error("there is one image, and none is left for testing", fix="add images, at least one more")
    order = permutation((seed & 0xFFFFFFFFFFFFFFFF, 0), RECORDS, 0, count)
    testing = min(max(round(count * share), 1), count - 1)
    rows = [order[testing:], order[:testing]]
    return [_List(listed.root, [listed.names[row] for row in part.tolist()], listed.labels[part], listed.classes) for part in rows]


def typical_side(images: Images) -> int:
    """Return the median of the shorter sides of some images, in pixels; 0 if none can be read. Of databases it is that of the first record."""
    if images.backend is not None:
        return min(images.stored[1:]) if images.stored else 0
    sides = [min(width, height) for width, height, _ in _looks(images)]
    return int(np.median(sides)) if sides else 0


def is_color(images: Images) -> bool:
    """Return whether most of some image files have colors. Of databases it is what the first record says, False for encoded ones."""
    if images.backend is not None:
        return images.stored is not None and images.stored[0] == 3
    colors = [mode not in GRAY for _, _, mode in _looks(images)]
    return sum(colors) * 2 > len(colors)


def _looks(images: Images) -> Iterator[tuple[int, int, str]]:
    """Yield width, height and Pillow's mode of some image files. Those that cannot be read are left out."""
    lines = images.files[images.train.source].splitlines()
    for line in lines[:: max(1, len(lines) // LOOKED_AT)]:
        path = os.path.join(os.fsencode(images.train.root), line.rsplit(b" ", 1)[0])
        with contextlib.suppress(Error), open_pillow(read_file(os.fsdecode(path))) as image:
            yield (*image.size, image.mode)


def largest_label(images: Images) -> int:
    """Return the largest label in the lists of image files; -1 for databases."""
    lists = [images.files[part.source] for part in (images.train, images.test) if part.source in images.files]
    words = [line.rsplit(b" ", 1)[1] for content in lists for line in content.splitlines()]
    return max(map(int, words), default=-1)
