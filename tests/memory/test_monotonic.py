"""A plan that fits in less memory also fits in more: the predicted time of a net does not rise with its limit."""
from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.cl.rates import assumed
from ocaffe.compiler.compile import compile_net, nearest_net
from ocaffe.compiler.points import NetOfStep, plans_of
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.target import Target
from ocaffe.memory.curve import trace
from ocaffe.memory.report import fixed_bytes
from ocaffe.solver.update import Updater
from ocaffe.support.switches import Switches
from tests.harness import treat_as_large
from tests.memory.test_limit import deep_solver, uneven
from tests.zoo.counts import H100

RISE = 1.01  # of the predicted time; the search is no exact one
SHARES = (0.9, 0.75, 0.6, 0.45)  # of the recycled memory that the net takes without a limit
CPU = Target(runtime="intel", vector_width=16, max_allocation=1 << 40)
TARGETS = {"cpu": replace(CPU, rates=assumed(CPU)), "gpu": replace(H100, rates=assumed(H100))}
TARGETS["link"] = replace(H100, rates=replace(assumed(H100), to_host=5e10, from_host=5e10))
# As in VGG-16, early layers have the largest values, and many weights are at the end.
EARLY = ([8, 3, 32, 32], [(16, 3, ""), (16, 3, "MAX"), (32, 3, ""), (32, 3, "MAX")])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    treat_as_large(monkeypatch, 4096)


def graph_of(name: str) -> Any:
    return uneven(*EARLY) if name == "early" else build(deep_solver(6).net_param, proto.TRAIN)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", ["early", "residual"])
def test_time_does_not_rise_with_the_limit(name: str, kind: str) -> None:
    graph, target = graph_of(name), TARGETS[kind]
    group = ParameterGroup(graph.params)
    update = Updater(group, proto.SolverParameter(type="SGD", momentum=0.9))

    def seconds(limit: int) -> float:
        made = nearest_net(graph, group, target, NetOptions(backward=True, limit=limit), Switches(), update)
        return made.predicted(target.rates).seconds if made.keeps_limit else float("inf")

    free = compile_net(graph, group, target, NetOptions(backward=True, recompute="none"), Switches(), update)
    limits = [fixed_bytes([free.recording.schedule]) + int(share * free.plan.total) for share in SHARES]
    times = [seconds(limit) for limit in limits]
    assert times[0] < float("inf")
    for index, time in enumerate(times):
        assert time <= RISE * min(times[index:]), (limits[index], times)


def test_a_curve_rises_as_memory_falls() -> None:
    graph, target = graph_of("early"), TARGETS["cpu"]
    group = ParameterGroup(graph.params)
    update = Updater(group, proto.SolverParameter(type="SGD", momentum=0.9))

    def nearest(limit: int | None, beside: int) -> Any:
        return nearest_net(graph, group, target, NetOptions(backward=True, limit=limit, beside=beside), Switches(), update)

    points = trace(plans_of([NetOfStep(nearest, 1)], target, target.rates))
    assert len(points) > 2
    for larger, smaller in itertools.pairwise(points):
        assert smaller.bytes < larger.bytes and smaller.seconds > larger.seconds
