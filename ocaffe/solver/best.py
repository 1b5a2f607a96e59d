"""Find the best test by one output of the TEST nets (best_output), and stop if no better one follows (early_stopping)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob, Graph
from ocaffe.solver.faults import Fault, refuse
from ocaffe.solver.scoring import Output, detections_of, segmentations_of
from ocaffe.support import log
from ocaffe.support.log import number


class Best:
    """The best mean so far, `value`, and its iteration. Both are None before the first test. NaN is never better."""

    def __init__(self, param: Any, tests: Sequence[Graph], file: str | None = None) -> None:
        """Use the first of `tests`, the TEST nets, that has the output. Raises Error for the first of `best_faults`.

        A top of DetectionEvaluate stands for its mean AP, and TOP/mean_iou for the mean IoU of a SegAccuracy layer.
        """
        refuse(best_faults(param, tests), file)
        self.param, self.name = param, str(param.best_output)
        outputs = [*map(_outputs, tests)]
        self.net = next(index for index, names in enumerate(outputs) if self.name in names)
        blob = outputs[self.net][self.name]
        lower = param.best_is == proto.SolverParameter.LOWER if param.HasField("best_is") else bool(blob.loss_weight)
        self._sign = -1 if lower else 1
        self.value: float | None = None
        self.iteration: int | None = None

    def tested(self, iteration: int, outputs: Sequence[Sequence[Output]]) -> bool:
        """Record the means of all TEST nets. Return whether this test is the best so far."""
        score = next(float(values.reshape(-1)[0]) for name, values, _ in outputs[self.net] if name == self.name)
        if self.iteration is None:
            self.iteration = iteration
        if np.isnan(score) or (self.value is not None and self._sign * score <= self._sign * self.value):
            return False
        self.value, self.iteration = score, iteration
        log.info("solver.cpp:430", f"Best {self.name} so far: {number(score)} (iteration {iteration})")
        return True

    def exhausted(self, iteration: int) -> bool:
        """Return, and log, whether early_stopping requires to stop after the test at `iteration`."""
        patience = self.param.early_stopping
        if not patience or self.iteration is None or iteration - self.iteration < patience * self.param.test_interval:
            return False
        best = "no number" if self.value is None else number(self.value)
        log.info("solver.cpp:430", f"Early stopping: {self.name} is no better than {best} (iteration {self.iteration}) after {patience} more tests")
        return True


def best_faults(param: Any, tests: Sequence[Graph]) -> Iterator[Fault]:
    """Yield a best_output that no TEST net has, or that is not a single number."""
    if not param.HasField("best_output") or not tests:
        return
    name, outputs = str(param.best_output), [*map(_outputs, tests)]
    found = next((names[name] for names in outputs if name in names), None)
    if found is None:
        known = ", ".join(dict.fromkeys(name for names in outputs for name in names)) or "none"
        fix = "set best_output to one of these" if known != "none" else "remove best_output, or end the TEST net with an Accuracy layer"
        yield Fault("best_output", f"best_output is '{name}', the outputs of the TEST nets are: {known}", fix)
    elif found.count != 1:
        yield Fault("best_output", f"best_output '{name}' is {shape_text(found.shape)}, not one number", "set best_output to an output with one value")


def _outputs(graph: Graph) -> dict[str, Blob]:
    return {blob.name: blob for blob in graph.outputs} | _scores(graph)


def _scores(graph: Graph) -> dict[str, Blob]:
    """Return a blob of one number for each score of a whole test."""
    return {name: Blob(name, ()) for name in (*detections_of(graph, ""), *segmentations_of(graph))}
