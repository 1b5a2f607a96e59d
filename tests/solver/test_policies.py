"""Learning rate policies beyond Caffe's: cosine, one-cycle, warm-up, those of forks. test_solver_golden.py compares Caffe's policies."""
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
STAGES = "stagelr: [0.01, 0.3, 0.002] stageiter: [10, 40, 70]"
OWN = {"multifixed": STAGES, "sgdr": "period: 20"}  # fields that a policy needs beyond FIELDS


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
    own = f'lr_policy: "{policy}" {OWN.get(policy, "")}'
    warm, plain = (rates(f"{own} {text}") for text in ("warmup_iter: 20 warmup_start_lr: 0.02", ""))
    np.testing.assert_allclose(warm[:20], 0.02 + 0.08 * np.arange(20) / 20, rtol=1e-6)
    if POLICIES[policy].in_all:
        np.testing.assert_array_equal(warm[20:], rates(own, 80, 80))
    else:
        np.testing.assert_array_equal(warm[20:], plain[20:])


@pytest.mark.parametrize("policy", POLICIES)
def test_lowest_rate(policy: str) -> None:
    """NVCaffe's min_lr: poly ends at it, no policy falls below it. Where the forks agree, 0 changes no bit."""
    own = f'lr_policy: "{policy}" {OWN.get(policy, "")}'
    plain, low = rates(own), rates(f"{own} min_lr: 0.03")
    t = np.arange(100)
    if policy == "poly":
        np.testing.assert_allclose(low, 0.07 * (1 - t / 100) ** 0.75 + 0.03, rtol=1e-5)
    elif policy in ("cosine", "sgdr"):
        assert low.min() >= np.float32(0.03) and low[0] == plain[0]
    else:
        np.testing.assert_array_equal(low, np.maximum(plain, np.float32(0.03)))


def test_ramp_up() -> None:
    """NVCaffe's rampup_interval: quadratic from rampup_lr, 0 unless it is set, in place of the policy. min_lr holds there, too."""
    t = np.arange(20) / 20
    for text, first in (("", 0), ("rampup_lr: 0.05", 0.05), ("rampup_lr: 0.5", 0.5)):
        found = rates(f'lr_policy: "step" rampup_interval: 20 {text}')
        np.testing.assert_allclose(found[:20], first + (0.1 - first) * t**2, rtol=1e-5)
        np.testing.assert_array_equal(found[20:], rates('lr_policy: "step"')[20:])
    low = rates('lr_policy: "fixed" rampup_interval: 20 min_lr: 0.01')
    np.testing.assert_allclose(low[:20], np.maximum(0.1 * t**2, 0.01), rtol=1e-5)


def test_stages() -> None:
    """Intel's multifixed: iteration stageiter still has the rate of its stage; the last rate stays. base_lr has no effect."""
    found = rates(f'lr_policy: "multifixed" {STAGES}')
    expected = np.float32([0.01] * 11 + [0.3] * 30 + [0.002] * 59)
    np.testing.assert_array_equal(found, expected)


def test_restarts() -> None:
    """deepdetect's sgdr: periods of 10, 15, 22 and so on, in whole iterations, from rates of 0.1, 0.08, 0.064."""
    found = rates('lr_policy: "sgdr" period: 10 p_mult: 1.5 lr_mult: 0.8 min_lr: 0.01')
    begin, period, highest = 0, 10, 0.1
    for t, rate in enumerate(found):
        if t == begin + period:
            begin, period, highest = t, int(period * 1.5), highest * 0.8
        assert rate == pytest.approx(0.01 + (highest - 0.01) * (1 + math.cos(math.pi * (t - begin) / period)) / 2, rel=1e-5)
    whole = rates('lr_policy: "sgdr"')  # without a period, one period is the training
    np.testing.assert_allclose(whole, 0.05 * (1 + np.cos(math.pi * np.arange(100) / 100)), rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('lr_policy: "fixed" min_lr: -0.1', "min_lr is -0.1"),
        ('lr_policy: "poly" min_lr: 0.2', "min_lr is 0.2, base_lr 0.1"),
        (f'lr_policy: "fixed" {STAGES}', "stagelr is for lr_policy 'multifixed', the solver has 'fixed'"),
        ('lr_policy: "multifixed" stagelr: [0.1, 0.2] stageiter: 10', "has 2 stagelr and 1 stageiter"),
        ('lr_policy: "multifixed"', "has 0 stagelr and 0 stageiter"),
        ('lr_policy: "sgdr" p_mult: 0', "p_mult 0"),
        ('lr_policy: "step" period: 3', "period is for lr_policy 'sgdr'"),
        ('lr_policy: "fixed" rampup_interval: 5 warmup_iter: 5', "quadratic warm-up"),
        ('lr_policy: "cosine" onecycle_rise: 0.1', "onecycle_rise is for lr_policy 'onecycle'"),
        ('lr_policy: "cosine" warmup_iter: 100', "warmup_iter is 100, max_iter 100"),
        ('lr_policy: "fixed" warmup_iter: -1', "warmup_iter is -1"),
        ('lr_policy: "onecycle" onecycle_rise: 1', "onecycle_rise is 1"),
        ('lr_policy: "plateau"', "lr_policy is 'plateau': .* loss"),
        ('lr_policy: "unheard"', "unknown lr_policy 'unheard'"),
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


def test_a_negative_rate_is_that_of_caffe() -> None:
    """Only a min_lr that is set limits the rate."""
    text = 'base_lr: -0.1 lr_policy: "poly" power: 1 max_iter: 2 '
    assert [LearningRate(parse(text, proto.SolverParameter, "solver"))(iteration)[0] for iteration in (0, 1)] == pytest.approx([-0.1, -0.05])
    with pytest.raises(Error, match=r"min_lr is 0\.1, base_lr -0\.1"):
        LearningRate(parse(text + "min_lr: 0.1", proto.SolverParameter, "solver"))
