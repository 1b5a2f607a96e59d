"""What a layer is: shapes, parameters, the launches of forward and backward. One file per layer; importing the folder registers them."""
from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error, Place, shape_text
from ocaffe.graph.ir import Blob, Parameter, Shape
from ocaffe.graph.recorder import Recorder
from ocaffe.onnx.graph import OnnxGraph

Arity = int | tuple[int, int | None]  # exactly n, or (at least, at most)


LayerClass: TypeAlias = "type[Layer]"


@dataclass(frozen=True)
class ParamBlob:
    """Shape and filler (a FillerParameter message, or the first values) of a parameter blob that a layer asks for. `learned`: solvers may touch it; running
    statistics are not."""

    shape: Shape
    filler: Any
    learned: bool = True


class Layer:
    """Base of all layers. Class data declare; methods compute; nothing here owns device memory.

    `infer` sees the bottom shapes and returns the top shapes; `parameters` is asked after it. `forward` and `backward` record launches.
    Attributes that `infer` sets may be read by the others; Refs that `forward` keeps for `backward` (rec.saved) go into attributes too.
    """

    type: ClassVar[str] = ""
    bottoms: ClassVar[Arity] = 1
    tops: ClassVar[Arity] = 1
    is_loss: ClassVar[bool] = False  # the first top has loss weight 1 unless the prototxt says otherwise; tops may be automatic
    has_backward: ClassVar[bool] = True  # False: backward is refused (Accuracy, ArgMax)
    source: Any = None  # of a data layer: what feeds it (ocaffe.data.source.Source)
    notes: Sequence[tuple[str, str]] = ()  # log lines of setting up, as (Caffe's source line, text)
    moves_data: bool = True  # False: tops are views of the bottom (Reshape); then backward calls rec.alias_diff
    passes_diff: bool = False  # True: backward gives a bottom without a diff that of the top by rec.alias_diff, or makes one by rec.diff_of
    inplace_top: ClassVar[bool] = True  # False: the prototxt may not name the bottom as the top
    origin: ClassVar[str] = "BVLC Caffe"  # or the forks that define it
    message: ClassVar[str | None] = None  # the LayerParameter field of its parameters, where the type does not tell; "" if there are none
    gradient_in_rows: ClassVar[bool] = False  # backward ends with rec.gradient_rows for the first parameter
    extent: tuple[int, ...] | None = None  # of a layer whose top shapes depend on data: what it measured last (rec.measure); None: the largest
    extent_axis: ClassVar[int | None] = None  # the axis of the tops whose size `extent` gives, where it is one number

    def __init__(self, param: Any, phase: int, place: Place | None = None) -> None:
        """`param` is the LayerParameter, `phase` proto.TRAIN or proto.TEST."""
        self.param = param
        self.phase = phase
        self.place = place
        self.params: list[Parameter] = []  # filled by the graph
        self.seed = 0  # of the net; random draws are keyed by it and the layer's name

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        """The class that serves this LayerParameter: another one where one type has several meanings."""
        return cls

    # -- what a layer may define -------------------------------------------------------------------------------------

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        """Top shapes from bottom shapes; raises through `check` where the layer cannot be."""
        raise NotImplementedError

    def parameters(self) -> Sequence[ParamBlob]:
        """The parameter blobs that this layer wants, after infer."""
        return ()

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Record what computes the data of `tops`."""
        raise NotImplementedError

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        """Record what computes the diffs of parameters (where `parameter.diff` is not None) and of the bottoms with `propagate`."""
        raise NotImplementedError

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write the ONNX nodes that compute `tops`, after infer; raises the layer's error where ONNX has no meaning for it."""
        raise graph.refused(f"{self.type} has no meaning in ONNX")

    def flops(self) -> int:
        """Floating point operations of forward, where products are what takes the time; after infer."""
        return 0

    def merged(self, following: Sequence[Layer]) -> tuple[Layer, int]:
        """A layer that does the work of this one and of the first few (how many) of those that follow it one by one, where nobody looks in between."""
        return self, 0

    @property
    def by_sample(self) -> bool:
        """Whether each index of axis 0 of the tops depends on the same index of the bottoms alone, and gradients of parameters are sums over them: then
        the layer may run on some samples at a time. After infer."""
        return False

    def force_backward(self, bottom: int) -> bool:
        """Whether `force_backward: true` wants the diff of this bottom (labels: no)."""
        return not (self.is_loss and bottom == 1)

    # -- help --------------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        return f"'{self.param.name}' ({self.param.type})"

    def error(self, fact: str, fix: str | None = None) -> Error:
        return Error(fact, place=self.place, layer=self.title, fix=fix)

    def check(self, condition: object, fact: str, fix: str | None = None) -> None:
        """Raise the layer's error unless `condition` holds."""
        if not condition:
            raise self.error(fact, fix)

    def axis(self, axis: int, shape: Shape, what: str = "axis") -> int:
        """`axis` counted from the front; negative counts from the back as in Caffe."""
        self.check(-len(shape) <= axis < len(shape), f"{what} {axis} is outside the {len(shape)} axes of bottom {shape_text(shape)}")
        return axis + len(shape) if axis < 0 else axis

    def own(self) -> Any:
        """The layer's own parameter message: `Pooling` has `pooling_param`."""
        return getattr(self.param, param_field(self.param.type))

    def stored(self, blobs: Sequence[np.ndarray | None]) -> Sequence[np.ndarray | None]:
        """The blobs that a weights file has for this layer in the layer's own order and number; forks lay some out differently."""
        return blobs

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
    import ocaffe.layers as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
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
