"""Reduce a training net to the net for inference: one NetParameter becomes another.

Data layers become inputs. Losses and Accuracy are removed, or losses become the activation inside them.
"""
from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.transform import Transform
from ocaffe.data.databases.assumed import image_of
from ocaffe.errors import Error, Place, names_text
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import registry
from ocaffe.shown import flag

DATA = {
    "AnnotatedData", "CustomData", "Data", "DenseImageData", "DisparityData", "FrcnnRoiData", "HDF5Data", "ImageData", "ImageLabelmapData",
    "ImageSegData", "MTCNNData", "MemoryData", "RoIData", "SegData", "VideoData", "WindowData",
}  # fmt: skip
# Data layers that apply transform_param as a mean and a scale.
PICTURES = {"AnnotatedData", "Data", "DenseImageData", "ImageData", "ImageLabelmapData", "ImageSegData", "MTCNNData", "SegData", "VideoData"}
ACTIVATIONS = {"FocalLoss": "Softmax", "SigmoidCrossEntropyLoss": "Sigmoid", "SoftmaxWithLoss": "Softmax", "SoftmaxWithLossOHEM": "Softmax"}
# Layers that measure a net's quality and are not losses.
MEASURES = {"Accuracy", "DetectionEvaluate", "EvalDetection", "ParseEvaluate", "SegAccuracy", "TagEvaluate"}

Source = tuple[int, int]  # a value: the index of its layer, the index of the top


@dataclass(frozen=True)
class Preprocessing:
    """The pixel transform of a data layer: (x - mean) * scale, `mean` of C x 1 x 1 or C x H x W."""

    mean: np.ndarray | None
    scale: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return (x if self.mean is None else x - self.mean) * np.float32(self.scale)


@dataclass
class Deployed:
    """The net, its outputs, and the preprocessing of inputs that were data layers. `note`: what a user may have forgotten to say.

    `prepared`: how images are prepared for the net, if the file's data layers say so and it is no part of the net.
    """

    message: Any
    outputs: list[str]
    preprocessing: dict[str, Preprocessing] = field(default_factory=dict)
    note: str = ""
    prepared: str = ""


def deploy(
    net: Any, *, shapes: Mapping[str, Shape] | None = None, activate: bool = False, cut_at: Sequence[str] = (), prepare: bool = False,
    beside: Preprocessing | None = None, sources: Sequence[Any] = (),
) -> Deployed:  # fmt: skip
    """Return the part of `net` (upgraded, filtered) that computes its outputs, or the blobs `cut_at`.

    `shapes` holds shapes of inputs and data tops. A data layer whose top is missing there is opened to read its shape. With `activate`, a loss leaves
    its Softmax or Sigmoid as an output. With `prepare`, the pixel transforms of data layers are returned. `beside` is that of the file beside the
    weights, for the one input of images of a net without such a layer. `sources` are the data layers of the file in all states: where `net` has no data
    layer, they tell the size of images and the pixel transform. Raises Error where a shape cannot be determined or a blob does not exist.
    """
    given = dict(shapes or {})
    deployed = type(net)()
    deployed.CopyFrom(net)
    labels, preprocessing = set[Source](), dict[str, Preprocessing]()
    add_missing(deployed, given)
    _check_shapes(deployed, given, sources)
    for i, layer in enumerate(deployed.layer):
        if _feeds(layer):
            transform = _transform(layer, net) if prepare else None
            if transform is not None:
                preprocessing[layer.top[0]] = transform
            labels |= {(i, j) for j in range(1, len(layer.top))}
            layer.CopyFrom(_input(layer, net, given, sources))
        elif layer.type == "Input":
            for j, top in enumerate(layer.top):
                if top in given:
                    _reshape(layer, j, given[top])
    if prepare and not preprocessing:
        images = [top for i, layer in enumerate(deployed.layer) if layer.type == "Input" for j, top in enumerate(layer.top) if (i, j) not in labels]
        beside = beside or _of_other_states(net, sources)
        if beside is None or len(images) != 1:
            fact = "--bake-preprocessing is given, but no data layer of the net has a mean or a scale"
            way = "give the train_val prototxt, whose data layer has the transform_param"
            if sources:
                way = "write a transform_param with mean_value into the data layer"
            raise Error(fact, place=net.source_file or None, fix=f"leave it out, or {way}, or give the weights with their .json of the training")
        preprocessing[images[0]] = beside
    used = {top for layer in deployed.layer for top in layer.top}
    for layer in deployed.layer:
        if activate and layer.type in ACTIVATIONS:
            _activate(layer, used)
    readers, roots = _walk(deployed)
    removed = _measures(deployed)
    outputs = _cut(deployed, cut_at) if cut_at else _outputs(deployed, readers, roots, removed, labels)
    _prune(deployed, outputs, removed if not cut_at else set())
    _refuse_missing(deployed, sources)
    return Deployed(deployed, outputs, {name: how for name, how in preprocessing.items() if any(name in layer.top for layer in deployed.layer)})


def _feeds(layer: Any) -> bool:
    """Whether a layer brings in external data. A layer of unknown type without bottoms may."""
    return not layer.bottom and (layer.type in DATA or layer.type == "Python" or layer.type not in registry())


def _measures(net: Any) -> set[int]:
    """Return the indices of losses, layers such as Accuracy, and all layers that depend on them."""
    removed, names = set[int](), set[str]()
    for i, layer in enumerate(net.layer):
        known = registry().get(layer.type)
        is_loss = known is not None and known.implementation(layer).is_loss
        if layer.type in MEASURES or is_loss or _scores_texts(layer) or names.intersection(layer.bottom):
            removed.add(i)
            names.update(layer.top)
    return removed


def _scores_texts(layer: Any) -> bool:
    """Whether a layer is a CTCGreedyDecoder that gives its accuracy: with scores and labels."""
    return layer.type == "CTCGreedyDecoder" and (len(layer.bottom), len(layer.top)) == (2, 1) and not layer.HasField("ctc_decoder_param")


# -- inputs ----------------------------------------------------------------------------------------------------------


def likely_shape(name: str, sources: Sequence[Any]) -> tuple[str, str]:
    """Return the part of --shape for an input, as far as the data layers say its size, and a remark about it."""
    if any(name in layer.top[1:] for layer in sources):
        return f"{name}:1", "the size of a label"
    image = next(filter(None, (image_of(layer) for layer in sources if name in layer.top)), None)
    return f"{name}:1x{'x'.join(map(str, image or (3, 224, 224)))}", "the size that the data layer says" if image else "with the real size"


def _check_shapes(net: Any, given: Mapping[str, Shape], sources: Sequence[Any]) -> None:
    """Raise Error for a given shape of no input, and for one that has another number of axes than images."""
    inputs = [top for layer in net.layer if layer.type == "Input" or _feeds(layer) for top in layer.top]
    tops, place = {top for layer in net.layer for top in layer.top}, net.source_file or None
    possible = list(dict.fromkeys([*inputs, *(name for layer in net.layer for name in layer.bottom if name not in tops)]))
    pictures = {layer.top[0] for layer in (*net.layer, *sources) if layer.type in PICTURES - {"VideoData"} and layer.top}
    for name, shape in given.items():
        if name not in inputs:
            near = difflib.get_close_matches(name, possible, 1, 0.6) or possible[:1]
            fix = f"{flag('shape', ':'.join((near[0], 'x'.join(map(str, shape)))))}; the inputs are {names_text(possible)}" if near else "leave it out"
            raise Error(f"--shape names '{name}', which is not an input", place=place, fix=fix)
        if name in pictures and len(shape) != 4:
            sizes = "x".join(map(str, (1, *shape) if len(shape) == 3 else ("1", *likely_shape(name, sources)[0].split("x")[1:])))
            fact = f"--shape gives '{name}' {len(shape)} axes, and images have 4: batch, channels, height, width"
            raise Error(fact, place=place, fix=flag("shape", f"{name}:{sizes}"))


def _of_other_states(net: Any, sources: Sequence[Any]) -> Preprocessing | None:
    """Return the pixel transform of the file's data layers, which `net` lacks. Raises Error if they differ."""
    found = [(layer, how) for layer in sources if (how := _transform(layer, net)) is not None]
    for layer, how in found[1:]:
        if how.scale != found[0][1].scale or not np.array_equal(_mean(how), _mean(found[0][1])):
            fact = f"the data layers '{found[0][0].name}' and '{layer.name}' have different means or scales, and the net in this state has no data layer"
            fix = "write the same transform_param into both, or leave --bake-preprocessing out"
            raise Error(fact, place=Place.of(net.source_file, layer.source_line), fix=fix)
    return found[0][1] if found else None


def _mean(how: Preprocessing) -> np.ndarray:
    return np.zeros(()) if how.mean is None else how.mean


def _input(param: Any, net: Any, given: Mapping[str, Shape], sources: Sequence[Any]) -> Any:
    """Return the Input layer that replaces a data layer."""
    shapes: list[Shape]
    if param.top[0] in given:
        batch = given[param.top[0]][:1]
        shapes = [given.get(top, batch) for top in param.top]
    else:
        place, title = Place.of(net.source_file, param.source_line), f"'{param.name}' ({param.type})"
        part, size = likely_shape(param.top[0], [param, *sources])
        fix = f"{flag('shape', part)} ({size}) makes the data unnecessary"
        if param.type not in registry():
            raise Error(f"unknown layer type '{param.type}'", place=place, layer=title, fix=fix)
        layer = registry()[param.type].implementation(param)(param, net.state.phase, place)
        try:
            shapes = [tuple(shape) for shape in layer.infer()]
        except Error as problem:
            raise Error(problem.fact, place=problem.place or place, layer=title, fix=f"{fix}; {problem.fix or ''}".rstrip("; ")) from problem
        if layer.source is not None:
            layer.source.close()
    made = proto.LayerParameter(name=param.name, type="Input", top=param.top, source_line=param.source_line)
    for shape in shapes:
        made.input_param.shape.add(dim=shape)
    return made


def add_missing(net: Any, given: Mapping[str, Shape]) -> None:
    """Add Input layers for bottoms that no layer produces and whose shape is given. The data layer may be in another phase only."""
    tops = {top for layer in net.layer for top in layer.top}
    missing = dict.fromkeys(name for layer in net.layer for name in layer.bottom if name not in tops and name in given)
    if not missing:
        return
    layers = [proto.LayerParameter(name=name, type="Input", top=[name], input_param={"shape": [{"dim": given[name]}]}) for name in missing]
    layers += [proto.LayerParameter.FromString(layer.SerializeToString()) for layer in net.layer]
    del net.layer[:]
    net.layer.extend(layers)


def _refuse_missing(net: Any, sources: Sequence[Any]) -> None:
    """Raise Error for a bottom that no layer makes. In the net of another phase a data layer may have made it."""
    tops, missing = set[str](), dict[str, Any]()
    for layer in net.layer:
        for name in layer.bottom:
            if name not in tops:
                missing.setdefault(name, layer)
        tops.update(layer.top)
    if missing:
        (name, layer), *others = missing.items()
        fact = f"unknown bottom blob '{name}'" + (f", and {len(others)} more: {', '.join(other for other, _ in others)}" if others else "")
        likely = [likely_shape(other, sources) for other in missing]
        shapes, sizes = ",".join(part for part, _ in likely), likely[0][1] if len(likely) == 1 else "with the real sizes"
        fix = f"{flag('shape', shapes)} ({sizes}) makes {'them inputs' if others else 'it an input'}; or give the deploy.prototxt of the net"
        raise Error(fact, place=Place.of(net.source_file, layer.source_line), layer=f"'{layer.name}' ({layer.type})", fix=fix)


def _reshape(layer: Any, top: int, shape: Shape) -> None:
    """Change the shape of one top of an Input layer."""
    own = layer.input_param.shape
    if not own:
        own.add()
    if len(own) == 1 < len(layer.top):
        own.extend([own[0]] * (len(layer.top) - 1))
    own[top].dim[:] = shape


def prepared_as(net: Any, whole: Any) -> str:
    """Return how data layers prepare images, an empty text if none does. For people who feed the net elsewhere.

    The data layers of the file `whole` in other states tell it too: its net for deployment has none. Differences between them are told.
    """
    found = dict[str, str]()  # by sentence: the layer
    for layer in (*net.layer, *whole.layer):
        if layer.type in PICTURES:
            found.setdefault(_sentence(layer.transform_param), layer.name)
    told = list(filter(None, found))
    others = [f"'{name}' has {sentence or 'no mean and no scale'}" for sentence, name in found.items() if sentence != told[0]] if told else []
    return told[0] + "".join(f"; but the data layer {each}" for each in others) if told else ""


def _sentence(param: Any) -> str:
    mean = f"the mean image {param.mean_file}" if param.mean_file else ", ".join(f"{value:g}" for value in param.mean_value)
    steps = [f"minus {mean}" if mean else "", f"times {param.scale:g}" if param.scale != 1 else ""]
    return ", ".join(["pixels from 0 to 255", "gray" if param.force_gray else "BGR", *filter(None, steps)]) if any(steps) else ""


def _transform(param: Any, net: Any) -> Preprocessing | None:
    """Return the pixel transform of a data layer, or None if it has none."""
    p = param.transform_param
    if param.type not in PICTURES or not (p.mean_file or p.mean_value or p.scale != 1):
        return None
    own = proto.TransformationParameter()
    for name in ("mean_file", "mean_value", "scale", "crop_size", "crop_h", "crop_w"):
        if name == "mean_value":
            own.mean_value.extend(p.mean_value)
        elif p.HasField(name):
            setattr(own, name, getattr(p, name))
    try:
        transform = Transform(own, False)
    except Error as problem:
        problem.layer, problem.place = f"'{param.name}' ({param.type})", problem.place or Place.of(net.source_file, param.source_line)
        raise
    mean = transform.mean
    if mean is not None and mean.ndim == 1:
        mean = mean.reshape(-1, 1, 1)
    elif mean is not None and transform.crop:  # centre crop, as in TEST
        (top, left), (height, width) = ((size - cut) // 2 for size, cut in zip(mean.shape[1:], transform.crop)), transform.crop
        mean = mean[:, top : top + height, left : left + width]
    return Preprocessing(mean, transform.scale)


# -- losses ----------------------------------------------------------------------------------------------------------


def _activate(layer: Any, used: set[str]) -> None:
    """Turn a loss into the activation of its first bottom."""
    wishes = ["prob", f"{layer.bottom[0]}_prob", *(f"{layer.bottom[0]}_prob{i}" for i in range(2, len(used) + 3))]
    top = layer.top[1] if len(layer.top) > 1 else next(name for name in wishes if name not in used)
    made = proto.LayerParameter(name=layer.name, type=ACTIVATIONS[layer.type], bottom=layer.bottom[:1], top=[top], source_line=layer.source_line)
    if made.type == "Softmax":
        own = layer.softmax_param if layer.type.startswith("Softmax") else layer.focal_loss_param
        made.softmax_param.axis = own.axis if own.HasField("axis") else 1
    layer.CopyFrom(made)
    used.add(top)


# -- which layers ----------------------------------------------------------------------------------------------------


def _walk(net: Any) -> tuple[dict[Source, list[int]], dict[Source, set[Source]]]:
    """Return for every value the layers that read it, and the inputs that it depends on."""
    last: dict[str, Source] = {}
    readers: dict[Source, list[int]] = {}
    roots: dict[Source, set[Source]] = {}
    for i, layer in enumerate(net.layer):
        own = set[Source]()
        for name in layer.bottom:
            if name in last:  # `build` reports an unknown bottom
                readers[last[name]].append(i)
                own |= roots[last[name]]
        for j, name in enumerate(layer.top):
            last[name] = (i, j)
            readers[i, j] = []
            roots[i, j] = own if layer.bottom else {(i, j)}
    return readers, roots


def _outputs(net: Any, readers: dict[Source, list[int]], roots: dict[Source, set[Source]], removed: set[int], labels: set[Source]) -> list[str]:
    """Return the blobs that no remaining layer reads, except inputs and blobs that depend only on labels."""
    outputs = []
    for (i, j), who in readers.items():
        unread = i not in removed and set(who) <= removed
        only_labels = roots[i, j] and roots[i, j] <= labels
        if unread and net.layer[i].type != "Input" and not only_labels:
            outputs.append(net.layer[i].top[j])
    return outputs


def _cut(net: Any, names: Sequence[str]) -> list[str]:
    tops = {top for layer in net.layer for top in layer.top}
    for name in names:
        if name not in tops:
            near = difflib.get_close_matches(name, tops, 3, 0.5)
            fix = f"did you mean {' or '.join(near)}?" if near else "give the top of a layer"
            raise Error(f"--cut-at names '{name}', which is not a blob of the net", place=net.source_file or None, fix=fix)
    return list(dict.fromkeys(names))


def _prune(net: Any, outputs: Sequence[str], removed: set[int]) -> None:
    """Keep the layers that compute `outputs`. Drop the tops of Input layers that no layer reads."""
    wanted, kept = set(outputs), []
    for i in reversed(range(len(net.layer))):
        layer = net.layer[i]
        if i in removed or not wanted.intersection(layer.top):
            continue
        wanted |= set(layer.bottom)
        if layer.type == "Input":
            own = list(layer.input_param.shape) * (len(layer.top) if len(layer.input_param.shape) == 1 else 1)
            needed = [(top, shape) for top, shape in zip(layer.top, own) if top in wanted]
            del layer.top[:], layer.input_param.shape[:]
            for top, shape in needed:
                layer.top.append(top)
                layer.input_param.shape.add().CopyFrom(shape)
        kept.append(layer)
    layers = [proto.LayerParameter.FromString(layer.SerializeToString()) for layer in reversed(kept)]
    del net.layer[:]
    net.layer.extend(layers)
