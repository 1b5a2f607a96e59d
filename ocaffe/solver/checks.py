"""Checks of a SolverParameter: invalid values, and fields of forks that would change results and are not supported."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe.errors import Error
from ocaffe.formats.fork_fields import refused_in, told
from ocaffe.ir.graph import Graph
from ocaffe.solver.average_precision import VERSIONS
from ocaffe.solver.scoring import detections_of

CHOICES = {"eval_type": ("classification", "detection"), "ap_version": VERSIONS}  # fields of text with their values
# fields with their lowest value and the first one that is too large
RANGES: dict[str, tuple[float, float]] = {
    "iter_size": (1, 2**31), "average_loss": (1, 2**31), "snapshot_keep": (0, 2**31), "early_stopping": (0, 2**31), "ema_decay": (0, 1),
    "snapshot_interval_seconds": (0, 2**31),
}  # fmt: skip


def check_solver(param: Any, file: str | None = None) -> None:
    """Raise Error for unsupported fields and invalid values of `param`."""
    found = refused_in(param)
    if found is not None:
        raise Error(f"the solver's field {told(*found)}", place=file, fix=found[1].without)
    for name, (low, high) in RANGES.items():
        value = getattr(param, name)
        if not low <= value < high:
            fix = f"{low:g} or more" + (f" and less than {high:g}" if high <= 1 else "")
            raise Error(f"{name} is {value:g}", place=file, fix=fix)
    for name, choices in CHOICES.items():
        if getattr(param, name) not in choices:
            raise Error(f"{name} is '{getattr(param, name)}'", place=file, fix=f"one of {', '.join(choices)}")
    if param.ema_test and not param.ema_decay:
        raise Error("ema_test is true, but there is no average", place=file, fix="set ema_decay, for example to 0.999")
    if param.early_stopping and not param.HasField("best_output"):
        raise Error("early_stopping is given without best_output", place=file, fix='name an output of the TEST net: best_output: "accuracy"')
    if param.HasField("best_output") and not param.test_iter:
        raise Error(f"best_output is '{param.best_output}', but nothing is tested", place=file, fix="give test_iter and test_interval")


def check_evaluation(param: Any, tests: Sequence[Graph], file: str | None = None) -> None:
    """Raise Error unless the TEST nets have the outputs that eval_type scores."""
    for index, graph in enumerate(tests):
        found = [*detections_of(graph, param.ap_version)]
        if found and param.eval_type != "detection":
            fact = f"eval_type is '{param.eval_type}', and output '{found[0]}' of TEST net {index} is the top of DetectionEvaluate, which has no mean"
            raise Error(fact, place=file, fix='eval_type: "detection"')
        if not found and param.eval_type == "detection":
            known = ", ".join(blob.name for blob in graph.outputs) or "none"
            fact = f"eval_type is 'detection', and no output of TEST net {index} is the top of DetectionEvaluate; its outputs: {known}"
            raise Error(fact, place=file, fix='remove eval_type, or end the net with layer { type: "DetectionEvaluate" }')


def writes_snapshots(solver: Any) -> bool:
    """Return whether a training with this SolverParameter writes snapshots without a signal."""
    return bool(solver.snapshot > 0 or solver.snapshot_interval_seconds > 0 or solver.snapshot_after_train or solver.HasField("best_output"))
