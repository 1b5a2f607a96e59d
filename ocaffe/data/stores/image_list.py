"""Lists of image files: a file and its labels in each line, as in Caffe."""
from __future__ import annotations

import os
from array import array

import numpy as np

from ocaffe.data.stores.file_store import FileOpener, NamedFiles, is_number, label_values
from ocaffe.data.stores.text_list import Listing, read_found
from ocaffe.errors import Error


class ListFiles(NamedFiles):
    """The image files of a list. The last `label_count` words of a line are the labels; the file name before them may have spaces.

    White space before a name belongs to it if such a file is there, as in Caffe. Otherwise the line is indented.
    """

    kind = "list"

    def __init__(self, source: str, root: str, label_count: int, floats: bool) -> None:
        """`root` is prepended to each name. `floats`: labels may be fractions. Raise Error without a place."""
        count = "its label" if label_count == 1 else f"{label_count} labels"
        lines = Listing(source, f"the file of an image, a space, and {count}").lines
        super().__init__(source, root)
        self.entries, self.opener = len(lines), FileOpener(read_found)
        self._lines.extend(line.number for line in lines)
        values = array("d")
        for line in lines:
            name, *words = line.text.rsplit(None, label_count)
            try:
                if len(words) < label_count:
                    raise ValueError(f"'{line.text}' has no label" if label_count == 1 else f"'{line.text}' has less than {label_count} labels")
                values.extend(label_values(words, floats))
            except ValueError as problem:
                fix = _remedy(line.text, label_count, floats) or f"write a file, a space, and {count} into each line"
                raise Error(f"{source}, line {line.number}: {problem}", fix=fix) from None
            self._names.append(root + (line.indent if _begins_so(source, root, line.indent + name) else "") + name)
        self.labels = np.array(values, np.float32).reshape(self.entries, label_count)
        self.notes = (("image_data_layer.cpp:38", f"Opening file {source}"),)


def _begins_so(source: str, root: str, name: str) -> bool:
    """Return whether there is a file whose name begins with white space: `name` after `root`, or beside the list."""
    return name[:1].isspace() and any(os.path.exists(path) for path in (root + name, os.path.join(os.path.dirname(source), name)) if "\0" not in path)


def _remedy(text: str, label_count: int, floats: bool) -> str | None:
    """Return the remedy for a line whose labels cannot be read: a label_count that fits it, or another kind of file."""
    words = text.split()
    count = next((number for number, word in enumerate(words[::-1]) if not is_number(word)), 0)
    if count and (count != label_count or not floats):
        return f"label_count: {count} in image_data_param" + (", which allows fractions" if count == label_count else f", if each line has {count} labels")
    if len(words) == 1 and any(mark in text for mark in ",;"):
        return "write a space in place of the comma, or name the file .csv, and it is read as a table"
    if len(words) > 1 and not count:
        return "number the classes from 0; or write a .csv with a file and the name of a class in each row"
    return None
