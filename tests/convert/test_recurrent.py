"""LSTM, RNN and GRU as single operators and as a Scan: equal to ocaffe for any sequence indicator, in the oldest and the newest opset."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from ocaffe.convert.export import Exported, Options, export
from ocaffe.convert.verify import random_inputs, verify
from ocaffe.onnx.graph import UNROLLED
from tests.convert.test_golden import OPSETS

pytestmark = pytest.mark.unoptimised

KINDS = {"LSTM": ("LSTM", "", 2), "RNN": ("RNN", "", 1), "GRU": ("GRU", "", 1), "GRU-linear": ("GRU", "linear_before_reset: 1", 1)}  # type, field, states
STEPS, SEQUENCES, UNITS = 5, 2, 3


def shapes(kind: str, more: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs. `more` names further bottoms: a static input, the initial states."""
    own = {"data": (STEPS, SEQUENCES, 4), "cont": (STEPS, SEQUENCES)}
    if "static" in more:
        own["static"] = (SEQUENCES, 6)
    if "states" in more:
        own |= {f"s{number}": (1, SEQUENCES, UNITS) for number in range(KINDS[kind][2])}
    return own


def made(folder: pathlib.Path, kind: str, more: str = "", **options: Any) -> Exported:
    type_, field, states = KINDS[kind]
    inputs = shapes(kind, more)
    tops = ["h", *[f"final{number}" for number in range(states if "states" in more else 0)]]
    filler = 'weight_filler { type: "uniform" min: -1 } bias_filler { type: "uniform" min: -1 }'
    own = f"num_output: {UNITS} {filler} {field} expose_hidden: {str('states' in more).lower()}"
    lines = [f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in shape)} }} }} }}'
             for name, shape in inputs.items()]  # fmt: skip
    names = " ".join([*(f'bottom: "{name}"' for name in inputs), *(f'top: "{name}"' for name in tops)])
    net = folder / "net.prototxt"
    net.write_text("\n".join([*lines, f'layer {{ name: "layer" type: "{type_}" {names} recurrent_param {{ {own} }} }}']))
    return export(str(net), None, Options(fillers=True, **options))


def operators(exported: Exported) -> set[str]:
    return {node.op_type for node in exported.model.graph.node}


def inputs(exported: Exported, steps: int = STEPS) -> dict[str, np.ndarray]:
    """Return inputs whose indicators are 0, 1 and any other numbers."""
    feeds = random_inputs(exported.graph, batch=steps)
    numbers = np.resize(np.float32([1, 0, 0.5, -1.5, 1, 1, 3, 0.25]), feeds["cont"].shape)
    return feeds | {"cont": numbers}


@pytest.mark.parametrize("opset", [OPSETS[0], OPSETS[-1]])
@pytest.mark.parametrize("more", ["", "static", "states", "static and states"])
@pytest.mark.parametrize("kind", KINDS)
def test_single_operators(kind: str, more: str, opset: int, device: Any, tmp_path: pathlib.Path) -> None:
    exported = made(tmp_path, kind, more, opset=opset)
    assert not operators(exported) & {"Scan", "LSTM", "GRU", "RNN"}
    verify(exported, [inputs(exported)], device)


@pytest.mark.parametrize("more", ["", "static"])
@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_steps_are_a_scan(kind: str, more: str, device: Any, tmp_path: pathlib.Path) -> None:
    exported = made(tmp_path, kind, more, dynamic_batch=True)
    assert "Scan" in operators(exported)
    for steps in (1, 2 * STEPS):  # each in a new net, because the model keeps no state between runs
        verify(exported, [inputs(exported, steps)], device)


@pytest.mark.parametrize("steps, scan", [(1, False), (UNROLLED, False), (UNROLLED + 1, True)])
def test_long_sequences_are_a_scan(steps: int, scan: bool, device: Any, tmp_path: pathlib.Path) -> None:
    exported = made(tmp_path, "LSTM", shapes={"data": (steps, SEQUENCES, 4), "cont": (steps, SEQUENCES)})
    assert ("Scan" in operators(exported)) == scan
    verify(exported, [inputs(exported, steps)], device)


def test_sixteen_bits(device: Any, tmp_path: pathlib.Path) -> None:
    exported = made(tmp_path, "LSTM", fp16=True)
    verify(exported, [inputs(exported)], device)
