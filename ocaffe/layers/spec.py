"""Nets written in Python: `NetSpec`, `layers`, `params`, `to_proto`.

    from ocaffe import layers as L, params as P, NetSpec
    n = NetSpec()
    n.data, n.label = L.Data(source="train_lmdb", batch_size=64, backend=P.Data.LMDB, ntop=2)
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=20, weight_filler=dict(type="xavier"))
    n.relu1 = L.ReLU(n.conv1, in_place=True)
    print(n.to_proto())

Field names come from the schema, so a NetSpec can hold every layer that a prototxt can hold, also those of forks.
"""
from __future__ import annotations

import difflib
import operator
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from ocaffe import proto
from ocaffe.errors import Error, NoSuchField, NoSuchTop, WrongType, WrongValue, within
from ocaffe.layers.base import layer_type_list, param_field
from ocaffe.proto import is_repeated

Names = dict["Top | Function", str]


class Function:
    """A layer: its type, its bottoms (`inputs`), its parameter fields and its `tops`."""

    def __init__(self, type_name: str, inputs: Iterable[Top], fields: dict[str, Any]) -> None:
        """`fields` are fields of the layer's parameter message or of LayerParameter, and `ntop` (1), `in_place` (False), `name`. Raises Error."""
        self.type_name, self.params = type_name, dict(fields)
        self.inputs = tuple(inputs)
        for index, given in enumerate(self.inputs):
            if not isinstance(given, Top):  # in the words of pycaffe, which its tests compare
                raise WrongType(f"{type_name} input {index} is not a Top (type is {type(given)})")
        count = self.ntop = operator.index(self.params.pop("ntop", 1))
        self.in_place = bool(self.params.pop("in_place", False))
        if self.in_place and (count != 1 or len(self.inputs) != 1):
            raise WrongValue(
                f"a {type_name} of {len(self.inputs)} bottoms and {count} tops cannot work in place",
                fix="give it one bottom and one top, or remove in_place",
            )
        self.tops = tuple(Top(self, index) for index in range(count))

    def to_proto(self) -> Any:
        """Return the net that ends in this layer."""
        return to_proto(self)

    def _update(self, params: Mapping[str, Any]) -> None:
        """Set more fields (SSD)."""
        self.params.update(params)


class Top:
    """One output of a layer, and a bottom of other layers."""

    def __init__(self, fn: Function, n: int) -> None:
        self.fn, self.n = fn, n

    def to_proto(self) -> Any:
        """Return the layers that this top depends on, as a NetParameter."""
        return to_proto(self)

    def _update(self, params: Mapping[str, Any]) -> None:
        """Set more fields of its layer (SSD)."""
        self.fn._update(params)


def layer_maker(type_name: str) -> Callable[..., Any]:
    """Return a function that makes layers of this type.

    It takes tops and fields. It returns the layer's top, a tuple of `ntop` tops, or the layer itself if ntop is 0.
    """

    def make(*inputs: Top, **fields: Any) -> Any:
        function = Function(type_name, inputs, fields)
        if not function.tops:
            return function
        return function.tops[0] if len(function.tops) == 1 else function.tops

    make.__name__ = make.__qualname__ = type_name
    make.__doc__ = f"A {type_name} layer; see NetSpec."
    return make


class NetSpec:
    """A net whose layers are named by assignment: `n.conv1 = L.Convolution(n.data, ...)`. `n['conv1']` works too.

    A layer has the name of its first top. Tops without a name are named after the type of their layer, such as Convolution1.
    """

    def __init__(self) -> None:
        super().__setattr__("tops", OrderedDict())

    tops: OrderedDict[str, Top | Function]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(value, (Top, Function)):
            raise WrongType(f"'{name}' is assigned a {type(value).__name__}: {value!r}", fix=f"assign one top to '{name}', or write n.a, n.b = L...(ntop=2)")
        self.tops[name] = value

    def __getitem__(self, name: str) -> Any:
        try:
            return self.tops[name]
        except KeyError:
            raise NoSuchTop(
                f"the net has no top '{name}'",
                fix=f"use one of its tops: {', '.join(self.tops)}" if self.tops else "assign a top first: n.data = L.Input(..)",
            ) from None

    def __delitem__(self, name: str) -> None:
        self[name]
        del self.tops[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tops

    def keys(self) -> list[str]:
        """Return the names of the tops."""
        return list(self.tops)

    def vals(self) -> list[Top | Function]:
        """Return the tops."""
        return list(self.tops.values())

    def update(self, other: NetSpec | str, params: Mapping[str, Any] | None = None) -> None:
        """Add the tops of another net. With SSD's arguments, a top's name and fields, set these fields of the top's layer."""
        if isinstance(other, str):
            self[other]._update(params or {})
            return
        for name, top in other.tops.items():
            self[name] = top

    def to_proto(self) -> Any:
        """Return the layers of all tops as a NetParameter, each after the layers that it depends on. Raises Error for an unknown field."""
        return _assemble(self.tops.values(), {top: name for name, top in self.tops.items()})


def to_proto(*tops: Top | Function) -> Any:
    """Return a NetParameter of the layers that these tops depend on, with automatic names. Raises Error as NetSpec.to_proto does."""
    return _assemble(tops, {})


def _assemble(tops: Iterable[Top | Function], names: Names) -> Any:
    builder = _Builder(names)
    for top in tops:
        builder.add(top.fn if isinstance(top, Top) else top)
    net = proto.NetParameter()
    net.layer.extend(builder.layers.values())
    return net


class _Builder:
    """Collects layers in the order in which they can run, and makes the missing names."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.layers: OrderedDict[Function, Any] = OrderedDict()
        self.counts: Counter[str] = Counter()
        self.taken = set(names.values())

    def add(self, function: Function) -> None:
        """Add a layer after the layers that it depends on. This is a loop because nets can be deeper than Python's stack."""
        waiting = [function]
        while waiting:
            current = waiting[-1]
            missing = [given.fn for given in current.inputs if given.fn not in self.layers]
            if current in self.layers or not missing:
                waiting.pop()
                if current not in self.layers:
                    self.layers[current] = self.message(current)
            else:
                waiting += reversed(missing)

    def message(self, function: Function) -> Any:
        layer = proto.LayerParameter(type=function.type_name)
        layer.bottom.extend(self.layers[given.fn].top[given.n] for given in function.inputs)
        layer.top.extend(layer.bottom if function.in_place else [self.name(top, function) for top in function.tops])
        automatic = self.name(function.tops[0] if function.tops else function, function)
        layer.name = str(function.params.get("name", automatic))
        _fill_layer(layer, function.params)
        return layer

    def name(self, item: Top | Function, function: Function) -> str:
        """Return the given name of a top, or of a function without tops, or make one from the type and a count. A layer has the name of its first top."""
        while item not in self.names:
            self.counts[function.type_name] += 1
            name = f"{function.type_name}{self.counts[function.type_name]}"
            if name not in self.taken:
                self.names[item] = name
        return self.names[item]


def _fill_layer(layer: Any, fields: Mapping[str, Any]) -> None:
    """Set fields of the layer's message (convolution_param) or of LayerParameter. Names that end in "param" always mean LayerParameter."""
    own = param_field(layer.type)
    inner = proto.LayerParameter.DESCRIPTOR.fields_by_name[own].message_type.fields_by_name if own else {}
    outer = layer.DESCRIPTOR.fields_by_name
    for name, value in fields.items():
        if name in outer and (name.endswith("param") or name not in inner):
            with within(None, f"'{layer.name}' ({layer.type})"):
                assign_proto(layer, name, value)
        elif name in inner:
            with within(None, f"'{layer.name}' ({layer.type})"):
                assign_proto(getattr(layer, own), name, value)
        else:
            near = difflib.get_close_matches(name, [*inner, *outer], 2)
            known = ", ".join(sorted(inner)) or "name, top, bottom and others of LayerParameter"
            meant = f"did you mean {' or '.join(map(repr, near))}?" if near else f"use one of its fields: {known}"
            raise NoSuchField(f"{layer.type} has no field '{name}'", layer=f"'{layer.name}' ({layer.type})", fix=meant)


def assign_proto(message: Any, name: str, value: Any) -> None:
    """Set the field `name` of a message. Dicts become messages, lists repeated fields, and strings name enum values.

    A repeated field also takes a single value. Raises Error for an unknown field and for a value of the wrong type.
    """
    field = message.DESCRIPTOR.fields_by_name.get(name)
    what = message.DESCRIPTOR.name
    if field is None:
        near = difflib.get_close_matches(name, list(message.DESCRIPTOR.fields_by_name), 2)
        raise NoSuchField(
            f"{what} has no field '{name}'",
            fix=f"did you mean {' or '.join(map(repr, near))}?" if near else f"use one of its fields: {', '.join(message.DESCRIPTOR.fields_by_name)}",
        )
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    try:
        if is_repeated(field):
            values = value if isinstance(value, (list, tuple)) or not (is_message or _is_single(value)) else [value]
            for item in values:
                if is_message:
                    _merge(getattr(message, name).add(), item)
                else:
                    getattr(message, name).append(_scalar(field, item))
        elif is_message:
            getattr(message, name).SetInParent()
            _merge(getattr(message, name), value)
        else:
            setattr(message, name, _scalar(field, value))
    except Error:  # of an inner message
        raise
    except (TypeError, ValueError) as reason:
        kind = WrongType if isinstance(reason, TypeError) else WrongValue
        raise kind(f"{what}.{name} cannot be {value!r}: {reason}", fix=f"give {name} {_wanted(field)}") from None


def param_name_dict() -> dict[str, str]:
    """Map each layer type with a parameter message to the message's name without `_param`: {'Convolution': 'convolution', ...}."""
    return {name: own.removesuffix("_param") for name in layer_type_list() if (own := param_field(name))}


def _is_single(value: Any) -> bool:
    return isinstance(value, (str, bytes)) or not hasattr(value, "__iter__")


def _merge(message: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, item in value.items():
            assign_proto(message, name, item)
    elif isinstance(value, type(message)):
        message.MergeFrom(value)
    else:
        raise TypeError(f"{message.DESCRIPTOR.name} takes a dict or a message")


def _wanted(field: Any) -> str:
    """Say which values a field takes."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        kind = f"a dict of fields of {field.message_type.name}"
    elif field.enum_type is not None:
        kind = f"a name: {', '.join(field.enum_type.values_by_name)}"
    elif field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        kind = "a number"
    else:
        kinds = {FieldDescriptor.CPPTYPE_STRING: "a text", FieldDescriptor.CPPTYPE_BOOL: "True or False"}
        unsigned = field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
        kind = kinds.get(field.cpp_type, f"a whole number{' of 0 or more' if unsigned else ''}")
    return f"{kind}, or a list of them" if is_repeated(field) else kind


def _scalar(field: Any, value: Any) -> Any:
    """Convert a value for a field: names of enum values to numbers, numpy scalars to Python scalars, whole floats to integers where these are wanted.

    The last is for scripts of Python 2, in which `(kernel - 1) / 2` is an integer.
    """
    if field.enum_type is not None and isinstance(value, str):
        if value not in field.enum_type.values_by_name:
            raise ValueError(f"{field.enum_type.name} has {', '.join(field.enum_type.values_by_name)}")
        return field.enum_type.values_by_name[value].number
    value = value.item() if hasattr(value, "item") else value
    whole = isinstance(value, float) and value.is_integer() and field.cpp_type not in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
    return int(value) if whole else value


class Layers:
    """`layers.Convolution(...)`: makes layers of a NetSpec, like the module `layers`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return layer_maker(name)


class Parameters:
    """`params.Pooling.MAX`: enum constants of the layers' messages."""

    def __getattr__(self, name: str) -> Any:
        found = None if name.startswith("_") else getattr(proto, f"{name}Parameter", None)
        if found is None:
            raise AttributeError(f"no message {name}Parameter")
        return found


params = Parameters()
