"""The grid of a sweep: all combinations of the values that `--set FIELD=VALUE,VALUE` gives to fields of a SolverParameter."""
from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.text import parse, write_text
from ocaffe.support.cache import digest

TAKEN = {  # fields that a sweep sets itself, each with the remedy
    "snapshot_prefix": "--out DIR: each training has its own folder there",
    "device_id": "--gpu or --device with a list of devices",
    "device": "--gpu or --device with a list of devices",
    "solver_mode": "--gpu or --device with a list of devices",
}
_LONGEST = 120  # characters of a folder's name; file systems allow 255 bytes


class Axis(NamedTuple):
    """The values of one field. A value is a SolverParameter in which only this field is set."""

    field: str  # dotted path
    values: list[Any]
    texts: list[str]  # as protobuf writes them, without quotes: one text for each value


def axes(settings: Sequence[str], taken: Mapping[str, str] = TAKEN) -> list[Axis]:
    """Return the axes of the texts `FIELD=VALUE,VALUE`. Raises Error for anything that is not a value of the field."""
    found = [_axis(text, taken) for text in settings]
    names = [axis.field for axis in found]
    for name in names:
        if names.count(name) > 1:
            raise Error(f"--set gives {name} {names.count(name)} times", fix=f"give all values at once: --set {name}=VALUE,VALUE")
    return found


def combinations(given: Sequence[Axis]) -> list[tuple[dict[str, str], list[Any]]]:
    """Return every combination: its settings as text by field, and the values. The last axis changes fastest."""
    names = [axis.field for axis in given]
    chosen = itertools.product(*(zip(axis.texts, axis.values) for axis in given))
    return [(dict(zip(names, (text for text, _ in pairs))), [value for _, value in pairs]) for pairs in chosen]


def with_values(solver: Any, given: Sequence[Axis], values: Sequence[Any]) -> Any:
    """Return a copy of the SolverParameter `solver` with one value for each axis. A repeated field is replaced, not extended."""
    result = type(solver)()
    result.CopyFrom(solver)
    for axis, value in zip(given, values):
        _holder(axis.field, result).ClearField(axis.field.rpartition(".")[2])
        result.MergeFrom(value)
    return result


def folder_name(settings: dict[str, str]) -> str:
    """Return a name for the folder of a training, such as `base_lr=0.1_momentum=0.9`. It depends on the settings alone."""
    plain = "_".join(f"{name}={text}" for name, text in settings.items())
    safe = re.sub(r"[^\w.=+-]", "-", re.sub(r"[][]", "", plain), flags=re.ASCII)[:_LONGEST]
    return safe if safe == plain else f"{safe}-{digest(plain)[:8]}"


def _axis(setting: str, taken: Mapping[str, str]) -> Axis:
    name, equals, given = (part.strip() for part in setting.partition("="))
    place = f"--set {setting}"
    if not equals or not name or not given:
        raise Error("it is not of the form FIELD=VALUE,VALUE", place=place, fix="for example --set base_lr=0.1,0.01")
    if name in taken:
        raise Error(f"a sweep sets {name} itself", place=place, fix=taken[name])
    field = _field(name, place)
    parts = split(given, place)
    values = [_value(name, field, part, place) for part in parts]
    texts = [_shown(name, value) for value in values]
    for index, text in enumerate(texts):
        if text in texts[:index]:
            fact = f"{name} has the values {parts[texts.index(text)]} and {parts[index]}, which are equal"
            raise Error(fact, place=place, fix="give each value once")
    return Axis(name, values, texts)


def _field(path: str, place: str) -> Any:
    """Return the descriptor of a scalar field, or of a repeated one, by its dotted path in a SolverParameter."""
    message, field = proto.SolverParameter.DESCRIPTOR, None
    for name in path.split("."):
        if field is not None:
            if field.message_type is None or proto.is_repeated(field):
                raise Error(f"{field.name} has no fields, so {path} does not exist", place=place, fix=f"--set {field.name}=VALUE")
            message = field.message_type
        field = message.fields_by_name.get(name)
        if field is None:
            close = difflib.get_close_matches(name, message.fields_by_name, n=1)
            fix = (f"did you mean {close[0]!r}? " if close else "") + "Fields of a net are swept by several nets: --set net=a.prototxt,b.prototxt"
            raise Error(f"{message.name} has no field {name!r}", place=place, fix=fix)
    assert field is not None
    if field.message_type is not None:
        raise Error(f"{path} is a message", place=place, fix=f"set a field of it, for example --set {path}.{field.message_type.fields[0].name}=VALUE")
    return field


def split(text: str, place: str) -> list[str]:
    """Split at the commas outside brackets and quotes. Raises Error for an empty part."""
    parts = [part.strip() for part in re.findall(r"""(?:\[[^\]]*\]|"(?:[^"\\]|\\.)*"|[^,])+|(?<=,)(?=,|$)|^(?=,)""", text)]
    if "" in parts:
        raise Error("it has an empty value", place=place, fix="values separated by ',': FIELD=VALUE,VALUE")
    return parts


def _value(path: str, field: Any, text: str, place: str) -> Any:
    """Return a SolverParameter with the value that `text` describes. Text fields need no quotes."""
    quoted = text.startswith(('"', "'", "["))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and not quoted:
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    *parents, last = path.split(".")
    source = "".join(f"{name} {{ " for name in parents) + f"{last}: {text}" + " }" * len(parents)
    try:
        value = parse(source, proto.SolverParameter)
    except Error as problem:
        raise Error(problem.fact, place=place, fix=problem.fix or f"values of the type of {path}") from None
    if len(_holder(path, value).ListFields()) > 1 or len(value.ListFields()) > 1:
        raise Error(f"{text} sets more than {path}", place=place, fix="give --set once for each field")
    return value


def _holder(path: str, message: Any) -> Any:
    """Return the message in `message` that has the field `path`."""
    for name in path.split(".")[:-1]:
        message = getattr(message, name)
    return message


def _shown(path: str, value: Any) -> str:
    """Return the value as protobuf writes it, so that 0.1 and 1e-1 have one text."""
    lines = [line.partition(": ")[2].strip('"') for line in write_text(_holder(path, value)).splitlines()]
    return lines[0] if len(lines) == 1 else f"[{','.join(lines)}]"
