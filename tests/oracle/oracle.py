"""Run cases on both programs and judge them."""
from __future__ import annotations

import collections
import os
from dataclasses import dataclass, field
from typing import Any

from tests.oracle import tables
from tests.oracle.case import Case
from tests.oracle.graph import Graph
from tests.oracle.judge import Arbiter, Finding, compare
from tests.oracle.peer import VARIABLE, Peer, Result


@dataclass
class Counts:
    """The numbers of a run. `explained`: cases by the name of a rule of the tables."""

    nets: int = 0
    solvers: int = 0
    states: int = 0  # taken from the other program
    specs: int = 0
    arrays: int = 0
    refused: int = 0  # by both programs
    rounding: int = 0  # arrays beyond the tolerance that double precision explains
    types: collections.Counter[str] = field(default_factory=collections.Counter)
    explained: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, other: Counts) -> None:
        for name in ("nets", "solvers", "states", "specs", "arrays", "refused", "rounding"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.types.update(other.types)
        self.explained.update(other.explained)

    def line(self) -> str:
        return (
            f"{self.nets} nets of {len(self.types)} types, {self.solvers} solvers, {self.states} states taken over, {self.specs} specifications, "
            f"{self.arrays:,} arrays; {self.refused} nets refused by both; rounding explains {self.rounding} arrays"
        )


class Oracle:
    """Both programs, while cases are compared."""

    def __init__(self, fault: str = "") -> None:
        self.caffe, self.ocaffe = Peer("caffe", os.environ[VARIABLE]), Peer("ocaffe", fault=fault)
        self.counts = Counts()

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *error: object) -> None:
        self.caffe.close()
        self.ocaffe.close()

    def results(self, case: Case, **more: Any) -> tuple[Result, Result]:
        results = self.caffe.run(case.order(**more)), self.ocaffe.run(case.order(**more))
        self.caffe.forget(results[0])
        self.ocaffe.forget(results[1])
        return results

    def findings(self, case: Case, counted: bool = True, **more: Any) -> list[Finding]:
        """The differences of the two programs, without rounding and without those that the tables explain. `more`: fields of the jobs."""
        counts = self.counts if counted else Counts()
        caffe, ocaffe = self.results(case, **more)
        counts.nets += 1
        counts.arrays += len(caffe.arrays)
        counts.refused += caffe.refusal is not None and ocaffe.refusal is not None
        counts.types.update(set(case.types))
        graph = Graph(case, caffe.arrays)
        arbiter = Arbiter(case, graph)
        left, rules = [], set()
        for finding in compare(case, caffe, ocaffe):
            judged = arbiter.judged(finding)
            rule = judged and tables.explained(case, judged, graph, arbiter)
            if judged is None:
                counts.rounding += 1
            elif rule:
                rules.add(rule)
            else:
                left.append(judged)
        counts.explained.update(rules)
        return left
