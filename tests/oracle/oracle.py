"""Run cases on both programs and judge them."""
from __future__ import annotations

import collections
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.oracle import tables
from tests.oracle.case import Case
from tests.oracle.graph import Graph
from tests.oracle.judge import Arbiter, Finding, compare
from tests.oracle.peer import VARIABLE, Peer, Result


@dataclass
class Counts:
    """What was run. `explained`: cases by the name of a rule of the tables."""

    nets: int = 0
    arrays: int = 0
    refused: int = 0  # by both programs
    rounding: int = 0  # arrays beyond the tolerance that double precision explains
    types: collections.Counter[str] = field(default_factory=collections.Counter)
    explained: collections.Counter[str] = field(default_factory=collections.Counter)


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

    def results(self, case: Case) -> tuple[Result, Result]:
        results = self.caffe.run(case.order()), self.ocaffe.run(case.order())
        self.caffe.forget(results[0])
        self.ocaffe.forget(results[1])
        return results

    def findings(self, case: Case) -> list[Finding]:
        """What the two programs do differently, without rounding and without what the tables explain."""
        caffe, ocaffe = self.results(case)
        self.counts.nets += 1
        self.counts.arrays += len(caffe.arrays)
        self.counts.refused += caffe.refusal is not None and caffe.stage == ocaffe.stage
        self.counts.types.update(set(case.types))
        arbiter, graph = Arbiter(case, caffe), Graph(case, caffe.arrays)
        left, rules = [], set()
        for finding in compare(case, caffe, ocaffe):
            judged = arbiter.judged(finding)
            rule = judged and tables.explained(case, judged, graph)
            if judged is None:
                self.counts.rounding += 1
            elif rule:
                rules.add(rule)
            else:
                left.append(judged)
        self.counts.explained.update(rules)
        return left


def first(findings: Sequence[Finding]) -> str:
    return str(findings[0]) if findings else ""
