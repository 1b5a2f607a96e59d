"""Image files of all kinds that OpenCV reads, made by hand or by Pillow: `KINDS[name](rng, width, height)` is a file with random pixels.

`python -m tests.data.decoding.image_kinds` writes opencv_values.json, the values that OpenCV gives for a small file of each kind. It needs the extra
`test-opencv4`. Kinds that ocaffe refuses have null there.
"""
from __future__ import annotations

import functools
import io
import json
import pathlib
import random
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from PIL import Image

VALUES = pathlib.Path(__file__).with_name("opencv_values.json")
SIZE = 5, 3  # of the files in opencv_values.json
Rng = random.Random
Kind = Callable[[Rng, int, int], bytes]
PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by color type


def small(name: str) -> bytes:
    """The file of a kind in opencv_values.json."""
    return KINDS[name](random.Random(name), *SIZE)


def palette(rng: Rng, entries: int, kind: str, size: int) -> bytes:
    """Entries of `size` bytes: blue, green, red, and perhaps 0."""
    grays = {"gray": [rng.randrange(256) for _ in range(entries)], "ramp": [255 * i // (entries - 1) for i in range(entries)]}
    colors = [bytes([grays[kind][i]] * 3) if kind in grays else rng.randbytes(3) for i in range(entries)]
    return b"".join(color + bytes(size - 3) for color in colors)


def bmp(
    rng: Rng, width: int, height: int, bits: int, colors: str = "", header: int = 40, masks: Sequence[int] = (), runs: int = 0, down: bool = False
) -> bytes:
    row = (width * bits + 31) // 32 * 4
    body = rng.randbytes(row * height)
    if runs:
        body = b"".join(bytes([width - width // 2, rng.randrange(256), width // 2, rng.randrange(256), 0, 0]) for _ in range(height)) + b"\0\1"
    table = palette(rng, 1 << bits, colors, 3 if header == 12 else 4) if colors else b""
    if header == 12:
        head = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        head = struct.pack("<IiiHHIIiiII", header, width, -height if down else height, 1, bits, 3 if masks else runs, len(body), 0, 0, 0, 0)
        head += struct.pack(f"<{len(masks)}I", *masks)
        head += bytes(max(14 + header - 14 - len(head), 0))
    start = 14 + len(head) + len(table)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + head + table + body


def pnm(rng: Rng, width: int, height: int, number: int, largest: int = 1) -> bytes:
    head = f"P{number}\n# comment\n{width} {height}\n" + (f"{largest}\n" if number not in (1, 4) else "")
    values = [rng.randint(0, largest) for _ in range(width * height * (3 if number in (3, 6) else 1))]
    if number < 4:
        return f"{head}{' '.join(map(str, values))}\n".encode()
    body = rng.randbytes((width + 7) // 8 * height) if number == 4 else struct.pack(f">{len(values)}{'H' if largest > 255 else 'B'}", *values)
    return head.encode() + body


def pfm(rng: Rng, width: int, height: int) -> bytes:
    return f"Pf\n{width} {height}\n-1.0\n".encode() + struct.pack(f"<{width * height}f", *(rng.random() for _ in range(width * height)))


def png(rng: Rng, width: int, height: int, color: int, bits: int, gamma: int = 0, srgb: bool = False, transparent: bool = False, exif: int = 0) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    row = (width * PNG_CHANNELS[color] * bits + 7) // 8
    first = rng.randbytes(row)
    rows = [b"\0" + first, *(bytes([rng.randrange(5)]) + rng.randbytes(row) for _ in range(height - 1))]
    key = {0: struct.pack(">H", first[0] >> max(8 - bits, 0)), 2: bytes(6 - len(first[:3]) * 2) + b"".join(bytes([0, value]) for value in first[:3])}
    return b"".join((
        b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)),
        chunk(b"sRGB", b"\0") if srgb else b"", chunk(b"gAMA", struct.pack(">I", gamma)) if gamma else b"",
        chunk(b"eXIf", orientation(exif)) if exif else b"", chunk(b"PLTE", rng.randbytes(3 << bits)) if color == 3 else b"",
        chunk(b"tRNS", key.get(color, b"\0\x64")) if transparent else b"",
        chunk(b"IDAT", zlib.compress(b"".join(rows))), chunk(b"IEND", b""),
    ))  # fmt: skip


def orientation(value: int) -> bytes:
    """EXIF data."""
    return b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x112, 3, 1, value, 0, 0)


def tiff(
    rng: Rng, width: int, height: int, photometric: int, bits: int, samples: int = 1, extra: int | None = None, order: str = "<", unit: int = 256,
    planes: int = 1, sample_format: int = 1, turned: int = 1,
) -> bytes:  # fmt: skip
    """`unit`: factor of palette entries of 8 bits."""
    body = rng.randbytes((width * bits * samples + 7) // 8 * height)
    tags: dict[int, tuple[str, list[int]]] = {
        256: ("I", [width]), 257: ("I", [height]), 258: ("H", [bits] * samples), 259: ("H", [1]), 262: ("H", [photometric]), 274: ("H", [turned]),
        277: ("H", [samples]), 278: ("I", [height]), 284: ("H", [planes]), 339: ("H", [sample_format] * samples),
    }  # fmt: skip
    parts = samples if planes == 2 else 1
    tags[279] = "I", [len(body) // parts] * parts
    if extra is not None:
        tags[338] = "H", [extra]
    if photometric == 3:
        tags[320] = "H", [rng.randrange(256) * unit for _ in range(3 << bits)]
    start = 8 + 2 + 12 * (len(tags) + 1) + 4
    sizes = {tag: struct.calcsize(f"{order}{len(values)}{code}") for tag, (code, values) in tags.items()}
    tags[273] = "I", [0] * parts
    sizes[273] = 4 * parts
    data_start = start + sum(size for size in sizes.values() if size > 4)
    tags[273] = "I", [data_start + number * (len(body) // parts) for number in range(parts)]
    entries, more = b"", b""
    for tag, (code, values) in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(values)}{code}", *values)
        place = packed.ljust(4, b"\0")
        if len(packed) > 4:
            place, more = struct.pack(f"{order}I", start + len(more)), more + packed
        entries += struct.pack(f"{order}HHI", tag, 3 if code == "H" else 4, len(values)) + place
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, len(tags))
    return head + entries + bytes(4) + more + body


def gif(
    rng: Rng, width: int, height: int, tables: str = "global", transparent: int | None = None, margin: int = 0, background: int = 1, frames: int = 1
) -> bytes:
    """A file of four colors. `margin`: columns at the left that the frames do not cover."""
    flags = 0x91 if "global" in tables else 0x11
    out = b"GIF89a" + struct.pack("<HHBBB", width, height, flags, background, 0) + (rng.randbytes(12) if "global" in tables else b"")
    for _ in range(frames):
        if transparent is not None:
            out += bytes([0x21, 0xF9, 4, 1, 0, 0, transparent, 0])
        out += b"," + struct.pack("<HHHHB", margin, 0, width - margin, height, 0x81 if "local" in tables else 0)
        out += rng.randbytes(12) if "local" in tables else b""
        codes = [code for _ in range((width - margin) * height) for code in (4, rng.randrange(4))] + [5]  # a cleared table before each pixel: 3 bits a code
        bits = sum(code << 3 * place for place, code in enumerate(codes))
        packed = bits.to_bytes((3 * len(codes) + 7) // 8, "little")
        out += b"\2" + b"".join(bytes([len(packed[i : i + 255])]) + packed[i : i + 255] for i in range(0, len(packed), 255)) + b"\0"
    return out + b";"


def sun(rng: Rng, width: int, height: int, bits: int, version: int = 1) -> bytes:
    row = (width * bits + 15) // 16 * 2
    return struct.pack(">8I", 0x59A66A95, width, height, bits, row * height, version, 0, 0) + rng.randbytes(row * height)


def by_pillow(rng: Rng, width: int, height: int, kind: str, mode: str, flat: bool = False, frames: int = 1, exif: int = 0, **options: Any) -> bytes:
    """`flat`: one color, which lossy formats keep too."""
    mode_channels = len(mode) if mode != "I;16" else 2
    count = width * height * frames
    pixels = rng.randbytes(mode_channels) * count if flat else rng.randbytes(mode_channels * count)
    step = len(pixels) // frames
    pictures = [Image.frombytes(mode, (width, height), pixels[i : i + step]) for i in range(0, len(pixels), step)]
    if exif:
        options["exif"] = b"Exif\0\0" + orientation(exif)
    if frames > 1:
        options |= {"save_all": True, "append_images": pictures[1:]}
    buffer = io.BytesIO()
    pictures[0].save(buffer, kind, **options)
    return buffer.getvalue()


def jpeg_xmp(rng: Rng, width: int, height: int) -> bytes:
    """An orientation that only XMP has."""
    xmp = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x='adobe:ns:meta/'><tiff:Orientation>6</tiff:Orientation></x:xmpmeta>"
    data = by_pillow(rng, width, height, "JPEG", "RGB", flat=True)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(xmp) + 2) + xmp + data[2:]


def jpeg_inks(rng: Rng, width: int, height: int) -> bytes:
    """CMYK without Adobe's marker."""
    data = by_pillow(rng, width, height, "JPEG", "CMYK", flat=True)
    place = data.find(b"Adobe")
    return data[: place - 4] + data[place + 12 :]


def _kinds() -> Iterator[tuple[str, Kind]]:
    def part(function: Callable[..., bytes], *arguments: Any, **options: Any) -> tuple[str, Kind]:
        name = " ".join([function.__name__.removeprefix("by_"), *map(str, arguments), *(f"{key}={value}" for key, value in options.items())])
        return name, lambda rng, width, height: function(rng, width, height, *arguments, **options)

    for bits in (1, 4, 8):
        yield from (part(bmp, bits, colors, **{"header": 12} if old else {}) for colors in ("color", "gray", "ramp") for old in (False, True))
    yield from (part(bmp, 4, "color", runs=2), part(bmp, 8, "color", runs=1), part(bmp, 8, "ramp", runs=1))
    yield from (part(bmp, 16), part(bmp, 16, masks=(0xF800, 0x7E0, 0x1F)), part(bmp, 16, masks=(0x7C00, 0x3E0, 0x1F)))
    yield from (part(bmp, 24), part(bmp, 24, down=True), part(bmp, 24, header=12), part(bmp, 32), part(bmp, 32, header=124))
    for masks in ((0xFF0000, 0xFF00, 0xFF, 0xFF000000), (0xFF, 0xFF00, 0xFF0000, 0xFF000000), (0xFF000000, 0xFF0000, 0xFF00, 0)):
        yield from (part(bmp, 32, header=header, masks=masks[: 3 if header == 40 else 4]) for header in (40, 52, 56, 108))
    yield from (part(pnm, number) for number in (1, 4))
    yield from (part(pnm, number, largest) for number in (2, 3, 5, 6) for largest in (1, 100, 255, 256, 1000, 65535))
    yield part(pfm)
    for color, depths in ((0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (1, 2, 4, 8)), (4, (8, 16)), (6, (8, 16))):
        for bits in depths:
            yield from (part(png, color, bits), part(png, color, bits, gamma=45455), part(png, color, bits, srgb=True))
            if color in (0, 2, 3):
                yield part(png, color, bits, transparent=True)
    yield from (part(png, 2, 8, gamma=gamma) for gamma in (55555, 97000, 100000, 220000))
    yield from (part(png, 2, 8, exif=turned) for turned in range(1, 10))
    yield part(png, 2, 8, gamma=55555, srgb=True)
    for photometric, bits in ((0, 1), (1, 1), (0, 8), (1, 8), (0, 16), (1, 16), (1, 12), (1, 32), (3, 1), (3, 4), (3, 8)):
        yield from (part(tiff, photometric, bits), part(tiff, photometric, bits, order=">"))
    yield from (part(tiff, 3, bits, unit=1) for bits in (1, 4, 8))
    for bits in (8, 16):
        yield from (part(tiff, photometric, bits, 3, order=order) for photometric in (2, 6, 8) for order in "<>")
        yield from (part(tiff, 2, bits, 4, extra=extra, order=order) for extra in (None, 0, 1, 2) for order in "<>")
        yield from (part(tiff, 1, bits, 2, extra=extra) for extra in (0, 1, 2))
        yield from (part(tiff, 5, bits, 4), part(tiff, 2, bits, 3, planes=2), part(tiff, 2, bits, 4, extra=1, planes=2))
        yield from (part(tiff, 1, bits, sample_format=2), part(tiff, 2, bits, 3, turned=6), part(tiff, 2, bits, 3, turned=3))
    for tables in ("global", "local", "global and local", "no"):
        for transparent in (None, 2):
            yield from (part(gif, tables, transparent, margin, background=1 if "global" in tables else 0) for margin in (0, 1))
    yield from (part(gif, frames=2), part(gif, frames=2, transparent=0))
    yield from (part(sun, bits, version) for bits in (1, 8, 24, 32) for version in (1, 3))
    yield from (part(by_pillow, "JPEG", mode, flat=True, quality=100) for mode in ("L", "RGB", "CMYK"))
    yield from (part(by_pillow, "JPEG", "RGB", flat=True, exif=turned) for turned in range(1, 10))
    yield from (part(by_pillow, "JPEG2000", mode) for mode in ("L", "LA", "RGB", "RGBA", "I;16", "CMYK"))
    yield from (part(by_pillow, "WEBP", mode, lossless=True, exact=True) for mode in ("RGB", "RGBA"))
    yield from (part(by_pillow, "WEBP", "RGB", lossless=True, exif=turned) for turned in range(1, 9))
    yield from (part(by_pillow, kind, "RGB", frames=2, lossless=True) for kind in ("PNG", "WEBP"))
    yield from (part(by_pillow, "TIFF", mode, compression="tiff_lzw") for mode in ("L", "RGB", "RGBA", "CMYK", "I;16"))
    yield from (part(by_pillow, kind, mode) for kind, mode in (("BMP", "RGBA"), ("DIB", "RGB"), ("GIF", "L")))
    yield from (part(jpeg_xmp), part(jpeg_inks))


KINDS: dict[str, Kind] = dict(_kinds())


@functools.cache
def values() -> dict[str, dict[str, Any]]:
    """By kind and flag: channels x height x width, or None where ocaffe refuses the file."""
    return dict(json.loads(VALUES.read_text()))


def main() -> None:
    import cv2
    import numpy as np

    from ocaffe.data.decoding.decode import Color, open_image, planes
    from ocaffe.errors import Error

    found: dict[str, dict[str, Any]] = {}
    warnings.simplefilter("ignore")
    for name in KINDS:
        data, row = small(name), {}
        for color in Color:
            theirs: Any = cv2.imdecode(np.frombuffer(data, np.uint8), color.value)
            try:
                planes(open_image(data), color)
            except Error:
                row[color.name] = None
                continue
            if theirs is None or theirs.dtype != np.uint8:
                print(f"{name}, {color.name}: only ocaffe reads it")
                continue
            row[color.name] = (theirs[None] if theirs.ndim == 2 else theirs.transpose(2, 0, 1)).tolist()
        found[name] = row
    VALUES.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in found.items()) + "\n}\n")


if __name__ == "__main__":
    main()
