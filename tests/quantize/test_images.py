"""The calibration images: which of them a step sees."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from ocaffe.quantize.images import Images

pytestmark = pytest.mark.quick


def arrays() -> Iterator[Mapping[str, np.ndarray]]:
    for number in range(8):
        yield {"data": np.full((32, 1), number)}


def seen(images: Images) -> list[int]:
    return [int(given["data"][0, 0]) for given in images.batches_of_arrays()]


def test_images_behind_others_are_others() -> None:
    images = Images(256, 32, arrays=arrays)
    rest = images.behind(100)
    assert (rest.count, seen(rest)) == (128, [4, 5, 6, 7])
    assert rest.first(64).count == 64


def test_few_images_are_all_used() -> None:
    images = Images(256, 32, arrays=arrays)
    assert images.behind(128) == images
    assert seen(images) == list(range(8))
