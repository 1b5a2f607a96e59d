"""Scripts of pycaffe as ranks: `mpiexec -n 2 python script.py`. The code of pycaffe's train.py for one process runs unchanged in each of them."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from ocaffe.formats.weights import read_weights
from tests.parallel.launch import environment, finished, needs_mpi, python
from tests.parallel.trainings import CASES, NET, SOLVER, write_records

pytestmark = needs_mpi
SCRIPT = """
import sys
import ocaffe as caffe
count, rank = caffe.solver_count(), caffe.solver_rank()
uid = caffe.NCCL.new_uid()
assert type(uid) is bytes, uid
caffe.set_solver_count(count)
caffe.set_solver_rank(rank)
caffe.set_multiprocess(True)
solver = caffe.SGDSolver(f"solver {count}.prototxt")
nccl = caffe.NCCL(solver, uid)
nccl.bcast()
solver.add_callback(nccl)
solver.net.after_backward(nccl)
if "fail" in sys.argv and rank == 1:
    raise ValueError("on purpose")
solver.step(5)
solver.snapshot()
print("rank", rank, "of", count, float(solver.net.params["ip1"][0].data.sum()))
"""

# A script that starts its processes by itself, in the order of pycaffe's train.py. argv[1]: what rank 1 does.
STARTER = """
import multiprocessing
import os
import sys
import ocaffe as caffe

def solve(solver, uid, rank, count):
    caffe.set_mode_cpu()
    caffe.set_solver_count(count)
    caffe.set_solver_rank(rank)
    caffe.set_multiprocess(True)
    solver = caffe.SGDSolver(solver)
    if rank != 0:
        solver.net.params["ip1"][0].data[...] = 0  # bcast() overwrites it
    nccl = caffe.NCCL(solver, uid)
    nccl.bcast()
    solver.add_callback(nccl)
    timers = [caffe.Timer() for _ in solver.net.layers]
    if sys.argv[1] == "time" and rank == 0:
        solver.net.before_backward(lambda layer: timers[layer].start())
        solver.net.after_backward(lambda layer: timers[layer].stop())
        solver.add_callback(lambda: "", lambda: print(sum(timer.ms for timer in timers) > 0))
    if solver.param.layer_wise_reduce:
        solver.net.after_backward(nccl)
    if sys.argv[1] == "raise" and rank == 1:
        raise ValueError("on purpose")
    if sys.argv[1] == "end" and rank == 1:
        os._exit(0)
    solver.step(5)
    if rank == 0:
        solver.snapshot()

if __name__ == "__main__":
    uid = caffe.NCCL.new_uid()
    assert type(uid) is bytes, uid
    caffe.init_log()
    processes = [multiprocessing.Process(target=solve, args=("solver 2.prototxt", uid, rank, 2)) for rank in range(2)]
    for process in processes:
        process.daemon = True
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
"""


def prepare(folder: pathlib.Path) -> None:
    write_records(folder)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "starter.py").write_text(STARTER)
    for ranks in (1, 2):
        (folder / f"net {ranks}.prototxt").write_text(NET.replace("BATCH", str(12 // ranks)))
        solver = SOLVER.replace('"x"', f'"by {ranks}"')
        (folder / f"solver {ranks}.prototxt").write_text(f'net: "net {ranks}.prototxt" {solver} {CASES["SGD"]}')


def weights(path: pathlib.Path) -> np.ndarray:
    return np.concatenate([np.asarray(blob).ravel() for layer in read_weights(str(path)).layers for blob in layer.blobs])


def test_a_script_trains_on_two_ranks(device: Any, tmp_path: pathlib.Path) -> None:
    prepare(tmp_path)
    sums = []
    for ranks in (1, 2):
        done = finished(python(ranks, "script.py"), tmp_path, environment(device))
        assert done.returncode == 0, done.stdout
        said = sorted(line.split() for line in done.stdout.splitlines() if line.startswith("rank"))
        assert [line[1:4] for line in said] == [[str(rank), "of", str(ranks)] for rank in range(ranks)]
        sums.append({line[4] for line in said})
    assert len(sums[1]) == 1  # both ranks have the same weights
    one, two = (weights(tmp_path / f"by {ranks}_iter_5.caffemodel") for ranks in (1, 2))
    assert np.linalg.norm(two - one) / np.linalg.norm(one) < 1e-6


def test_an_exception_ends_all_ranks(device: Any, tmp_path: pathlib.Path) -> None:
    prepare(tmp_path)
    done = finished(python(2, "script.py", "fail"), tmp_path, environment(device))
    assert done.returncode != 0 and done.stdout.count("ValueError: on purpose") == 1 and "rank 1 of 2" in done.stdout


@pytest.mark.parametrize("how", ["train", "time"])
def test_a_script_starts_its_processes(device: Any, tmp_path: pathlib.Path, how: str) -> None:
    prepare(tmp_path)
    assert finished(python(1, "script.py"), tmp_path, environment(device)).returncode == 0
    done = finished(python(1, "starter.py", how), tmp_path, environment(device))
    assert done.returncode == 0 and done.stdout.count("True") == (5 if how == "time" else 0), done.stdout
    one, two = (weights(tmp_path / f"by {ranks}_iter_5.caffemodel") for ranks in (1, 2))
    assert np.linalg.norm(two - one) / np.linalg.norm(one) < 1e-6


@pytest.mark.parametrize("how", ["raise", "end"])
def test_processes_of_a_script_end_together(device: Any, tmp_path: pathlib.Path, how: str) -> None:
    prepare(tmp_path)
    done = finished(python(1, "starter.py", how), tmp_path, environment(device))
    assert done.returncode == 1 and "rank 0 of 2 ends, because another rank has ended" in done.stdout
    assert ("ValueError: on purpose" in done.stdout) == (how == "raise")
