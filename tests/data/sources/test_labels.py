"""Sources refuse labels that a loss does not accept, and name the record. Other labels pass."""
from __future__ import annotations

import pathlib
from collections.abc import Callable

import h5py
import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.source import Source
from ocaffe.data.sources.hdf5 import Hdf5Source
from ocaffe.data.sources.memory import MemorySource
from ocaffe.ir.labels import LabelRange
from tests.data import small_databases
from tests.data.pictures import failure, listing, save
from tests.data.small_databases import image, png, raw, write
from tests.data.sources import test_annotated, test_dense, test_file_images, test_windows

pytestmark = pytest.mark.quick

LOSS = "'loss' (SoftmaxWithLoss)"
WORDS = f"its label is 4; layer {LOSS} has 4 classes: labels 0 to 3"


def fill(source: Source, index: int) -> None:
    needed = source.fill(index, np.empty(source.nbytes, np.uint8)).nbytes
    if needed > source.nbytes:
        source.fill(index, np.empty(needed, np.uint8))


def rejected(source: Source, limit: LabelRange, batch: int, place: str, words: str = WORDS, top: int = 1) -> None:
    """Check that batches before `batch` pass, and that this one does not."""
    source.limits[top] = [limit]
    for index in range(batch):
        fill(source, index)
    problem = failure(lambda: fill(source, batch))
    assert place in problem.fact and words in problem.fact and "num_output" in str(problem.fix), problem
    source.limits[top] = [LabelRange(LOSS, 4, ignored=4), LabelRange(LOSS, 5)]
    fill(source, batch)
    source.close()


@pytest.mark.parametrize("record", [raw, png], ids=["raw", "encoded"])
def test_databases(tmp_path: pathlib.Path, record: Callable[[int], bytes]) -> None:
    path = write(tmp_path / "db", map(record, range(5)))
    rejected(small_databases.source(path, 2), LabelRange(LOSS, 4), 2, "record 4 (key '00000004'): ")
    shuffled = small_databases.source(path, 5, shuffle=True)
    rejected(shuffled, LabelRange(LOSS, 4), 0, "record 4 (key '00000004'): ")


def test_image_lists(tmp_path: pathlib.Path) -> None:
    lines = [f"{save(tmp_path / f'{n}.png', image(n))} {n}" for n in range(5)]
    rejected(test_file_images.source(listing(tmp_path, lines), 2), LabelRange(LOSS, 4), 2, f"line 5: {tmp_path / '4.png'}: ")


def test_label_images(tmp_path: pathlib.Path) -> None:
    lines = []
    for n in range(3):
        labels = np.full((1, 12, 10), n, np.uint8)
        labels[0, 7, 3] = 2 + n
        lines.append(f"{save(tmp_path / f'i{n}.png', image(n, (1, 12, 10)))} {save(tmp_path / f'l{n}.png', labels)}")
    made = test_dense.source(listing(tmp_path, lines), 1, is_color=False)
    rejected(made, LabelRange(LOSS, 4), 2, f"line 3: {tmp_path / 'l2.png'}: ")


@pytest.mark.parametrize("shuffle", [False, True])
def test_hdf5(tmp_path: pathlib.Path, shuffle: bool) -> None:
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["data"] = np.zeros((3, 2))
            file["label"] = np.array([[0, 1], [2, 3], [3, 3 + number]])
    (tmp_path / "list").write_text(f"{tmp_path}/0.h5 {tmp_path}/1.h5")
    made = Hdf5Source(proto.HDF5DataParameter(source=str(tmp_path / "list"), batch_size=6, shuffle=shuffle), ["data", "label"])
    made.key = (1, 2)
    rejected(made, LabelRange(LOSS, 4), 0, f"{tmp_path}/1.h5, row 2 of dataset 'label': ")


def test_windows_of_images(tmp_path: pathlib.Path) -> None:
    made = test_windows.source(test_windows.window_file(tmp_path), 4)
    rejected(made, LabelRange(LOSS, 1), 0, "windows.txt, image ", f"layer {LOSS} has 1 classes: labels 0 to 0")


def test_arrays() -> None:
    made = MemorySource(proto.MemoryDataParameter(batch_size=2, channels=1, height=1, width=1), True)
    made.hand_over(np.zeros((4, 1, 1, 1)), [0, 1, 3, 4], 0)
    rejected(made, LabelRange(LOSS, 4), 1, "row 3 of the arrays: ")


def test_boxes(tmp_path: pathlib.Path) -> None:
    box = 0.1, 0.1, 0.9, 0.9
    path = write(tmp_path / "db", [test_annotated.datum(0), test_annotated.datum(1, [(4, *box)])])
    words = f"its label is 4; layer {LOSS} has 4 classes: labels 0 to 3, but not 0"
    rejected(test_annotated.source(path, 1), LabelRange(LOSS, 4, excluded=0), 1, "record 1 (key '00000001'): ", words)


@pytest.mark.parametrize("labels, wrong", [
    ([0, 3, -0.5, 3.9], None), ([0, -1], 1), ([4], 0), ([0, np.nan], 1), ([255, 255], None), ([255.5, 254], 1), ([], None), ([2, 1], 1)
])  # fmt: skip
def test_limits(labels: list[float], wrong: int | None) -> None:
    """The rules of kernels/loss/softmax.h: fractions are cut off."""
    limit = LabelRange(LOSS, 4, ignored=255, excluded=1 if labels == [2, 1] else None)
    assert limit.first_wrong(np.array(labels, np.float32)) == wrong
    if np.isfinite(labels).all() and min(labels, default=0) >= 0:
        assert limit.first_wrong(np.array(labels).astype(np.uint8)) == wrong
