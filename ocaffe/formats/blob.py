"""Convert between numpy arrays and Caffe's BlobProto (an array on disk) and Datum (an image in a database)."""
from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error, shape_text
from ocaffe.formats import wire
from ocaffe.formats.numpy_file import read_npy
from ocaffe.formats.sniff import is_text, open_head, wrong_kind
from ocaffe.support.files import atomic_write
from ocaffe.support.finite import singles
from ocaffe.support.kinds import kind_of

# field numbers of BlobProto
_DATA, _DIFF, _SHAPE, _DOUBLE_DATA, _DOUBLE_DIFF = 5, 6, 7, 8, 9
_LEGACY = (1, 2, 3, 4)  # num, channels, height, width
_PACKED: dict[int, np.dtype[Any]] = {_DATA: np.dtype("<f4"), _DOUBLE_DATA: np.dtype("<f8")}
# NVCaffe 0.17: data_type 10, diff_type 11, data 12, diff 13; Caffe's OpenCL branch: packed_data 11, packed_diff 12, data_type 13
_NV_TYPES: dict[int, np.dtype[Any]] = {0: np.dtype("<f8"), 1: np.dtype("<f4"), 2: np.dtype("<f2"), 3: np.dtype("<i4"), 4: np.dtype("<u4")}
_OPENCL_TYPES: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2"), 2: np.dtype("<f8")}


def decode_blob(span: wire.Span) -> np.ndarray:
    """Return the array of the BlobProto in `span`, read-only, as float32, float64 or float16 as stored.

    If the values are packed (Caffe always packs), the array is a view of the file and may not be aligned.
    A file of 2014 or before gives four axes. Raises wire.Malformed.
    """
    chunks: list[np.ndarray] = []
    dims: list[int] | None = None
    legacy: dict[int, int] = {}
    raw: dict[int, wire.Field] = {}
    at = span.start
    while at < span.end:
        field = span.field(at)
        number, kind = field.number, field.kind
        end = field.end
        if number in _PACKED:
            dtype = _PACKED[number]
            if kind == wire.BYTES:
                count, rest = divmod(field.end - field.start, dtype.itemsize)
                if rest:
                    raise wire.Malformed(f"{field.end - field.start} bytes for {dtype.name} values", field.start)
                chunks.append(np.frombuffer(span.data, dtype, count, field.start))
            elif field.end - field.start == dtype.itemsize and kind != wire.VARINT:
                table, end = span.run(field, at)
                chunks.append(np.ascontiguousarray(table).view(dtype).reshape(-1))
        elif number == _SHAPE and kind == wire.BYTES:
            shape = span.inner(field)
            dims = [dim for inner in shape.fields() if inner.number == 1 for dim in shape.integers(inner)]
        elif number in _LEGACY and kind == wire.VARINT:
            legacy[number] = wire.signed(field.value)
        elif 10 <= number <= 13:
            raw[number] = field
        at = end
    if not chunks and raw:
        chunks = _raw_values(span, raw)
    if legacy:  # as in Caffe, they have priority over a shape
        dims = [legacy.get(number, 0) for number in _LEGACY]
    values = chunks[0] if len(chunks) == 1 else np.concatenate(chunks) if chunks else np.empty(0, np.float32)
    dims = dims or []
    try:
        if min(dims, default=0) >= 0 and math.prod(dims) == values.size:
            return values.reshape(dims)
    except ValueError:  # a dimension of 0 beside huge ones, or too many dimensions
        pass
    raise wire.Malformed(f"the shape {shape_text(dims)}, but {values.size} values", span.start)


def _raw_values(span: wire.Span, raw: dict[int, wire.Field]) -> list[np.ndarray]:
    """Return the values that a fork stores as raw bytes."""
    opencl = 11 in raw and raw[11].kind == wire.BYTES
    field, types, kind = (raw[11], _OPENCL_TYPES, raw.get(13)) if opencl else (raw.get(12), _NV_TYPES, raw.get(10))
    if field is None or field.kind != wire.BYTES:
        return []
    number = kind.value if kind is not None else 0
    if number not in types:
        raise wire.Malformed(f"values of the unknown or quantized data type {number}", span.start)
    dtype = types[number]
    count, rest = divmod(field.end - field.start, dtype.itemsize)
    if rest:
        raise wire.Malformed(f"{field.end - field.start} bytes for {dtype.name} values", field.start)
    values = np.frombuffer(span.data, dtype, count, field.start)
    return [values if dtype.kind == "f" else values.astype(np.float32)]


def encode_blob(number: int, data: np.ndarray, diff: np.ndarray | None = None) -> list[bytes | memoryview]:
    """Encode `data` as a BlobProto in field `number`, as Caffe writes it. Return the pieces.

    float64 becomes doubles, every other type becomes float32.
    """
    double = data.dtype == np.float64
    numbers = (_DOUBLE_DATA, _DOUBLE_DIFF) if double else (_DATA, _DIFF)
    values: list[bytes | memoryview] = []
    for key, array in zip(numbers, (data, diff), strict=True):
        if array is not None:
            flat = np.ascontiguousarray(array, _PACKED[numbers[0]]).reshape(-1)
            values += [wire.header(key, flat.nbytes), flat.view(np.uint8).data]
    shape = _shape_field(data.shape)
    pieces = [shape, *values] if double else [*values, shape]  # in the order of the field numbers
    return [wire.header(number, sum(map(len, pieces))), *pieces]


def _shape_field(shape: Sequence[int]) -> bytes:
    dims = b"".join(map(wire.varint, shape))
    body = wire.header(1, len(dims)) + dims if dims else b""
    return wire.header(_SHAPE, len(body)) + body


def read_blobproto(path: str | Path) -> np.ndarray:
    """Return the array in a .binaryproto file or a .npy file, with the type that is stored.

    A mean image has four axes, 1 x C x H x W.
    """
    head = open_head(path, "a .binaryproto file")
    if head.startswith(b"\x93NUMPY"):
        return read_npy(path, "write an array of numbers to it by np.save")
    kind = kind_of(head, str(path))
    if kind is not None:
        raise wrong_kind(kind, "a .binaryproto file", str(path), "make one with compute_image_mean, or give mean_value in its place")
    if is_text(head):
        raise Error("is a text file, not a .binaryproto file", place=str(path), fix="make one with compute_image_mean, or give mean_value in its place")
    span = wire.map_file(path)
    try:
        return decode_blob(span)
    except wire.Malformed as problem:
        raise malformed(path, problem, span.end, "a .binaryproto file") from None


def read_finite(path: str | Path) -> np.ndarray:
    """Return the array of a mean as `read_blobproto` does, float32. Raise Error, also for NaN, infinity and numbers beyond floats of 32 bits."""
    array = read_blobproto(path)
    try:
        return singles("the mean", array)
    except ValueError as problem:
        raise Error(str(problem), place=str(path), fix="make it with compute_image_mean, or give one finite value for each channel in its place") from None


def write_blobproto(path: str | Path, array: np.ndarray) -> None:
    """Write `array` as compute_image_mean does. Up to four axes become num, channels, height, width; more become a shape."""
    if array.ndim > 4:
        message = array_to_blob(array)
    else:
        shape = (1,) * (4 - array.ndim) + array.shape
        message = proto.BlobProto(**dict(zip(("num", "channels", "height", "width"), shape, strict=True)))
        message.data.extend(np.asarray(array, np.float32).reshape(-1))
    with atomic_write(path) as stream:
        stream.write(message.SerializeToString())


def malformed(path: str | Path, problem: wire.Malformed, size: int, what: str) -> Error:
    """Return the error for a damaged or truncated file of `size` bytes. `what` names the expected kind of file."""
    if problem.needs > size:
        return Error(
            f"ends at byte {size:,}, but needs {problem.needs:,}: it is truncated, or is not {what}",
            place=str(path),
            fix="copy or download it again",
        )
    fact = f"is damaged, or is not {what}: {problem.fact} at byte {problem.at:,}"
    return Error(fact, place=str(path), fix=f"give {what}; if it is one, copy or download it again")


def blob_to_array(blob: Any, diff: bool = False) -> np.ndarray:
    """Return a copy of the values of a BlobProto message, or of its gradient with `diff`. Raises ValueError if they do not match the shape."""
    doubles, floats = (blob.double_diff, blob.diff) if diff else (blob.double_data, blob.data)
    values = np.array(doubles, np.float64) if doubles else np.array(floats, np.float32)
    legacy = any(blob.HasField(name) for name in ("num", "channels", "height", "width"))
    shape = (blob.num, blob.channels, blob.height, blob.width) if legacy else tuple(blob.shape.dim)
    return values.reshape(shape)


def array_to_blob(array: np.ndarray, diff: np.ndarray | None = None) -> Any:
    """Return a BlobProto message with `array`, its shape and optionally `diff`. float64 becomes doubles, every other type float32."""
    message = proto.BlobProto()
    message.shape.dim.extend(array.shape)
    for name, values in (("data", array), ("diff", diff)):
        if values is not None:
            double = array.dtype == np.float64
            getattr(message, f"double_{name}" if double else name).extend(np.asarray(values, None if double else np.float32).reshape(-1))
    return message


def datum_to_array(datum: Any) -> np.ndarray:
    """Return the C x H x W values of a Datum that is not encoded: uint8, or float32 if it holds floats."""
    if datum.encoded:
        raise ValueError("an encoded Datum has to be decoded first")
    shape = (datum.channels, datum.height, datum.width)
    if datum.data:
        return np.frombuffer(datum.data, np.uint8).reshape(shape)
    return np.array(datum.float_data, np.float32).reshape(shape)


def array_to_datum(array: np.ndarray, label: int | None = None) -> Any:
    """Return a Datum with the C x H x W values of `array`: bytes if it is uint8, else floats."""
    if array.ndim != 3:
        raise ValueError(f"a Datum has three axes, got {shape_text(array.shape)}")
    datum = proto.Datum(**dict(zip(("channels", "height", "width"), array.shape, strict=True)))
    if array.dtype == np.uint8:
        datum.data = array.tobytes()
    else:
        datum.float_data.extend(np.asarray(array, np.float32).reshape(-1))
    if label is not None:
        datum.label = label
    return datum
