"""Lists of image files: a file and its labels in each line, as in Caffe."""
from __future__ import annotations

from array import array

import numpy as np

from ocaffe.data.stores.file_store import FileOpener, NamedFiles, label_values
from ocaffe.data.stores.text_list import Listing, read_found
from ocaffe.errors import Error


class ListFiles(NamedFiles):
    """The image files of a list. The last `label_count` words of a line are the labels; the file name before them may have spaces."""

    kind = "list"

    def __init__(self, source: str, root: str, label_count: int, floats: bool) -> None:
        """`root` is prepended to each name. `floats`: labels may be fractions. Raise Error without a place."""
        count = "its label" if label_count == 1 else f"{label_count} labels"
        lines = Listing(source, f"the file of an image, a space, and {count}").lines
        super().__init__(source)
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
                raise Error(f"{source}, line {line.number}: {problem}", fix=f"each line is a file, a space, and {count}") from None
            self._names.append(root + name)
        self.labels = np.array(values, np.float32).reshape(self.entries, label_count)
        self.notes = (("image_data_layer.cpp:38", f"Opening file {source}"),)
