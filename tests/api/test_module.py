"""Module-level names of `import caffe`: modes, devices, seeds, Timer, layer types, names for multi-process training."""
from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe.api import runtime
from ocaffe.errors import Error
from tests.api.nets import message, net, numbers

SURFACE = """Net SGDSolver NesterovSolver AdaGradSolver RMSPropSolver AdaDeltaSolver AdamSolver get_solver NCCL Timer init_log log set_mode_cpu set_mode_gpu
set_device Layer layer_type_list set_random_seed solver_count set_solver_count solver_rank set_solver_rank set_multiprocess has_nccl __version__ TRAIN TEST
Classifier Detector io layers params NetSpec to_proto draw coord_map net_spec classifier detector""".split()  # noqa: SIM905


def test_every_name_is_there_and_typed() -> None:
    assert [name for name in SURFACE if not hasattr(caffe, name)] == []
    assert set(SURFACE) - {"__version__"} <= set(dir(caffe))
    stub = (pathlib.Path(caffe.__file__).parent / "__init__.pyi").read_text()
    typed = set(re.findall(r"as (\w+)$", stub, re.M)) | set(re.findall(r"^(\w+): ", stub, re.M))
    assert typed == set(caffe.__all__), "ocaffe/__init__.pyi and __init__.py disagree"
    assert (caffe.TRAIN, caffe.TEST) == (0, 1) and re.fullmatch(r"\d+\.\d+\.\d+.*", caffe.__version__)
    with pytest.raises(AttributeError, match="'nope'"):
        _ = caffe.nope  # type: ignore[attr-defined]


def test_every_public_docstring() -> None:
    """Every public name has a docstring, because docstrings document shapes, units and errors."""
    missing = []
    for name in caffe.__all__:
        value = getattr(caffe, name)
        if isinstance(value, type) and value.__module__.startswith("ocaffe"):
            own = {key: item for key, item in vars(value).items() if not key.startswith("_") and (callable(item) or isinstance(item, property))}
            missing += [f"{name}.{key}" for key, item in own.items() if not (item.fget if isinstance(item, property) else item).__doc__]
        if (isinstance(value, type) or callable(value)) and not value.__doc__:
            missing.append(name)
    assert missing == []


def test_layer_types() -> None:
    types = caffe.layer_type_list()
    assert isinstance(types, list) and types == sorted(types) and {"Convolution", "Python", "SoftmaxWithLoss", "PriorBox"} <= set(types)


def test_timer() -> None:
    timer = caffe.Timer()
    timer.stop()
    assert timer.ms == 0  # with a warning, as in Caffe
    timer.start()
    time.sleep(0.02)
    timer.start()  # it runs on
    stopped = timer.ms  # it stops
    time.sleep(0.01)
    timer.stop()
    assert timer.ms == stopped >= 20


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the module to its state at process start."""
    for name, value in (("_mode", runtime._Mode()), ("_gpu_number", None), ("_random_seed", None)):
        monkeypatch.setattr(runtime, name, value)
    monkeypatch.delenv("OCAFFE_DEVICE", raising=False)


@pytest.mark.usefixtures("fresh")
def test_modes_and_devices(device: Any) -> None:
    caffe.set_device(device.number)
    made = caffe.Net(message(), caffe.TEST)
    assert made._network.session.device.name == device.name
    assert made.forward(data=numbers(2, 3, 8, 8))["prob"].shape == (2, 5, 3, 3)
    with pytest.raises(Error, match="nonsense"):
        caffe.set_device("nonsense")
    with pytest.raises(Error, match="set_device"):
        caffe.set_device(-1)
    if device.target.is_cpu:
        caffe.set_mode_cpu()
        caffe.set_device(0)  # selecting a device number keeps the mode
        assert caffe.Net(message(), caffe.TEST)._network.session.device.target.is_cpu


@pytest.mark.usefixtures("fresh")
def test_math_of_the_environment(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_MATH", "ieee")
    assert caffe.Net(message(), caffe.TEST, device=device.number)._network.session.device.target.math == "ieee"
    monkeypatch.setenv("OCAFFE_MATH", "float")
    with pytest.raises(Error, match="OCAFFE_MATH is 'float'"):
        caffe.Net(message(), caffe.TEST, device=device.number)


@pytest.mark.usefixtures("fresh")
def test_random_seed(device: Any) -> None:
    def weights() -> np.ndarray:
        return caffe.Net(message(), caffe.TEST, device=device).params["conv"][0].data

    caffe.set_random_seed(5)
    first = weights()
    np.testing.assert_array_equal(weights(), first)
    np.testing.assert_array_equal(net(device, seed=5).params["conv"][0].data, first)
    caffe.set_random_seed(6)
    assert (weights() != first).any()


def test_one_process() -> None:
    assert caffe.solver_count() == 1 and caffe.solver_rank() == 0 and caffe.has_nccl() == (importlib.util.find_spec("mpi4py") is not None)
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    caffe.set_multiprocess(False)
    for call in (lambda: caffe.set_solver_count(2), lambda: caffe.set_solver_rank(1)):
        with pytest.raises(Error, match="this process is rank 0 of 1"):
            call()


SCRIPT = """
import sys
import caffe, caffe.io, caffe.draw
from caffe import layers as L, params as P
from caffe.proto import caffe_pb2
from caffe.pycaffe import Net
import caffe.coord_map as maps
import ocaffe
assert caffe is ocaffe and Net is ocaffe.Net and caffe_pb2.NetParameter is ocaffe.proto.NetParameter and maps is ocaffe.coord_map
print(sys.argv[1:], __name__, L.ReLU(L.Input()).to_proto().layer[1].type)
"""


def test_scripts_that_import_caffe_run(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for run in (["-m", "ocaffe.as_caffe", str(tmp_path / "script.py")], ["-c", f"import ocaffe; ocaffe.install_as_caffe()\n{SCRIPT}"]):
        done = subprocess.run([sys.executable, *run, "a", "b"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "'b'] __main__ ReLU" in done.stdout
    done = subprocess.run([sys.executable, "-m", "ocaffe.as_caffe", "none.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "none.py" in done.stderr
    (tmp_path / "caffe.py").write_text("")
    told = subprocess.run([sys.executable, "-c", "import caffe, ocaffe; ocaffe.install_as_caffe()"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          env={**__import__("os").environ, "PYTHONPATH": f"{tmp_path}:{pathlib.Path(caffe.__file__).parents[1]}"})  # fmt: skip
    assert "another caffe was imported before" in told.stderr
