"""Class folders: each subfolder of a folder is a class, and the image files in it, at any depth, are its images."""
from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from ocaffe.data.decoding.decode import read_file
from ocaffe.data.decoding.pixels import FORMATS
from ocaffe.data.stores.file_store import File, FileOpener, Files
from ocaffe.data.stores.labels_txt import LABELS, numbering
from ocaffe.errors import Error
from ocaffe.support.files import to_read
from ocaffe.support.here import here

IMAGE_SUFFIXES = frozenset(suffix[1:] for suffix, kind in Image.EXTENSION.items() if kind in FORMATS) | {"dib", "sr"}
PHOTO_SUFFIXES = IMAGE_SUFFIXES | {"heic", "heif", "avif", "jxl", "dng", "cr2", "cr3", "nef", "arw"}  # also of formats that ocaffe does not read
TRAINING = ("train", "training")  # names of subfolders with images for training, in any case
HELD_OUT = ("test", "testing", "val", "valid", "validation")  # and for testing
_SYSTEM = {"__MACOSX", "@eaDir"}  # folders that file managers and storage devices make


class ClassFolders(NamedTuple):
    """The images of a folder.

    `names` are relative to `root`, in the order of the labels, then by name. `labels` has the number of the class of each, int32. `skipped` counts the
    other files, by kind.
    """

    root: str
    classes: list[str]
    names: list[str]
    labels: np.ndarray
    skipped: Counter[str]


def is_image_name(name: str, photos: bool = False) -> bool:
    """Return whether the suffix of `name` is that of an image format. `photos`: or of a photo in a format that ocaffe does not read."""
    return "." in name and name.rpartition(".")[2].lower() in (PHOTO_SUFFIXES if photos else IMAGE_SUFFIXES)


def class_folders(root: str, classes: Sequence[str] = (), photos: bool = False) -> ClassFolders:
    """List the images of the class folders in `root`. Raise Error.

    `classes` are the names in the order of their numbers. Without them it is the labels.txt in `root`, else the sorted names of the subfolders.
    `photos`: also list photos in formats that ocaffe does not read. No file is opened, and the type of an entry comes from its folder. A broken link or a
    pipe with the suffix of an image is in the list, and reading it is an error.
    """
    root = root.rstrip("/\\") or root
    skipped: Counter[str] = Counter()
    folders, loose = subfolders(root, skipped)
    if not folders:
        fact = f"the folder {root} has no subfolders" + (f", and {loose} images itself" if loose else "")
        raise Error(fact, fix=f"move the images of each class into a subfolder with its name, such as {os.path.join(root, 'cat')}")
    if parts := split_of(folders):
        fact = f"the folder {root} has the subfolders {' and '.join(parts)}, which are parts, not classes"
        raise Error(fact, fix=f"give one of them: {os.path.join(root, parts[0])}")
    numbered = list(classes or numbering(root))
    unknown = sorted(set(folders) - set(numbered)) if numbered else []
    if unknown:
        known = "among the classes for training" if classes else f"in {os.path.join(root, LABELS)}"
        fix = f"correct the name, add it to {LABELS}, or move the folder away" if not classes else "correct the name, or move the folder away"
        raise Error(f"the folder {root} has the class '{unknown[0]}', which is not {known}", fix=fix)
    numbered = numbered or folders
    if len(numbered) < 2:
        raise Error(f"the folder {root} has one class, '{folders[0]}'", fix=f"give {os.path.join(root, folders[0])} if its subfolders are the classes")
    names: list[str] = []
    counts: list[int] = []
    for name in numbered:
        found = _images(root, name, skipped, photos) if name in folders else []
        if name in folders and not found:
            raise Error(f"the class folder {os.path.join(root, name)} has no image file", fix="add images, or remove the folder")
        names += found
        counts.append(len(found))
    if loose:
        skipped["images without a class folder"] += loose
    return ClassFolders(root, numbered, names, np.repeat(np.arange(len(numbered), dtype=np.int32), counts), skipped)


def subfolders(root: str, skipped: Counter[str]) -> tuple[list[str], int]:
    """Return the sorted names of the subfolders of `root`, and the number of its own images. Count its other files in `skipped`. Raise Error."""
    folders, loose = [], 0
    for entry in _entries(root):
        if entry.name.startswith(".") or entry.name in _SYSTEM:
            skipped["hidden"] += 1
        elif entry.is_dir():
            folders.append(entry.name)
        elif is_image_name(entry.name):
            loose += 1
        elif entry.name != LABELS:
            skipped[_kind(entry.name)] += 1
    return sorted(folders), loose


def split_of(folders: Sequence[str]) -> list[str]:
    """Return the training part and the held-out parts among the names of subfolders, [] if they are no parts."""
    training, held_out = ([folder for name in names for folder in folders if folder.lower() == name] for names in (TRAINING, HELD_OUT))
    return [training[0], *held_out] if training and held_out else []


def _images(root: str, name: str, skipped: Counter[str], photos: bool) -> list[str]:
    """Return the sorted names, relative to `root`, of the images below its subfolder `name`."""
    found: list[str] = []
    todo: list[tuple[str, tuple[tuple[int, int], ...]]] = [(name, ())]  # folders, each with the identities of those above it
    while todo:
        folder, above = todo.pop()
        path = os.path.join(root, folder)
        entries, key = _entries(path), _identity(path)
        if key in above:
            raise Error(f"the folder {path} is a link to a folder above it", fix="remove the link")
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _SYSTEM:
                skipped["hidden"] += 1
            elif entry.is_dir():
                todo.append((f"{folder}/{entry.name}", (*above, key)))
            elif is_image_name(entry.name, photos):
                found.append(f"{folder}/{entry.name}")
            else:
                skipped[_kind(entry.name)] += 1
    return sorted(found)


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (OSError, ValueError) as problem:  # ValueError: the name has a zero byte
        reason = getattr(problem, "strerror", None) or problem
        raise Error(f"the folder {path} cannot be read: {reason}", fix=to_read(path, problem, f"correct its name (relative to {here()})")) from None


def _identity(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as problem:
        fix = to_read(path, problem, f"correct its name (relative to {here()})")
        raise Error(f"the folder {path} cannot be read: {problem.strerror}", fix=fix) from None
    return status.st_dev, status.st_ino


def _kind(name: str) -> str:
    """Return how files such as `name` are counted: by suffix."""
    suffix = os.path.splitext(name)[1].lower()
    return suffix or "without suffix"


class FolderFiles(Files):
    """The images of class folders."""

    def __init__(self, root: str) -> None:
        """Raises Error without a place."""
        self.listed = listed = class_folders(root)
        self.entries, self.labels = len(listed.names), listed.labels.astype(np.float32)[:, None]
        self.opener = FileOpener(_read)
        self.notes = (("image_data_layer.cpp:38", f"Opening folder {listed.root}: {len(listed.classes)} classes{skipped_text(listed.skipped)}"),)

    def file(self, record: int) -> File:
        return File(record, os.path.join(self.listed.root, self.listed.names[record]), self.label(record))

    def name(self, found: File) -> str:
        return found.path

    def fault(self, problem: Error, record: int, found: File) -> Error:
        return Error(f"{found.path}: {problem.fact}", fix=problem.fix or "replace the file, or remove it")


def _read(file: File) -> bytes:
    return read_file(file.path)


def skipped_text(skipped: Counter[str]) -> str:
    """Return how many files were left out, by kind, for messages: '' if there are none."""
    if not skipped:
        return ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(skipped.items()))
    return f"; {sum(skipped.values())} entries are no images: {kinds}"
