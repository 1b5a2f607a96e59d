"""Kernels that other processes compile before this one launches them (PoCL)."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ocaffe.cl import first_launches
from ocaffe.cl.device import Device
from ocaffe.cl.workers import caches_programs

# A training step on empty caches. It prints the kernels that are in PoCL's cache before the first launch, and those that are there after it.
STEP = """
import os, threading
from pathlib import Path
from ocaffe import proto
from ocaffe.cl import first_launches
from ocaffe.cl.device import select_device
from ocaffe.cl.session import Session
from ocaffe.compiler.network import Network, phase_net
from ocaffe.graph.options import NetOptions
from ocaffe.formats.text import parse

first_launches.worker_count = lambda *_: {count}
{more}
NET = '''
layer {{ name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param {{ shape {{ dim: 4 dim: 3 dim: 12 dim: 12 }} shape {{ dim: 4 }} data_filler {{ value: 1 }} data_filler {{ value: 2 }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {{ num_output: 8 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param {{ kernel_size: 3 pad: 1 }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param {{ num_output: 5 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
'''
net = Network(phase_net(parse(NET, proto.NetParameter), proto.TRAIN), proto.TRAIN, Session(select_device("pocl")), quiet=True)
net.fill_parameters()
compiled = net.nets.bound(NetOptions({options}))
for thread in threading.enumerate():
    if thread.name == first_launches.NAME:
        thread.join()
kernels = lambda: {{str(path) for path in Path(os.environ["POCL_CACHE_DIR"]).rglob("*.so")}}
before = kernels()
compiled.commands.run()
net.session.device.queue.finish()
print(len(before), len(kernels()))
"""


def kernels_around_a_step(folder: Path, more: str = "", count: int = 1, options: str = "") -> tuple[int, int]:
    variables = {"OCAFFE_CACHE": str(folder / "programs"), "POCL_CACHE_DIR": str(folder / "pocl")}
    code = STEP.format(more=more, count=count, options=options)
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0 and "rror" not in run.stderr, run.stderr
    before, after = run.stdout.split()[-2:]
    return int(before), int(after)


@pytest.fixture(autouse=True)
def only_pocl(device: Device) -> None:
    if not caches_programs(device):
        pytest.skip("the runtime compiles kernels when it builds their programs")


@pytest.mark.parametrize("options", ["", "backward=False"])
@pytest.mark.parametrize("count", [1, 3])
def test_other_processes_compile_every_kernel(tmp_path: Path, count: int, options: str) -> None:
    before, after = kernels_around_a_step(tmp_path, count=count, options=options)
    assert before == after > 1


def test_a_process_that_crashes_leaves_its_kernels_to_this_one(tmp_path: Path) -> None:
    """The kernels' launches are longer than a pipe's buffer, so that sending them fails."""
    crash = "[sys.executable, '-c', 'import os; os.abort()'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL"
    before, after = kernels_around_a_step(tmp_path, f"import subprocess, sys\nfirst_launches.start_child = lambda *_, **__: subprocess.Popen({crash})")
    assert before < after


def test_a_process_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_launches, "_LONGEST", 0.1)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    first_launches._attend(process, b"")
    assert process.returncode != 0
