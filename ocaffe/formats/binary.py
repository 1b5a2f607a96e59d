"""Whole nets in binary form, for tools that edit a caffemodel as a protobuf message. Training and testing use `weights`."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.sniff import is_hdf5, is_text, open_head, wrong_kind
from ocaffe.formats.text import without_private
from ocaffe.support.files import atomic_write
from ocaffe.support.kinds import kind_of

_LARGEST = 2**31 - 1  # bytes of a message, in all implementations of protobuf


def read_net_binary(path: str | Path) -> Any:
    """Return the NetParameter of the caffemodel `path`, blobs included and not upgraded.

    Layer parameters are decoded with BVLC's field numbers. A fork can use other numbers; its parameters are then lost or wrong
    (docs/quirks.md, "Files and field numbers").
    Raises Error when the file is not a NetParameter or is larger than 2 GiB.
    """
    open_head(path, "a caffemodel")
    size = Path(path).stat().st_size
    if size > _LARGEST:
        raise Error(
            f"has {size:,} bytes; a message of protobuf has at most {_LARGEST:,}, so no tool can hold the whole net", place=str(path),
            fix="use the file as it is, for --weights takes old formats of any size; `ocaffe convert OLD.caffemodel NEW.caffemodel` writes its weights anew",
        )  # fmt: skip
    data = open_head(path, "a caffemodel", size=-1)
    kind = kind_of(data[:4096], str(path))
    if kind is not None and not is_hdf5(data):
        raise wrong_kind(kind, "a caffemodel", str(path), "give a .caffemodel")
    if is_text(data[:4096]) or is_hdf5(data):
        fix = "give a .caffemodel" if is_hdf5(data) else "give a .caffemodel; `ocaffe upgrade_net_proto_text` upgrades a prototxt"
        raise Error(f"is {'an HDF5' if is_hdf5(data) else 'a text'} file, not a binary caffemodel", place=str(path), fix=fix)
    try:
        net = proto.NetParameter.FromString(data)
    except DecodeError as problem:
        fix = "give a .caffemodel; if it is one, copy or download it again"
        raise Error(f"is damaged, or is not a caffemodel: {problem}", place=str(path), fix=fix) from None
    damaged = next((text for text in _texts(net) if isinstance(text, bytes)), None)
    if damaged is not None:
        raise Error(f"is damaged: a text in it is not UTF-8 ({damaged[:40]!r})", place=str(path), fix="copy or download it again")
    if not (net.layer or net.layers):
        raise Error("has no layers: it is not a caffemodel", place=str(path), fix="give a .caffemodel, which holds the net with its weights")
    net.source_file = str(path)
    return net


def _texts(message: Any) -> Iterator[str | bytes]:
    """Yield all texts of a message. protobuf gives a text that is not UTF-8 as bytes."""
    for field, value in message.ListFields():
        values = value if proto.is_repeated(field) else [value]
        if field.message_type is not None and field.message_type.name != "BlobProto":
            for item in values:
                yield from _texts(item)
        elif field.type == field.TYPE_STRING:
            yield from values


def write_net_binary(path: str | Path, net: Any) -> None:
    """Write `net`, blobs included, without ocaffe's private fields."""
    with atomic_write(path) as stream:
        stream.write(without_private(net).SerializeToString(deterministic=True))
