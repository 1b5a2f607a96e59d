"""How fast training goes, and how much of the time it waits for data."""
from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ocaffe.solver.solver import Solver


class Meter:
    """What has happened since it was last read (since it was made)."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self._last = self._now()

    def _now(self) -> tuple[int, float, float]:
        waited = sum(prefetcher.wait_seconds for prefetcher in self.solver.network.prefetchers.values())
        return self.solver.iter, time.perf_counter(), waited

    def read(self) -> tuple[int, float, float]:
        """Iterations, seconds, and seconds that were spent waiting for data; the time counts only where there were iterations."""
        now = self._now()
        iterations, elapsed, waited = (new - old for new, old in zip(now, self._last))
        self._last = now
        return int(iterations), elapsed if iterations else 0.0, waited
