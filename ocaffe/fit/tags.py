"""The task of tagging: images with any number of tags each, scored by the mean of the average precisions of the tags (mAP)."""
from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.data.decoding.decode import open_pillow, read_file
from ocaffe.data.stores.file_store import is_number
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.data.stores.labels_txt import LABELS, given_labels, labels_bytes
from ocaffe.data.stores.text_list import list_content
from ocaffe.errors import Error, names_text
from ocaffe.evaluation.confusion import lines_of, percent
from ocaffe.evaluation.whole_test import whole_test
from ocaffe.fit.conversion import converted, note_left_out
from ocaffe.fit.data_counts import of_lists
from ocaffe.fit.examples import EXAMPLES, drawn
from ocaffe.fit.listings import Listed, listings, readable
from ocaffe.fit.page import Data
from ocaffe.fit.see import TAGS
from ocaffe.fit.start import EPOCHS, NET, SIDES, mirrored
from ocaffe.fit.task import Result, Task, Wanted
from ocaffe.formats.text import read_solver
from ocaffe.solver.average_precision import Detections, average_precision
from ocaffe.support.files import new_folder
from ocaffe.zoo.images import Images, Part
from ocaffe.zoo.project import Project, begin, write_project
from ocaffe.zoo.weights import check_weights

LOOKED_AT = 50  # images, for their usual size
_BETWEEN = re.compile(r"[|;,\s]+")  # tags in one cell


class Tags(Task):
    """Images with any number of tags each."""

    name = TAGS
    score = "mAP"
    predict_flags = ("--annotate", "drawn")
    test_flags = ("--per-class",)

    def project(self, wanted: Wanted) -> Project:
        choices, net = wanted.choices, wanted.net or NET
        given = begin(net, wanted.out, wanted.again)
        check_weights(choices.weights)
        settings = ("tags", choices.val, choices.share, choices.seed)
        sources = [wanted.data, *filter(None, [choices.val])]
        data, notes = converted(sources, settings, wanted.out, lambda out: _convert(wanted, out), wanted.again)
        names = given_labels(data)
        parts = [Part(path, ListFiles(path, "", len(names), False).entries) for path in (os.path.join(data, f"{part}.txt") for part in ("train", "val"))]
        images = Images(parts[0], parts[1], names)
        epochs = choices.epochs or (0 if choices.weights else EPOCHS)
        if choices.augment is None:
            augment, note = mirrored(given.augment, names)
            choices, notes = replace(choices, augment=augment), [*notes, *filter(None, [note])]
        choices = replace(choices, val="", tags=len(names), epochs=epochs, size=choices.size or _side(net, parts[0].source, len(names)))
        project = write_project(net, images, wanted.out, choices, wanted.target, wanted.again)
        return replace(project, notes=(*project.notes, *notes))

    def test(self, project: Project, weights: str, device: Device) -> Result:
        net, solver = project.path("train_val.prototxt"), read_solver(project.path("solver.prototxt"))
        found = whole_test(net, weights, device, solver.test_iter[0], solver.ap_version).detections[project.accuracy]
        part = project.images.test
        files = ListFiles(part.source, "", project.classes, False)
        images = ((f"{number:02d}", read_file(files.file(number).path)) for number in range(min(files.entries, EXAMPLES)))
        return _Tagged(found, project.images.classes, part.images, drawn(project, weights, device, images))

    def data(self, project: Project) -> Data:
        return of_lists(project, project.images.classes, tags=True)


def _side(net: str, source: str, tags: int) -> int:
    """Return the side of the net's images; 0: as published."""
    files, sides = ListFiles(source, "", tags, False), list[int]()
    for number in range(0, files.entries if net == NET else 0, max(1, files.entries // LOOKED_AT)):
        with contextlib.suppress(Error), open_pillow(read_file(files.file(number).path)) as image:
            sides.append(min(image.size))
    return SIDES[float(np.median(sides)) > sum(SIDES) / 2] if sides else 0


def _convert(wanted: Wanted, out: str) -> list[str]:
    """Write lists of 0 and 1, and the names of the tags, into the folder `out`. Return notes."""
    choices = wanted.choices
    listed = listings(wanted.data, choices.val, choices.share, choices.seed)
    names = list(dict.fromkeys(name for part in listed for name in _names(part)))
    parts, bad = readable(listed)
    tables = [_labels(part, names) for part in parts]
    with new_folder(out) as made:
        for part, table, name in zip(parts, tables, ("train", "val")):
            rows = [f"{os.path.join(part.root, file)} {' '.join(map(str, labels))}" for file, labels in zip(part.names, table.tolist())]
            (made / f"{name}.txt").write_bytes(list_content(rows))
        (made / LABELS).write_bytes(labels_bytes(names))
    notes = []
    for have, what in ((1, "no image for training has"), (0, "every image for training has")):
        other = [name for name, column in zip(names, tables[0].T) if not (column == have).any()]
        if len(other) == len(names):
            raise Error(f"{what} a tag" if have else f"{what} all tags", place=wanted.data, fix="give images with the tag and without it, for each tag")
        if other:
            notes.append(f"{what} the tags {names_text(other)}, which cannot be learned")
    return [*notes, *note_left_out(wanted.out, bad, "images")]


def _is_numbers(part: Listed) -> bool:
    """Return whether the columns are 0 or 1 for a tag each; False if their cells are names of tags. Raise Error if some are numbers and some are not."""
    kinds: dict[bool, tuple[int, int]] = {}  # the first row and column of each kind
    for row, cells in enumerate(part.cells):
        for column, cell in enumerate(cells):
            if cell:
                kinds.setdefault(is_number(cell), (row, column))
    if len(kinds) == 2 and len(part.cells[0]) > 1:
        (row, column), (_, numbers) = kinds[False], kinds[True]
        fact = f"column {_column(part, column)} has '{part.cells[row][column]}', and column {_column(part, numbers)} has numbers"
        raise Error(fact, place=part.place(row), fix="write 0 or 1 in all columns of tags, or a name in all; and remove the columns that are no tags")
    return True in kinds and len(part.cells[0]) > 1


def _column(part: Listed, column: int) -> str:
    return f"'{part.header[column]}'" if part.header else str(column + 1)


def _names(part: Listed) -> list[str]:
    """Return the names of the tags."""
    if not _is_numbers(part):
        return sorted({tag for cells in part.cells for tag in _tags(cells)})
    if twice := next((name for name in part.header if not name or part.header.count(name) > 1), None):
        raise Error(f"the header names the column '{twice}' {part.header.count(twice)} times", place=part.source, fix="give each tag its own name")
    return part.header or [f"tag{number}" for number in range(1, len(part.cells[0]) + 1)]


def _tags(cells: Sequence[str]) -> list[str]:
    """Return the tags of an image: a cell each, or several in the only cell."""
    return [tag for cell in cells for tag in (_BETWEEN.split(cell) if len(cells) == 1 else [cell]) if tag]


def _labels(part: Listed, names: Sequence[str]) -> np.ndarray:
    """Return the labels, images x tags: 1, 0, or -1 if nothing is known. Without a 0 in the table, -1 means 0."""
    places = {name: place for place, name in enumerate(names)}
    labels = np.zeros((len(part.names), len(names)), np.int64)
    if not _is_numbers(part):
        for row, cells in enumerate(part.cells):
            labels[row, [places[tag] for tag in _tags(cells)]] = 1
        return labels
    own = _names(part)
    if missing := [name for name in names if name not in own]:
        raise Error(f"the table has no column '{missing[0]}', which the other part has", place=part.source, fix="give both tables the same columns")
    for row, cells in enumerate(part.cells):
        for column, cell in enumerate(cells):
            if cell and (not is_number(cell) or float(cell) not in (0, 1, -1)):
                fact = f"column {_column(part, column)} has '{cell}', and a tag is 1 or 0, or -1 if it is not known"
                raise Error(fact, place=part.place(row), fix="write 1, 0 or -1, or remove the column")
            labels[row, places[own[column]]] = float(cell or 0)
    return labels if (labels == 0).any() else np.maximum(labels, 0)


class _Tagged(Result):
    """The scores of all images and tags."""

    def __init__(self, found: Detections, names: Sequence[str], images: int, pictures: dict[str, bytes]) -> None:
        self.found, self.names, self.images, self.drawn = found, names, images, pictures
        rows = found.rows()
        self.rows = [(name, *self._figures(rows[rows[:, 1] == tag], tag)) for tag, name in enumerate(names)]

    def _figures(self, rows: np.ndarray, tag: int) -> tuple[int, int, float, float, float]:
        """Return the images with a tag, those that got it with a probability of 0.5 or more, precision and recall of these, and the average precision."""
        right, got = rows[:, 3] == 1, rows[:, 2] >= 0
        hits, points = int((right & got).sum()), self.found.points().get(tag)
        precision = np.nan if points is None else average_precision(points, self.found.version)
        return int(right.sum()), int(got.sum()), hits / got.sum() if got.any() else np.nan, hits / right.sum() if right.any() else np.nan, precision

    def record(self) -> dict[str, Any]:
        keys = ("name", "images", "got", "precision", "recall", "average_precision")
        classes = [{key: None if value != value else value for key, value in zip(keys, row)} for row in self.rows]
        return {"images": self.images, "mean_average_precision": self.found.mean, "tags": classes}

    def lines(self) -> Iterator[str]:
        rows = [(name, str(images), str(got), *map(percent, shares)) for name, images, got, *shares in self.rows]
        yield from lines_of([("tag", "images", "got it", "precision", "recall", "AP"), *rows, ("all", "", "", "", "", percent(self.found.mean))])

    def sentence(self) -> str:
        return f"mAP of the tags {100 * self.found.mean:.1f} % on {self.images} images"

    def pictures(self) -> dict[str, bytes]:
        return self.drawn
