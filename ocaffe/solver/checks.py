"""Checks of a SolverParameter: invalid values, and fields of forks that would change results and are not supported.

The tables SOLVER_CHECKS and OUTPUT_CHECKS have all of them. `ocaffe train` raises the first fault, `ocaffe lint` reports all.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ocaffe.formats.fork_fields import all_refused_in, told
from ocaffe.ir.graph import Graph
from ocaffe.proto import is_repeated
from ocaffe.solver.average_precision import VERSIONS
from ocaffe.solver.best import best_faults
from ocaffe.solver.faults import Fault, refuse, unknown_choice
from ocaffe.solver.policies import rate_faults
from ocaffe.solver.scoring import detections_of
from ocaffe.solver.update import update_faults

EXAMPLES = {"base_lr": 0.01, "momentum": 0.9, "momentum2": 0.999, "delta": 1e-8, "gamma": 0.1, "power": 1, "clip_gradients": 10}  # for remedies
CHOICES = {"eval_type": ("classification", "detection"), "ap_version": VERSIONS}  # fields of text with their values
# fields with their lowest value and the first one that is too large
RANGES: dict[str, tuple[float, float]] = {
    "iter_size": (1, 2**31), "average_loss": (1, 2**31), "snapshot_keep": (0, 2**31), "early_stopping": (0, 2**31), "ema_decay": (0, 1),
    "snapshot_interval_seconds": (0, 2**31),
}  # fmt: skip


def check_solver(param: Any, file: str | None = None) -> None:
    """Raise Error for the first of `solver_faults`. `file` is the path of the solver."""
    refuse(solver_faults(param), file)


def check_outputs(param: Any, tests: Sequence[Graph], file: str | None = None) -> None:
    """Raise Error for the first of `output_faults`."""
    refuse(output_faults(param, tests), file)


def solver_faults(param: Any) -> Iterator[Fault]:
    """Yield the unsupported fields and the invalid values of a SolverParameter."""
    for check in SOLVER_CHECKS:
        yield from check(param)


def output_faults(param: Any, tests: Sequence[Graph]) -> Iterator[Fault]:
    """Yield the settings that do not match the outputs of the TEST nets."""
    for check in OUTPUT_CHECKS:
        yield from check(param, tests)


def _fork_fields(param: Any) -> Iterator[Fault]:
    for key, refused in all_refused_in(param):
        yield Fault(key.split(".")[1], f"the solver's field {told(key, refused)}", refused.without)


def _numbers(param: Any) -> Iterator[Fault]:
    for field, value in param.ListFields():
        for number in value if is_repeated(field) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                yield Fault(field.name, f"{field.name} is {number}", f"{field.name}: {EXAMPLES.get(field.name, 0):g}, or another finite number")
    for name, (low, high) in RANGES.items():
        value = getattr(param, name)
        if not low <= value < high:
            yield Fault(name, f"{name} is {value:g}", f"set {name} to {low:g} or more" + (f" and less than {high:g}" if high <= 1 else ""))


def _choices(param: Any) -> Iterator[Fault]:
    for name, choices in CHOICES.items():
        yield from unknown_choice(param, name, choices)


def _dependencies(param: Any) -> Iterator[Fault]:
    if param.ema_test and not param.ema_decay:
        fix = "remove ema_test, or set ema_decay, for example ema_decay: 0.999"
        yield Fault("ema_test", "ema_test is true, but ema_decay is 0, so there is no average", fix)
    if param.early_stopping and not param.HasField("best_output"):
        yield Fault("early_stopping", "early_stopping is given without best_output", 'name an output of the TEST net: best_output: "accuracy"')
    if param.HasField("best_output") and not param.test_iter:
        yield Fault("best_output", f"best_output is '{param.best_output}', but nothing is tested", "set test_iter and test_interval, or remove best_output")


def _evaluation(param: Any, tests: Sequence[Graph]) -> Iterator[Fault]:
    for index, graph in enumerate(tests):
        found = [*detections_of(graph, param.ap_version)]
        if found and param.eval_type != "detection":
            fact = f"eval_type is '{param.eval_type}', and output '{found[0]}' of TEST net {index} is the top of DetectionEvaluate, which has no mean"
            yield Fault("eval_type", fact, 'eval_type: "detection"')
        if not found and param.eval_type == "detection":
            known = ", ".join(blob.name for blob in graph.outputs) or "none"
            fact = f"eval_type is 'detection', and no output of TEST net {index} is the top of DetectionEvaluate; its outputs: {known}"
            yield Fault("eval_type", fact, 'remove eval_type, or end the net with layer { type: "DetectionEvaluate" }')


Check = Callable[[Any], Iterator[Fault]]
OutputCheck = Callable[[Any, Sequence[Graph]], Iterator[Fault]]
SOLVER_CHECKS: tuple[Check, ...] = (_fork_fields, _numbers, _choices, _dependencies, rate_faults, update_faults)
OUTPUT_CHECKS: tuple[OutputCheck, ...] = (_evaluation, best_faults)


def writes_snapshots(solver: Any) -> bool:
    """Return whether a training with this SolverParameter writes snapshots without a signal."""
    return bool(solver.snapshot > 0 or solver.snapshot_interval_seconds > 0 or solver.snapshot_after_train or solver.HasField("best_output"))
