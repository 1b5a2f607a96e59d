"""Is told about a training: the interface between a training and its output."""
from __future__ import annotations

from typing import Any

from tqdm import tqdm

from ocaffe.solver.solver import Solver


class Watch:
    """Is told about a training. This one does nothing."""

    def started(self, solver: Solver, bar: tqdm) -> None:
        """Before the first iteration. `bar` is the progress bar."""

    def record(self, record: dict[str, Any]) -> None:
        """After each display and each test, with the record of --log-json."""

    def ended(self, solver: Solver) -> None:
        """After the last iteration."""

    def request(self) -> str:
        """After each iteration: 'stop' ends the training, '' does not."""
        return ""
