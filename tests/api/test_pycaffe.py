"""Behaviour of pycaffe that scripts rely on: names, classes of exceptions, blobs that can always be read, Python layers."""
from __future__ import annotations

import gc
import pathlib
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe import layers as L
from ocaffe.errors import Error
from ocaffe.formats.text import parse

NET = """
name: "small" force_backward: true
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 5 dim: 2 dim: 3 dim: 4 } shape { dim: 5 } data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 2 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { decay_mult: 1 } param { decay_mult: 0 }
  convolution_param { num_output: 11 kernel_size: 2 pad: 3 weight_filler { type: "gaussian" std: 1 } bias_filler { type: "constant" value: 2 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "scores"
  inner_product_param { num_output: 13 weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: -3 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }
"""
SOLVER = """net: "net.prototxt" test_iter: 2 test_interval: 3 base_lr: 0.0001 momentum: 0.9 lr_policy: "fixed" max_iter: 7 random_seed: 1
snapshot_after_train: false"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    yield tmp_path
    gc.collect()


def make(device: Any, phase: int = caffe.TRAIN, **options: Any) -> caffe.Net:
    return caffe.Net("net.prototxt", phase, device=device, **options)


def everything(net: caffe.Net) -> dict[str, np.ndarray]:
    """Copies of all data and diffs of blobs and parameters."""
    blobs = {**net.blobs, **{f"{name}/{i}": blob for name, blobs in net.params.items() for i, blob in enumerate(blobs)}}
    return {f"{name}.{what}": np.array(getattr(blob, what)) for name, blob in blobs.items() for what in ("data", "diff")}


# -- names ---------------------------------------------------------------------------------------------------------------


def test_a_bare_import_is_enough() -> None:
    code = "import caffe; caffe.proto.caffe_pb2.BlobProto(); caffe.io.caffe_pb2; caffe.pycaffe.Net; caffe._caffe.Net"
    code += "\nimport caffe._caffe, caffe.proto.caffe_pb2 as pb; pb.Datum()"
    done = subprocess.run([sys.executable, "-c", f"import ocaffe; ocaffe.install_as_caffe()\n{code}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- exceptions ----------------------------------------------------------------------------------------------------------


def tuple_as_bottom(_: Any) -> None:
    L.Silence(L.DummyData(ntop=2), ntop=0)


EXCEPTIONS: dict[str, tuple[Any, tuple[type[Exception], ...]]] = {
    "a file that is missing": (lambda device: caffe.Net("missing.prototxt", caffe.TEST, device=device), (RuntimeError,)),
    "weights that are missing": (lambda device: make(device, weights="missing.caffemodel"), (RuntimeError,)),
    "a solver that is missing": (lambda device: caffe.SGDSolver("missing.prototxt", device=device), (RuntimeError,)),
    "an unknown layer type": (lambda device: caffe.Net(L.Nonsense().to_proto(), caffe.TEST, device=device), (RuntimeError,)),
    "a phase of a wrong type": (lambda device: caffe.Net("net.prototxt", object(), device=device), (TypeError,)),
    "too many arguments": (lambda device: caffe.Net("net.prototxt", "w", 1, 2, 3, 4, device=device), (TypeError,)),
    "keep as text": (lambda device: make(device, keep="conv"), (TypeError,)),
    "an unknown start": (lambda device: make(device).forward(start="nothing"), (ValueError,)),
    "an unknown end": (lambda device: make(device).backward(end="nothing"), (ValueError,)),
    "an unknown blob": (lambda device: make(device).forward(blobs=["nothing"]), (KeyError,)),
    "a blob by a wrong key": (lambda device: make(device).blobs["nothing"], (KeyError,)),
    "a parameter by a wrong index": (lambda device: make(device).params["conv"][5], (IndexError,)),
    "an unknown input": (lambda device: make(device).forward(nothing=np.zeros(1)), (KeyError, ValueError)),
    "values of a wrong shape": (lambda device: make(device).blobs["data"].data.__setitem__(..., np.zeros((7, 7))), (ValueError,)),
    "a bottom that is a tuple": (tuple_as_bottom, (TypeError,)),
    "a top that is a number": (lambda _: setattr(caffe.NetSpec(), "data", 3), (TypeError,)),
    "an unknown field": (lambda _: L.Convolution(nothing=1).to_proto(), (AttributeError,)),
    "an unknown field of a message": (lambda _: L.Convolution(weight_filler=dict(nothing=1)).to_proto(), (AttributeError,)),
    "a field of a wrong type": (lambda _: L.Convolution(num_output="many").to_proto(), (TypeError,)),
    "an unknown top": (lambda _: caffe.NetSpec().nothing, (AttributeError,)),
    "values without a shape": (lambda _: caffe.io.blobproto_to_array(caffe.proto.caffe_pb2.BlobProto(data=[0.0] * 100)), (ValueError,)),
    "a datum of two axes": (lambda _: caffe.io.array_to_datum(np.zeros((2, 2))), (ValueError,)),
    "a mean of a wrong size": (lambda _: caffe.io.Transformer({"data": (1, 3, 4, 4)}).set_mean("data", np.zeros(2)), (ValueError,)),
    "an input that the transformer does not have": (lambda _: caffe.io.Transformer({"data": (1, 3, 4, 4)}).set_raw_scale("x", 2), (KeyError, ValueError)),
}


@pytest.mark.parametrize("case", EXCEPTIONS)
def test_exceptions_are_of_the_classes_that_scripts_catch(device: Any, folder: pathlib.Path, case: str) -> None:
    call, kinds = EXCEPTIONS[case]
    for kind in kinds:
        with pytest.raises(kind) as caught:
            call(device)
        assert not isinstance(caught.value, Error) or str(caught.value).count("\n") < 6


def test_the_text_for_a_bottom_that_is_no_top() -> None:
    with pytest.raises(TypeError, match=r"^Silence input 0 is not a Top \(type is <class 'tuple'>\)$"):
        tuple_as_bottom(None)


# -- blobs can always be read --------------------------------------------------------------------------------------------


def test_arrays_outlive_their_net(device: Any, folder: pathlib.Path) -> None:
    net = make(device)
    net.forward()
    values = net.blobs["scores"].data.copy()
    blobs, params = list(net.blobs.values()), [blob for blobs in net.params.values() for blob in blobs]
    held = net.blobs["scores"].data
    del net
    gc.collect()
    assert np.isfinite(sum(blob.data.sum() + blob.diff.sum() for blob in [*blobs, *params]))
    np.testing.assert_array_equal(held, values)


@pytest.mark.parametrize("when", ["new", "step", "tested", "solved", "restored"])
def test_all_blobs_of_a_solver(device: Any, folder: pathlib.Path, when: str) -> None:
    """Data and diffs of all nets can be read at any time, and after the solver was deleted."""
    solver = caffe.SGDSolver("solver.prototxt", device=device)
    if when == "solved":
        solver.solve()
    elif when != "new":
        solver.step({"step": 1, "tested": 4, "restored": 2}[when])
    if when == "restored":
        solver.snapshot()
        solver.restore("solver_iter_2.solverstate")
    nets = [solver.net, *solver.test_nets]
    data = [{name: np.array(blob.data) for name, blob in net.blobs.items()} for net in nets]
    before = [everything(net) for net in nets]
    assert all(np.array_equal(found[f"{name}.data"], value) for values, found in zip(data, before) for name, value in values.items())
    if when != "new":
        assert all(found["loss.data"] > 0 for found in before[: 2 if when in ("tested", "solved") else 1])
        assert np.abs(before[0]["conv.diff"]).sum() > 0 and np.abs(before[0]["conv/0.diff"]).sum() > 0
    del solver
    gc.collect()
    for net, values in zip(nets, before):
        after = everything(net)
        assert all(np.array_equal(after[name], values[name]) for name in values)


def test_blobs_after_a_step_are_those_of_the_step(device: Any, folder: pathlib.Path) -> None:
    """The scores follow from the data and the weights before the update. The diff of the data follows from the same weights."""
    solver = caffe.SGDSolver("solver.prototxt", device=device)
    solver.step(1)
    before = {name: [np.array(blob.data) for blob in blobs] for name, blobs in solver.net.params.items()}
    solver.step(1)
    found = everything(solver.net)
    plain = make(device)
    for name, blobs in before.items():
        for blob, value in zip(plain.params[name], blobs):
            blob.data[...] = value
    plain.forward()
    plain.blobs["data"].data[...] = found["data.data"]
    plain.forward(start="conv")
    plain.backward()
    expected = everything(plain)
    for name in ("conv.data", "scores.data", "loss.data", "scores.diff", "conv.diff", "data.diff"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("iterations", [1, 4])
def test_a_part_of_a_solvers_net_runs_on_the_blobs_of_the_step(device: Any, folder: pathlib.Path, iterations: int) -> None:
    solver = caffe.SGDSolver("solver.prototxt", device=device)
    solver.step(iterations)
    net = solver.net
    conv = np.array(net.blobs["conv"].data)
    net.forward(start="ip")
    np.testing.assert_array_equal(net.blobs["conv"].data, conv)
    weights, bias = (blob.data for blob in net.params["ip"])
    np.testing.assert_allclose(net.blobs["scores"].data, conv.reshape(5, -1) @ weights.T + bias, rtol=1e-4, atol=1e-4)


def test_backward_through_a_part(device: Any, folder: pathlib.Path) -> None:
    """As Deep Dream: set the diff of an inner blob, then run backward from its layer."""
    net = make(device)
    net.forward(end="ip")
    net.blobs["scores"].diff[...] = 0
    net.blobs["scores"].diff[:, 3] = 1
    net.backward(start="ip")
    weights, conv = net.params["ip"][0].data, net.params["conv"][0].data
    top = np.broadcast_to(weights[3], (5, weights.shape[1])).reshape(net.blobs["conv"].shape) * (net.blobs["conv"].data > 0)
    padded = np.zeros((5, 2, 9, 10), np.float64)
    for y in range(8):
        for x in range(9):
            padded[:, :, y : y + 2, x : x + 2] += np.einsum("no,ocyx->ncyx", top[:, :, y, x], conv)
    np.testing.assert_allclose(net.blobs["data"].diff, padded[:, :, 3:6, 3:7], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "calls",
    [
        [("forward", {}), ("backward", {})],
        [("forward", {}), ("backward", {"start": "loss", "end": "ip"}), ("backward", {"start": "relu"})],
        [("forward", {"end": "conv"}), ("forward", {"start": "relu"}), ("backward", {})],
        [("forward", {}), ("backward", {}), ("clear", {}), ("forward", {"start": "conv"}), ("backward", {})],
        [("forward", {}), ("forward", {"start": "ip"}), ("backward", {"end": "ip"}), ("backward", {"start": "relu", "end": "conv"})],
        [("forward", {"end": "data"}), ("forward", {"start": "conv", "end": "relu"}), ("forward", {"start": "ip"}), ("backward", {})],
        [("forward", {}), ("read", {}), ("backward", {}), ("read", {})],
        [("forward", {}), ("backward", {"end": "relu"}), ("read", {}), ("backward", {"start": "conv"})],
    ],
)
def test_parts_in_any_order(device: Any, folder: pathlib.Path, calls: list[tuple[str, dict[str, str]]]) -> None:
    """The same batch and weights give the same blobs and diffs in all orders of the calls."""
    net, other = make(device), make(device)
    values = np.random.default_rng(0).standard_normal((5, 2, 3, 4)).astype(np.float32)
    for name, blobs in net.params.items():
        for mine, theirs in zip(blobs, other.params[name]):
            theirs.data[...] = mine.data
    other.forward(end="data")
    other.blobs["data"].data[...] = values
    other.forward(start="conv")
    other.backward()
    expected = everything(other)
    given = False
    for call, options in calls:
        if call == "forward" and not given:
            net.forward(end="data")
            net.blobs["data"].data[...] = values
            given = True
            options = {"start": "conv", **options} if options.get("end") != "data" else {}
            if not options:
                continue
        {"forward": net.forward, "backward": net.backward, "clear": net.clear_param_diffs, "read": lambda: everything(net)}[call](**options)
    found = everything(net)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_backward_before_forward(device: Any, folder: pathlib.Path) -> None:
    """All values are zeros then, as in Caffe, except for those that the script wrote."""
    net = make(device)
    net.blobs["scores"].diff[...] = 1
    net.backward(start="ip")
    assert not net.params["ip"][0].diff.any() and (net.params["ip"][1].diff == 5).all() and not net.params["conv"][0].diff.any()
    first = everything(net)
    net.forward()
    net.backward()
    assert np.abs(net.params["conv"][0].diff).sum() > 0 and all(np.isfinite(value).all() for value in first.values())


def test_update_from_diffs_that_a_script_wrote(device: Any, folder: pathlib.Path) -> None:
    solver = caffe.SGDSolver("solver.prototxt", device=device)
    blob = solver.net.layers[1].blobs[0]
    blob.data[...] = 0
    blob.diff[...] = 1
    solver.apply_update()
    np.testing.assert_allclose(blob.data, -0.0001, atol=1e-9)
    assert solver.iter == 0


def test_a_snapshot_before_training(device: Any, folder: pathlib.Path) -> None:
    solver = caffe.SGDSolver("solver.prototxt", device=device)
    solver.snapshot()
    assert {"solver_iter_0.caffemodel", "solver_iter_0.solverstate"} <= {path.name for path in folder.iterdir()}
    solver.solve(None)
    assert solver.iter == 7


# -- Python layers -------------------------------------------------------------------------------------------------------


class MyError(Exception):
    """An exception with an attribute, of a script."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (RuntimeError("r"), RuntimeError), (ValueError("v"), ValueError), (KeyError("k"), KeyError), (MyError("m", 7), MyError), (OSError(2, "o"), OSError),
        (AssertionError(), AssertionError), (StopIteration(), StopIteration), (ZeroDivisionError(), ZeroDivisionError),
        (UnicodeDecodeError("a", b"", 0, 1, "b"), ValueError),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["setup", "reshape", "forward"])
def test_exceptions_of_python_layers_keep_their_class(
    device: Any, monkeypatch: pytest.MonkeyPatch, reason: Exception, kind: type[Exception], method: str
) -> None:
    class Failing(caffe.Layer):
        def forward(self, bottom: Any, top: Any) -> None:
            pass

        def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
            pass

        def setup(self, bottom: Any, top: Any) -> None:
            pass

        def reshape(self, bottom: Any, top: Any) -> None:
            top[0].reshape(1)

    def fail(*_: Any) -> None:
        raise reason

    setattr(Failing, method, fail)
    module = types.ModuleType("failing_layers")
    module.Failing = Failing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "failing_layers", module)
    spec = caffe.NetSpec()
    spec.top = L.Python(python_param=dict(module="failing_layers", layer="Failing"), name="fails")
    with pytest.raises(kind, match="failing_layers") as caught:
        caffe.Net(spec.to_proto(), caffe.TEST, device=device).forward()
    assert isinstance(caught.value, Error) and caught.value.__cause__ is reason and caught.value.fix
    assert getattr(caught.value, "code", 7) == 7


def test_parameters_of_a_python_layer_are_a_list() -> None:
    blobs = caffe._caffe.BlobVec()
    blob = blobs.add_blob(2, 3)
    blobs.append(blob)
    blobs.extend([blob])
    assert len(blobs) == 3 and blob in blobs and blob.shape == (2, 3)
    del blobs[1]
    assert len(blobs) == 2 and caffe.Layer.type == "Python"


def test_habits_of_python_2(device: Any) -> None:
    """`map` gives an iterator in Python 3, which can be read once, and `/` a float."""
    with caffe.Net(parse(NET, caffe.proto.NetParameter), caffe.TRAIN, device=device, stages=map(str, ["a"]), keep=map(str, ["conv", "scores"])) as net:
        assert set(net.forward(blobs=map(str, ["conv", "scores"]))) == {"conv", "scores", "loss"}
        assert set(net.backward(diffs=map(str, ["conv"]))) == {"conv"}
        net.blobs["data"].reshape(10 / 2, 2, 6 / 2, 4)
        for name, blobs in iter(net.params.items()):  # six.iteritems
            assert [blob.data.shape for blob in blobs] == list(map(tuple, (blob.shape for blob in net.params[name])))
    inputs = 'input: "data" input_shape { dim: 2 dim: 3 } layer { name: "p" type: "Power" bottom: "data" top: "p" }'
    with caffe.Net(parse(inputs, caffe.proto.NetParameter), caffe.TRAIN, device=device) as net:
        assert net.forward_all(blobs=map(str, ["data"]), data=np.zeros((5, 3)))["data"].shape == (5, 3)
        assert net.forward_backward_all(map(str, ["data"]), map(str, ["p"]), data=np.zeros((5, 3)))[1]["p"].shape == (5, 3)
    transformer = caffe.io.Transformer({"data": (1, 3, 4, 4)})
    transformer.set_transpose("data", map(int, "201"))
    transformer.set_channel_swap("data", map(int, "210"))
    assert transformer.preprocess("data", np.zeros((4, 4, 3))).shape == (3, 4, 4)
    assert list(L.Input(shape=dict(dim=map(int, [1, 3]))).to_proto().layer[0].input_param.shape[0].dim) == [1, 3]
