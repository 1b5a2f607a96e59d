"""Caffe's log on stderr: glog lines that parse_log.py and every plot script in the wild read (`I0210 13:39:22.381027 25210 solver.cpp:204] text`).

`GLOG_minloglevel` hides lower levels. A progress bar may claim the terminal: `sink` is what writes a finished line.
"""
from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import SupportsFloat

LEVELS = "IWEF"


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")


sink: Callable[[str], None] = _write
minimum = 0
_once: set[str] = set()


def configure() -> None:
    """Read the environment; called by the command line."""
    global minimum
    try:
        minimum = int(os.environ.get("GLOG_minloglevel", "0"))  # noqa: SIM112 (glog's spelling)
    except ValueError:
        minimum = 0


def quiet(level: int = 1) -> None:
    """Hide everything below `level` (1 = warnings), as a library should."""
    global minimum
    minimum = level


def emit(level: int, source: str, text: str) -> None:
    """One record; `source` is Caffe's file and line, for example 'solver.cpp:239'. A text of several lines keeps them."""
    if level < minimum:
        return
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    micros = int(now % 1 * 1e6)
    sink(f"{LEVELS[level]}{stamp}.{micros:06d} {threading.get_native_id():5d} {source}] {text}")


def info(source: str, text: str) -> None:
    emit(0, source, text)


def warning(source: str, text: str) -> None:
    emit(1, source, text)


def error(source: str, text: str) -> None:
    emit(2, source, text)


def warn_once(source: str, text: str) -> None:
    """A warning that is said once in a process."""
    if text not in _once:
        _once.add(text)
        warning(source, text)


def number(value: SupportsFloat) -> str:
    """A float as C++ streams print it: six significant digits."""
    return f"{float(value):g}"
