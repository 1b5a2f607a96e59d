"""Decodes JPEG files by libjpeg-turbo (the package simplejpeg) into the values of OpenCV, five times as fast on several threads as Pillow does.

Pillow holds the interpreter's lock for most of the time; simplejpeg does not hold it. `find` accepts only files that both decode to the same values.
Pillow decodes all others, and all if the package is not installed.
"""
from __future__ import annotations

import struct
import threading
from typing import NamedTuple

import numpy as np

from ocaffe.data.decoding.exif import EXIF, exif_orientation
from ocaffe.support import log

try:
    import simplejpeg
except ImportError:  # there is no wheel for this platform
    simplejpeg = None

_START_OF_FRAME = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive; Huffman coding
_OTHER_FRAMES = {*range(0xC0, 0xD0)} - _START_OF_FRAME - {0xC4, 0xC8, 0xCC}  # lossless, arithmetic and others
_APP1, _START_OF_SCAN = 0xE1, 0xDA
_missing = threading.Lock()


class Jpeg(NamedTuple):
    """The header of a JPEG file. `channels` are 1 or 3; `orientation` is that of EXIF, 1 to 8."""

    data: bytes | memoryview
    height: int
    width: int
    channels: int
    orientation: int

    def into(self, pixels: np.ndarray) -> bool:
        """Decode into `pixels`, height x width x 1 or 3 (blue, green, red), contiguous bytes. Return whether the file is sound."""
        try:
            simplejpeg.decode_jpeg(self.data, "BGR" if pixels.shape[2] == 3 else "GRAY", buffer=pixels)
        except ValueError:
            return False
        return True


def find(data: bytes | memoryview) -> Jpeg | None:
    """Return the header of a JPEG file, or None if Pillow must decode it. Only the segments before the pixels are read."""
    if bytes(data[:3]) != b"\xff\xd8\xff":
        return None
    if simplejpeg is None:
        _note_missing()
        return None
    try:
        return _walk(data)
    except (IndexError, struct.error):  # the file ends within its header
        return None


def _note_missing() -> None:
    if _missing.acquire(blocking=False):  # once in a process
        log.warning("io.cpp:80", "JPEG files are decoded by Pillow, at a fraction of the speed. Remedy: pip install simplejpeg")


def _walk(data: bytes | memoryview) -> Jpeg | None:
    at, orientation = 2, 0
    frame: tuple[int, int, int] | None = None
    while True:
        mark, kind = data[at], data[at + 1]
        if mark != 0xFF or kind == 0xFF:
            return None
        (length,) = struct.unpack_from(">H", data, at + 2)
        if kind in _START_OF_FRAME:
            bits, height, width, channels = struct.unpack_from(">BHHB", data, at + 4)
            if frame or bits != 8 or not height or not width or channels not in (1, 3):
                return None
            frame = height, width, channels
        elif kind == _START_OF_SCAN:
            return Jpeg(data, *frame, orientation or 1) if frame else None
        elif kind == _APP1 and not orientation and bytes(data[at + 4 : at + 10]) == EXIF:
            orientation = exif_orientation(bytes(data[at + 4 : at + 2 + length]))
        elif kind < 0xC0 or kind in _OTHER_FRAMES:
            return None
        at += 2 + length

