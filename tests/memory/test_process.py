"""The process of a training on a CPU: predicted, taken, and without second copies of the weights."""
from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.formats.text import parse
from ocaffe.memory.process import KERNEL_BYTES, PROGRAM_BYTES, RuntimeMemory, device_line, process_line
from ocaffe.solver.solver import Solver
from ocaffe.support.process_memory import Taken

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20
BEYOND = 48 * MIB  # of the process beside start-up, plan and the runtime
WEIGHTS = 50 << 20
SOLVER = """
base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 max_iter: 3 display: 1 random_seed: 1 snapshot_prefix: "big" solver_mode: CPU
net_param {
  layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
    shape { dim: 4 dim: 3200 } shape { dim: 4 } data_filler { type: "constant" value: 0.5 } data_filler { type: "constant" value: 1 } } }
  layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4096 weight_filler { type: "xavier" } } }
  layer { name: "relu" type: "ReLU" bottom: "ip" top: "ip" }
  layer { name: "out" type: "InnerProduct" bottom: "ip" top: "out" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "out" bottom: "label" top: "loss" } }
"""
TRAIN = """
import sys
from ocaffe.cl.device import select_device
from ocaffe.cli.train import main
from ocaffe.layers.base import registry
from ocaffe.support.process_memory import taken
registry()
select_device(sys.argv[1]).queue
start = taken().peak
main(["--solver", "solver.prototxt", "--device", sys.argv[1]])
print(start, taken().peak)
"""


def size_of(found: Any) -> int:
    kind = type(found)  # isinstance reads an attribute, and lazy modules of other libraries then warn
    return found.nbytes if issubclass(kind, np.ndarray) and found.base is None else len(found) if issubclass(kind, (bytes, bytearray)) else 0


def large() -> dict[int, int]:
    """The sizes of large arrays and byte strings, by id. The collector does not track arrays, only what refers to them."""
    found = {id(each): each for owner in gc.get_objects() for each in gc.get_referents(owner)}
    return {key: size_of(each) for key, each in found.items() if size_of(each) >= WEIGHTS // 4}


@pytest.mark.unoptimised
def test_no_second_copy_of_the_weights(device: Device, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not device.target.is_cpu:
        pytest.skip("a GPU's transfers need arrays")
    monkeypatch.chdir(tmp_path)
    before = large()
    solver = Solver(parse(SOLVER, proto.SolverParameter), device)
    solver.solve()
    gc.collect()
    fresh = {key: size for key, size in large().items() if key not in before}
    solver.close()
    assert not fresh
    assert (tmp_path / "big_iter_3.caffemodel").stat().st_size > WEIGHTS


@pytest.mark.skipif(sys.platform != "linux", reason="the figures are Linux's")
def test_a_process_stays_within_the_prediction(device: Device, tmp_path: pathlib.Path) -> None:
    """From an empty cache: the compiler runs in other processes. The weights are 50 MiB, a second copy would exceed the bound."""
    if not device.target.is_cpu:
        pytest.skip("the driver of a GPU has memory of its own in the process")
    (tmp_path / "solver.prototxt").write_text(SOLVER, encoding="utf-8")
    caches = {**os.environ, "OCAFFE_CACHE": str(tmp_path / "cache"), "POCL_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", TRAIN, device.number], capture_output=True, text=True, cwd=tmp_path, env=caches, check=True)
    start, peak = map(int, done.stdout.split())
    line = next(line for line in done.stderr.splitlines() if "Memory of this process: predicted" in line)
    plan = 2 * WEIGHTS  # weights and history; the slabs are below 1 MiB
    assert plan < peak - start < plan + BEYOND, line


def test_line_of_the_log() -> None:
    runtime = RuntimeMemory(4, 10)
    assert runtime.bytes == 4 * PROGRAM_BYTES + 10 * KERNEL_BYTES
    text = process_line(Taken(200 * MIB, 210 * MIB, 90 * MIB), 300 * MIB, runtime, Taken(500 * MIB, 512 * MIB, 95 * MIB))
    assert text == (
        "Memory of this process: predicted 505 MiB (start-up 200 MiB, plan 300 MiB, 4 programs and 10 kernels about 5.1 MiB), "
        "taken 512 MiB, of which 5.0 MiB are pages of mapped files"
    )
    assert process_line(None, 1, runtime, None) is None


def test_the_line_of_a_gpu() -> None:
    line = device_line(500 * MIB, 700 * MIB, 0, 9000 * MIB, 8290 * MIB)
    assert line == (
        "Memory of the device: predicted 1.2 GiB (context 500 MiB, plan 700 MiB), taken 1.2 GiB by the driver's figure, other programs included"
    )
    assert "plan 700 MiB, 90.0 MiB of the host's memory)" in (device_line(500 * MIB, 700 * MIB, 90 * MIB, 9000 * MIB, 8290 * MIB) or "")
    assert device_line(0, 700 * MIB, 0, None, 8290 * MIB) is None and device_line(500 * MIB, 700 * MIB, 0, 9000 * MIB, None) is None
