"""Run ranges of seeds, in several processes."""
from __future__ import annotations

import collections
import multiprocessing
from collections.abc import Sequence
from typing import NamedTuple

from tests.oracle import solvers, specs
from tests.oracle.case import Case
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
    how = f"# phase {small.phase}, form {small.form}, steps {list(small.steps)}, kept {small.kept}, debug {small.debug!r}"
    text = f"{small.text}{how}\n# inputs {dict(small.inputs)}"
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


MEASURED = ("Filter", "DetectionOutput")  # types whose tops have a size that a pass measures


def forms(case: Case) -> list[str]:
    """The properties of the net of a case, besides its types."""
    layers = list(case.net.layer)
    measured = [layer for layer in layers if layer.type in MEASURED]
    read = {bottom for layer in layers for bottom in layer.bottom}
    ruled = any(layer.include or layer.exclude for layer in layers)
    facts = {
        f"form {case.form}": True, f"phase {case.phase}": True, "force_backward": case.net.force_backward, "backward pass": case.backward,
        "several passes": len(case.steps) > 1, "reshape of inputs": any(step.shapes for step in case.steps),
        "net.reshape()": any(step.reshape for step in case.steps),
        "include or exclude": ruled, "stages or level": bool(case.stages or case.level),
        "sizes measured in a pass": bool(measured), "a reader of such a size": any(set(layer.top) & read for layer in measured),
        "measured, with include or exclude": bool(measured) and ruled, "measured, with planned memory": bool(measured) and case.kept is not None,
        "in place": any(set(layer.top) & set(layer.bottom) for layer in layers), "propagate_down": any(layer.propagate_down for layer in layers),
        "shared parameters": any(spec.name for layer in layers for spec in layer.param), "loss weights": any(layer.loss_weight for layer in layers),
        "planned memory (keep)": case.kept is not None, "poison": case.debug == "poison",
        "poison and planned memory": case.debug == "poison" and case.kept is not None,
    }  # fmt: skip
    return [name for name, fact in facts.items() if fact]


def drawn(seeds: Sequence[int], types: Sequence[str] = ()) -> collections.Counter[str]:
    """The numbers of nets that have each type and each form. No net is run."""
    cases = [random_net(seed, types) for seed in seeds]
    return collections.Counter(name for case in cases for name in (*sorted(set(case.types)), *forms(case)))


def run_parts(parts: Sequence[Part]) -> list[Outcome]:
    if len(parts) == 1:
        return [run_part(parts[0])]
    with multiprocessing.get_context("spawn").Pool(len(parts)) as pool:
        return pool.map(run_part, parts, chunksize=1)
