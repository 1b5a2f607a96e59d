"""The number of decoding threads: from the layer's field, else the environment, else the number of cores."""
from __future__ import annotations

import pathlib
import threading

import pytest

from ocaffe.data.workers import Workers, cores
from ocaffe.errors import Error
from tests.data.small_databases import raw, source, write

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(("field", "variable", "count"), [("parser_threads: 3", "5", 3), ("threads: 2", "5", 2), ("", "5", 5), ("", None, None)])
def test_count(field: str, variable: str | None, count: int | None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCAFFE_WORKERS", raising=False)
    if variable:
        monkeypatch.setenv("OCAFFE_WORKERS", variable)
    name, _, value = field.partition(": ")
    made = source(write(tmp_path / "db", [raw(0)]), 1, workers=None, **({name: int(value)} if field else {}))
    assert made.workers.count == (count or cores())
    made.close()


@pytest.mark.parametrize("value", ["0", "many", "-2"])
def test_what_is_no_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_WORKERS", value)
    with pytest.raises(Error, match=f"OCAFFE_WORKERS is '{value}'"):
        Workers()


def test_they_work_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=10)  # breaks unless three tasks run at the same time
    workers = Workers(3)
    assert sorted(workers.run([meeting.wait] * 3)) == [0, 1, 2]
    workers.close()
