"""Weights files (.caffemodel): read the files of every Caffe fork without copying, and write them as Caffe does.

A caffemodel is a NetParameter. The reader uses only the fields that all forks of Caffe define alike: names, types and
blobs (docs/quirks.md, "Files and field numbers"). HDF5 files are recognised by their content; the module `hdf5` reads them.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ocaffe.errors import Error
from ocaffe.formats import wire
from ocaffe.formats.blob import decode_blob, encode_blob, malformed
from ocaffe.formats.records import LayerWeights as LayerWeights
from ocaffe.formats.records import Weights as Weights
from ocaffe.formats.sniff import from_onnx, is_hdf5, is_text, open_head, wrong_kind
from ocaffe.formats.text import without_private
from ocaffe.formats.upgrade import v0_type, v1_type
from ocaffe.shown import command, path_word
from ocaffe.support.files import atomic_write
from ocaffe.support.kinds import foreign, kind_of

_NAME, _V1_LAYERS, _LAYER = 1, 2, 100  # field numbers of NetParameter


class _Numbers(NamedTuple):
    """Field numbers of a layer message."""

    name: int
    type: int
    blobs: int


_V0, _V1, _V2 = _Numbers(1, 2, 50), _Numbers(4, 5, 6), _Numbers(1, 2, 7)


def weight_files(weights: Sequence[str]) -> list[str]:
    """Split each entry of `weights` at commas and return the names of all weights files."""
    return [name for names in weights for name in names.split(",") if name]


def read_weights(path: str | Path) -> Weights:
    """Return the weights in `path`, in any format. Raises Error for a missing, truncated, damaged or wrong file."""
    head = open_head(path, "a caffemodel")
    if is_hdf5(head):
        from ocaffe.formats.hdf5 import read_weights_hdf5

        return read_weights_hdf5(path)
    kind = kind_of(head, str(path)) or (None if is_text(head) else foreign(str(path)))
    if kind is not None:
        raise wrong_kind(kind, "a caffemodel", str(path), "give a .caffemodel or .caffemodel.h5")
    if is_text(head):
        raise Error(
            "is a text file (a prototxt?), not a caffemodel", place=str(path), fix="the weights are in a .caffemodel or .caffemodel.h5 file"
        )
    span = wire.map_file(path)
    weights = Weights("", [], str(path))
    try:
        _refuse_other_messages(span, path)
        for item in span.fields():
            if item.number in (_V1_LAYERS, _LAYER) and item.kind == wire.BYTES:
                inner = span.inner(item)
                weights.layers.append(_read(inner, _V2) if item.number == _LAYER else _read_v1(inner))
            elif item.number == _NAME and item.kind == wire.BYTES:
                weights.name = span.text(item)
    except wire.Malformed as problem:
        raise malformed(path, problem, span.end, "a caffemodel") from None
    if not weights.layers:
        raise Error("has no layers: it is not a caffemodel", place=str(path), fix="give a .caffemodel or .caffemodel.h5")
    return weights


def _refuse_other_messages(span: wire.Span, path: str | Path) -> None:
    """Raise Error for Caffe's other two binary files. They begin with an integer field, a caffemodel never does."""
    first = span.field(span.start)
    if (first.number, first.kind) != (1, wire.VARINT):
        return
    second = span.field(first.end) if first.end < span.end else first
    if str(path).lower().endswith(".onnx"):
        raise Error("is an ONNX model, not a caffemodel", place=str(path), fix=from_onnx(str(path)))
    if second.kind == wire.BYTES:
        fix = f"give the .caffemodel beside it; to continue its training: `{command('ocaffe', 'train', '--snapshot', path_word(path))}`"
        raise Error("is a solver state, not a caffemodel", place=str(path), fix=fix)
    raise Error("is a single blob (a mean file?), not a caffemodel", place=str(path), fix="give the .caffemodel; a mean file belongs in mean_file")


def _read_v1(span: wire.Span) -> LayerWeights:
    """Read a V1 layer, or the V0 layer in its field 1."""
    layer = _read(span, _V1)
    for item in span.fields():
        if item.number == 1 and item.kind == wire.BYTES:
            inner = _read(span.inner(item), _V0)
            return LayerWeights(inner.name, v0_type(inner.type), inner.blobs or layer.blobs)
    return layer


def _read(span: wire.Span, numbers: _Numbers) -> LayerWeights:
    """Read the layer message in `span`, in the format with these field numbers."""
    layer = LayerWeights("")
    for item in span.fields():
        if item.number == numbers.type and item.kind == wire.VARINT:
            layer.type = v1_type(item.value)
        elif item.kind != wire.BYTES:
            continue
        elif item.number == numbers.name:
            layer.name = span.text(item)
        elif item.number == numbers.type:
            layer.type = span.text(item)
        elif item.number == numbers.blobs:
            try:
                layer.blobs.append(decode_blob(span.inner(item)))
            except wire.Malformed as problem:
                raise wire.Malformed(f"blob {len(layer.blobs)} of layer {layer.name!r} has {problem.fact}", problem.at) from None
    return layer


def fit(array: np.ndarray, shape: Sequence[int]) -> np.ndarray | None:
    """Return `array` as a view of `shape`, or None if it does not fit.

    Caffe up to 2014 stored every blob with four axes. Leading axes of size 1 are therefore ignored: 1 x 1 x 10 x 20 fits 10 x 20.
    """
    shape = tuple(shape)
    if array.shape == shape:
        return array
    if array.ndim == 4 and len(shape) < 4 and array.shape == (1,) * (4 - len(shape)) + shape:
        return array.reshape(shape)
    return None


def write_weights(
    path: str | Path,
    net: Any,
    blobs: Mapping[str, Sequence[np.ndarray]],
    diffs: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> None:
    """Write a caffemodel as real Caffe does: the net's name and every layer of `net`, which is in today's format.

    Each layer has its parameters, `blobs[name]` and, if given, `diffs[name]`. float64 becomes doubles, other types float32.
    `blobs` is read once per layer and in order, and only that layer's arrays are held. A mapping that copies them from a
    device on access therefore needs little memory. There is no limit of 2 GiB. Raises Error when the disk is full.
    """
    if net.layers:
        raise ValueError("the net has layers in the V1 format; upgrade it first")
    with atomic_write(path) as stream:
        if net.HasField("name"):
            stream.write(wire.string(_NAME, net.name))
        for layer in net.layer:
            name = layer.name
            data = blobs.get(name, ())
            slopes = diffs.get(name, ()) if diffs is not None else ()
            for piece in _encode_layer(layer, data, slopes):
                stream.write(piece)


def _encode_layer(layer: Any, data: Sequence[np.ndarray], diffs: Sequence[np.ndarray]) -> list[bytes | memoryview]:
    plain = without_private(layer)
    if plain.blobs:
        copy = type(layer)()
        copy.CopyFrom(plain)
        copy.ClearField("blobs")
        plain = copy
    body = plain.SerializeToString(deterministic=True)
    span = wire.Span(body, 0, len(body))
    cut = next((at for at, number in _numbered(span) if number > _V2.blobs), len(body))  # fields are in the order of their numbers, as Caffe writes them
    pieces: list[bytes | memoryview] = [body[:cut]]
    for index, array in enumerate(data):
        pieces += encode_blob(_V2.blobs, array, diffs[index] if index < len(diffs) else None)
    pieces.append(body[cut:])
    return [wire.header(_LAYER, sum(map(len, pieces))), *pieces]


def _numbered(span: wire.Span) -> list[tuple[int, int]]:
    """Return (offset of the tag, field number) for every field."""
    at, out = span.start, []
    for item in span.fields():
        out.append((at, item.number))
        at = item.end
    return out
