"""A progress bar if stderr is a terminal. Log lines appear above it."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tqdm import tqdm

from ocaffe import log


@contextlib.contextmanager
def progress(total: int, unit: str, what: str = "", done: int = 0, hidden: bool = False) -> Iterator[tqdm]:
    """Yield the bar; call its `update()` for each of `total` items. `done` items are complete at the start.

    Without a terminal, or if `hidden`, the bar does nothing.
    """
    with tqdm(total=total, initial=done, unit=unit, desc=what or None, dynamic_ncols=True, file=log.stderr, disable=hidden or None) as bar:
        if bar.disable or not log.on_terminal():  # lines that go to a file stay there
            yield bar
            return
        old, log.sink = log.sink, lambda line: bar.write(line, file=log.stderr)
        try:
            yield bar
        finally:
            log.sink = old
