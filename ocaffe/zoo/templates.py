"""The nets of the zoo, and prototxts of your own, as templates: for another number of classes, another size of images, other data layers."""
from __future__ import annotations

import difflib
import os
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ocaffe import proto
from ocaffe.errors import Error, shape_text
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import parse, read_net, read_solver
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.graph.build import build
from ocaffe.ir.graph import Graph
from ocaffe.zoo import FOLDER

WEIGHTED = {"Convolution": "convolution_param", "InnerProduct": "inner_product_param"}
PASSED = frozenset({"ReLU", "Pooling", "Dropout", "Flatten", "Reshape"})  # layers between the last weights and the class scores
CLASSIFIED = {"Data": "data_param", "ImageData": "image_data_param"}  # data layers of images with one class, and their parameters
DATA = {  # the data layers of the zoo's nets; RoIData has one image
    **CLASSIFIED, "AnnotatedData": "data_param", "DenseImageData": "dense_image_data_param", "MTCNNData": "data_param", "RoIData": "",
}  # fmt: skip
OTHER_DATA = {
    "AnnotatedData": "images with boxes",
    "RoIData": "images with boxes",
    "DenseImageData": "label images, with a class for each pixel",
    "ImageData": "lines of text, with a class for each character",
    "MTCNNData": "samples of faces, with boxes",
}
MADE_BY = {"AnnotatedData": "voc", "RoIData": "voc", "DenseImageData": "masks", "ImageData": "text"}  # commands of `ocaffe dataset`
BOXES = 4  # of an image, for plans
LIST = (300, 5)  # of the boxes of an image with yolo_data_type: 1
MEAN = (104, 117, 123)  # of ImageNet: blue, green, red
# Small nets are for symbols too, which a mirrored image would change; their images move, turn and grow a little.
MOVED = "affine { rotation: 10 translation: 0.08 min_zoom: 0.9 max_zoom: 1.1 border: REPLICATE }"
AUGMENT = {"lenet": MOVED, "lenet_digits": MOVED, "vit_digits": MOVED, "resnet20": MOVED, "cifar10_quick": MOVED}
AVERAGED = 0.95  # of BatchNorm: statistics of the last 20 iterations. Caffe has 0.999, and a training of your own may have some hundred iterations
TAG_SCORE = "tag_eval"  # the output with the mean average precision of tags
UNKNOWN = -1  # label of a tag of which nothing is known
OWN = "mirror: true"  # of nets that are not in AUGMENT, as the nets of ImageNet were published
OWN_SCALE = 0.017  # of other people's nets: pixels about as large as PyTorch's, whose standard deviations are near 1 / 0.017
OWN_SOLVER = 'base_lr: 0.01 momentum: 0.9 weight_decay: 0.0001'
OWN_BATCH = 64  # to which this rate belongs


@dataclass(frozen=True)
class Template:
    """A net to adapt.

    `body`: the layers from the input to the class scores, with fillers, and the losses and accuracies. `deploy`: the NetParameter with an Input layer.
    `solver`: its published solver; `batch`: the images of one of its updates. `transform`: mean and scale. `augment`: fields of the TRAIN transform.
    `published`: it is a net of the zoo, so that the mean and the scale are known.
    `input`: the blob of images; `shape`: its channels, height and width. `classes`: the published number.
    """

    name: str
    title: str
    body: list[Any]
    deploy: Any
    solver: Any
    batch: int
    transform: Any
    augment: str
    published: bool
    input: str
    shape: tuple[int, int, int]
    classes: int


def names() -> list[str]:
    """Return the names of the zoo's nets."""
    return sorted(path.parent.name for path in FOLDER.glob("*/deploy.prototxt"))


def template(net: str) -> Template:
    """Return the template `net`: a net of the zoo, or a deploy prototxt. Raise Error."""
    if net in names():
        return _of_zoo(net)
    if os.path.exists(net):  # errors name a folder, a pipe or a device as such
        return _of_file(net)
    near = difflib.get_close_matches(net, names(), 1)
    fix = f"did you mean {near[0]}? " if near else ""
    raise Error(f"there is no net '{net}' in the zoo, and no such file", fix=f"{fix}`ocaffe zoo` lists the nets; or name a deploy.prototxt")


def _of_zoo(name: str) -> Template:
    folder = FOLDER / name
    train, deploy, solver = upgraded(folder / "train_val.prototxt"), upgraded(folder / "deploy.prototxt"), read_solver(folder / "solver.prototxt")
    data = next(layer for layer in train.layer if layer.type in DATA)
    if not is_classifier(train):
        fact = f"{name} learns from {OTHER_DATA[data.type]}, and --data takes images with one class each"
        if data.type in MADE_BY:
            raise Error(fact, fix=f"`ocaffe new {name} --data FOLDER`, with a folder of `ocaffe dataset {MADE_BY[data.type]}`")
        raise Error(fact, fix=f"`ocaffe new {name}` writes its files as published. Name your data in train_val.prototxt, as docs/zoo.md describes")
    transform = proto.TransformationParameter(scale=data.transform_param.scale) if data.transform_param.HasField("scale") else proto.TransformationParameter()
    transform.mean_value.extend(data.transform_param.mean_value or (() if transform.scale != 1 else MEAN))
    shape = image_shape(deploy)
    body = [layer for layer in train.layer if layer.type not in DATA]
    batch = data.data_param.batch_size * solver.iter_size
    classes = outputs_of(scores(deploy.layer))
    return Template(name, deploy.name, body, deploy, solver, batch, transform, AUGMENT.get(name, OWN), True, "data", shape, classes)


def _of_file(path: str) -> Template:
    net = upgraded(path)
    file = pathlib.Path(path).resolve()
    name = file.parent.name if file.stem == "deploy" else file.stem.removesuffix("_deploy")
    inputs = [layer for layer in net.layer if layer.type == "Input"]
    dims = [tuple(shape.dim) for layer in inputs for shape in layer.input_param.shape]
    if len(inputs) != 1 or len(inputs[0].top) != 1 or len(dims) != 1 or len(dims[0]) != 4:
        shapes = ", ".join(map(shape_text, dims)) or "none"
        raise Error(f"the net has {len(inputs)} Input layers (shapes: {shapes})", place=path, fix="give a deploy.prototxt with one input, N x 3 x H x W")
    if net.layer[-1].type != "Softmax":
        top = net.layer[-1].top[0]
        net.layer.add(name="prob", type="Softmax", bottom=[top], top=["prob"])
    ends = _ends(net.layer[-1].bottom[0])
    body = [_copy(layer) for layer in net.layer[:-1] if layer.type != "Input"] + list(ends.layer)
    for layer in body:
        if layer.type in WEIGHTED and not getattr(layer, WEIGHTED[layer.type]).HasField("weight_filler"):
            getattr(layer, WEIGHTED[layer.type]).weight_filler.type = "msra"
    transform = proto.TransformationParameter(mean_value=MEAN, scale=OWN_SCALE) if dims[0][1] == 3 else proto.TransformationParameter(scale=1 / 256)
    classes = outputs_of(scores(net.layer))
    solver = parse(OWN_SOLVER, proto.SolverParameter)
    return Template(name, net.name or name, body, net, solver, OWN_BATCH, transform, OWN, False, inputs[0].top[0], dims[0][1:], classes)


def _ends(blob: str) -> Any:
    return parse(
        f'''layer {{ name: "accuracy" type: "Accuracy" bottom: "{blob}" bottom: "label" top: "accuracy" include {{ phase: TEST }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "{blob}" bottom: "label" top: "loss" }}''',
        proto.NetParameter,
    )


def upgraded(path: str | os.PathLike[str]) -> Any:
    """Return the net in a prototxt, in today's format. Raise Error."""
    net = read_net(str(path))
    made = type(net)()
    made.CopyFrom(upgrade_net(net))
    return made


def scores(layers: Sequence[Any]) -> Any:
    """Return the layer with the weights of the class scores, which the Softmax at the end of `layers` reads. Raise Error."""
    return _weights_of(layers, len(layers) - 1)


def _weights_of(layers: Sequence[Any], end: int) -> Any:
    """Return the layer that computes the first bottom of layer `end`, apart from layers without weights. Raise Error."""
    blob = layers[end].bottom[0]
    for layer in reversed(layers[:end]):
        if blob in layer.top:
            if layer.type in WEIGHTED:
                return layer
            if layer.type not in PASSED:
                break
            blob = layer.bottom[0]
    fact = f"layer '{layers[end].name}' ({layers[end].type}) reads no class scores of an InnerProduct or Convolution layer"
    raise Error(fact, fix="give a net that classifies images")


def outputs_of(layer: Any) -> int:
    """Return num_output of a layer with weights."""
    return int(getattr(layer, WEIGHTED[layer.type]).num_output)


@dataclass(frozen=True)
class Adapted:
    """A net for other data. `body` and `deploy` are as in Template. `accuracy`: the blob of the share of right images. `changes`: lines for the user."""

    body: list[Any]
    deploy: Any
    accuracy: str
    changes: list[str]


def adapted(given: Template, classes: int, shape: tuple[int, int, int], rate: float = 1) -> Adapted:
    """Return the net for `classes` and images of `shape`. The layers of the class scores get new names if their number changes.

    Then weights of the published net load by name, and these layers begin with their fillers. `rate`: factor of their rates. Raise Error.
    """
    body, deploy, changes = [_copy(layer) for layer in given.body], _copy(given.deploy), []
    renamed: dict[str, str] = {}
    losses = [index for index, layer in enumerate(body) if layer.type == "SoftmaxWithLoss"]
    for layer in {id(layer): layer for layer in (_weights_of(body, index) for index in losses)}.values():
        if outputs_of(layer) != classes:
            renamed[layer.name] = f"{layer.name}_{classes}"
            faster(layer, rate)
    for layer in (*body, *deploy.layer):
        if layer.name in renamed and layer.type in WEIGHTED:
            getattr(layer, WEIGHTED[layer.type]).num_output = classes
            layer.name = renamed[layer.name]
    changes += [f"layer {old} is {new} now, with {classes} outputs" for old, new in renamed.items()]
    body = [layer for layer in body if layer.type != "Accuracy" or layer.accuracy_param.top_k < classes]
    entry = next(layer for layer in deploy.layer if layer.type == "Input")
    if shape[1:] != given.shape[1:]:
        for pooling in _onto_one(given, [*body, *deploy.layer]):
            pooling.pooling_param.Clear()
            pooling.pooling_param.pool = proto.PoolingParameter.AVE
            pooling.pooling_param.global_pooling = True
    del entry.input_param.shape[0].dim[:]
    entry.input_param.shape[0].dim.extend((1, *shape))
    for layer in body:
        if layer.type == "BatchNorm" and not layer.batch_norm_param.HasField("moving_average_fraction"):
            layer.batch_norm_param.moving_average_fraction = AVERAGED
    accuracies = [layer.top[0] for layer in body if layer.type == "Accuracy" and layer.accuracy_param.top_k == 1]
    return Adapted(body, deploy, accuracies[-1], changes)


def tagged(made: Adapted) -> Adapted:
    """Return the net for images with any number of tags each: a sigmoid for each score, and the mean average precision in place of the accuracy."""
    body = [layer for layer in made.body if layer.type != "Accuracy"]
    for layer in body:
        if layer.type == "SoftmaxWithLoss":
            layer.type = "SigmoidCrossEntropyLoss"
            layer.ClearField("softmax_param")
            layer.loss_param.Clear()
            layer.loss_param.ignore_label = UNKNOWN
            last = layer
    scored = proto.LayerParameter(name=TAG_SCORE, type="TagEvaluate", bottom=[last.bottom[0], last.bottom[1]], top=[TAG_SCORE])
    scored.include.add(phase=proto.TEST)
    for layer in made.deploy.layer:
        if layer.type == "Softmax":
            layer.type = "Sigmoid"
            layer.ClearField("softmax_param")
    return Adapted([*body, scored], made.deploy, TAG_SCORE, made.changes)


def faster(layer: Any, factor: float) -> None:
    """Multiply the rates of a layer."""
    has_bias = getattr(layer, WEIGHTED[layer.type]).bias_term
    while len(layer.param) < 1 + has_bias:
        layer.param.add()
    for param in layer.param:
        if factor != 1:
            param.lr_mult *= factor


def _onto_one(given: Template, layers: Sequence[Any]) -> Iterator[Any]:
    """Yield those of `layers` that average the whole image by a window of fixed size. It fits the published size of images alone."""
    sides = {top.name: top.shape[2:] for node in graph_of(given.deploy).nodes if node.type == "Pooling" for top in node.tops}
    for layer in layers:
        p = layer.pooling_param
        if layer.type == "Pooling" and p.pool == proto.PoolingParameter.AVE and not p.global_pooling and sides.get(layer.top[0]) == (1, 1):
            yield layer


def graph_of(net: Any, phase: int = proto.TEST) -> Graph:
    """Return the graph of a net of today's format, without log lines. Raise Error."""
    return build(filter_net(net, proto.NetState(phase=phase)), phase, lambda source, text: None)


def is_classifier(train: Any) -> bool:
    """Whether a net of the zoo learns from images with one class each."""
    return any(layer.type in CLASSIFIED and layer.image_data_param.label_count == 1 for layer in train.layer)


def image_shape(deploy: Any) -> tuple[int, int, int]:
    """Return channels, height and width of the images of a deploy net."""
    channels, height, width = deploy.layer[0].input_param.shape[0].dim[1:]
    return channels, height, width


def data_shapes(layer: Any, batch: int, shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the shapes of the tops of a data layer of the zoo, for `batch` images of `shape`."""
    if layer.type == "RoIData":
        return [(1, *shape), (1, 3), (BOXES, 5), (1, 1, BOXES, 8)][: len(layer.top)]
    boxes = (batch, 1, *LIST) if layer.annotated_data_param.yolo_data_type else (1, 1, BOXES * batch, 8)
    targets: dict[str, list[tuple[int, ...]]] = {
        "AnnotatedData": [boxes], "DenseImageData": [(batch, 1, *shape[1:])], "MTCNNData": [(batch,), (batch, 4), (batch, 10)],
    }  # fmt: skip
    count = layer.image_data_param.label_count
    return [(batch, *shape), *targets.get(layer.type, [(batch, count) if count > 1 else (batch,)])][: len(layer.top)]


def without_data(net: Any, shape: Sequence[int], batch: int = 0) -> Any:
    """Return a copy of `net` with Inputs for images of `shape` and their labels instead of the data layers. So it needs no data.

    `batch`: the number of images; 0: that of each data layer.
    """
    net = _copy(net)
    for layer in net.layer:
        if layer.type in DATA:
            own = getattr(layer, DATA[layer.type]).batch_size if DATA[layer.type] else 1
            shapes = data_shapes(layer, batch or own, shape)
            layer.type = "Input"
            for dim in shapes:
                layer.input_param.shape.add(dim=dim)
    return net


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
