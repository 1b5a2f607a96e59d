"""The progress bar on a terminal, and log lines above it."""
from __future__ import annotations

import io
import sys

import pytest

from ocaffe import log
from ocaffe.support.progress import progress

pytestmark = pytest.mark.quick


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_bar_and_lines(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream())
    log.configure()
    before = log.sink
    with pytest.raises(KeyError), progress(3, "image", "work") as bar:
        for number in range(3):
            bar.update()
            log.info("a.cpp:1", f"line {number}")
        raise KeyError
    said = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert log.sink is before and [f"a.cpp:1] line {number}\n" in said for number in range(3)] == [True] * 3
    assert ("work: " in said and "3/3" in said) == (stream is Terminal)


def test_a_terminal_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Gone())
    log.configure()
    with progress(3, "image") as bar:
        for _ in range(3):
            bar.update()
            log.info("a.cpp:1", "line")
    assert bar.n == 3
