"""Caffe's messages: `from ocaffe import proto; net = proto.NetParameter(); proto.TRAIN; proto.PoolingParameter.MAX`.

The message classes are made from the descriptor set caffe.desc, which proto/compile.py compiles from proto/caffe.proto. This needs no
generated code, which becomes outdated with a new protobuf release. The descriptors have a separate pool, so they do not clash
with another caffe.proto in the process.
"""
from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_pool = descriptor_pool.DescriptorPool()


def _load() -> Any:
    files = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name("caffe.desc").read_bytes())
    for file in files.file:
        _pool.Add(file)
    return _pool.FindFileByName(files.file[-1].name)


_file = _load()
_factory: Any = message_factory
_message_class = getattr(_factory, "GetMessageClass", None) or _factory.MessageFactory(_pool).GetPrototype  # before protobuf 4.22


def __getattr__(name: str) -> Any:
    """Return the message class, top-level enum or top-level enum value `name`. It is created at the first access."""
    if name == "caffe_pb2":  # a submodule; scripts use it after `import caffe` alone
        value: Any = importlib.import_module("ocaffe.proto.caffe_pb2")
    elif name in _file.message_types_by_name:
        value = _message_class(_file.message_types_by_name[name])
    elif name in _file.enum_types_by_name:
        value = EnumTypeWrapper(_file.enum_types_by_name[name])
    else:
        for enum in _file.enum_types_by_name.values():
            if name in enum.values_by_name:
                value = enum.values_by_name[name].number
                break
        else:
            raise AttributeError(f"caffe.proto has no message, enum or value {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_file.message_types_by_name, *_file.enum_types_by_name])


def is_repeated(field: Any) -> bool:
    """Whether the field of this descriptor is repeated. The older attribute `label` is deprecated since protobuf 6.31."""
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else bool(field.label == FieldDescriptor.LABEL_REPEATED)


def is_required(field: Any) -> bool:
    return bool(field.is_required if hasattr(field, "is_required") else field.label == FieldDescriptor.LABEL_REQUIRED)
