"""The speed of training, the share of time spent waiting for data, and the work that delays the data."""
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ocaffe.data.effort import COPY, DECODE, DISK
from ocaffe.data.prefetch import Prefetcher

_LONG = 0.05  # share of waiting from which on its reason is named
_REMEDIES = {
    DISK: "a faster disk, smaller files, or a database instead of many files",
    DECODE: "more cores, smaller images (convert_imageset --resize_height), or a database of raw images",
    COPY: "a smaller crop, or a faster bus",
}


class Reading(NamedTuple):
    """Iterations and seconds since the last reading. `waited`: seconds of waiting for data. `exchanged`: seconds in which the device waited for gradients of
    other ranks. `work`: seconds of all workers by kind.
    """

    iterations: int
    elapsed: float
    waited: float
    exchanged: float
    work: dict[str, float]

    @property
    def wait(self) -> float:
        """The share of the time that was spent waiting."""
        return self.waited / self.elapsed

    @property
    def exchange_wait(self) -> float:
        """The share of the time that the device waited for gradients of other ranks."""
        return self.exchanged / self.elapsed

    @property
    def bottleneck(self) -> str:
        """The work that took the workers longest, or nothing if there was no long waiting."""
        return max(self.work, key=lambda kind: self.work[kind]) if self.wait >= _LONG and any(self.work.values()) else ""

    def text(self) -> str:
        reason = self.bottleneck
        return f"data wait {100 * self.wait:.0f} %" + (f" ({reason}). Remedy: {_REMEDIES[reason]}" if reason else "")


class Meter:
    """Measures since the last call of `read`."""

    def __init__(self, iterations: int, prefetchers: Iterable[Prefetcher], exposed: Callable[[], float] = lambda: 0.0) -> None:
        """`iterations` are done so far. `exposed` returns the seconds that the device has waited for gradients of other ranks."""
        self._prefetchers, self._exposed = list(prefetchers), exposed
        self._last = self._now(iterations)

    def _now(self, iterations: int) -> tuple[int, float, float, float, Counter[str]]:
        work: Counter[str] = Counter()
        for each in self._prefetchers:
            work.update(each.source.effort.seconds() if each.source.effort else {})
        return iterations, time.perf_counter(), sum(each.wait_seconds for each in self._prefetchers), self._exposed(), work

    def read(self, iterations: int) -> Reading:
        """Return the values since the last call. Without iterations the elapsed seconds are 0."""
        now, last = self._now(iterations), self._last
        self._last = now
        done, work = now[0] - last[0], Counter(now[4])
        work.subtract(last[4])
        return Reading(done, now[1] - last[1] if done else 0.0, now[2] - last[2], now[3] - last[3], dict(work))
