"""The pass that joins launches to task graphs, and the verifier's errors for wrong graphs. tests/cl/test_task_graph.py runs graphs."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ocaffe import proto
from ocaffe.compiler.compile import CompiledNet, compile_net
from ocaffe.formats.text import parse
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.kernel import Access, Can, Kernel
from ocaffe.ir.launch import EMPTY, Empty, Operand, Schedule
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import plan
from ocaffe.memory.report import dump
from ocaffe.passes import join_launches as joining
from ocaffe.passes.join_launches import join_launches
from ocaffe.passes.verify import InvalidSchedule, Verifier
from ocaffe.support.switches import Switches
from tests.cl.test_task_graph import NET

CPU, ALL, SCORING = Target(), Switches(), NetOptions(backward=False, prepack_weights=True)
SCORED = NET + """
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: [2] } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def compiled(target: Target = CPU, options: NetOptions = SCORING, switches: Switches = ALL) -> CompiledNet:
    graph = build(parse(SCORED, proto.NetParameter), proto.TEST)
    return compile_net(graph, ParameterGroup(graph.params), target, options, switches)


def graphs(schedule: Schedule) -> list[list[int]]:
    """The steps of each graph."""
    numbers = sorted({launch.graph for launch in schedule if launch.graph is not None})
    assert numbers == list(range(len(numbers)))
    return [[step for step, launch in enumerate(schedule) if launch.graph == number] for number in numbers]


def again(schedule: Schedule, target: Target = CPU, **limits: int) -> list[list[int]]:
    """The graphs of a changed schedule."""
    for launch in schedule:
        launch.graph = None
    return graphs(join_launches(schedule, target, **limits))


def test_neighbours_are_joined() -> None:
    found = compiled()
    schedule = found.recording.schedule
    assert found.passes[-1].name == "join_launches" and found.passes[-1].before == len(schedule)
    assert any(launch.prepacks_weights for launch in schedule)
    for steps in graphs(schedule):
        assert len(steps) >= joining.FEWEST
        assert all(joining.may_lie_within(schedule[step]) for step in set(range(steps[0], steps[-1])) - set(steps))
    lines = list(dump(schedule, found.plan))
    assert [" graph 0 " in line for line in lines] == [launch.graph == 0 for launch in schedule] and any(" graph 0 " in line for line in lines)


@pytest.mark.parametrize("target", [CPU, Target(kind="gpu", runtime="nvidia")], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    ("options", "switches"),
    [
        (NetOptions(), Switches()),
        (NetOptions(backward=False, apart=True), Switches()),
        (NetOptions(backward=False, fuse=False), Switches()),
        *((NetOptions(backward=False), switches) for switches in (
            Switches(fuse=False), Switches(join=False), Switches(single=True), Switches(poison=True), Switches(share=False, separate=True))),
    ],
)  # fmt: skip
def test_plans_without_graphs(target: Target, options: NetOptions, switches: Switches) -> None:
    found = compiled(target, options, switches)
    assert not graphs(found.recording.schedule) and "join_launches" not in {each.name for each in found.passes}
    assert not graphs(compiled(Target(kind="gpu", runtime="nvidia")).recording.schedule)


def test_a_plan_is_that_of_single_launches() -> None:
    joined, single = compiled(), compiled(switches=Switches(join=False))
    assert graphs(joined.recording.schedule)
    assert [(life.first, life.last, life.size) for life in joined.plan.lives] == [(life.first, life.last, life.size) for life in single.plan.lives]
    assert list(joined.plan.places.values()) == list(single.plan.places.values())


def test_what_ends_a_graph() -> None:
    schedule = compiled().recording.schedule
    steps = graphs(schedule)[0]
    middle = schedule[steps[joining.FEWEST]]
    kernel, written = middle.kernel, middle.operands

    def changed(**fields: object) -> list[list[int]]:
        at = schedule.index(middle)
        return again([*schedule[:at], replace(middle, **fields), *schedule[at + 1 :]])

    assert changed()[0] == steps
    first = steps[: joining.FEWEST]
    assert changed(kernel=Kernel(kernel.name, *kernel.slots, can=replace(kernel.can, join=False)))[0] == first
    assert changed(operands=[*written, Operand(Ref("w", (1,), Role.PARAMETER), Access.MODIFY)])[0] == first
    assert changed(phase="update")[0] == first
    assert changed(call=replace(middle.final(), local=(2, 1, 1)), lower=None)[0] == first
    assert changed(call=replace(middle.final(), local=None), lower=None)[0] == first
    assert changed(prepacks_weights=True)[0] == [step for step in steps if schedule[step] is not middle]
    assert again([Empty("e", "forward", [], EMPTY), *(launch for launch in schedule if launch is not middle)])[0][0] == steps[0] + 1
    assert not again(schedule[steps[0] : steps[joining.FEWEST - 1]]), "few launches"


def buffers(launches: Schedule) -> int:
    """Return how many buffers launches need if there is one slab. Outputs share a buffer, recycled values share the slab."""
    roots = {operand.ref.root for launch in launches for operand in launch.operands}
    shared = {"outputs": [root for root in roots if root.role is Role.OUTPUT], "slab": [root for root in roots if not root.persistent]}
    return len(roots) - sum(max(0, len(some) - 1) for some in shared.values())


def test_limits_of_a_graph() -> None:
    schedule = compiled().recording.schedule
    whole = graphs(schedule)
    found = again(schedule, replace(CPU, argument_bytes=joining.OTHER_ARGUMENTS + 8 * 6), fewest=2)
    assert len(found) > len(whole) and all(buffers([schedule[step] for step in steps]) <= 6 for steps in found)
    found = again(schedule, fewest=2, most_routines=2)
    assert len(found) > len(whole) and all(len({joining._routine(schedule[step]) for step in steps}) <= 2 for steps in found)


@pytest.mark.parametrize("limit", [1 << 30, 40_000, 12_000, 4_000, 1_000])
def test_a_plan_has_no_more_slabs(limit: int) -> None:
    target = replace(CPU, max_allocation=limit)
    schedule = compiled().recording.schedule
    for share in (True, False):
        assert len(plan(schedule, alignment=target.alignment, slab_limit=limit, share=share).slabs) <= joining._slabs(schedule, target)


def not_neighbours(schedule: Schedule, steps: list[int]) -> None:
    schedule[steps[2]].graph = None


def of_another_graph(schedule: Schedule, steps: list[int]) -> None:
    schedule[steps[2]].graph = 7


def of_two_phases(schedule: Schedule, steps: list[int]) -> None:
    schedule[steps[2]].phase = "update"


def without_the_ability(schedule: Schedule, steps: list[int]) -> None:
    schedule[steps[2]].kernel = Kernel("one", *schedule[steps[2]].kernel.slots, can=Can())


def prepacking(schedule: Schedule, steps: list[int]) -> None:
    schedule[steps[2]].prepacks_weights = True


@pytest.mark.parametrize(
    ("fault", "fact"),
    [
        (not_neighbours, "lies within task graph 0, which it is not part of"),
        (of_another_graph, "lies within task graph 0, which it is not part of"),
        (of_two_phases, "task graph 0 has launches of another phase"),
        (without_the_ability, "cannot be part of task graph 0"),
        (prepacking, "cannot be part of task graph 0"),
    ],
)
def test_wrong_graphs_are_named(fault: Callable[[Schedule, list[int]], None], fact: str) -> None:
    schedule = compiled().recording.schedule
    verifier = Verifier(schedule)
    verifier.check(schedule, "join_launches")
    steps = graphs(schedule)[0]
    fault(schedule, steps)
    with pytest.raises(InvalidSchedule, match=f"after pass join_launches: step {steps[2]}, .*{fact}"):
        verifier.check(schedule, "join_launches")
