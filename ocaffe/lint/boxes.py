"""Rules over the boxes and labels of AnnotatedData and RoIData layers. They read the first records of the databases (box_sample.py)."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.stores.labels_txt import LABELS, given_labels
from ocaffe.errors import shape_text
from ocaffe.formats.text import read
from ocaffe.layers.base import param_field
from ocaffe.lint.box_sample import CORNERS, DIFFICULT, IMAGE, LABEL, BoxSample, sample_of
from ocaffe.lint.data import PARAMS, param_of, settings_of
from ocaffe.lint.rules import Finding, Job, View, job_rule, own_param
from ocaffe.support.files import text_lines
from ocaffe.support.whole import whole

EDGE = 0.01  # of the image; boxes that leave it by less are rounded ones
DRAWS = 50  # images
ASPECT = 0.05  # by which the aspect ratio of a resized image may differ
RARE = 0.5  # a batch without boxes is reported if it is more probable than this

# layers that read labels: the field with the number of classes, and whether the background is one of them
CLASSES = {
    "MultiBoxLoss": ("num_classes", True), "AlignedBoxLoss": ("num_classes", True), "DetectionEvaluate": ("num_classes", True),
    "RegionLoss": ("num_class", False), "Yolov3": ("num_class", False),
    "RoIData": ("num_classes", True), "ProposalTarget": ("num_classes", True),
}  # fmt: skip
AGNOSTIC = 2  # num_classes of a ProposalTarget whose boxes are the same for all classes (R-FCN)
LOSSES = ("MultiBoxLoss", "AlignedBoxLoss", "RegionLoss", "Yolov3")


class Fault(NamedTuple):
    """A way in which a box is wrong. `found` tells it of corners, n x 4."""

    text: str
    found: Callable[[np.ndarray], Any]
    fix: str


FAULTS = (  # a box counts for the first one that it has
    Fault("not finite", lambda c: ~np.isfinite(c).all(1), "correct the annotations; `ocaffe dataset voc --skip-bad` leaves such boxes out"),
    Fault("in pixels", lambda c: (abs(c) > 2).any(1), "divide the corners by width and height of the image, as `ocaffe dataset voc` and convert_annoset do"),
    Fault("inverted", lambda c: (c[:, 2:] < c[:, :2]).any(1), "exchange minimum and maximum of them; `ocaffe dataset voc --skip-bad` leaves such boxes out"),
    Fault("empty", lambda c: (c[:, 2:] == c[:, :2]).any(1), "make the database by `ocaffe dataset voc`; SSD's convert_annoset reads 12.5 as 0"),
    Fault("outside of the image", lambda c: (c < -EDGE).any(1) | (c > 1 + EDGE).any(1), "correct the annotations: often <size> is not that of the image"),
)  # fmt: skip


class Read(NamedTuple):
    """A data layer with its sample, and the layers that read its labels. RoIData is one of its own readers, because it has num_classes."""

    view: View
    layer: Any
    sample: BoxSample
    readers: list[Any]

    def finding(self, rule: str, fact: str, fix: str, path: str = "") -> Finding:
        return self.view.finding(rule, self.layer, fact, fix, path or f"{PARAMS[self.layer.type]}.source")


def reads(job: Job) -> Iterator[Read]:
    """Yield the data layers of a job whose boxes can be read."""
    for view in job.views:
        for index, layer in enumerate(view.layers):
            sample = sample_of(job, view, layer)
            if sample is not None:
                regions = layer.type == "RoIData"
                readers = [each for top in ((2, 3) if regions else (1,)) for each in view.followers(index, top) if each.type in CLASSES]
                yield Read(view, layer, sample, [layer] * regions + readers)


@job_rule
def wrong_boxes(job: Job) -> Iterator[Finding]:
    """Boxes in pixels, inverted or empty boxes, boxes outside of the image. A net never gets most of them, and its loss stays 0."""
    for each in reads(job):
        rows = each.sample.stored
        left = np.ones(len(rows), bool)
        for fault in FAULTS:
            found = left & fault.found(rows[:, CORNERS])
            left &= ~found
            if found.any():
                first = rows[found][0]
                corners = ", ".join(f"{value:g}" for value in first[CORNERS])
                where = f"the first one, of record '{each.sample.key(first)}', is {corners} (xmin, ymin, xmax, ymax)"
                yield each.finding("wrong-boxes", f"{found.sum():,} of {len(rows):,} boxes are {fault.text} in {each.sample.text}; {where}", fault.fix)


@job_rule
def label_not_in_map(job: Job) -> Iterator[Finding]:
    """A box whose label is not in the label map."""
    for each in reads(job):
        names, rows = _names(each.layer), each.sample.stored
        wrong = rows[~np.isin(rows[:, LABEL], list(names))] if names else rows[:0]
        if len(wrong):
            fact = f"a box of record '{each.sample.key(wrong[0])}' has the label {wrong[0][LABEL]:g}, {_map(each.layer)} has {_range(names)}"
            fix = "set label_map_file to the label map with which the database was made"
            yield each.finding("label-not-in-map", fact, fix, "annotated_data_param.label_map_file")


@job_rule
def background_object(job: Job) -> Iterator[Finding]:
    """A box with the label of the background. Its classes were numbered from 0."""
    for each in reads(job):
        rows = each.sample.stored
        for reader in each.readers:
            background = getattr(own_param(reader), "background_label_id", 0)
            wrong = rows[rows[:, LABEL] == background]
            if len(wrong):
                fact = f"{len(wrong):,} of {len(rows):,} boxes have the label {background}, which is the background for '{reader.name}' ({reader.type})"
                fix = f"number the classes {'from 1' if not background else 'otherwise'}, in the label map and in the database; {background} is the background"
                yield each.finding("background-object", fact, fix)
                break


@job_rule
def number_of_classes(job: Job) -> Iterator[Finding]:
    """A number of classes that differs from the label map, or is too small for the labels. The background counts in SSD, but not in YOLO."""
    for each in reads(job):
        names, rows = _names(each.layer), each.sample.stored
        largest = int(rows[:, LABEL].max(initial=-1))
        for reader in each.readers:
            field, with_background = CLASSES[reader.type]
            given, wanted = _number(reader, field), max(largest, *names, -1) + with_background
            if reader.type == "ProposalTarget" and given == AGNOSTIC:
                continue
            if given == wanted or (given > wanted and not names) or getattr(own_param(reader), "map_object_to_agnostic", False):
                continue
            where = _map(each.layer) if max(names, default=-1) >= largest else each.sample.database.path
            fact = f"{field} is {given}, and {where} has the labels up to {wanted - with_background}"
            counted = "with the background" if with_background else "without the background"
            fix = f"{field}: {wanted} ({counted}) in all layers, and num_output of the layers of confidences for {wanted} classes"
            yield each.view.finding("number-of-classes", reader, fact, fix, f"{param_field(reader.type) or 'python_param'}.{field}")


def _number(reader: Any, field: str) -> int:
    """Return the number of classes of a layer that reads labels."""
    own = own_param(reader)
    return int(getattr(own, field) if own is not None else settings_of(reader).get(field, 0))


@job_rule
def label_map_differs(job: Job) -> Iterator[Finding]:
    """A label map that gives labels other names than the one of the database, or of the other phase."""
    first: Read | None = None
    for each in reads(job):
        names = _names(each.layer)
        if not names:
            continue
        source = param_of(each.layer).source
        listed = {label: {name} for label, name in enumerate(given_labels(source))}
        others = [(f"labels.txt of {source}", listed)] if [*names] == [*range(len(names))] else []
        if first is not None and first.view.phase != each.view.phase:
            others.append((f"{_map(first.layer)} of phase {proto.Phase.Name(first.view.phase)}", _names(first.layer)))
        first = first or each
        for where, other in others:
            label = next((label for label in sorted(names) if label in other and not names[label] & other[label]), None)
            if label is not None:
                fact = f"label {label} is '{min(names[label])}' in {_map(each.layer)}, and '{min(other[label])}' in {where}"
                fix = "set label_map_file in all layers to the label map with which the databases were made"
                yield each.finding("label-map-differs", fact, fix, "annotated_data_param.label_map_file")


@job_rule
def no_objects(job: Job) -> Iterator[Finding]:
    """Data without boxes, or whose boxes are dropped by the transforms or as difficult. The loss is 0, or the average precision is 0."""
    for each in reads(job):
        trains, batch = any(reader.type in LOSSES for reader in each.readers), int(param_of(each.layer).batch_size)
        stored = each.sample.stored
        counted = _counted(each, stored)
        records = np.unique(counted[:, IMAGE])  # with boxes
        share, kept = len(records) / len(each.sample.keys), _kept(each, records) if trains else 1.0
        empty = (1 - share * kept) ** (batch if trains else len(each.sample.keys))
        if not each.readers or empty <= RARE:
            continue
        if not len(stored):
            fact, fix = f"no record has a box: {each.sample.text}", "set source to a database with boxes; `ocaffe dataset show` draws them"
        elif not len(counted):
            field = "'use_diff': True" if each.layer.type == "RoIData" and each.view.train else "use_difficult_gt: true"
            fact = f"all boxes are marked as difficult, and do not count: {each.sample.text}"
            fix = f"set {field}, or correct the mark 'difficult' in the annotations"
        else:
            fact = f"{100 * share:.0f} % of the records have boxes, {100 * kept:.0f} % of {DRAWS} transformed images keep one: {each.sample.text}. "
            fact += f"A batch of {batch} has none with a probability of {empty:.2f}"
            fix = "correct the boxes, if another rule names them; else set a larger batch_size, or other values in emit_constraint and batch_sampler"
        yield each.finding("no-objects", fact, fix)


def _kept(read: Read, records: np.ndarray) -> float:
    """Return the share of the images of `records` that keep a box in the transforms, 1 if none of the images is drawn."""
    boxed = np.unique(_counted(read, read.sample.drawn(DRAWS))[:, IMAGE])
    drawn = [n for n, (record, _) in enumerate(read.sample.shapes[:DRAWS]) if record in records]
    return float(np.isin(drawn, boxed).mean()) if drawn else 1.0


@job_rule
def image_sizes_differ(job: Job) -> Iterator[Finding]:
    """A name_size_file of another data set, or in another order than the database. Boxes are then compared in wrong pixels."""
    for each in reads(job):
        for reader in each.readers:
            path = reader.detection_evaluate_param.name_size_file if reader.type == "DetectionEvaluate" else ""
            if not os.path.exists(path):
                continue
            lines = [words for words in map(str.split, text_lines(path, errors="replace")) if words]
            database = each.sample.database
            each.sample.drawn(DRAWS)
            shapes = {record: shape[1:] for record, shape in each.sample.shapes}
            wrong = [record for record, shape in sorted(shapes.items()) if record < len(lines) and _other_aspect(lines[record], shape)]
            if len(lines) != database.entries:
                fact = f"{path} has {len(lines):,} lines, {database.path} has {database.entries:,} records"
            elif wrong and len(set(shapes.values())) > 1:  # all of one size: the converter resized them
                fact = f"line {wrong[0] + 1} of {path} is '{' '.join(lines[wrong[0]])}', the image is {shape_text(shapes[wrong[0]])} (height x width)"
            else:
                continue
            fix = f"write a line NAME HEIGHT WIDTH for each image into it, in the order of {database.path}; `ocaffe dataset voc` writes the file"
            yield each.view.finding("image-sizes-differ", reader, fact, fix, "detection_evaluate_param.name_size_file")


def _other_aspect(words: list[str], shape: tuple[int, ...]) -> bool:
    """Whether a line of a name_size_file, which must end with height and width, has another aspect ratio than the image."""
    if len(words) < 2 or not all(whole(word) > 0 for word in words[-2:]):
        return False  # DetectionEvaluate refuses it
    height, width = map(int, words[-2:])
    return abs(height * shape[1] / (width * shape[0]) - 1) > ASPECT


def _names(layer: Any) -> dict[int, set[str]]:
    """Return the labels of the layer's label map in their order, each with its names. Return {} if there is no file."""
    if layer.type == "RoIData":  # it has no label map, but the database may have the names
        return {label: {name} for label, name in enumerate(given_labels(param_of(layer).source))}
    path = _map(layer)
    items = sorted(read(path, proto.LabelMap).item, key=lambda item: item.label) if os.path.exists(path) else []
    return {item.label: {item.name, item.display_name or item.name} for item in items}


def _map(layer: Any) -> str:
    if layer.type == "RoIData":
        return os.path.join(param_of(layer).source, LABELS)
    return str(layer.annotated_data_param.label_map_file)


def _range(names: dict[int, set[str]]) -> str:
    return f"the labels {min(names)} to {max(names)}" if len(names) == max(names) - min(names) + 1 else f"the labels {', '.join(map(str, sorted(names)))}"


def _counted(read: Read, rows: np.ndarray) -> np.ndarray:
    """Return the boxes that a reader counts: without the difficult ones if none counts them."""
    own = read.layer.annotated_data_param
    fields = {"MultiBoxLoss": "use_difficult_gt", "AlignedBoxLoss": "use_difficult_gt", "DetectionEvaluate": "evaluate_difficult_gt"}
    if read.layer.type == "RoIData" and read.view.train:
        return rows if settings_of(read.layer).get("use_diff", False) else rows[rows[:, DIFFICULT] == 0]
    given = [getattr(own_param(reader), fields[reader.type]) for reader in read.readers if reader.type in fields]
    counts = own.train_diffcult if own.yolo_data_type == 1 else not given or any(given)
    return rows if counts else rows[rows[:, DIFFICULT] == 0]
