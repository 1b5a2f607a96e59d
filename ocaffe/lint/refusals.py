"""Rules for all that `ocaffe train` refuses. They run the checks of training itself, so that the two know the same.

The checks of the solver are the tables in ocaffe/solver/checks.py. A net is built and recorded, as it is before a training, for a CPU.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from ocaffe.compiler.network import check_filler, fitting, shared_parameters
from ocaffe.errors import Error, Place
from ocaffe.formats.weights import read_weights, weight_files
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import record
from ocaffe.ir.graph import Graph
from ocaffe.ir.target import Target
from ocaffe.lint.rules import Finding, Job, View, job_rule, net_rule
from ocaffe.solver.checks import output_faults, solver_faults, writes_snapshots
from ocaffe.solver.snapshot import prefix_of


@net_rule
def impossible(view: View) -> Iterator[Finding]:
    """Errors that prevent building the net: unknown types, blobs and fillers, shapes that do not match, gradients that a layer cannot compute."""
    graph = view.shaped
    if graph is not None:
        for parameter in graph.params:
            check_filler(parameter)
        record(graph, ParameterGroup(graph.params), Target(max_allocation=1 << 40), NetOptions(backward=view.train))
    yield from ()


@job_rule
def refused(job: Job) -> Iterator[Finding]:
    """Settings of the solver that `ocaffe train` refuses: unknown or unsupported values, missing fields, outputs that do not exist."""
    solver = job.solver
    if solver is None or job.file is None:
        return
    graphs = [_shaped(view) for view in job.tests]
    tests = [graph for graph in graphs if graph is not None]
    for fault in (*solver_faults(solver), *(output_faults(solver, tests) if len(tests) == len(graphs) else ())):
        field = fault.field if fault.field in job.file.lines else f"{fault.field}[0]"
        yield job.finding("refused", field, fault.fact, fault.fix)
    prefix = prefix_of(solver, job.file.path)
    obstacle = _unwritable(Path(prefix).absolute().parent) if writes_snapshots(solver) else None
    if obstacle:
        fix = f"snapshots cannot be written to '{prefix}*': {obstacle}"
        yield job.finding("refused", "snapshot_prefix", fix, "set snapshot_prefix to a folder that you can write to")


@job_rule
def weights_refused(job: Job) -> Iterator[Finding]:
    """Weights that the solver names and that `ocaffe train` refuses: a file that is missing or damaged, or other shapes than those of the net."""
    graph = _shaped(job.training) if job.training is not None else None
    for path in weight_files(job.solver.weights) if job.solver is not None else ():
        try:
            weights = read_weights(path)
            list(fitting(graph, weights) if graph is not None else ())
        except Error as problem:
            yield job.finding("weights-refused", "weights[0]", f"{path}: {problem.fact}", problem.fix or "")


@job_rule
def shapes_differ(job: Job) -> Iterator[Finding]:
    """A layer whose parameters have other shapes in a TEST net than in the TRAIN net, with which it shares them."""
    training = _shaped(job.training) if job.training is not None else None
    for view in job.tests if job.solver is not None else ():
        graph = _shaped(view)
        try:
            list(shared_parameters(graph, training) if graph is not None and training is not None else ())
        except Error as problem:
            yield Finding("shapes-differ", cast(Place, problem.place), problem.layer or "", problem.fact, problem.fix or "")


def _shaped(view: View) -> Graph | None:
    """Return the net of `view` with its shapes. None also for a net that cannot be built, which `impossible` reports."""
    try:
        return view.shaped
    except Error:
        return None


def _unwritable(folder: Path) -> str:
    """Return why no file can be written to `folder`, which training would make; '' if one can."""
    present = next(each for each in (folder, *folder.parents) if each.exists())
    if not present.is_dir():
        return f"{present} is not a folder"
    return "" if os.access(present, os.W_OK | os.X_OK) else f"{present} cannot be written"
