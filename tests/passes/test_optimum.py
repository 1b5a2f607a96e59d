"""ocaffe's choices under a memory limit against the optimum: an integer program (benchmarks/choice_program.py), which brute force confirms on a short chain."""
from __future__ import annotations

import importlib.util
import itertools
import json
import math
import pathlib
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.compiler.compile import CompiledNet, compile_net
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import record
from ocaffe.ir.rates import Rates
from ocaffe.ir.target import Target
from ocaffe.memory.plan import lifetimes, lower_bound
from ocaffe.memory.predict import predict
from ocaffe.memory.report import fixed_bytes
from ocaffe.passes.fit import Fit
from ocaffe.passes.in_place import reuse_dying_inputs
from ocaffe.passes.offload import offload
from ocaffe.passes.optimise import Fact, optimise, pipeline
from ocaffe.support.switches import Switches
from tests.harness import treat_as_large

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
LEAST = 4096  # bytes of a value
NO_LINK = Rates(flops=1e10, bandwidth=1e10, launch=1e-6)
FAST_LINK = replace(NO_LINK, to_host=1e15, from_host=1e15)  # no launch waits for a copy
SLOW_LINK = replace(NO_LINK, to_host=2e9, from_host=2e9)
WORST = 1.05  # ocaffe's time / the optimum
SHARES = (0.95, 0.85, 0.75, 0.65, 0.55, 0.4)  # of the bytes without a limit

CHANNELS = (16, 48, 12, 40, 32)  # of the convolutions of the chain
LAYER = """layer {{ name: "c{i}" type: "Convolution" bottom: "{x}" top: "c{i}" convolution_param {{ num_output: {channels} kernel_size: 1 }} }}
"""
ENDS = """layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 8 dim: 4 dim: 32 dim: 32 }} }} }}
layer {{ name: "y" type: "Input" top: "y" input_param {{ shape {{ dim: 8 }} }} }}
{layers}layer {{ name: "ip" type: "InnerProduct" bottom: "{x}" top: "ip" inner_product_param {{ num_output: 4 }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }}
"""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    treat_as_large(monkeypatch, LEAST)


def loaded(name: str) -> ModuleType:
    """Return a script of the folder benchmarks."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # dataclasses look the module up
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return loaded("choice_program")


class Chain:
    """A chain of convolutions with the first `length` of CHANNELS, as ocaffe compiles it and as the program sees it."""

    def __init__(self, program: ModuleType, length: int, rates: Rates) -> None:
        layers = [LAYER.format(i=i, x=f"c{i - 1}" if i else "x", channels=channels) for i, channels in enumerate(CHANNELS[:length])]
        self.graph = build(text_format.Parse(ENDS.format(layers="".join(layers), x=f"c{length - 1}"), proto.NetParameter()), proto.TRAIN)
        self.group, self.rates, self.program = ParameterGroup(self.graph.params), rates, program
        target = Target(max_allocation=1 << 40)
        passes = [each for each in pipeline(target, limited=True, fit=Fit(1, target.rates)) if not each.ends & {Fact.FORWARD_ONCE, Fact.INPUTS_SURVIVE}]
        recording = record(self.graph, self.group, target, NetOptions(backward=True, limit=1 << 40))
        self.net = program.Net(optimise(recording.schedule, passes)[0], rates, LEAST)
        self.all = lower_bound(lifetimes(self.net.schedule, 256), len(self.net.schedule))[0]  # bytes if nothing is dropped

    def optimum(self, budget: int) -> Any:
        found = self.program.Program(self.net, budget, self.rates.to_host > 0).solve(60, gap=1e-6)
        assert found.seconds == pytest.approx(found.bound, rel=1e-5), "the solver did not finish"
        return found

    def plan(self, budget: int, target: Target) -> CompiledNet:
        """ocaffe's plan for so many bytes of recycled memory."""
        fixed = fixed_bytes([self.net.schedule])
        found = compile_net(self.graph, self.group, target, NetOptions(backward=True, limit=fixed + budget), Switches.read())
        assert found.plan.total <= budget
        return found


class Possible(NamedTuple):
    """A choice, and the bytes and seconds of its schedule."""

    live: int
    seconds: float
    repeated: frozenset[tuple[int, int]]
    copied: frozenset[int]


def possible(program: ModuleType, net: Any, rates: Rates | None = None, limit: int = 0) -> list[Possible]:
    """Every choice of the program's space in which each repeated launch has a reader, measured as a schedule. `rates`: with copies within `limit`, too."""
    groups, stages = range(len(net.groups)), net.stages
    readers = {index: [t for t, stage in enumerate(stages) if set(net.groups[index].writes) & set(stage.last)] for index in groups}
    users = {index: [other for other in groups if set(net.groups[index].writes) & set(net.groups[other].reads)] for index in groups}
    sets: list[dict[int, tuple[int, ...]]] = [{}]
    for index in reversed(groups):
        longer = []
        for chosen in sets:
            times = sorted({*readers[index], *(t for other in users[index] for t in chosen[other])})
            before = [t for t in range(len(stages)) if times and t <= times[-1] and stages[t].begin < net.groups[index].until]
            for count in range(len(times) + 1):
                for own in itertools.combinations(before, count):
                    ends = (*own[1:], len(stages))
                    if all(any(begin <= t < end for t in times) for begin, end in zip(own, ends)):
                        longer.append({**chosen, index: own})
        sets = longer
    result = []
    for chosen in sets:
        repeated = frozenset((t, index) for index, own in chosen.items() for t in own)
        values = range(len(net.values)) if rates else ()
        for count in range(len(values) + 1):
            for copied in itertools.combinations(values, count):
                result.append(measured(program, net, repeated, frozenset(copied), rates, limit))
    return result


def measured(
    program: ModuleType, net: Any, repeated: frozenset[tuple[int, int]], copied: frozenset[int], rates: Rates | None, limit: int
) -> Possible:
    schedule, own = program.realised(net, program.Solution(0.0, 0.0, 0.0, repeated=set(repeated)))
    if rates:
        schedule = offload(schedule, {own[net.values[number]] for number in copied}, rates, limit)
    schedule = reuse_dying_inputs(schedule)
    return Possible(lower_bound(lifetimes(schedule, 256), len(schedule))[0], predict(schedule, rates or net.rates).seconds, repeated, copied)


@pytest.mark.parametrize(("length", "rates"), [(4, NO_LINK), (3, FAST_LINK)], ids=["repeats", "repeats and copies"])
def test_the_program_finds_the_optimum_of_all_choices(length: int, rates: Rates, program: ModuleType) -> None:
    chain = Chain(program, length, rates)
    choices = possible(program, chain.net, rates if rates.to_host else None)
    found, apart = [], 0
    for share in SHARES:
        budget = int(share * chain.all)
        within = [choice.seconds for choice in choices if choice.live <= budget]
        if not within:
            assert program.Program(chain.net, budget, rates.to_host > 0).solve(60).bound == math.inf
            continue
        found.append(chain.optimum(budget))
        assert found[-1].seconds == pytest.approx(min(within), rel=1e-5)
        apart += max(within) > WORST * found[-1].seconds
    assert len(found) > 1 and apart > 1  # a bad choice would be seen
    assert rates.to_host or len({round(optimum.seconds, 9) for optimum in found}) > 2


def test_no_choice_is_faster_than_the_program_with_a_slow_link(program: ModuleType) -> None:
    chain = Chain(program, 3, SLOW_LINK)
    waited = 0
    for share in SHARES[1:3]:
        budget = int(share * chain.all)
        optimum = program.Program(chain.net, budget, True).solve(60, gap=1e-6)
        within = [choice for choice in possible(program, chain.net, SLOW_LINK, budget) if choice.live <= budget]
        assert all(optimum.bound <= choice.seconds * (1 + 1e-6) for choice in within)
        waited += any(choice.copied for choice in within)
    assert waited


@pytest.mark.parametrize("rates", [NO_LINK, FAST_LINK], ids=["no link", "fast link"])
def test_plans_take_little_longer_than_the_optimum(rates: Rates, program: ModuleType) -> None:
    """The default search, and the one that may copy. Limits at which every choice without a split of the batch repeats or copies something."""
    chain = Chain(program, len(CHANNELS), rates)
    for share in SHARES[:4]:
        budget = int(share * chain.all)
        plan, optimum = chain.plan(budget, Target(max_allocation=1 << 40, rates=rates)), chain.optimum(budget)
        assert plan.microbatch is None and (optimum.repeated or optimum.copied)
        assert plan.predicted(rates).seconds <= WORST * optimum.seconds


def test_the_page_has_the_committed_figures(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script adds its own folder
    rows = json.loads((FOLDER / "optimum.json").read_text())
    assert "\n".join(loaded("optimum").table(rows)) in (FOLDER.parent / "docs" / "memory.md").read_text()
    made = [row for row in rows if row["kind"] != "link" and "made_ms" in row]
    assert made and all(row["made_over"] == 0 and row["made_ms"] == pytest.approx(row["best_ms"], rel=1e-3) for row in made)
    assert all(row["ratio"] > 0.999 for row in rows if "ratio" in row)  # a bound that a plan beats is none
