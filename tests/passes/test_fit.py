"""The choice under a limit: what `Estimate` predicts is what the schedule of a choice has, and the search finds the same choice each time."""
from __future__ import annotations

import random
from dataclasses import replace

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import record
from ocaffe.ir.launch import Access, Schedule
from ocaffe.ir.rates import Rates
from ocaffe.ir.target import Target
from ocaffe.memory.plan import lifetimes, lower_bound
from ocaffe.memory.predict import predict
from ocaffe.passes.elementwise_fusion import fuse_elementwise
from ocaffe.passes.estimate import Estimate
from ocaffe.passes.fit import Fit, choose
from ocaffe.passes.group import Group, expanded, grouped
from ocaffe.passes.in_place import reuse_dying_inputs
from ocaffe.passes.offload import offload
from ocaffe.passes.optimise import Fact, optimise, pipeline
from ocaffe.passes.recompute import Recomputation
from ocaffe.passes.verify import Verifier
from tests.harness import treat_as_large
from tests.passes.random_nets import RandomNet
from tests.zoo.counts import H100

ALIGNMENT = 256
NO_LINK = Rates(flops=1e10, bandwidth=1e10, launch=1e-6)
LINK = replace(NO_LINK, to_host=2e9, from_host=1e9)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    treat_as_large(monkeypatch, 1)


def before_choice(seed: int) -> Schedule:
    """The schedule of a random net from which the search chooses."""
    graph = build(text_format.Parse(RandomNet(seed).text, proto.NetParameter()), proto.TRAIN)
    target = Target(max_allocation=1 << 40)
    recording = record(graph, ParameterGroup(graph.params), target, NetOptions(backward=True, limit=1 << 40))
    passes = [each for each in pipeline(target, limited=True, fit=Fit(1, target.rates)) if not each.ends & {Fact.FORWARD_ONCE, Fact.INPUTS_SURVIVE}]
    return optimise(recording.schedule, passes)[0]


def drawn(estimate: Estimate, draw: random.Random) -> tuple[set[int], set[int]]:
    """A random choice that is possible: values to drop and values to store."""
    dropped, stored = set[int](), set[int]()
    for root in draw.sample(list(estimate.first_use), len(estimate.first_use)):
        way = draw.random()
        if way < 0.5 and estimate.chain(root, dropped) is not None:
            dropped.add(root)
        elif way > 0.7 and root in estimate.gaps:
            stored.add(root)
    return dropped, stored


def deviation(seed: int, rates: Rates) -> float:
    """How far the estimate of a random choice is from its schedule, in seconds or live bytes, relative to the schedule's."""
    draw = random.Random(seed)
    schedule = before_choice(seed)
    limit = int(draw.uniform(0.5, 1.2) * lower_bound(lifetimes(schedule, ALIGNMENT), len(schedule))[0])
    estimate = Estimate(schedule, rates, limit, ALIGNMENT)
    dropped, stored = drawn(estimate, draw)
    found = estimate.found(dropped, stored)
    assert found is not None
    inside = any(estimate.better_inside(root, step, dropped) for root in dropped for step in estimate.backward_reads[root])
    plan = estimate.plan
    plan.dropped, plan.kept = estimate.refs(dropped), set()
    made = plan.apply()
    seconds, bound = measured(offload(fuse_elementwise(made) if inside else made, estimate.refs(stored), rates, limit, ALIGNMENT), rates)
    slower, larger = seconds / found.seconds - 1, bound / found.peak - 1
    if stored:
        larger = min(0, larger)  # values on their way take memory, too
    if inside:
        slower, larger = max(0, slower), max(0, larger)  # fusion then merges other launches, too
    return max(abs(slower), abs(larger))


@pytest.mark.quick
@pytest.mark.parametrize("rates", [NO_LINK, LINK], ids=["no link", "link"])
@pytest.mark.parametrize("seed", range(12))
def test_the_estimate_is_that_of_the_schedule(seed: int, rates: Rates) -> None:
    assert deviation(seed, rates) < 0.02


@pytest.mark.sweep
@pytest.mark.parametrize("rates", [NO_LINK, LINK], ids=["no link", "link"])
def test_the_estimate_is_seldom_wrong(rates: Rates) -> None:
    """A few launches with many results, and values for which copies and repeats interact, deviate. A plan that then exceeds its limit is made again."""
    found = sorted(deviation(seed, rates) for seed in range(300))
    assert found[int(0.96 * len(found))] < 0.02 and found[-1] < 0.25


def measured(schedule: Schedule, rates: Rates) -> tuple[float, int]:
    """The predicted seconds and the live bytes of a schedule."""
    seconds = predict(schedule, rates).seconds
    return seconds, lower_bound(lifetimes(reuse_dying_inputs(schedule), ALIGNMENT), len(schedule))[0]


@pytest.mark.quick
def test_draws_are_no_empty_choices() -> None:
    """Else the test above could not fail."""
    draws = []
    for seed in range(12):
        estimate = Estimate(before_choice(seed), LINK, 1 << 40, ALIGNMENT)
        draws.append(drawn(estimate, random.Random(seed)))
    assert sum(len(dropped) > 1 for dropped, _ in draws) > 8 and sum(len(stored) > 1 for _, stored in draws) > 6


@pytest.mark.quick
@pytest.mark.parametrize("seed", range(4))
def test_the_choice_is_the_same_each_time(seed: int) -> None:
    schedule = before_choice(seed)
    limit = int(0.8 * lower_bound(lifetimes(schedule, ALIGNMENT), len(schedule))[0])
    found = []
    for _ in range(2):
        estimate = Estimate(schedule, LINK, limit, ALIGNMENT)
        choice = choose(estimate, schedule, limit, LINK)
        found.append((choice.dropped, choice.stored, choice.found.seconds))
    assert found[0] == found[1]


PIECES = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 128 dim: 512 dim: 512 } } }
layer { name: "a" type: "Convolution" bottom: "x" top: "a" convolution_param { num_output: 128 kernel_size: 3 pad: 1 } }
layer { name: "b" type: "Convolution" bottom: "a" top: "b" convolution_param { num_output: 128 kernel_size: 3 pad: 1 } }
layer { name: "c" type: "Convolution" bottom: "b" top: "c" convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }
layer { name: "loss" type: "Reduction" bottom: "c" top: "loss" loss_weight: 1 }
"""


def test_launches_for_one_value_are_a_group() -> None:
    """Winograd's algorithm computes a large convolution in pieces. They are repeated together, in their order, into new values."""
    graph = build(text_format.Parse(PIECES, proto.NetParameter()), proto.TRAIN)
    recording = record(graph, ParameterGroup(graph.params), H100, NetOptions(backward=True, limit=1 << 40))
    schedule = grouped(recording.schedule)
    groups = {launch.layer: launch for launch in schedule if isinstance(launch, Group)}
    assert groups.keys() >= {"a", "b"} and all(len(launch.members) > 3 for launch in groups.values())
    assert expanded(schedule) == recording.schedule
    plan = Recomputation(schedule)
    a = next(root for root in plan.makers if root.name == "a" and root in plan.needed)
    plan.dropped = {a}
    made = expanded(plan.apply())
    repeats = [launch for launch in made if launch.recomputed]
    assert [launch.what for launch in repeats] == [launch.what for launch in groups["a"].members]
    written = {ref.root for launch in groups["a"].members for ref in launch.writes}
    assert not written & {ref.root for launch in repeats for ref in launch.refs(*Access)}
    readers = [launch for launch in made if launch.phase == "backward" and not launch.recomputed and any(ref.root.name == "a again" for ref in launch.reads)]
    assert readers and not any(a in {ref.root for ref in launch.reads} for launch in made if launch.phase == "backward")
    Verifier(recording.schedule).check(made, "fit")
