"""HEIC photos of phones: only where a user has installed a plugin of Pillow for them. Its wheels hold libheif (LGPL) and x265 (GPL), so it is no extra."""
from __future__ import annotations

import importlib
from typing import Any

from PIL import Image

from ocaffe.data.decoding.pixels import HEIF
from ocaffe.errors import Error

PLUGIN = "pillow_heif"
FIX = (
    "export the photos as JPEG (an iPhone: Settings, Camera, Formats, Most Compatible, for new ones); "
    "or pip install pillow-heif, whose wheels hold libheif (LGPL) and x265 (GPL)"
)
_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")
_CONTAINERS = (b"mif1", b"msf1")  # of HEIC and AVIF: the brands behind say which


def is_heif(begin: bytes) -> bool:
    """Whether a file that begins so is a HEIC photo."""
    if begin[4:8] != b"ftyp":
        return False
    return begin[8:12] in _BRANDS or (begin[8:12] in _CONTAINERS and b"avif" not in begin[16:])


def open_heif(stream: Any) -> Image.Image:
    """Return the image of the installed plugin. Raise Error without a place."""
    try:
        importlib.import_module(PLUGIN).register_heif_opener()
    except ImportError:
        raise Error("it is a HEIC photo, which no installed package reads", fix=FIX) from None
    plugin, _ = Image.OPEN[HEIF]
    return plugin(stream, "")
