"""Learning rate policies beyond Caffe's: cosine, one-cycle, warm-up. test_solver_golden.py compares Caffe's policies."""
from __future__ import annotations

import math

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.solver.policies import POLICIES, LearningRate

pytestmark = pytest.mark.quick

FIELDS = "base_lr: 0.1 gamma: 0.5 power: 0.75 stepsize: 30 stepvalue: 25 stepvalue: 60"


def rates(text: str, iterations: int = 100, end: int = 100) -> np.ndarray:
    rate = LearningRate(parse(f"{FIELDS} max_iter: {end} {text}", proto.SolverParameter, "solver"))
    return np.array([rate(iteration)[0] for iteration in range(iterations)])


def test_cosine() -> None:
    expected = [0.01 + 0.09 * (1 + math.cos(math.pi * i / 100)) / 2 for i in range(100)]
    np.testing.assert_allclose(rates('lr_policy: "cosine" min_lr: 0.01'), expected, rtol=1e-6)
    assert rates('lr_policy: "cosine"', 120)[100:].max() < 1e-9  # stays at the end value


def test_onecycle() -> None:
    found = rates('lr_policy: "onecycle" onecycle_rise: 0.2 onecycle_div: 10 onecycle_final_div: 100', 101)
    assert found[[0, 10, 20, 60, 100]] == pytest.approx([0.01, 0.055, 0.1, 0.05005, 1e-4], rel=1e-5)
    assert (np.diff(found[:21]) > 0).all() and (np.diff(found[20:]) < 0).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_warm_up(policy: str) -> None:
    """The rate rises linearly from warmup_start_lr to base_lr, then follows the policy. Policies that depend on max_iter start after the warm-up."""
    warm, plain = (rates(f'lr_policy: "{policy}" {text}') for text in ("warmup_iter: 20 warmup_start_lr: 0.02", ""))
    np.testing.assert_allclose(warm[:20], 0.02 + 0.08 * np.arange(20) / 20, rtol=1e-6)
    if POLICIES[policy].own:
        np.testing.assert_array_equal(warm[20:], rates(f'lr_policy: "{policy}"', 80, 80))
    else:
        np.testing.assert_array_equal(warm[20:], plain[20:])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('lr_policy: "fixed" min_lr: 0.1', "min_lr is for lr_policy 'cosine', the solver has 'fixed'"),
        ('lr_policy: "cosine" onecycle_rise: 0.1', "onecycle_rise is for lr_policy 'onecycle'"),
        ('lr_policy: "cosine" warmup_iter: 100', "warmup_iter is 100, max_iter 100"),
        ('lr_policy: "fixed" warmup_iter: -1', "warmup_iter is -1"),
        ('lr_policy: "onecycle" onecycle_rise: 1', "onecycle_rise is 1"),
        ('lr_policy: "plateau"', "unknown lr_policy 'plateau'"),
    ],
)
def test_refused(text: str, told: str) -> None:
    with pytest.raises(Error, match=told) as caught:
        rates(text)
    assert caught.value.fix


def test_cosine_needs_an_end() -> None:
    with pytest.raises(Error, match="needs max_iter; max_iter is missing"):
        LearningRate(parse('lr_policy: "cosine" base_lr: 1', proto.SolverParameter, "solver"))


@pytest.mark.parametrize("policy", ["step", "exp", "multistep"])
def test_rate_that_no_float_holds(policy: str) -> None:
    """It is refused at the start, not in the iteration that reaches it."""
    text = f'base_lr: 0.01 lr_policy: "{policy}" gamma: 3 stepsize: 1 max_iter: 900'
    steps = " stepvalue: 3" * 900
    with pytest.raises(Error, match="the learning rate of iteration 899 is inf") as caught:
        LearningRate(parse(text + steps, proto.SolverParameter, "solver"))
    assert caught.value.fix
    later = " stepvalue: 100" * 900  # after the last iteration
    rate = LearningRate(parse(text.replace("900", "30") + later, proto.SolverParameter, "solver"))
    assert math.isfinite(rate(29)[0])


def test_rate_after_the_last_iteration() -> None:
    rate = LearningRate(parse('base_lr: 0.01 lr_policy: "step" gamma: 3 stepsize: 1 max_iter: 30', proto.SolverParameter, "solver"))
    with pytest.raises(Error, match="the learning rate of iteration 5000 is inf"):
        rate(5000)
