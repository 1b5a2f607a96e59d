"""The time that a source's workers spend on each kind of work. It tells why a training waits for data."""
from __future__ import annotations

import threading
import time

DISK, DECODE, COPY = "disk", "decode", "copy"


class Effort:
    """Seconds of work by kind, summed over all threads."""

    def __init__(self) -> None:
        self._seconds = {DISK: 0.0, DECODE: 0.0, COPY: 0.0}
        self._changing = threading.Lock()

    def seconds(self) -> dict[str, float]:
        with self._changing:
            return dict(self._seconds)

    def add(self, laps: Laps) -> None:
        with self._changing:
            for kind, seconds in laps.seconds.items():
                self._seconds[kind] += seconds


class Laps:
    """The work of one thread: `end(kind)` adds the time since the last call."""

    def __init__(self) -> None:
        self.seconds = {DISK: 0.0, DECODE: 0.0, COPY: 0.0}
        self._begin = time.perf_counter()

    def end(self, kind: str) -> None:
        now = time.perf_counter()
        self.seconds[kind] += now - self._begin
        self._begin = now
