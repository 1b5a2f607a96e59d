"""Solver history in the host's memory between updates: the same bits, less memory, and snapshots as before."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.ir.launch import BeginFetch, BeginStore, EndFetch, EndStore, Transfer
from ocaffe.ir.rates import Rates
from ocaffe.memory.report import fixed_bytes, kept_on_host
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
