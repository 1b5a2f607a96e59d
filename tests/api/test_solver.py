"""Solvers with pycaffe's names. tests/api/test_forward_backward.py and tests/solver test that they train as Caffe does."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe import proto
from ocaffe.errors import Error
from tests.api.nets import LEARNING, message, numbers

pytestmark = pytest.mark.quick

NET = """
name: "solved"
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 8 dim: 3 } shape { dim: 8 } data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1" inner_product_param { num_output: 6 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "relu" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "drop" type: "Dropout" bottom: "ip1" top: "drop" }
layer { name: "ip" type: "InnerProduct" bottom: "drop" top: "ip" inner_product_param { num_output: 2 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
CLASSES = {
    "SGD": caffe.SGDSolver, "Nesterov": caffe.NesterovSolver, "AdaGrad": caffe.AdaGradSolver,
    "RMSProp": caffe.RMSPropSolver, "AdaDelta": caffe.AdaDeltaSolver, "Adam": caffe.AdamSolver,
}  # fmt: skip


def param(text: str = NET, **fields: Any) -> Any:
    made = proto.SolverParameter(base_lr=0.1, lr_policy="fixed", max_iter=20, random_seed=3, snapshot_after_train=False)
    made.net_param.CopyFrom(message(text))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def with_test(text: str = NET, **fields: Any) -> Any:
    made = param(text, test_interval=1000, test_initialization=False, **fields)
    made.test_iter.append(1)
    return made


@pytest.mark.parametrize("rule", CLASSES)
def test_every_class_is_its_rule(device: Any, rule: str) -> None:
    options: dict[str, Any] = {"momentum": 0.9} if rule not in ("AdaGrad", "RMSProp") else {}
    if rule == "RMSProp":
        options["rms_decay"] = 0.9
    with CLASSES[rule](param(**options), device=device) as solver, caffe.get_solver(param(type=rule, **options), device=device) as named:
        assert type(named) is CLASSES[rule] and solver.param.type == rule
        for each in (solver, named):
            each.step(3)
        for mine, other in zip(solver.net.params["ip"], named.net.params["ip"]):
            np.testing.assert_array_equal(mine.data, other.data)


def test_properties_and_files(device: Any, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "solver.prototxt"
    file.write_text('net_param {\n' + NET + '}\nbase_lr: 0.5 lr_policy: "multistep" gamma: 0.1 stepvalue: 2 stepvalue: 4 max_iter: 6 display: 3\n'
                    f'snapshot_prefix: "{tmp_path}/it" snapshot_after_train: false')  # fmt: skip
    with caffe.SGDSolver(str(file), device=device) as solver:
        assert solver.iter == 0 and solver.param.max_iter == 6 and solver.param.display == 3 and solver.param.layer_wise_reduce
        rates = []
        for _ in range(5):
            rates.append(solver.lr)
            solver.step(1)
        np.testing.assert_allclose(rates, [0.5, 0.5, 0.05, 0.05, 0.005], rtol=1e-6)
        solver.param.base_lr = 0.01  # scripts change it during training
        assert solver.lr == pytest.approx(0.0001)
        solver.snapshot()
        weights = solver.net.params["ip"][0].data.copy()
        solver.step(1)
        assert (solver.net.params["ip"][0].data != weights).any()
        solver.restore(str(tmp_path / "it_iter_5.solverstate"))
        assert solver.iter == 5
        np.testing.assert_array_equal(solver.net.params["ip"][0].data, weights)
        solver.solve(str(tmp_path / "it_iter_5.solverstate"))
        assert solver.iter == 6
        with pytest.raises(Error, match=r"none\.solverstate"):
            solver.restore(str(tmp_path / "none.solverstate"))
    with pytest.raises(Error, match=r"none\.prototxt"):
        caffe.get_solver(str(tmp_path / "none.prototxt"), device=device)
    with pytest.raises(Error, match="Best"):
        caffe.get_solver(param(type="Best"), device=device)


def test_steps_by_hand_are_the_solvers(device: Any) -> None:
    """forward, backward and a numpy update, as in pycaffe tutorials, and apply_update."""
    text = LEARNING.replace('weight_filler { type: "gaussian" std: 1 }', 'weight_filler { type: "constant" value: 0.5 }')
    images, labels = numbers(4, 3), np.array([0, 1, 1, 0])
    solvers = [caffe.get_solver(param(text, momentum=0.9, weight_decay=0.01), device=device) for _ in range(3)]
    for solver in solvers:
        solver.net.blobs["data"].data[...] = images
        solver.net.blobs["label"].data[...] = labels
    solvers[0].step(3)
    history = [np.zeros_like(blob.data) for blob in solvers[1].net.params["ip"]]
    for _ in range(3):
        for solver in solvers[1:]:
            solver.net.clear_param_diffs()
            solver.net.forward()
            solver.net.backward()
        for blob, momentum in zip(solvers[1].net.params["ip"], history):
            momentum[...] = 0.9 * momentum + 0.1 * (blob.diff + 0.01 * blob.data)
            blob.data[...] -= momentum
        solvers[2].apply_update()
    for solver in solvers[1:]:
        for mine, theirs in zip(solver.net.params["ip"], solvers[0].net.params["ip"]):
            np.testing.assert_allclose(mine.data, theirs.data, rtol=1e-5, atol=1e-7)
        assert solver.iter == 0
    for solver in solvers:
        solver.close()


def test_callbacks(device: Any) -> None:
    with caffe.SGDSolver(param(), device=device) as solver:
        order: list[str] = []

        def freeze() -> None:
            order.append("ready")
            assert np.abs(solver.net.params["ip1"][0].diff).max() > 0
            solver.net.params["ip"][0].diff[...] = 0

        solver.add_callback(lambda: order.append("start"), freeze)
        uid = caffe.NCCL.new_uid()
        assert type(uid) is bytes  # as in pycaffe
        solver.add_callback(caffe.NCCL(solver, uid))
        before = {name: blobs[0].data.copy() for name, blobs in solver.net.params.items()}
        solver.step(2)
        assert order == ["start", "ready"] * 2
        np.testing.assert_array_equal(solver.net.params["ip"][0].data, before["ip"])
        assert (solver.net.params["ip1"][0].data != before["ip1"]).any()
    with caffe.SGDSolver(param(), device=device, keep=[]) as solver, pytest.raises(Error, match="stores no gradients"):
        solver.add_callback(print, print)


def test_share_weights(device: Any) -> None:
    other = caffe.Net(message(NET), caffe.TEST, device=device)
    with caffe.SGDSolver(param(), device=device) as solver:
        solver.share_weights(other)
        solver.step(2)
        np.testing.assert_array_equal(other.params["ip"][0].data, solver.net.params["ip"][0].data)
        assert np.isfinite(other.forward()["loss"])


@pytest.mark.parametrize("keep", [None, []])
def test_another_pass_between_forward_and_backward_is_told(device: Any, keep: list[str] | None) -> None:
    """TRAIN and TEST nets of a solver share recycled memory, so a TEST pass can overwrite values that backward needs."""
    with caffe.SGDSolver(with_test(), device=device, keep=keep) as solver:
        net, test = solver.net, solver.test_nets[0]
        net.forward()
        net.backward()
        expected = {name: blobs[0].diff.copy() for name, blobs in net.params.items()}
        assert np.abs(expected["ip1"]).max() > 0
        net.forward()
        test.forward()
        try:
            net.clear_param_diffs()
            net.backward()
        except Error as error:
            assert "not in memory" in error.fact and "forward directly before" in str(error.fix)
        else:  # the TEST pass overwrote no needed value
            with caffe.SGDSolver(with_test(), device=device, keep=keep) as alone:
                alone.net.forward()
                alone.net.forward()
                alone.net.backward()
                np.testing.assert_array_equal(net.params["ip1"][0].diff, alone.net.params["ip1"][0].diff)
        net.forward()
        net.clear_param_diffs()
        net.backward()
        assert np.isfinite(net.params["ip1"][0].diff).all()


def test_the_error_is_raised_where_memory_is_shared(device: Any) -> None:
    pooled = NET.replace('name: "ip1" type: "InnerProduct" bottom: "data"', 'name: "ip1" type: "InnerProduct" bottom: "pool"').replace(
        "shape { dim: 8 dim: 3 }", "shape { dim: 8 dim: 3 dim: 6 dim: 6 }")  # fmt: skip
    pooled = pooled.replace('layer { name: "ip1"', 'layer { name: "norm" type: "LRN" bottom: "data" top: "norm" }\n'
                            'layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }\n'
                            'layer { name: "ip1"')  # fmt: skip
    with caffe.SGDSolver(with_test("force_backward: true" + pooled), device=device, keep=[]) as solver:
        solver.net.forward()
        solver.test_nets[0].forward()
        with pytest.raises(Error, match="not in memory"):
            solver.net.backward()
        solver.net.forward()
        solver.net.backward()


def test_parts_of_a_solvers_net(device: Any) -> None:
    """Running a net layer by layer does not change its training, and later reads return current values."""
    with caffe.SGDSolver(param(), device=device) as solver, caffe.SGDSolver(param(), device=device) as plain:
        for each in (solver, plain):
            each.step(1)
        raw = solver.net.forward(start="ip1", end="ip1")["ip1"].copy()
        assert raw.min() < 0 and (solver.net.forward(start="relu", end="relu")["ip1"] == np.maximum(raw, 0)).all()
        solver.net.blobs["ip"].diff[...] = 1
        solver.net.backward(start="ip", end="ip1")
        for each in (solver, plain):
            each.step(2)
        for name in plain.net.params:
            np.testing.assert_array_equal(solver.net.params[name][0].data, plain.net.params[name][0].data)
        for name in plain.net.blobs:
            np.testing.assert_array_equal(solver.net.blobs[name].data, plain.net.blobs[name].data, err_msg=name)


def test_keeping_nothing_trains_the_same(device: Any) -> None:
    with caffe.SGDSolver(param(momentum=0.9), device=device) as kept, caffe.SGDSolver(param(momentum=0.9), device=device, keep=[]) as planned:
        for each in (kept, planned):
            each.step(4)
        for name in kept.net.params:
            np.testing.assert_allclose(planned.net.params[name][0].data, kept.net.params[name][0].data, rtol=1e-5, atol=1e-7)
        with pytest.raises(Error, match="memory of blob 'ip1'"):
            _ = planned.net.blobs["ip1"].data
        assert planned.loss_history().shape == (1,) and planned.loss_history()[0] == pytest.approx(float(planned.net.blobs["loss"].data))


def test_gradients_within_a_limit(device: Any) -> None:
    """After a step a script reads the values of the solver's run, also under a memory limit."""
    with caffe.SGDSolver(with_test(), device=device) as plain, caffe.SGDSolver(with_test(), device=device, memory_limit=1 << 20) as limited:
        for each in (plain, limited):
            each.step(2)
        assert np.abs(plain.net.blobs["ip1"].diff).max() > 0
        for name in ("ip1", "drop", "ip"):
            np.testing.assert_array_equal(limited.net.blobs[name].diff, plain.net.blobs[name].diff)


def test_log_of_a_script(device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """A script logs nothing before it calls init_log."""
    from ocaffe import log

    before = log.minimum, log.sink, log._chosen
    try:
        log.minimum, log._chosen = 0, False
        with caffe.SGDSolver(param(display=1), device=device) as solver:
            solver.step(1)
        assert capfd.readouterr().err == ""
        caffe.init_log(0)
        with caffe.SGDSolver(param(display=1), device=device) as solver:
            solver.step(1)
        assert "Iteration 0" in capfd.readouterr().err
        caffe.init_log(2)
        caffe.log("not shown")
        assert capfd.readouterr().err == ""
    finally:
        log.minimum, log.sink, log._chosen = before
