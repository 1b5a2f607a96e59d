"""Solver history and held gradients in the host's memory between their uses: the same bits, less memory, and snapshots as before."""
from __future__ import annotations

import pathlib
import re
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.compiler.compile import may_host
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import MAX_ROWS_BYTES
from ocaffe.ir.launch import BeginFetch, BeginStore, EndFetch, EndStore, Launch, Transfer
from ocaffe.ir.rates import Rates
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.memory.report import fixed_bytes, kept_on_host
from ocaffe.passes.spread_copies import spread_copies
from ocaffe.passes.verify import InvalidSchedule, Verifier
from ocaffe.solver.solver import Solver
from tests.harness import changed, switch
from tests.passes.test_traps import same

LINK = Rates(flops=1e9, bandwidth=1e9, launch=1e-6, to_host=1e11, from_host=1e11)
WIDE, DEEP = 1450, 4  # of InnerProducts, whose history is 8 MiB each
BATCH = """layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param { shape { dim: 32 dim: 3 dim: 64 dim: 64 } shape { dim: 32 }
  data_filler { type: "uniform" min: -1 max: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 32 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "tanh" type: "TanH" bottom: "conv" top: "tanh" }
layer { name: "pool" type: "Pooling" bottom: "tanh" top: "ip" pooling_param { pool: AVE kernel_size: 12 stride: 12 } }
"""


def net() -> str:
    """A net with large blobs, and with large parameters."""
    text = BATCH
    for index in range(DEEP + 1):
        bottom, count = f"ip{index - 1}" if index else "ip", WIDE if index < DEEP else 5
        text += (f'layer {{ name: "ip{index}" type: "InnerProduct" bottom: "{bottom}" top: "ip{index}" inner_product_param {{ num_output: {count} '
                 'weight_filler { type: "xavier" } } }\n')  # fmt: skip
    return text + f'layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip{DEEP}" bottom: "label" top: "loss" }}\n'


SOLVER = f"""
base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.001 max_iter: 100 random_seed: 1 snapshot_after_train: false
net_param {{ {net()} }}
"""
KINDS = ["", 'type: "Adam" momentum2: 0.999', 'type: "Nesterov"', "clip_gradients: 0.01", "ema_decay: 0.9"]


def solver_of(device: Any, kind: str, limit: int | None = None) -> Solver:
    return Solver(text_format.Parse(SOLVER + kind, proto.SolverParameter()), device, memory_limit=limit)


def linked(device: Any) -> Any:
    return changed(device, rates=LINK)


def schedule_of(solver: Solver) -> Any:
    return solver.train_nets()[-1].recording.schedule


def tight(solver: Solver) -> int:
    """A limit that is kept only without history on the device."""
    made = solver.train_nets()[0]
    return int(made.plan.total + fixed_bytes([made.recording.schedule]) - 4 * WIDE * WIDE)


@pytest.mark.parametrize("kind", KINDS, ids=[kind or "sgd" for kind in KINDS])
def test_same_bits_in_less_memory(kind: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = solver_of(device, kind)
    plain.step(3)
    kept, limit = plain.network.parameter_arrays(), tight(plain)
    plain.close()
    switch(monkeypatch, "poison")
    solver = solver_of(linked(device), kind, limit)
    schedule = schedule_of(solver)
    solver.step(3)
    hosted = kept_on_host([each.recording.schedule for each in solver.train_nets()])
    assert {ref.name for ref in hosted} == ({"history0", "history1"} if "Adam" in kind else {"history0"})
    assert solver.session.planned_bytes <= limit and solver.session.host_bytes >= sum(ref.nbytes for ref in hosted)
    if any(each.microbatch for each in solver.train_nets()):
        for layer, arrays in solver.network.parameter_arrays().items():
            for ours, exact in zip(arrays, kept[layer]):
                np.testing.assert_allclose(ours, exact, rtol=1e-4, atol=1e-6)
    else:
        same(solver.network.parameter_arrays(), kept)
    assert any(isinstance(launch, BeginStore) for launch in schedule)
    solver.close()


def test_other_launches_run_during_the_copies(device: Any) -> None:
    plain = solver_of(device, "")
    limit = tight(plain)
    plain.close()
    solver = solver_of(linked(device), "", limit)
    schedule = schedule_of(solver)
    solver.close()
    kernels = [not isinstance(launch, Transfer) for launch in schedule]
    places = {kind: [step for step, launch in enumerate(schedule) if type(launch) is kind] for kind in (BeginFetch, EndFetch, BeginStore, EndStore)}
    assert len(places[BeginFetch]) == len(places[EndStore]) > 1
    assert all(any(kernels[begin:end]) for begin, end in zip(places[BeginFetch], places[EndFetch]))
    assert all(any(kernels[begin:end]) for begin, end in zip(places[BeginStore][:-1], places[EndStore]))


def test_a_snapshot_has_the_history(device: Any, tmp_path: pathlib.Path) -> None:
    plain = solver_of(device, f'snapshot_prefix: "{tmp_path}/plain"')
    limit = tight(plain)
    plain.step(2)
    plain.snapshot()
    plain.step(2)
    kept = plain.network.parameter_arrays()
    plain.close()
    solver = solver_of(linked(device), f'snapshot_prefix: "{tmp_path}/host"', limit)
    solver.step(2)
    solver.snapshot()
    solver.close()
    states = [(tmp_path / f"{name}_iter_2.solverstate").read_bytes() for name in ("plain", "host")]
    assert len(states[0]) > 4 * DEEP * WIDE * WIDE // 2
    resumed = Solver(text_format.Parse(SOLVER, proto.SolverParameter()), linked(device), memory_limit=limit, resume=str(tmp_path / "host_iter_2.solverstate"))
    assert kept_on_host([schedule_of(resumed)])
    resumed.step(2)
    same(resumed.network.parameter_arrays(), kept)
    resumed.close()


def test_history_that_moves_keeps_its_values(device: Any) -> None:
    plain = solver_of(device, "")
    limit = tight(plain)
    plain.close()
    solver = solver_of(linked(device), "", limit)
    session = solver.session
    (root,) = kept_on_host([schedule_of(solver)])
    solver.step(1)
    before = session.read(root)
    assert before.any()
    lists, session.command_lists = session.command_lists, []
    assert session._settle() and not session._on_host
    np.testing.assert_array_equal(session.read(root), before)
    session.command_lists = lists
    assert session._settle() and session._on_host == {root}
    np.testing.assert_array_equal(session.read(root), before)
    solver.close()


BOTH = frozenset({Role.HISTORY, Role.GRADIENT})
SEVERAL = [(kind, 2 + index % 2) for index, kind in enumerate([*KINDS, "larc: true"])]


def wide() -> str:
    """The net with one parameter whose gradient is computed in rows: 36 MiB."""
    return SOLVER.replace(f"num_output: {WIDE}", f"num_output: {6500}", 1)


def trained(solver: Solver, iterations: int = 2) -> Any:
    """The parameters after some iterations. It closes the solver."""
    solver.step(iterations)
    result = solver.network.parameter_arrays()
    solver.close()
    return result


def forced(monkeypatch: pytest.MonkeyPatch, roles: frozenset[Role]) -> None:
    monkeypatch.setattr(Solver, "_to_host", lambda self, limit, nets: roles)


@pytest.mark.parametrize("roles", [frozenset({Role.GRADIENT}), BOTH], ids=["gradients", "both"])
@pytest.mark.parametrize("kind, passes", [*SEVERAL, ("", 3), ("snapshot_diff: true", 1)])
def test_held_gradients_on_host(kind: str, passes: int, roles: frozenset[Role], device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind += f" iter_size: {passes}"
    kept = trained(solver_of(device, kind))
    switch(monkeypatch, "poison")
    forced(monkeypatch, roles)
    solver = solver_of(linked(device), kind, 1 << 40)
    hosted = kept_on_host([each.recording.schedule for each in solver.train_nets()])
    assert {ref.role for ref in hosted} == roles
    assert solver.network.group.held in hosted and solver.network.group.held not in solver.session._persistent_roots()
    same(trained(solver), kept)


def test_a_gradient_in_rows_on_host(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    message = text_format.Parse(wide() + "iter_size: 2", proto.SolverParameter())
    kept = trained(Solver(message, device))
    forced(monkeypatch, BOTH)
    switch(monkeypatch, "poison")
    solver = Solver(message, linked(device), memory_limit=1 << 40)
    largest = max(launch.host.nbytes for launch in schedule_of_pass(solver) if isinstance(launch, Transfer))
    assert largest <= 2 * MAX_ROWS_BYTES < 4 * 6500 * WIDE
    same(trained(solver), kept)


def test_other_launches_run_during_the_copies_of_gradients(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, BOTH)
    solver = solver_of(linked(device), "iter_size: 2", 1 << 40)
    schedule = schedule_of_pass(solver)
    update = schedule_of(solver)
    solver.close()
    for each, kind, end in ((schedule, BeginFetch, EndFetch), (schedule, BeginStore, EndStore), (update, BeginFetch, EndFetch), (update, BeginStore, EndStore)):
        begins = {launch.host: step for step, launch in enumerate(each) if type(launch) is kind}
        ends = {launch.host: step for step, launch in enumerate(each) if type(launch) is end}
        beside = [any(not isinstance(launch, Transfer) for launch in each[begins[host] : ends[host]]) for host in begins]
        assert len(beside) > 2 and sum(beside) >= len(beside) - 2  # the first has nothing before it, the last nothing behind it


def schedule_of_pass(solver: Solver) -> Any:
    """The schedule of the passes that add to the gradients."""
    return solver.train_nets()[-2].recording.schedule


@pytest.mark.parametrize("seed", range(4))
def test_a_limit_chooses_held_gradients(seed: int, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    kind = f"iter_size: {random.choice((2, 3))} {random.choice(KINDS)}"
    plain = solver_of(device, kind)
    limit = int(random.uniform(0.55, 0.75) * plain.session.planned_bytes)
    kept = trained(plain)
    switch(monkeypatch, "poison")
    solver = solver_of(linked(device), kind, limit)
    assert solver.session.planned_bytes <= limit
    nets = solver.train_nets()
    roles = {ref.role for ref in kept_on_host([each.recording.schedule for each in nets])}
    split = any(each.microbatch for each in nets)
    assert roles == BOTH or (split and roles == {Role.HISTORY})  # microbatches may be faster than copies of gradients
    found = trained(solver)
    assert split or same(found, kept) is None


def test_a_snapshot_with_held_gradients_on_host(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "iter_size: 2 snapshot_diff: true"
    plain = solver_of(device, f'{kind} snapshot_prefix: "{tmp_path}/plain"')
    plain.step(1)
    plain.snapshot()
    kept = trained(plain)
    forced(monkeypatch, BOTH)
    solver = solver_of(linked(device), f'{kind} snapshot_prefix: "{tmp_path}/host"', 1 << 40)
    solver.step(1)
    solver.snapshot()
    solver.step(1)
    solver.close()
    files = [(tmp_path / f"{name}_iter_1.caffemodel").read_bytes() for name in ("plain", "host")]
    assert files[0] == files[1]
    again = text_format.Parse(SOLVER + kind, proto.SolverParameter())
    resumed = Solver(again, linked(device), memory_limit=1 << 40, resume=str(tmp_path / "host_iter_1.solverstate"))
    same(trained(resumed, 2), kept)


def test_held_gradients_stay_where_scripts_or_ranks_use_them(device: Any) -> None:
    target = linked(device).target
    held = NetOptions(limit=1, hold_gradients=True)
    assert may_host(held, target) == [Role.HISTORY, Role.GRADIENT]
    assert may_host(replace(held, observed_diffs=True), target) == [Role.HISTORY]
    assert may_host(replace(held, in_flight=0), target) == []
    assert may_host(held, device.target) == []


def host_and_here() -> tuple[Ref, Ref]:
    return Ref("gradients", (256,), Role.GRADIENT, persist=True), Ref("here", (256,), Role.GRADIENT)


def added(rec: Recorder, ref: Ref) -> None:
    pointwise(rec, "m0 = m0 + 1", modifies=[ref])


def recorded() -> list[Launch]:
    """A pass that adds to held gradients, and an update that reads them."""
    rec = Recorder(Target(), train=True)
    rec.enter("gradients", "backward")
    held, here = host_and_here()
    host = held.view((256,))
    rec.fetch(host, here)
    added(rec, here)
    rec.store(here, host)
    other = Ref("there", (256,), Role.GRADIENT)
    rec.fetch(held.view((256,)), other)
    added(rec, other)
    return rec.launches


@pytest.mark.parametrize("order, fault", [
    ((0, 2, 1, 3, 4, 5, 6, 7), "while it is copied from"),
    ((0, 1, 2, 3, 5, 4, 6, 7), "accesses <gradient gradients 256> while <gradient gradients 256>, the same memory of the host, is copied"),
    ((5, 6, 7, 0, 1, 2, 3, 4), "is fetched after 0 stores of its values, in the recording after 1"),
    ((1, 2, 3, 4, 5, 6, 7), "ends, and it never began"),
])  # fmt: skip
def test_the_verifier_names_a_copy_at_the_wrong_place(order: tuple[int, ...], fault: str) -> None:
    schedule = recorded()
    verifier = Verifier(schedule)
    verifier.check(schedule, "none")
    verifier.check(spread_copies(schedule), "spread_copies")
    with pytest.raises(InvalidSchedule, match=re.escape(fault)):
        verifier.check([schedule[step] for step in order], "wrong")
