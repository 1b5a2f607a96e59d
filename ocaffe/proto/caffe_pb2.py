"""Caffe's messages under the name of protoc's module: `from caffe.proto import caffe_pb2`.

The classes are those of `ocaffe.proto`.
"""
from __future__ import annotations

from typing import Any

from ocaffe import proto

DESCRIPTOR = proto._file

__all__ = sorted(
    [*DESCRIPTOR.message_types_by_name, *DESCRIPTOR.enum_types_by_name]
    + [name for enum in DESCRIPTOR.enum_types_by_name.values() for name in enum.values_by_name]
)


def __getattr__(name: str) -> Any:
    try:
        return getattr(proto, name) if not name.startswith("__") else _missing(name)
    except AttributeError:
        return _missing(name)


def _missing(name: str) -> Any:
    raise AttributeError(f"caffe_pb2 has no message, enum or value {name!r}")


def __dir__() -> list[str]:
    return __all__
