"""Scripts of pycaffe as ranks: `mpiexec -n 2 python script.py`. The code of pycaffe's train.py for one process runs unchanged in each of them."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from ocaffe.model.weights import read_weights
from tests.parallel.launch import environment, finished, needs_mpi, python
from tests.parallel.trainings import CASES, NET, SOLVER, write_records

pytestmark = needs_mpi
SCRIPT = """
import sys
import ocaffe as caffe
count, rank = caffe.solver_count(), caffe.solver_rank()
uid = caffe.NCCL.new_uid()
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


def prepare(folder: pathlib.Path) -> None:
    write_records(folder)
    (folder / "script.py").write_text(SCRIPT)
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
