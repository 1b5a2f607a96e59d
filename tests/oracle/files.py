"""A case from a net file."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.layers.base import registry
from tests.oracle.case import Case, Shape
from tests.oracle.values import NORMAL, Spec

FIELDS = ("source_file", "source_line")  # where a message was read; real Caffe has no such fields


def from_file(path: str, phase: str = "TEST", given: Mapping[str, Shape] | None = None) -> Case:
    """The case of a prototxt. Data layers become inputs, for which `given` has shapes; their labels are drawn for the layers that read them.

    Raises Error for a wrong file, and for an input without a shape.
    """
    net = filter_net(upgrade_net(read_net(path)), proto.NetState(phase=phase))
    shapes = dict(given or {})
    plain = type(net)()
    plain.CopyFrom(net)
    plain.ClearField("layer")
    plain.ClearField("state")
    inputs: dict[str, Spec] = {}
    for layer in net.layer:
        fed = layer.type == "Input" or (layer.type in registry() and registry()[layer.type].bottoms == 0 and layer.type.endswith("Data"))
        if not fed:
            plain.layer.add().CopyFrom(layer)
            continue
        for number, top in enumerate(layer.top):
            if layer.type == "Input" and layer.input_param.shape:
                own = layer.input_param.shape
                shapes.setdefault(top, tuple(own[number if len(own) > 1 else 0].dim))
            if top not in shapes:
                raise Error(f"the shape of input '{top}' is not known", place=path, layer=f"'{layer.name}' ({layer.type})", fix=f"--shape {top}=1,3,224,224")
            made = plain.layer.add(name=top, type="Input", top=[top])
            made.input_param.shape.add(dim=shapes[top])
            inputs[top] = NORMAL
    _clear(plain)
    case = Case(1, plain, phase, inputs, shapes=_inferred(plain, phase, shapes))
    return case.changed(inputs={name: _labels(case, name) for name in inputs}, backward=phase == "TRAIN")


def _clear(message: Any) -> None:
    """Remove the places where messages were read."""
    for descriptor, value in list(message.ListFields()):
        if descriptor.name in FIELDS:
            message.ClearField(descriptor.name)
        elif descriptor.message_type is not None:
            for inner in value if hasattr(value, "extend") else [value]:
                _clear(inner)


def _inferred(net: Any, phase: str, shapes: dict[str, Shape]) -> dict[str, Shape]:
    """The shapes of all blobs, as far as ocaffe can infer them."""
    for layer in net.layer:
        if layer.type == "Input":
            continue
        try:
            made = registry()[layer.type].implementation(layer)(layer, proto.TRAIN if phase == "TRAIN" else proto.TEST)
            shapes.update(zip(layer.top, (tuple(shape) for shape in made.infer(*(shapes[bottom] for bottom in layer.bottom)))))
        except (Error, KeyError):
            break
    return shapes


def _labels(case: Case, name: str) -> Spec:
    """The values of an input: labels if a loss or Accuracy reads it as its second bottom."""
    for layer in case.net.layer:
        if len(layer.bottom) > 1 and layer.bottom[1] == name and (layer.type == "Accuracy" or layer.type.endswith("Loss")) and layer.bottom[0] in case.shapes:
            scores = case.shapes[layer.bottom[0]]
            if layer.type == "SigmoidCrossEntropyLoss":
                return ("bits", 0.5)
            if layer.type == "EuclideanLoss":
                return NORMAL
            axis = layer.softmax_param.axis if layer.type == "SoftmaxWithLoss" else layer.accuracy_param.axis
            return ("integers", 0, scores[axis] if len(scores) > 1 else 2)
    return NORMAL
