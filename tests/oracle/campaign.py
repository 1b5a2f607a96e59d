"""Run ranges of seeds, in several processes."""
from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import NamedTuple

from tests.oracle import solvers, specs
from tests.oracle.draft import random_net
from tests.oracle.judge import Finding
from tests.oracle.oracle import Counts, Oracle
from tests.oracle.shrink import shrink

SHOWN = 3  # findings of a net


class Part(NamedTuple):
    """The work of one process. `what`: nets, solvers or specs; `types`: of layers, or none for all; `most`: reports after which it ends, or 0."""

    what: str
    seeds: range
    types: Sequence[str] = ()
    fault: str = ""
    most: int = 0


class Outcome(NamedTuple):
    """The findings of a part, and the processor times of Caffe and of ocaffe in seconds."""

    reports: list[str]
    counts: Counts
    used: tuple[float, float]


def net_report(oracle: Oracle, seed: int, types: Sequence[str]) -> str:
    """Return what was found in the net of a seed, with a smaller net that shows the same; '' if nothing."""
    case = random_net(seed, types)
    found = oracle.findings(case)
    if not found:
        return ""
    small = shrink(case, lambda smaller: oracle.findings(smaller, counted=False), found[0].part)
    text = f"{small.text}# phase {small.phase}, form {small.form}, steps {list(small.steps)}\n# inputs {dict(small.inputs)}"
    return f"net {seed}: {_lines(found)}\n{text}"


def _lines(found: list[Finding]) -> str:
    return "\n  ".join(str(finding) for finding in found[:SHOWN])


def _report(oracle: Oracle, part: Part, seed: int) -> str:
    if part.what == "nets":
        return net_report(oracle, seed, part.types)
    if part.what == "specs":
        found, text = specs.findings(oracle, seed), specs.random_script(seed)
    else:
        training = solvers.random_training(seed)
        found, text = solvers.findings(oracle, training), f"{training.solver}\n{training.net}"
    return f"{part.what[:-1]} {seed}: {_lines(found)}\n{text}" if found else ""


def run_part(part: Part) -> Outcome:
    reports: list[str] = []
    with Oracle(part.fault) as oracle:
        for seed in part.seeds:
            report = _report(oracle, part, seed)
            if report:
                print(report, flush=True)
                reports.append(report)
            if part.most and len(reports) == part.most:
                break
        return Outcome(reports, oracle.counts, (oracle.caffe.used, oracle.ocaffe.used))


def run_parts(parts: Sequence[Part]) -> list[Outcome]:
    if len(parts) == 1:
        return [run_part(parts[0])]
    with multiprocessing.get_context("spawn").Pool(len(parts)) as pool:
        return pool.map(run_part, parts, chunksize=1)
