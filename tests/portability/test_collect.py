"""The summary of the logs of tests/portability/*.sh."""
from __future__ import annotations

import json
import pathlib
import sys

import pytest

from tests.portability import collect

SELFTEST = """device 0:0: Oclgrind Simulator (Oclgrind, driver Oclgrind 21.10)

family                result   largest error  seconds
convolution 3x3       passed         3.6e-07      0.9
sums                  FAILED                      0.1
    Error: layer 'y': the kernel f needs work-groups of 128 work-items, 'x' allows 64 (CL_DEVICE_MAX_WORK_GROUP_SIZE)
      fix: choose another device
pooling 3x3           FAILED         2.0e+00      0.1
    y: off by 2 of the largest magnitude; at [0]: 1 here, -1 in numpy
copies                CRASHED                     0.0
    signal SIGSEGV

1 of 4 families passed in 3 s
"""


def write(folder: pathlib.Path, **logs: str) -> None:
    for name, text in logs.items():
        (folder / f"{name.replace('_', ' ')}.log").write_text(text)


def test_summary(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = ((0, 0.91), (250, 0.975))
    lines = "".join(f"x] Iteration {n}, Testing net (#0)\nx]     Test net output #0: accuracy = {value}\nx] Iteration {n}, lr = 0.01\n" for n, value in tests)
    write(tmp_path, selftest_gpu_64_16384=SELFTEST, golden_gpu="..s\n1516 passed, 17 skipped in 512.66s (0:08:32)\n", lenet_gpu=lines)
    monkeypatch.setattr(sys, "argv", ["collect", str(tmp_path), "Stack", str(tmp_path / "out" / "x.json")])
    assert collect.main() == 1
    golden, lenet, selftest = json.loads((tmp_path / "out" / "x.json").read_text())
    assert golden == {"stack": "Stack", "run": "golden", "kind": "gpu", "passed": 1516, "refused": 0, "failed": 0, "skipped": 17}
    assert (lenet["accuracy"], lenet["iteration"], lenet["passed"], lenet["failed"]) == (0.975, 250, 1, 0)
    assert selftest["limits"] == {"max_work_group": 64, "local_memory": 16384}
    assert (selftest["passed"], selftest["refused"], selftest["failed"]) == (1, 1, 2)
    assert selftest["names"] == ["sums", "pooling 3x3", "copies"]


def test_a_run_that_did_not_end(tmp_path: pathlib.Path) -> None:
    write(tmp_path, selftest_gpu="family  result\nsums  passed  0  0\n")
    with pytest.raises(SystemExit, match="did not end"):
        collect.collect(tmp_path, "Stack")
