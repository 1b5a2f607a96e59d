"""Learning rate policies: those of Caffe and its forks, cosine and onecycle. All have an optional warm-up and a lowest rate.

Of forks are multifixed (Intel: stagelr and stageiter), sgdr (deepdetect), the linear warm-up of warmup_iter (Intel), the quadratic one of
rampup_interval (NVCaffe), and min_lr (NVCaffe): poly ends at it, and no policy falls below it.

Caffe's policies use single precision where Caffe does, so that logged rates agree to the last bit.
"""
from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.formats.fork_fields import REFUSED
from ocaffe.solver.faults import Fault, refuse

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
        if iteration < solver.rampup_interval:  # NVCaffe's fields: quadratic from rampup_lr to base_lr, in place of the policy
            share, first = F(iteration) / F(solver.rampup_interval), F(solver.rampup_lr)
            return _floored(solver, float(first + (F(solver.base_lr) - first) * share * share)), advanced
        rate = rate_of(solver, iteration, self.current_step)
        refuse(_infinite(solver, iteration, rate))
        return rate, advanced


def rate_of(solver: Any, iteration: int, step: int) -> float:
    """Return the policy's rate, infinite or NaN where a float cannot hold it, as with a gamma above 1. `step` is current_step."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return _floored(solver, float(F(POLICIES[solver.lr_policy].rate(solver, iteration, step))))
    except OverflowError:
        return math.inf


def _floored(solver: Any, rate: float) -> float:
    """Return the rate, or min_lr if it is set and the rate is below it."""
    return max(rate, float(F(solver.min_lr))) if solver.min_lr else rate


def rate_faults(solver: Any) -> Iterator[Fault]:
    """Yield an unknown policy, missing fields, fields of other policies, and a rate that becomes infinite, with which Caffe trains on."""
    name = solver.lr_policy
    if name == "plateau":
        yield Fault("lr_policy", f"lr_policy is 'plateau': {PLATEAU.did}", PLATEAU.without)
        return
    if name not in POLICIES:
        near = difflib.get_close_matches(name.lower(), POLICIES, 1, 0.6) if name else ["fixed"]
        fact = f"unknown lr_policy '{name}'" if name else "lr_policy is missing"
        fix = f'lr_policy: "{near[0]}", or another' if near else "one"
        yield Fault("lr_policy", fact, f"{fix} of {', '.join(POLICIES)}")
        return
    faults = [*_missing(solver), *_foreign(solver), *_shape(solver), *_stages(solver)]
    yield from faults
    if not faults and solver.max_iter > solver.warmup_iter and math.isfinite(solver.base_lr):
        yield from _infinite(solver, solver.max_iter - 1, rate_of(solver, solver.max_iter - 1, _last_step(solver)))


def _infinite(solver: Any, iteration: int, rate: float) -> Iterator[Fault]:
    if not math.isfinite(rate):
        fact = f"the learning rate of iteration {iteration} is {rate}: lr_policy '{solver.lr_policy}', gamma {solver.gamma:g}"
        yield Fault("gamma", fact, "set a smaller gamma, or a smaller max_iter")


def _missing(solver: Any) -> Iterator[Fault]:
    for name in POLICIES[solver.lr_policy].needs:
        value = getattr(solver, name)
        if not solver.HasField(name) or value < 0 or (name == "stepsize" and solver.lr_policy == "step" and value <= 0):
            fact = f"{name} is {value:g}" if solver.HasField(name) else f"{name} is missing"
            least = "1 or more" if name in ("stepsize", "max_iter") else "0 or more"
            yield Fault(name, f"lr_policy '{solver.lr_policy}' needs {name}; {fact}", f"set {name} in the solver to {least}, or use another lr_policy")


def _foreign(solver: Any) -> Iterator[Fault]:
    for other, policy in POLICIES.items():
        for name in policy.own:
            if given(solver, name) and name not in POLICIES[solver.lr_policy].own:
                yield Fault(name, f"{name} is for lr_policy '{other}', the solver has '{solver.lr_policy}'", f'remove {name}, or set lr_policy: "{other}"')


def _shape(solver: Any) -> Iterator[Fault]:
    if not solver.min_lr >= 0 or (solver.min_lr and solver.lr_policy in ENDING and not solver.base_lr >= solver.min_lr):
        fix = f"set min_lr to a number from 0 to {solver.base_lr:g} (base_lr)" if solver.base_lr > 0 else "remove min_lr"
        yield Fault("min_lr", f"min_lr is {solver.min_lr:g}, base_lr {solver.base_lr:g}", fix)
    if solver.rampup_interval and solver.warmup_iter:
        fact = f"rampup_interval is {solver.rampup_interval} (NVCaffe's quadratic warm-up), warmup_iter {solver.warmup_iter} (Intel's linear one)"
        yield Fault("rampup_interval", fact, "remove rampup_interval, or warmup_iter")
    if solver.warmup_iter < 0 or (POLICIES[solver.lr_policy].in_all and solver.warmup_iter >= solver.max_iter):
        yield Fault("warmup_iter", f"warmup_iter is {solver.warmup_iter}, max_iter {solver.max_iter}", "set warmup_iter to 0 or more and less than max_iter")
    if not 0 < solver.onecycle_rise < 1:
        yield Fault("onecycle_rise", f"onecycle_rise is {solver.onecycle_rise:g}", "set onecycle_rise above 0 and below 1: the share of iterations that rise")
    for name in ("onecycle_div", "onecycle_final_div"):
        if not getattr(solver, name) > 0:
            yield Fault(name, f"{name} is {getattr(solver, name):g}", f"set {name} to a number above 0: rates are divided by it")


def _stage_remedy(rates: int, ends: int) -> str:
    if rates > ends:
        return f"add {rates - ends} stageiter: each is the iteration at which its stage ends"
    return f"add {ends - rates} stagelr: each is the rate of a stage" if ends > rates else "give each stage its rate in stagelr and its end in stageiter"


def _stages(solver: Any) -> Iterator[Fault]:
    if solver.lr_policy == "multifixed" and not len(solver.stagelr) == len(solver.stageiter) > 0:
        fact = f"lr_policy 'multifixed' has {len(solver.stagelr)} stagelr and {len(solver.stageiter)} stageiter"
        yield Fault("lr_policy", fact, _stage_remedy(len(solver.stagelr), len(solver.stageiter)))
    if solver.lr_policy == "sgdr" and not solver.p_mult > 0:
        yield Fault("p_mult", f"lr_policy 'sgdr' has p_mult {solver.p_mult:g}", "set p_mult above 0: each period has so many times the iterations of the last")
    elif solver.lr_policy == "sgdr" and max(solver.period, solver.max_iter) <= 0:
        yield Fault("period", f"lr_policy 'sgdr' has period {solver.period}", "set period to the iterations of the first period, at least 1")


def _last_step(solver: Any) -> int:
    """Return current_step in the last iteration."""
    last = solver.max_iter - 1
    if solver.lr_policy == "step":
        return int(last // solver.stepsize)
    return min(len(list(itertools.takewhile(lambda value: value <= last, solver.stepvalue))), solver.max_iter)
