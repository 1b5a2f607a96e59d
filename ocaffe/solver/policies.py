"""Learning rate policies: Caffe's in its own float arithmetic (single precision where it has it, so that logged rates agree to the last bit), and
two more, all with a linear warm-up in front where one is asked for."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ocaffe.errors import Error

F = np.float32


class Policy(NamedTuple):
    """`rate` of (solver, iteration, current_step); the fields that it needs; fields of its own, which no other policy reads."""

    rate: Callable[[Any, int, int], Any]
    needs: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


def _progress(solver: Any, iteration: int) -> float:
    """How much of the training behind the warm-up is done, 0 to 1."""
    return min((iteration - solver.warmup_iter) / (solver.max_iter - solver.warmup_iter), 1.0)


def _slide(begin: float, end: float, share: float) -> float:
    """From `begin` to `end` along half a cosine."""
    return end + (begin - end) * (1 + math.cos(math.pi * share)) / 2


def _cosine(solver: Any, iteration: int, step: int) -> float:
    return _slide(solver.base_lr, solver.min_lr, _progress(solver, iteration))


def _onecycle(solver: Any, iteration: int, step: int) -> float:
    """Up to base_lr in the share onecycle_rise of the time, then far down, each along half a cosine (Smith and Topin, 'Super-convergence')."""
    first, rise, done = solver.base_lr / solver.onecycle_div, solver.onecycle_rise, _progress(solver, iteration)
    if done < rise:
        return _slide(first, solver.base_lr, done / rise)
    return _slide(solver.base_lr, first / solver.onecycle_final_div, (done - rise) / (1 - rise))


POLICIES: dict[str, Policy] = {
    "fixed": Policy(lambda s, it, step: s.base_lr),
    "step": Policy(lambda s, it, step: s.base_lr * float(F(s.gamma)) ** step, ("gamma", "stepsize")),
    "exp": Policy(lambda s, it, step: s.base_lr * float(F(s.gamma)) ** it, ("gamma",)),
    "inv": Policy(lambda s, it, step: F(s.base_lr) * np.power(F(1) + F(s.gamma) * F(it), -F(s.power)), ("gamma", "power")),
    "multistep": Policy(lambda s, it, step: s.base_lr * float(F(s.gamma)) ** step, ("gamma",)),
    "poly": Policy(lambda s, it, step: F(s.base_lr) * np.power(F(1) - F(it) / F(s.max_iter), F(s.power)), ("power",)),
    "sigmoid": Policy(lambda s, it, step: F(s.base_lr) * (F(1) / (F(1) + np.exp(-F(s.gamma) * (F(it) - F(s.stepsize))))), ("gamma", "stepsize")),
    "cosine": Policy(_cosine, ("max_iter",), ("min_lr",)),
    "onecycle": Policy(_onecycle, ("max_iter",), ("onecycle_rise", "onecycle_div", "onecycle_final_div")),
}


class LearningRate:
    """The rate of each iteration; `current_step` is the state that multistep keeps and snapshots carry."""

    def __init__(self, solver: Any) -> None:
        """`solver` is the SolverParameter; raises Error for an unknown policy, a missing field, or one of another policy."""
        if solver.lr_policy not in POLICIES:
            raise Error(f"unknown lr_policy '{solver.lr_policy}'", fix=f"one of {', '.join(POLICIES)}")
        self.solver, self.policy = solver, POLICIES[solver.lr_policy]
        self.current_step = 0
        for name in self.policy.needs:
            value = getattr(solver, name)
            if not solver.HasField(name) or value < 0 or (name == "stepsize" and solver.lr_policy == "step" and value <= 0):
                fact = f"{name} is {value:g}" if solver.HasField(name) else f"{name} is missing"
                raise Error(f"lr_policy '{solver.lr_policy}' needs {name}; {fact}", fix=f"set {name} in the solver")
        for other, policy in POLICIES.items():
            for name in policy.own:
                if solver.HasField(name) and name not in self.policy.own:
                    raise Error(f"{name} is for lr_policy '{other}', the solver has '{solver.lr_policy}'", fix=f"remove {name}")
        self._check_shape()

    def _check_shape(self) -> None:
        solver = self.solver
        if solver.warmup_iter < 0 or (self.policy.own and solver.warmup_iter >= solver.max_iter):
            raise Error(f"warmup_iter is {solver.warmup_iter}, max_iter {solver.max_iter}", fix="a warm-up shorter than the training")
        if not (0 < solver.onecycle_rise < 1 and solver.onecycle_div > 0 and solver.onecycle_final_div > 0):
            fact = f"onecycle_rise is {solver.onecycle_rise:g}, onecycle_div {solver.onecycle_div:g}, onecycle_final_div {solver.onecycle_final_div:g}"
            raise Error(fact, fix="a rise between 0 and 1, and positive divisors")

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
        if iteration < solver.warmup_iter:  # Intel's fields: from warmup_start_lr up to base_lr, whatever the policy would say
            share = iteration / solver.warmup_iter
            return float(F(share * solver.base_lr + (1 - share) * solver.warmup_start_lr)), advanced
        return float(F(self.policy.rate(solver, iteration, self.current_step))), advanced
