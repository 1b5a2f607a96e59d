"""Files of FlowNet 2: flow (.flo), values (.float3), disparities (.pfm), and gray and color images (.pgm, .ppm)."""
from __future__ import annotations

from pathlib import Path

import numpy as np

from ocaffe.errors import Error, shape_text
from ocaffe.shown import command
from ocaffe.support.files import atomic_write, read_plain, to_read
from ocaffe.support.kinds import kind_of

_FLO_HEAD = 12  # bytes
MOST_DIGITS = 20  # of a number in a header


def write_flo(path: str, flow: np.ndarray) -> None:
    """Write flow (2 x H x W: columns and rows) as Middlebury's .flo."""
    height, width = flow.shape[1:]
    _write(path, b"PIEH" + np.array([width, height], "<i4").tobytes(), flow.transpose(1, 2, 0).astype("<f4"))


def write_float3(path: str, values: np.ndarray) -> None:
    """Write values (Z x Y x X) as .float3."""
    z, y, x = values.shape
    _write(path, f"float\n3\n{x}\n{y}\n{z}\n".encode(), values.astype("<f4"))


def write_pfm(path: str, values: np.ndarray) -> None:
    """Write disparities (1 or 3 x H x W) as .pfm, with the other sign and the last row first, as DispNet's are."""
    channels, height, width = values.shape
    header = f"P{'F' if channels == 3 else 'f'}\n{width} {height}\n1.0\n".encode()
    _write(path, header, (-values[:, ::-1]).transpose(1, 2, 0).astype(">f4"))


def write_pixels(path: str, values: np.ndarray, scale: float, normalize: bool) -> None:
    """Write an image (1 x H x W, or 3 x H x W: blue, green, red) as .pgm or .ppm: values times `scale`, or from the least to the largest one."""
    values = values.astype(np.float32)
    if normalize:
        low, high = values.min(), values.max()
        values = 255 * (values - low) / (high - low if high > low else np.float32(1))
    else:
        values = values * np.float32(scale)
    pixels = np.nan_to_num(np.clip(values, 0, 255)).astype(np.uint8)
    height, width = values.shape[1:]
    _write(path, f"P{6 if len(values) == 3 else 5}\n{width} {height}\n255\n".encode(), pixels[::-1].transpose(1, 2, 0))


def read_flo(path: str) -> np.ndarray:
    """Return the flow of Middlebury's .flo: 2 x H x W. Raise Error without a place."""
    content = _content(path)
    if content[:4] != b"PIEH" or len(content) < _FLO_HEAD:
        raise _no(path, ".flo", content, "give a .flo file of Middlebury: PIEH, width and height, then the values")
    width, height = np.frombuffer(content, "<i4", 2, 4).tolist()
    return _values(path, content[_FLO_HEAD:], "<f4", (height, width, 2)).transpose(2, 0, 1)


def read_float3(path: str) -> np.ndarray:
    """Return the values of a .float3 file: Z x Y x X. Raise Error without a place."""
    content = _content(path)
    lines = content.split(b"\n", 5)
    axes = 2 + _number(lines[1]) if len(lines) > 2 and lines[0] == b"float" else 0
    if axes not in (4, 5) or len(lines) < axes:
        made = f"{Path(path).with_suffix('.float3')}"
        call = f"from ocaffe.formats.flow_files import read_flo, write_float3; write_float3({made!r}, read_flo({path!r}))"
        code = command(call) if set(call) & set('"$`!') or "\\" in call else f'"{call}"'
        other = f"python -c {code}; then name {made}"
        raise _no(path, ".float3", content, other if content[:4] == b"PIEH" else "give a .float3 file, as a FloatWriter layer of FlowNet 2 writes it")
    sizes = [_number(line) for line in lines[2:axes]]
    shape = (*([1] if axes == 4 else []), *reversed(sizes))
    return _values(path, content[len(b"\n".join(lines[:axes])) + 1 :], "<f4", shape)


def read_pfm(path: str) -> np.ndarray:
    """Return the disparities of a .pfm file, 1 or 3 x H x W, with the other sign. Raise Error without a place."""
    content = _content(path)
    lines = content.split(b"\n", 3)
    words = b" ".join(lines[:3]).split()
    try:
        kind, width, height, scale = words[0], int(words[1]), int(words[2]), float(words[3])
        channels = {b"PF": 3, b"Pf": 1}[kind]
    except (IndexError, KeyError, ValueError):
        raise _no(path, ".pfm", content, "list .pfm files of disparities, as those of FlyingThings3D: the first line of such a file is PF or Pf") from None
    rows = _values(path, lines[3] if len(lines) > 3 else b"", ">f4" if scale > 0 else "<f4", (height, width, channels))
    return -rows[::-1].transpose(2, 0, 1)


def _content(path: str) -> bytes:
    try:
        return read_plain(path)
    except OSError as problem:
        raise Error(f"{path} cannot be read: {problem.strerror}", fix=to_read(path, problem, "correct its name in the list")) from None


def _no(path: str, wanted: str, content: bytes, fix: str) -> Error:
    """Return the error for a file that is not of the kind `wanted`."""
    kind = kind_of(content[:512], path)
    if kind is None:
        return Error(f"{path} is no {wanted} file", fix=fix)
    return Error(f"{path} is {kind.name}, not a {wanted} file", fix=kind.way or fix)


def _number(text: bytes) -> int:
    return int(text) if text.strip().isdigit() and len(text) <= MOST_DIGITS else -1


def _values(path: str, content: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    needed = 4 * int(np.prod([int(n) for n in shape], dtype=object))
    if min(shape) < 1 or len(content) < needed:
        fix = "copy the file again, or write all of its values"
        raise Error(f"{path} has {len(content):,} bytes of values, and {shape_text(shape)} values need {needed:,}", fix=fix)
    return np.frombuffer(content[:needed], dtype).astype(np.float32).reshape(shape)


def _write(path: str, header: bytes, values: np.ndarray) -> None:
    with atomic_write(path) as stream:
        stream.write(header)
        stream.write(np.ascontiguousarray(values).tobytes())
