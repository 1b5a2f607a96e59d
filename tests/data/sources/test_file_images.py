"""The source of ImageData: order, sizes, errors. (test_golden.py compares its pixels with Caffe.)"""
from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.data.changes.resample import resize
from ocaffe.data.changes.transform import Transform
from ocaffe.data.sources.file_images import ListSource
from ocaffe.data.stagers import stager
from tests.data.pictures import failure, listing, same_batches, save
from tests.data.small_databases import image, samples

pytestmark = pytest.mark.quick

SIZES = [(3, 9, 7), (3, 6, 8), (3, 5, 5), (3, 9, 7), (3, 20, 20)]


@pytest.fixture
def alike(tmp_path: pathlib.Path) -> str:
    return listing(tmp_path, [f"{save(tmp_path / f'im {n}.png', image(n))} {n}" for n in range(7)])


@pytest.fixture
def odd(tmp_path: pathlib.Path) -> str:
    return listing(tmp_path, [f"{save(tmp_path / f'im{n}.png', image(n, size))} {n}" for n, size in enumerate(SIZES)])


def source(path: str, batch: int, *, train: bool = True, workers: int = 1, transform: Any = (), **data: Any) -> ListSource:
    param = proto.ImageDataParameter(**{"source": path, "batch_size": batch, **data})
    made = ListSource(param, Transform(proto.TransformationParameter(**dict(transform)), train), True, workers=workers)
    made.key = (1, 2)
    return made


def test_names_may_have_spaces_and_a_root(tmp_path: pathlib.Path) -> None:
    save(tmp_path / "a folder" / "a file.png", image(3))
    path = listing(tmp_path, ["", "a file.png -4", "   "])
    images, labels = samples(source(path, 2, root_folder=f"{tmp_path}/a folder/"), 0)
    assert (images == image(3)).all() and labels.tolist() == [-4, -4]


def test_shuffle_and_rand_skip(alike: str) -> None:
    order = np.concatenate([samples(source(alike, 7, shuffle=True), index)[1] for index in range(3)]).reshape(3, 7)
    assert (np.sort(order, 1) == np.arange(7)).all() and len({tuple(epoch) for epoch in order}) == 3
    starts = set()
    for seed in range(40):
        made = source(alike, 2, rand_skip=4)
        made.key = (seed, 0)
        labels = samples(made, 0)[1]
        assert labels[1] == (labels[0] + 1) % 7
        starts.add(int(labels[0]))
    assert starts == {0, 1, 2, 3}


@pytest.mark.parametrize("data", [{}, {"new_height": 11, "new_width": 6}])
def test_batches_depend_on_their_number(odd: str, data: Any) -> None:
    same_batches(lambda workers: source(odd, 3, workers=workers, shuffle=True, transform={"crop_size": 5, "mirror": True}, **data))


def test_resized_images_are_cropped_whole(odd: str) -> None:
    made = source(odd, 5, train=False, transform={"crop_size": 4}, new_height=10, new_width=8)
    images, _ = samples(made, 0)
    for number, got in enumerate(images):
        assert (got == resize(image(number, SIZES[number]), 10, 8)[:, 3:7, 2:6]).all()


def test_errors(alike: str, odd: str, tmp_path: pathlib.Path) -> None:
    assert failure(lambda: source(alike, 0)).fact == "batch_size is 0"
    assert "new_height is 4 and new_width 0" in failure(lambda: source(alike, 1, new_height=4)).fact
    assert "field 'short_side'" in failure(lambda: source(alike, 1, short_side=4)).fact
    error = failure(lambda: samples(source(odd, 2), 0))
    expected = f"{tmp_path}/im1.png: the image is 3 x 6 x 8, the first one of its batch is 3 x 9 x 7 ({tmp_path}/im0.png)"
    assert error.fact == f"{odd}, line 2: {expected}"
    assert "new_height and new_width" in str(error.fix)
    assert "crop of 6 x 6 is larger" in failure(lambda: samples(source(odd, 5, transform={"crop_size": 6}), 0)).fact
    assert "cannot be read" in failure(lambda: source(str(tmp_path / "none"), 1)).fact
    assert "cannot be read: no file can have this name: embedded null byte" in failure(lambda: source("a\0b", 1)).fact
    for lines, fact in (
        (["", " "], "names no image"),
        (["im0.png"], "line 1: 'im0.png' has no label"),
        (["im0.png 1", "im1.png x"], "line 2: the label 'x' is not a whole number"),
        (["im0.png 1", f"im1.png {1 << 31}"], "line 2: the label '2147483648' is not a whole number of 32 bits"),
        (["a\0b.png 1"], "a\0b.png: it cannot be read: no file can have this name: embedded null byte"),
    ):
        assert fact in failure(lambda lines=lines: source(listing(tmp_path, lines), 1)).fact  # type: ignore[misc]


def test_unreadable_images_are_named(alike: str, tmp_path: pathlib.Path) -> None:
    good = pathlib.Path(save(tmp_path / "big.png", image(1, (3, 60, 60)))).read_bytes()
    (tmp_path / "cut.png").write_bytes(good[: len(good) // 2])
    (tmp_path / "text.png").write_text("no image")
    for name, fact in (("none.png", "it cannot be read: No such file"), ("cut.png", "it cannot be decoded"), ("text.png", "it is not an image file of")):
        path = listing(tmp_path, [f"{tmp_path}/big.png 0", "", f"{tmp_path}/{name} 1"])
        for workers in (1, 3):
            error = failure(lambda path=path, workers=workers: samples(source(path, 2, workers=workers), 0))  # type: ignore[misc]
            assert error.fact.startswith(f"{path}, line 3: {tmp_path}/{name}: {fact}") and error.fix


def resident() -> int:
    """Return the bytes of memory that this process uses."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_few_images_are_held_at_full_size(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 images of 2 megapixels, resized to 8 x 8, take the memory of one image per worker, not 200 MB."""
    file, held, count = tmp_path / "large.png", list[int](), 24
    Image.new("RGB", (2000, 1000), (1, 2, 3)).save(file)
    made = source(listing(tmp_path, [f"{file} {number}" for number in range(count)]), count, workers=2, new_height=8, new_width=8)

    def sampled(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
        held.append(resident())
        return resize(pixels, height, width)

    monkeypatch.setattr(stager, "resize", sampled)
    before = resident()
    images, _ = samples(made, 0)
    assert (images == np.array([3, 2, 1])[:, None, None]).all()
    assert len(held) == count and max(held) - before < 100e6
    made.close()
