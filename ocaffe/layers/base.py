"""What a layer is: shapes, parameters, the launches of forward and backward. One file per layer; importing the folder registers them."""
from __future__ import annotations

import functools
import importlib
import pathlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.layer import AbstractLayer
from ocaffe.ir.layer import Arity as Arity
from ocaffe.ir.layer import ParamBlob as ParamBlob
from ocaffe.ir.tensor import Shape
from ocaffe.onnx.builder.graph import OnnxGraph

LayerClass: TypeAlias = "type[Layer]"


class Layer(AbstractLayer):
    """Base of all layers: the contract of AbstractLayer, and the helpers that layers are written with."""

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        """The class that serves this LayerParameter: another one where one type has several meanings."""
        return cls

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write the ONNX nodes that compute `tops`, after infer; raises the layer's error where ONNX has no meaning for it."""
        raise graph.refused(f"{self.type}: no ONNX rule yet")

    # -- help --------------------------------------------------------------------------------------------------------

    def axis(self, axis: int, shape: Shape, what: str = "axis") -> int:
        """`axis` counted from the front; negative counts from the back as in Caffe."""
        self.check(-len(shape) <= axis < len(shape), f"{what} {axis} is outside the {len(shape)} axes of bottom {shape_text(shape)}")
        return axis + len(shape) if axis < 0 else axis

    def own(self) -> Any:
        """The layer's own parameter message: `Pooling` has `pooling_param`."""
        return getattr(self.param, param_field(self.param.type))

    @classmethod
    def recognise(cls, param: Any, blobs: Sequence[np.ndarray | None]) -> None:
        """Set the fields of `param` that the prototxt leaves open and that the layer's blobs in a weights file tell: which fork's layer it is."""


_REGISTRY: dict[str, type[Layer]] = {}
L = TypeVar("L", bound=type[Layer])


def register(*types: str) -> Callable[[L], L]:
    """Class decorator: this class is the layer of these Caffe types."""

    def add(cls: L) -> L:
        for name in types:
            assert name not in _REGISTRY, f"layer type {name} is registered twice"
            _REGISTRY[name] = cls
        cls.type = types[0]
        return cls

    return add


@functools.cache
def registry() -> dict[str, type[Layer]]:
    """All layer types; importing every module of `ocaffe.layers` fills it."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules([str(pathlib.Path(__file__).parent)]):
        importlib.import_module(f"{package}.{module.name}")
    return _REGISTRY


def layer_type_list() -> list[str]:
    """Names of all layer types, sorted."""
    return sorted(registry())


@functools.cache
def _fields() -> dict[str, str]:
    """Type in small letters -> LayerParameter field, for the fields that are named after a type."""
    names = [field.name for field in proto.LayerParameter.DESCRIPTOR.fields if field.name.endswith("_param")]
    return {name.removesuffix("_param").replace("_", ""): name for name in names}


def param_field(layer_type: str) -> str:
    """LayerParameter field of a type: InnerProduct -> inner_product_param; "" if the type has no parameters of its own."""
    cls = registry().get(layer_type)
    if cls is not None and cls.message is not None:
        return cls.message
    return _fields().get(layer_type.lower(), "")
