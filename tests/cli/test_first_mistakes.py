"""First mistakes of new users: the messages name the cause, and the remedies work."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from ocaffe.api import runtime
from ocaffe.cl import device as devices
from ocaffe.cl.device import Device, choose
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.fit.training import Progress
from ocaffe.solver.coverage import scored
from ocaffe.solver.first_losses import FLAT
from ocaffe.solver.solver import Solver
from ocaffe.support.drawable import drawable
from tests.cl.test_device import info

NET = """layer { name: "d" type: "DummyData" top: "x" top: "l"
  dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 } data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "l" top: "loss" }
"""
SOLVER = 'net: "net.prototxt" lr_policy: "fixed" snapshot_prefix: "s"'
CPU = info("0:0", "Xeon", "Intel(R) OpenCL", "intel", "cpu")
GPU = info("1:0", "NVIDIA H100", "NVIDIA CUDA", "nvidia")


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_summary_takes_the_net_with_model(capfd: pytest.CaptureFixture[str]) -> None:
    Path("net.prototxt").write_text(NET)
    assert main(["summary", "net.prototxt"]) == 0
    plain = capfd.readouterr().out
    assert main(["summary", "--model", "net.prototxt"]) == 0 and capfd.readouterr().out == plain
    assert main(["summary"]) == 1 and main(["summary", "net.prototxt", "--model", "net.prototxt"]) == 1


def test_python_2_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in {"old.py": 'import sys\nprint "a", 3\n', "caught.py": "try:\n    pass\nexcept Exception, e:\n    pass\n"}.items():
        Path(name).write_text(text)
        done = subprocess.run([sys.executable, "-m", "ocaffe.as_caffe", name], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stderr.startswith(f"error: {name}:") and "this is Python 2" in done.stderr, done.stderr
        assert f"python -m fissix -w {name}" in done.stderr
    Path("wrong.py").write_text("x = (\n")
    done = subprocess.run([sys.executable, "-m", "ocaffe.as_caffe", "wrong.py"], capture_output=True, text=True, check=False)
    assert "SyntaxError" in done.stderr and "Python 2" not in done.stderr


def test_letters_in_pictures() -> None:
    assert [drawable(name) for name in ("Häuser", "Straße", "Łódź", "crème brûlée", "plain", "u\u0308ber", "中")] == [
        "Haeuser", "Strasse", "Lodz", "creme brulee", "plain", "ueber", "?",
    ]  # fmt: skip


def test_old_shell_scripts_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """OCAFFE_DEVICE decides for `-gpu 0` too, where there is no GPU."""
    cpu, gpu = CPU, GPU
    with pytest.raises(Error, match="OpenCL has no GPU here") as caught:
        choose([cpu], gpu="0")
    assert f"OCAFFE_DEVICE={cpu.number}" in (caught.value.fix or "")
    assert choose([cpu], gpu="0", default=cpu.number) is cpu
    assert choose([cpu, gpu], gpu="0", default=cpu.number) is gpu, "with a GPU the flag decides"


def test_set_mode_gpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy names what a script can do."""
    monkeypatch.delenv("OCAFFE_DEVICE", raising=False)
    monkeypatch.setattr(runtime, "list_devices", lambda: [CPU])
    monkeypatch.setattr(devices, "list_devices", lambda: [CPU])
    with pytest.raises(Error, match=r"^set_mode_gpu\(\): OpenCL has no GPU here") as caught:
        runtime.set_mode_gpu()
    assert "caffe.set_mode_cpu()" in (caught.value.fix or "") and "--gpu" not in (caught.value.fix or "")
    monkeypatch.setenv("OCAFFE_DEVICE", "cpu")
    runtime.set_mode_gpu()
    runtime.set_mode_cpu()


@pytest.mark.parametrize(("iterations", "batch", "count", "right"), [(5, 2, 10, None), (4, 2, 10, 5), (6, 2, 10, 5), (4, 3, 10, None), (5, 3, 10, 4)])
def test_samples_that_a_test_scores(iterations: int, batch: int, count: int, right: int | None) -> None:
    found = scored(iterations, batch, count, "list.txt")
    assert (found[1] if found else None) == right


def test_train_warns_of_samples_that_count_twice(device: Device, capfd: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save("a.png")
    Path("list.txt").write_text("a.png 0\n" * 6)
    data = 'layer { name: "d" type: "ImageData" top: "x" top: "l" image_data_param { source: "list.txt" batch_size: 2 } }\n'
    Path("net.prototxt").write_text(data + NET[NET.index('layer { name: "ip"') :])
    for tests, warned in ((3, False), (2, False), (4, True)):
        Path("solver.prototxt").write_text(f"{SOLVER} base_lr: 0.1 max_iter: 1 test_iter: {tests} test_interval: 1")
        Solver("solver.prototxt", device).close()
        assert ("some count twice; the right test_iter is 3" in capfd.readouterr().err) == warned


def test_a_loss_that_stays_that_of_a_guess(device: Device, capfd: pytest.CaptureFixture[str]) -> None:
    Path("net.prototxt").write_text(NET)
    for rate, warned in (("1e-7", True), ("0.1", False)):
        Path("solver.prototxt").write_text(f"{SOLVER} base_lr: {rate} max_iter: {FLAT + 1} snapshot_after_train: false")
        solver = Solver("solver.prototxt", device)
        solver.solve()
        solver.close()
        assert ("that of a guess among 10 classes, with base_lr" in capfd.readouterr().err) == warned


def test_scores_of_a_classifier_are_refused_before_the_net_is_built(capfd: pytest.CaptureFixture[str]) -> None:
    Path("net.prototxt").write_text(NET)
    Path("none.caffemodel").write_bytes(b"")
    assert main(["test", "--model", "net.prototxt", "--weights", "none.caffemodel", "--iterations", "1", "--scores", "s.json"]) == 1
    said = capfd.readouterr().err
    assert "the TEST net has no layer DetectionEvaluate or SegAccuracy" in said and "Creating layer" not in said


def test_the_first_test_is_not_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    tests = Progress(cast(Any, SimpleNamespace(accuracy="a", iterations=10)), "accuracy")
    for iteration, accuracy in ((0, 0.0), (5, 0.5)):
        tests.record({"phase": "test", "iteration": iteration, "outputs": {"a": [accuracy]}})
    assert ["(best)" in line for line in capsys.readouterr().out.splitlines()] == [False, True]
