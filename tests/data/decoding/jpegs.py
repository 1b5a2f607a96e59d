"""JPEG files of many kinds in jpegs.zip, and digests of OpenCV's values for them in opencv_jpegs.json, in color and in gray.

`python -m tests.data.decoding.jpegs` makes the files and writes both. It needs the extra `test-opencv4`; use an environment of its own for it, because OpenCV's
package brings libraries that others bring too. The tests only read the files, so they do not depend on the version of an encoder.
"""
from __future__ import annotations

import functools
import hashlib
import io
import itertools
import json
import pathlib
import random
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

FILES = pathlib.Path(__file__).with_name("jpegs.zip")
DIGESTS = pathlib.Path(__file__).with_name("opencv_jpegs.json")
MODES = ("COLOR", "GRAY")
_SIZES = [(1, 1), (3, 2), (7, 5), (8, 8), (9, 16), (15, 17), (16, 31), (17, 33), (33, 9), (24, 40)]  # height, width
_SAMPLING = ("444", "422", "420", "440", "411")


@functools.cache
def files() -> dict[str, bytes]:
    with zipfile.ZipFile(FILES) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@functools.cache
def digests() -> dict[str, dict[str, str]]:
    """Return by file and mode the digest of OpenCV's values."""
    return dict(json.loads(DIGESTS.read_text()))


def digest(image: np.ndarray) -> str:
    """`image`: height x width, or height x width x 3 (blue, green, red), uint8."""
    return f"{'x'.join(map(str, image.shape))} {hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()[:16]}"


def picture(name: str, height: int, width: int) -> np.ndarray:
    """Return height x width x 3, uint8: gradients with noise and an edge, so that errors of colors and of their interpolation show."""
    rng = np.random.default_rng(random.Random(name).getrandbits(64))
    ramp = np.add.outer(np.arange(height) * 5.0, np.arange(width) * 3.0)
    image = np.stack([ramp, ramp[::-1], 255 - ramp], 2) + rng.normal(0, 25, (height, width, 3))
    image[height // 2 :, width // 3 :] = 255 - image[height // 2 :, width // 3 :]
    return np.clip(image, 0, 255).astype(np.uint8)


def by_opencv(cv2: Any) -> Iterator[tuple[str, bytes]]:
    """Sampling of colors, sizes, progressive files and restart markers, as libjpeg-turbo writes them."""
    for sampling, (height, width) in itertools.product(_SAMPLING, _SIZES):
        for kind, progressive, restart in (("baseline", 0, 0), ("progressive", 1, 0), ("restart", 0, 1)):
            name = f"{sampling} {height}x{width} {kind}"
            factor = getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}")
            options = [
                cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive, cv2.IMWRITE_JPEG_RST_INTERVAL, restart,
                cv2.IMWRITE_JPEG_QUALITY, random.Random(name).choice((30, 75, 95)),
            ]  # fmt: skip
            yield name, cv2.imencode(".jpg", picture(name, height, width), options)[1].tobytes()


def by_pillow() -> Iterator[tuple[str, bytes]]:
    """Gray files, EXIF orientations, tables of several qualities, and color spaces that are written without conversion."""

    def saved(name: str, mode: str = "RGB", size: tuple[int, int] = (17, 23), **options: Any) -> tuple[str, bytes]:
        out = io.BytesIO()
        Image.fromarray(picture(name, *size)).convert(mode).save(out, "JPEG", **options)
        return name, out.getvalue()

    for size, progressive in itertools.product(_SIZES, (False, True)):
        yield saved(f"gray {size[0]}x{size[1]}{' progressive' * progressive}", "L", size, progressive=progressive)
    for orientation, mode in itertools.product(range(10), ("RGB", "L")):
        exif = Image.Exif()
        exif[0x0112] = orientation
        yield saved(f"orientation {orientation} {mode}", mode, exif=exif)
    for quality in (1, 5, 20, 50, 90, 100):
        yield saved(f"quality {quality}", quality=quality)
    for size in _SIZES[2:7]:
        yield saved(f"rgb {size[0]}x{size[1]}", size=size, keep_rgb=True, subsampling=0)
        yield saved(f"optimized {size[0]}x{size[1]}", size=size, optimize=True)
        yield saved(f"cmyk {size[0]}x{size[1]}", "CMYK", size)
    for blocks in (1, 2, 5):
        yield saved(f"restart blocks {blocks}", size=(40, 50), restart_marker_blocks=blocks, progressive=blocks == 5)
    yield saved("comment and dpi", comment=b"a comment", dpi=(72, 300))


def main() -> None:
    import cv2

    made = dict(itertools.chain(by_opencv(cv2), by_pillow()))
    flags = {"COLOR": cv2.IMREAD_COLOR, "GRAY": cv2.IMREAD_GRAYSCALE}
    found = {name: {mode: digest(cv2.imdecode(np.frombuffer(data, np.uint8), flags[mode])) for mode in MODES} for name, data in made.items()}
    with zipfile.ZipFile(FILES, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in made.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(made)} files, {FILES.stat().st_size:,} bytes, by OpenCV {cv2.__version__}")


if __name__ == "__main__":
    main()
