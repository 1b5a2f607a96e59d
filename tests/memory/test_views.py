"""Parts of tensors that are used where they lie: no copies are left, and no bit is different."""
from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.solver.solver import Solver
from tests.memory.test_traps import DATA, SETTINGS, classified, conv, layer, same

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
    found = solver.network.parameter_arrays(), [launch.layer for launch in solver._train_variants()[0].recording.schedule if launch.copies is not None]
    solver.close()
    return found


def test_slices_concats_and_channel_crops_copy_nothing(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_POISON", "1")
    shared, copies = trained(device)
    assert not copies
    monkeypatch.setenv("OCAFFE_PLAN", "none")
    separate, copies = trained(device)
    assert {"parts", "inner", "ab", "abc", "cut"} <= set(copies)
    same(shared, separate)
