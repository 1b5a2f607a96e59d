"""Times of launches, from OpenCL's profiling events, while a session is profiled."""
from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from ocaffe.ir.launch import Launch


class Timeline:
    """Collects the events of launches. `collect` closes an iteration, in which a launch may run several times (iter_size)."""

    def __init__(self) -> None:
        self._open: list[tuple[Launch, Any]] = []  # an event, or the seconds of a step on the host
        self._taken: dict[Launch, list[float]] = {}  # seconds in each iteration; in the order of the first iteration
        self._iterations = 0

    def add(self, launch: Launch, taken: Any) -> None:
        """Record a launch with its event, or with seconds for a step on the host. None, for a launch without a command, is ignored."""
        if taken is not None:
            self._open.append((launch, taken))

    def collect(self) -> float:
        """Add the launches since the last call as one iteration. The queue must be empty. Return their seconds."""
        sums: dict[Launch, float] = defaultdict(float)
        for launch, taken in self._open:
            sums[launch] += taken if isinstance(taken, float) else 1e-9 * (taken.profile.end - taken.profile.start)
        self._open.clear()
        self._iterations += 1
        for launch, seconds in sums.items():
            self._taken.setdefault(launch, []).append(seconds)
        return sum(sums.values())

    def seconds(self) -> dict[Launch, float]:
        """Return the seconds of each launch per iteration: the median, times the share of iterations with the launch.

        The share can be below 1, because other shapes have other launches.
        """
        return {launch: statistics.median(taken) * len(taken) / self._iterations for launch, taken in self._taken.items()}
