"""A progress bar where stderr is a terminal; log lines move above it."""
from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from tqdm import tqdm

from ocaffe import log


@contextlib.contextmanager
def progress(total: int, unit: str, what: str = "", done: int = 0) -> Iterator[tqdm]:
    """The bar; call its `update()` for each of `total` things, `done` of which are done already. Without a terminal it does nothing."""
    with tqdm(total=total, initial=done, unit=unit, desc=what or None, dynamic_ncols=True, file=sys.stderr, disable=None) as bar:
        if bar.disable:
            yield bar
            return
        old, log.sink = log.sink, lambda line: bar.write(line, file=sys.stderr)
        try:
            yield bar
        finally:
            log.sink = old
