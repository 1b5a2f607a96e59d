"""Writes the files of a training that finds objects: a detector of the zoo, adapted to the classes and databases of annotated images."""
from __future__ import annotations

import functools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.stores.label_names import is_database
from ocaffe.errors import Error, Place
from ocaffe.formats.param_str import read_settings, with_settings
from ocaffe.formats.text import parse, read_solver
from ocaffe.formats.weights import read_weights
from ocaffe.graph.options import NetOptions
from ocaffe.ir.target import Target
from ocaffe.memory.report import size_text
from ocaffe.shown import code_span, command, markdown, path_word
from ocaffe.tools.datasets.annotations import read_label_map, shown_names
from ocaffe.zoo import FOLDER
from ocaffe.zoo.figures import planned_bytes
from ocaffe.zoo.heads import Head, PointHead, SsdHead, Task, YoloHead, renamed
from ocaffe.zoo.images import Images, Part, backend_of, parts_in
from ocaffe.zoo.project import (
    FILES,
    TUNING,
    Choices,
    Project,
    check_begin,
    complete_solver,
    finish,
    fitting_batch,
    rate_factor,
    readme_head,
    readme_table,
    weights_of,
    words_of,
)
from ocaffe.zoo.region_detectors import LONGEST, SIDE
from ocaffe.zoo.templates import AVERAGED, WEIGHTED, faster, graph_of, image_shape, outputs_of, upgraded, without_data
from ocaffe.zoo.text import prototxt
from ocaffe.zoo.weights import check_weights

BATCH = 32
LEAST_ITERATIONS = 500
WARM = 10  # a warm-up takes at most such a part of the iterations
TESTS = 10  # at most this number in a training
SCORE = "detection_eval"  # the output with the mean average precision
NUMBERED = ("multibox_loss_param", "aligned_box_loss_param", "detection_output_param", "detection_evaluate_param")  # with num_classes
UNFIT = {  # choices for classifiers that detectors do not have
    "classes": "the label map decides the classes",
}  # fmt: skip
UNFIT_BOXED = UNFIT | {"augment": "edit transform_param in train_val.prototxt"}
LAST = {"cls_score": 1, "bbox_pred": 4}  # the last layers of a Faster R-CNN, each with its values for a class


def is_detector(net: str) -> bool:
    """Return whether `net` is a net of the zoo that finds objects."""
    return kind_of(net) is not None


def kind_of(net: str) -> type[Detector] | None:
    """Return the kind of a net of the zoo that finds objects, None for others."""
    path = FOLDER / net / "train_val.prototxt"
    text = path.read_text(encoding="utf-8") if "/" not in net and path.exists() else ""
    return next((kind for layer, kind in KINDS.items() if f'"{layer}"' in text), None)


class Annotated(NamedTuple):
    """Annotated databases and the label map, and the names of the classes from label 1 on."""

    images: Images
    labels: str


def find_annotated(data: str, val: str = "") -> Annotated:
    """Find the databases and the label map in the folder `data`, as `ocaffe dataset voc` writes them. `val`: the database for testing. Raise Error."""
    fix = "give a folder with train_lmdb, val_lmdb and labelmap.prototxt; `ocaffe dataset voc` writes it"
    if not os.path.isdir(data):
        raise Error(f"{data} is not a folder", place="--data", fix=fix)
    if is_database(data) and not val:
        raise Error(f"{data} is one database, and there is none for testing", place="--data", fix=f"--val DATABASE, or {fix}")
    train, test = (data, val) if is_database(data) else parts_in(data)
    for path in (train, val or test):
        if not is_database(path):
            raise Error(f"{path or data} is no database", place="--data", fix=fix)
    parts = [Part(path, _boxed(path)) for path in (train, val or test)]
    folder = os.path.dirname(train.rstrip("/")) if train == data else data
    maps = sorted(name for name in os.listdir(folder or ".") if name.startswith("labelmap") and name.endswith(".prototxt"))
    if len(maps) != 1:
        raise Error(f"{folder or '.'} has {f'{len(maps)} label maps: ' + ', '.join(maps) if maps else 'no labelmap.prototxt'}", place="--data", fix=fix)
    path = os.path.join(folder, maps[0])
    read_label_map(path, check=True)
    names = shown_names(path)
    missing = next((label for label in range(1, max(names) + 1) if label not in names), None)
    if missing is not None or min(names) < 0 or not max(names):
        fact = f"the labels are {', '.join(map(str, sorted(names)))}"
        raise Error(fact, place=Place(path), fix="number the classes from 1 without gaps; 0 is the background")
    return Annotated(Images(parts[0], parts[1], [names[label] for label in range(1, max(names) + 1)], backend_of(train)), path)


def _boxed(path: str) -> int:
    """Return the number of records of a database of AnnotatedDatums. Raise Error for others."""
    opened = open_database(path, backend_of(path))
    [(_, value)] = Reader(opened).read(0)
    try:
        first = proto.AnnotatedDatum.FromString(bytes(value))
        annotated = first.HasField("datum") and first.HasField("type")
    except DecodeError:
        annotated = False
    if not annotated:
        raise Error(f"{path} has images without boxes", place="--data", fix="make it by `ocaffe dataset voc`, or by convert_annoset")
    return opened.entries


def write_detector(
    net: str, data: str, out: str, choices: Choices | None = None, target: Target | None = None, again: bool = False
) -> Project:  # fmt: skip
    """Write the files to train the detector `net` on the annotated images in `data` into the folder `out`. Raise Error, and then write nothing.

    `target`: the device that the batch must fit. `again`: the files are there already, and must be equal.
    """
    choices, kind = choices or Choices(), kind_of(net)
    assert kind is not None
    check_begin(out, again)
    check_weights(choices.weights)
    found = find_annotated(data, choices.val)
    made = kind(net, found, out, choices)
    count = found.images.train.images
    batch, size, notes = fitting_batch(made, made.bytes, choices, min(made.batch, count), count, target)
    solver = made.solver(batch)
    classes = len(found.images.classes)
    project = Project(out, net, found.images, classes, image_shape(made.deploy), batch, solver.max_iter, SCORE, size, (*made.changes, *notes))
    texts = {
        "train_val.prototxt": prototxt(made.train_val(batch)), "solver.prototxt": prototxt(solver), "deploy.prototxt": prototxt(made.deploy),
        "README.md": "\n".join(_readme(project, solver, found, choices.trained)) + "\n",
    }  # fmt: skip
    finish(out, {project.path(name): text.encode("utf-8", "surrogateescape") for name, text in texts.items()}, again)
    return project


class Detector(ABC):
    """The messages of a project for any batch."""

    data: ClassVar[str]  # the type of its data layers
    batch: ClassVar[int] = BATCH  # images of an iteration, if none is given
    epochs: ClassVar[tuple[int, int]]  # from fillers, from weights
    tuning: ClassVar[float] = TUNING  # factor of the rate with weights
    unfit: ClassVar[Mapping[str, str]]  # choices for other nets, each with the reason

    def __init__(self, net: str, found: Annotated, out: str, choices: Choices) -> None:
        for field, reason in self.unfit.items():
            if getattr(choices, field) != getattr(Choices(), field):
                raise Error(f"--{field} is given for {net}, which finds objects", place="ocaffe new", fix=f"leave it out: {reason}")
        self.net, self.found, self.out, self.choices = net, found, out, choices
        self.published = read_solver(FOLDER / net / "solver.prototxt")
        self.body, self.deploy = (upgraded(FOLDER / net / f"{name}.prototxt") for name in ("train_val", "deploy"))
        self.changes = sorted({change for message in (self.body, self.deploy) for change in self.adapt(message)})
        if choices.weights and self.tuning != 1:
            self.changes += self._hasten({layer.name for layer in read_weights(choices.weights).layers if layer.blobs})

    def _hasten(self, held: set[str]) -> Iterator[str]:
        """Let the layers that begin with fillers learn at the full rate, the others at a lower one. `held`: the layers with weights. Yield the change."""
        new = [layer for layer in self.body.layer if layer.type in WEIGHTED and layer.name not in held]
        for layer in new:
            faster(layer, 1 / self.tuning)
        if new:
            yield f"layers that {os.path.basename(self.choices.weights)} lacks: {len(new)}; their rate is {1 / self.tuning:g} times that of the others"

    @abstractmethod
    def adapt(self, message: Any) -> Iterator[str]:
        """Set the number of classes. Layers with another number of outputs get new names. Yield the changes, for people."""

    @abstractmethod
    def set_data(self, layer: Any, part: Part, batch: int | None) -> None:
        """Name the images in a data layer. `batch`: None in TEST."""

    @property
    @abstractmethod
    def published_batch(self) -> int:
        """The images of an iteration to which the published rate belongs."""

    @abstractmethod
    def test_batch(self) -> int:
        """Return the images of a batch in TEST. No image comes twice, as the average precision requires."""

    def train_val(self, batch: int) -> Any:
        made = proto.NetParameter()
        made.CopyFrom(self.body)
        for layer in made.layer:
            if layer.type == self.data:
                training = proto.TRAIN in [rule.phase for rule in layer.include]
                self.set_data(layer, self.found.images.train if training else self.found.images.test, batch if training else None)
        return made

    def passes(self, batch: int) -> int:
        """Return iter_size for iterations of `batch` images."""
        return 1

    def solver(self, batch: int) -> Any:
        images = self.found.images.train.images
        tuned = bool(self.choices.weights)
        epoch = math.ceil(images / batch)
        iterations = self.choices.iterations or max(LEAST_ITERATIONS, (self.choices.epochs or self.epochs[tuned]) * epoch)
        tests = max(count for count in range(1, TESTS + 1) if iterations % count == 0 and (count == 1 or iterations // count >= epoch))
        interval = iterations // tests  # so that the last weights are tested
        rate = self.published.base_lr * rate_factor(batch, self.published_batch, self.choices) * (self.tuning if tuned else 1)
        made = proto.SolverParameter()
        made.CopyFrom(self.published)
        for field in ("stepvalue", "stepsize", "gamma", "test_iter"):
            made.ClearField(field)
        if made.lr_policy != "cosine":
            made.lr_policy, made.power = "poly", 1
        if made.warmup_iter:
            made.warmup_iter = min(made.warmup_iter, iterations // WARM)
        made.net, made.snapshot_prefix = os.path.join(self.out, FILES[0]), os.path.join(self.out, self.net)
        made.base_lr, made.max_iter, made.iter_size = float(f"{rate:.2g}"), iterations, self.passes(batch)
        made.test_iter.append(self.found.images.test.images // self.test_batch())
        made.test_interval, made.snapshot, made.best_output = interval, interval, SCORE
        made.display = made.average_loss = max(1, interval // 10)
        if tuned:
            made.weights.append(self.choices.weights)
        complete_solver(made, self.choices, SCORE)
        return made

    def bytes(self, batch: int, target: Target) -> int:
        """Return the planned bytes of a training, without the TEST net."""
        message = without_data(self.train_val(batch), image_shape(self.deploy), batch)
        return planned_bytes(graph_of(message, proto.TRAIN), NetOptions(), target, self.solver(batch))


class Boxed(Detector):
    """A detector that reads AnnotatedData: the images of a batch have one size."""

    data = "AnnotatedData"
    epochs = (120, 40)
    head: ClassVar[type[Head]]

    def adapt(self, message: Any) -> Iterator[str]:
        yield from self._head.adapt(message)
        for layer in message.layer:
            number_classes(layer, len(self.found.images.classes) + 1)
            if layer.type == "BatchNorm" and not layer.batch_norm_param.HasField("moving_average_fraction"):
                layer.batch_norm_param.moving_average_fraction = AVERAGED

    @functools.cached_property
    def _head(self) -> Head:
        return self.head(Task(len(self.found.images.classes), self.found.images.train.source, self.choices.size), self.deploy)

    @property
    def published_batch(self) -> int:
        train = next(layer for layer in self.body.layer if layer.type == self.data)
        return int(train.data_param.batch_size * self.published.iter_size)

    def test_batch(self) -> int:
        count = self.found.images.test.images
        return max(size for size in range(1, min(BATCH, count) + 1) if count % size == 0)

    def set_data(self, layer: Any, part: Part, batch: int | None) -> None:
        layer.annotated_data_param.label_map_file = self.found.labels
        layer.data_param.source, layer.data_param.backend = part.source, self.found.images.backend
        layer.data_param.batch_size = self.test_batch() if batch is None else batch
        if batch is not None:
            layer.data_param.shuffle = True
        layer.transform_param.force_color = True  # data sets such as COCO have some gray images
        if self.choices.transform:
            own = parse(self.choices.transform, proto.TransformationParameter, "--transform")
            layer.transform_param.ClearField("mean_value")
            layer.transform_param.ClearField("scale")
            layer.transform_param.MergeFrom(own)


class Ssd(Boxed):
    """An SSD."""

    head = SsdHead
    unfit = UNFIT_BOXED | {"size": "the sizes of the boxes belong to the size of the image"}


class Points(Boxed):
    """A detector without anchors."""

    head = PointHead
    unfit = UNFIT_BOXED


class Yolo(Boxed):
    """A YOLOv3."""

    head = YoloHead
    unfit = UNFIT_BOXED


class Regions(Detector):
    """A Faster R-CNN: one image at a time, whose shorter side has the length --size. An iteration of several images has several passes."""

    data = "RoIData"
    batch = 1
    epochs = (40, 14)
    tuning = 1  # the published rate is for weights of a classifier
    unfit = UNFIT | {"transform": "write pixel_means into the param_str of the data layers"}

    def adapt(self, message: Any) -> Iterator[str]:
        classes = len(self.found.images.classes) + 1
        heads = {layer.name: layer for layer in message.layer if layer.name in LAST}
        if outputs_of(heads["cls_score"]) != classes:
            for name, values in LAST.items():
                yield renamed(heads[name], classes, values * classes)
        if self.choices.augment:
            fact = f"--augment is '{self.choices.augment}' for {self.net}"
            raise Error(fact, place="ocaffe new", fix="leave out --augment, or give --augment none for no mirrored images")
        share = self.choices.size / SIDE if self.choices.size else 1
        size: dict[str, Any] = {"scales": [self.choices.size], "max_size": round(LONGEST * share)}
        for layer in message.layer:
            number_classes(layer, classes)
            own = read_settings(layer.python_param.param_str)
            changes: dict[str, Any] = {"num_classes": classes} if "num_classes" in own else {}
            if self.choices.size and layer.type == self.data:
                changes |= size
            elif self.choices.size and "scales" in own:  # of the anchors
                changes["scales"] = [scale * share for scale in own["scales"]]
            if changes:
                layer.python_param.param_str = with_settings(layer.python_param.param_str, changes)
            if layer.type == "Input" and self.choices.size:
                layer.input_param.shape[0].dim[2:] = self.choices.size, size["max_size"]

    @property
    def published_batch(self) -> int:
        return int(self.published.iter_size)

    def test_batch(self) -> int:
        return 1

    def passes(self, batch: int) -> int:
        return batch

    def set_data(self, layer: Any, part: Part, batch: int | None) -> None:
        mirrored = {} if batch is None or self.choices.augment is None else {"use_flipped": False}
        layer.python_param.param_str = with_settings(layer.python_param.param_str, {"source": part.source, **mirrored})


# by a type of layer that only such nets have
KINDS: Mapping[str, type[Detector]] = {"MultiBoxLoss": Ssd, "AlignedBoxLoss": Points, "Yolov3": Yolo, "RoIData": Regions}


def number_classes(layer: Any, classes: int) -> None:
    """Set num_classes in the fields of a layer."""
    for field in NUMBERED:
        if layer.HasField(field):
            getattr(layer, field).num_classes = classes
    if layer.HasField("detection_evaluate_param"):
        layer.detection_evaluate_param.ClearField("name_size_file")


def _readme(project: Project, solver: Any, found: Annotated, trained: str) -> Iterator[str]:
    weights = weights_of(solver, project.folder, trained)
    solver_file, net, deploy = words_of(project)
    yield from readme_head(f"{project.net}: {project.classes} classes of objects", (
        f"ocaffe lint {solver_file}",
        f"ocaffe train --solver {solver_file}",
        f"ocaffe test --model {net} --weights {weights} --iterations {solver.test_iter[0]} --per-class",
        f"ocaffe predict --model {deploy} --weights {weights} --annotate drawn IMAGE",
        f"ocaffe convert {deploy} {weights} {command(path_word(project.prefix))}.onnx",
    ))  # fmt: skip
    images = found.images
    yield from readme_table((
        ("images for training", f"{images.train.images}, {code_span(images.train.source)}"),
        ("images for testing", f"{images.test.images}, {code_span(images.test.source)}"),
        ("classes", ", ".join(map(markdown, images.classes))), ("label map", f"{code_span(found.labels)}; 0 is the background"),
        ("batch", f"{project.batch} images; a training takes {size_text(project.bytes)} on the device"), ("iterations", str(project.iterations)),
        ("score", f"`{SCORE}`: mean average precision at an overlap of 0.5, {solver.ap_version}"),
    ))  # fmt: skip
