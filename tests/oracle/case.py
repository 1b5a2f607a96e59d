"""A net to compare: its text, its phase, and how its values are drawn."""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import text_format

from ocaffe import proto
from ocaffe.formats import legacy
from ocaffe.formats.upgrade import upgrade_net
from tests.oracle import values
from tests.oracle.values import Spec

Shape = tuple[int, ...]
NUMBER = proto.V1LayerParameter.LayerType.Value
V1 = {today: name for name, today in legacy.V1_TYPES.items() if today and NUMBER(name) < 40}  # larger numbers are those of forks


@dataclass(frozen=True)
class Step:
    """A forward and backward pass. `shapes`: new shapes of inputs; `reshape`: whether the script calls reshape."""

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    reshape: bool = False


@dataclass(frozen=True)
class Case:
    """A net in today's form, and how it is given to both programs. `form`: 'today', 'V1', or 'input' for the legacy input fields."""

    seed: int
    net: Any  # a NetParameter
    phase: str
    inputs: Mapping[str, Spec]
    weights: Mapping[str, Sequence[Spec]] = field(default_factory=dict)  # of layers; values.WEIGHTS for others
    backward: bool = True
    steps: Sequence[Step] = (Step(),)
    form: str = "today"
    level: int = 0
    stages: Sequence[str] = ()
    shapes: Mapping[str, Shape] = field(default_factory=dict)  # of blobs, as far as they are known
    memory: Mapping[str, Any] = field(default_factory=dict)  # shape and number of classes of the arrays for a MemoryData layer
    kept: Sequence[str] | None = None  # blobs whose values ocaffe keeps, or None for all; the memory of others is planned
    debug: str = ""  # further words of OCAFFE_DEBUG
    diffs: Sequence[str] = ()  # outputs to which a script gives a diff; without force_backward none needs it

    @property
    def text(self) -> str:
        return FORMS[self.form](self.net)

    @property
    def built(self) -> Any:
        """The net in today's form, as programs build it from the text."""
        return self.net if self.form == "today" else read(self.text)

    @property
    def types(self) -> list[str]:
        return [layer.type for layer in self.net.layer]

    def order(self, **more: Any) -> dict[str, Any]:
        """The job of a worker."""
        steps = [dataclasses.asdict(step) for step in self.steps]
        return {
            "kind": "net", "seed": self.seed, "text": self.text, "phase": self.phase, "level": self.level, "stages": list(self.stages),
            "inputs": dict(self.inputs), "weights": dict(self.weights), "backward": self.backward, "steps": steps, "diffs": list(self.diffs),
            "memory": dict(self.memory), "kept": None if self.kept is None else list(self.kept), "debug": self.debug, **more,
        }  # fmt: skip

    def changed(self, **fields: Any) -> Case:
        return dataclasses.replace(self, **fields)


def written(net: Any) -> str:
    return text_format.MessageToString(net)


def has_first_form(net: Any) -> bool:
    """Whether V1 has the types and fields of all layers but Input."""
    plain = ("name", "type", "bottom", "top", "loss_weight", "param", "include", "exclude")
    for layer in net.layer:
        names = [descriptor.name for descriptor, _ in layer.ListFields() if descriptor.name not in plain]
        known = all(name.endswith("_param") and name in proto.V1LayerParameter.DESCRIPTOR.fields_by_name for name in names)
        if layer.type != "Input" and not (layer.type in V1 and known):
            return False
    return True


def first_form(net: Any) -> str:
    """The net with V1 layers and `input` fields. V1 and today's layers do not mix, so a net with others stays as it is."""
    new = _with_input_fields(net)
    if not has_first_form(net) or any(layer.type == "Input" for layer in new.layer):
        return written(net)
    old = type(net)()
    old.CopyFrom(new)
    old.ClearField("layer")
    for layer in new.layer:
        first = old.layers.add(name=layer.name, type=V1[layer.type], bottom=layer.bottom, top=layer.top, loss_weight=layer.loss_weight)
        for spec in layer.param:
            first.blobs_lr.append(spec.lr_mult)
            first.weight_decay.append(spec.decay_mult)
            if spec.name:
                first.param.append(spec.name)
        for descriptor, value in layer.ListFields():
            if descriptor.name.endswith("_param"):
                getattr(first, descriptor.name).CopyFrom(value)
            elif descriptor.name in ("include", "exclude"):
                getattr(first, descriptor.name).extend(value)
    return written(old)


def _with_input_fields(net: Any) -> Any:
    """The net with `input` and `input_shape` (or `input_dim`) in place of its Input layers, if no rule includes one."""
    inputs = [(top, shape) for layer in net.layer if layer.type == "Input" for top, shape in zip(layer.top, layer.input_param.shape)]
    if any(layer.include or layer.exclude for layer in net.layer if layer.type == "Input") or not inputs:
        return net
    old = type(net)()
    old.CopyFrom(net)
    old.ClearField("layer")
    old.layer.extend(layer for layer in net.layer if layer.type != "Input")
    four = all(len(shape.dim) == 4 for _, shape in inputs)
    for top, shape in inputs:
        old.input.append(top)
        if four:
            old.input_dim.extend(shape.dim)
        else:
            old.input_shape.add().CopyFrom(shape)
    return old


def input_fields(net: Any) -> str:
    return written(_with_input_fields(net))


FORMS = {"today": written, "V1": first_form, "input": input_fields}


def read(text: str) -> Any:
    """The net of a prototxt in today's form."""
    net = proto.NetParameter()
    text_format.Parse(text, net)
    return upgrade_net(net)


def count(shape: Shape) -> int:
    return math.prod(shape)


def is_value(spec: Spec) -> bool:
    """Whether diffs of an input with these values are compared: not those of labels, boxes and other choices."""
    return spec[0] in values.CONTINUOUS
