"""The pixels of image files as OpenCV 4 reads them: how each format stores them, and how their luminance is computed.

Pillow decodes the bytes. Where its values would differ from OpenCV's, the bytes are read in another of Pillow's raw modes and converted here. Kinds of
pixels for which that is not done are errors.
"""
from __future__ import annotations

import io
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
from PIL import Image, features

from ocaffe.errors import Error

Gray = Callable[[np.ndarray], np.ndarray]  # from red, green, blue, height x width x 3, to 8 bits, height x width


class Color(Enum):
    """The flag of cv::imdecode: channels as in the file, three channels, or one."""

    UNCHANGED = -1
    GRAY = 0
    COLOR = 1


class Layout(NamedTuple):
    """How the pixels of a file are read.

    `channels` are those of the flag UNCHANGED: 1, 3 or 4; 0 if they do not have 8 bits. `colors` makes an array from a strip of the image (or from two,
    with the high and the low bytes) and the wanted number of channels: gray, height x width, or red, green, blue and perhaps alpha.
    """

    channels: int
    gray: Gray
    colors: Callable[..., np.ndarray]
    low_bytes: str = ""  # a raw mode of Pillow that reads the low bytes of 16 bits; Pillow's own choice reads the high bytes


def layout(image: Image.Image, color: Color) -> Layout:
    """Return how to read the pixels of `image`, which is not loaded, for the flag `color`. Raise Error without a place."""
    return _FORMATS[str(image.format)](image, color)


def pillow_colors(strip: Image.Image, channels: int) -> np.ndarray:
    """The values as Pillow converts them; the high byte of 16 bits."""
    if strip.mode.startswith("I"):
        return (np.asarray(strip).astype(np.uint32) >> 8).astype(np.uint8)
    mode = "RGBA" if channels == 4 else "L" if strip.mode in ("1", "L", "LA") else "RGB"
    return np.asarray(strip if strip.mode == mode else strip.convert(mode))


def weighted(red: int, green: int, blue: int, bits: int, rounded: bool) -> Gray:
    """The luminance in integers, with weights of a sum of 2^bits. Values of 16 bits become 8 after it."""
    half = (1 << (bits - 1)) if rounded else 0

    def gray(colors: np.ndarray) -> np.ndarray:
        total = np.full(colors.shape[:2], half, np.uint32)
        for channel, weight in enumerate((red, green, blue)):
            total += colors[..., channel] * np.uint32(weight)
        total >>= bits
        return (total >> 8 if colors.dtype == np.uint16 else total).astype(np.uint8)

    return gray


LOADED = weighted(4899, 9617, 1868, 14, rounded=True)  # in most of OpenCV's decoders
CONVERTED = weighted(9798, 19235, 3735, 15, rounded=True)  # in cv::cvtColor, which other decoders call
LIBPNG = weighted(9797, 19234, 3737, 15, rounded=False)
LIBPNG_ROUNDED = weighted(9797, 19234, 3737, 15, rounded=True)  # of 16 bits, and of linear values


def _in_floats(colors: np.ndarray) -> np.ndarray:
    red, green, blue = (colors[..., channel].astype(np.float32) for channel in range(3))
    return (red * np.float32(0.299) + green * np.float32(0.587) + blue * np.float32(0.114)).astype(np.uint8)


def _refuse(image: Image.Image, kind: str, fix: str = "convert the image to a PNG file with 8 bits a channel") -> NoReturn:
    raise Error(f"it is a {image.format} file {kind}, whose values would differ from OpenCV's", fix=fix)


def _raw_mode(image: Any) -> str:
    arguments: Any = image.tile[0].args
    return str(arguments if isinstance(arguments, str) else arguments[0])


def _read_as(image: Any, raw_mode: str) -> None:
    for number, tile in enumerate(image.tile):
        arguments: Any = tile.args
        image.tile[number] = tile._replace(args=raw_mode if isinstance(arguments, str) else (raw_mode, *arguments[1:]))


def low_bytes(image: Any, raw_mode: str) -> Image.Image:
    """Return another image of the same file, of which Pillow will read the low bytes of 16 bits. Neither is loaded."""
    other: Any = type(image)(io.BytesIO(image.fp.getvalue()), "")
    _read_as(other, raw_mode)
    return cast(Image.Image, other)


def _jpeg(image: Any, color: Color) -> Layout:
    return Layout(1 if image.mode == "L" else 3, LOADED, _jpeg_inks if image.mode == "CMYK" else pillow_colors)


def _jpeg_inks(strip: Image.Image, channels: int) -> np.ndarray:
    """Pillow inverts the values of the file, even without Adobe's marker. OpenCV does not."""
    inks = 255 - np.asarray(strip).astype(np.int32)
    black = inks[..., 3:]
    return (black - (((255 - inks[..., :3]) * black) >> 8)).astype(np.uint8)


def _png(image: Any, color: Color) -> Layout:
    raw_mode, channels = _raw_mode(image), _alpha_channels(image)
    wide = raw_mode.endswith(";16B")
    if color is not Color.GRAY or raw_mode == "LA;16B" or image.mode not in ("RGB", "RGBA", "P"):
        return Layout(0 if wide else channels, LIBPNG, pillow_colors)
    animated = image.is_animated and not image.default_image
    gamma = SRGB_GAMMA if "srgb" in image.info else round(image.info.get("gamma", 1) * 100_000)
    curved = gamma > 0 and not 95_000 <= gamma <= 105_000  # libpng ignores smaller corrections
    if wide:
        if animated or curved:
            _refuse(image, f"of {'frames' if animated else 'values with gamma'} with 16 bits")
        return Layout(0, LIBPNG_ROUNDED, _png_words, raw_mode[:-1] + "L")
    return Layout(channels, CONVERTED if animated else _linear(gamma) if curved else LIBPNG, pillow_colors)


def _png_words(high: Image.Image, low: Image.Image, channels: int) -> np.ndarray:
    return np.asarray(high).astype(np.uint16) << 8 | np.asarray(low)


def _linear(gamma: int) -> Gray:
    """The luminance of libpng for a file with gamma, in 100000ths: linear values are added. Gray pixels stay."""
    linear, back = (np.floor(255 * (np.arange(256) / 255) ** exponent + 0.5).astype(np.uint8) for exponent in (1e5 / gamma, gamma / 1e5))

    def gray(colors: np.ndarray) -> np.ndarray:
        red = colors[..., 0]
        equal = (red == colors[..., 1]) & (red == colors[..., 2])
        return np.where(equal, red, back[LIBPNG_ROUNDED(linear[colors[..., :3]])])

    return gray


def _alpha_channels(image: Image.Image) -> int:
    """The channels of PNG and WebP files: alpha is one of them, gray only without alpha."""
    if image.mode in ("1", "L"):
        return 1
    return 4 if image.mode in ("LA", "RGBA") or "transparency" in image.info else 3


def _webp(image: Any, color: Color) -> Layout:
    return Layout(_alpha_channels(image), CONVERTED, pillow_colors)


def _gif(image: Any, color: Color) -> Layout:
    """OpenCV shows the background's color where the first frame is transparent. The last frame decides whether there is alpha."""
    index = image.info.get("transparency")
    if index is None and tuple(image.tile[0].extents) != (0, 0, *image.size):
        _refuse(image, "with a first frame that does not cover it")
    entry, palette = image.info.get("background"), image.global_palette
    if entry is None and image.mode == "L":
        _refuse(image, "without palette")
    shades = palette.palette if palette else bytes(value // 3 for value in range(768))  # Pillow drops a palette of gray values in order
    background = bytes(3) if entry is None else shades[3 * entry : 3 * entry + 3]  # None: only the frame has a palette

    def colors(strip: Image.Image, channels: int) -> np.ndarray:
        opaque = np.asarray(strip.convert("RGB"))
        if index is None:
            return opaque
        shown = np.asarray(strip)[..., None] != index
        return np.dstack([np.where(shown, opaque, np.frombuffer(background, np.uint8)), shown * np.uint8(255)])

    if color is Color.UNCHANGED and image.is_animated:  # this looks at all frames
        _refuse(image, "with several frames", fix="set force_color: true or force_gray: true in transform_param, or convert the image to a PNG file")
    return Layout(3 if index is None else 4, CONVERTED, colors)


def _jpeg2000(image: Any, color: Color) -> Layout:
    content = image.fp.getvalue()
    start = content.find(b"\xff\x4f\xff\x51")  # the begin of the code stream; byte 42 has the sign and the bits less 1 of the first component
    bits = 1 + content[start + 42]
    box = content.find(b"colr\1", 0, start)  # of the colors, if numbered
    space = content[box + 10] if box >= 0 else 0
    if space not in (0, 16, 17):  # RGB and gray
        _refuse(image, f"with the color space {space}")
    if image.mode == "I;16" and bits == 16:
        return Layout(0, CONVERTED, pillow_colors)
    if image.mode not in ("L", "LA", "RGB", "RGBA") or bits != 8:
        _refuse(image, f"of type {image.mode} with {bits} bits")
    return Layout({"L": 1, "LA": 0, "RGB": 3}.get(image.mode, 4), CONVERTED, pillow_colors)


def _bmp(image: Any, color: Color) -> Layout:
    head = image.fp.getvalue()[:34]  # without a copy of the file, which getbuffer would make
    size = int.from_bytes(head[14:18], "little")
    bits = head[24] if size == 12 else head[28]
    if image.mode in ("1", "L") and bits != (1 if image.mode == "1" else 8):
        _refuse(image, f"with a gray palette and {bits} bits")  # Pillow reads it with 1 or 8 bits
    if size == 12:  # OpenCV takes files of OS/2 for gray ones
        return Layout(1, LOADED, pillow_colors)
    if image.mode == "P":
        entries = np.frombuffer(bytes(image.palette.palette), np.uint8).reshape(-1, 4)[:, :3]
        return Layout(1 if (entries == entries[:, :1]).all() else 3, LOADED, pillow_colors)
    if bits == 16:
        used = np.array([0xF8, 0xFC if _raw_mode(image) == "BGR;16" else 0xF8, 0xF8], np.uint8)  # OpenCV leaves the other bits 0
        return Layout(3, LOADED, lambda strip, channels: np.asarray(strip) & used)
    if bits == 32 and head[30] == 3 and size < 56:  # OpenCV ignores these masks, and the fourth byte is alpha
        image._mode = "RGBA"
        _read_as(image, "BGRA")
        return Layout(4, LOADED, pillow_colors)
    if bits == 32 and head[30] == 3:
        return Layout(4, _in_floats, pillow_colors)
    return Layout(1 if image.mode in ("1", "L") else 3, LOADED, pillow_colors)


def _ppm(image: Any, color: Color) -> Layout:
    """OpenCV scales only values that are written as digits. Of 16 bits it takes the high byte."""
    codec, largest = image.tile[0].codec_name, image.tile[0].args[-1]
    if image.mode == "F":
        _refuse(image, "of floats")
    most = 65535 if image.mode == "I" else 255
    if codec == "ppm_plain" and image.mode != "1" and largest != most:
        name = "PPM file of text (P3)" if image.mode == "RGB" else "PGM file of text (P2)"
        fix = f"convert the image to a PNG file with 8 bits a channel, or write its values for the maximum {most}"
        raise Error(f"it is a {name} whose maximum is {largest}: its values would differ from OpenCV's, which scales those of text files", fix=fix)
    if codec == "ppm":
        raw_mode = {"I": "I;16B", "RGB": "RGB;16B" if largest > 255 else "RGB"}.get(image.mode, "L")
        image.tile = [image.tile[0]._replace(codec_name="raw", args=raw_mode)]
    wide = image.mode == "I" or _raw_mode(image) == "RGB;16B"
    return Layout(0 if wide else 3 if image.mode == "RGB" else 1, LOADED, pillow_colors)


def _sun(image: Any, color: Color) -> Layout:
    """OpenCV shows other kinds black or with shifted bytes."""
    if image.tile[0].codec_name != "raw" or _raw_mode(image) != "BGR":
        _refuse(image, f"of type {image.mode}")
    return Layout(3, LOADED, pillow_colors)


def _tiff(image: Any, color: Color) -> Layout:
    """libtiff makes 8 bits of the colors."""
    tags = image.tag_v2
    bits, extra, contiguous = tags.get(258, (1,)), tags.get(338, ()), tags.get(284, 1) == 1
    unsigned = set(tags.get(339, (1,))) == {1}
    if unsigned and image.mode in ("1", "L", "LA"):
        return Layout(1, LOADED, pillow_colors)
    if unsigned and image.mode in ("I;16", "I;16B") and bits == (16,) and tags[262] == 1:
        return Layout(0, LOADED, pillow_colors)
    if image.mode in ("P", "PA") and max(tags[320]) > 255:  # libtiff takes smaller values for those of 8 bits
        return Layout(1 if bits == (1,) else 3, LOADED, pillow_colors)
    if image.mode == "CMYK" and bits[0] == 8:
        return Layout(4, LOADED, _tiff_inks)
    if image.mode in ("RGB", "RGBA") and bits[0] == 16 and contiguous and not extra:
        raw_mode = _raw_mode(image)
        return Layout(0, LOADED, _tiff_words, raw_mode[:-1] + ("L" if raw_mode[-1] == _HIGH_FIRST else "B"))
    if image.mode in ("RGB", "RGBA") and bits == (8, 8, 8):
        return Layout(3, LOADED, pillow_colors)
    if image.mode in ("RGB", "RGBA") and bits == (8, 8, 8, 8) and contiguous and extra in ((), (0,), (1,), (2,)):
        image._mode = "RGBA"
        _read_as(image, "RGBA")  # Pillow would drop alpha, or divide by it
        return Layout(4, LOADED, _premultiplied if extra == (2,) else pillow_colors)
    return _refuse(image, f"of type {image.mode} with {bits[0]} bits")


def _tiff_inks(strip: Image.Image, channels: int) -> np.ndarray:
    inks = 255 - np.asarray(strip).astype(np.uint32)
    return (inks[..., :3] * inks[..., 3:] // 255).astype(np.uint8)


def _tiff_words(high: Image.Image, low: Image.Image, channels: int) -> np.ndarray:
    words = np.asarray(high).astype(np.uint32) << 8 | np.asarray(low)
    return ((words * 255 + 32767) // 65535).astype(np.uint8)


def _premultiplied(strip: Image.Image, channels: int) -> np.ndarray:
    colors = np.asarray(strip).astype(np.uint32)
    alpha = colors[..., 3:]
    return np.concatenate([(colors[..., :3] * alpha + 127) // 255, alpha], 2).astype(np.uint8)


HEIF = "HEIF"  # of a plugin that a user has installed (heif.py)
SRGB_GAMMA = 45455  # in 100000ths
_HIGH_FIRST = "N" if sys.byteorder == "big" else "B"  # the raw modes of 16 bits end with L, B, or N for this machine's order
_FORMATS: dict[str, Callable[[Any, Color], Layout]] = {
    "JPEG": _jpeg, "MPO": _jpeg, "PNG": _png, "WEBP": _webp, "GIF": _gif, "JPEG2000": _jpeg2000, "BMP": _bmp, "PPM": _ppm, "SUN": _sun, "TIFF": _tiff,
    "AVIF": _webp, HEIF: _webp,
}  # fmt: skip
# MPO is a kind of JPEG. Pillow has AVIF from 11.3 on, where it was built with libavif.
FORMATS = tuple(name for name in _FORMATS if name not in ("MPO", HEIF) and (name != "AVIF" or ("avif" in features.modules and features.check("avif"))))
