"""Learning rate policies in Caffe's own float arithmetic: single precision where Caffe has it, so that logged rates agree to the last bit."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe.errors import Error

F = np.float32
POLICIES: dict[str, tuple[Callable[[Any, int, int], Any], tuple[str, ...]]] = {
    # name: (rate of (solver, iteration, current_step), fields it needs)
    "fixed": (lambda s, it, step: s.base_lr, ()),
    "step": (lambda s, it, step: s.base_lr * float(F(s.gamma)) ** step, ("gamma", "stepsize")),
    "exp": (lambda s, it, step: s.base_lr * float(F(s.gamma)) ** it, ("gamma",)),
    "inv": (lambda s, it, step: F(s.base_lr) * np.power(F(1) + F(s.gamma) * F(it), -F(s.power)), ("gamma", "power")),
    "multistep": (lambda s, it, step: s.base_lr * float(F(s.gamma)) ** step, ("gamma",)),
    "poly": (lambda s, it, step: F(s.base_lr) * np.power(F(1) - F(it) / F(s.max_iter), F(s.power)), ("power",)),
    "sigmoid": (lambda s, it, step: F(s.base_lr) * (F(1) / (F(1) + np.exp(-F(s.gamma) * (F(it) - F(s.stepsize))))), ("gamma", "stepsize")),
}


class LearningRate:
    """The rate of each iteration; `current_step` is the state that multistep keeps and snapshots carry."""

    def __init__(self, solver: Any) -> None:
        """`solver` is the SolverParameter; raises Error for an unknown policy or a missing field."""
        if solver.lr_policy not in POLICIES:
            raise Error(f"unknown lr_policy '{solver.lr_policy}'", fix=f"one of {', '.join(POLICIES)}")
        for name in POLICIES[solver.lr_policy][1]:
            value = getattr(solver, name)
            if not solver.HasField(name) or value < 0 or (name == "stepsize" and solver.lr_policy == "step" and value <= 0):
                fact = f"{name} is {value:g}" if solver.HasField(name) else f"{name} is missing"
                raise Error(f"lr_policy '{solver.lr_policy}' needs {name}; {fact}", fix=f"set {name} in the solver")
        self.solver = solver
        self.current_step = 0

    def __call__(self, iteration: int) -> tuple[float, bool]:
        """The rate of `iteration`, and whether multistep has just advanced (at most one step an iteration, quirk 33)."""
        solver, advanced = self.solver, False
        if solver.lr_policy == "step":
            self.current_step = iteration // solver.stepsize
        elif solver.lr_policy == "multistep":
            steps = solver.stepvalue
            if self.current_step < len(steps) and iteration >= steps[self.current_step]:
                self.current_step += 1
                advanced = True
        rate, _ = POLICIES[solver.lr_policy]
        return float(F(rate(solver, iteration, self.current_step))), advanced
