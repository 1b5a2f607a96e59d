"""The base class of layers and the registry of layer types. Importing a module of `ocaffe.layers` registers its layers."""
from __future__ import annotations

import functools
import importlib
import pathlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.layer import AbstractLayer
from ocaffe.ir.layer import Arity as Arity
from ocaffe.ir.layer import ParamBlob as ParamBlob
from ocaffe.ir.layer import WeightOutputs as WeightOutputs
from ocaffe.ir.tensor import Shape
from ocaffe.onnx.graph import OnnxGraph

LayerClass: TypeAlias = "type[Layer]"


class Layer(AbstractLayer):
    """Base of all layers: AbstractLayer plus the helpers that layers are written with."""

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        """Return the class for this LayerParameter. It is another class if forks give the type several meanings."""
        return cls

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write the ONNX nodes that compute `tops`; called after infer. Raises the layer's error if ONNX cannot express the layer."""
        raise graph.refused(f"ocaffe has no ONNX operators for the type {self.type}")

    # -- help --------------------------------------------------------------------------------------------------------

    def axis(self, axis: int, shape: Shape, what: str = "axis") -> int:
        """Return `axis` counted from the front. A negative axis counts from the back, as in Caffe."""
        fact = f"{what} {axis} is outside the {len(shape)} axes of bottom {shape_text(shape)}"
        fix = f"set {what} to a number from 0 to {len(shape) - 1}; -1 is the last one" if shape else "give a bottom with at least one axis"
        self.check(-len(shape) <= axis < len(shape), fact, fix)
        return axis + len(shape) if axis < 0 else axis

    def check_axes(self, shape: Shape, form: str, bottom: int = 0, values: bool = False) -> None:
        """Raise the layer's error unless a bottom of this shape has the axes of `form`: "N x C x H x W", or "N x C x .." for two or more.

        `values`: no axis may be 0.
        """
        fits = len(shape) >= 2 if form == "N x C x .." else len(shape) == 4
        fix = _to_channels(shape) if form == "N x C x .." else _to_image(shape)
        self.check(fits, f"bottom {bottom} is {shape_text(shape)}, it must be {form}", fix)
        if values:
            self.check_filled(shape, bottom)

    def check_filled(self, x: Shape, bottom: int = 0) -> None:
        """Raise the layer's error if an axis of a bottom has the size 0."""
        empty = x.index(0) if 0 in x else 0
        fact = f"bottom {bottom} is {shape_text(x)}: axis {empty} has the size 0"
        self.check(0 not in x, fact, f"give bottom {bottom} at least 1 value along axis {empty}")

    def check_tops(self, bottoms: Sequence[Shape]) -> None:
        """Raise the layer's error unless each bottom has its own top."""
        given, wanted = len(self.param.top), len(bottoms)
        fix = f"add {wanted - given} more top" if given < wanted else f"remove {given - wanted} top"
        self.check(given == wanted, f"{wanted} bottoms and {given} tops are given, each bottom needs a top", fix)

    def positive(self, message: Any, meanings: Mapping[str, str]) -> None:
        """Raise the layer's error unless these number fields of a message are above 0. `meanings` tell what each one is."""
        for name, meaning in meanings.items():
            there = message.HasField(name) or getattr(message, "DESCRIPTOR", None) is not getattr(self.own(), "DESCRIPTOR", None)
            fix = f"set {name} to {meaning}" if there else f"{self.written(f'{name}: N')}, where N is {meaning}"
            self.check(getattr(message, name) > 0, stated(message, name), fix)

    def written(self, fields: str) -> str:
        """Return the remedy for `fields`, in prototxt, that the layer's own message lacks: the line to add to it, or the message whole."""
        own = self.own().DESCRIPTOR
        given = next((field.name for field, _ in self.param.ListFields() if field.message_type is own), None)
        return f"add {fields} to {given}" if given else f"write {param_field(self.param.type)} {{ {fields} }} in the layer"

    def integers(self) -> Any:
        """Return the weight_quantization_param of a product that computes with integers, None if it computes in floats. Raise the layer's error."""
        settings = self.param.weight_quantization_param
        if not settings.HasField("input_scale"):
            return None
        self.check(0 < settings.input_scale < float("inf"), f"input_scale is {settings.input_scale:g}", "set input_scale to a number above 0")
        self.check(self.phase == proto.TEST, "input_scale asks for integers, which have no gradient", "remove input_scale to train the net")
        return settings

    def no_gradient(self, propagate: Sequence[bool], what: Mapping[int, str]) -> None:
        """Raise the layer's error if a gradient is wanted for a bottom that gets none. `what` names these bottoms by what they hold."""
        line = " ".join(f"propagate_down: {str(wanted and i not in what).lower()}" for i, wanted in enumerate(propagate))
        for i, name in what.items():
            asks = "a layer before that bottom, propagate_down or force_backward asks for it"
            self.check(not propagate[i], f"there is no gradient for {name} (bottom {i}); {asks}", f"write in this layer: {line}")

    def own(self) -> Any:
        """Return the layer's parameter message: `pooling_param` for `Pooling`."""
        return getattr(self.param, param_field(self.param.type))

    @classmethod
    def recognise(cls, param: Any, blobs: Sequence[np.ndarray | None]) -> None:
        """Set unset fields of `param` that select a fork's layer. The layer's blobs in a weights file tell which fork it is."""


def stated(message: Any, name: str) -> str:
    """Say what a field of a message holds as its author sees it: `stride is 0`, `stride is 1, the default` or `stride is missing`."""
    field, value = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    if field.enum_type is not None:
        text = str(field.enum_type.values_by_number[value].name)
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = f"{value:g}" if isinstance(value, float) else repr(value)
    if message.HasField(name):
        return f"{name} is {text}"
    return f"{name} is {text}, the default" if value or field.enum_type is not None or isinstance(value, bool) else f"{name} is missing"


def times(count: int) -> str:
    """Say how often: `once` or `3 times`."""
    return "once" if count == 1 else f"{count} times"


def once_or(count: int) -> str:
    """Say how often a field may be given that has one value for all, or `count` values: `once` or `once, or 3 times`."""
    return "once" if count == 1 else f"once, or {count} times"


def shape_field(sizes: Sequence[int]) -> str:
    """Return the parameters of a Reshape layer that makes these sizes."""
    return f"reshape_param {{ shape {{ {' '.join(f'dim: {size}' for size in sizes)} }} }}"


def _to_channels(x: Shape) -> str:
    """Return how a Reshape layer makes N x C of fewer axes."""
    if not x:
        return f"add a Reshape layer before it: {shape_field([1, 1])}"
    return f"add a Reshape layer before it: {shape_field([*x, 1])} for {x[0]} samples, or {shape_field([1, *x])} for {x[0]} channels"


def _to_image(x: Shape) -> str:
    """Return how a Reshape layer makes N x C x H x W of a shape with another number of axes."""
    if not x:
        return f"add a Reshape layer before it: {shape_field([1, 1, 1, 1])}"
    if len(x) == 1:
        return f"add a Reshape layer before it: {shape_field([*x, 1, 1, 1])} for {x[0]} samples, or {shape_field([1, *x, 1, 1])} for {x[0]} channels"
    if len(x) == 2:
        return f"add a Reshape layer before it: {shape_field([*x, 1, 1])} if it is N x C, or {shape_field([1, 1, *x])} if it is H x W"
    if len(x) == 3:
        return f"add a Reshape layer before it: {shape_field([1, *x])} if it is C x H x W, or {shape_field([x[0], 1, *x[1:]])} if it is N x H x W"
    if len(x) == 5:
        planes = f"a Permute layer with {' '.join(f'order: {axis}' for axis in (0, 2, 1, 3, 4))}"
        return f"make images of the {x[2]} planes: {planes}, then a Reshape layer: {shape_field([x[0] * x[2], x[1], *x[3:]])}"
    return "give a bottom of 4 axes: samples, channels, rows, columns"


TEST_PHASE = "export the TEST phase, without phase: TRAIN in this layer"

_REGISTRY: dict[str, type[Layer]] = {}
L = TypeVar("L", bound=type[Layer])


def register(*types: str) -> Callable[[L], L]:
    """Class decorator that registers a class for these Caffe types."""

    def add(cls: L) -> L:
        for name in types:
            assert name not in _REGISTRY, f"layer type {name} is registered twice"
            _REGISTRY[name] = cls
        cls.type = types[0]
        return cls

    return add


@functools.cache
def registry() -> dict[str, type[Layer]]:
    """Return all layer types. The first call imports every module of `ocaffe.layers`."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules([str(pathlib.Path(__file__).parent)]):
        importlib.import_module(f"{package}.{module.name}")
    return _REGISTRY


def layer_type(param: Any) -> str:
    """Return the type of the class that computes a layer: RoIData for a Python layer with the module roi_data_layer.layer. An unknown type is returned."""
    return registry()[param.type].implementation(param).type if param.type in registry() else str(param.type)


def layer_type_list() -> list[str]:
    """Return the sorted names of all layer types."""
    return sorted(registry())


@functools.cache
def _fields() -> dict[str, str]:
    """Map types in lower case to LayerParameter fields, for the fields that are named after a type."""
    names = [field.name for field in proto.LayerParameter.DESCRIPTOR.fields if field.name.endswith("_param")]
    return {name.removesuffix("_param").replace("_", ""): name for name in names}


def param_field(layer_type: str) -> str:
    """Return the LayerParameter field of a type: inner_product_param for InnerProduct, "" if the type has no parameters."""
    cls = registry().get(layer_type)
    if cls is not None and cls.message is not None:
        return cls.message
    return _fields().get(layer_type.lower(), "")
