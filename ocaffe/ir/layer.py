"""AbstractLayer: everything that the pipeline calls on a layer. `ocaffe.layers.base.Layer` adds the helpers that layers are written with."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ocaffe.errors import Error, Place, shape_text
from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape

MOST_ELEMENTS = 2**31 - 1  # of a blob, as in Caffe (Blob::Reshape); kernels use int indices
Arity = int | tuple[int, int | None]  # exactly n, or (at least, at most)


@dataclass(frozen=True)
class ParamBlob:
    """Shape and filler (a FillerParameter message, or the first values) of a parameter blob that a layer declares. `learned`: solvers may update it;
    running statistics are not learned."""

    shape: Shape
    filler: Any
    learned: bool = True


@dataclass(frozen=True)
class WeightOutputs:
    """The weights of a product, seen with another shape in which the outputs are the axes `kept`."""

    shape: Shape
    kept: tuple[int, ...]


class AbstractLayer:
    """Class data declare; methods compute; a layer owns no device memory.

    `infer` gets the bottom shapes and returns the top shapes; `parameters` is called after it. `forward` and `backward` record launches.
    Attributes that `infer` sets may be read by the others. A Ref that `forward` keeps for `backward` (rec.saved) is also an attribute.
    """

    type: ClassVar[str] = ""
    bottoms: ClassVar[Arity] = 1
    tops: ClassVar[Arity] = 1
    is_loss: ClassVar[bool] = False  # the first top has loss weight 1 unless the prototxt says otherwise; tops may be automatic
    reads_shapes: ClassVar[bool] = False  # True: the tops depend only on the shapes of the bottoms, so that no gradient is needed (ContinuationIndicator)
    has_backward: ClassVar[bool] = True  # False: backward is refused (Accuracy, ArgMax)
    source: Any = None  # the ocaffe.data.source.Source of a data layer
    notes: Sequence[tuple[str, str]] = ()  # log lines of setting up, as (Caffe's source line, text)
    moves_data: bool = True  # False: tops are views of the bottom (Reshape); then backward calls ocaffe.kernels.rearrange.alias.alias_diff
    passes_diff: bool = False  # True: backward makes the diff of a bottom itself, by ocaffe.kernels.rearrange.alias.alias_diff or rec.diff_of
    inplace_top: ClassVar[bool] = True  # False: the prototxt may not name the bottom as the top
    origin: ClassVar[str] = "BVLC Caffe"  # or the forks that define it
    message: ClassVar[str | None] = None  # the LayerParameter field of its parameters, if it is not named after the type; "": no field
    own_fields: ClassVar[frozenset[str]] = frozenset()  # fields ("Message.field") that this layer applies, and ocaffe refuses elsewhere
    gradient_in_rows: ClassVar[bool] = False  # backward ends with rec.gradient_rows for the first parameter
    labels: Mapping[int, LabelRange] = {}  # of a loss: bottoms with labels, and the labels that it accepts (set by infer)
    extent: tuple[int, ...] | None = None  # the last measured size of tops whose shape depends on data (rec.measure); None: the largest size
    box_normal: tuple[np.ndarray, np.ndarray] | None = None  # means and standard deviations of the box targets that it gives, 4 for each class
    extent_axis: ClassVar[int | None] = None  # the axis of the tops whose size `extent` gives, where it is one number
    weight_scales: Any = None  # while a product records with rounded weights: the Ref of their scales, one for each output or one
    repeats: bool = False  # True while the last forward pass runs again for other launches. Then a layer counts and writes nothing
    inner: Any = None  # the object of a user's class that computes the layer
    settings_file: str = ""  # the file of settings that a data layer of the net names (FrcnnRoiData)

    def __init__(self, param: Any, phase: int, place: Place | None = None) -> None:
        """`param` is the LayerParameter, `phase` proto.TRAIN or proto.TEST."""
        self.param = param
        self.phase = phase
        self.place = place
        self.params: list[Parameter] = []  # filled by the graph
        self.seed = 0  # of the net; random draws are keyed by it and the layer's name

    def limit_labels(self, top: int, limit: LabelRange) -> bool:
        """Make a data layer check the labels of a top as it reads them. Return whether the layer reads them."""
        if self.source is None:
            return False
        self.source.limits.setdefault(top, []).append(limit)
        return True

    def connect(self, bottoms: Sequence[Blob]) -> None:
        """Called once, before the first infer, with the bottoms. The layers before this one can be reached through them."""

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        """Top shapes from bottom shapes. Raises Error, by `check`, for bottoms that the layer does not take."""
        raise NotImplementedError

    def parameters(self) -> Sequence[ParamBlob]:
        """The parameter blobs of this layer; called after infer."""
        return ()

    def specs(self) -> Sequence[Any]:
        """The ParamSpecs of the parameters, in the layer's own order; called after infer. Forks can fix them, whatever the prototxt says."""
        return self.param.param  # type: ignore[no-any-return]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Record the launches that compute the data of `tops`."""
        raise NotImplementedError

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        """Record the launches that compute the diffs of parameters (where `parameter.diff` is not None) and of bottoms with `propagate`."""
        raise NotImplementedError

    def given(self, name: str, values: np.ndarray) -> None:
        """A script wrote `values` into the top of this name. A layer of a user's class finds them there, as in Caffe."""

    def measures(self, tops: Sequence[Blob]) -> bool:
        """Whether `forward` calls rec.measure, because the shapes of the tops depend on data; called after infer."""
        return False

    def weight_outputs(self) -> WeightOutputs | None:
        """The weights by output, of a product; called after infer. None: the layer is no product, so that it cannot round its weights."""
        return None

    def flops(self) -> int:
        """Floating point operations of the products in forward; called after infer."""
        return 0

    def fuse_with(self, following: Sequence[AbstractLayer]) -> tuple[AbstractLayer, int]:
        """A layer that computes this one and the first of the `following` ones, and the number of those. No script reads the blobs between them."""
        return self, 0

    @property
    def by_sample(self) -> bool:
        """Whether sample i of the tops depends on sample i of the bottoms alone, and gradients of parameters are sums over samples.

        Then the layer may run in microbatches. Called after infer."""
        return False

    def force_backward(self, bottom: int) -> bool:
        """Whether `force_backward: true` computes the diff of this bottom (not of labels)."""
        return not (self.is_loss and bottom == 1)

    def onnx(self, graph: Any, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write the ONNX nodes that compute `tops`. `graph` is an ocaffe.onnx.graph.OnnxGraph."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        return f"'{self.param.name}' ({self.param.type})"

    def error(self, fact: str, fix: str | None = None) -> Error:
        return Error(fact, place=self.place, layer=self.title, fix=fix)

    def check(self, condition: object, fact: str, fix: str | None = None) -> None:
        """Raise the layer's error unless `condition` holds."""
        if not condition:
            raise self.error(fact, fix)

    def check_sizes(self, shapes: Sequence[Shape], what: str) -> None:
        """Raise the layer's error if a shape has more elements than Caffe's blobs can have."""
        for shape in shapes:
            self.check(
                math.prod(shape) <= MOST_ELEMENTS, f"{what} would be {shape_text(shape)}: {math.prod(shape):,} elements, a blob has at most {MOST_ELEMENTS:,}",
                f"set num_output to at most {MOST_ELEMENTS // max(1, math.prod(shape[1:]))} here, or give the layer a smaller bottom, by a Pooling layer"
                if what == "a parameter" else "set a smaller batch size in the data layer, or give the layer smaller images",
            )  # fmt: skip

    def own(self) -> Any:
        """The layer's own parameter message."""
        raise NotImplementedError

    def stored(self, blobs: Sequence[np.ndarray | None]) -> Sequence[np.ndarray | None]:
        """The blobs that a weights file has for this layer, in the layer's own order and number. Forks lay some out differently."""
        return blobs
