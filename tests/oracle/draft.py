"""A random net while layers are added to it. ocaffe's own shape rules say which nets are possible; some impossible ones are kept, for both must refuse them."""
from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.layers.base import registry
from tests.oracle import values
from tests.oracle.case import Case, Shape, Step, count, has_first_form, is_value
from tests.oracle.values import Spec

MOST = 3000  # elements of a blob
WRONG = 0.08  # of the layers that ocaffe refuses are kept
NO_GRADIENT = {  # types whose backward pass real Caffe does not have, or whose bottoms have no gradient
    "Accuracy", "ArgMax", "Threshold", "DetectionOutput", "DetectionEvaluate", "PriorBox", "ROIPooling", "EvalDetection", "ContinuationIndicator", "Reorg",
}  # fmt: skip
KEEP_SIZE = {"Upsample", "RegionLoss", "ROIPooling", "MatMul", "ContrastiveLoss", "Reorg", "MemoryData"}  # of nets without a reshape (tables.FORMS)
INPUT_SPECS: Sequence[Spec] = (("normal", 1.0),) * 5 + (("ties", 1.0), ("ties", 0.5), ("sparse",), ("positive", 2.0), ("normal", 1000.0), ("normal", 1e-6))


def filled(message: Any, fields: Mapping[str, Any]) -> Any:
    """Set fields of a message: numbers, names of enums, lists for repeated fields, and dictionaries for messages. Return the message."""
    for name, value in fields.items():
        repeated = hasattr(getattr(message, name), "extend")
        for single in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(single, dict):
                filled(getattr(message, name).add() if repeated else getattr(message, name), single)
            elif repeated:
                getattr(message, name).append(single)
            else:
                setattr(message, name, single)
        if value == {} and not repeated:
            getattr(message, name).SetInParent()
    return message


class Rejected(Exception):
    """The drawn layer is not possible; draw another one."""


class Finished(Exception):
    """The last layer is one that ocaffe refuses."""


class Draft:
    """`shapes`: blobs on which layers can be built. `read`: blobs that a layer reads, so that no other works in place on them."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.net = proto.NetParameter(name="oracle")
        self.phase = self.pick("TRAIN", "TEST")
        self.spec = self.pick(*INPUT_SPECS)
        self.shapes: dict[str, Shape] = {}
        self.all_shapes: dict[str, Shape] = {}
        self.inputs: dict[str, Spec] = {}
        self.weights: dict[str, list[Spec]] = {}
        self.read: set[str] = set()
        self.closed: set[str] = set()  # tops to which no loss is added
        self.memory: dict[str, Any] = {}  # of a MemoryData layer
        self.owners: dict[tuple[Any, ...], str] = {}  # of shared parameters
        self.names = 0

    # -- choices

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, *options: Any) -> Any:
        return self.random.choice(options)

    def some(self, share: float = 0.6, /, **options: Sequence[Any]) -> dict[str, Any]:
        """A random part of the fields, each with one of its values."""
        return {name: self.pick(*given) for name, given in options.items() if self.chance(share)}

    def axis(self, axes: int, first: int = 0) -> int:
        """An axis, counted from the front or from the back."""
        axis = self.random.randrange(first, axes)
        return axis - axes if self.chance(0.3) else axis

    def shape(self, axes: int | None = None) -> Shape:
        axes = axes or self.pick(2, 3, 4, 4, 4, 4)
        return (self.pick(1, 2, 2, 3), self.pick(1, 2, 3, 4, 6), *(self.random.randint(1, 7) for _ in range(3)))[:axes]

    # -- blobs

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def input(self, shape: Sequence[int], spec: Spec | None = None, stem: str = "data") -> str:
        """A new input. Values of `spec` that are labels or boxes are read by one layer only."""
        name = self.name(stem)
        layer = self.net.layer.add(name=name, type="Input", top=[name])
        layer.input_param.shape.add(dim=shape)
        self.inputs[name] = spec or self.spec
        self.all_shapes[name] = tuple(shape)
        return name

    def data(self, shape: Sequence[int]) -> str:
        """A new input on which others can be built. A learned layer after it makes its gradient known without force_backward."""
        name = self.input(shape)
        self.shapes[name] = tuple(shape)
        if self.chance(0.25):
            (name,) = self.add("Bias", [name], bias_param={"axis": 0, "num_axes": 0})
        return name

    def blob(self, axes: int | None = None, suits: Callable[[Shape], bool] = lambda shape: True) -> str:
        """One of the last blobs that suit, or a new input."""
        known = [name for name, shape in self.shapes.items() if shape and len(shape) == (axes or len(shape)) and count(shape) <= MOST and suits(shape)]
        if known and self.chance(0.8):
            return self.pick(*known[-3:])
        for _ in range(50):
            shape = self.shape(axes)
            if suits(shape):
                return self.data(shape)
        raise Rejected

    def like(self, shape: Shape) -> str:
        """A blob of this shape."""
        known = [name for name, other in self.shapes.items() if other == shape]
        return self.pick(*known) if known and self.chance(0.6) else self.data(shape)

    # -- layers

    def add(self, kind: str, bottoms: Sequence[str], tops: int | Sequence[str] = 1, in_place: float = 0, weights: Sequence[Spec] = (), open: bool = True,
            **fields: Any) -> list[str]:  # fmt: skip
        """Add a layer and return its tops. `in_place`: the share of layers that work in place, where that is possible. `open`: others can read the tops."""
        name = self.name(kind.lower()[:8])
        if in_place and bottoms[0] not in self.read and self.chance(in_place):
            tops = [bottoms[0]]
        names = [name if number == 0 else f"{name}_{number}" for number in range(tops)] if isinstance(tops, int) else list(tops)
        message = {"name": name, "type": kind, "bottom": list(bottoms), "top": names, **fields}
        layer = filled(proto.LayerParameter(), message)
        shapes = self._shapes(layer)
        self.net.layer.add().CopyFrom(layer)
        if shapes is None:
            raise Finished
        if weights:
            self.weights[name] = list(weights)
        self.read.update(set(bottoms) - set(names))
        self.all_shapes.update(zip(names, shapes))
        for top, shape in zip(names, shapes):
            self.shapes.pop(top, None)
            if open and count(shape) > 0:
                self.shapes[top] = shape
        return names

    def _shapes(self, layer: Any) -> list[Shape] | None:
        """The shapes of the tops. Adds what any layer can have. None for a layer that ocaffe refuses and that stays."""
        phase = proto.TRAIN if self.phase == "TRAIN" else proto.TEST
        try:
            made = registry()[layer.type].implementation(layer)(layer, phase)
            shapes = [tuple(shape) for shape in made.infer(*(self.all_shapes[bottom] for bottom in layer.bottom))]
            parameters = made.parameters()
        except Error:
            if self.chance(WRONG):
                return None
            raise Rejected from None
        if any(count(shape) > 4 * MOST for shape in shapes):
            raise Rejected
        if parameters and layer.type != "BatchNorm" and self.chance(0.3):
            key = (layer.type, *(spec.shape for spec in parameters))
            shared = self.chance(0.3)
            for number in range(len(parameters) if shared else self.random.randint(1, len(parameters))):
                spec = layer.param.add()
                if shared:
                    spec.name = f"{self.owners.setdefault(key, layer.name)}_{number}"
                else:
                    spec.lr_mult, spec.decay_mult = self.pick(0.0, 0.0, 1.0, 2.0), self.pick(0.0, 1.0)
        if layer.bottom and self.chance(0.04):
            layer.propagate_down.extend(self.chance(0.5) for _ in layer.bottom)
        if self.chance(0.4 if made.is_loss else 0.02) and layer.top and layer.type not in (*NO_GRADIENT, "Parameter", "MemoryData"):
            layer.loss_weight.extend(self.pick(1.0, 0.5, 2.0, -1.0, 0.0) for _ in layer.top[: 1 if made.is_loss else None])
        self._rules(layer)
        return shapes

    def _rules(self, layer: Any) -> None:
        """Rules that include the layer."""
        other = "TEST" if self.phase == "TRAIN" else "TRAIN"
        if self.chance(0.04):
            layer.include.add(phase=self.phase)
            if self.chance(0.3):
                layer.include.add(stage=["never"])
        elif self.chance(0.03):
            layer.exclude.add(phase=other)
            if self.chance(0.3):
                layer.exclude.add(min_level=7)

    def excluded(self) -> None:
        """Add a layer that the phase, the level or a stage excludes. It may be one that could not exist."""
        other = "TEST" if self.phase == "TRAIN" else "TRAIN"
        layer = self.net.layer.add(name=self.name("out"), type="InnerProduct", bottom=["nothing"], top=[self.name("nowhere")])
        rule = self.pick({"phase": other}, {"min_level": 5}, {"max_level": -1}, {"stage": ["never"]}, {"phase": self.phase, "stage": ["a", "never"]})
        filled(layer.include.add(), rule)

    # -- the whole net

    def losses(self) -> None:
        """Give open ends a loss."""
        for layer in list(self.net.layer):
            for top in layer.top:
                ends = top in self.shapes and top not in self.read and top not in self.closed and layer.type not in (*NO_GRADIENT, "Input")
                if not ends or layer.loss_weight or self.chance(0.3):
                    continue
                if not self.shapes[top]:
                    layer.loss_weight.extend([0.5] * len(layer.top))  # Caffe reduces no blob without axes
                else:
                    name = self.name("sum")
                    sums = self.net.layer.add(name=name, type="Reduction", bottom=[top], top=[name], loss_weight=[0.5])
                    sums.reduction_param.operation = proto.ReductionParameter.SUMSQ
                    self.read.add(top)

    def case(self) -> Case:
        gradients = not NO_GRADIENT & set(self.net_types)
        if gradients and self.chance(0.1 if {"Filter", "Embed", "BatchReindex", "Crop"} & set(self.net_types) else 0.5):
            self.net.force_backward = True
        else:
            self.losses()
        read = {bottom for layer in self.net.layer for bottom in layer.bottom if bottom not in layer.top}
        ends = [top for layer in self.net.layer if not layer.loss_weight for top in layer.top if top not in read]
        form = self.pick(*["today"] * 8, "V1", "input")
        if self.memory:
            form = "today"  # pycaffe gives arrays to the first layer
        elif has_first_form(self.net) and self.chance(0.6):
            form = "V1"
        elif form == "V1":
            form = "input"
        steps = [Step()]
        if self.chance(0.25):
            steps += [Step() for _ in range(self.pick(1, 2))]
        elif self.chance(0.2) and not KEEP_SIZE & set(self.net_types):
            steps += [self._resized() for _ in range(2)]
        diffs = sorted(set(ends)) if self.net.force_backward else []
        backward = gradients or self.chance(0.7)
        stages, level = self.pick([], [], ["a"], ["a", "b"]), self.pick(0, 0, 0, 1)
        kept = None
        if self.chance(0.3):  # the memory of the others is planned
            tops = [top for layer in self.net.layer for top in layer.top if top in self.all_shapes]
            kept = sorted({*self.inputs, *(top for top in tops if top in diffs or self.chance(0.15))})
        debug = "poison" if self.chance(0.5 if kept is not None else 0.1) else ""
        return Case(
            self.seed, self.net, self.phase, self.inputs, self.weights, backward=backward, steps=steps, form=form,
            memory=self.memory, kept=kept, debug=debug, shapes=self.all_shapes, diffs=diffs, stages=stages, level=level,
        )  # fmt: skip

    @property
    def net_types(self) -> list[str]:
        return [layer.type for layer in self.net.layer]

    def _resized(self) -> Step:
        """A step with another number of samples and other images. Inputs of equal shape stay equal."""
        samples, more = self.random.randint(1, 4), self.random.randint(0, 3)
        first = next(iter(self.inputs), "")
        shapes = {}
        for name in self.inputs:
            shape = self.all_shapes[name]
            if shape and shape[0] == self.all_shapes[first][0] and self.inputs[name][0] not in ("truths", "detections", "priors"):
                shape = (samples, *shape[1:])
            if len(shape) == 4 and is_value(self.inputs[name]):
                shape = (*shape[:2], *(size + more for size in shape[2:]))
            shapes[name] = shape
        return Step(shapes, self.chance(0.5))


KINDS: dict[str, tuple[Callable[[Draft], None], int]] = {}  # layer type -> the function that adds one, and its weight


def kind(*types: str, weight: int = 2) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function for layer types. A function for several types gets the type as second argument."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        for name in types:
            KINDS[name] = (lambda draft, name=name: function(draft, name), weight) if len(types) > 1 else (function, weight)
        return function

    return add


def random_net(seed: int, types: Sequence[str] = ()) -> Case:
    """The net of a seed, of any types or of some."""
    from tests.oracle import kinds  # registers the kinds

    kinds.register()
    chosen = list(types) or list(KINDS)
    weights = [KINDS[name][1] for name in chosen]
    for attempt in range(100):
        draft = Draft(seed * 100 + attempt)
        wanted = draft.pick(1, 1, 2, 2, 3, 4, 5, 6)
        try:
            for _ in range(wanted * 6):
                if wanted == 0:
                    break
                before = (len(draft.net.layer), dict(draft.shapes), set(draft.read), dict(draft.inputs))
                try:
                    KINDS[draft.random.choices(chosen, weights)[0]][0](draft)
                    wanted -= 1
                    if draft.chance(0.03):
                        draft.excluded()
                except Rejected:
                    del draft.net.layer[before[0] :]
                    draft.shapes, draft.read, draft.inputs = before[1:]
        except Finished:
            pass
        if any(layer.type != "Input" and "nothing" not in layer.bottom for layer in draft.net.layer):
            case = draft.case()
            return case.changed(inputs={name: case.inputs[name] for name in draft.inputs})
    raise AssertionError(f"no net for seed {seed}")


__all__ = ["KINDS", "Draft", "Rejected", "kind", "random_net", "values"]
