"""Learning rate policies: those of Caffe, cosine and onecycle, all with an optional linear warm-up.

Caffe's policies use single precision where Caffe does, so that logged rates agree to the last bit.
"""
from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ocaffe.solver.faults import Fault, refuse

F = np.float32


class Policy(NamedTuple):
    """`rate` is a function of (solver, iteration, current_step). `needs` are required fields; no other policy reads the fields `own`."""

    rate: Callable[[Any, int, int], Any]
    needs: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


def _progress(solver: Any, iteration: int) -> float:
    """Return the share of the training after the warm-up that is done, 0 to 1."""
    return min((iteration - solver.warmup_iter) / (solver.max_iter - solver.warmup_iter), 1.0)


def _slide(begin: float, end: float, share: float) -> float:
    """Return the value at `share` on half a cosine from `begin` to `end`."""
    return end + (begin - end) * (1 + math.cos(math.pi * share)) / 2


def _cosine(solver: Any, iteration: int, step: int) -> float:
    return _slide(solver.base_lr, solver.min_lr, _progress(solver, iteration))


def _onecycle(solver: Any, iteration: int, step: int) -> float:
    """Rise to base_lr during the share onecycle_rise of the training, then fall, each on half a cosine.

    See Smith and Topin, 'Super-convergence'.
    """
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
    """The rate of each iteration. `current_step` is multistep's state, which snapshots store."""

    def __init__(self, solver: Any) -> None:
        """`solver` is the SolverParameter. Raises Error for the first of `rate_faults`."""
        refuse(rate_faults(solver))
        self.solver, self.policy = solver, POLICIES[solver.lr_policy]
        self.current_step = 0

    def __call__(self, iteration: int) -> tuple[float, bool]:
        """Return the rate of `iteration` and whether multistep advanced in this call.

        multistep advances at most one step per iteration (docs/quirks.md, quirk 33).
        """
        solver, advanced = self.solver, False
        if solver.lr_policy == "step":
            self.current_step = iteration // solver.stepsize
        elif solver.lr_policy == "multistep":
            steps = solver.stepvalue
            if self.current_step < len(steps) and iteration >= steps[self.current_step]:
                self.current_step += 1
                advanced = True
        if iteration < solver.warmup_iter:  # Intel's fields: linear from warmup_start_lr to base_lr, in place of the policy
            share = iteration / solver.warmup_iter
            return float(F(share * solver.base_lr + (1 - share) * solver.warmup_start_lr)), advanced
        rate = rate_of(solver, iteration, self.current_step)
        refuse(_infinite(solver, iteration, rate))
        return rate, advanced


def rate_of(solver: Any, iteration: int, step: int) -> float:
    """Return the policy's rate, infinite or NaN where a float cannot hold it, as with a gamma above 1. `step` is current_step."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(F(POLICIES[solver.lr_policy].rate(solver, iteration, step)))
    except OverflowError:
        return math.inf


def rate_faults(solver: Any) -> Iterator[Fault]:
    """Yield an unknown policy, missing fields, fields of other policies, and a rate that becomes infinite, with which Caffe trains on."""
    name = solver.lr_policy
    if name not in POLICIES:
        near = difflib.get_close_matches(name.lower(), POLICIES, 1, 0.6) if name else ["fixed"]
        fact = f"unknown lr_policy '{name}'" if name else "lr_policy is missing"
        fix = f'lr_policy: "{near[0]}", or another' if near else "one"
        yield Fault("lr_policy", fact, f"{fix} of {', '.join(POLICIES)}")
        return
    faults = [*_missing(solver), *_foreign(solver), *_shape(solver)]
    yield from faults
    if not faults and solver.max_iter > solver.warmup_iter and math.isfinite(solver.base_lr):
        yield from _infinite(solver, solver.max_iter - 1, rate_of(solver, solver.max_iter - 1, _last_step(solver)))


def _infinite(solver: Any, iteration: int, rate: float) -> Iterator[Fault]:
    if not math.isfinite(rate):
        fact = f"the learning rate of iteration {iteration} is {rate}: lr_policy '{solver.lr_policy}', gamma {solver.gamma:g}"
        yield Fault("gamma", fact, "a smaller gamma, or a smaller max_iter")


def _missing(solver: Any) -> Iterator[Fault]:
    for name in POLICIES[solver.lr_policy].needs:
        value = getattr(solver, name)
        if not solver.HasField(name) or value < 0 or (name == "stepsize" and solver.lr_policy == "step" and value <= 0):
            fact = f"{name} is {value:g}" if solver.HasField(name) else f"{name} is missing"
            yield Fault(name, f"lr_policy '{solver.lr_policy}' needs {name}; {fact}", f"set {name} in the solver")


def _foreign(solver: Any) -> Iterator[Fault]:
    for other, policy in POLICIES.items():
        for name in policy.own:
            if solver.HasField(name) and name not in POLICIES[solver.lr_policy].own:
                yield Fault(name, f"{name} is for lr_policy '{other}', the solver has '{solver.lr_policy}'", f'remove {name}, or lr_policy: "{other}"')


def _shape(solver: Any) -> Iterator[Fault]:
    if solver.warmup_iter < 0 or (POLICIES[solver.lr_policy].own and solver.warmup_iter >= solver.max_iter):
        yield Fault("warmup_iter", f"warmup_iter is {solver.warmup_iter}, max_iter {solver.max_iter}", "a warm-up shorter than the training")
    if not (0 < solver.onecycle_rise < 1 and solver.onecycle_div > 0 and solver.onecycle_final_div > 0):
        fact = f"onecycle_rise is {solver.onecycle_rise:g}, onecycle_div {solver.onecycle_div:g}, onecycle_final_div {solver.onecycle_final_div:g}"
        yield Fault("onecycle_rise", fact, "a rise between 0 and 1, and positive divisors")


def _last_step(solver: Any) -> int:
    """Return current_step in the last iteration."""
    last = solver.max_iter - 1
    if solver.lr_policy == "step":
        return int(last // solver.stepsize)
    return min(len(list(itertools.takewhile(lambda value: value <= last, solver.stepvalue))), solver.max_iter)
