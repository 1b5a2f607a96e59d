"""Writes the files of a training that reads lines of text: a net of the zoo with a CTC loss, adapted to the characters and lists of labelled images."""
from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.data.stores.labels_txt import LABELS, given_labels
from ocaffe.data.stores.text_list import Listing
from ocaffe.errors import Error, Place, shape_text
from ocaffe.formats.text import parse, read_solver
from ocaffe.graph.options import NetOptions
from ocaffe.ir.graph import Graph
from ocaffe.ir.target import Target
from ocaffe.memory.report import size_text
from ocaffe.shown import code_span, command, markdown, path_word
from ocaffe.support.here import here
from ocaffe.zoo import FOLDER
from ocaffe.zoo.figures import planned_bytes
from ocaffe.zoo.images import Images, Part, parts_in, root_of
from ocaffe.zoo.project import (
    FILES,
    TUNING,
    Choices,
    Project,
    check_begin,
    complete_solver,
    finish,
    fitting_batch,
    readme_head,
    readme_table,
    weights_of,
    words_of,
)
from ocaffe.zoo.templates import AVERAGED, graph_of, image_shape, upgraded, without_data
from ocaffe.zoo.text import prototxt
from ocaffe.zoo.weights import check_weights

BATCH = 32
TEST_BATCH = 50  # at most
EPOCHS, TUNING_EPOCHS = 20, 10  # from fillers, from weights
LEAST_ITERATIONS = 500
TESTS = 10  # at most this number in a training
SCORE = "strings"  # the output with the share of texts without an error
FIX = "`ocaffe dataset text` writes train.txt, val.txt and labels.txt"
UNFIT = {  # choices for classifiers that these nets do not have
    "classes": "labels.txt decides the classes", "size": "edit the Input and new_width in the prototxts; the height belongs to the net",
}  # fmt: skip


def is_reader(net: str) -> bool:
    """Return whether `net` is a net of the zoo that reads lines of text."""
    path = FOLDER / net / "train_val.prototxt"
    return "/" not in net and path.exists() and "WarpCTCLoss" in path.read_text(encoding="utf-8")


class Texts(NamedTuple):
    """Lists of images with the classes of their characters. `length`: the labels of an image. `steps`: the most time steps that a text needs."""

    images: Images
    length: int
    steps: int


def find_texts(data: str, val: str = "") -> Texts:
    """Find the lists in the folder `data`, as `ocaffe dataset text` writes them, and the names of the classes. `val`: the list for testing. Raise Error."""
    if not os.path.exists(data):
        raise Error(f"{data} does not exist", place="--data", fix=f"give the folder (relative to {here()}) into which {FIX}")
    train, test = parts_in(data) if os.path.isdir(data) else (data, "")
    paths = train, val or test
    for path in paths:
        if not os.path.isfile(path):
            raise Error(f"{path or data} is no list", place="--data", fix=f"give a folder with two lists: {FIX}; or --data LIST --val LIST")
    classes = given_labels(os.path.dirname(train) or ".")
    if len(classes) < 2:
        raise Error(f"there is no {LABELS} with the blank and the characters beside {train}", place="--data", fix=FIX)
    lengths = [_length(path) for path in paths]
    if lengths[0] != lengths[1]:
        raise Error(f"{paths[0]} has {lengths[0]} labels an image, {paths[1]} {lengths[1]}", fix="fill the labels of shorter texts with the blank, class 0")
    parts, steps = [], 0
    for path in paths:
        files = ListFiles(path, "", lengths[0], False)
        wrong = np.argwhere((files.labels < 0) | (files.labels >= len(classes)))
        if len(wrong):
            record, place = wrong[0].tolist()
            fact = f"the label {files.labels[record, place]:g} of {files.file(record).path} is none of the {len(classes)} classes in {LABELS}"
            raise Error(fact, place=Place(path), fix=f"write whole numbers from 0, the blank, to {len(classes) - 1}")
        root = root_of(path, files.file(0).path)
        parts.append(Part(path, files.entries, os.path.join(root, "") if root else ""))
        steps = max(steps, needed_steps(files.labels))
    return Texts(Images(parts[0], parts[1], classes), lengths[0], steps)


def _length(path: str) -> int:
    """Return the number of labels in the first line of a list. Raise Error if there are none."""
    line = Listing(path, "the file of an image, a space, and its labels").lines[0]
    count = sum(1 for _ in itertools.takewhile(str.isdecimal, reversed(line.text.split()[1:])))
    if not count:
        raise Error(f"'{line.text}' has no labels", place=Place(path, line.number), fix="write a file and the numbers of its characters in each line")
    return count


def needed_steps(labels: np.ndarray) -> int:
    """Return the most time steps that CTC needs for one of the texts, n x length: one for each character, and a blank between equal ones."""
    used = labels > 0
    order = np.argsort(~used, axis=1, kind="stable")  # blanks among the labels do not count
    packed = np.take_along_axis(labels, order, 1)
    repeated = (packed[:, 1:] == packed[:, :-1]) & (packed[:, 1:] > 0)
    return int((used.sum(1) + repeated.sum(1)).max())


def write_reader(
    net: str, data: str, out: str, choices: Choices | None = None, target: Target | None = None, again: bool = False
) -> Project:  # fmt: skip
    """Write the files to train `net` on the lines of text in `data` into the folder `out`. Raise Error, and then write nothing.

    `data`: a folder of `ocaffe dataset text`. `target`: the device that the batch must fit. `again`: the files are there already, and must be equal.
    """
    choices = choices or Choices()
    check_begin(out, again)
    for field, reason in UNFIT.items():
        if getattr(choices, field) != getattr(Choices(), field):
            raise Error(f"--{field} is given for {net}, which reads text", place="ocaffe new", fix=f"leave it out: {reason}")
    check_weights(choices.weights)
    texts = find_texts(data, choices.val)
    made = _Reader(net, texts, out, choices)
    count = texts.images.train.images
    batch, size, notes = fitting_batch(made, made.bytes, choices, min(BATCH, count), count, target)
    steps = next(node.bottoms[0].shape[0] for node in made.graph(1).nodes if node.type == "WarpCTCLoss")
    if steps < texts.steps:
        notes.append(f"the net has {steps} time steps, and a text needs {texts.steps}. Texts that need too many have no loss: use wider images")
    solver = made.solver(batch)
    shape = image_shape(made.deploy)
    project = Project(out, net, texts.images, len(texts.images.classes), shape, batch, solver.max_iter, SCORE, size, (*made.changes, *notes))
    files = {
        "train_val.prototxt": prototxt(made.train_val(batch)), "solver.prototxt": prototxt(solver), "deploy.prototxt": prototxt(made.deploy),
        "README.md": "\n".join(_readme(project, solver, choices.trained)) + "\n",
    }  # fmt: skip
    finish(out, {project.path(name): text.encode("utf-8", "surrogateescape") for name, text in files.items()}, again)
    return project


class _Reader:
    """The messages of a project for any batch."""

    def __init__(self, net: str, texts: Texts, out: str, choices: Choices) -> None:
        self.net, self.texts, self.out, self.choices = net, texts, out, choices
        self.published = read_solver(FOLDER / net / "solver.prototxt")
        self.body, self.deploy = (upgraded(FOLDER / net / f"{name}.prototxt") for name in ("train_val", "deploy"))
        self.changes = sorted({change for message in (self.body, self.deploy) for change in self._adapt(message)})
        train, test = (layer.transform_param for layer in self.body.layer if layer.type == "ImageData")
        self.transform = parse(choices.transform, proto.TransformationParameter, "--transform") if choices.transform else test
        self.augment = parse(choices.augment, proto.TransformationParameter, "--augment") if choices.augment is not None else train

    def _adapt(self, message: Any) -> Iterator[str]:
        """Set the number of classes. The layer of the scores gets a new name if it changes. Yield the changes, for people."""
        scores, classes = [layer for layer in message.layer if layer.type == "InnerProduct"][-1], len(self.texts.images.classes)
        if scores.inner_product_param.num_output != classes:
            yield f"layer {scores.name} is {scores.name}_{classes} now, with {classes} outputs"
            scores.name, scores.inner_product_param.num_output = f"{scores.name}_{classes}", classes
        for layer in message.layer:
            if layer.type == "Input" and self.choices.width:
                layer.input_param.shape[0].dim[3] = self.choices.width
            if layer.type == "BatchNorm" and not layer.batch_norm_param.HasField("moving_average_fraction"):
                layer.batch_norm_param.moving_average_fraction = AVERAGED

    def train_val(self, batch: int) -> Any:
        made = proto.NetParameter()
        made.CopyFrom(self.body)
        for layer in made.layer:
            if layer.type == "ImageData":
                training = proto.TRAIN in [rule.phase for rule in layer.include]
                part, param = self.texts.images.train if training else self.texts.images.test, layer.image_data_param
                param.source, param.root_folder, param.label_count = part.source, part.root, self.texts.length
                param.batch_size, param.new_width = batch if training else self.test_batch(), image_shape(self.deploy)[2]
                layer.transform_param.CopyFrom(self.augment if training else self.transform)
                for field in ("mean_value", "mean_file", "scale"):
                    layer.transform_param.ClearField(field)
                layer.transform_param.MergeFrom(self.transform)
        return made

    def test_batch(self) -> int:
        """Return a batch in whose batches no test image comes twice, so that the shares are those of the images."""
        count = self.texts.images.test.images
        return max(size for size in range(1, min(TEST_BATCH, count) + 1) if count % size == 0)

    def solver(self, batch: int) -> Any:
        """Return the solver. The rate is the published one for any batch, because Adam's steps do not grow with the gradients."""
        tuned = bool(self.choices.weights)
        epoch = math.ceil(self.texts.images.train.images / batch)
        iterations = self.choices.iterations or max(LEAST_ITERATIONS, (self.choices.epochs or (TUNING_EPOCHS if tuned else EPOCHS)) * epoch)
        interval = min(max(epoch, math.ceil(iterations / TESTS)), iterations)
        made = proto.SolverParameter()
        made.CopyFrom(self.published)
        made.ClearField("test_iter")
        made.net, made.snapshot_prefix = os.path.join(self.out, FILES[0]), os.path.join(self.out, self.net)
        made.base_lr = float(f"{self.published.base_lr * (TUNING if tuned else 1):.2g}")
        made.max_iter, made.iter_size = iterations, 1
        made.test_iter.append(self.texts.images.test.images // self.test_batch())
        made.test_interval, made.snapshot = interval, interval
        made.display = made.average_loss = max(1, interval // 10)
        if tuned:
            made.weights.append(self.choices.weights)
        complete_solver(made, self.choices, SCORE)
        return made

    def graph(self, batch: int) -> Graph:
        """Return the graph of the TRAIN net, without its data."""
        return graph_of(without_data(self.train_val(batch), image_shape(self.deploy), batch), proto.TRAIN)

    def bytes(self, batch: int, target: Target) -> int:
        """Return the planned bytes of a training, without the TEST net."""
        return planned_bytes(self.graph(batch), NetOptions(), target, self.solver(batch))


def _readme(project: Project, solver: Any, trained: str) -> Iterator[str]:
    weights = weights_of(solver, project.folder, trained)
    (solver_file, net, deploy), images = words_of(project), project.images
    yield from readme_head(f"{project.net}: {project.classes - 1} characters", (
        f"ocaffe train --solver {solver_file}",
        f"ocaffe test --model {net} --weights {weights} --iterations {solver.test_iter[0]}",
        f"ocaffe predict --model {deploy} --weights {weights} IMAGE",
        f"ocaffe convert {deploy} {weights} {command(path_word(project.prefix))}.onnx",
    ))  # fmt: skip
    yield from readme_table((
        ("images for training", f"{images.train.images}, {code_span(images.train.source)}"),
        ("images for testing", f"{images.test.images}, {code_span(images.test.source)}"),
        ("classes", ", ".join(map(markdown, images.classes[:20])) + (", ..." if len(images.classes) > 20 else "")),
        ("input of the net", shape_text(project.shape)),
        ("batch", f"{project.batch} images; a training takes {size_text(project.bytes)} on the device"), ("iterations", str(project.iterations)),
        ("scores", f"`{SCORE}`: share of the texts without an error. `characters`: mean of 1 - edit distance / length of the longer text"),
    ))  # fmt: skip
