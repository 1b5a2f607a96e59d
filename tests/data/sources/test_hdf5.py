"""The source of HDF5Data. tests/layers/test_data_layers.py compares with data that real Caffe read."""
from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.sources.hdf5 import Hdf5Source
from ocaffe.errors import Error

pytestmark = pytest.mark.quick

ROWS = (5, 3, 4)


def table(file: int) -> dict[str, np.ndarray]:
    """Return rows that encode their origin: 100 * file + row."""
    rows = 100 * file + np.arange(ROWS[file])
    return {"x": rows[:, None, None] + np.zeros((1, 2, 3)), "y": rows.astype(np.int64)}


def write(path: pathlib.Path, **arrays: Any) -> str:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return str(path)


@pytest.fixture
def listed(tmp_path: pathlib.Path) -> str:
    files = [write(tmp_path / f"{n}.h5", **table(n)) for n in range(len(ROWS))]
    (tmp_path / "list.txt").write_text("\n".join(files) + "\n\n")
    return str(tmp_path / "list.txt")


def source(path: str, batch: int, names: tuple[str, ...] = ("x", "y"), **more: Any) -> Hdf5Source:
    made = Hdf5Source(proto.HDF5DataParameter(source=path, batch_size=batch, **more), names)
    made.key = (3, 4)
    return made


def batch_of(made: Hdf5Source, index: int) -> list[np.ndarray]:
    buffer = np.full(made.nbytes, 0xA5, np.uint8)
    info = made.fill(index, buffer)
    assert list(info.shapes) == made.shapes() and info.nbytes == made.nbytes
    return made.layout.views(buffer)


@pytest.mark.parametrize("batch", [1, 4, 30])
def test_in_order(listed: str, batch: int) -> None:
    made = source(listed, batch)
    assert made.shapes() == [(batch, 2, 3), (batch,)]
    endless = np.concatenate([table(n)["y"] for n in range(3)] * (4 * batch))
    for index in (0, 1, 2, 3, 1, 7):
        x, y = batch_of(made, index)
        assert (y == endless[index * batch : (index + 1) * batch]).all() and (x == y[:, None, None]).all()


def test_shuffle(listed: str) -> None:
    made = source(listed, 12, shuffle=True)
    epochs = [batch_of(made, index)[1].astype(int) for index in range(6)]
    files = []
    for rows in epochs:
        assert sorted(rows) == sorted(int(y) for n in range(3) for y in table(n)["y"])
        numbers = rows // 100
        files.append(tuple(numbers[np.flatnonzero(np.diff(numbers, prepend=-1))]))
        assert len(files[-1]) == 3  # a batch does not mix files
    assert len({tuple(rows) for rows in epochs}) == 6 and len(set(files)) > 1
    again = source(listed, 4, shuffle=True)  # the order depends neither on the batch size nor on earlier reads
    x, y = batch_of(again, 13)
    assert (y == np.concatenate(epochs)[52:56]).all() and (x == y[:, None, None]).all()
    again.key = (3, 5)
    other = source(listed, 12, shuffle=True)
    other.key = (3, 5)
    assert not (batch_of(other, 0)[1] == epochs[0]).all()


def failure(call: Callable[[], Any]) -> Error:
    with pytest.raises(Error) as caught:
        call()
    return caught.value


def test_source_list(tmp_path: pathlib.Path) -> None:
    assert "the source list 'no.txt' cannot be read: No such file" in failure(lambda: source("no.txt", 1)).fact
    assert "the source list '' cannot be read" in failure(lambda: source("", 1)).fact
    (tmp_path / "empty.txt").write_text(" \n")
    assert "names no file" in failure(lambda: source(str(tmp_path / "empty.txt"), 1)).fact
    file = write(tmp_path / "a.h5", **table(0))
    error = failure(lambda: source(file, 1))
    assert f"the source list {file} is itself an HDF5 file" == error.fact and str(error.fix).startswith(f"echo {file} > ")


def one(tmp_path: pathlib.Path, *files: str) -> str:
    (tmp_path / "one.txt").write_text("\n".join(files))
    return str(tmp_path / "one.txt")


def test_files(tmp_path: pathlib.Path) -> None:
    good = write(tmp_path / "a.h5", **table(0))
    assert failure(lambda: source(one(tmp_path, good), 0)).fact == "batch_size is 0"
    assert "the HDF5 file gone.h5 of the list" in failure(lambda: source(one(tmp_path, good, "gone.h5"), 1)).fact
    (tmp_path / "text.h5").write_text("text")
    error = failure(lambda: source(one(tmp_path, str(tmp_path / "text.h5")), 1))
    assert error.place == str(tmp_path / "text.h5") and "cannot be read as HDF5" in error.fact
    error = failure(lambda: source(one(tmp_path, good), 1, ("x", "label")))
    assert f"{good} has no dataset 'label' for the top of that name; it has 'x', 'y'" == error.fact


def test_datasets(tmp_path: pathlib.Path) -> None:
    good = write(tmp_path / "good.h5", **table(0))
    path = write(tmp_path / "a.h5", x=np.zeros((3, 2)), y=np.zeros(4))
    assert "differ in their number of rows: 'x' 3, 'y' 4" in failure(lambda: source(one(tmp_path, path), 1)).fact
    path = write(tmp_path / "b.h5", x=np.zeros((0, 2)), y=np.zeros(0))
    assert "have no rows" in failure(lambda: source(one(tmp_path, path), 1)).fact
    path = write(tmp_path / "c.h5", x=np.zeros((3, 2, 4)), y=np.zeros(3))
    error = failure(lambda: source(one(tmp_path, good, path), 1))
    assert f"rows of dataset 'x' are 2 x 4 in {path}, 2 x 3 in {good}" == error.fact
    path = write(tmp_path / "d.h5", x=np.array([b"a", b"b"]), y=np.zeros(2))
    assert "dataset 'x'" in (fact := failure(lambda: source(one(tmp_path, path), 1)).fact) and "not of numbers" in fact
    path = write(tmp_path / "e.h5", x=np.float32(1), y=np.zeros(2))
    assert "is a scalar" in failure(lambda: source(one(tmp_path, path), 1)).fact


def test_a_file_that_shrinks(tmp_path: pathlib.Path) -> None:
    files = [write(tmp_path / f"{n}.h5", **table(n)) for n in range(2)]
    made = source(one(tmp_path, *files), 2)
    write(tmp_path / "1.h5", x=np.zeros((2, 2, 3)), y=np.zeros(2))
    assert "had 3 rows, and now it has 2" in failure(lambda: batch_of(made, 2)).fact
