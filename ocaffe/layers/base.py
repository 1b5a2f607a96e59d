"""What a layer is: shapes, parameters, the launches of forward and backward. One file per layer; importing the folder registers them."""
from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from ocaffe.errors import Error, Place, shape_text
from ocaffe.graph.ir import Blob, Parameter, Shape
from ocaffe.graph.recorder import Recorder

Arity = int | tuple[int, int | None]  # exactly n, or (at least, at most)


@dataclass(frozen=True)
class ParamBlob:
    """Shape and filler (a FillerParameter message) of a parameter blob that a layer asks for. `learned`: solvers may touch it; running
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
    inplace_top: ClassVar[bool] = True  # False: the prototxt may not name the bottom as the top

    def __init__(self, param: Any, phase: int, place: Place | None = None) -> None:
        """`param` is the LayerParameter, `phase` proto.TRAIN or proto.TEST."""
        self.param = param
        self.phase = phase
        self.place = place
        self.params: list[Parameter] = []  # filled by the graph
        self.seed = 0  # of the net; random draws are keyed by it and the layer's name

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


_IRREGULAR = {
    "BNLL": "", "SoftmaxWithLoss": "softmax_param", "Deconvolution": "convolution_param", "Im2col": "convolution_param",
    "ReLU": "relu_param", "PReLU": "prelu_param", "ELU": "elu_param", "TanH": "tanh_param", "LRN": "lrn_param", "MVN": "mvn_param",
    "SPP": "spp_param", "ArgMax": "argmax_param", "HDF5Data": "hdf5_data_param", "HDF5Output": "hdf5_output_param",
    "LSTM": "recurrent_param", "RNN": "recurrent_param",
}  # fmt: skip


def param_field(layer_type: str) -> str:
    """LayerParameter field of a type: InnerProduct -> inner_product_param."""
    if layer_type in _IRREGULAR:
        return _IRREGULAR[layer_type]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", layer_type).lower() + "_param"
