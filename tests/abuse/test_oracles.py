"""The fuzzers of data sets and of strangers' files say something: each finds a fault that is planted into the reader."""
from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from ocaffe.evaluation import sidecar
from ocaffe.formats import numpy_file
from ocaffe.tools.datasets import annotations, labelme_set, voc_set, yolo_set
from ocaffe.tools.datasets.annotations import Box, Boxes
from tests.abuse import fuzz, strangers
from tests.abuse.harness import GOOD, failure

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the folders have pipes")
INPUTS = 250  # that must be enough to find a planted fault


def finding(section: str, seed: int = 3) -> str:
    """The kind of the first finding in some inputs, '' without one."""
    seeds = fuzz.SECTIONS[section].seeds()
    for number in range(INPUTS):
        try:
            fuzz.read(section, fuzz.made(section, seeds, seed, number), number)
        except Exception as problem:
            if (kind := failure(problem).kind) not in GOOD:
                return kind
    return ""


def swap(box: Box) -> Box:
    return box._replace(xmin=box.ymin, ymin=box.xmin)


def changed(module: Any, name: str, change: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(module, name, change(getattr(module, name)))


def quiet(read: Callable[..., Any]) -> Callable[..., Any]:
    """A reader that takes what it cannot read for nothing."""

    def run(*arguments: Any) -> Any:
        try:
            return read(*arguments)
        except Error:
            return Boxes(None, [])

    return run


def typed_by_value(shape: Any) -> Box:
    """LabelMe's shapes as they were read once: a list as the type is a TypeError."""
    if shape.get("shape_type", "polygon") not in labelme_set._LEAST_POINTS:
        raise ValueError("another type")
    return labelme_set_box(shape)


labelme_set_box = labelme_set._box
PLANTED: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "VOC: a damaged file has no boxes": ("voc-set", changed(voc_set, "read_boxes", quiet)),
    "VOC: corners exchanged": (
        "voc-set", changed(annotations, "READERS", lambda readers: {**readers, "xml": lambda content: _swapped(readers["xml"](content))}),
    ),
    "VOC: the last object is lost": (
        "voc-set", changed(annotations, "READERS", lambda readers: {**readers, "xml": lambda content: _shorter(readers["xml"](content))}),
    ),
    "LabelMe: TypeError for a list": ("labelme-set", changed(labelme_set, "_box", lambda box: typed_by_value)),
    "LabelMe: corners exchanged": ("labelme-set", changed(labelme_set, "_box", lambda box: lambda shape: swap(box(shape)))),
    "LabelMe: names with white space": ("labelme-set", changed(labelme_set, "_box", lambda box: lambda shape: box(shape)._replace(label=shape["label"]))),
    "YOLO: a bad line is left out": (
        "yolo-boxes", changed(yolo_set, "read_lines", lambda read: lambda path: [each for each in read(path) if each[1][0] not in "-23456789nx"]),
    ),
    "YOLO: center for corner": (
        "yolo-boxes", changed(yolo_set, "_box", lambda box: lambda *args: swap(made) if isinstance(made := box(*args), Box) else made),
    ),
    "sidecar: any file as the mean": ("sidecar", changed(sidecar, "_beside", lambda beside: lambda path, name: np.load(pathlib.Path(path).parent / name))),
    "sidecar: types unchecked": ("sidecar", changed(sidecar, "misfit", lambda misfit: lambda value, kind: "")),
    "NumPy: columns for rows": ("numpy", changed(numpy_file, "_array", lambda read: lambda *args: np.ascontiguousarray(read(*args).T))),
    "ONNX: data from anywhere": (
        "onnx-strangers",
        lambda monkeypatch: monkeypatch.setattr("ocaffe.convert.importer.external._plain", lambda tensor, location, folder, place: folder / location),
    ),
}  # fmt: skip


def _swapped(boxes: Boxes) -> Boxes:
    return boxes._replace(boxes=[swap(box) for box in boxes.boxes])


def _shorter(boxes: Boxes) -> Boxes:
    return boxes._replace(boxes=boxes.boxes[:1])


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    section, plant = PLANTED[name]
    plant(monkeypatch)
    assert finding(section)


@pytest.mark.parametrize("section", sorted({section for section, _ in PLANTED.values()}))
def test_without_a_fault_nothing_is_found(section: str) -> None:
    assert not finding(section)


def test_the_reader_of_typed_json() -> None:
    """A value of any type at any place of a sidecar is an Error or a right value."""
    folder = strangers.strange_folder("weights")
    whole = json.loads(strangers.sidecars()[1])
    for key in whole:
        for value in (None, True, 10**400, float("nan"), [], {}, "x", -1, [[1]], {"a": 1}, ""):
            (folder / "a.json").write_text(json.dumps({**whole, key: value}))
            try:
                strangers.sidecar(str(folder / "a.json"))
            except Error as problem:
                assert problem.place and problem.fix
            except FileExistsError:
                raise
            except OSError as problem:
                assert "same file" in str(problem)
