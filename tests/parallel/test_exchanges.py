"""Exchanges in a schedule: where they begin and end, which updates follow, and the rule of the verifier."""
from __future__ import annotations

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.compiler.compile import compile_net
from ocaffe.formats.text import parse
from ocaffe.graph import parameters
from ocaffe.graph.build import build
from ocaffe.graph.exchange import Exchanges
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.launch import BeginExchange, EndExchange, Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.passes.verify import InvalidSchedule, Verifier
from ocaffe.solver.update import Updater
from ocaffe.support.switches import Switches
from tests.parallel.trainings import NET

pytestmark = pytest.mark.quick

WIDTH = 6  # of the launches below


def compiled(monkeypatch: pytest.MonkeyPatch, in_flight: int | None, solver: str = "", frozen: str = "") -> tuple[Schedule, ParameterGroup]:
    """Compile a net with several buckets and its update. The layers with names in `frozen` do not learn."""
    monkeypatch.setattr(parameters, "MIN_FLUSH_BYTES", 1)
    inputs = 'layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } shape { dim: 2 } } }'
    net = parse(inputs + NET[NET.index('layer { name: "conv"') :], proto.NetParameter, "net.prototxt")
    for layer in net.layer:
        if layer.name in frozen.split():
            del layer.param[:]
            layer.param.add(lr_mult=0)
            layer.param.add(lr_mult=0)
    graph = build(net, proto.TRAIN)
    group = ParameterGroup(graph.params)
    update = Updater(group, parse(f"base_lr: 1 momentum: 0.9 {solver}", proto.SolverParameter, "solver.prototxt"))
    options = NetOptions(backward=True, in_flight=in_flight)
    return compile_net(graph, group, Target(), options, Switches(), update).recording.schedule, group


def steps(schedule: Schedule, kind: type) -> list[int]:
    return [step for step, launch in enumerate(schedule) if isinstance(launch, kind)]


@pytest.mark.parametrize("in_flight", [0, 4000, 1 << 20])
def test_each_bucket_is_exchanged_before_its_update(monkeypatch: pytest.MonkeyPatch, in_flight: int) -> None:
    schedule, group = compiled(monkeypatch, in_flight)
    begins, ends = steps(schedule, BeginExchange), steps(schedule, EndExchange)
    assert len(begins) == len(ends) >= 3
    covered = np.zeros(group.gradient_count, int)
    for begin, end in zip(begins, ends):
        first, last = schedule[begin], schedule[end]
        assert isinstance(first, BeginExchange) and isinstance(last, EndExchange) and begin < end
        bucket = first.operands[0].ref
        assert last.operands[0].ref is bucket and first.begin == last.begin
        covered[first.begin : first.begin + bucket.count] += 1
        updates = [step for step, launch in enumerate(schedule) if launch.phase == "update" and step not in (begin, end)
                   and any(ref.root is bucket.root for ref in launch.reads)]  # fmt: skip
        assert updates and min(updates) > end
        waiting = [schedule[other].operands[0].ref.nbytes for other, stop in zip(begins, ends) if other < begin < stop]
        assert sum(waiting) <= in_flight
    assert (covered == 1).all()
    between = [launch for begin, end in zip(begins, ends) for launch in schedule[begin:end] if launch.phase == "backward"]
    assert bool(between) == (in_flight > 0)  # backward continues during an exchange


def test_clipping_waits_for_all_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, _ = compiled(monkeypatch, 1 << 20, "clip_gradients: 1")
    (begin,), (end,) = steps(schedule, BeginExchange), steps(schedule, EndExchange)
    assert not any(launch.phase == "backward" for launch in schedule[begin:]) and end == begin + 1


def test_one_rank_has_no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, _ = compiled(monkeypatch, None)
    assert not steps(schedule, (BeginExchange, EndExchange))  # type: ignore[arg-type]


@pytest.mark.parametrize(("frozen", "buckets"), [("conv", 3), ("conv ip1", 2), ("conv ip1 ip2 ip3", 1), ("conv ip1 ip2 ip3 score", 0)])
def test_frozen_layers(monkeypatch: pytest.MonkeyPatch, frozen: str, buckets: int) -> None:
    schedule, group = compiled(monkeypatch, 1 << 20, frozen=frozen)
    begins = steps(schedule, BeginExchange)
    assert len(begins) == len(steps(schedule, EndExchange)) == buckets
    assert sum(schedule[begin].operands[0].ref.count for begin in begins) == group.gradient_count


def recorded() -> Schedule:
    """Two buckets: the gradients are computed, exchanged and used."""
    rec = Recorder(Target(), train=True)
    source, weights = Ref("x", (WIDTH,), Role.INPUT), Ref("w", (2 * WIDTH,), Role.PARAMETER)
    exchanges = Exchanges(rec, 1 << 20)
    for number in range(2):
        gradient = Ref(f"gradient{number}", (WIDTH,), Role.ACTIVATION)
        rec.enter("layer", "backward")
        pointwise(rec, "y0 = x0", reads=[source], writes=[gradient])
        part = weights.view((WIDTH,), number * WIDTH)

        def update(gradient: Ref = gradient, part: Ref = part) -> None:
            rec.enter("update", "update")
            pointwise(rec, "m0 = m0 - x0", reads=[gradient], modifies=[part])

        exchanges.add(gradient, number * WIDTH, update)
    exchanges.finish()
    return rec.launches


def check(schedule: Schedule) -> None:
    Verifier(schedule).check(schedule, "broken")


def test_the_verifier_accepts_what_is_recorded() -> None:
    check(recorded())


def test_a_launch_must_not_touch_a_bucket_in_exchange() -> None:
    schedule = recorded()
    end, update = steps(schedule, EndExchange)[0], steps(schedule, EndExchange)[0] + 1
    schedule[end], schedule[update] = schedule[update], schedule[end]
    with pytest.raises(InvalidSchedule, match=r"of 'update' .*the exchange of .*gradient0.* is in progress"):
        check(schedule)


def test_an_exchange_must_end() -> None:
    schedule = recorded()
    last = steps(schedule, EndExchange)[-1]
    with pytest.raises(InvalidSchedule, match=r"the exchange of .*gradient1.* never ends"):
        check(schedule[:last])


def test_an_exchange_must_begin() -> None:
    schedule = recorded()
    del schedule[steps(schedule, BeginExchange)[1]]
    with pytest.raises(InvalidSchedule, match=r"the exchange of .*gradient1.* ends, and it never began"):
        check(schedule)
