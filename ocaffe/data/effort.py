"""The time that a source's workers spend on each kind of work. It tells why a training waits for data."""
from __future__ import annotations

import threading
import time
from collections.abc import Mapping

DISK, DECODE, COPY = "disk", "decode", "copy"


class Effort:
    """Seconds of work by kind, summed over all workers."""

    def __init__(self) -> None:
        self._seconds = {DISK: 0.0, DECODE: 0.0, COPY: 0.0}
        self._changing = threading.Lock()

    def seconds(self) -> dict[str, float]:
        with self._changing:
            return dict(self._seconds)

    def add(self, seconds: Mapping[str, float]) -> None:
        with self._changing:
            for kind, value in seconds.items():
                self._seconds[kind] += value


class Laps:
    """The work of one worker: `end(kind)` adds the time since the last call."""

    def __init__(self) -> None:
        self.seconds = {DISK: 0.0, DECODE: 0.0, COPY: 0.0}
        self._begin = time.perf_counter()

    def end(self, kind: str) -> None:
        now = time.perf_counter()
        self.seconds[kind] += now - self._begin
        self._begin = now
