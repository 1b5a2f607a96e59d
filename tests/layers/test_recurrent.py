"""LSTM, RNN and LSTMUnit, compared with float64 numpy and its central differences, and the states that runs keep.

Caffe's cases are in tests/test_golden.py.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

import ocaffe.passes.recompute
from ocaffe import log, proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from tests.harness import switch
from tests.layers.single import KINDS, close, layer_of, run

UNITS = 5
STATES = {"LSTM": 2, "RNN": 1}
Arrays = list[np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def cell(before: np.ndarray, x: np.ndarray, cont: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return c and h of one LSTM step."""
    i, f, o, g = np.split(x, 4, axis=-1)
    c = cont[..., None] * sigmoid(f) * before + sigmoid(i) * np.tanh(g)
    return c, sigmoid(o) * np.tanh(c)


def reference(kind: str, x: np.ndarray, cont: np.ndarray, params: Arrays, states: Arrays, static: np.ndarray | None = None) -> tuple[np.ndarray, Arrays]:
    """Return the top and the final states for initial states (N, D)."""
    w_x, b, *rest = params
    steps = x.reshape(*x.shape[:2], -1) @ w_x.T + b
    if static is not None:
        steps = steps + static.reshape(len(static), -1) @ rest.pop(0).T
    h, *c = states
    tops = []
    for t in range(len(x)):
        gates = steps[t] + (cont[t, :, None] * h) @ rest[0].T
        if kind == "LSTM":
            c[0], h = cell(c[0], gates, cont[t])
            tops.append(h)
        else:
            h = np.tanh(gates)
            tops.append(np.tanh(h @ rest[1].T + rest[2]))
    return np.stack(tops), [h, *c]


def gradient(function: Callable[[], float], array: np.ndarray) -> np.ndarray:
    """Return central differences of `function` in every element of `array`."""
    result = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        value = array[index]
        sums = []
        for step in (1e-5, -1e-5):
            array[index] = value + step
            sums.append(function())
        array[index] = value
        result[index] = (sums[0] - sums[1]) / 2e-5
    return result


def make(kind: str, inputs: int, statics: int = 0) -> Arrays:
    """Return parameters in the layer's order."""
    rng = np.random.default_rng(7)
    rows = UNITS * (4 if kind == "LSTM" else 1)
    shapes: list[tuple[int, ...]] = [(rows, inputs), (rows,), *([(rows, statics)] if statics else []), (rows, UNITS)]
    shapes += [(UNITS, UNITS), (UNITS,)] if kind == "RNN" else []
    return [0.6 * rng.normal(size=shape) for shape in shapes]


def text(kind: str, bottoms: int = 2, expose: bool = False, more: str = "") -> str:
    tops = 1 + expose * STATES[kind]
    names = " ".join([*(f"bottom: 'x{i}'" for i in range(bottoms)), *(f"top: 'y{i}'" for i in range(tops))])
    return f"name: 'rec' type: '{kind}' {names} recurrent_param {{ num_output: {UNITS} expose_hidden: {str(expose).lower()} {more} }}"


def zeros(kind: str, sequences: int) -> Arrays:
    return [np.zeros((sequences, UNITS))] * STATES[kind]


def compare(device: Any, machine: str, kind: str, steps: int, sequences: int, static: bool, expose: bool) -> None:
    rng = np.random.default_rng(steps * 10 + sequences)
    x, xs = rng.normal(size=(steps, sequences, 2, 3)), rng.normal(size=(sequences, 3))
    cont = (rng.random((steps, sequences)) < 0.7).astype(np.float64)
    initial = [rng.normal(size=(sequences, UNITS)) if expose else state for state in zeros(kind, sequences)]
    params = make(kind, 6, 3 if static else 0)
    dy = rng.normal(size=(steps, sequences, UNITS))

    def forward() -> tuple[np.ndarray, Arrays]:
        return reference(kind, x, cont, params, initial, xs if static else None)

    def loss() -> float:
        return float((forward()[0] * dy).sum())

    hidden = [state[None] for state in initial] if expose else []
    bottoms = [x, cont, *([xs] if static else []), *hidden]
    top_diffs = [dy, *(np.full_like(state, 9) for state in hidden)]  # Caffe ignores the diffs of the hidden tops
    propagate = [i != 1 for i in range(len(bottoms))]
    result = run(device, machine, text(kind, len(bottoms), expose), bottoms, top_diffs, params=params, propagate=propagate, held=0.5)
    top, final = forward()
    close(result.tops[0], top, 1e-5)
    for mine, state in zip(result.tops[1:], final):
        close(mine[0], state, 1e-5)
    close(result.diffs[0], gradient(loss, x) + 0.5)
    if static:
        close(result.diffs[2], gradient(loss, xs) + 0.5)
    for mine in result.diffs[2 + static :]:
        assert mine is not None and (mine == 0.5).all()  # no gradient for the initial states (docs/quirks.md, quirk 19)
    for mine, param in zip(result.param_diffs, params):
        close(mine, gradient(loss, param))
    again = run(device, machine, text(kind, len(bottoms), expose), bottoms, params=params, train=False)
    assert all((a == b).all() for a, b in zip(again.tops, result.tops))  # the same results without values for backward


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize(
    ("machine", "steps", "sequences", "static", "expose"),
    [("cpu", 1, 1, False, False), ("cpu", 1, 3, True, False), ("cpu", 4, 1, False, True), ("gpu", 5, 2, True, True), ("cpu", 3, 3, False, False)],
)
def test_numbers(device: Any, machine: str, kind: str, steps: int, sequences: int, static: bool, expose: bool) -> None:
    compare(device, machine, kind, steps, sequences, static, expose)


# On a CPU a product packs one operand first, unless the weights are transposed.
@pytest.mark.parametrize(("machine", "most"), [("cpu", [2, 3]), ("gpu", [2, 2])])
@pytest.mark.parametrize("kind", STATES)
def test_launches_of_a_step(device: Any, machine: str, most: list[int], kind: str) -> None:
    """A step takes a product and one pointwise launch, forward and backward."""
    counts = []
    for steps in (6, 7):
        x, cont, dy = np.zeros((steps, 2, 4)), np.zeros((steps, 2)), np.zeros((steps, 2, UNITS))
        result = run(device, machine, text(kind), [x, cont], [dy], params=make(kind, 4), propagate=[True, False])
        counts.append([sum(launch.phase == phase for launch in result.rec.launches) for phase in ("forward", "backward")])
    added = [after - before for before, after in zip(*counts)]
    assert added == most, added


def test_gradient_in_rows(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of W_x in two groups of rows equals the gradient in one."""
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(3, 2, 4)), np.ones((3, 2))], [rng.normal(size=(3, 2, UNITS))]
    kwargs: dict[str, Any] = {"params": make("LSTM", 4), "propagate": [False, False]}
    whole = run(device, "cpu", text("LSTM"), *args, **kwargs)

    def parts(self: Recorder, ref: Ref) -> Any:
        yield 0, ref.view((7, 4))
        yield 7, ref.view((13, 4), 28)

    monkeypatch.setattr(Recorder, "gradient_rows", parts)
    close(run(device, "cpu", text("LSTM"), *args, **kwargs).param_diffs[0], whole.param_diffs[0], 1e-6)


# -- what is carried from run to run ----------------------------------------------------------------------------------


def net_of(
    kind: str, steps: int, sequences: int, device: Any, params: Arrays, *, phase: int = proto.TRAIN, more: str = "", behind: str = "", keep: Any = None
) -> Net:
    inputs = "".join(
        f"layer {{ name: '{name}' type: 'Input' top: '{name}' input_param {{ shape {{ {' '.join(f'dim: {n}' for n in shape)} }} }} }}"
        for name, shape in (("x0", (steps, sequences, params[0].shape[1])), ("x1", (steps, sequences)))
    )
    message = text_format.Parse(f"force_backward: true {inputs} layer {{ {text(kind, more=more)} }} {behind}", proto.NetParameter())
    net = Net(message, phase, device=device, keep=keep)
    for blob, param in zip(net.params["rec"], params):
        blob.data[...] = param
    return net


def feed(net: Net, x: np.ndarray, cont: np.ndarray) -> None:
    net.blobs["x0"].data[...] = x
    net.blobs["x1"].data[...] = cont


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_two_runs_are_one_long_run(device: Any, kind: str, phase: int) -> None:
    rng = np.random.default_rng(1)
    x, cont, params = rng.normal(size=(6, 2, 4)), np.ones((6, 2)), make(kind, 4)
    cont[4, 1] = 0
    long, short = (net_of(kind, steps, 2, device, params, phase=phase) for steps in (6, 3))
    feed(long, x, cont)
    expected = long.forward()["y0"].copy()
    close(expected, reference(kind, x, cont, params, zeros(kind, 2))[0], 1e-5)
    tops = []
    for part in (slice(0, 3), slice(3, 6)):
        feed(short, x[part], cont[part])
        tops.append(short.forward()["y0"].copy())
        if phase == proto.TRAIN:  # backward does not change the states
            short.blobs["y0"].diff[...] = 1
            short.backward()
    close(np.concatenate(tops), expected, 1e-6)


def test_reshape(device: Any) -> None:
    """States persist across reshapes.

    Fewer sequences continue with the first states, as in Caffe's blobs. More sequences than ever before start with zeros.
    """
    rng = np.random.default_rng(2)
    params = make("RNN", 4)
    net = net_of("RNN", 2, 3, device, params)
    states = zeros("RNN", 3)
    for steps, sequences in [(2, 3), (3, 3), (4, 3), (5, 3), (6, 3), (7, 3), (2, 3), (2, 2), (2, 3), (3, 4)]:  # more shapes than cached command lists
        x, cont = rng.normal(size=(steps, sequences, 4)), np.ones((steps, sequences))
        net.blobs["x0"].reshape(*x.shape)
        net.blobs["x1"].reshape(*cont.shape)
        feed(net, x, cont)
        if sequences > len(states[0]):
            states = zeros("RNN", sequences)
        top, final = reference("RNN", x, cont, params, [state[:sequences] for state in states])
        states = [np.concatenate([new, old[sequences:]]) for new, old in zip(final, states)]
        close(net.forward()["y0"], top, 1e-5)


BEHIND = """layer { name: 'both' type: 'Concat' bottom: 'y0' bottom: 'x0' top: 'both' concat_param { axis: 1 } }
layer { name: 'z' type: 'Power' bottom: 'both' top: 'z' power_param { scale: 2 } }"""


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("changed", ["fuse=0", "plan=none", "MIN_VALUE_BYTES"])
def test_rewrites_change_nothing(device: Any, kind: str, changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fusion, views and recomputation change no result.

    There are as many steps as sequences, so that a step has the shape of the whole along axis 0.
    """
    rng = np.random.default_rng(3)
    params, xs, dz = make(kind, UNITS), rng.normal(size=(2, 3, 3, UNITS)), rng.normal(size=(3, 6, UNITS))

    def results() -> list[np.ndarray]:
        found = []
        for phase in (proto.TRAIN, proto.TEST):
            net = net_of(kind, 3, 3, device, params, phase=phase, behind=BEHIND, keep=["x0", "x1"])  # y0 is not kept, so it can become a view
            for x in xs:
                feed(net, x, np.ones((3, 3)))
                found.append(net.forward()["z"].copy())
                if phase == proto.TRAIN:
                    net.blobs["z"].diff[...] = dz
                    net.clear_param_diffs()
                    net.backward()
                    found += [net.blobs["x0"].diff.copy(), *(blob.diff.copy() for blob in net.params["rec"])]
        return found

    plain = results()
    if changed == "MIN_VALUE_BYTES":
        monkeypatch.setattr(ocaffe.passes.recompute, "MIN_VALUE_BYTES", 1)
    else:
        switch(monkeypatch, changed)
    assert all((a == b).all() for a, b in zip(plain, results(), strict=True))
    assert all(np.abs(array).max() > 0 for array in plain)


def test_debug_info(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(4)
    x, cont, params = rng.normal(size=(2, 3, 4)), np.ones((2, 3)), make("LSTM", 4)
    net = net_of("LSTM", 2, 3, device, params, more="debug_info: true")
    log.quiet(0)
    capsys.readouterr()
    feed(net, x, cont)
    net.forward()
    net.blobs["y0"].diff[...] = 1
    net.backward()
    words = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    first, second = (reference("LSTM", x[:steps], cont[:steps], params, zeros("LSTM", 3))[1] for steps in (1, 2))
    for line, name, value in zip(words, ("c_1", "h_1", "c_2", "h_2"), (first[1], first[0], second[1], second[0])):
        start = f"    [Forward] Layer rec_unit_{name[-1]}, top blob {name} data: "
        assert line.startswith(start) and abs(float(line[len(start) :]) - np.abs(value).mean()) < 1e-5
    assert [line.split(" diff: ")[0] for line in words[4:]] == [f"    [Backward] Layer rec_unit_{t}, bottom blob gate_input_{t}" for t in (2, 1)]


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "shapes", "fact"),
    [
        ("name: 'rec' type: 'LSTM' top: 'y'", [(2, 3, 4), (2, 3)], "num_output is missing"),
        (text("LSTM"), [(2, 3), (2, 3)], "bottom 0 is 2 x 3"),
        (text("LSTM"), [(2, 3, 4), (2, 4)], "bottom 1 (cont) is 2 x 4, bottom 0 is 2 x 3 x 4"),
        (text("LSTM"), [(2, 3, 4), (2, 3), (1, 3, 5), (1, 3, 5)], "4 bottoms and 1 tops given, expose_hidden is false"),
        (text("LSTM", expose=True), [(2, 3, 4), (2, 3), (3, 5)], "3 bottoms and 3 tops given, expose_hidden is true"),
        (text("RNN", expose=True) + " top: 'more'", [(2, 3, 4), (2, 3), (1, 3, 5)], "3 bottoms and 3 tops given"),
        (text("RNN"), [(2, 3, 4), (2, 3), (4, 5)], "the static input (bottom 2) is 4 x 5"),
        (text("RNN", expose=True), [(2, 3, 4), (2, 3), (1, 3, 4)], "bottom 2 is 1 x 3 x 4, an initial state is 1 x 3 x 5"),
        (text("RNN", expose=True), [(0, 3, 4), (0, 3), (1, 3, 5)], "bottom 0 is 0 x 3 x 4, without a time step"),
        ("name: 'rec' type: 'LSTMUnit'", [(2, 3, 4), (2, 3, 16), (2, 3)], "bottom 0 (c_prev) is 2 x 3 x 4"),
        ("name: 'rec' type: 'LSTMUnit'", [(1, 3, 4), (1, 3, 12), (1, 3)], "bottom 1 is 1 x 3 x 12, 1 x 3 x 16 is required"),
        ("name: 'rec' type: 'LSTMUnit'", [(1, 3, 4), (1, 3, 16), (3, 1)], "bottom 2 is 3 x 1, 1 x 3 is required"),
    ],
)
def test_refused(param: str, shapes: Sequence[tuple[int, ...]], fact: str) -> None:
    with pytest.raises(Error) as caught:
        layer_of(param).infer(*shapes)
    assert fact in str(caught.value) and "'rec'" in str(caught.value)


@pytest.mark.parametrize("kind", ["LSTM", "RNN", "LSTMUnit"])
def test_no_gradient_for_cont(device: Any, kind: str) -> None:
    if kind == "LSTMUnit":
        args: tuple[Any, ...] = [np.ones((1, 2, 3)), np.ones((1, 2, 12)), np.ones((1, 2))], [np.ones((1, 2, 3))] * 2
        param, params = UNIT, []
    else:
        args, param, params = ([np.ones((2, 2, 4)), np.ones((2, 2))], [np.ones((2, 2, UNITS))]), text(kind), make(kind, 4)
    with pytest.raises(Error, match="no gradient for the sequence indicators"):
        run(device, "cpu", param, *args, params=params)


# -- LSTMUnit ---------------------------------------------------------------------------------------------------------

UNIT = "name: 'unit' type: 'LSTMUnit' bottom: 'x0' bottom: 'x1' bottom: 'x2' top: 'y0' top: 'y1'"


@pytest.mark.parametrize("machine", KINDS)
@pytest.mark.parametrize("propagate", [(True, True), (True, False), (False, True)])
def test_unit(device: Any, machine: str, propagate: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(5)
    before, x, cont = rng.normal(size=(1, 6, 19)), rng.normal(size=(1, 6, 76)), np.array([[1, 0, 1, 1, 0, 1.0]])
    diffs = [rng.normal(size=before.shape) for _ in range(2)]

    def loss() -> float:
        return float(sum((top * diff).sum() for top, diff in zip(cell(before, x, cont), diffs)))

    result = run(device, machine, UNIT, [before, x, cont], diffs, propagate=[*propagate, False], held=0.5)
    for mine, top in zip(result.tops, cell(before, x, cont)):
        close(mine, top, 1e-5)
    for mine, wanted, array in zip(result.diffs, propagate, (before, x)):
        if wanted:
            close(mine, gradient(loss, array) + 0.5)
        else:
            assert mine is None
