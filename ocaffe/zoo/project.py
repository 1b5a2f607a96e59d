"""Writes the files of a training for your own images: train_val, solver and deploy.prototxt, lists of the images, labels.txt and a README.md."""
from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ocaffe import proto
from ocaffe.data.databases.assumed import assumed_data
from ocaffe.errors import Error, shape_text
from ocaffe.formats.text import parse, read_net
from ocaffe.graph.options import NetOptions
from ocaffe.ir.graph import Graph
from ocaffe.ir.target import Target
from ocaffe.memory.report import size_text
from ocaffe.shown import code_span, command, markdown, path_word
from ocaffe.solver.largest_batch import largest_batch, room
from ocaffe.solver.planning import Machine, NetsToPlan, solver_to_plan
from ocaffe.support import log
from ocaffe.support.files import check_free, clear_killed, new_entries, read_plain
from ocaffe.tools.datasets.folder_set import SHARE
from ocaffe.zoo import FOLDER
from ocaffe.zoo.efficientnet import credit
from ocaffe.zoo.figures import NO_DEVICE, planned_bytes
from ocaffe.zoo.generate import HEADER
from ocaffe.zoo.images import Images, find_images, largest_label
from ocaffe.zoo.templates import Adapted, Template, adapted, graph_of, names, tagged, template, without_data
from ocaffe.zoo.text import prototxt
from ocaffe.zoo.tuning import freeze, slow_down
from ocaffe.zoo.weights import check_weights, transform_of

BATCH = 64  # images, if they fit
EPOCH = 10  # iterations of an epoch, at least, with --batch auto
MOST_FACTOR = 4  # of the published rate, with --batch auto
FREE_SHARE = 0.95  # of the free memory; drivers need the rest for programs and queues
EPOCHS, TUNING_EPOCHS = 30, 10  # from fillers, from weights
LEAST_ITERATIONS = 200
TESTS = 20  # at most this number in a training
TUNING = 0.1  # factor of the rate for layers with given weights; the new layers keep theirs
# Factor of the rate after a phase in which the new layer has learned alone, and the highest one. With 0.002 every second training of a small set diverged.
STARTED, STARTED_MOST = 0.06, 0.001
STARTED_EPOCH, STARTED_LEAST = 12, 8  # updates in an epoch then, unless this needs smaller batches than the second number
WHOLE = 64  # pixels: smaller samples are the whole image, larger ones a crop
MARGIN = 8 / 7  # image to crop, as 256 to 224
FIRST = ("net", "weights", "test_iter", "test_interval", "base_lr", "lr_policy", "power")  # in the solver
FOLDERS = ("data", "examples")  # of `ocaffe fit`
FILES = ("train_val.prototxt", "solver.prototxt", "deploy.prototxt", "README.md")


@dataclass(frozen=True)
class Choices:
    """The settings of a project. Zeros and empty texts leave the choice to `write_project`.

    `size`: side of the net's images in pixels. `auto_batch`: the largest batch that fits the device, and
    `memory_limit` bytes if they are given. `weights`: a file from which training begins. `iterations`: of the training; else `epochs` of the images.
    `augment`: fields of transform_param in TRAIN, None for those of the net. `transform`: fields in both phases: mean and scale.
    `class_weights`: of a segmentation, "median" or "none", '' for those of the net. `batch_norm`: add BatchNorm to a segmentation net.
    `thin`: divide its channels by this number, for a smaller net. `width`: of the images of a net that reads text, in pixels.
    `tags`: images have any number of these, and not one class.
    `solver`: more fields of the solver.
    `patience`: keep the best snapshot, and stop after so many tests without a better accuracy; 0: neither.
    `start`: a file in the folder that the caller writes, from `weights`, with a first state of all layers: training begins from it, and layers learn
    slower the larger their blobs are. `freeze`: the layer up to which all stay as they are.
    `trained`: the weights that README.md names, a file in the folder; by default the last snapshot.
    `share` of the images is for testing if they have no part for it; `seed` decides which.
    """

    classes: int = 0
    size: int = 0
    width: int = 0
    tags: int = 0
    batch: int = 0
    auto_batch: bool = False
    memory_limit: int = 0
    weights: str = ""
    iterations: int = 0
    epochs: int = 0
    augment: str | None = None
    transform: str = ""
    class_weights: str = ""
    batch_norm: bool = False
    thin: int = 1
    solver: str = ""
    patience: int = 0
    start: str = ""
    freeze: str = ""
    trained: str = ""
    val: str = ""
    share: float = SHARE
    seed: int = 0


@dataclass(frozen=True)
class Project:
    """The written files of a training. `images` has the names of the classes too. `bytes`: planned memory of the training on the device."""

    folder: str
    net: str
    images: Images
    classes: int
    shape: tuple[int, int, int]  # channels, height, width of the net's images
    batch: int
    iterations: int
    accuracy: str  # the output of the TEST net with the share of right images
    bytes: int
    notes: tuple[str, ...]  # for the user
    begins: str = ""  # the weights from which the caller makes the file `Choices.start`

    def path(self, name: str) -> str:
        """Return the path of the file `name` of the project, such as "solver.prototxt"."""
        return os.path.join(self.folder, name)

    @property
    def prefix(self) -> str:
        """The snapshot_prefix."""
        return self.path(self.net)


def begin(net: str, out: str, again: bool = False) -> Template:
    """Return the template of `net` for a project in the folder `out`. Raise Error if the folder has one, unless it is the same project `again`."""
    check_begin(out, again)
    return template(net)


def check_begin(out: str, again: bool = False, names: Sequence[str] = FILES) -> None:
    """Raise Error if the folder `out` has files of a project, `names`, unless it is the same one `again`; or if a link in it leads elsewhere."""
    for name in () if again else names:
        check_absent(os.path.join(out, name))
    for path in (os.path.join(out, name) for name in (sorted(os.listdir(out)) if os.path.isdir(out) else ())):
        if os.path.islink(path) and (not os.path.isdir(path) or os.path.basename(path) in FOLDERS):  # names that the user has not given
            raise Error("it is a link, and this command would write where it leads to", place=path, fix=f"{command('rm', path)}, or choose another folder")


def write_project(
    net: str, data: str | Images, out: str, choices: Choices | None = None, target: Target | None = None, again: bool = False
) -> Project:  # fmt: skip
    """Write the files to train `net` on the images in `data` into the folder `out`. Raise Error, and then write nothing.

    `net`: a net of the zoo, or a deploy prototxt. `data`: class folders, tables or databases, or what `find_images` returned for them and `out`.
    `target`: the device that the batch must fit. `again`: the files are there already, and must be equal.
    """
    choices = choices or Choices()
    given = begin(net, out, again)
    images = data if isinstance(data, Images) else find_images(data, out, choices.val, choices.share, choices.seed)
    if not again:
        check_free(out, FILES, meanwhile=True)  # `begin` has not found them, and the images took a while
        for path in images.files:
            check_absent(path)
    check_weights(choices.weights)
    classes = choices.tags or _classes(images, choices.classes)
    shape = _shape(given, images, choices.size)
    made = adapted(given, classes, shape, 1 / TUNING if choices.weights and not choices.start else 1)
    made = tagged(made) if choices.tags else made
    writer = _Writer(given, made, images, choices, classes, shape, out)
    if choices.freeze or choices.start:
        graph = training_graph(writer, 1)
        if choices.start:
            slow_down(made.body, graph)
        if choices.freeze:
            freeze(made.body, graph, choices.freeze)
    count = images.train.images
    most = max(STARTED_LEAST, 1 << max(1, count // STARTED_EPOCH).bit_length() - 1) if choices.start else count
    batch, size, notes = fitting_batch(writer, partial(training_bytes, writer), choices, min(BATCH, count, most), count, target)
    solver = writer.solver(batch)
    texts = {
        "train_val.prototxt": prototxt(writer.train_val(batch)),
        "solver.prototxt": writer.solver_text(solver, batch),
        "deploy.prototxt": prototxt(made.deploy),
    }
    project = Project(
        out, writer.name, images, classes, shape, batch, solver.max_iter, made.accuracy, size, (*images.notes, *made.changes, *notes, *_means(given, choices)),
        choices.weights if choices.start else "",
    )  # fmt: skip
    texts["README.md"] = "\n".join(_readme(project, writer, solver)) + "\n"
    files = {**images.files, **{project.path(name): text.encode("utf-8", "surrogateescape") for name, text in texts.items()}}
    finish(out, files, again)
    return project


def _classes(images: Images, given: int) -> int:
    largest = largest_label(images)
    if images.classes and largest >= len(images.classes):
        raise Error(f"the images have the label {largest}, and labels.txt has the names of {len(images.classes)} classes",
                    fix=f"add the names of the labels {len(images.classes)} to {largest} to labels.txt, or correct the labels")
    found = len(images.classes) or largest + 1
    if given and images.classes and given != found:
        raise Error(f"--classes is {given}, and the images have {found} classes", fix=f"--classes {found}, or leave it out")
    if given and found > given:
        raise Error(f"--classes is {given}, and the images have the label {found - 1}", fix=f"--classes {found}, or leave it out")
    if not (given or found):
        raise Error("the databases have no labels.txt, so that the number of classes is not known", fix="--classes N, with their number as N")
    if (given or found) < 2:
        fact = f"--classes is {given}" if given else "all images have one class"
        raise Error(fact, fix="give images of 2 or more classes" + ", and --classes with their number" * bool(given))
    return given or found


def _shape(given: Template, images: Images, size: int) -> tuple[int, int, int]:
    if size < 0:
        raise Error(f"--size is {size}", fix="--size 224, or another number of pixels")
    channels = images.stored[0] if images.stored else 1 if given.shape[0] == 1 else 3
    if not size and given.shape[1] != given.shape[2]:
        raise Error(f"the images of {given.name} are {shape_text(given.shape)}, and samples are squares", fix="choose a side: --size 224")
    return channels, size or given.shape[1], size or given.shape[2]


class _Writer:
    """The messages of a project for any batch."""

    def __init__(
        self, given: Template, made: Adapted, images: Images, choices: Choices, classes: int, shape: tuple[int, int, int], out: str
    ) -> None:
        self.given, self.made, self.images, self.choices, self.shape, self.out = given, made, images, choices, shape, out
        self.name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in given.name)
        augment = given.augment if choices.augment is None else choices.augment
        self.augment = parse(augment, proto.TransformationParameter, "--augment")
        if self.augment.HasField("mixup") or self.augment.HasField("cutmix"):
            self.augment.label_classes = self.augment.label_classes or classes
        own = choices.transform or transform_of(choices.weights)
        self.transform = parse(own, proto.TransformationParameter, "--transform") if own else _channelled(given.transform, shape[0])

    def train_val(self, batch: int) -> Any:
        net = proto.NetParameter(name=self.given.title)
        for phase in (proto.TRAIN, proto.TEST):
            self._data(net.layer.add(), phase, batch if phase == proto.TRAIN else self.test_batch(batch))
        net.layer.extend(self.made.body)
        return net

    def test_batch(self, batch: int) -> int:
        """Return a batch of at most this size in whose batches the fewest test images come twice.

        With auto_batch it is half the size, so that the TEST net is not the larger one.
        """
        count = self.images.test.images
        most = min(max(1, batch // 2) if self.choices.auto_batch else batch, count)
        if self.choices.tags:  # no image twice, as the average precision requires
            return max(size for size in range(1, most + 1) if count % size == 0)
        return min(range(max(1, most // 2), most + 1), key=lambda size: (-count % size, -size))

    def _data(self, layer: Any, phase: int, batch: int) -> None:
        part = self.images.train if phase == proto.TRAIN else self.images.test
        layer.name = "data"
        layer.top.extend((self.given.input, "label"))
        layer.include.add(phase=phase)
        layer.transform_param.CopyFrom(self.transform)
        side, image = self.shape[1], self._image()
        if image != side or self.augment.HasField("random_resized_crop"):
            layer.transform_param.crop_size = side
        if phase == proto.TRAIN:
            layer.transform_param.MergeFrom(self.augment)
        if part.bad:
            layer.transform_param.skip_bad_records = max(part.bad, layer.transform_param.skip_bad_records)
        if self.images.backend is None:
            layer.type = "ImageData"
            param = layer.image_data_param
            param.new_height = param.new_width = image
            if part.root:
                param.root_folder = part.root
            if self.choices.tags > 1:
                param.label_count = self.choices.tags
            if self.shape[0] == 1:
                param.is_color = False
        else:
            layer.type = "Data"
            param = layer.data_param
            param.backend = self.images.backend
            stored = self.images.stored
            if stored is None:
                setattr(layer.transform_param, "force_gray" if self.shape[0] == 1 else "force_color", True)
            if stored is None or stored[1:] != (image, image):
                layer.transform_param.resize_param.add(prob=1, height=image, width=image, interp_mode=[proto.ResizeParameter.LINEAR])
        param.source, param.batch_size = part.source, batch
        if phase == proto.TRAIN:
            param.shuffle = True

    def _image(self) -> int:
        """Return the side of the images before the crop."""
        side, stored = self.shape[1], self.images.stored
        if stored and stored[1] == stored[2] and side <= stored[1] <= 1.5 * side:
            return stored[1]  # as they are
        return side if side <= WHOLE else round(side * MARGIN)

    def solver(self, batch: int) -> Any:
        published, images = self.given.solver, self.images.train.images
        epochs = self.choices.epochs or (TUNING_EPOCHS if self.choices.weights else EPOCHS)
        epoch = math.ceil(images / batch)
        iterations = self.choices.iterations or max(LEAST_ITERATIONS // 2 if self.choices.start else LEAST_ITERATIONS, epochs * epoch)
        interval = min(max(epoch, math.ceil(iterations / TESTS)), iterations)
        rate = published.base_lr * rate_factor(batch, self.given.batch, self.choices) * (TUNING if self.choices.weights and not self.choices.start else 1)
        if self.choices.start:
            rate = min(rate * STARTED, STARTED_MOST)
        solver = proto.SolverParameter(
            net=os.path.join(self.out, FILES[0]), test_iter=[math.ceil(self.images.test.images / self.test_batch(batch))], test_interval=interval,
            base_lr=float(f"{rate:.2g}"), lr_policy="poly", power=1, momentum=published.momentum, weight_decay=published.weight_decay,
            display=max(1, interval // 5), average_loss=max(1, interval // 5), max_iter=iterations, snapshot=interval * 5,
            snapshot_prefix=os.path.join(self.out, self.name),
        )  # fmt: skip
        if self.choices.weights:
            solver.weights.append(os.path.join(self.out, self.choices.start) if self.choices.start else self.choices.weights)
        if self.choices.start and iterations > epoch:
            solver.warmup_iter = epoch
        if self.choices.tags:
            solver.eval_type, solver.ap_version = "detection", "Integral"
        complete_solver(solver, self.choices, self.made.accuracy)
        return solver

    def solver_text(self, solver: Any, batch: int) -> str:
        """Return the solver with comments."""
        test_batch, count = self.test_batch(batch), self.images.test.images
        twice = -count % test_batch
        remarks = {
            "test_iter": f"{solver.test_iter[0]} batches of {test_batch} are the {count} images for testing{f', and {twice} of them again' if twice else ''}",
            "base_lr": f"the published {self.given.solver.base_lr:g} is for updates of {self.given.batch} images, this one for {batch}"
            + (f"; times {STARTED:g}, at most {STARTED_MOST:g}, because all layers have learned" if self.choices.start else
               "; a tenth of it, because training begins from weights" if self.choices.weights else ""),
            "lr_policy": "base_lr * (1 - iteration / max_iter)" if solver.lr_policy == "poly" and solver.power == 1 else "",
            "max_iter": f"{solver.max_iter * batch / self.images.train.images:.1f} times over the {self.images.train.images} images for training",
        }
        lines = []
        order = [field.name for field in solver.DESCRIPTOR.fields if field.name not in FIRST]
        for line in sorted(prototxt(solver).splitlines(), key=lambda line: [*FIRST, *order].index(line.partition(":")[0].rstrip(" {"))):
            remark = remarks.get(line.partition(":")[0])
            lines += [f"# {remark}", line] if remark else [line]
        return "\n".join(lines) + "\n"


def _means(given: Template, choices: Choices) -> Iterator[str]:
    if not given.published and choices.augment is None and "mirror" in given.augment:
        yield "training mirrors images; if mirrored images change their class, as symbols do, give --augment none"
    if choices.weights and not choices.transform and transform_of(choices.weights):
        yield f"mean and scale are those of the published {os.path.basename(choices.weights)}"
    elif choices.weights and not choices.transform and not given.published:
        yield "the mean and the scale to which these weights belong are not known: give them by --transform (docs/zoo.md)"


def _channelled(transform: Any, channels: int) -> Any:
    """Return mean and scale for images of `channels`: the net's own if the numbers fit, else one mean for all."""
    made = proto.TransformationParameter()
    made.CopyFrom(transform)
    if len(made.mean_value) not in (0, 1, channels):
        mean = sum(made.mean_value) / len(made.mean_value)
        del made.mean_value[:]
        made.mean_value.append(round(mean))
    return made


class Planned(Protocol):
    """The messages of a project for any batch."""

    def train_val(self, batch: int) -> Any:
        """Return the net of the training and of the test."""

    def solver(self, batch: int) -> Any:
        """Return the solver."""


def fitting_batch(
    made: Planned, planned: Callable[[int, Target], int], choices: Choices, most: int, images: int, target: Target | None
) -> tuple[int, int, list[str]]:  # fmt: skip
    """Return the batch, the bytes of a training with it, and notes: the chosen one, or `most`, halved until the training fits `target`.

    `planned` returns the bytes of a training with a batch on a device, without the TEST net. `images`: for training. Raise Error.
    """
    if choices.batch < 0:
        raise Error(f"--batch is {choices.batch}", fix="give a number of images, such as --batch 32, or --batch auto")
    if choices.auto_batch and not choices.batch:
        return _largest(made, choices, most, images, target)
    device, given = target or NO_DEVICE, choices.batch
    batch = given or most
    size = planned(batch, device)
    allowed = min(int(device.free_memory * FREE_SHARE), choices.memory_limit or device.free_memory)
    while (target or choices.memory_limit) and not given and batch > 1 and size > allowed:
        batch //= 2
        size = planned(batch, device)
    notes = []
    if target and size > allowed and not choices.memory_limit:
        remedy = "train with --memory-limit auto, or choose a smaller --batch"
        notes.append(f"a batch of {batch} takes {size_text(size)}, and {size_text(allowed)} are free: {remedy}")
    return batch, size, notes


def _largest(made: Planned, choices: Choices, least: int, images: int, target: Target | None) -> tuple[int, int, list[str]]:
    """Return the largest batch that fits, with the TEST net, and leaves an epoch of EPOCH iterations; or `least`, if it is larger and fits."""
    if target is None and not choices.memory_limit:
        raise Error("--batch is auto, and this machine has no OpenCL device", fix="give a number of images, such as --batch 32")
    device = target or NO_DEVICE
    allowed, machine, most = room(device, choices.memory_limit or None), Machine.assumed(device), max(least, images // EPOCH)
    with log.muted(), assumed_data() as data:
        def nets(batch: int) -> NetsToPlan:
            param, message = proto.SolverParameter(), data.complete(made.train_val(batch))
            param.CopyFrom(made.solver(batch))
            param.net_param.CopyFrom(message)  # no file has it yet
            param.ClearField("net")
            return solver_to_plan(param, read_net, NetOptions())

        if nets(1).batch == nets(2).batch:
            return least, nets(least).plans(machine)(None).bytes, ["the net takes one image at a time, and the batch does not change its memory"]
        found = largest_batch(lambda batch: nets(batch).plans(machine)(None).bytes, allowed, most)
    if not found.whole:
        why = f"the largest that fits {size_text(allowed)}"
    else:
        why = f"a larger one would leave fewer than {EPOCH} iterations of an epoch of {images} images"
    return found.batch, found.bytes, [f"batch of {found.batch}: {why}"]


def rate_factor(batch: int, published: int, choices: Choices) -> float:
    """Return the factor of the published rate, which is for `published` images. A batch that only the memory has chosen may be too large for that."""
    factor = batch / published
    return min(factor, MOST_FACTOR) if choices.auto_batch else factor


def training_bytes(writer: _Writer, batch: int, target: Target) -> int:
    """Return the planned bytes of a training, without the TEST net. Raise Error if the net does not fit the size of the images."""
    return planned_bytes(training_graph(writer, batch), NetOptions(), target, writer.solver(batch))


def training_graph(writer: _Writer, batch: int) -> Graph:
    """Return the graph of the TRAIN net. Raise Error if the net does not fit the size of the images."""
    shape = writer.shape
    message = without_data(writer.train_val(batch), shape, batch)
    try:
        return graph_of(message, proto.TRAIN)
    except Error as problem:
        if shape == writer.given.shape:
            raise
        fact = f"{writer.given.name} does not fit images of {shape_text(shape)}: {problem.fact}"
        raise Error(fact, layer=problem.layer, fix=f"give another --size; the net was published for {shape_text(writer.given.shape)}") from None


def words_of(project: Project) -> tuple[str, str, str]:
    """Return the solver, the net of the training and the deploy net of a project, for a shell."""
    solver, net, deploy = (command(path_word(project.path(name))) for name in ("solver.prototxt", "train_val.prototxt", "deploy.prototxt"))
    return solver, net, deploy


def readme_table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the rows of the table in a README.md. Names in their texts have passed `markdown` or `code_span`."""
    for name, text in rows:
        yield f"| {name} | {text} |"


def readme_head(title: str, commands: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a README.md up to the rows of its table."""
    yield f"# {markdown(title)}"
    yield ""
    yield "Run these commands in the folder in which these files were made. The files are ordinary prototxts: edit them."
    yield ""
    yield from (f"    {command}" for command in commands)
    yield ""
    yield "| | |"
    yield "|---|---|"


def weights_of(solver: Any, folder: str = "", trained: str = "") -> str:
    """Return the weights that a training leaves, for a shell: the file `trained` in the folder of the project, if it has one by that name.

    Else the best snapshot, of which there is one, or that of the last iteration.
    """
    if trained:
        return command(path_word(os.path.join(folder, trained)))
    newest = "_best_iter_*" if solver.HasField("best_output") else f"_iter_{solver.max_iter}"
    return f"{command(path_word(solver.snapshot_prefix))}{newest}.caffemodel"


def _readme(project: Project, writer: _Writer, solver: Any) -> Iterator[str]:
    weights = weights_of(solver, project.folder, writer.choices.trained)
    source = writer.images
    solver_file, net, deploy = words_of(project)
    yield from readme_head(f"{writer.given.title}: {project.classes} classes", (
        f"ocaffe train --solver {solver_file}",
        f"ocaffe test --model {net} --weights {weights} --iterations {solver.test_iter[0]}",
        f"ocaffe plan --solver {solver_file}",
        f"ocaffe convert {deploy} {weights} {command(path_word(project.prefix))}.onnx",
    ))  # fmt: skip
    rows = [
        *((f"images for {use}", f"{part.images}, {code_span(part.source)}" + (f" in {code_span(part.root)}" if part.root else ""))
          for use, part in (("training", source.train), ("testing", source.test))),
        ("classes", ", ".join(map(markdown, source.classes[:20])) + (", ..." if len(source.classes) > 20 else "") if source.classes else str(project.classes)),
        ("input of the net", shape_text(project.shape)),
        ("batch", f"{project.batch} images; a training takes {size_text(project.bytes)} on the device"),
        ("iterations", str(project.iterations)),
        ("mean, scale", " ".join(prototxt(writer.transform).split()) or "none"),
        ("random changes of the images", " ".join(prototxt(writer.augment).split()) or "none"),
    ]
    if writer.choices.weights:
        rows.append(("begins from", credit(writer.given.name, writer.choices.weights) or code_span(writer.choices.weights)))
    yield from readme_table(rows)
    if writer.augment.mirror is False:
        yield ""
        yield "If a mirrored image keeps its class, as photos do, write `mirror: true` into the transform_param of TRAIN."


def write_files(folder: str, files: dict[str, bytes]) -> None:
    """Write files into a folder, all or none. Raise Error if one exists: the caller has checked before that it does not."""
    with new_entries(folder, [os.path.relpath(path, folder) for path in files], meanwhile=True) as made:
        for path, content in files.items():
            (made / os.path.relpath(path, folder)).write_bytes(content)


def complete_solver(solver: Any, choices: Choices, score: str) -> None:
    """Add the choices that every project has: patience with the output `score`, and more fields."""
    if choices.patience:
        solver.best_output, solver.early_stopping, solver.snapshot_keep = score, choices.patience, 1
    if choices.solver:
        solver.MergeFrom(parse(choices.solver, proto.SolverParameter, "fields of the solver"))


def finish(out: str, files: dict[str, bytes], again: bool) -> None:
    """Write the files of a project into its folder, all or none. `again`: they are there already. Raise Error if they differ then."""
    if again:
        _check_equal(files)
    else:
        write_files(out, files)


def _check_equal(files: dict[str, bytes]) -> None:
    """Raise Error if one of the files has another content, or is missing."""
    for path, content in files.items():
        try:
            equal = read_plain(path) == content
        except OSError:
            equal = False
        if not equal:
            fact = "the folder has an unfinished training, and this file differs from the one of this command"
            raise Error(fact, place=path, fix="give the flags and images of before, or choose another folder, --out FOLDER")


def discard(project: Project, *others: str) -> None:
    """Remove the files that `write_project` wrote, and `others` in its folder. The folder goes too if it is empty then."""
    for path in (*project.images.files, *map(project.path, (*FILES, *others)), f"{project.prefix}.json"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
    with contextlib.suppress(OSError):  # other files are in it
        os.rmdir(project.folder)


def write_published(net: str, out: str) -> list[str]:
    """Write the files of a net of the zoo as published, for its own data set, into the folder `out`. Return their paths. Raise Error."""
    if net not in names():
        template(net)  # raises Error for unknown names
        raise Error(f"{net} is a file, and no data are given", place="ocaffe new", fix="--data FOLDER")
    texts = {name: published(net, name) for name in FILES}
    own = prototxt(proto.SolverParameter(net=os.path.join(out, "train_val.prototxt")))
    texts["solver.prototxt"] = own + texts["solver.prototxt"].partition("\n")[2]  # its first line names the net; tests/zoo/test_zoo.py
    texts["README.md"] = re.sub(rf"zoo/{re.escape(net)}/([\w./-]*)", lambda path: _moved(path[1], out), texts["README.md"])  # in its commands
    files = {os.path.join(out, name): text.encode() for name, text in texts.items()}
    for path in files:
        check_absent(path)
    write_files(out, files)
    return list(files)


def _moved(name: str, folder: str) -> str:
    """Return a file of a net of the zoo in a command that is run for `folder`."""
    return command(path_word(os.path.join(folder, name)))


def published(net: str, file: str) -> str:
    """Return the text of a file of a net of the zoo, for example of its "deploy.prototxt"."""
    return (FOLDER / net / file).read_text(encoding="utf-8").removeprefix(f"{HEADER}\n")


def check_absent(path: str) -> None:
    """Raise Error if the file exists, and no killed process has left it."""
    clear_killed(os.path.dirname(path) or ".")
    if os.path.lexists(path):
        raise Error(f"{path} exists", fix="choose another folder, --out FOLDER, or remove the files of the earlier training")
