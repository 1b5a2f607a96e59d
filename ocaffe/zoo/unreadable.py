"""Leaves out the images that cannot be decoded, before a training. The images are then those of the same data without these files."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress, islice
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.databases.database import Database
from ocaffe.data.databases.lmdb_file import Arena
from ocaffe.data.decoding.decode import MAX_PIXELS, Color, decoded, open_image, read_file
from ocaffe.data.sources.database_images import DatumOpener, DatumStore
from ocaffe.data.stores.folder import ClassFolders, class_folders
from ocaffe.data.workers import Workers
from ocaffe.errors import Error
from ocaffe.support.progress import progress

_CHUNK = 64  # images are decoded in chunks of this size, between which the progress moves
_Image = tuple[str, Callable[[], Any]]  # its name, and a function that returns its file, None for raw pixels, or raises Error without a place


class Unreadable(NamedTuple):
    """An image that cannot be decoded: its file, or its database and key, and the reason."""

    name: str
    reason: str


class Check:
    """Decodes images. `found` are those that cannot be decoded, of `images` ones. The first call is for the images for training."""

    def __init__(self, limit: int = MAX_PIXELS) -> None:
        """`limit`: most pixels of an image."""
        self._limit, self.images, self.found = limit, 0, list[Unreadable]()

    def folders(self, root: str, classes: Sequence[str] = ()) -> ClassFolders:
        """Return the readable images of class folders, as `class_folders` does. Raise Error."""
        listed = class_folders(root, classes, photos=True)
        readable = self.files(listed.root, listed.root, listed.names, listed.labels, listed.classes)
        return listed._replace(names=list(compress(listed.names, readable)), labels=listed.labels[readable])

    def files(self, source: str, root: str, names: Sequence[str], labels: np.ndarray, classes: Sequence[str]) -> np.ndarray:
        """Return whether each file can be decoded. Raise Error if none can, or none of a class for training.

        `names` are relative to `root`. `source` is the folder or list that names them, for messages.
        """
        training, paths = not self.images, [os.path.join(root, name) for name in names]
        readable = self._checked([(path, partial(read_file, path)) for path in paths], len(paths), source)
        lost = sorted(set(labels.tolist()) - set(labels[readable].tolist()))
        if training and lost:
            number, rows = lost[0], np.flatnonzero(labels == lost[0])
            first = next(each for each in self.found if each.name == paths[rows[0]])
            called = f"'{classes[number]}'" if number < len(classes) else number
            raise _none_of(f"the {len(rows)} images of the class {called} in {source}", first, "replace them, or remove the class")
        return readable

    def database(self, database: Database) -> int:
        """Return how many image files in the records of a database cannot be decoded. Raise Error if none can."""
        return int(np.sum(~self._checked(_in_database(database), database.entries, database.path)))

    def _checked(self, images: Iterable[_Image], count: int, source: str) -> np.ndarray:
        """Return whether each of `count` images can be decoded. Raise Error if none can."""
        workers, found, readable = Workers(), list[Unreadable](), list[bool]()
        images = iter(images)
        try:
            with progress(count, "image", "checking the images") as bar:
                while chunk := list(islice(images, _CHUNK)):
                    for (name, _), reason in zip(chunk, workers.run(partial(self._reason, content) for _, content in chunk)):
                        readable.append(not reason)
                        if reason:
                            found.append(Unreadable(name, reason))
                    bar.update(len(chunk))
        finally:
            workers.close()
        if len(found) == count:
            raise _none_of(f"the {count} images in {source}", found[0], "replace them")
        self.found += found
        self.images += count
        return np.array(readable)

    def _reason(self, content: Callable[[], Any]) -> str:
        """Return why an image file cannot be decoded, '' if it can."""
        try:
            file = content()
            if file is not None:
                with decoded(open_image(file, self._limit), Color.COLOR):
                    pass
        except Error as problem:
            return problem.fact
        return ""


def _none_of(images: str, first: Unreadable, fix: str) -> Error:
    return Error(f"none of {images} can be read; the first: {first.name}: {first.reason}", fix=fix)


def _in_database(database: Database) -> Iterator[_Image]:
    store = DatumStore(database, False)
    for begin in range(0, database.entries, _CHUNK):
        for found in store.find(range(begin, min(begin + _CHUNK, database.entries))):
            yield f"{database.path}, {store.name(found)}", partial(_file_in, store.opener, found)


def _file_in(opener: DatumOpener, found: Any) -> Any:
    return opener.parse(opener.read([found], Arena())[0]).file
