"""The data position of a state that another number of ranks wrote. test_trainings.py resumes on several ranks."""
from __future__ import annotations

import pathlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ocaffe.formats.records import Cursor
from ocaffe.formats.state import read_state, write_state
from ocaffe.parallel.world import ALONE
from tests.parallel.trainings import BATCH, SAVED, TESTS, solver_of, write_records


@pytest.fixture
def state(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a state by one rank, and return its path."""
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path)
    solver = solver_of("SGD", device, ALONE)
    try:
        solver.step(SAVED)
        yield solver.snapshot()
    finally:
        solver.close()


def resumed(device: Any, path: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the positions of a solver that resumes on one rank: of the TRAIN net and of the TEST net."""
    solver = solver_of("SGD", device, ALONE, path)
    solver.close()
    return solver.network.inputs.cursor, solver.test_networks[0].inputs.cursor


def test_a_state_has_ranks_and_records(device: Any, state: str) -> None:
    written = read_state(state)
    assert written.ranks == 1 and written.cursors == [Cursor("data", "train", SAVED, SAVED * BATCH), Cursor("data", "test 0", TESTS)]
    assert resumed(device, state) == ({"data": SAVED}, {"data": TESTS})


@pytest.mark.parametrize("hdf5", [False, True])
def test_records_of_other_ranks(device: Any, state: str, hdf5: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Three ranks with batches of 8 have read 5 x 24 records, which are 10 batches of 12. TEST nets count the batches of all ranks."""
    path = f"other{'.h5' if hdf5 else ''}"
    cursors = [Cursor("data", "train", 5, 120), Cursor("data", "test 0", 15), Cursor("gone", "train", 5, 120)]
    write_state(path, replace(read_state(state), ranks=3, cursors=cursors), hdf5=hdf5)
    assert resumed(device, path) == ({"data": 10}, {"data": 15})
    told = capsys.readouterr().err
    assert "The state was written by 3 ranks, now there is 1" in told and "skips" not in told


@pytest.mark.parametrize(("cursor", "batch"), [(Cursor("data", "train", 5, 115), 10), (Cursor("data", "train", 5), 15)])
def test_records_that_are_no_multiple(device: Any, state: str, cursor: Cursor, batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The next whole batch follows. Where a state has no records, the batches of its ranks had the present size."""
    write_state("other", replace(read_state(state), ranks=3, cursors=[cursor]))
    assert resumed(device, "other")[0] == {"data": batch}
    skips = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines() if "skips" in line]
    assert skips == (["Layer 'data' has read 115 records, which is no multiple of 1 x 12: it skips 5"] if cursor.records else [])
