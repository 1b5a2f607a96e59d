"""The task of finding objects: images with boxes, scored by the mean average precision (mAP)."""
from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.stores.label_names import is_database
from ocaffe.errors import Error
from ocaffe.evaluation.tables import detection_table, label_map_names
from ocaffe.evaluation.whole_test import whole_test
from ocaffe.fit.conversion import converted, note_left_out
from ocaffe.fit.examples import EXAMPLES, drawn
from ocaffe.fit.see import BOXES, MADE
from ocaffe.fit.task import Choice, Result, Task, Wanted
from ocaffe.formats.text import read_solver
from ocaffe.ir.target import Target
from ocaffe.shown import command, path_word
from ocaffe.solver.average_precision import Detections
from ocaffe.tools.datasets.box_databases import Settings, make_databases
from ocaffe.tools.datasets.box_set import Fault
from ocaffe.tools.datasets.encode import Recipe
from ocaffe.tools.datasets.stored_boxes import corners_of
from ocaffe.zoo.detection_project import is_detector, write_detector
from ocaffe.zoo.project import Project

EPOCHS = 60  # from fillers


class Boxes(Task):
    """Images with boxes of objects."""

    name = BOXES
    score = "mAP"
    predict_flags = ("--annotate", "drawn")
    test_flags = ("--per-class",)

    def project(self, wanted: Wanted) -> Project:
        self.check(wanted, is_detector, "ssd_shapes")
        choices = wanted.choices
        data, notes = wanted.data, list[str]()
        if wanted.seen.form != MADE:
            self.check_parts(wanted)
            settings = Settings(Recipe(encode=None, dimensions=True), share=choices.share, seed=choices.seed, skip_bad=True)
            tool = command("ocaffe", "dataset", wanted.seen.form, path_word(wanted.data), "DIR")
            data, notes = converted([wanted.data], settings, wanted.out, lambda out: _convert(wanted, out, settings), wanted.again, tool)
        choice = _choice(wanted.target)
        filled = replace(choices, epochs=choices.epochs or (0 if choices.weights else EPOCHS))
        project = write_detector(wanted.net or choice.net, data, wanted.out, filled, wanted.target, wanted.again)
        return replace(project, notes=(*project.notes, *notes, *([] if wanted.net else [choice.why])))

    def test(self, project: Project, weights: str, device: Device) -> Result:
        net, solver = project.path("train_val.prototxt"), read_solver(project.path("solver.prototxt"))
        scores = whole_test(net, weights, device, solver.test_iter[0], solver.ap_version)
        return _Detected(scores.detections[project.accuracy], label_map_names(net), project, drawn(project, weights, device, _images(project)))


def _choice(target: Target) -> Choice:
    """Return the net for a device."""
    if target.is_cpu:
        return Choice("ssd_shapes", "ssd_shapes is a small net, because the device is a CPU; --net mobilenet_ssd sees 300 x 300 pixels and takes longer")
    return Choice("mobilenet_ssd", "mobilenet_ssd sees 300 x 300 pixels; --net ssd_shapes, with 128 x 128, is faster")


def _convert(wanted: Wanted, out: str, settings: Settings) -> list[str]:
    """Convert the data set into the folder `out`. Return notes. Raise Error if half of the boxes cannot be used: then there is one mistake in all."""
    faults: list[Fault] = []
    make_databases(wanted.seen.form, wanted.data, out, settings, faults)
    parts = [os.path.join(out, name) for name in sorted(os.listdir(out)) if is_database(os.path.join(out, name))]
    if len(parts) == 1:
        fact = f"the data set has the part {os.path.basename(parts[0]).removesuffix('_lmdb')} alone, and no images for testing"
        raise Error(fact, place=wanted.data, fix="add a part for testing beside it, such as val (docs/detection-data.md)")
    boxes, wrong = sum(len(corners_of(part)[0]) for part in parts), [fault for fault in faults if not fault.whole]
    if len(wrong) >= boxes:
        first = next(iter(wrong or faults), None)
        if first is None:
            raise Error("no image has a box", place=wanted.data, fix="add boxes")
        fact = f"{len(wrong)} of {boxes + len(wrong)} boxes cannot be used; the first, {first.place}: {first.fact}"
        raise Error(fact, place=wanted.data, fix=first.fix)
    return note_left_out(wanted.out, [f"{fault.place}: {fault.fact}" for fault in faults], "boxes or images")


def _images(project: Project) -> Iterator[tuple[str, bytes]]:
    """Yield some images for testing that are stored as files, with names."""
    part, backend = project.images.test, project.images.backend
    assert backend is not None
    reader = Reader(open_database(part.source, backend))
    for number in range(min(part.images, EXAMPLES)):
        [(_, value)] = reader.read(number)
        datum = proto.AnnotatedDatum.FromString(bytes(value)).datum
        if datum.encoded:
            yield f"{number:02d}", datum.data


class _Detected(Result):
    """The detections of a test."""

    def __init__(self, found: Detections, names: dict[int, str], project: Project, pictures: dict[str, bytes]) -> None:
        self.found, self.names, self.images, self.drawn = found, names, project.images.test.images, pictures

    def record(self) -> dict[str, Any]:
        classes = [
            {"name": self.names.get(label, str(label)), "boxes": boxes, "detections": count, "average_precision": precision}
            for label, (boxes, count, precision) in self.found.by_class().items()
        ]
        return {"images": self.images, "mean_average_precision": self.found.mean, "classes": classes}

    def lines(self) -> Iterator[str]:
        yield from detection_table(self.found.by_class(), self.names)

    def sentence(self) -> str:
        return f"mAP {100 * self.found.mean:.1f} % at an overlap of 0.5, on {self.images} images"

    def pictures(self) -> dict[str, bytes]:
        return self.drawn
