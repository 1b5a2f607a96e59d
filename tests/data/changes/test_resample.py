"""ocaffe/data/changes/resample.py, compared with the definitions of the methods in float64, and with the values of OpenCV (tests/data/changes/resized.py)."""
from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from ocaffe.data.changes.resample import Interpolation, resize
from tests.data.changes import resized

pytestmark = pytest.mark.quick

SIZES = [((20, 30), (16, 12)), ((15, 15), (31, 12)), ((7, 9), (40, 41)), ((40, 60), (7, 11)), ((1, 5), (3, 2)), ((8, 1), (5, 4)), ((30, 20), (10, 5))]


def picture(size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (3, *size), np.uint8)


def cubic(x: float, a: float = -0.75) -> float:
    x = abs(x)
    return (a + 2) * x**3 - (a + 3) * x**2 + 1 if x <= 1 else a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0


def lanczos(x: float) -> float:
    return float(np.sinc(x) * np.sinc(x / 4)) if abs(x) < 4 else 0


KERNELS: dict[Interpolation, tuple[int, Callable[[float], float]]] = {
    Interpolation.LINEAR: (1, lambda x: max(0.0, 1 - abs(x))),
    Interpolation.CUBIC: (2, cubic),
    Interpolation.LANCZOS4: (4, lanczos),
}


def matrix(method: Interpolation, old: int, new: int) -> np.ndarray:
    """Return new x old weights of a convolution at the centres of the new pixels. Edge pixels are repeated outside the image."""
    radius, kernel = KERNELS[method]
    weights = np.zeros((new, old))
    for out in range(new):
        at = (out + 0.5) * old / new - 0.5
        taps = range(math.floor(at) - radius + 1, math.floor(at) + radius + 1)
        values = [kernel(at - tap) for tap in taps]
        for tap, value in zip(taps, values):
            weights[out, min(max(tap, 0), old - 1)] += value / sum(values)
    return weights


def covered(old: int, new: int) -> np.ndarray:
    """Return new x old: the share of a new pixel that each old pixel covers."""
    begin = np.arange(new)[:, None] * old / new
    return np.clip(np.minimum(begin + old / new, np.arange(old) + 1) - np.maximum(begin, np.arange(old)), 0, None) * new / old


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("method", KERNELS)
def test_convolutions(method: Interpolation, old: tuple[int, int], new: tuple[int, int]) -> None:
    image = picture(old)
    expected = np.einsum("yh,xw,chw->cyx", matrix(method, old[0], new[0]), matrix(method, old[1], new[1]), image)
    assert np.abs(resize(image, *new, method) - np.clip(expected, 0, 255)).max() < 1.2  # the weights have 11 bits


@pytest.mark.parametrize(("old", "new"), [size for size in SIZES if size[0][0] >= size[1][0] and size[0][1] >= size[1][1]])
def test_area_is_the_mean_of_what_a_pixel_covers(old: tuple[int, int], new: tuple[int, int]) -> None:
    image = picture(old)
    expected = np.einsum("yh,xw,chw->cyx", covered(old[0], new[0]), covered(old[1], new[1]), image)
    assert np.abs(resize(image, *new, Interpolation.AREA) - expected).max() < 0.51


def test_area_enlarges_with_flat_pixels() -> None:
    image = picture((5, 6))
    assert (resize(image, 15, 18, Interpolation.AREA) == image.repeat(3, 1).repeat(3, 2)).all()


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_nearest_takes_pixels(old: tuple[int, int], new: tuple[int, int]) -> None:
    image = picture(old)
    rows, columns = (np.arange(b) * a // b for a, b in zip(old, new))
    assert (resize(image, *new, Interpolation.NEAREST) == image[:, rows][:, :, columns]).all()


def test_linear_halves_by_means() -> None:
    image = picture((10, 14))
    quads = image.reshape(3, 5, 2, 7, 2).astype(int).sum((2, 4))
    assert (resize(image, 5, 7) == (quads + 2) // 4).all() and (resize(image, 5, 7, Interpolation.AREA) == (quads + 2) // 4).all()


@pytest.mark.parametrize("method", Interpolation)
def test_a_plain_image_stays_plain(method: Interpolation) -> None:
    for level in (0, 1, 127, 255):
        for old, new in SIZES:
            assert (resize(np.full((1, *old), level, np.uint8), *new, method) == level).all()
    image = picture((6, 7))
    assert resize(image, 6, 7, method) is image


@pytest.mark.parametrize("method", Interpolation)
def test_values_of_opencv(method: Interpolation) -> None:
    digests = json.loads(resized.DIGESTS.read_text())[method.name]
    assert set(digests) == {case.name for case in resized.CASES}
    wrong = [case.name for case in resized.CASES if resized.digest(resize(resized.picture(case), *case.new, method)) != digests[case.name]]
    assert not wrong
