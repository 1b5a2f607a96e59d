"""Values that are in the host's memory between two uses: the same bits, the limit kept, and schedules that the verifier refuses."""
from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.compiler.compile import CompiledNet
from ocaffe.errors import NoRoom
from ocaffe.ir.launch import BeginFetch, BeginStore, EndFetch, EndStore, Schedule, Transfer
from ocaffe.ir.rates import Rates
from ocaffe.memory.plan import Life, MemoryPlan, overlap, plan
from ocaffe.memory.predict import beside_seconds, predict
from ocaffe.memory.report import fixed_bytes
from ocaffe.passes.offload import Copy, offload, place_copies
from ocaffe.passes.verify import InvalidSchedule, Verifier
from ocaffe.solver.solver import Solver
from tests.harness import changed, switch
from tests.memory.test_limit import deep_solver
from tests.passes.random_nets import RandomNet
from tests.passes.test_traps import SETTINGS, same

FAST_LINK = Rates(flops=1e9, bandwidth=1e9, launch=1e-6, to_host=1e11, from_host=1e11)  # copies are cheaper than launches
SLOW_LINK = replace(FAST_LINK, to_host=1e7, from_host=1e7)  # launches wait for copies
SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(6, 500))]


@pytest.fixture(autouse=True)
def _small(small_values: None) -> None:
    """Values of any size may be copied."""


def trained(device: Any, param: Any, iterations: int = 3, **settings: Any) -> tuple[dict[str, list[np.ndarray]], CompiledNet]:
    """Return the parameters and the TRAIN net."""
    solver = Solver(param, device, **settings)
    solver.step(iterations)
    compiled = solver.train_nets()[0]
    found = solver.network.parameter_arrays(), compiled
    solver.close()
    return found


def sizes(net: CompiledNet) -> tuple[int, int]:
    """Return the recycled and the fixed bytes of a net."""
    return net.plan.total, fixed_bytes([net.recording.schedule])


def linked(device: Any, rates: Rates) -> Any:
    """Return the device as if it had memory of its own, and a link to the host's."""
    return changed(device, rates=rates)


def copies(schedule: Schedule) -> int:
    return sum(isinstance(launch, BeginStore) for launch in schedule)


@pytest.mark.parametrize("rates", [FAST_LINK, SLOW_LINK], ids=["fast", "slow"])
def test_same_bits_in_less_memory(rates: Rates, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, free = trained(device, deep_solver(), recompute="none")
    without, fixed = sizes(free)
    switch(monkeypatch, "poison")
    limit = fixed + int(0.6 * without)
    found, net = trained(linked(device, rates), deep_solver(), memory_limit=limit)
    assert sum(sizes(net)) <= limit
    same(found, kept)
    if rates is FAST_LINK:
        assert copies(net.recording.schedule) > 0


def under_random_limits(seed: int, device: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Train a random net under the first of two limits that it keeps, and compare the weights. Return the number of copies; -1: no limit is kept."""
    draw = random.Random(seed)
    param = text_format.Parse(f"net_param {{ {RandomNet(seed).text} }} {SETTINGS}", proto.SolverParameter())
    kept, free = trained(device, param, 2, recompute="none")
    without, fixed = sizes(free)
    switch(monkeypatch, "poison")
    rates = draw.choice([FAST_LINK, SLOW_LINK])
    for share in (draw.uniform(0.7, 1), draw.uniform(0.9, 1)):
        limit = fixed + int(share * without)
        try:
            found, net = trained(linked(device, rates), param, 2, memory_limit=limit)
        except NoRoom:
            continue
        assert sum(sizes(net)) <= limit
        if net.microbatch is None:
            same(found, kept)
        for layer, arrays in kept.items():
            for ours, exact in zip(found[layer], arrays):
                assert np.allclose(ours, exact, rtol=1e-4, atol=1e-6, equal_nan=True), layer
        return copies(net.recording.schedule)
    return -1


@pytest.mark.parametrize("seed", SEEDS)
def test_random_nets_keep_random_limits(seed: int, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if under_random_limits(seed, device, monkeypatch) < 0:
        pytest.skip("this net fits into none of its limits")


def test_random_limits_need_copies(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would compare little."""
    assert any(under_random_limits(seed, device, monkeypatch) > 0 for seed in range(6))


@pytest.mark.parametrize("seed", range(200))
def test_copies_come_back_after_they_left(seed: int) -> None:
    draw = random.Random(seed)
    steps = draw.randint(5, 60)
    ends = [sorted(draw.sample(range(steps), 2)) for _ in range(draw.randint(1, 8))]
    placed = [Copy(last, following, 10, 10) for last, following in sorted(ends) if following > last + 1]
    rates = replace(FAST_LINK, to_host=draw.choice([1.0, 5.0, 100.0]), from_host=draw.choice([1.0, 5.0, 100.0]))
    place_copies(placed, [draw.randint(0, 100) for _ in range(steps)], [draw.uniform(0, 5) for _ in range(steps)], rates, draw.randint(50, 250))
    for copy in placed:
        assert copy.last < copy.stored <= copy.fetched <= copy.next


@pytest.fixture
def schedules(device: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Schedule, Schedule]:
    """The schedule of a net, and the same with copies of all values."""
    switch(monkeypatch, "plan=none")  # no value reuses the memory of another
    solver = Solver(deep_solver(), device, recompute="none")
    solver.step(1)
    schedule = solver.train_nets()[0].recording.schedule
    solver.close()
    roots = {operand.ref.root for launch in schedule for operand in launch.operands}
    return schedule, offload(schedule, roots, FAST_LINK, 1 << 40)


def test_the_prediction_counts_waits_for_copies(schedules: tuple[Schedule, Schedule]) -> None:
    plain, stored = schedules
    alone = predict(plain, FAST_LINK)
    assert (alone.waits, alone.copied) == (0, 0)
    fast, slow = predict(stored, FAST_LINK), predict(stored, SLOW_LINK)
    assert fast.copied == slow.copied > 0
    assert alone.seconds <= fast.seconds < slow.seconds
    beside = beside_seconds(slow.copied, SLOW_LINK)
    assert slow.waits > 0 and slow.seconds == pytest.approx(alone.seconds + slow.waits + beside, rel=1e-3)


def test_values_of_the_host_have_places_of_their_own(schedules: tuple[Schedule, Schedule]) -> None:
    _, stored = schedules
    found = plan(stored)
    assert found.host_slabs and not {life.ref for life in found.lives} & {life.ref for life in found.host_lives}
    assert overlap(found) is None


def swapped(schedule: Schedule, first: type, second: type) -> Schedule:
    """Return the schedule with the first launch of one type moved behind the matching one of the other type."""
    copies = [launch for launch in schedule if isinstance(launch, Transfer)]
    one = next(launch for launch in copies if isinstance(launch, first))
    other = next(launch for launch in copies if isinstance(launch, second) and launch.host is one.host)
    rest = [launch for launch in schedule if launch is not one]
    at = rest.index(other) + 1
    return [*rest[:at], one, *rest[at:]]


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        (EndStore, BeginFetch, "begins while another copy of it is in progress"),  # fetched before it was written back
        (BeginStore, EndStore, "ends, and it never began"),
        (BeginFetch, EndFetch, "ends, and it never began"),
    ],
)
def test_the_verifier_names_copies_in_the_wrong_order(first: type, second: type, fault: str, schedules: tuple[Schedule, Schedule]) -> None:
    plain, stored = schedules
    verifier = Verifier([launch.origin or launch for launch in plain])
    verifier.check(stored, "offload")
    with pytest.raises(InvalidSchedule, match=fault):
        verifier.check(swapped(stored, first, second), "offload")


def test_the_verifier_names_a_use_before_the_end_of_a_copy(schedules: tuple[Schedule, Schedule]) -> None:
    plain, stored = schedules
    end = next(index for index, launch in enumerate(stored) if isinstance(launch, EndFetch) and not isinstance(stored[index + 1], Transfer))
    wrong = [*stored[:end], stored[end + 1], stored[end], *stored[end + 2 :]]
    with pytest.raises(InvalidSchedule, match=r"while it is copied from .* on host"):
        Verifier([launch.origin or launch for launch in plain]).check(wrong, "offload")


def test_a_slot_that_is_reused_too_early_is_named(schedules: tuple[Schedule, Schedule]) -> None:
    _, stored = schedules
    found = plan(stored)
    first, second = sorted(found.host_lives, key=lambda life: life.first)[:2]
    wrong = MemoryPlan({**found.places, second.ref: found.places[first.ref]}, found.slabs, found.lives, 0, 0, found.host_slabs, found.host_lives)
    both = overlap(wrong)
    assert both is not None and {life.ref for life in both} == {first.ref, second.ref}
    assert all(isinstance(life, Life) for life in both)
