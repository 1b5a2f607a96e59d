"""Times of launches: OpenCL's profiling events of whatever a session runs while somebody looks."""
from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from ocaffe.ir.launch import Launch


class Timeline:
    """Collects the events of launches; `collect` ends an iteration, in which a launch may run several times (iter_size)."""

    def __init__(self) -> None:
        self._open: list[tuple[Launch, Any]] = []  # an event, or seconds of a step on the host
        self._taken: dict[Launch, list[float]] = {}  # seconds in each iteration; in the order of the first one
        self._iterations = 0

    def add(self, launch: Launch, taken: Any) -> None:
        """Note a launch with its event, or its seconds where the host did it; nothing of one that enqueued nothing (None)."""
        if taken is not None:
            self._open.append((launch, taken))

    def collect(self) -> float:
        """Take in what has run since; the queue must be empty. Returns its seconds."""
        sums: dict[Launch, float] = defaultdict(float)
        for launch, taken in self._open:
            sums[launch] += taken if isinstance(taken, float) else 1e-9 * (taken.profile.end - taken.profile.start)
        self._open.clear()
        self._iterations += 1
        for launch, seconds in sums.items():
            self._taken.setdefault(launch, []).append(seconds)
        return sum(sums.values())

    def seconds(self) -> dict[Launch, float]:
        """Of each launch in an iteration: the median, times how often it ran at all (other shapes have other launches)."""
        return {launch: statistics.median(taken) * len(taken) / self._iterations for launch, taken in self._taken.items()}
