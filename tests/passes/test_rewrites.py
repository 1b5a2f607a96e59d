"""Passes (views, sign masks, recomputation) change no result of golden nets that keep no inner blobs."""
from __future__ import annotations

import pathlib
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.formats.text import read_net
from ocaffe.layers.base import registry
from tests.harness import switch, treat_as_large
from tests.test_golden import GOLDEN, Case, cases, types_of

pytestmark = pytest.mark.unoptimised

NETS = [name for name in cases() if name.startswith("nets/") or "/Net-" in name]


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_a_net_without_kept_blobs(name: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    switch(monkeypatch, "poison")
    treat_as_large(monkeypatch, 1)
    case = Case(pathlib.Path(GOLDEN, f"{name}.npz"))
    if not types_of(case) <= set(registry()):
        pytest.skip("layer not in the list")
    message = read_net(str(case.prototxt))
    phase = getattr(proto, case.about["phase"]) if case.about else message.state.phase
    message.ClearField("state")
    keep = ["data"] if any("data" in layer.top for layer in message.layer) or "data" in message.input else []
    net = Net(message, phase, level=case.about.get("level", 0), stages=case.about.get("stages", []), device=device, keep=keep)
    try:
        for names, array in case.get("param", 1):
            net.params[names[0]][int(names[1])].data[...] = array
        for (blob,), array in case.get("in", 1):
            net.blobs[blob].data[...] = array
        net.forward()
        for names, _ in list(case.get("out", 1)):
            if names[0] in net.outputs:
                case.compare("out", 1, names, net.blobs[names[0]].data)
        if not list(case.get("param_diff", 1)):
            return
        for names, array in case.get("top_diff", 1):
            if not net._network.graph.blobs[names[0]].loss_weight and names[0] in net.outputs:
                net.blobs[names[0]].diff[...] = array
        net.clear_param_diffs()
        net.backward()
        for names, _ in list(case.get("param_diff", 1)):
            case.compare("param_diff", 1, names, net.params[names[0]][int(names[1])].diff)
    finally:
        net.close()
