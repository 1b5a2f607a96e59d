"""The names of classes, from wherever the images of a data layer come."""
from __future__ import annotations

import os
from collections import Counter

from ocaffe.data.stores.folder import split_of, subfolders
from ocaffe.data.stores.labels_txt import LABELS, given_labels, read_labels
from ocaffe.data.stores.shards import is_shards
from ocaffe.data.stores.table import is_table, table_names
from ocaffe.errors import Error
from ocaffe.support.here import here

_DATABASE = ("data.mdb", "CURRENT")  # files in the folder of an LMDB, of a LevelDB


def label_names(path: str) -> list[str]:
    """Return the names of the classes in the order of their numbers, [] if they are not known.

    `path` is a database, a folder of class folders, a list, a table (.csv), tar shards, or a labels.txt. The names are those of the labels.txt in the
    folder, or beside the file. Without it they are the class folders, or the classes in the table. Raise Error if a file cannot be read.
    """
    if os.path.isdir(path):
        return given_labels(path) or ([] if is_database(path) else _folder_names(path))
    if os.path.basename(path) == LABELS:
        return read_labels(path)
    if not os.path.exists(path) and not is_shards(path):
        raise Error(f"{path} does not exist", fix=f"correct the name: it is a database, a folder, a list, a table or a labels.txt (relative to {here()})")
    given = given_labels(os.path.dirname(path) or ".")
    return given or (table_names(path) if is_table(path, 1) else [])


def is_database(folder: str) -> bool:
    """Return whether `folder` has an LMDB or a LevelDB."""
    return any(os.path.exists(os.path.join(folder, name)) for name in _DATABASE)


def _folder_names(folder: str) -> list[str]:
    folders, _ = subfolders(folder, Counter())
    if split := split_of(folders):
        folders, _ = subfolders(os.path.join(folder, split[0]), Counter())
    return folders
