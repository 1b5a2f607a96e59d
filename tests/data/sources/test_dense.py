"""The source of DenseImageData: images and labels stay together."""
from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.changes.augment import Augmentation, wants_augmentation
from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.data.changes.transform import Transform
from ocaffe.data.prefetch import Prefetcher
from ocaffe.data.sources.dense import DenseImageSource
from ocaffe.ir.labels import LabelRange
from ocaffe.tools.synthetic.voc_writer import with_palette
from tests.data.pictures import batch_of, failure, listing, same_batches, save, used
from tests.data.small_databases import image
from tests.data.stagers.test_crew import until

pytestmark = pytest.mark.quick


@pytest.fixture
def pairs(tmp_path: pathlib.Path) -> str:
    """Write five gray images whose labels are the images themselves."""
    lines = []
    for n in range(5):
        pixels = image(n, (1, 12, 10))
        lines.append(f"{save(tmp_path / f'i{n}.png', pixels)} {save(tmp_path / f'l{n}.png', pixels)}")
    return listing(tmp_path, lines)


def source(path: str, batch: int, *, train: bool = True, workers: int = 1, transform: Any = (), **data: Any) -> DenseImageSource:
    param, message = proto.DenseImageDataParameter(**{"source": path, "batch_size": batch, **data}), proto.TransformationParameter(**dict(transform))
    made = DenseImageSource(param, (Augmentation if wants_augmentation(message, train) else Transform)(message, train), True, workers=workers)
    made.key = (1, 2)
    return made


def parts(made: DenseImageSource, index: int) -> list[np.ndarray]:
    """Return the staged images and labels of a batch."""
    buffer = batch_of(made, index)
    result, begin = [], 0
    for layout in made.layouts(made.fill(index, buffer).shapes[0]):
        pixels = layout.pixels(buffer[begin : begin + layout.nbytes]).reshape(made.batch, layout.height, layout.width, layout.channels)
        result.append(pixels.transpose(0, 3, 1, 2))
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
    error = failure(lambda: batch_of(source(path, 2), 0))
    assert f"line 2: {odd}: the image is 3 x 4 x 6, the first one of its batch is 3 x 12 x 10" in error.fact


def test_errors(pairs: str, tmp_path: pathlib.Path) -> None:
    assert failure(lambda: source(pairs, 0)).fact == "batch_size is 0"
    assert "field 'crop_width'" in failure(lambda: source(pairs, 1, crop_width=4)).fact
    assert "new_height is 0 and new_width 5" in failure(lambda: source(pairs, 1, new_width=5)).fact
    assert "the crop of 13 x 13 is larger than the image of 12 x 10" in failure(lambda: source(pairs, 1, transform={"crop_size": 13})).fact
    small = save(tmp_path / "small.png", image(1, (1, 3, 3)))
    for lines, fact in (
        ([f"{tmp_path}/i0.png"], "i0.png' has 1 word, and two are needed"),
        ([f"{tmp_path}/i0.png {small}"], f"line 1: {small}: the labels are 3 x 3, the image 12 x 10"),
        ([f"{tmp_path}/i0.png {tmp_path}/none.png"], f"line 1: {tmp_path}/none.png: it cannot be read"),
    ):
        error = failure(lambda lines=lines: source(listing(tmp_path, lines), 1))  # type: ignore[misc]
        assert fact in error.fact and error.fix
    error = failure(lambda: source(pairs, 1, transform={"mixup": {}, "label_classes": 3}))
    assert error.fact == "mixup and cutmix are set, and pixels have one label each"


CROP = {"crop_size": 6, "mirror": True}


@pytest.mark.skipif(sys.platform != "linux", reason="needs sockets that keep messages whole")
@pytest.mark.parametrize("transform", [{}, CROP, {**CROP, "affine": {"rotation": 30, "min_zoom": 0.5}}], ids=["whole", "crops", "affine"])
def test_processes_stage_the_same_bytes(pairs: str, transform: Any) -> None:
    plain, made = (source(pairs, 4, workers=3, shuffle=True, transform=transform) for _ in range(2))
    made.hurry()
    until(lambda: made._crew is not None and made._crew.ready)
    prefetcher, staged = Prefetcher(made, 3), []
    run = made._threads.run
    made._threads.run = lambda tasks: [staged.append(1), *run(tasks)][1:]  # type: ignore[method-assign,func-returns-value,assignment]
    for index in range(7):
        taken = prefetcher.get()
        assert used(plain, taken.info.shapes, taken.data) == used(plain, taken.info.shapes, batch_of(plain, index))
    prefetcher.close()
    assert len(staged) < 7  # threads stage a batch only while the processes have no free slot
    made.close()
    plain.close()


def test_labels_without_a_class(pairs: str, tmp_path: pathlib.Path) -> None:
    """A wrong label has its place, also in a part of the image that a crop shows, and with processes."""
    good, bad = np.zeros((1, 12, 10), np.uint8), np.full((1, 12, 10), 7, np.uint8)
    names = [save(tmp_path / f"{n}.png", bad if n == 3 else good) for n in range(5)]
    path = listing(tmp_path, [f"{name} {name}" for name in names])
    for transform in ({}, CROP, {"affine": {"rotation": 3, "border": 1}}):
        made, hurried = (source(path, 5, workers=3, transform=transform) for _ in range(2))
        hurried.hurry()
        until(lambda each=hurried: each._crew is None or each._crew.ready)  # type: ignore[misc]
        for each in (made, hurried):
            each.limits[1] = [LabelRange("loss", 5, 255)]
            error = failure(lambda each=each: batch_of(each, 0))  # type: ignore[misc]
            assert f"line 4: {names[3]}: its label is 7; layer loss has 5 classes" in error.fact
            each.close()
    with_palette(np.full((12, 10), 2, np.uint8)).save(names[1])  # the color of class 2, (0, 128, 0), has the gray level 75
    made = source(path, 2)
    made.limits[1] = [LabelRange("loss", 5, 255)]
    error = failure(lambda: batch_of(made, 0))
    assert f"line 2: {names[1]}: its label is 75" in error.fact and "`ocaffe dataset masks`, which writes the indices of the palette" in str(error.fix)
    save(tmp_path / "1.png", good)
    made = source(path, 2, transform={"affine": {"rotation": 3}})
    made.limits[1] = [LabelRange("loss", 5)]
    error = failure(lambda: batch_of(made, 0))
    assert "affine, whose label of pixels outside of the image is 255" in error.fact and "border: REFLECT" in error.fix
