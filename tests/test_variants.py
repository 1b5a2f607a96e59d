"""Golden layer cases after a reshape from other shapes, which must give the same bits, and in place."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.layers.base import registry
from tests.harness import switch
from tests.test_golden import GOLDEN, Case, cases, first_cases, message_of, run_case, run_once, types_of

pytestmark = pytest.mark.unoptimised

STATEFUL = {"LSTM", "RNN", "MarginInnerProduct", "HDF5Output"}  # state of one forward pass changes the next; these layers have separate tests
IN_PLACE = {
    "AbsVal", "BatchNorm", "Bias", "BN", "BNLL", "Clip", "Dropout", "ELU", "Exp", "HardSigmoid", "HardSwish", "Log", "Mish", "Power",
    "PReLU", "ReLU", "ReLU6", "Scale", "Sigmoid", "Softmax", "Swish", "TanH", "Threshold",
}  # fmt: skip


def layer_cases() -> list[str]:
    """Return the cases of single layers that read Input layers."""
    return [name for name in cases() if name.startswith(("layers/", "forks/")) and "/Net-" not in name]


@pytest.fixture
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.chdir(GOLDEN)
    switch(monkeypatch, "poison")
    monkeypatch.syspath_prepend(str(GOLDEN / "layers"))
    return Case(GOLDEN / f"{request.param}.npz")


def larger(net: Any) -> dict[str, tuple[int, ...]]:
    """Return the inputs' shapes with one more element along the first axis."""
    return {
        top: (shape.dim[0] + 1, *shape.dim[1:])
        for layer in net.layer if layer.type == "Input"
        for top, shape in zip(layer.top, layer.input_param.shape) if shape.dim
    }  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(name, marks=() if name in first_cases() else pytest.mark.long) for name in layer_cases()], indirect=True)
def test_reshaped(case: Case, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A net that ran with larger inputs and was reshaped gives the bits of a new net, and Caffe's results."""
    types = types_of(case)
    if types & STATEFUL or not types <= set(registry()):
        pytest.skip("keeps a state, or is not there")
    message = message_of(case)
    shapes = larger(message)
    if not shapes:
        pytest.skip("no input to reshape")
    bits: list[list[bytes]] = [[], []]
    monkeypatch.setattr(Case, "compare", recorder(bits[0], Case.compare))
    run_case(case, device)
    again = Case(case.path)
    monkeypatch.undo()
    monkeypatch.chdir(GOLDEN)
    monkeypatch.setattr(Case, "compare", recorder(bits[1], Case.compare))
    net = Net(message, message.state.phase, device=device, keep=looked_at(again))
    try:
        old = {name: net.blobs[name].shape for name in shapes}
        for name, shape in shapes.items():
            net.blobs[name].reshape(*shape)
        try:
            net.reshape()
        except Error:  # the layer fixes this shape
            pytest.skip("cannot take another batch size")
        for name in shapes:
            net.blobs[name].data[...] = 0.5
        net.forward()
        for name, was in old.items():
            net.blobs[name].reshape(*was)
        net.reshape()
        for names, array in again.get("param", 1):
            net.params[names[0]][int(names[1])].data[...] = array
        run_once(again, net, 1)
    finally:
        net.close()
    assert bits[1] and bits[0][: len(bits[1])] == bits[1]


def looked_at(case: Case) -> list[str]:
    return sorted({names[0] for what in ("out", "top_diff", "in_diff") for names, _ in case.get(what, 1)})


def recorder(bits: list[bytes], compare: Any) -> Any:
    def wrapped(self: Case, what: str, run: int, names: list[str], actual: np.ndarray) -> None:
        if what != "init":
            bits.append(actual.tobytes())
        compare(self, what, run, names, actual)

    return wrapped


def in_place_cases() -> list[str]:
    """Return the cases with one layer that supports in-place use but is not in place."""
    found = []
    for name in layer_cases():
        net = read_net(str(GOLDEN / f"{name}.prototxt"))
        layers = [layer for layer in net.layer if layer.type != "Input"]
        fits = len(layers) == 1 and layers[0].type in IN_PLACE and len(layers[0].top) == 1 and layers[0].top[0] not in layers[0].bottom
        if fits and sum(layer.type == "Input" for layer in net.layer) == len(layers[0].bottom):
            found.append(name)
    return found


@pytest.mark.parametrize("case", in_place_cases(), indirect=True)
def test_in_place(case: Case, device: Any) -> None:
    """A layer whose top is named like its bottom gives the results of the case."""
    if not types_of(case) <= set(registry()):
        pytest.skip("is not there")
    message = message_of(case)
    layer = next(layer for layer in message.layer if layer.type != "Input")
    x = layer.bottom[0]
    top, layer.top[0] = layer.top[0], x
    net = Net(message, message.state.phase, device=device, keep=[x, *layer.bottom[1:]])
    for names, array in case.get("param", 1):
        net.params[names[0]][int(names[1])].data[...] = array
    for (blob,), array in case.get("in", 1):
        net.blobs[blob].data[...] = array
    net.forward()
    case.compare("out", 1, [top], net.blobs[x].data)
    if f"top_diff/{top}" in case.arrays and registry()[layer.type].has_backward:
        net.blobs[x].diff[...] = case.arrays[f"top_diff/{top}"]
        net.clear_param_diffs()
        net.backward()
        for names, _ in [*case.get("in_diff", 1)]:
            case.compare("in_diff", 1, names, net.blobs[names[0]].diff)
        for names, _ in [*case.get("param_diff", 1)]:
            case.compare("param_diff", 1, names, net.params[names[0]][int(names[1])].diff)
