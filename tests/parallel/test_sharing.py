"""Records over ranks: rank r of N reads records r, r + N, ... of the sequence that one rank reads, with the same random transforms."""
from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np
import pytest

from ocaffe.data.prefetch import Prefetcher
from ocaffe.data.source import Share, Source
from ocaffe.data.sources.dummy import BatchNumber
from tests.data import small_databases
from tests.data.pictures import listing, save
from tests.data.sources import test_annotated, test_file_images, test_hdf5
from tests.data.test_prefetch import Counter

pytestmark = pytest.mark.quick

RANKS = 3
BATCH = 2
RECORDS = 4 * RANKS * BATCH  # of an epoch
TRANSFORM = {"crop_size": 4, "mirror": True}
Sample = tuple[bytes, ...]


def test_positions() -> None:
    assert list(Share().positions(2, 3)) == [6, 7, 8]
    ranks = [Share(rank, 3) for rank in range(3)]
    assert [list(share.positions(0, 2)) for share in ranks] == [[0, 3], [1, 4], [2, 5]]
    assert [list(share.positions(5, 2)) for share in ranks] == [[30, 33], [31, 34], [32, 35]]


def of_pictures(made: Any, index: int) -> list[Sample]:
    images, labels = small_databases.samples(made, index)
    return [(image.tobytes(), label.tobytes()) for image, label in zip(images, labels.reshape(len(images), -1))]


def of_annotated(made: Any, index: int) -> list[Sample]:
    buffer = small_databases.batch_of(made, index)
    tops = list(made.fill(index, buffer).shapes)
    layout, rows = made.layout(tops)
    boxes = rows.views(buffer)[0][0, 0]
    table = layout.table(buffer)
    images = layout.pixels(buffer).reshape(tops[0])
    return [(image.tobytes(), table[n, 6].tobytes(), boxes[boxes[:, 0] == n, 1:].tobytes()) for n, image in enumerate(images)]


def of_rows(made: Any, index: int) -> list[Sample]:
    views = test_hdf5.batch_of(made, index)
    return [tuple(view[n].tobytes() for view in views) for n in range(len(views[0]))]


def database(folder: pathlib.Path, batch: int, **data: Any) -> Source:
    path = folder / "db"
    if not path.exists():
        small_databases.write(path, (small_databases.raw(n) for n in range(RECORDS)))
    return small_databases.source(path, batch, transform=TRANSFORM, **data)


def files(folder: pathlib.Path, batch: int, **data: Any) -> Source:
    if not (folder / "list.txt").exists():
        listing(folder, [f"{save(folder / f'{n}.png', small_databases.image(n))} {n}" for n in range(RECORDS)])
    return test_file_images.source(str(folder / "list.txt"), batch, transform=TRANSFORM, **data)


def tables(folder: pathlib.Path, batch: int, **data: Any) -> Source:
    """Files of 7, 11 and the remaining rows."""
    paths = []
    for first, last in ((0, 7), (7, 18), (18, RECORDS)):
        paths.append(folder / f"{first}.h5")
        if not paths[-1].exists():
            with h5py.File(paths[-1], "w") as file:
                file["x"] = np.arange(first, last)[:, None] + np.zeros((1, 3), np.float32)
                file["y"] = np.arange(first, last)
    (folder / "list.txt").write_text("\n".join(map(str, paths)))
    return test_hdf5.source(str(folder / "list.txt"), batch, **data)


def annotated(folder: pathlib.Path, batch: int) -> Source:
    if not (folder / "db").exists():
        small_databases.write(folder / "db", (test_annotated.datum(n) for n in range(RECORDS)))
    return test_annotated.source(folder / "db", batch, f"mirror: true {test_annotated.RESIZE}", test_annotated.SAMPLER + " }")


KINDS: dict[str, tuple[Callable[[pathlib.Path, int], Source], Callable[[Any, int], list[Sample]]]] = {
    "Data": (database, of_pictures),
    "Data, rand_skip": (lambda folder, batch: database(folder, batch, rand_skip=9), of_pictures),
    "ImageData": (files, of_pictures),
    "ImageData, shuffled": (lambda folder, batch: files(folder, batch, shuffle=True), of_pictures),
    "HDF5Data": (tables, of_rows),
    "HDF5Data, shuffled": (lambda folder, batch: tables(folder, batch, shuffle=True), of_rows),
    "AnnotatedData": (annotated, of_annotated),
}


@pytest.fixture
def close() -> Iterator[list[Source]]:
    opened: list[Source] = []
    yield opened
    for each in opened:
        each.close()


def ranked(make: Callable[[pathlib.Path, int], Source], folder: pathlib.Path, batch: int, opened: list[Source], ranks: int) -> list[Source]:
    made = [make(folder, batch) for _ in range(ranks)]
    for rank, each in enumerate(made):
        each.share = Share(rank, ranks)
    opened += made
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_read_what_one_rank_reads(kind: str, tmp_path: pathlib.Path, close: list[Source]) -> None:
    """Batch k of one rank with N times the batch has the samples of batches k of N ranks in turn: same records, same crops, same mirror."""
    make, samples_of = KINDS[kind]
    one = ranked(make, tmp_path, RANKS * BATCH, close, 1)[0]
    several = ranked(make, tmp_path, BATCH, close, RANKS)
    for index in (0, 1, 5):  # batch 5 is in the second epoch
        parts = [samples_of(each, index) for each in several]
        assert [parts[n % RANKS][n // RANKS] for n in range(RANKS * BATCH)] == samples_of(one, index)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "AnnotatedData"])
def test_an_epoch_has_each_record_once(kind: str, tmp_path: pathlib.Path, close: list[Source]) -> None:
    make, samples_of = KINDS[kind]
    several = ranked(make, tmp_path, BATCH, close, RANKS)
    epochs = [[sample[-1] for index in range(first, first + 4) for each in several for sample in samples_of(each, index)] for first in (0, 4)]
    assert len(set(epochs[0])) == len(epochs[0]) == RECORDS and set(epochs[0]) == set(epochs[1])
    assert (epochs[0] == epochs[1]) == ("shuffled" not in kind)


def test_an_epoch_that_the_batches_do_not_divide(tmp_path: pathlib.Path, close: list[Source]) -> None:
    """Three ranks with batches of 5 read 24 records: the second epoch begins inside a batch."""
    several = ranked(database, tmp_path, 5, close, RANKS)
    labels = [[np.frombuffer(sample[1], np.float32)[0] for sample in of_pictures(each, index)] for index in range(8) for each in several]
    assert sorted(value for batch in labels for value in batch) == sorted(5 * list(range(RECORDS)))


def test_each_rank_draws_its_own(close: list[Source]) -> None:
    """DummyData: the number of a draw is different on each rank, and those of one rank with all batches are used once."""
    several = ranked(lambda folder, batch: BatchNumber([(2,)]), pathlib.Path(), 2, close, RANKS)
    drawn = []
    for index in range(4):
        for each in several:
            buffer = np.zeros(each.nbytes, np.uint8)
            each.fill(index, buffer)
            drawn.append(int(buffer[:8].view(np.uint64)[0]))
    assert drawn == list(range(12))


def test_a_prefetcher_with_a_step() -> None:
    """The ranks share the batches of a test."""
    source = Counter()
    prefetcher = Prefetcher(source, 2, 1, 3)
    try:
        first = [prefetcher.get() for _ in range(3)]
        assert [batch.index for batch in first] == [1, 4, 7] and [batch.data[0] for batch in first] == [1, 4, 7]
        prefetcher.seek(2)
        assert [prefetcher.get().index for _ in range(2)] == [2, 5]
    finally:
        prefetcher.close()
    assert all(number % 3 in (1, 2) for number in source.filled)
