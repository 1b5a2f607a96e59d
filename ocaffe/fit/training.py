"""A line for each test of a training."""
from __future__ import annotations

from typing import Any

from tqdm import tqdm

from ocaffe.errors import Error
from ocaffe.shown import say
from ocaffe.solver.solver import Solver
from ocaffe.solver.watch import Watch
from ocaffe.zoo.project import Project


class NotBegun(Exception):
    """A training that failed before its first test, for example because the weights do not fit. Its files are of no use."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.fact)
        self.error = error


class Progress(Watch):
    """Prints a line for each test. `iterations`: those at the end. `begun`: there was a record. `score`: the name of the measure."""

    def __init__(self, project: Project, score: str) -> None:
        self.project, self.score, self.best, self.iterations, self.begun = project, score, -1.0, 0, False

    def started(self, solver: Solver, bar: tqdm) -> None:
        if solver.limit_note:
            say(f"memory    {solver.limit_note.removeprefix('memory ')}")

    def record(self, record: dict[str, Any]) -> None:
        self.begun = True
        if record["phase"] != "test":
            return
        value = record["outputs"][self.project.accuracy][0]
        mark = " (best)" if value > self.best and record["iteration"] else ""  # in iteration 0 the net has learned nothing
        self.best = max(self.best, value)
        say(f"  iteration {record['iteration']:>6} of {self.project.iterations}: {self.score} {100 * value:5.1f} %{mark}", flush=True)

    def ended(self, solver: Solver) -> None:
        self.iterations = solver.iter
