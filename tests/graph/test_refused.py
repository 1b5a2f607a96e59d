"""Nets that Caffe refuses are refused with file, line and fact. Nets that Caffe accepts are accepted (tests/golden/errors)."""
from __future__ import annotations

import json
import pathlib

import pytest

from ocaffe.compiler.compile import compile_net
from ocaffe.compiler.network import first_values, phase_net
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.target import Target
from ocaffe.layers.base import registry
from ocaffe.support.switches import Switches

pytestmark = pytest.mark.quick

ERRORS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "errors"
MESSAGES = json.loads((ERRORS / "messages.json").read_text())
TEXT_ONLY = {"unknown_field"}  # the reader refuses it before layers exist
REFUSED_HERE = {"ok_dropout_ratio_1"}  # Caffe accepts it and computes 0 * inf = NaN, a bug that no user can rely on


def through_the_pipeline(path: pathlib.Path) -> None:
    net = read_net(str(path))
    phase = net.state.phase
    graph = build(phase_net(net, phase), phase)
    compile_net(graph, ParameterGroup(graph.params), Target(), NetOptions(), Switches())
    for parameter in graph.params:
        first_values(parameter, seed=1)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_refused_as_caffe_does(name: str) -> None:
    path = ERRORS / f"{name}.prototxt"
    if name not in TEXT_ONLY:
        absent = {layer.type for layer in read_net(str(path)).layer} - set(registry())
        if absent and name != "unknown_type":
            pytest.skip(f"layer not in the list: {', '.join(sorted(absent))}")
    if MESSAGES[name]["accepted"] and name not in REFUSED_HERE:
        through_the_pipeline(path)
        return
    with pytest.raises(Error) as caught:
        through_the_pipeline(path)
    assert f"{name}.prototxt" in str(caught.value.place), "the error does not say where"
    assert len(caught.value.fact) > 15
