"""Learning rate policies: those of Caffe and its forks, cosine and onecycle. All have an optional warm-up and a lowest rate.

Of forks are multifixed (Intel: stagelr and stageiter), sgdr (deepdetect), the linear warm-up of warmup_iter (Intel), the quadratic one of
rampup_interval (NVCaffe), and min_lr (NVCaffe): poly ends at it, and no policy falls below it.

Caffe's policies use single precision where Caffe does, so that logged rates agree to the last bit.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.fork_fields import REFUSED

F = np.float32
ENDING = ("poly", "cosine", "sgdr")  # policies that end at min_lr
PLATEAU = REFUSED["SolverParameter.plateau_winsize"]


def given(solver: Any, name: str) -> bool:
    """Whether a field of a SolverParameter, which may be a list, is set."""
    return bool(len(getattr(solver, name))) if proto.is_repeated(solver.DESCRIPTOR.fields_by_name[name]) else bool(solver.HasField(name))


class Policy(NamedTuple):
    """`rate` is a function of (solver, iteration, current_step). `needs` are required fields; no other policy reads the fields `own`.

    `in_all`: the whole training has the shape of one curve, so it must be longer than the warm-up.
    """

    rate: Callable[[Any, int, int], Any]
    needs: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    in_all: bool = False


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


def _poly(solver: Any, iteration: int, step: int) -> Any:
    return (F(solver.base_lr) - F(solver.min_lr)) * np.power(F(1) - F(iteration) / F(solver.max_iter), F(solver.power)) + F(solver.min_lr)


def _multifixed(solver: Any, iteration: int, step: int) -> float:
    """The rate of the first stage whose stageiter is not yet exceeded; after the last one, its rate."""
    stage = next((number for number, last in enumerate(solver.stageiter) if iteration <= last), len(solver.stageiter) - 1)
    return float(solver.stagelr[stage])


def _sgdr(solver: Any, iteration: int, step: int) -> float:
    """Half a cosine from the highest rate to min_lr in each period. A restart multiplies the highest rate by lr_mult and the period by p_mult."""
    period, highest, begin = solver.period if solver.period > 0 else solver.max_iter, solver.base_lr, 0
    while iteration >= begin + period > begin:
        begin, period, highest = begin + period, int(period * solver.p_mult), highest * solver.lr_mult
    return float(solver.min_lr + 0.5 * (highest - solver.min_lr) * (1 + math.cos(math.pi * (iteration - begin) / max(period, 1))))


POLICIES: dict[str, Policy] = {
    "fixed": Policy(lambda s, it, step: s.base_lr),
    "step": Policy(lambda s, it, step: s.base_lr * float(F(s.gamma)) ** step, ("gamma", "stepsize")),
    "exp": Policy(lambda s, it, step: s.base_lr * float(F(s.gamma)) ** it, ("gamma",)),
    "inv": Policy(lambda s, it, step: F(s.base_lr) * np.power(F(1) + F(s.gamma) * F(it), -F(s.power)), ("gamma", "power")),
    "multistep": Policy(lambda s, it, step: s.base_lr * float(F(s.gamma)) ** step, ("gamma",)),
    "poly": Policy(_poly, ("power",)),
    "sigmoid": Policy(lambda s, it, step: F(s.base_lr) * (F(1) / (F(1) + np.exp(-F(s.gamma) * (F(it) - F(s.stepsize))))), ("gamma", "stepsize")),
    "multifixed": Policy(_multifixed, (), ("stagelr", "stageiter")),
    "sgdr": Policy(_sgdr, (), ("period", "p_mult", "lr_mult")),
    "cosine": Policy(_cosine, ("max_iter",), in_all=True),
    "onecycle": Policy(_onecycle, ("max_iter",), ("onecycle_rise", "onecycle_div", "onecycle_final_div"), in_all=True),
}


class LearningRate:
    """The rate of each iteration. `current_step` is multistep's state, which snapshots store."""

    def __init__(self, solver: Any) -> None:
        """`solver` is the SolverParameter. Raises Error for an unknown policy, a missing field, or a field of another policy."""
        if solver.lr_policy == "plateau":
            raise Error(f"lr_policy is 'plateau': {PLATEAU.did}", fix=PLATEAU.without)
        if solver.lr_policy not in POLICIES:
            fact = f"unknown lr_policy '{solver.lr_policy}'" if solver.lr_policy else "lr_policy is missing"
            raise Error(fact, fix=f"one of {', '.join(POLICIES)}")
        self.solver, self.policy = solver, POLICIES[solver.lr_policy]
        self.current_step = 0
        for name in self.policy.needs:
            value = getattr(solver, name)
            if not solver.HasField(name) or value < 0 or (name == "stepsize" and solver.lr_policy == "step" and value <= 0):
                fact = f"{name} is {value:g}" if solver.HasField(name) else f"{name} is missing"
                raise Error(f"lr_policy '{solver.lr_policy}' needs {name}; {fact}", fix=f"set {name} in the solver")
        for other, policy in POLICIES.items():
            for name in policy.own:
                if given(solver, name) and name not in self.policy.own:
                    raise Error(f"{name} is for lr_policy '{other}', the solver has '{solver.lr_policy}'", fix=f"remove {name}")
        self._check_shape()
        if solver.max_iter > solver.warmup_iter:
            self._rate(solver.max_iter - 1, self._last_step())

    def _check_shape(self) -> None:
        solver = self.solver
        if not (solver.min_lr >= 0 and (solver.lr_policy not in ENDING or solver.base_lr >= solver.min_lr)):
            raise Error(f"min_lr is {solver.min_lr:g}, base_lr {solver.base_lr:g}", fix="min_lr of 0 or more, and at most base_lr")
        if solver.rampup_interval and solver.warmup_iter:
            fact = f"rampup_interval is {solver.rampup_interval} (NVCaffe's quadratic warm-up), warmup_iter {solver.warmup_iter} (Intel's linear one)"
            raise Error(fact, fix="keep one of them")
        if solver.lr_policy == "multifixed" and not len(solver.stagelr) == len(solver.stageiter) > 0:
            fact = f"lr_policy 'multifixed' has {len(solver.stagelr)} stagelr and {len(solver.stageiter)} stageiter"
            raise Error(fact, fix="a stagelr, and a stageiter that ends it, for each stage")
        if solver.lr_policy == "sgdr" and not (solver.p_mult > 0 and max(solver.period, solver.max_iter) > 0):
            raise Error(f"lr_policy 'sgdr' has period {solver.period}, p_mult {solver.p_mult:g}", fix="a period of 1 or more, and a positive p_mult")
        if solver.warmup_iter < 0 or (self.policy.in_all and solver.warmup_iter >= solver.max_iter):
            raise Error(f"warmup_iter is {solver.warmup_iter}, max_iter {solver.max_iter}", fix="a warm-up shorter than the training")
        if not (0 < solver.onecycle_rise < 1 and solver.onecycle_div > 0 and solver.onecycle_final_div > 0):
            fact = f"onecycle_rise is {solver.onecycle_rise:g}, onecycle_div {solver.onecycle_div:g}, onecycle_final_div {solver.onecycle_final_div:g}"
            raise Error(fact, fix="a rise between 0 and 1, and positive divisors")

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
        if iteration < solver.rampup_interval:  # NVCaffe's fields: quadratic from rampup_lr to base_lr, in place of the policy
            share, first = F(iteration) / F(solver.rampup_interval), F(solver.rampup_lr)
            return max(float(first + (F(solver.base_lr) - first) * share * share), float(F(solver.min_lr))), advanced
        return self._rate(iteration, self.current_step), advanced

    def _last_step(self) -> int:
        """Return current_step in the last iteration."""
        solver, last = self.solver, self.solver.max_iter - 1
        if solver.lr_policy == "step":
            return last // solver.stepsize
        return min(len(list(itertools.takewhile(lambda value: value <= last, solver.stepvalue))), solver.max_iter)

    def _rate(self, iteration: int, step: int) -> float:
        """Return the policy's rate. Raises Error if a float cannot hold it, as with a gamma above 1; Caffe trains on with infinity."""
        try:
            with np.errstate(over="ignore"):
                rate = max(float(F(self.policy.rate(self.solver, iteration, step))), float(F(self.solver.min_lr)))
        except OverflowError:
            rate = math.inf
        if not math.isfinite(rate):
            fact = f"the learning rate of iteration {iteration} is {rate}: lr_policy '{self.solver.lr_policy}', gamma {self.solver.gamma:g}"
            raise Error(fact, fix="a smaller gamma, or a smaller max_iter")
        return rate
