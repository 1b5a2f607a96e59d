"""Python layers of public programs: the objects in net.layers, memory that they share with blobs, phases, exceptions, forked processes."""
from __future__ import annotations

import gc
import json
import os
import pathlib
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe.cl import device as devices
from ocaffe.errors import Error
from ocaffe.pylayer import Arrays
from tests.api.nets import net, numbers

SHARED: list[str] = []  # state that layers share through a global of their module


class Base(caffe.Layer):
    """Copies its bottom."""

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        """Nothing to do."""

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        for one, other in zip(top, bottom):
            one.reshape(*other.shape)

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        top[0].data[...] = bottom[0].data

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        bottom[0].diff[...] = top[0].diff


class Fed(Base):
    """A data layer whose script writes the values into the blobs, as guided policy search does."""

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        for array, shape in zip(top, json.loads(self.param_str)["shape"]):
            array.reshape(*shape["dim"])

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        """The values are there."""


class Doubled(Base):
    """Works in place on its bottom."""

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        bottom[0].data[...] *= 2

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        top[0].diff[...] *= 2


class Early(Base):
    """A loss that computes its gradient in forward."""

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        top[0].reshape(1)

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        top[0].data[...] = (bottom[0].data ** 2).sum() / 2
        bottom[0].diff[...] = bottom[0].data

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        """The diff is there."""


class Learned(Base):
    """Adds a learned number. Scripts set `factor`."""

    factor = 1.0

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        self.blobs.add_blob(7)
        self.blobs[0].reshape(1)
        self.blobs[0].data[0] = 3
        self.kinds = [type(self.blobs)]

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        self.kinds.append(type(self.blobs))
        top[0].data[...] = bottom[0].data * self.factor + self.blobs[0].data

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        self.kinds.append(type(self.blobs))
        self.blobs[0].diff[...] += top[0].diff.sum()
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff * self.factor

    def set_factor(self, factor: float) -> None:
        self.factor = factor


class Constructed(Base):
    """Has a constructor, as editors write it."""

    def __init__(self, p_object: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(p_object, *args, **kwargs)
        self.name_there = p_object.name


class Reports(Base):
    """Tells about itself and its arrays."""

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        SHARED.append(self.param_str)
        self.lists = [bottom, *bottom, *top]
        self.sizes: list[tuple[int, ...]] = []

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        assert all(one is other for one, other in zip(self.lists, [bottom, *bottom, *top]))
        self.sizes.append((bottom[0].num, bottom[0].channels, bottom[0].height, bottom[0].width, top[0].num, top[0].count))
        top[0].data[...] = self.phase

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        self.propagated = list(propagate_down)


class Mishap(Exception):
    """An exception with an attribute."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


RAISED: dict[str, type[BaseException]] = {
    "ValueError": ValueError, "KeyError": KeyError, "RuntimeError": RuntimeError, "StopIteration": StopIteration, "Mishap": Mishap,
}  # fmt: skip


class Raises(Base):
    """Raises an exception in one of its methods; `param_str` is 'method kind'."""

    def fail(self, method: str) -> None:
        where, kind = self.param_str.split()
        if where == method:
            raise Mishap("broken", 5) if kind == "Mishap" else RAISED[kind]("broken")

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        self.fail("setup")

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        self.fail("reshape")
        super().reshape(bottom, top)

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        self.fail("forward")

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        self.fail("backward")


def python(layer: str, bottom: str, top: str, param: str = "", extra: str = "") -> str:
    ends = (f'bottom: "{bottom}" ' if bottom else "") + f'top: "{top}"'
    inner = f"module: \"{__name__}\" layer: \"{layer}\" param_str: '{param}'"
    return f'layer {{ name: "{layer}" type: "Python" {ends} python_param {{ {inner} {extra} }} }}\n'


INPUT = 'force_backward: true layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'
COPY = 'layer { name: "copy" type: "Power" bottom: "x" top: "a" }\n'
FED = python("Fed", "", "x", '{"shape": [{"dim": [2, 3]}]}') + 'layer { name: "y" type: "Power" bottom: "x" top: "y" power_param { scale: 3 } loss_weight: 1 }'


# -- memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["whole", "slice", "assigned", "held"])
def test_values_that_a_script_writes_into_a_top(device: Any, way: str) -> None:
    made = net(device, FED, caffe.TRAIN)
    held = made.blobs["x"].data
    made.forward()
    for value in (7, 8):
        if way == "assigned":
            made.blobs["x"].data = np.full((2, 3), value)
        else:
            (held if way == "held" else made.blobs["x"].data)[slice(1) if way == "slice" else ...] = value
        expected = np.full((2, 3), 3.0 * value)
        expected[1:] *= way != "slice"
        for _ in range(2):
            np.testing.assert_array_equal(made.forward()["y"], expected)


def test_values_that_a_script_writes_into_the_tops_of_a_solver(device: Any, tmp_path: pathlib.Path) -> None:
    product = 'layer { name: "g" type: "InnerProduct" bottom: "y" top: "g" loss_weight: 1 inner_product_param { num_output: 1 } }'
    (tmp_path / "net.prototxt").write_text(FED.replace("loss_weight: 1 }", "} " + product))
    (tmp_path / "solver.prototxt").write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 9 test_iter: 1 test_interval: 100')
    solver = caffe.SGDSolver(tmp_path / "solver.prototxt", device=device)
    for value in (1, 2, 2):
        solver.net.blobs["x"].data[...] = value
        before = solver.net.params["g"][0].data.copy()
        solver.step(1)
        np.testing.assert_allclose(solver.net.params["g"][0].data, before - 6 * value)  # two rows of 3 * value
    solver.test_nets[0].blobs["x"].data[...] = 5
    assert (solver.test_nets[0].forward() and solver.test_nets[0].blobs["y"].data == 15).all() and (solver.net.blobs["y"].data == 6).all()


@pytest.mark.parametrize("calls", [1, 2])
def test_a_layer_in_place(device: Any, calls: int) -> None:
    made = net(device, INPUT + COPY + python("Doubled", "a", "a") + 'layer { name: "y" type: "Power" bottom: "a" top: "y" }', caffe.TRAIN)
    x = numbers(2, 3)
    for _ in range(calls):
        np.testing.assert_allclose(made.forward(x=x)["y"], 2 * x)
        made.blobs["y"].diff[...] = x
        made.backward()
    np.testing.assert_allclose(made.blobs["x"].diff, 2 * x)


def test_diffs_that_forward_sets(device: Any) -> None:
    made = net(device, INPUT + COPY + python("Early", "a", "loss"), caffe.TRAIN)
    for seed in (1, 2):
        x = numbers(2, 3, seed=seed)
        np.testing.assert_allclose(made.forward(x=x)["loss"], [(x**2).sum() / 2], rtol=1e-5)
        made.backward()
        np.testing.assert_allclose(made.blobs["x"].diff, x)


def test_diffs_that_forward_sets_add_up_with_those_of_other_layers(device: Any) -> None:
    made = net(device, INPUT + COPY + python("Early", "a", "loss") + 'layer { name: "b" type: "Power" bottom: "a" top: "b" }', caffe.TRAIN)
    x = numbers(2, 3)
    made.forward(x=x)
    made.blobs["b"].diff[...] = 10
    made.backward()
    np.testing.assert_allclose(made.blobs["x"].diff, x + 10)


def test_propagate_down_says_which_bottoms_need_a_diff(device: Any) -> None:
    product = 'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 3 } }\n'
    layer = python("Reports", 'a" bottom: "x', "y").replace("python_param", "loss_weight: 1 python_param")
    made = net(device, INPUT.removeprefix("force_backward: true") + product + layer, caffe.TRAIN)
    made.forward(x=numbers(2, 3))
    made.backward()
    assert made.layer_dict["Reports"].propagated == [True, False]


# -- objects -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def learned(device: Any) -> Any:
    return net(device, INPUT + python("Learned", "x", "y"), caffe.TRAIN)


def test_layers_are_the_objects_of_their_classes(learned: Any) -> None:
    layer = learned.layers[1]
    assert isinstance(layer, Learned) and learned.layer_dict["Learned"] is layer
    assert layer.type == "Python" and [other.type for other in learned.layers] == ["Input", "Python"] and learned.layers[0].name == "x"


def test_scripts_call_methods_of_layers(learned: Any) -> None:
    x = numbers(2, 3)
    learned.layers[1].set_factor(5)
    np.testing.assert_allclose(learned.forward(x=x)["y"], 5 * x + 3, rtol=1e-6)
    learned.layers[1].factor = 2
    np.testing.assert_allclose(learned.forward(x=x)["y"], 2 * x + 3, rtol=1e-6)


def test_parameters_are_those_of_the_net_between_runs(learned: Any, tmp_path: pathlib.Path) -> None:
    layer, x = learned.layers[1], numbers(2, 3)
    learned.forward(x=x)
    learned.blobs["y"].diff[...] = 1
    learned.backward()
    assert layer.blobs is learned.params["Learned"] and set(layer.kinds) == {Arrays}
    assert layer.blobs[0].data[0] == 3 and layer.blobs[0].diff[0] == 6
    layer.blobs[0].data[0] -= layer.blobs[0].diff[0]
    np.testing.assert_allclose(learned.forward(x=x)["y"], x - 3, rtol=1e-6)
    learned.save(str(tmp_path / "w.caffemodel"))
    layer.blobs[0].data[0] = 50
    learned.copy_from(str(tmp_path / "w.caffemodel"))
    assert layer.blobs[0].data[0] == learned.params["Learned"][0].data[0] == -3


def test_solvers_have_an_object_for_each_net(device: Any, tmp_path: pathlib.Path) -> None:
    text = python("Fed", "", "x", '{"shape": [{"dim": [2, 3]}]}') + python("Learned", "x", "y").replace("python_param", "loss_weight: 1 python_param")
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "solver.prototxt").write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.5 lr_policy: "fixed" max_iter: 9 test_iter: 1 test_interval: 100')
    solver = caffe.SGDSolver(tmp_path / "solver.prototxt", device=device)
    trained, tested = solver.net.layers[1], solver.test_nets[0].layers[1]
    assert trained is not tested and trained.phase == caffe.TRAIN and tested.phase == caffe.TEST
    solver.step(2)
    assert trained.blobs[0].data[0] == tested.blobs[0].data[0] == 3 - 2 * 0.5 * 6
    solver.test_nets[0].forward()
    assert (solver.test_nets[0].blobs["y"].data == -3).all()


def test_a_dropped_net_is_freed_though_its_layers_are_held(device: Any) -> None:
    made = net(device, INPUT + python("Learned", "x", "y"), caffe.TRAIN)
    layer, engine = made.layers[1], weakref.ref(made._engine)
    gc.disable()
    try:
        del made
        assert engine() is None and isinstance(layer.blobs, Arrays)
    finally:
        gc.enable()


def test_a_constructor(device: Any) -> None:
    made = net(device, INPUT + python("Constructed", "x", "y"), caffe.TEST)
    assert made.layers[1].name_there == "Constructed" and made.forward(x=numbers(2, 3))["y"].shape == (2, 3)


# -- attributes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [caffe.TRAIN, caffe.TEST])
def test_phase(device: Any, phase: int) -> None:
    """A number, whose text is the key of a detector's settings."""
    made = net(device, INPUT + python("Reports", "x", "y"), phase)
    found = made.layers[1].phase
    assert found == phase and {"TRAIN": 0, "TEST": 1}[str(found)] == phase == int(f"{found:d}") and json.dumps(found) == str(phase)
    assert (made.forward()["y"] == phase).all()


@pytest.mark.parametrize(
    ("text", "read"), [('{"a": [1, 2]}', json.loads), ("dict(a=[1, 2])", eval), ("1.5", float), ("a: 3\\nb: 4", str), ("", str)],
)  # fmt: skip
def test_param_str(device: Any, text: str, read: Any) -> None:
    SHARED.clear()
    made = net(device, INPUT + python("Reports", "x", "y", text), caffe.TEST)
    layer = made.layers[1]
    assert layer.param_str == layer.param_str_ == text.replace("\\n", "\n") and read(layer.param_str) == read(text.replace("\\n", "\n"))
    assert [layer.param_str] == SHARED


def test_share_in_parallel_is_read(device: Any) -> None:
    made = net(device, INPUT + python("Reports", "x", "y", extra="share_in_parallel: true"), caffe.TRAIN)
    assert made.forward()["y"].shape == (2, 3)


def test_arrays_stay_the_same_objects(device: Any) -> None:
    made = net(device, INPUT + python("Reports", "x", "y"), caffe.TEST)
    shapes = [(2, 3), (4, 3, 5, 6), (1, 1, 1), (2, 3)]
    for shape in shapes:
        made.blobs["x"].reshape(*shape)
        made.forward()
    assert made.layers[1].sizes == [(*(shape + (1, 1, 1))[:4], shape[0], int(np.prod(shape))) for shape in shapes]


# -- exceptions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("method", ["setup", "reshape", "forward", "backward"])
def test_exceptions(device: Any, method: str, kind: str) -> None:
    """They keep their class and attributes. The error names method, file and line; its cause has the traceback of the layer."""
    with pytest.raises(RAISED[kind]) as caught:
        made = net(device, INPUT + python("Raises", "x", "y", f"{method} {kind}"), caffe.TRAIN)
        made.forward()
        made.backward()
    error, cause = caught.value, caught.value.__cause__
    assert isinstance(error, Error) and f"Raises.{method} raised {kind}" in error.fact and f"{pathlib.Path(__file__).name}:" in (error.fix or "")
    assert type(cause) is RAISED[kind] and cause.__traceback__ is not None and getattr(error, "code", 5) == 5


# -- processes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", ["forward", "read", "new"])
def test_forked_processes_do_not_use_opencl(device: Any, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """PoCL would wait forever there."""
    made = net(device, INPUT + python("Learned", "x", "y"), caffe.TRAIN)
    monkeypatch.setattr(devices, "_process", os.getpid() + 1)
    monkeypatch.setattr(devices, "_is_fork", devices._is_fork)
    devices._forked()
    calls = {"forward": made.forward, "read": lambda: made.blobs["y"].data, "new": lambda: devices.Device(device.info)}
    with pytest.raises(Error, match="was forked from"):
        calls[work]()
    monkeypatch.undo()
    assert made.forward()["y"].shape == (2, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_can_drop_nets(device: Any) -> None:
    made = [net(device, INPUT + python("Learned", "x", "y"), caffe.TRAIN)]
    made[0].forward()
    child = os.fork()
    if not child:
        made.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and made[0].forward()["y"].shape == (2, 3)


SCRIPT = """
import atexit, multiprocessing, numpy as np, caffe
from google.protobuf import text_format

class Fetcher(multiprocessing.Process):
    def __init__(self, queue):
        super().__init__()
        self.queue = queue
    def run(self):
        for number in range(1000):
            self.queue.put(np.full((number % 3 + 1, 2), number))

class RoIDataLayer(caffe.Layer):
    def setup(self, bottom, top):
        top[0].reshape(1, 2)
    def set_roidb(self, roidb):
        self.queue = multiprocessing.Queue(3)
        self.fetcher = Fetcher(self.queue)
        self.fetcher.start()
        def cleanup():
            self.fetcher.terminate()
            self.fetcher.join()
            print("ended")
        atexit.register(cleanup)
    def reshape(self, bottom, top):
        pass
    def forward(self, bottom, top):
        found = self.queue.get()
        top[0].reshape(*found.shape)
        top[0].data[...] = found
    def backward(self, top, propagate_down, bottom):
        pass

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    layer = 'layer { name: "d" type: "Python" top: "d" python_param { module: "__main__" layer: "RoIDataLayer" } }'
    net = caffe.Net(text_format.Parse(layer, caffe.proto.caffe_pb2.NetParameter()), caffe.TRAIN)
    net.layers[0].set_roidb([])
    print(*(net.forward()["d"].sum() for _ in range(4)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_process_that_prefetches_ends_with_the_script(device: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "OCAFFE_DEVICE": device.number, "PYTHONPATH": os.pathsep.join([str(pathlib.Path(caffe.__file__).parents[1])])}
    command = [sys.executable, "-m", "ocaffe.as_caffe", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, ["0.0", "4.0", "12.0", "6.0", "ended"]), done.stderr
