"""Reads tensors in PyTorch's old stream of weights: pickles that describe tensors, then the raw values of their storages.

The pickles are interpreted here, by a table of operations. They make texts, numbers, tuples, dictionaries, lists and descriptions of tensors. No class and
no function is looked up by its name, so that a file cannot run code. Sizes are compared with the file before an array is made.
"""
from __future__ import annotations

import io
import math
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe.errors import Error, shape_text
from ocaffe.formats import wire
from ocaffe.support.kinds import kind_of

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # the first two pickles
LARGEST = 4 << 20  # bytes of all pickles. A tensor takes about 150; its values are no part of them
AXES = 8  # of a tensor at most
STORAGES = {"torch FloatStorage": "<f4", "torch LongStorage": "<i8"}
DICT, TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
ALLOWED = (DICT, TENSOR, *STORAGES)
WHAT = "weights in PyTorch's old stream format"
BEGIN, ZIP = b"\x80", b"PK\x03\x04"
_SAVE = "torch.save({}, 'NEW.pth', _use_new_zipfile_serialization=False)"
FIX = f"give plain weights of float32, which PyTorch saves by {_SAVE.format('model.state_dict()')}"


@dataclass(frozen=True)
class _Global:
    """A name of ALLOWED."""

    name: str


@dataclass(frozen=True)
class _Storage:
    """A row of values that follows the pickles."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    """Values of a storage, from `offset` on. `strides` are in values."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Refused(ValueError):
    """The file has something that weights do not need, or does not fit itself."""


def read_torch_stream(path: str | Path) -> dict[str, np.ndarray]:
    """Return the tensors of a file by name, as read-only arrays in the mapped file. Raise Error."""
    place = str(path)
    span = wire.map_file(path)
    _check_kind(bytes(span.data[:64]), place)
    stream = io.BytesIO(bytes(span.data[:LARGEST]))
    try:
        if span.data[:1] != BEGIN or _run(stream) != MAGIC:
            raise _Refused("it does not begin with PyTorch's magic number")
        if (version := _run(stream)) != PROTOCOL:
            raise _Refused(f"its protocol is {_shown(version)}, and only {PROTOCOL} is known")
        _check_system(_run(stream))
        tensors, storages = _described(_run(stream))
        keys = _run(stream)
        rows = dict(_stored(span.data, span.end, stream.tell(), _checked_keys(keys, storages)))
        return {name: _array(rows[tensor.storage.key], tensor) for name, tensor in tensors.items()}
    except (ValueError, IndexError, KeyError, UnicodeError, OverflowError) as problem:  # the last four are of pickletools
        reason = str(problem) if isinstance(problem, _Refused) else f"the pickles are damaged ({_shown(str(problem))})"
        raise Error(f"cannot be read as {WHAT}: {reason}", place=place, fix=FIX) from None


def _check_kind(head: bytes, path: str) -> None:
    """Raise Error if the first bytes are those of another format."""
    if head.startswith(ZIP):
        fix = f"in PyTorch: {_SAVE.format(f'torch.load({path!r}, weights_only=True)')}"
        raise Error(f"is a zip archive, PyTorch's format since version 1.6, not {WHAT}", place=path, fix=fix)
    kind = kind_of(head)
    if kind is not None:
        raise Error(f"is {kind.name}, not {WHAT}", place=path, fix=kind.way or FIX)


def _shown(value: object) -> str:
    """Return a value of a stranger in a few letters. Values with parts are shown by their type alone: they may be nested without limit."""
    text = str(value) if isinstance(value, (str, int)) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."


class _Machine:
    """Interprets one pickle. The table OPERATIONS has all that it can do."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self, _: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def marked(self) -> list[Any]:
        """Return the values since the last mark."""
        values, self.stack = self.stack, self.marks.pop()
        return values

    def last(self, count: int) -> list[Any]:
        """Return the last values."""
        if len(self.stack) < count:
            raise _Refused("a pickle takes a value that is not there")
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def put(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(values) % 2 or not all(isinstance(key, str) for key in values[::2]):
            raise _Refused("a dictionary in it has keys that are no texts")
        target.update(zip(values[::2], values[1::2]))

    def append(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise _Refused("it appends to something that is no list")
        self.stack[-1].extend(values)

    def build(self, _: Any) -> None:
        """Leave out the attributes of a dictionary: PyTorch keeps the versions of modules in them."""
        self.last(1)
        if type(self.stack[-1]) is not dict:
            raise _Refused("it has the state of an object that is no dictionary")

    def named(self, name: str) -> None:
        if name not in ALLOWED:
            known = ", ".join(each.replace(" ", ".") for each in ALLOWED)
            raise _Refused(f"it names {_shown(name.replace(' ', '.'))}, and a file of weights needs {known} alone")
        self.push(_Global(name))

    def reduce(self, _: Any) -> None:
        called, arguments = self.last(2)
        if called == _Global(DICT) and arguments == ():
            self.push({})
        elif called == _Global(TENSOR) and type(arguments) is tuple:
            self.push(_tensor(arguments))
        else:
            raise _Refused(f"it calls {called.name.replace(' ', '.') if isinstance(called, _Global) else _shown(called)} with unknown arguments")

    def persistent(self, _: Any) -> None:
        self.push(_storage(self.last(1)[0]))


OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "MARK": _Machine.mark,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, number: machine.push(machine.memo[number])),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"), _Machine.push),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE1": lambda machine, _: machine.push(tuple(machine.last(1))),
    "TUPLE2": lambda machine, _: machine.push(tuple(machine.last(2))),
    "TUPLE3": lambda machine, _: machine.push(tuple(machine.last(3))),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.marked())),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "APPEND": lambda machine, _: machine.append(machine.last(1)),
    "APPENDS": lambda machine, _: machine.append(machine.marked()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "SETITEM": lambda machine, _: machine.set_items(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.marked()),
    "GLOBAL": _Machine.named,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
}


def _run(stream: io.BytesIO) -> Any:
    """Return the value of the next pickle of the stream."""
    machine = _Machine()
    for operation, argument, _ in pickletools.genops(stream):
        if operation.name == "STOP":
            return machine.last(1)[0]
        if operation.name not in OPERATIONS:
            raise _Refused(f"a pickle has the operation {operation.name}, which weights do not need")
        OPERATIONS[operation.name](machine, argument)
    raise _Refused("a pickle has no end")


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _storage(given: Any) -> _Storage:
    """Return the storage of a persistent id: its type, its key, the device on which it was, the number of its values."""
    if type(given) is not tuple or len(given) != 6 or given[0] != "storage":
        raise _Refused("it has a reference to something that is no storage")
    _, kind, key, _, count, view = given
    if not isinstance(kind, _Global) or kind.name not in STORAGES or not isinstance(key, str) or not _is_size(count) or view is not None:
        raise _Refused("the description of a storage has other types than PyTorch's")
    return _Storage(key, STORAGES[kind.name], count)


def _tensor(given: tuple[Any, ...]) -> _Tensor:
    """Return a tensor by the arguments of TENSOR: storage, offset, shape, strides, whether it has a gradient, its hooks."""
    if len(given) != 6 or not isinstance(given[0], _Storage):
        raise _Refused("the description of a tensor has other types than PyTorch's")
    storage, offset, shape, strides, gradient, hooks = given
    if type(shape) is not tuple or type(strides) is not tuple or not all(map(_is_size, (offset, *shape, *strides))) or type(gradient) is not bool:
        raise _Refused("the offset, the shape or the strides of a tensor are not numbers from 0 on")
    if type(hooks) is not dict or hooks:
        raise _Refused("a tensor has hooks, which are functions of Python")
    if not len(shape) == len(strides) <= AXES:
        raise _Refused(f"a tensor has {len(shape)} axes and {len(strides)} strides, and at most {AXES} of each are read")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
    if math.prod(shape) > storage.count or 0 in shape or last >= storage.count:
        sizes = shape_text(shape) if max(shape, default=0) < 2**64 else "too many"
        raise _Refused(f"a tensor of {sizes} values does not fit its storage of {_shown(storage.count)}")
    return _Tensor(storage, offset, shape, strides)


def _check_system(system: Any) -> None:
    if type(system) is not dict or type(system.get("little_endian")) is not bool:
        raise _Refused("its third pickle does not describe the machine that wrote it")
    if not system["little_endian"]:
        raise _Refused("a machine with the other order of bytes wrote it. Load and save it on one of today's")


def _described(weights: Any) -> tuple[dict[str, _Tensor], dict[str, _Storage]]:
    """Return the tensors by name and their storages by key."""
    if type(weights) is not dict or not weights:
        raise _Refused(f"it holds {_shown(weights) if type(weights) is not dict else 'nothing'}, not tensors by their names")
    storages: dict[str, _Storage] = {}
    for name, tensor in weights.items():
        if not isinstance(tensor, _Tensor):
            raise _Refused(f"'{_shown(name)}' is {_shown(tensor)}, not a tensor")
        if storages.setdefault(tensor.storage.key, tensor.storage) != tensor.storage:
            raise _Refused(f"the storage {_shown(tensor.storage.key)} has two descriptions")
    return weights, storages


def _checked_keys(keys: Any, storages: dict[str, _Storage]) -> list[_Storage]:
    """Return the storages in the order in which their values follow."""
    if type(keys) is not list or not all(isinstance(key, str) for key in keys) or sorted(keys) != sorted(storages):
        raise _Refused("the list of its storages has other keys than the tensors name")
    return [storages[key] for key in keys]


def _stored(data: Any, end: int, at: int, storages: list[_Storage]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each storage by its key. `at`: where the first begins: the number of its values in 8 bytes, then the values."""
    for storage in storages:
        count, dtype = int.from_bytes(data[at : at + 8], "little"), np.dtype(storage.dtype)
        if at + 8 <= end and count != storage.count:
            raise _Refused(f"the storage {_shown(storage.key)} has {count:,} values, and the pickles say {_shown(storage.count)}")
        at += 8
        if (size := storage.count * dtype.itemsize) > end - at:
            said = f"the storage {_shown(storage.key)} has {_shown(storage.count)} values, and {max(0, end - at):,} bytes follow"
            raise _Refused(f"the file is truncated: {said}")
        yield storage.key, np.frombuffer(data, dtype, storage.count, at)
        at += size
    if at != end:
        raise _Refused(f"{end - at:,} bytes follow its last storage")


def _array(row: np.ndarray, tensor: _Tensor) -> np.ndarray:
    strides = tuple(stride * row.itemsize for stride in tensor.strides)
    return np.lib.stride_tricks.as_strided(row[tensor.offset :], tensor.shape, strides, writeable=False)
