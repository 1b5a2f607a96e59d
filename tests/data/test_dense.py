"""The source of DenseImageData: images and labels stay together."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.dense import DenseImageSource
from ocaffe.data.resample import Interpolation, resize
from ocaffe.data.transform import Transform
from tests.data.databases import image
from tests.data.pictures import block_of, failure, listing, same_batches, save


@pytest.fixture
def pairs(tmp_path: pathlib.Path) -> str:
    """Write five gray images whose labels are the images themselves."""
    lines = []
    for n in range(5):
        pixels = image(n, (1, 12, 10))
        lines.append(f"{save(tmp_path / f'i{n}.png', pixels)} {save(tmp_path / f'l{n}.png', pixels)}")
    return listing(tmp_path, lines)


def source(path: str, batch: int, *, train: bool = True, workers: int = 1, transform: Any = (), **data: Any) -> DenseImageSource:
    param = proto.DenseImageDataParameter(**{"source": path, "batch_size": batch, **data})
    made = DenseImageSource(param, Transform(proto.TransformationParameter(**dict(transform)), train), True, workers=workers)
    made.key = (1, 2)
    return made


def parts(made: DenseImageSource, index: int) -> list[np.ndarray]:
    """Return the staged images and labels of a batch."""
    block = block_of(made, index)
    result, begin = [], 0
    for layout in made.layouts(made.fill(index, block).shapes[0]):
        result.append(layout.pixels(block[begin : begin + layout.nbytes]).reshape(made.batch, layout.channels, layout.height, layout.width))
        begin += layout.nbytes
    return result


@pytest.mark.parametrize("transform", [{}, {"crop_size": 5, "mirror": True}])
def test_labels_are_cropped_like_the_image(pairs: str, transform: Any) -> None:
    made = source(pairs, 4, is_color=False, shuffle=True, transform=transform)
    seen = set()
    for index in range(3):
        images, labels = parts(made, index)
        assert (images == labels).all() and images.shape[2:] == ((5, 5) if transform else (12, 10))
        seen |= {each.tobytes() for each in images}
    assert len(seen) > 5 if transform else len(seen) == 5


def test_labels_are_resized_to_the_nearest(pairs: str) -> None:
    images, labels = parts(source(pairs, 5, new_height=7, new_width=16), 0)
    for n in range(5):
        assert (images[n] == resize(image(n, (1, 12, 10)), 7, 16)).all() and images.shape[1] == 3
        assert (labels[n] == resize(image(n, (1, 12, 10)), 7, 16, Interpolation.NEAREST)).all()


def test_batches_depend_on_their_number(pairs: str) -> None:
    same_batches(lambda workers: source(pairs, 3, workers=workers, shuffle=True, rand_skip=3, transform={"crop_size": 6, "mirror": True}))


def test_sizes_may_change_in_batches_of_one(pairs: str, tmp_path: pathlib.Path) -> None:
    odd = save(tmp_path / "odd.png", image(9, (1, 4, 6)))
    path = listing(tmp_path, [f"{tmp_path}/i0.png {tmp_path}/l0.png", f"{odd} {odd}"])
    made = source(path, 1)
    assert [made.fill(n, np.empty(0, np.uint8)).shapes for n in range(2)] == [((1, 3, 12, 10), (1, 1, 12, 10)), ((1, 3, 4, 6), (1, 1, 4, 6))]
    error = failure(lambda: block_of(source(path, 2), 0))
    assert f"line 2: {odd}: the image is 3 x 4 x 6, the first one of its batch is 3 x 12 x 10" in error.fact


def test_errors(pairs: str, tmp_path: pathlib.Path) -> None:
    assert failure(lambda: source(pairs, 0)).fact == "batch_size is 0"
    assert "field 'crop_width'" in failure(lambda: source(pairs, 1, crop_width=4)).fact
    assert "new_height is 0 and new_width 5" in failure(lambda: source(pairs, 1, new_width=5)).fact
    assert "the crop of 13 x 13 is larger than the image of 12 x 10" in failure(lambda: source(pairs, 1, transform={"crop_size": 13})).fact
    small = save(tmp_path / "small.png", image(1, (1, 3, 3)))
    for lines, fact in (
        ([f"{tmp_path}/i0.png"], "line 1: 1 words"),
        ([f"{tmp_path}/i0.png {small}"], f"line 1: {small}: the labels are 3 x 3, the image 12 x 10"),
        ([f"{tmp_path}/i0.png {tmp_path}/none.png"], f"line 1: {tmp_path}/none.png: it cannot be read"),
    ):
        error = failure(lambda lines=lines: source(listing(tmp_path, lines), 1))  # type: ignore[misc]
        assert fact in error.fact and error.fix
