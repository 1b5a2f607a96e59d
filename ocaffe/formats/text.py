"""Read and write Caffe's text files (prototxts).

ocaffe has its own reader because protobuf's parser does not keep line numbers, and ocaffe's errors report them. The reader is
driven by the schema's descriptors and accepts the same input as protobuf's text format.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from ocaffe import proto
from ocaffe.formats.parser import PRIVATE, Parser, Warn
from ocaffe.formats.sniff import read_text_file
from ocaffe.formats.tokens import Source
from ocaffe.shown import prototxt as visible_prototxt


def read_net(path: str | Path, allow_unknown_fields: bool = False, warn: Warn | None = None, lines: dict[str, int] | None = None) -> Any:
    """Return the NetParameter in the text file `path`, not upgraded; see `parse`."""
    net = read(path, proto.NetParameter, allow_unknown_fields, warn, lines)
    net.source_file = str(path)
    return net


def read_solver(path: str | Path, allow_unknown_fields: bool = False, warn: Warn | None = None, lines: dict[str, int] | None = None) -> Any:
    """Return the SolverParameter in the text file `path`, not upgraded; see `parse`."""
    return read(path, proto.SolverParameter, allow_unknown_fields, warn, lines)


def read(
    path: str | Path, message_type: Any, allow_unknown_fields: bool = False, warn: Warn | None = None, lines: dict[str, int] | None = None
) -> Any:
    """Return a message of `message_type` from the text file `path`; see `parse`. Raises Error if the file is missing, empty or binary."""
    return parse(read_text_file(path), message_type, str(path), allow_unknown_fields, warn, lines)


def parse(
    text: str,
    message_type: Any,
    file: str = "<text>",
    allow_unknown_fields: bool = False,
    warn: Warn | None = None,
    lines: dict[str, int] | None = None,
) -> Any:
    """Parse `text` in protobuf's text format. Return a message of `message_type`, a class of `ocaffe.proto`.

    Every layer gets its `source_line`. `lines`, if given, receives the line of every field by path, for example
    `layer[3].pooling_param.kernel_size` or `layer[3].bottom[0]`. The line of a message is its first line.
    An unknown field or enum value raises an Error with its place and the likely name. With `allow_unknown_fields` it is
    skipped, and `warn` gets one line for it.
    """
    message = message_type()
    Parser(Source(text, file), allow_unknown_fields, warn, {} if lines is None else lines).read(message)
    return message


def write_text(message: Any) -> str:
    """Return `message` in text format, without ocaffe's private fields."""
    return visible_prototxt(text_format.MessageToString(without_private(message)))


def without_private(message: Any) -> Any:
    """Return a copy of `message` without `source_line` and `source_file` at any depth."""
    copy = type(message)()
    copy.CopyFrom(message)
    _strip_private(copy)
    return copy


def _strip_private(message: Any) -> None:
    for name in PRIVATE:
        if name in message.DESCRIPTOR.fields_by_name:
            message.ClearField(name)
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for inner in value if proto.is_repeated(field) else (value,):
                _strip_private(inner)
