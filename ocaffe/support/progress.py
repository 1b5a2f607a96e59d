"""Progress on stderr: a bar if it is a terminal, with log lines above it, and a line of text that changes."""
from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator

from tqdm import tqdm

from ocaffe.shown import visible
from ocaffe.support import log


@contextlib.contextmanager
def progress(total: int, unit: str, what: str = "", done: int = 0, hidden: bool = False) -> Iterator[tqdm]:
    """Yield the bar; call its `update()` for each of `total` items. `done` items are complete at the start.

    Without a terminal, or if `hidden`, the bar does nothing.
    """
    with tqdm(total=total, initial=done, unit=unit, desc=visible(what) or None, dynamic_ncols=True, file=log.stderr, disable=hidden or None) as bar:
        if bar.disable or not log.on_terminal():  # lines that go to a file stay there
            yield bar
            return
        old, log.sink = log.sink, lambda line: bar.write(line, file=log.stderr)
        try:
            yield bar
        finally:
            log.sink = old


@contextlib.contextmanager
def heartbeat(what: str, pause: float = 10.0) -> Iterator[Callable[[str], None]]:
    """Print a line every `pause` seconds. Yield a function that takes a text about the present step, which ends the line.

    A thread prints, so that a step of minutes has lines too.
    """
    step, begin, over = "", time.monotonic(), threading.Event()

    def tell(text: str) -> None:
        nonlocal step
        step = text

    def beat() -> None:
        while not over.wait(pause):
            log.tell(f"{what} ({time.monotonic() - begin:.0f} s): {step}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        over.set()
        thread.join()


class Status:
    """A text that says what runs now. On a terminal each text replaces the last one; elsewhere a line is printed at most every PAUSE seconds."""

    PAUSE = 10.0

    def __init__(self) -> None:
        self._terminal = log.on_terminal() and log.stderr.isatty()
        self._shown, self._last = False, time.monotonic()

    def __call__(self, text: str) -> None:
        if self._terminal:
            text = visible(text)
            log.stderr.write(f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K")
            self._shown = True
        elif time.monotonic() - self._last >= self.PAUSE:
            log.tell(text)
            self._last = time.monotonic()

    def clear(self) -> None:
        """Remove the text from a terminal, before another line is printed."""
        if self._shown:
            log.stderr.write("\r\x1b[K")
            self._shown = False
