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
        self.check(-len(shape) <= axis < len(shape), fact, f"{what} from 0 to {len(shape) - 1}; -1 is the last one" if shape else "a bottom with axes")
        return axis + len(shape) if axis < 0 else axis

    def check_axes(self, shape: Shape, form: str, bottom: int = 0, values: bool = False) -> None:
        """Raise the layer's error unless a bottom of this shape has the axes of `form`: "N x C x H x W", or "N x C x .." for two or more.

        `values`: no axis may be 0.
        """
        axes = form.removesuffix(" x ..").count(" x ") + 1
        more = max(0, axes - len(shape))
        dims = [0] * min(len(shape), axes - 1) + ([1] * more or [-1]) if shape else [1] * axes
        fits = len(shape) >= axes if form.endswith("..") else len(shape) == axes
        fix = f"a Reshape layer before it: reshape_param {{ shape {{ {' '.join(f'dim: {dim}' for dim in dims)} }} }}"
        self.check(fits, f"bottom {bottom} is {shape_text(shape)}, it must be {form}", fix)
        self.check(not values or 0 not in shape, f"bottom {bottom} is {shape_text(shape)}, an axis of it is 0", "a bottom with values")

    def no_gradient(self, propagate: Sequence[bool], bottoms: Mapping[int, str]) -> None:
        """Raise the layer's error if the net needs the diff of a bottom that has none. `bottoms` names the values of each such bottom, such as labels."""
        for bottom, what in bottoms.items():
            if propagate[bottom]:
                fix = " ".join(f"propagate_down: {str(wanted and index not in bottoms).lower()}" for index, wanted in enumerate(propagate))
                asks = "a layer before that bottom, propagate_down or force_backward asks for it"
                raise self.error(f"there is no gradient for {what} (bottom {bottom}); {asks}", fix)

    def own(self) -> Any:
        """Return the layer's parameter message: `pooling_param` for `Pooling`."""
        return getattr(self.param, param_field(self.param.type))

    @classmethod
    def recognise(cls, param: Any, blobs: Sequence[np.ndarray | None]) -> None:
        """Set unset fields of `param` that select a fork's layer. The layer's blobs in a weights file tell which fork it is."""


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
