"""Whole nets in binary form, for tools that edit a caffemodel as a protobuf message. Training and testing use `weights`."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.files import atomic_write
from ocaffe.model.sniff import is_hdf5, is_text, open_head
from ocaffe.model.text import without_private


def read_net_binary(path: str | Path) -> Any:
    """Return the NetParameter of the caffemodel `path`, blobs included and not upgraded.

    Layer parameters are decoded with BVLC's field numbers. A fork can use other numbers; its parameters are then lost or wrong
    (docs/quirks.md, "Files and field numbers").
    Raises Error when the file is not a NetParameter or is larger than 2 GiB.
    """
    data = open_head(path, "a caffemodel", size=-1)
    if is_text(data[:4096]) or is_hdf5(data):
        raise Error(f"is {'an HDF5' if is_hdf5(data) else 'a text'} file, not a binary caffemodel", place=str(path))
    try:
        net = proto.NetParameter.FromString(data)
    except DecodeError as problem:
        raise Error(f"is damaged, or is not a caffemodel: {problem}", place=str(path)) from None
    if not (net.layer or net.layers):
        raise Error("has no layers: it is not a caffemodel", place=str(path))
    net.source_file = str(path)
    return net


def write_net_binary(path: str | Path, net: Any) -> None:
    """Write `net`, blobs included, without ocaffe's private fields."""
    with atomic_write(path) as stream:
        stream.write(without_private(net).SerializeToString(deterministic=True))
