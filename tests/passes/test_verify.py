"""The verifier names pass, launch and tensor of an invalid schedule. Each test injects one fault into a pass over a small residual net."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.compiler.compile import compile_net
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import record
from ocaffe.ir.launch import Access, CopyRegion, Launch, Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import BFLOAT, Ref, Role
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.passes import optimise
from ocaffe.passes.fit import Fit
from ocaffe.passes.optimise import Fact, Pass, pipeline
from ocaffe.passes.verify import InvalidSchedule, Verifier
from ocaffe.support.switches import Switches
from tests.harness import switch
from tests.passes.random_nets import RandomNet

NET = """
layer { name: 'data' type: 'DummyData' top: 'data' top: 'label' dummy_data_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 } } }
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv' convolution_param { num_output: 8 kernel_size: 3 pad: 1 } }
layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: 'conv' }
layer { name: 'branch' type: 'Convolution' bottom: 'conv' top: 'branch' convolution_param { num_output: 8 kernel_size: 1 } }
layer { name: 'sum' type: 'Eltwise' bottom: 'conv' bottom: 'branch' top: 'sum' }
layer { name: 'both' type: 'Concat' bottom: 'sum' bottom: 'branch' top: 'both' }
layer { name: 'ip' type: 'InnerProduct' bottom: 'both' top: 'ip' inner_product_param { num_output: 5 } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'label' top: 'loss' }
"""
TARGETS = {"cpu": Target(), "gpu": Target(kind="gpu", runtime="nvidia", compute_units=8, tensor_cores=True, device_fence="PTX", math="bf16")}


def recorded(target: Target = TARGETS["cpu"]) -> Schedule:
    graph = build(text_format.Parse(NET, proto.NetParameter()), proto.TRAIN)
    return record(graph, ParameterGroup(graph.params), target, NetOptions()).schedule


def first(schedule: Schedule, layer: str, phase: str = "forward") -> Launch:
    return next(launch for launch in schedule if (launch.layer, launch.phase) == (layer, phase))


def without_origin(schedule: Schedule) -> Schedule:
    launch = first(schedule, "ip")
    return [replace(each, origin=None) if each is launch else each for each in schedule]


def with_foreign_origin(schedule: Schedule) -> Schedule:
    return [replace(each, origin=replace(each)) if each is first(schedule, "ip") else each for each in schedule]


def reversed_forward(schedule: Schedule) -> Schedule:
    end = next(step for step, launch in enumerate(schedule) if launch.phase == "backward")
    return [*schedule[:end][::-1], *schedule[end:]]


def reversed_whole(schedule: Schedule) -> Schedule:
    return schedule[::-1]


def without_writer(schedule: Schedule) -> Schedule:
    writer = next(launch for launch in schedule if any(ref.root.name == "branch" for ref in launch.writes))
    return [launch for launch in schedule if launch is not writer]


def without_part(schedule: Schedule) -> Schedule:
    """One of the two copies of Concat is lost: half of the top is never written."""
    copy = next(launch for launch in schedule if isinstance(launch.details, CopyRegion))
    return [launch for launch in schedule if launch is not copy]


def out_of_bounds(schedule: Schedule) -> Schedule:
    operand = first(schedule, "ip").operands[0]
    first(schedule, "ip").operands[0] = replace(operand, ref=operand.ref.root.view(operand.ref.shape, 1))
    return schedule


def of_another_type(schedule: Schedule) -> Schedule:
    operand = first(schedule, "ip").operands[0]
    view = operand.ref.root.view(operand.ref.shape)
    view.dtype = np.dtype(np.int32)
    first(schedule, "ip").operands[0] = replace(operand, ref=view)
    return schedule


def killed_value(schedule: Schedule) -> Schedule:
    """The branch is written into the storage of the ReLU's output, which the sum reads later."""
    branch = next(ref.root for launch in schedule for ref in launch.writes if ref.root.name == "branch")
    conv = next(ref.root for ref in first(schedule, "sum").reads if ref.root is not branch)
    branch.base, branch.reuses_storage = conv, True
    branch.shape = conv.shape
    return schedule


def constant_written(schedule: Schedule) -> Schedule:
    next(ref.root for launch in schedule for ref in launch.writes if ref.root.name == "both").role = Role.CONSTANT
    return schedule


def parameter_written(schedule: Schedule) -> Schedule:
    next(ref.root for launch in schedule for ref in launch.writes if ref.root.name == "both").role = Role.PARAMETER
    return schedule


def late_forward(schedule: Schedule) -> Schedule:
    return [*schedule, first(schedule, "ip")]


def bf16_unknown(schedule: Schedule) -> Schedule:
    next(ref.root for launch in schedule for ref in launch.writes if ref.root.name == "branch").dtype = BFLOAT
    return schedule


def shared_without_a_pair(schedule: Schedule) -> Schedule:
    launch = next(launch for launch in schedule if any(ref.root.name == "branch" for ref in launch.writes) and launch.operands[-1].access is Access.WRITE)
    source = launch.operands[0].ref.root
    launch.operands[-1] = replace(launch.operands[-1], ref=source.view(launch.operands[-1].ref.shape))
    return schedule


def misplaced_mask(schedule: Schedule) -> Schedule:
    launch = next(launch for launch in schedule if launch.call is not None)
    launch.define(FUSED_RELU=1)
    return schedule


def undeclared_operand(schedule: Schedule) -> Schedule:
    launch = next(launch for launch in schedule if launch.call is not None)
    launch.operands[0] = replace(launch.operands[0], name="other")
    return schedule


def misplaced_reduction(schedule: Schedule) -> Schedule:
    launch = next(launch for launch in schedule if launch.call is not None)
    launch.define(CHANNEL_REDUCTION=1)
    return schedule


def misplaced_epilogue(schedule: Schedule) -> Schedule:
    launch = next(launch for launch in schedule if launch.epilogue is not None)
    assert launch.call is not None
    launch.call = replace(launch.call, scalars=launch.call.scalars[:-1])
    return schedule


def neither_call_nor_expression(schedule: Schedule) -> Schedule:
    next(launch for launch in schedule if launch.call is not None).call = None
    return schedule


def operand_lost(schedule: Schedule) -> Schedule:
    launch = next(launch for launch in schedule if launch.lower is not None and len(launch.operands) > 2)
    launch.inplace = ()
    launch.operands.pop(0)
    return schedule


def listed_twice(schedule: Schedule) -> Schedule:
    return [*schedule, schedule[-1]]


FAULTS: list[tuple[Callable[[Schedule], Schedule], str, str]] = [
    (without_origin, "forward of 'ip'", "a new launch without an origin"),
    (with_foreign_origin, "forward of 'ip'", "was not recorded"),
    (reversed_forward, "forward of", "no launch writes elements"),
    (reversed_whole, "of '", ""),
    (without_writer, "<activation branch", "no launch writes elements 0 to"),
    (without_part, "<activation both", "no launch writes elements"),
    (out_of_bounds, "forward of 'ip'", "view <activation both"),
    (of_another_type, "forward of 'ip'", "is int32, its base"),
    (killed_value, "of '", ""),
    (constant_written, "both", "a constant"),
    (parameter_written, "both", "outside of an update"),
    (late_forward, "forward of 'ip'", "after the first backward launch"),
    (bf16_unknown, "<activation branch", "bfloat16"),
    (shared_without_a_pair, "forward of 'branch'", "without an in-place pair"),
    (misplaced_mask, "forward of", "both its define and its mask"),
    (undeclared_operand, "forward of", "declares the operands"),
    (misplaced_reduction, "forward of", "both its define and an operand"),
    (misplaced_epilogue, "forward of", "epilogue scalar activation"),
    (neither_call_nor_expression, "forward of", "either a call or an expression"),
    (operand_lost, "of '", "has the operands"),
    (listed_twice, "", "lists one launch twice"),
]


@pytest.mark.parametrize(("fault", "launch", "fact"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS])
def test_a_fault_is_named(fault: Callable[[Schedule], Schedule], launch: str, fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = recorded()
    if fault is without_origin:  # replacing a launch makes a new object, which must name the recorded one
        assert fault(schedule) != schedule
    switch(monkeypatch, "verify")
    with pytest.raises(InvalidSchedule) as caught:
        optimise.optimise(schedule, [Pass(fault, frozenset())])
    text = str(caught.value)
    assert f"after pass {fault.__name__}: " in text
    assert launch in text and fact in text, text


def test_a_users_run_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch, "verify=0")
    optimise.optimise(recorded(), [Pass(without_writer, frozenset())])


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
@pytest.mark.parametrize("limit", [None, 1 << 14], ids=["plain", "limit"])
def test_the_pipeline_is_valid(target: Target, limit: int | None, small_values: None) -> None:
    schedule, applied = optimise.optimise(recorded(target), pipeline(target, fit=None if limit is None else Fit(limit, target.rates)))
    assert applied[-1].after == len(schedule)


def test_a_pass_that_comes_too_late_is_refused() -> None:
    target = Target()
    passes = pipeline(target)
    with pytest.raises(InvalidSchedule, match="fuse_epilogues requires 'no blob is a view of another"):
        optimise.optimise(recorded(), [*passes, next(each for each in passes if each.name == "fuse_epilogues")])
    assert all(each.requires | each.ends <= set(Fact) for each in passes)


@pytest.mark.parametrize("seed", range(24))
def test_random_nets_raise_no_false_alarm(seed: int, small_values: None) -> None:
    graph = build(text_format.Parse(RandomNet(seed).text, proto.NetParameter()), proto.TRAIN)
    for target in TARGETS.values():
        for options in (NetOptions(recompute="cheap"), NetOptions(recompute="none"), NetOptions(backward=False, prepack_weights=True)):
            compile_net(graph, ParameterGroup(graph.params), target, options, Switches())


def test_views_of_samples_are_told_apart() -> None:
    """A microbatch writes its samples; a read of the whole batch needs all of them."""
    rec = Recorder(Target(), train=True)
    rec.enter("halves", "forward")
    whole, x = Ref("whole", (4, 6), Role.ACTIVATION), Ref("x", (2, 6), Role.INPUT)
    y = Ref("y", (4, 6), Role.ACTIVATION)
    pointwise(rec, "y0 = x0", reads=[x], writes=[whole.view((2, 6))])
    pointwise(rec, "y0 = x0", reads=[x], writes=[whole.view((2, 6), 12)])
    pointwise(rec, "y0 = x0", reads=[whole], writes=[y])
    Verifier(rec.launches).check(rec.launches, "record")
    del rec.launches[1]
    with pytest.raises(InvalidSchedule, match="elements 12 to 24 of <activation whole 4x6>"):
        Verifier(rec.launches).check(rec.launches, "record")


@pytest.mark.parametrize("times", [0, 2])
def test_a_side_effect_runs_once(times: int) -> None:
    rec = Recorder(Target(), train=True)
    rec.enter("count", "forward")
    total, y = Ref("total", (1,), Role.STATE), Ref("y", (1,), Role.ACTIVATION)
    pointwise(rec, "m0 = m0 + 1", modifies=[total], side_effect=True)
    pointwise(rec, "y0 = x0", reads=[total], writes=[y])
    verifier = Verifier(rec.launches)
    verifier.check(rec.launches, "record")
    with pytest.raises(InvalidSchedule, match=rf"after pass broken: forward of 'count' .* runs {times} times"):
        verifier.check([*[replace(rec.launches[0], origin=rec.launches[0]) for _ in range(times)], rec.launches[1]], "broken")


def test_a_lost_output_is_named() -> None:
    """No launch reads an output, but the host does."""
    rec = Recorder(Target(), train=True)
    rec.enter("last", "forward")
    x, y = Ref("x", (4,), Role.INPUT), Ref("y", (4,), Role.OUTPUT)
    pointwise(rec, "y0 = x0", reads=[x], writes=[y])
    with pytest.raises(InvalidSchedule, match="after pass broken: no launch writes <output y 4>, which outlives the run; 'last'"):
        Verifier(rec.launches).check([], "broken")
