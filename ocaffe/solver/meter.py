"""The speed of training, and the share of time spent waiting for data."""
from __future__ import annotations

import time
from collections.abc import Callable


class Meter:
    """Measures iterations and times since the last call of `read`."""

    def __init__(self, progress: Callable[[], tuple[int, float]]) -> None:
        """`progress` returns the iterations done and the seconds spent waiting for data."""
        self.progress = progress
        self._last = self._now()

    def _now(self) -> tuple[int, float, float]:
        iterations, waited = self.progress()
        return iterations, time.perf_counter(), waited

    def read(self) -> tuple[int, float, float]:
        """Return iterations, seconds, and seconds spent waiting for data. Without iterations the elapsed seconds are 0."""
        now = self._now()
        iterations, elapsed, waited = (new - old for new, old in zip(now, self._last))
        self._last = now
        return int(iterations), elapsed if iterations else 0.0, waited
