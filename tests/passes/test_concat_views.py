"""Concat and Slice work on views: no copies remain, and results have the same bits."""
from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.ir.launch import CopyRegion
from ocaffe.solver.solver import Solver
from tests.harness import switch
from tests.passes.test_traps import DATA, SETTINGS, classified, conv, layer, same
from tests.passes.test_traps import trained as all_parameters

pytestmark = pytest.mark.quick

SLICES = """layer { name: "parts" type: "Slice" bottom: "wide" top: "p0" top: "p1" top: "p2" slice_param { slice_point: 3 slice_point: 8 } }
layer { name: "inner" type: "Slice" bottom: "p1" top: "q0" top: "q1" slice_param { slice_point: 1 } }\n"""


def net() -> str:
    text = DATA + conv("wide", "im", 12) + SLICES + conv("a", "p0") + conv("b", "p2") + conv("c", "q0") + conv("d", "q1")
    text += layer("Concat", "ab", "a b") + layer("Concat", "abc", "ab c") + conv("size", "d", 7)
    text += layer("Crop", "cut", "abc size", more="crop_param { axis: 1 offset: 4 offset: 0 offset: 0 }") + layer("Eltwise", "end", "cut size")
    return text + classified("end")


def trained(device: Any) -> tuple[Any, list[str]]:
    solver = Solver(text_format.Parse(f"net_param {{ {net()} }} {SETTINGS}", proto.SolverParameter()), device)
    solver.step(5)
    found = solver.network.parameter_arrays(), [launch.layer for launch in solver.train_nets()[0].recording.schedule if isinstance(launch.details, CopyRegion)]
    solver.close()
    return found


def test_slices_concats_and_channel_crops_copy_nothing(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch, "poison")
    shared, copies = trained(device)
    assert not copies
    switch(monkeypatch, "plan=none")
    separate, copies = trained(device)
    assert {"parts", "inner", "ab", "abc", "cut"} <= set(copies)
    same(shared, separate)


def read_before_the_copy() -> str:
    """Return a net in which the order of readers and writers matters.

    `u` reads a blob that a Slice splits later, and a sum overwrites one of its parts. A Concat reads a concatenated blob after another reader of it.
    """
    text = DATA + conv("b", "im") + conv("u", "im", 4) + conv("c", "b")
    text += layer("Slice", "parts", "b", "t0", 'top: "t1" slice_param { slice_point: 4 }') + layer("Eltwise", "s", "t0 u") + layer("Eltwise", "s1", "t1 s")
    text += conv("p", "im", 4) + conv("q", "p", 4) + layer("Concat", "cat", "p q") + layer("Eltwise", "e", "cat c") + layer("Concat", "end", "e q s1")
    return text + classified("end")


def computed_again() -> str:
    """Return a net in which a recomputed value is sliced. One part has two readers, the other is reshaped."""
    text = DATA + conv("a", "im") + layer("BatchNorm", "n", "a") + layer("ReLU", "r", "n")
    text += layer("Slice", "parts", "r", "t0", 'top: "t1" slice_param { slice_point: 3 }') + conv("b", "t0", 5) + conv("c", "t0", 5)
    text += layer("Flatten", "flat", "t1", more="flatten_param { axis: 2 }")
    text += layer("Reshape", "back", "flat", more="reshape_param { shape { dim: 0 dim: 0 dim: 12 dim: 12 } }") + conv("d", "back", 5)
    return text + layer("Eltwise", "sum", "b c d") + classified("sum")


def changed_in_between() -> str:
    """Return a net in which one layer changes parameters and statistics from which another layer's values would be recomputed."""
    shared = 'param { name: "s" } param { name: "t" } scale_param { bias_term: true }'
    statistics = 'param { name: "m" } param { name: "v" } param { name: "w" }'
    text = DATA + conv("k", "im", 3) + layer("Scale", "s1", "im", more=shared) + layer("ReLU", "r1", "s1")
    text += layer("Eltwise", "m", "r1 k", more="propagate_down: false propagate_down: true eltwise_param { operation: PROD }")
    text += layer("Scale", "s2", "m", more=shared) + conv("a", "s2") + layer("TanH", "ta", "a")
    text += layer("BatchNorm", "n1", "ta", more=f"{statistics} batch_norm_param {{ use_global_stats: true }}") + layer("ReLU", "r2", "n1") + conv("b", "r2")
    return text + layer("BatchNorm", "n2", "b", more=statistics) + layer("ReLU", "r3", "n2") + conv("c", "r3") + classified("c")


@pytest.mark.usefixtures("small_values")
@pytest.mark.parametrize("net", [read_before_the_copy, computed_again, changed_in_between])
def test_the_order_of_readers_and_writers_counts(net: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"net_param {{ {net()} }} {SETTINGS}"
    rewritten = all_parameters(device, text, 3)
    switch(monkeypatch, "plan=none")
    same(rewritten, all_parameters(device, text, 3, recompute="none"))
