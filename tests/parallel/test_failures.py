"""Ranks that fail, and signals: all ranks end, one message tells why, and snapshots stay."""
from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from ocaffe.cli import main
from ocaffe.cli.ranks import ranked
from ocaffe.cli.time import main as time_main
from ocaffe.errors import Error
from ocaffe.parallel.world import World, join
from ocaffe.solver.snapshot import load_state, newest
from tests.parallel.launch import MPIEXEC, Training, environment, finished, needs_mpi, python
from tests.parallel.trainings import CASES, NET, RECORDS, SOLVER, write_records

SOON = 10  # seconds until all ranks have ended
STARTED = "Iteration 8 ("
OPEN_MPI = "--bind-to" in MPIEXEC
linux = pytest.mark.skipif(sys.platform != "linux", reason="the test looks at processes in /proc")
pytestmark = [needs_mpi, linux]


def prepare(folder: pathlib.Path, solver: str = "", net: str = NET, wrong: int = -1) -> None:
    write_records(folder, wrong)
    (folder / "net.prototxt").write_text(net.replace("BATCH", "6"))
    (folder / "solver.prototxt").write_text(f'net: "net.prototxt" {SOLVER} {CASES["SGD"]}\n{solver}')


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("error:", "Traceback", "interrupted"))]


@pytest.mark.parametrize("mpiexec", [False, True])
def test_a_killed_rank_ends_all(device: Any, tmp_path: pathlib.Path, mpiexec: bool) -> None:
    prepare(tmp_path, "snapshot: 5")
    with Training(tmp_path, device, mpiexec=mpiexec) as training:
        training.wait_for(STARTED)
        ranks = training.ranks()
        os.kill(ranks[1], signal.SIGKILL)
        assert training.status(SOON) != 0
        # mpiexec kills the other rank at once, so a busy machine may see that death first
        if mpiexec:
            end = training.text.rpartition("solver.cpp")[2]
            assert any(str(rank) in end for rank in ranks)  # mpiexec names the process, and the log told its rank
        else:
            (error,) = errors(training.text)
            assert re.match("error: rank [01] of 2", error) and "was killed" in error
    state = newest(str(tmp_path / "x"))
    assert state is not None and load_state(state).iter >= 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_one_snapshot(device: Any, tmp_path: pathlib.Path, number: signal.Signals) -> None:
    prepare(tmp_path)
    with Training(tmp_path, device, mpiexec=False) as training:
        training.wait_for(STARTED)
        os.killpg(training.process.pid, number)  # as a terminal does
        assert training.status() == 0, training.text[-4000:]
        assert "Optimization stopped early." in training.text and errors(training.text) == []
    assert len(list(tmp_path.glob("*.solverstate"))) == 1 and training.text.count("Snapshotting solver state") == 1


@pytest.mark.skipif(OPEN_MPI, reason="the mpiexec of Open MPI ends the ranks itself, with status 1")
def test_a_signal_to_mpiexec_gives_one_snapshot(device: Any, tmp_path: pathlib.Path) -> None:
    prepare(tmp_path)
    with Training(tmp_path, device, mpiexec=True) as training:
        training.wait_for(STARTED)
        os.kill(training.process.pid, signal.SIGTERM)
        assert training.status() == 0, training.text[-4000:]
    assert len(list(tmp_path.glob("*.solverstate"))) == 1 and training.text.count("Snapshotting solver state") == 1


def test_a_killed_start_ends_the_ranks(device: Any, tmp_path: pathlib.Path) -> None:
    prepare(tmp_path)
    with Training(tmp_path, device, mpiexec=False) as training:
        training.wait_for(STARTED)
        training.process.kill()
        training.status(SOON)


@pytest.mark.parametrize("mpiexec", [False, True])
def test_a_rank_that_raises_ends_all(device: Any, tmp_path: pathlib.Path, mpiexec: bool) -> None:
    """Rank 1 reads the odd records. Its message comes once and tells its rank, and the snapshot before stays."""
    wrong = RECORDS - 12
    assert wrong % 2 == 1
    prepare(tmp_path, "snapshot: 3", wrong=wrong)
    with Training(tmp_path, device, mpiexec=mpiexec) as training:
        assert training.status() != 0
    assert len(errors(training.text)) == 1 and errors(training.text)[0].startswith("error: rank 1 of 2 on "), training.text[-4000:]
    assert f"record {wrong}" in training.text.rpartition("error: ")[2]
    assert newest(str(tmp_path / "x")) == str(tmp_path / "x_iter_6.solverstate")


@pytest.mark.parametrize("mpiexec", [False, True])
def test_an_error_of_all_ranks_comes_once(device: Any, tmp_path: pathlib.Path, mpiexec: bool) -> None:
    prepare(tmp_path, net=NET.replace('"TanH"', '"TahN"'))
    with Training(tmp_path, device, mpiexec=mpiexec) as training:
        assert training.status() != 0
    assert len(errors(training.text)) == 1 and training.text.count("unknown layer type 'TahN'") == 1, training.text[-4000:]


def test_a_wrong_flag_comes_once(device: Any, tmp_path: pathlib.Path) -> None:
    prepare(tmp_path)
    with Training(tmp_path, device, mpiexec=True, flags=["--sovler", "x"]) as training:
        assert training.status() != 0
    assert len(errors(training.text)) == 1 and training.text.count("unrecognized arguments") == 1


def test_help_is_no_failure(device: Any, tmp_path: pathlib.Path) -> None:
    done = finished(python(2, "-m", "ocaffe", "train", "--help"), tmp_path, environment(device))
    assert done.returncode == 0 and errors(done.stdout) == []


STARTERS = {"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_SIZE": "MPI_LOCALRANKID", "SLURM_STEP_NUM_TASKS": "SLURM_LOCALID"}


@pytest.mark.parametrize("size, local", STARTERS.items())
def test_missing_mpi4py(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], size: str, local: str) -> None:
    """The first rank of each host tells it."""
    for name in STARTERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setenv(size, "2")
    monkeypatch.setenv(local, "0")
    assert main(["train", "--solver", "x"]) == 1
    said = capsys.readouterr().err
    assert "one of 2 ranks of" in said and "fix: pip install mpi4py mpich" in said
    monkeypatch.setenv(local, "1")
    with pytest.raises(SystemExit, match="1"), ranked():
        pass
    assert capsys.readouterr().err == ""


def test_ranks_that_mpi_does_not_connect(tmp_path: pathlib.Path, device: Any) -> None:
    variables = environment(device) | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    done = finished(python(1, "-m", "ocaffe", "train", "--solver", "x"), tmp_path, variables)
    assert done.returncode == 1 and "error: srun started 2 ranks, and the MPI library" in done.stdout and "srun --mpi=pmi2" in done.stdout


def test_one_rank_needs_no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STARTERS:
        monkeypatch.setenv(name, "1")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    world = join()
    assert (world.rank, world.size, world.hosts, world.gather(3)) == (0, 1, World().hosts, [3])
    with pytest.raises(Error, match="lost"), world.together():
        raise Error("lost")


PROGRAM = """
from ocaffe.parallel.world import join
world = join()
with world.together():
    if world.rank == 1:
        world.unknown
    world.gather(0)
"""


def test_a_bug_on_one_rank_gives_its_traceback(device: Any, tmp_path: pathlib.Path) -> None:
    try:
        done = finished(python(2, "-c", PROGRAM), tmp_path, environment(device))
    except subprocess.TimeoutExpired:
        pytest.fail("the other rank waits for ever")
    assert done.returncode != 0 and "error: rank 1 of 2 on " in done.stdout and "AttributeError: 'World' object has no attribute 'unknown'" in done.stdout


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (["--exchange", "nccl"], "--exchange nccl: rank 0 on "),
        (["--exchange", "nccl", "--gradient-bits", "16"], "--exchange nccl: it sends floats of 32 bits"),
        (["--gradient-bits", "8"], "--gradient-bits is 8"),
    ],
)
def test_transports_that_cannot_be_used(device: Any, tmp_path: pathlib.Path, flags: list[str], fact: str) -> None:
    prepare(tmp_path)
    done = finished(python(2, "-m", "ocaffe", "train", "--solver", "solver.prototxt", *flags), tmp_path, environment(device))
    assert done.returncode != 0
    (error,) = errors(done.stdout)
    assert fact in error and "fix: " in done.stdout
    if "16" not in flags and "8" not in flags:
        assert "is not a device of NVIDIA's driver" in error


LAYER = """
import os
import sys
import ocaffe

class Layer(ocaffe.Layer):
    def setup(self, bottom, top):
        self.passes = 0
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)
    def forward(self, bottom, top):
        self.passes += 1
        if self.passes == 9 and ocaffe.solver_rank() == 1:
            ENDING
        top[0].data[...] = bottom[0].data
    def backward(self, top, propagate, bottom):
        bottom[0].diff[...] = top[0].diff
"""


@pytest.mark.parametrize(
    ("ending", "fact"),
    [
        ("sys.exit()", "sys.exit(None) ends it before the others"),  # the other rank would wait for ever
        pytest.param("sys.exit('no more')", "sys.exit('no more') ends it before the others", marks=pytest.mark.long),
        ("os._exit(0)", "was killed, or a library ended it"),
    ],
)
def test_a_rank_that_exits_ends_all(device: Any, tmp_path: pathlib.Path, ending: str, fact: str) -> None:
    python_layer = 'layer { name: "python" type: "Python" bottom: "ip3" top: "out" python_param { module: "layer" layer: "Layer" } }\nlayer { name: "score"'
    score = '"InnerProduct" bottom: "ip3" top: "score"'
    prepare(tmp_path, net=NET.replace('layer { name: "score"', python_layer).replace(score, score.replace("ip3", "out")))
    (tmp_path / "layer.py").write_text(LAYER.replace("ENDING", ending))
    with Training(tmp_path, device, mpiexec=False) as training:
        assert training.status(2 * SOON) != 0
    (error,) = errors(training.text)
    rank = "[01]" if ending.startswith("os") else "1"  # mpiexec kills the other rank at once, so a busy machine may see that death first
    assert re.search(f"rank {rank} of 2", error) and fact in error


def test_a_batch_scheduler_does_not_move_the_ranks(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an allocation of Slurm, --gpu 0,1 uses the devices of this host, and needs no srun."""
    nodes = {"SLURM_NODELIST": "n[1-2]", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}
    for name, text in {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1", **nodes}.items():
        monkeypatch.setenv(name, text)
    script = "import os; from ocaffe.parallel.world import join; os.write(1, b'here: %d\\n' % join().local_rank)"
    done = finished(python(2, "-c", script), tmp_path, environment(device))
    assert done.returncode == 0 and done.stdout.count("here: 0") == done.stdout.count("here: 1") == 1, done.stdout


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["sweep", "solver.prototxt", "--set", "base_lr=0.1,0.01"], "it starts its trainings itself, and this is one of 2 ranks"),
        (["time", "--model", "net.prototxt", "--profile"], "measure one device, and several are chosen"),
    ],
)
def test_commands_of_one_device(device: Any, tmp_path: pathlib.Path, arguments: list[str], fact: str) -> None:
    prepare(tmp_path)
    done = finished(python(2, "-m", "ocaffe", *arguments), tmp_path, environment(device))
    assert done.returncode != 0 and done.stdout.count(fact) == 1 and len(errors(done.stdout)) == 1, done.stdout


def test_a_profile_of_several_devices(device: Any, tmp_path: pathlib.Path) -> None:
    prepare(tmp_path)
    arguments = ["time", "--model", str(tmp_path / "net.prototxt"), "--profile", "--device", f"{device.number},{device.number}"]
    with pytest.raises(Error, match="measure one device, and several are chosen"):
        time_main(arguments[1:])


def test_rank_0_alone_logs_debug_info(device: Any, tmp_path: pathlib.Path) -> None:
    prepare(tmp_path, "debug_info: true")
    text = (tmp_path / "solver.prototxt").read_text().replace("max_iter: 1000000", "max_iter: 2")
    (tmp_path / "solver.prototxt").write_text(text)
    done = finished(python(2, "-m", "ocaffe", "train", "--solver", "solver.prototxt"), tmp_path, environment(device))
    lines = [line for line in done.stdout.splitlines() if "All net params" in line]
    assert done.returncode == 0 and len(lines) == 1, lines
