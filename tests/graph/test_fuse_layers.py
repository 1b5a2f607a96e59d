"""BatchNorm, Scale and ReLU fused into one layer give the results of the three layers."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.compiler.network import phase_net
from ocaffe.graph.build import build
from ocaffe.graph.fuse_layers import fused_nodes
from ocaffe.ir.graph import Blob
from ocaffe.solver.solver import Solver
from tests.harness import switch
from tests.passes.test_traps import DATA, SETTINGS, classified, conv, layer

CLIP = "clip_param { min: -0.5 max: 1 }"
LEAKY = "relu_param { negative_slope: 0.1 }"
BIASED = "scale_param { bias_term: true }"
FROZEN = "param { lr_mult: 0 } param { lr_mult: 0 } scale_param { bias_term: true }"


def net() -> str:
    """Return a net with all variants.

    They are: all three layers; no bias and a leaky ReLU; no ReLU; no Scale; a frozen Scale; Clip; ReLU6; an inner value with two readers; frozen statistics.
    """
    text = DATA + conv("a", "im") + layer("BatchNorm", "a1", "a") + layer("Scale", "a2", "a1", more=BIASED) + layer("ReLU", "a3", "a2")
    text += conv("b", "a3") + layer("BatchNorm", "b1", "b", "b") + layer("Scale", "b2", "b", "b") + layer("ReLU", "b3", "b", "b", LEAKY)
    text += conv("c", "b") + layer("BatchNorm", "c1", "c", "c") + layer("Scale", "c2", "c", "c", BIASED)
    text += conv("d", "c") + layer("BatchNorm", "d1", "d", "d") + layer("ReLU", "d3", "d", "d")
    text += conv("e", "d") + layer("BatchNorm", "e1", "e", "e") + layer("Scale", "e2", "e", "e", FROZEN) + layer("ReLU", "e3", "e", "e")
    text += conv("h", "e") + layer("BatchNorm", "h1", "h", "h") + layer("Scale", "h2", "h", "h", BIASED) + layer("Clip", "h3", "h", "h", CLIP)
    text += conv("k", "h") + layer("BatchNorm", "k1", "k", "k") + layer("Scale", "k2", "k", "k", BIASED) + layer("ReLU6", "k3", "k", "k")
    text += conv("f", "k") + layer("BatchNorm", "f1", "f") + layer("Scale", "f2", "f1") + layer("Eltwise", "sum", "f2 f1")
    text += conv("g", "sum") + layer("BatchNorm", "g1", "g", "g", "batch_norm_param { use_global_stats: true eps: 1 }") + layer("Scale", "g2", "g", "g")
    return text + classified("g")


def test_what_is_merged() -> None:
    graph = build(phase_net(text_format.Parse(net(), proto.NetParameter()), proto.TRAIN), proto.TRAIN)

    def members(seen: Any) -> dict[str, int]:
        nodes = fused_nodes(graph, seen)
        return {node.name: len(node.params) for node, old in zip(nodes, graph.nodes) if node is not None and node is not old}

    assert members(lambda blob: False) == {"a1": 5, "b1": 4, "c1": 5, "d1": 3, "e1": 5, "h1": 5, "k1": 5}
    between: Blob = graph.blobs["a1"]
    assert "a1" not in members(lambda blob: blob is between)


def trained(device: Any, more: str) -> tuple[dict[str, list[np.ndarray]], int]:
    solver = Solver(text_format.Parse(f"net_param {{ {net()} }} {SETTINGS} {more}", proto.SolverParameter()), device)
    solver.step(3)
    result = solver.network.parameter_arrays(), len(solver.train_nets()[0].recording.schedule)
    solver.close()
    return result


@pytest.mark.parametrize("more", ["", "iter_size: 2", "clip_gradients: 1"])
def test_the_numbers_stay(device: Any, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    merged, fewer = trained(device, more)
    switch(monkeypatch, "fuse=0")
    plain, launches = trained(device, more)
    assert fewer < launches - 15
    for name in plain:
        for a, b in zip(merged[name], plain[name]):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(np.abs(b).max(), 1e-2), err_msg=name)
