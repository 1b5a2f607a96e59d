"""How fast training goes, and how much of the time it waits for data."""
from __future__ import annotations

import time
from collections.abc import Callable


class Meter:
    """What has happened since it was last read (since it was made)."""

    def __init__(self, progress: Callable[[], tuple[int, float]]) -> None:
        """`progress` returns the iterations done and the seconds spent waiting for data."""
        self.progress = progress
        self._last = self._now()

    def _now(self) -> tuple[int, float, float]:
        iterations, waited = self.progress()
        return iterations, time.perf_counter(), waited

    def read(self) -> tuple[int, float, float]:
        """Iterations, seconds, and seconds that were spent waiting for data; the time counts only where there were iterations."""
        now = self._now()
        iterations, elapsed, waited = (new - old for new, old in zip(now, self._last))
        self._last = now
        return int(iterations), elapsed if iterations else 0.0, waited
