"""Lists of image files: a file and its labels in each line, as in Caffe."""
from __future__ import annotations

from array import array

import numpy as np

from ocaffe.data.image_files import File, FileOpener, Files, label_values
from ocaffe.data.listing import Listing, read_found
from ocaffe.errors import Error


class ListFiles(Files):
    """The image files of a list. The last `label_count` words of a line are the labels; the file name before them may have spaces."""

    def __init__(self, source: str, root: str, label_count: int, floats: bool) -> None:
        """`root` is prepended to each name. `floats`: labels may be fractions. Raise Error without a place."""
        count = "its label" if label_count == 1 else f"{label_count} labels"
        lines = Listing(source, f"the file of an image, a space, and {count}").lines
        self.entries, self.what, self._source = len(lines), f"list {source}", source
        self.opener = FileOpener(read_found)
        self._names: list[str] = []
        self._lines = array("q", (line.number for line in lines))
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

    def file(self, record: int) -> File:
        return File(record, self._names[record], self.label(record))

    def name(self, found: File) -> str:
        return found.path

    def fault(self, problem: Error, record: int, found: File) -> Error:
        fix = problem.fix or "correct the list, or replace the file"
        return Error(f"{self._source}, line {self._lines[found.number]}: {found.path}: {problem.fact}", fix=fix)
