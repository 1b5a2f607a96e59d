"""The task of reading lines of text: images with a text each, scored by the share of lines without an error."""
from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.data.decoding.decode import open_pillow, read_file
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.data.stores.labels_txt import LABELS, labels_bytes
from ocaffe.data.stores.text_list import list_content
from ocaffe.errors import Error
from ocaffe.evaluation.confusion import lines_of
from ocaffe.evaluation.whole_test import whole_test
from ocaffe.fit.conversion import converted, note_left_out
from ocaffe.fit.examples import EXAMPLES, answered, png
from ocaffe.fit.listings import Listed, listings, readable
from ocaffe.fit.see import MADE, TEXT
from ocaffe.fit.task import Result, Task, Wanted
from ocaffe.formats.text import read_solver
from ocaffe.support.files import new_folder
from ocaffe.zoo.project import Project
from ocaffe.zoo.text_project import find_texts, is_reader, write_reader

NET = "crnn"
BLANK = "blank"
SPACES = ("_", "\u2423", "\u2420")  # names of the space, which no line of labels.txt can be; the first one that is no character of a text
HEIGHT, COLUMNS = 32, 4  # pixels of the net's images, and those of a time step
LEAST, MOST = 64, 512  # pixels of their width
LOOKED_AT = 200  # images for testing whose texts are compared


class Texts(Task):
    """Images with a line of text each."""

    name = TEXT
    score = "right lines"
    predict_flags = ("--annotate", "drawn")

    def project(self, wanted: Wanted) -> Project:
        self.check(wanted, is_reader, NET)
        choices, data, notes = wanted.choices, wanted.data, list[str]()
        if wanted.seen.form != MADE:
            settings = (choices.val, choices.share, choices.seed)
            data, notes = converted([wanted.data, *filter(None, [choices.val])], settings, wanted.out, lambda out: _convert(wanted, out), wanted.again)
            choices = replace(choices, val="")
        if not choices.width:
            choices = replace(choices, width=_width(data, choices.val))
        project = write_reader(wanted.net or NET, data, wanted.out, choices, wanted.target, wanted.again)
        return replace(project, notes=(*project.notes, *notes))

    def test(self, project: Project, weights: str, device: Device) -> Result:
        net, solver = project.path("train_val.prototxt"), read_solver(project.path("solver.prototxt"))
        outputs = whole_test(net, weights, device, solver.test_iter[0], solver.ap_version).outputs
        return _Read(outputs, project, weights, device)


def _width(data: str, val: str) -> int:
    """Return the width of the net's images: that of most images at the net's height, and enough time steps for the longest text."""
    found = find_texts(data, val)
    files = ListFiles(found.images.train.source, "", found.length, False)
    shapes = []
    for record in range(0, files.entries, max(1, files.entries // 50)):
        path = os.path.join(found.images.train.root, files.file(record).path)
        with contextlib.suppress(Error), open_pillow(read_file(path)) as image:  # the training names a file that is no image
            shapes.append(image.width / image.height)
    wanted = max(float(np.quantile(shapes, 0.9)) * HEIGHT if shapes else LEAST, (found.steps + 1) * COLUMNS)
    return int(min(max(-(-wanted // (2 * COLUMNS)) * 2 * COLUMNS, LEAST), MOST))


def _convert(wanted: Wanted, out: str) -> list[str]:
    """Write lists of numbers, and the characters, into the folder `out`. Return notes."""
    choices = wanted.choices
    parts, bad = readable(listings(wanted.data, choices.val, choices.share, choices.seed))
    for part in parts:
        _check(part)
    texts = [[cells[0] for cells in part.cells] for part in parts]
    letters = sorted(set(itertools.chain(*texts[0])))
    unknown = sorted(set(itertools.chain(*texts[1])) - set(letters))
    letters += unknown  # the net cannot learn them, but their lines count as wrong
    space = next(name for name in SPACES if name not in letters)
    names = [BLANK, *(space if letter == " " else letter for letter in letters)]
    numbers = {letter: number for number, letter in enumerate(letters, 1)}
    longest = max(map(len, itertools.chain(*texts)))
    with new_folder(out) as made:
        for part, lines, name in zip(parts, texts, ("train", "val")):
            rows = [f"{os.path.join(part.root, file)} {' '.join(map(str, [numbers[letter] for letter in text] + [0] * (longest - len(text))))}"
                    for file, text in zip(part.names, lines)]  # fmt: skip
            (made / f"{name}.txt").write_bytes(list_content(rows))
        (made / LABELS).write_bytes(labels_bytes(names))
    notes = [f"the space is written as '{space}'"] if " " in letters else []
    if unknown:
        notes.append(f"{len(unknown)} characters are in texts for testing alone, and cannot be learned: {' '.join(unknown[:20])}")
    return [*notes, *note_left_out(wanted.out, bad, "images")]


def _check(part: Listed) -> None:
    """Raise Error unless each image has one text."""
    for row, cells in enumerate(part.cells):
        if len(cells) != 1:
            columns = f" ({', '.join(part.header)})" if part.header else ""
            raise Error(f"the image has {len(cells)} texts{columns}", place=part.place(row), fix="give a table with two columns, the file and its text")
        if not cells[0]:
            raise Error(f"the text of {part.names[row]} is empty", place=part.place(row), fix="write the text, or remove the line")


class _Read(Result):
    """The texts that were read in a test."""

    def __init__(self, outputs: dict[str, float], project: Project, weights: str, device: Device) -> None:
        self.lines_right, self.characters = outputs[project.accuracy], outputs["characters"]
        self.images, self.names = project.images.test.images, project.images.classes
        part = project.images.test
        files = ListFiles(part.source, "", find_texts(os.path.dirname(part.source), part.source).length, False)
        self.wrong: list[tuple[str, str, str]] = []  # file, text, and the text that was read
        self.drawn: dict[str, bytes] = {}
        paths = [os.path.join(part.root, files.file(record).path) for record in range(min(files.entries, LOOKED_AT))]
        self.looked_at = len(paths)
        for number, (name, picture, record) in enumerate(answered(project, weights, device, ((path, read_file(path)) for path in paths))):
            true = "".join(self.names[int(label)] for label in files.labels[number] if label > 0)
            if record["text"] != true:
                self.wrong.append((name, true, record["text"]))
            if number < EXAMPLES:
                self.drawn[f"examples/{number:02d}.png"] = png(picture())

    def record(self) -> dict[str, Any]:
        return {"images": self.images, "right_lines": self.lines_right, "characters": self.characters,
                "wrong": [{"file": file, "text": true, "read": read} for file, true, read in self.wrong]}  # fmt: skip

    def lines(self) -> Iterator[str]:
        yield from lines_of([("", "share"), ("right lines", f"{100 * self.lines_right:.1f} %"), ("right characters", f"{100 * self.characters:.1f} %")])
        yield from _said(self.wrong[:5])
        if len(self.wrong) > 5:
            yield f"and {len(self.wrong) - 5} more of the first {self.looked_at} images"

    def sentence(self) -> str:
        return f"right lines {100 * self.lines_right:.1f} %, right characters {100 * self.characters:.1f} %, on {self.images} images"

    def pictures(self) -> dict[str, bytes]:
        return self.drawn


def _said(wrong: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    return (f"{file}: '{true}' is read as '{read}'" for file, true, read in wrong)
