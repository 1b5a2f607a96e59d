"""Opens the image files that `source` of an ImageData layer names."""
from __future__ import annotations

import os
from typing import Any

from ocaffe.data.stores.file_store import Files
from ocaffe.data.stores.folder import FolderFiles
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.data.stores.label_names import is_database
from ocaffe.data.stores.shards import ShardFiles, is_shards
from ocaffe.data.stores.table import TableFiles, is_table
from ocaffe.errors import Error


def open_files(param: Any) -> Files:
    """Return the files of an ImageDataParameter: tar shards, class folders, a table (.csv) or a list. Raise Error without a place."""
    source, root, count = param.source, param.root_folder, int(param.label_count)
    floats = param.HasField("label_count")
    if not count:
        raise Error("label_count is 0", fix="remove label_count, or set it to at least 1; leave out the second top if the net uses no labels")
    if root and (os.path.isdir(source) or is_shards(source)):
        raise Error(f"root_folder is '{root}', and source '{source}' is no list of names", fix="remove root_folder")
    if is_shards(source):
        return ShardFiles(source, count, floats)
    if os.path.isdir(source):
        if is_database(source):
            raise Error(f"source '{source}' is a database", fix='use a layer of type: "Data"')
        if count > 1:
            raise Error(f"label_count is {count}, and an image in class folders has one label", fix="remove label_count, or write a list")
        return FolderFiles(source)
    files = TableFiles if is_table(source, count) else ListFiles
    return files(source, root, count, floats)
