"""Microbatches give the same gradients up to rounding. Layers in which samples depend on each other are not split."""
from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.compiler import compile as compiling
from ocaffe.compiler.network import phase_net
from ocaffe.errors import Error
from ocaffe.graph.build import build
from ocaffe.graph.microbatch import Microbatch, cuts
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import record
from ocaffe.ir.target import Target
from ocaffe.memory.report import fixed_bytes
from ocaffe.passes.fit import Fit
from ocaffe.passes.optimise import optimise, pipeline
from ocaffe.solver.solver import Solver
from tests.harness import switch, treat_as_large

CONV = """layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}" param {{ name: "{2}" }} param {{ name: "{2}_b" }}
  convolution_param {{ num_output: {3} kernel_size: 3 pad: 1 weight_filler {{ type: "msra" }} bias_filler {{ type: "gaussian" }} }} }}\n"""
SIMPLE = """layer {{ name: "{0}" type: "{1}" bottom: "{2}" top: "{0}" {3} }}\n"""


def net(batch_norm: bool = False) -> str:
    """Return a net with branches that join in Concat and Eltwise, a shared filter, all layers that support microbatches, and a classifier."""
    text = """layer { name: "data" type: "DummyData" top: "im" top: "y" dummy_data_param { shape { dim: 12 dim: 3 dim: 18 dim: 18 } shape { dim: 12 }
              data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }\n"""
    text += CONV.format("c1", "im", "c1", 8) + SIMPLE.format("c1r", "ReLU", "c1", "")
    if batch_norm:
        text += SIMPLE.format("bn", "BatchNorm", "c1r", "") + SIMPLE.format("n1", "Power", "bn", "")
    else:
        text += SIMPLE.format("n1", "LRN", "c1r", "lrn_param { local_size: 3 alpha: 0.1 }")
    text += CONV.format("c2", "n1", "shared", 8) + SIMPLE.format("c2r", "PReLU", "c2", "") + CONV.format("c3", "c2r", "shared", 8)
    text += SIMPLE.format("sc", "Scale", "c3", "scale_param { bias_term: true }")
    text += 'layer { name: "sum" type: "Eltwise" bottom: "sc" bottom: "n1" top: "sum" }\n'
    text += 'layer { name: "both" type: "Concat" bottom: "sum" bottom: "c2r" top: "both" }\n'
    text += SIMPLE.format("p", "Pooling", "both", "pooling_param { pool: MAX kernel_size: 3 stride: 2 }")
    text += CONV.format("c4", "p", "c4", 6) + SIMPLE.format("t", "TanH", "c4", "") + SIMPLE.format("drop", "Dropout", "t", "")
    text += SIMPLE.format("ip", "InnerProduct", "drop", 'inner_product_param { num_output: 4 weight_filler { type: "xavier" } }')
    return text + 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }\n'


def solver_of(text: str) -> Any:
    settings = "base_lr: 0.05 lr_policy: 'fixed' momentum: 0.9 max_iter: 10 random_seed: 3 snapshot_after_train: false"
    return text_format.Parse(f"net_param {{ {text} }} {settings}", proto.SolverParameter())


def trained(device: Any, **settings: Any) -> tuple[dict[str, list[np.ndarray]], Any]:
    solver = Solver(solver_of(net()), device, **settings)
    solver.step(2)
    compiled = solver.train_nets()[0]
    parameters = solver.network.parameter_arrays()
    solver.close()
    return parameters, compiled


def refuses(device: Any, limit: int) -> bool:
    try:
        trained(device, memory_limit=limit)
    except Error:
        return True
    return False


def close(split: dict[str, list[np.ndarray]], whole: dict[str, list[np.ndarray]]) -> None:
    for name in whole:
        for a, b in zip(split[name], whole[name]):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * max(np.abs(b).max(), 1e-3), err_msg=name)


@pytest.fixture(autouse=True)
def small_values_count(monkeypatch: pytest.MonkeyPatch) -> None:
    treat_as_large(monkeypatch, 1024)


def graph_of(text: str) -> Any:
    return build(phase_net(text_format.Parse(text, proto.NetParameter()), proto.TRAIN), proto.TRAIN)


def test_cuts() -> None:
    graph = graph_of(net())
    assert [graph.nodes[index].name for index in cuts(graph, lambda name: False)] == ["n1", "p", "c4"]  # t costs as much as c4 and is not smaller
    assert not cuts(graph, lambda name: name == "c1")  # a script reads c1, which would exist only in parts
    assert not cuts(graph_of(net(batch_norm=True)), lambda name: False)  # statistics need the whole batch


@pytest.mark.parametrize(("cut", "pieces"), [("n1", 3), ("both", 2), ("p", 12), ("t", 4)])
def test_gradients_of_pieces(device: Any, cut: str, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = trained(device)
    original = compiling._Compilation.compiled

    def split(job: Any, budget: int | None = None, given: Microbatch | None = None) -> Any:
        index = next(i for i, node in enumerate(job.graph.nodes) if node.name == cut)
        return original(job, budget, Microbatch(index, pieces))

    monkeypatch.setattr(compiling._Compilation, "compiled", split)
    switch(monkeypatch, "poison")
    parts, compiled = trained(device)
    assert sum(launch.layer == "c1" and launch.phase == "forward" for launch in compiled.recording.schedule) >= pieces
    close(parts, whole)


def test_no_attempt_is_compiled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[tuple[int | None, bool, Microbatch | None, bool]] = []
    original = compiling._Compilation.compiled

    def compiled(job: Any, fit: Fit | None = None, microbatch: Microbatch | None = None, keep: bool = False) -> Any:
        attempts.append((fit and fit.limit, bool(fit and fit.quick), microbatch, keep))
        return original(job, fit, microbatch, keep)

    graph = graph_of(net())
    group, target, switches = ParameterGroup(graph.params), Target(), compiling.Switches()
    plain = compiling.compile_net(graph, group, target, NetOptions(), switches)
    fixed = fixed_bytes([plain.recording.schedule])
    monkeypatch.setattr(compiling._Compilation, "compiled", compiled)
    split = []
    for share in range(90, 30, -10):
        attempts.clear()
        limit = fixed + plain.plan.total * share // 100
        with contextlib.suppress(Error):  # the smallest limits are refused
            split.append(compiling.compile_net(graph, group, target, NetOptions(limit=limit), switches).microbatch)
            assert len(attempts) == len(set(attempts))
    assert any(split)


def test_a_limit_that_recomputation_cannot_keep(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, compiled = trained(device)
    fixed, usual = fixed_bytes([compiled.recording.schedule]), compiled.plan.total
    limits = (fixed + usual * share // 100 for share in range(95, 20, -5))
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "cuts", lambda graph, kept: [])
        limit = next(limit for limit in limits if refuses(device, limit))
    parts, small = trained(device, memory_limit=limit)
    assert fixed + small.plan.total <= limit
    first, split = (sum(step.layer == "c1" and step.phase == "forward" for step in each.recording.schedule) for each in (compiled, small))
    assert split > first  # in microbatches
    close(parts, whole)


@pytest.mark.parametrize("count", [2, 4])
def test_an_activation_behind_the_cut_is_fused_into_every_microbatch(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ReLU on the whole batch is fused into the convolution before the cut, so each microbatch must write its samples."""
    text = """
    layer { name: 'data' type: 'DummyData' top: 'data' top: 'label' dummy_data_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 } } }
    layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv' convolution_param { num_output: 8 kernel_size: 3 } }
    layer { name: 'cut' type: 'Convolution' bottom: 'conv' top: 'cut' convolution_param { num_output: 2 kernel_size: 1 } }
    layer { name: 'relu' type: 'ReLU' bottom: 'cut' top: 'relu' }
    layer { name: 'ip' type: 'InnerProduct' bottom: 'relu' top: 'ip' inner_product_param { num_output: 5 } }
    layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'label' top: 'loss' }
    """
    switch(monkeypatch, "verify")
    graph = build(text_format.Parse(text, proto.NetParameter()), proto.TRAIN)
    for target in (Target(), Target(kind="gpu", compute_units=8)):
        options = NetOptions(microbatch=Microbatch([node.name for node in graph.nodes].index("cut"), count))
        schedule = record(graph, ParameterGroup(graph.params), target, options).schedule
        schedule, _ = optimise(schedule, pipeline(target))
        written = [ref for launch in schedule for ref in launch.writes if launch.phase == "forward" and ref.root.name == "relu"]
        assert [launch.layer for launch in schedule if launch.phase == "forward"].count("relu") == 0, "the ReLU is fused"
        assert sorted({ref.root_offset for ref in written}) == [number * 4 // count * 2 * 36 for number in range(count)]
