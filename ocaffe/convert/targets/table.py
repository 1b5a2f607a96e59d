"""A target as a table: the layer types that it reads, their fields, and limits of sizes. `tables/NAME.json` has the facts with their sources."""
from __future__ import annotations

import collections
import difflib
import functools
import json
import math
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import param_field, registry
from ocaffe.layers.window import Window

FOLDER = Path(__file__).with_name("tables")
USUAL = {  # how names of chips, makers and tools begin, in small letters and without signs -> the target
    "rk": "rknn", "rockchip": "rknn", "tpu": "tpu-mlir", "mlir": "tpu-mlir", "sophgo": "tpu-mlir", "sophon": "tpu-mlir", "bitmain": "tpu-mlir",
    "bm16": "tpu-mlir", "cv18": "tpu-mlir", "sg20": "tpu-mlir", "cvitek": "tpu-mlir", "atc": "ascend", "huawei": "ascend", "cann": "ascend",
    "hisi": "nnie", "hi35": "nnie", "verisilicon": "acuity", "vivante": "acuity", "vsi": "acuity", "sstar": "sigmastar", "ssc": "sigmastar",
    "caffe10": "caffe1", "caffe": "bvlc",
}  # fmt: skip
PLAIN = frozenset({"name", "type", "bottom", "top", "source_line", "blobs", "excluded"})  # fields that every Caffe reads, and ocaffe's own
Factors = Callable[[], Sequence[Hashable]]
PAIRS = {"kernel_size": ("kernel_h", "kernel_w"), "stride": ("stride_h", "stride_w"), "pad": ("pad_h", "pad_w")}
WINDOWS = {"kernel": "kernel_size", "stride": "stride", "pad": "pad", "dilation": "dilation"}


class Fault(NamedTuple):
    """A part of a layer that a target refuses. `path` is the field, such as 'pooling_param.round_mode'; '' for the layer as a whole.

    `claimed`: a source says so. Else none says that the target takes it.
    """

    path: str
    fact: str
    claimed: bool = True


@dataclass(frozen=True)
class Around:
    """The place of a layer in its net. `makers`: the types of the layers that make its bottoms. `outputs`: the blobs that no layer reads.

    `remade`: how many layers, this one included, have worked in place on its top. A Scale behind a BatchNorm is not counted. `factors` returns `factor_of`
    each bottom. `origin` returns the layer that `origin_of` finds for the first bottom, and its number of axes. `unread`: how many of its tops no layer reads,
    if one reads another of them.
    """

    makers: Sequence[str] = ()
    outputs: Collection[str] = ()
    remade: int = 0
    factors: Factors = tuple
    origin: Callable[[], tuple[Any, int] | None] = lambda: None
    unread: int = 0


@dataclass(frozen=True)
class Kind:
    """The facts about a layer type. `fields`: those of its own message, None if no source tells them. `limits`: see `Table.faults`."""

    fields: frozenset[str] | None
    limits: tuple[Mapping[str, Any], ...]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """The facts about a target. `layer`: the fields of LayerParameter that its schema has, None if no source tells them.

    `other`: why a type that the target has is not used, because it computes something else. `open`: the sources do not list all types.
    """

    name: str
    title: str
    layer: frozenset[str] | None
    kinds: Mapping[str, Kind]
    limits: tuple[Mapping[str, Any], ...]
    sources: tuple[Mapping[str, str], ...]
    notes: tuple[str, ...]
    other: Mapping[str, str]
    open: bool = False

    @functools.cached_property
    def makers(self) -> frozenset[str]:
        """The types whose results a limit is about."""
        every = [*self.limits, *(limit for kind in self.kinds.values() for limit in kind.limits)]
        return frozenset(maker for limit in every for maker in limit.get("after", ()))

    def has(self, kind: str) -> bool:
        return kind in self.kinds

    def faults(self, layer: Any, bottoms: Sequence[Shape], tops: Sequence[Shape], around: Around = Around()) -> list[Fault]:
        """Return what the target refuses of a LayerParameter with these shapes. Without shapes only type and fields are judged."""
        if layer.type not in self.kinds:
            reason = self.other.get(layer.type)
            if self.open and reason is None:
                return [Fault("type", f"no source says that {self.title} takes the layer type {layer.type}", claimed=False)]
            return [Fault("type", f"{self.title} has no layer type {layer.type}" if reason is None else f"{layer.type} of {self.title} {reason}")]
        kind, own = self.kinds[layer.type], param_field(layer.type)
        found = []
        for field, value in layer.ListFields():
            if field.name == own and (self.layer is None or own in self.layer):
                unknown = [] if kind.fields is None else [each.name for each, _ in value.ListFields() if each.name not in kind.fields]
                found += [Fault(f"{own}.{name}", f"{self.title} knows no field {name} in {own}") for name in unknown]
            elif field.name not in PLAIN and self.layer is not None and field.name not in self.layer:
                found.append(Fault(field.name, f"{self.title} knows no field {field.name} in a layer"))
        for limit in (*kind.limits, *self.limits):
            found += self._exceeded(limit, layer, bottoms, tops, around)
        return found

    def _exceeded(self, limit: Mapping[str, Any], layer: Any, bottoms: Sequence[Shape], tops: Sequence[Shape], around: Around) -> list[Fault]:
        what, _, part = limit["of"].partition(":")
        if "after" in limit and not set(limit["after"]) & set(around.makers):
            return []
        if limit.get("output") and not (set(layer.top) & set(around.outputs) and around.remade >= limit["output"]):
            return []
        if (len(bottoms) or len(layer.bottom)) < limit.get("from_bottoms", 0) or ("axes" in limit and bottoms and len(bottoms[0]) not in limit["axes"]):
            return []
        if "bottoms" in limit and (len(bottoms) or len(layer.bottom)) != limit["bottoms"]:
            return []
        if any(not set(field_values(layer, name)) & set(wanted) for name, wanted in limit.get("where", {}).items()):
            return []
        if layer.type not in limit.get("types", (layer.type,)) or ("joins" in limit and not (tops and tops[0][1:2] == (math.prod(tops[0][1:]),))):
            return []
        if "last_axis_of" in limit and not _last_axis(limit["last_axis_of"], around.origin()):
            return []
        try:
            path, values = AROUND[what](layer, around) if what in AROUND else METRICS[what](layer, part, bottoms, tops)
        except IndexError:  # the shapes are not known, or have fewer axes
            return []
        wrong = [value for value in values if not _within(limit, value)]
        if not wrong:
            return []
        name = limit.get("name", part or what)
        given = ", ".join(map(_text, dict.fromkeys(wrong)))
        return [Fault(path, f"{name} is {given}; {self.title} {limit.get('effect', f'takes {_bound(limit)}')}")]


def _within(limit: Mapping[str, Any], value: Any) -> bool:
    if "values" in limit:
        return value in limit["values"]
    return bool(limit.get("min", -math.inf) <= value <= limit.get("max", math.inf))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bound(limit: Mapping[str, Any]) -> str:
    if "values" in limit:
        return " or ".join(map(_text, limit["values"]))
    if "min" in limit and "max" in limit:
        return f"{limit['min']} to {limit['max']}"
    return f"at most {limit['max']}" if "max" in limit else f"at least {limit['min']}"


# -- where values come from ------------------------------------------------------------------------------------------

SINGLE = ("AbsVal", "BNLL", "Dropout", "ELU", "Pooling", "Power", "PReLU", "ReLU", "ReLU6", "Sigmoid", "Split", "TanH")  # their tops lie as their bottoms do
PLACED = ("Dropout", "Flatten", "Permute", "Reshape", "Split")
LINEAR = ("BatchNorm", "Bias", "Power", "Scale")
Value = TypeVar("Value", bound=Hashable)
Producer = Callable[[Value], "tuple[Any, Sequence[Value]] | None"]


def factor_of(value: Value, producer: Producer[Value]) -> Value | None:
    """Return the value by which an InnerProduct multiplies its weights to give this one, through layers that move or scale values. None if none does.

    `producer` returns the layer that makes a value, and its bottoms.
    """
    found = producer(_through(value, producer, (*PLACED, "Slice")))
    return _through(found[1][0], producer, PLACED) if found is not None and found[0].type == "InnerProduct" else None


def origin_of(value: Value, producer: Producer[Value]) -> tuple[Any, Sequence[Value]] | None:
    """Return the last layer before a value that is none of SINGLE, and its bottoms. None for an input."""
    found = producer(value)
    while found is not None and found[0].type in SINGLE:
        found = producer(found[1][0])
    return found


def _last_axis(kind: str, origin: tuple[Any, int] | None) -> bool:
    """Whether a layer of this type, with this number of axes, works along its last axis of four."""
    return origin is not None and origin[0].type == kind and origin[1] == 4 and _own(origin[0]).axis in (3, -1)


def _through(value: Value, producer: Producer[Value], placed: Sequence[str]) -> Value:
    while True:
        found = producer(value)
        if found is None or len(found[1]) != 1 or not (found[0].type in placed or (found[0].type in LINEAR and found[0].power_param.power == 1)):
            return value
        value = found[1][0]


def _summed(layer: Any, factors: Sequence[Hashable]) -> list[int]:
    """How many products of one value an Eltwise layer adds up. A difference is no sum."""
    counts = collections.Counter(factor for factor in factors if factor is not None)
    return [max(counts.values(), default=0)] if not any(factor < 0 for factor in layer.eltwise_param.coeff) else [0]


# -- what limits are about: the path of the field, and the values ------------------------------------------------------

AROUND: dict[str, Callable[[Any, Around], tuple[str, list[Any]]]] = {
    "products": lambda layer, around: ("bottom", _summed(layer, around.factors())),
    "unread tops": lambda layer, around: ("top", [around.unread]),
}
Metric = Callable[[Any, str, Sequence[Shape], Sequence[Shape]], tuple[str, list[Any]]]


def _own(layer: Any) -> Any:
    return getattr(layer, param_field(layer.type))


def field_values(layer: Any, name: str) -> list[Any]:
    """Return the values of a field of a layer's own message, or those of its forms for rows and columns. Enumerations are their names."""
    own = _own(layer)
    field = own.DESCRIPTOR.fields_by_name[name]
    value = getattr(own, name)
    values = list(value) if field.is_repeated else [value]
    for form in PAIRS.get(name, ()):
        if form in own.DESCRIPTOR.fields_by_name and own.HasField(form):
            values = [*(values if field.is_repeated or own.HasField(name) else []), getattr(own, form)]
    if field.enum_type is not None:
        return [field.enum_type.values_by_number[each].name for each in values]
    return [round(each, 6) if isinstance(each, float) else each for each in values]


def _window(name: str) -> Metric:
    def metric(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
        own = _own(layer)
        if name == "kernel" and getattr(own, "global_pooling", False):
            return param_field(layer.type), list(bottoms[0][2:])
        return f"{param_field(layer.type)}.{WINDOWS[name]}", field_values(layer, WINDOWS[name])

    return metric


def _area(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """The pixels of a window."""
    path, sizes = _window("kernel")(layer, part, bottoms, tops)
    return path, [sizes[0] ** 2 if len(sizes) == 1 else math.prod(sizes)]


def _axis(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """The field `axis`, counted from the front."""
    axis = _own(layer).axis
    return f"{param_field(layer.type)}.axis", [axis + len(bottoms[0]) if axis < 0 else axis]


def _places(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """Whether a field that is given several times has different values: 1 if all are equal."""
    own = _own(layer)
    return f"{param_field(layer.type)}.{part}", [len(set(getattr(own, part))) or 1]


def _given(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """Whether a field is given, or its forms for rows and columns."""
    names = {field.name for field, _ in _own(layer).ListFields()}
    return f"{param_field(layer.type)}.{part}", [bool(names & {part, *PAIRS.get(part, ())})]


def _overhang(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """The pixels that the last window of a mean has beyond the image and its pads."""
    own = _own(layer)
    if own.pool != own.AVE or own.global_pooling or not tops:
        return "", []
    found = registry()[layer.type].implementation(layer)(layer, proto.TEST)
    windows = Window.read(found, own, bottoms[0][2:])
    sizes = zip(bottoms[0][2:], tops[0][2:], windows.kernel, windows.stride, windows.pad)
    return param_field(layer.type), [max(0, (outs - 1) * stride + kernel - ins - 2 * pad) for ins, outs, kernel, stride, pad in sizes]


def _group(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """1, 'channels' for one filter a channel, or another number of groups."""
    own = _own(layer)
    return f"{param_field(layer.type)}.group", ["channels" if 1 < own.group == own.num_output == bottoms[0][1] else own.group]


def _pads_left_out(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """The pads that means do not count."""
    own = _own(layer)
    counts = own.pool != own.AVE or own.global_pooling or own.avg_include_pad
    return f"{param_field(layer.type)}.avg_include_pad", [] if counts else [max(field_values(layer, "pad"))]


def _rounded_up(layer: Any, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> list[tuple[int, int, int, int, int]]:
    """Return the sizes of bottom and top, kernel, stride and pad along each axis, of a pooling that rounds up. None for another one."""
    own = _own(layer)
    if own.global_pooling or own.round_mode != own.CEIL or not own.ceil_mode or not tops:
        return []
    windows = Window.read(registry()[layer.type].implementation(layer)(layer, proto.TEST), own, bottoms[0][2:])
    return list(zip(bottoms[0][2:], tops[0][2:], windows.kernel, windows.stride, windows.pad))


def _dropped(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """The windows that Caffe drops because they begin in the pad behind the image."""
    sizes = _rounded_up(layer, bottoms, tops)
    return f"{param_field(layer.type)}.pad", [-((kernel - ins - 2 * pad) // stride) + 1 - outs for ins, outs, kernel, stride, pad in sizes if pad]


def _end_pad(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """The pads that reach the size of the kernel, where a pooling that rounds up gets one as far as the next window would begin."""
    sizes = _rounded_up(layer, bottoms, tops)
    pads = [(outs * stride - ins, kernel) for ins, outs, kernel, stride, pad in sizes if (ins + 2 * pad - kernel) % stride]
    return f"{param_field(layer.type)}.stride", [f"{end} for a kernel of {kernel}" for end, kernel in pads if end >= kernel]


def _older(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """An axis in a field of old files, if it is another one than `axis`."""
    own = _own(layer)
    value = getattr(own, part)
    return f"{param_field(layer.type)}.{part}", [value] if own.HasField(part) and value != own.axis else []


def _filters(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """The filters for each channel."""
    return f"{param_field(layer.type)}.num_output", [_own(layer).num_output / bottoms[0][1]]


def _covering(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """The pad around an image that is as large as the window."""
    own = _own(layer)
    if own.global_pooling:
        return "", []
    windows = Window.read(registry()[layer.type].implementation(layer)(layer, proto.TEST), own, bottoms[0][2:])
    return f"{param_field(layer.type)}.pad", list(windows.pad) if tuple(windows.kernel) == tuple(bottoms[0][2:]) else []


def _scaled(layer: Any, bottom: Shape) -> tuple[int, int, Shape]:
    """Return where the factors of a Scale with weights begin and end, and their sizes."""
    own = _own(layer)
    first = own.axis % max(1, len(bottom))
    end = len(bottom) if own.num_axes == -1 else first + own.num_axes
    return first, end, bottom[first:end]


def _factors(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """'channels' for a factor for each channel, whatever the fields, else the axes of the factors."""
    first, end, sizes = _scaled(layer, bottoms[0])
    each = first <= 1 < end and math.prod(sizes) == bottoms[0][1]
    return f"{param_field(layer.type)}.axis", ["channels" if each else f"those of axes {', '.join(map(str, range(first, end)))}" if sizes else "one number"]


def _first_factors(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """How many factors there are for each index of their first axis."""
    first, _, sizes = _scaled(layer, bottoms[0])
    return f"{param_field(layer.type)}.num_axes", [math.prod(sizes) // bottoms[0][first] if sizes else 0]


def _axes_behind(layer: Any, part: str, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> tuple[str, list[Any]]:
    """The axes behind those of the factors, if these are several."""
    first, end, _ = _scaled(layer, bottoms[0])
    return f"{param_field(layer.type)}.num_axes", [len(bottoms[0]) - end if end - first > 1 else 0]


METRICS: dict[str, Metric] = {
    "factors": _factors,
    "first factors": _first_factors,
    "axes behind": _axes_behind,
    "inner values": lambda layer, part, bottoms, tops: ("bottom", [math.prod(bottoms[0][_axis(layer, part, bottoms, tops)[1][0] :])]),
    "axes": lambda layer, part, bottoms, tops: ("bottom", [len(shape) for shape in (*bottoms, *tops)]),
    "bottom axes": lambda layer, part, bottoms, tops: ("bottom", [len(shape) for shape in bottoms]),
    "last axis": lambda layer, part, bottoms, tops: (f"{param_field(layer.type)}.axis", [len(bottoms[0]) - 1 - _axis(layer, part, bottoms, tops)[1][0]]),
    "bottoms": lambda layer, part, bottoms, tops: ("bottom", [len(bottoms) or len(layer.bottom)]),
    "tops": lambda layer, part, bottoms, tops: ("top", [len(layer.top)]),
    "in place": lambda layer, part, bottoms, tops: ("top", [top for top in layer.top if top in layer.bottom]),
    "batch": lambda layer, part, bottoms, tops: ("", [bottoms[0][0]]),
    "size": lambda layer, part, bottoms, tops: ("", [shape[int(part)] for shape in (*bottoms, *tops) if len(shape) > int(part)]),
    "channels": lambda layer, part, bottoms, tops: ("", [bottoms[0][1]]),
    "values": lambda layer, part, bottoms, tops: ("", [math.prod(bottoms[0])]),
    "field": lambda layer, part, bottoms, tops: (f"{param_field(layer.type)}.{part}", field_values(layer, part)),
    "forms": _places,
    "given": _given,
    "axis": _axis,
    "area": _area,
    "overhang": _overhang,
    "group": _group,
    "pads left out": _pads_left_out,
    "older": _older,
    "dropped": _dropped,
    "end pad": _end_pad,
    "pixels": lambda layer, part, bottoms, tops: ("bottom", [math.prod(bottoms[0][2:])]),
    "filters": _filters,
    "covering": _covering,
    "top size": lambda layer, part, bottoms, tops: ("", [shape[int(part)] for shape in tops]),
    "axes left out": lambda layer, part, bottoms, tops: ("permute_param.order", [len(bottoms[0]) - len(layer.permute_param.order)]),
    "order": lambda layer, part, bottoms, tops: ("permute_param.order", [" ".join(map(str, layer.permute_param.order))]),
    "first axes": lambda layer, part, bottoms, tops: ("bottom", [len(bottoms[0])]),
    "second axes": lambda layer, part, bottoms, tops: ("bottom", [len(bottoms[1])]),
    "kernel": _window("kernel"),
    "stride": _window("stride"),
    "pad": _window("pad"),
    "dilation": _window("dilation"),
}


# -- reading ---------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """Return the names of all targets."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@functools.cache
def read_table(name: str) -> Table:
    """Return the table of a target. Raises Error if there is none of this name."""
    path = FOLDER / f"{name}.json"
    if name not in names():
        near = next((target for begin, target in USUAL.items() if re.sub(r"[\W_]", "", name.lower()).startswith(begin)), "")
        near = near or next(iter(difflib.get_close_matches(name.lower(), names(), 1, 0.6)), "")
        meant = f"did you mean --target={near}? " if near else ""
        raise Error(f"--target is '{name}'", fix=f"{meant}--target with one of {', '.join(names())}")
    data = json.loads(path.read_text(encoding="utf-8"))
    kinds = {}
    for kind, facts in data["types"].items():
        fields = facts.get("fields")
        kinds[kind] = Kind(None if fields is None else frozenset(fields), tuple(facts.get("limits", ())), facts.get("note", ""))
    layer = data.get("layer")
    return Table(
        name, data["title"], None if layer is None else frozenset(layer), kinds, tuple(data.get("limits", ())), tuple(data["sources"]), tuple(data["notes"]),
        data.get("other", {}), data.get("open", False),
    )  # fmt: skip
