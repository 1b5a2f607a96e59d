"""The harness itself: it recognises every way to fail, its cases repeat, and the seeds are sound."""
from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time

import pytest

from ocaffe.errors import Error
from tests.abuse import fuzz, report
from tests.abuse.harness import Limits, Outcome, Wrong, isolated

pytestmark = [pytest.mark.quick, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the harness needs fork and /proc of Linux")]


def _ok() -> None:
    pass


def _error() -> None:
    raise Error("a mistake", place="file", fix="correct it")


def _traceback() -> None:
    os.environ["NO_SUCH_VARIABLE"]


def _signal() -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def _hang() -> None:
    time.sleep(60)


def _memory() -> None:
    kept = b"x" * (400 << 20)
    time.sleep(60)
    del kept


def _wrong() -> None:
    raise Wrong("another number")


WAYS = (_ok, _signal, _error, _hang, _traceback, _memory, _wrong, _ok)


def test_every_way_to_fail_is_recognised() -> None:
    found = [outcome for _, outcome in isolated(WAYS, lambda way: way(), Limits(seconds=1, memory=300 << 20))]
    assert [outcome.kind for outcome in found] == ["ok", "signal", "error", "hang", "traceback", "memory", "wrong", "ok"]
    assert found[1].note == "SIGBUS" and found[2] == Outcome("error", "a mistake") and found[4].note.startswith("KeyError in ")


def test_memory_of_the_parent_does_not_count() -> None:
    kept = b"x" * (400 << 20)
    (found,) = isolated([_hang], lambda way: way(), Limits(seconds=0.5, memory=300 << 20))
    assert found[1].kind == "hang" and kept


def test_a_case_repeats() -> None:
    seeds = fuzz.SECTIONS["caffemodel"].seeds()
    assert [fuzz.made("caffemodel", seeds, 3, number) for number in range(20)] == [fuzz.made("caffemodel", seeds, 3, number) for number in range(20)]
    assert fuzz.made("caffemodel", seeds, 3, 0) != fuzz.made("caffemodel", seeds, 4, 0)


def test_figures_add_up(tmp_path: pathlib.Path) -> None:
    line = {"part": "fuzz", "section": "net", "device": "", "seed": 1, "cases": 3, "kinds": {"ok": 2, "error": 1}, "seconds": 30.0, "findings": {}}
    other = {**line, "section": "mean", "kinds": {"hang": 1}, "cases": 1}
    (tmp_path / "lines").write_text("noise\n" + "".join(json.dumps(each) + "\n" for each in (line, line, other)))
    (tmp_path / "page.md").write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.main([str(tmp_path / "lines"), "--write", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert "| fuzz | net |  | 6 | 4 | 2 | 0 | 0 | 0 | 0 | 0 | 1.0 |" in page and "| fuzz | **all** |  | 7 | 4 | 2 | 0 | 0 | 1 | 0 | 0 | 1.5 |" in page
    assert page.startswith("before\n") and page.endswith("after\n") and "old" not in page
