"""Writes the files of a training that finds the class of each pixel: a segmentation net of the zoo, adapted to the classes and sizes of images with masks."""
from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error, shape_text
from ocaffe.formats.text import parse
from ocaffe.formats.weights import fit, read_weights, write_weights
from ocaffe.graph.options import NetOptions
from ocaffe.ir.graph import Graph
from ocaffe.ir.target import Target
from ocaffe.memory.report import size_text
from ocaffe.shown import code_span, command, markdown, path_word
from ocaffe.tools.datasets.color_table import IGNORE
from ocaffe.tools.datasets.mask_set import WEIGHTS
from ocaffe.zoo import FOLDER
from ocaffe.zoo.figures import planned_bytes
from ocaffe.zoo.masks import FIX, Masks, find_masks
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
from ocaffe.zoo.weights import check_weights, transform_of

BATCH = 16
EPOCHS, TUNING_EPOCHS = 60, 30  # from fillers, from weights
LEAST_ITERATIONS = 500
TESTS = 10  # at most this number in a training
TOP = "seg"  # of SegAccuracy
SCORE = f"{TOP}/mean_iou"  # the output with the mean IoU of a whole test
BEGIN = "begin.caffemodel"  # the given weights in the shapes of the net
COUNTED = ("Convolution", "Deconvolution")  # layers whose outputs may be the classes
BALANCE = "median"  # frequency, of the classes


class Rates(NamedTuple):
    """Rates of a training from fillers, and from weights. Layers that the weights lack learn at 1 / TUNING of the latter."""

    fillers: float
    weights: float


class Recipe(NamedTuple):
    """How a net is trained. `multiple`: the sides of its images are multiples of it. `rates`: as published, `normalized`: with BatchNorm.

    `balance`: of the classes. `cropped`: the sides of images and crops are multiples of it if there are crops. SegNet's pad_out_h and pad_out_w belong to
    one size.
    """

    multiple: int
    rates: Rates
    normalized: Rates
    balance: str = "none"
    cropped: int = 1


# Without weight decay: Adam divides it together with the gradient, so that it would outweigh the small gradients of the mean over all pixels.
ADAM = 'type: "Adam" momentum: 0.9 momentum2: 0.999'
# SegNet reached a mean IoU of 0.61 from fillers with 0.001. From VGG-16's weights it reached 0.84 with 0.0001, 0.80 with 0.0007, and 0.85 with 0.00015 on
# three devices.
RECIPES = {
    "unet": Recipe(16, Rates(0.0003, 0.00003), Rates(0.001, 0.0001)),
    "segnet_basic": Recipe(1, Rates(0.001, 0.0001), Rates(0.001, 0.0001), BALANCE, 16),
    "segnet": Recipe(1, Rates(0.001, 0.0001), Rates(0.0003, 0.0001), BALANCE, 32),
    "fcn8s": Recipe(1, Rates(0.0001, 0.00001), Rates(0.001, 0.0001)),
}
SMALL = 0.017  # scale of pixels for FCN-8s from fillers, near 1 / their standard deviation. Its factors of pool3 and pool4 belong to a scale of 1


def is_segmenter(net: str) -> bool:
    """Return whether `net` is a net of the zoo that finds the class of each pixel."""
    return net in RECIPES


def write_segmenter(
    net: str, data: str, out: str, choices: Choices | None = None, target: Target | None = None, again: bool = False
) -> Project:  # fmt: skip
    """Write the files to train `net` on the images and masks in `data` into the folder `out`. Raise Error, and then write nothing.

    `data`: a folder of `ocaffe dataset masks`. `target`: the device that the batch must fit. `again`: the files are there already, and must be equal.
    """
    choices = choices or Choices()
    check_begin(out, again, (*FILES, BEGIN))
    check_weights(choices.weights)
    masks = find_masks(data, choices.val)
    made = _Segmenter(net, masks, out, choices)
    count = masks.images.train.images
    batch, size, notes = fitting_batch(made, made.bytes, choices, min(BATCH, count), count, target)
    reshaped = _reshaped(made.stored, made.graph(1), choices.weights)
    if reshaped:
        made.begin = os.path.join(out, BEGIN)
        notes.append(f"{made.begin} has the weights of {choices.weights} in the shapes of {net}")
    solver = made.solver(batch)
    project = Project(out, net, masks.images, made.classes, made.shape, batch, solver.max_iter, SCORE, size, (*made.changes, *notes))
    texts = {
        "train_val.prototxt": prototxt(made.train_val(batch)), "solver.prototxt": prototxt(solver), "deploy.prototxt": prototxt(made.deploy),
        "README.md": "\n".join(_readme(project, made, solver)) + "\n",
    }  # fmt: skip
    finish(out, {project.path(name): text.encode("utf-8", "surrogateescape") for name, text in texts.items()}, again)
    if reshaped and not again:
        write_weights(made.begin, made.train_val(1), reshaped)
    return project


class _Segmenter:
    """The messages of a project for any batch."""

    def __init__(self, net: str, masks: Masks, out: str, choices: Choices) -> None:
        self.net, self.masks, self.out, self.choices, self.recipe = net, masks, out, choices, RECIPES[net]
        self.begin = choices.weights
        self.stored = _stored(choices.weights) if choices.weights else {}
        self.body, self.deploy = (upgraded(FOLDER / net / f"{name}.prototxt") for name in ("train_val", "deploy"))
        self.published = graph_of(self.deploy).outputs[0].shape[1]  # classes
        self.changes: list[str] = []
        self.classes = _classes(masks, choices.classes)
        self.augment = parse(choices.augment or "", proto.TransformationParameter, "--augment")
        self.shape = self._shape()
        self.transform = self._transform()
        self.balanced = self._balanced()
        self.changes += dict.fromkeys(change for message in (self.body, self.deploy) for change in self._adapt(message))
        if choices.thin > 1:
            self.changes.append(f"{net} has its channels divided by {choices.thin}")
        if choices.batch_norm:
            self.changes += {_normalize(message, self.stored) for message in (self.body, self.deploy)}
        elif not choices.weights and all(layer.type != "BN" for layer in self.body.layer):
            self.changes.append(f"{net} does not normalize, and learns slowly from fillers: `ocaffe new` has --batch-norm")
        for layer in self.body.layer if self.stored else ():
            if layer.type in COUNTED and layer.name not in self.stored:
                for param in layer.param:
                    param.lr_mult /= TUNING

    # -- the images --------------------------------------------------------------------------------------------------

    def _shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of the net's images."""
        published, given = image_shape(self.deploy), self.choices.size
        crop = self.augment.crop_size
        multiple = math.lcm(self.recipe.multiple, self.recipe.cropped if crop else 1)
        for flag, fix, side in (("--size", "--size ", given), ("crop_size", "--augment with crop_size: ", crop)):
            if side < 0 or side % multiple:
                near = max(side // multiple * multiple, multiple)
                raise Error(f"{flag} is {side}, and {self.net} needs multiples of {multiple}", place="ocaffe new", fix=f"{fix}{near} or {near + multiple}")
        median = np.median(self.masks.sizes, axis=0)
        height, width = (given, given) if given else (max(round(side / multiple) * multiple, multiple) for side in median.tolist())
        if crop > min(height, width):
            most = min(height, width) // multiple * multiple
            raise Error(f"crop_size is {crop}, and the images are {height} x {width}", place="--augment", fix=f"crop_size: {most}, or a larger --size")
        if (self.masks.sizes != (height, width)).any():
            self.changes.append(f"all images and masks are resized to {height} x {width}; --size chooses another size")
        channels = 1 if published[0] == 1 and self.masks.gray else 3
        if channels != published[0]:
            self.changes.append(f"the images have colors: the input has {channels} channels, the published one {published[0]}")
        return channels, height, width

    def _transform(self) -> Any:
        """Return mean and scale: the given ones, those of public weights, or those of the net."""
        own = self.choices.transform or transform_of(self.choices.weights)
        if own:
            return parse(own, proto.TransformationParameter, "--transform")
        made = proto.TransformationParameter()
        made.CopyFrom(next(layer.transform_param for layer in self.body.layer if layer.type == "DenseImageData"))
        if self.net == "fcn8s" and not self.choices.weights:
            made.scale = SMALL
            self.changes.append(f"pixels are multiplied by {SMALL}, because the training begins from fillers")
        return made

    def _balanced(self) -> list[float]:
        """Return the weights of the classes, [] for none."""
        wanted = self.choices.class_weights or self.recipe.balance
        if wanted != BALANCE:
            return []
        if len(self.masks.weights) != self.classes:
            fact = f"{os.path.dirname(self.masks.images.train.source)} has {len(self.masks.weights)} weights in {WEIGHTS}, and there are {self.classes} classes"
            raise Error(fact, place="--class-weights", fix="make the folder by `ocaffe dataset masks`, or give --class-weights none")
        return self.masks.weights

    # -- the net -----------------------------------------------------------------------------------------------------

    def _adapt(self, message: Any) -> Iterator[str]:
        """Fit classes and sizes. Layers with another number of outputs get new names. Yield the changes, for people."""
        sizes, before = self.shape[1:], {}
        for layer in message.layer:
            if layer.type in COUNTED and layer.convolution_param.num_output == self.published != self.classes:
                yield f"layer {layer.name} is {layer.name}_{self.classes} now, with {self.classes} outputs"
                layer.name, layer.convolution_param.num_output = f"{layer.name}_{self.classes}", self.classes
                if layer.convolution_param.group == self.published:
                    layer.convolution_param.group = self.classes
            elif layer.type in COUNTED and layer.convolution_param.num_output != self.published and self.choices.thin > 1:
                layer.convolution_param.num_output = max(1, layer.convolution_param.num_output // self.choices.thin)
            elif layer.type == "Pooling" and len(layer.top) == 2:
                before[layer.top[1]] = sizes
                sizes = -(-sizes[0] // 2), -(-sizes[1] // 2)
            elif layer.type == "Upsample":
                for field, side in zip(("pad_out_h", "pad_out_w"), before[layer.bottom[1]]):
                    layer.upsample_param.ClearField(field)
                    if side % 2:
                        setattr(layer.upsample_param, field, True)
            elif layer.type == "Scale" and self.transform.scale != 1 and layer.name.startswith("scale_pool"):
                if layer.scale_param.HasField("filler"):
                    yield f"the factor of layer {layer.name} is 1, not {layer.scale_param.filler.value:g}, because pixels are scaled"
                    layer.scale_param.filler.value = 1
            elif layer.type == "Input":
                layer.input_param.shape[0].dim[1:] = self.shape
            elif layer.type == "Accuracy":
                layer.type, layer.name, layer.top[0] = "SegAccuracy", TOP, TOP
                layer.ClearField("accuracy_param")
                layer.seg_accuracy_param.ignore_label.append(IGNORE)
            elif layer.type == "SoftmaxWithLoss":
                yield self._loss(layer.loss_param)

    def _loss(self, loss: Any) -> str:
        """Set the loss: the mean over the pixels that count. Return the change."""
        loss.Clear()
        loss.ignore_label, loss.normalize = IGNORE, True
        if not self.balanced:
            return "the loss is the mean over the pixels, without weights of classes; `ocaffe new` has --class-weights median"
        loss.weight_by_label_freqs = True
        loss.class_weighting.extend(self.balanced)
        return f"the loss is the mean over the pixels, with the weights of classes of {WEIGHTS}"

    def train_val(self, batch: int) -> Any:
        made = proto.NetParameter()
        made.CopyFrom(self.body)
        for layer in made.layer:
            if layer.type == "DenseImageData":
                training = proto.TRAIN in [rule.phase for rule in layer.include]
                part = self.masks.images.train if training else self.masks.images.test
                p = layer.dense_image_data_param
                p.Clear()
                p.source, p.root_folder, p.batch_size = part.source, part.root, batch if training else self.test_batch()
                p.new_height, p.new_width = self.shape[1:]  # `ocaffe predict` reads the size here
                if self.shape[0] == 1:
                    p.is_color = False
                layer.transform_param.CopyFrom(self.transform)
                if training:
                    p.shuffle = True
                    layer.transform_param.MergeFrom(self.augment)
        return made

    def test_batch(self) -> int:
        """Return a batch in whose batches no test image comes twice, so that the mean IoU is that of the images."""
        count = self.masks.images.test.images
        return max(size for size in range(1, min(BATCH, count) + 1) if count % size == 0)

    def graph(self, batch: int) -> Graph:
        """Return the graph of the TRAIN net, without its data. Raise Error."""
        crop = self.augment.crop_size
        return graph_of(without_data(self.train_val(batch), (self.shape[0], crop, crop) if crop else self.shape, batch), proto.TRAIN)

    def bytes(self, batch: int, target: Target) -> int:
        """Return the planned bytes of a training, without the TEST net."""
        return planned_bytes(self.graph(batch), NetOptions(), target, self.solver(batch))

    # -- the training ------------------------------------------------------------------------------------------------

    def solver(self, batch: int) -> Any:
        images, tuned = self.masks.images.train.images, bool(self.choices.weights)
        epoch = math.ceil(images / batch)
        iterations = self.choices.iterations or max(LEAST_ITERATIONS, (self.choices.epochs or (TUNING_EPOCHS if tuned else EPOCHS)) * epoch)
        interval = max(iterations // min(TESTS, max(iterations // epoch, 1)), 1)
        made = parse(ADAM, proto.SolverParameter)
        made.net, made.snapshot_prefix = os.path.join(self.out, FILES[0]), os.path.join(self.out, self.net)
        rates = self.recipe.normalized if self.choices.batch_norm else self.recipe.rates
        made.base_lr = rates.weights if tuned else rates.fillers
        made.lr_policy, made.power, made.max_iter, made.best_output = "poly", 1, iterations, SCORE
        made.test_iter.append(self.masks.images.test.images // self.test_batch())
        made.test_interval, made.snapshot = interval, interval
        made.display = made.average_loss = max(1, interval // 10)
        if tuned:
            made.weights.append(self.begin)
        complete_solver(made, self.choices, SCORE)
        return made


def _classes(masks: Masks, given: int) -> int:
    found = len(masks.images.classes)
    if given and found and given != found:
        raise Error(f"--classes is {given}, and labels.txt has {found} classes", fix=f"--classes {found}, or leave it out")
    if not (given or found):
        fact = "the masks have no labels.txt, so that the number of classes is not known"
        raise Error(fact, place="--data", fix=f"--classes N with their number as N; or {FIX}")
    if not 2 <= (given or found) <= IGNORE:
        raise Error(f"there are {given or found} classes", fix=f"give masks of 2 to {IGNORE} classes; {IGNORE} is ignored")
    return given or found


def _normalize(message: Any, stored: Collection[str]) -> str:
    """Replace SegNet's BN by BatchNorm and Scale, or add both between each Convolution and its ReLU. Return the change.

    The convolutions lose their bias, which BatchNorm would remove, but not those in `stored`: the given weights have it.
    """
    layers = list(message.layer)
    del message.layer[:]
    fresh = any(layer.type == "BN" for layer in layers)
    for before, layer in zip([None, *layers], layers):
        if layer.type == "BN" or (not fresh and layer.type == "ReLU" and before is not None and before.type == "Convolution"):
            blob, biased = layer.bottom[0], message.layer[-1]
            if biased.type == "Convolution" and biased.name not in stored:
                biased.convolution_param.bias_term = False
                biased.convolution_param.ClearField("bias_filler")
                del biased.param[1:]
            message.layer.add(name=f"{blob}_bn", type="BatchNorm", bottom=[blob], top=[blob]).batch_norm_param.moving_average_fraction = AVERAGED
            message.layer.add(name=f"{blob}_scale", type="Scale", bottom=[blob], top=[blob]).scale_param.bias_term = True
        if layer.type != "BN":
            message.layer.append(layer)
    if fresh:
        return "BatchNorm and Scale replace each BN: a test takes averages of the training, in place of the statistics of its batch"
    return "BatchNorm and Scale follow each convolution that a ReLU follows"


def _stored(file: str) -> dict[str, list[np.ndarray]]:
    """Return the weights in `file` by layer. Raise Error."""
    return {layer.name: [blob for blob in layer.blobs if blob is not None] for layer in read_weights(file).layers if layer.blobs}


def _reshaped(stored: Mapping[str, Sequence[np.ndarray]], graph: Graph, file: str) -> dict[str, Sequence[np.ndarray]]:
    """Return those of the weights that layers of `graph` have, {} if their shapes fit as they are. Raise Error if numbers of values differ.

    The fc6 and fc7 of a classifier are convolutions in FCN-8s, with the same values in another shape. `file`: of the weights.
    """
    found: dict[str, Sequence[np.ndarray]] = {}
    changed = False
    for node in graph.nodes:
        blobs, shapes = stored.get(node.name, []), [parameter.shape for parameter in node.params]
        if not blobs or not shapes:
            continue
        if [blob.size for blob in blobs] != [math.prod(shape) for shape in shapes]:
            have, want = (", ".join(map(shape_text, each)) for each in ([blob.shape for blob in blobs], shapes))
            fact = f"layer '{node.name}' has weights of {have}, and the net needs {want}"
            raise Error(fact, place=file, fix="give --weights the weights of this net, or leave out --weights")
        changed |= any(fit(blob, shape) is None for blob, shape in zip(blobs, shapes))
        found[node.name] = [np.asarray(blob, np.float32).reshape(shape) for blob, shape in zip(blobs, shapes)]
    return found if changed else {}


def _readme(project: Project, made: _Segmenter, solver: Any) -> Iterator[str]:
    weights = weights_of(solver, project.folder, made.choices.trained)
    (solver_file, net, deploy), images = words_of(project), project.images
    yield from readme_head(f"{project.net}: {project.classes} classes of pixels", (
        f"ocaffe train --solver {solver_file}",
        f"ocaffe test --model {net} --weights {weights} --iterations {solver.test_iter[0]} --per-class",
        f"ocaffe predict --model {deploy} --weights {weights} --annotate drawn IMAGE",
        f"ocaffe convert {deploy} {weights} {command(path_word(project.prefix))}.onnx",
    ))  # fmt: skip
    yield from readme_table((
        ("images for training", f"{images.train.images}, {code_span(images.train.source)}"),
        ("images for testing", f"{images.test.images}, {code_span(images.test.source)}"),
        ("classes", ", ".join(map(markdown, images.classes)) or str(project.classes)), ("ignored pixels", f"those of the level {IGNORE}"),
        ("input of the net", shape_text(project.shape)), ("mean, scale", " ".join(prototxt(made.transform).split()) or "none"),
        ("random changes of the images", " ".join(prototxt(made.augment).split()) or "none"),
        ("batch", f"{project.batch} images; a training takes {size_text(project.bytes)} on the device"), ("iterations", str(project.iterations)),
        ("score", f"`{SCORE}`: mean intersection over union of the pixels for testing"),
    ))  # fmt: skip
    yield ""
    yield "Changes of the published net:"
    yield ""
    yield from (f"* {markdown(change)}" for change in made.changes)
