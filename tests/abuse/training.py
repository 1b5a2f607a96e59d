"""A small training that is disturbed in many ways, and the check of the snapshots that it leaves."""
from __future__ import annotations

import importlib
import os
import pathlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import ocaffe.layers
from ocaffe import proto
from ocaffe.cl.discovery import import_pyopencl
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.formats.state import read_state
from ocaffe.formats.weights import read_weights
from ocaffe.solver.snapshot import load_state
from tests.abuse.campaign import Options, Tally, options
from tests.abuse.harness import Limits, Outcome, Process
from tests.abuse.hdf5_child import share_child
from tests.abuse.workplace import database, workplace

ITERATIONS = 600
LIMITS = Limits(seconds=120)  # a training on a busy machine
RECORDS = 40
SNAPSHOTS = pathlib.Path("snapshots")
LOG = pathlib.Path("log")
VARIANTS = {  # of the solver
    "binary": "", "hdf5": "snapshot_format: HDF5", "keep": "snapshot_keep: 3", "average": "ema_decay: 0.9 ema_test: true",
    "best": 'best_output: "accuracy"', "all": 'snapshot_format: HDF5 snapshot_keep: 2 ema_decay: 0.9 best_output: "accuracy"',
}  # fmt: skip
SOLVER = (
    'net: "net.prototxt" test_iter: 2 test_interval: 7 base_lr: 0.01 lr_policy: "step" gamma: 0.5 stepsize: 100 momentum: 0.9 display: 1 '
    'max_iter: {0} snapshot: 1 snapshot_prefix: "snapshots/t" random_seed: 7 {1}\n'
)
NET = """
layer { name: "data" type: "Data" top: "data" top: "label" transform_param { scale: 0.0078125 crop_size: 6 mirror: true }
  data_param { source: "db" batch_size: 6 backend: LMDB } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 64 weight_filler { type: "xavier" } } }
layer { name: "score" type: "InnerProduct" bottom: "ip" top: "score" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "score" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""
_NAME = re.compile(r"(t|t_best)_iter_(\d+)(\.ema)?\.(caffemodel|solverstate)(\.h5)?")


class File(NamedTuple):
    """A file of a snapshot."""

    path: pathlib.Path
    iteration: int
    is_state: bool
    best: bool


def prepare(variant: str, iterations: int = ITERATIONS) -> None:
    """Write data, net and solver into the working directory."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, RECORDS)
    pixels = rng.integers(0, 60, (RECORDS, 2, 8, 8)).astype(np.uint8) + (40 * labels).astype(np.uint8)[:, None, None, None]
    records = (proto.Datum(channels=2, height=8, width=8, label=int(label), data=image.tobytes()) for label, image in zip(labels, pixels))
    database(pathlib.Path("db"), (record.SerializeToString() for record in records))
    pathlib.Path("net.prototxt").write_text(NET)
    pathlib.Path("solver.prototxt").write_text(SOLVER.format(iterations, VARIANTS[variant]))
    SNAPSHOTS.mkdir(exist_ok=True)


def arguments(state: pathlib.Path | None = None) -> list[str]:
    return ["train", "--solver", "solver.prototxt", *(["--snapshot", str(state)] if state else [])]


def load() -> None:
    """Import everything that a training needs, so that forked trainings start fast. No OpenCL function is called."""
    for module in pkgutil.iter_modules(ocaffe.layers.__path__, "ocaffe.layers."):
        importlib.import_module(module.name)
    for name in ("h5py", "ocaffe.cli.train", "ocaffe.formats.hdf5", "ocaffe.solver.solver", "ocaffe.solver.best", "ocaffe.solver.average"):
        importlib.import_module(name)
    import_pyopencl()
    share_child()


def forked(given: Sequence[str]) -> Process:
    """Start a command of ocaffe in a forked child, which begins without imports. The log is new."""
    LOG.unlink(missing_ok=True)
    return Process(lambda: main(list(given)), LOG.absolute())


def files() -> list[File]:
    """The snapshots in the working directory. Temporary files do not count."""
    found = [(path, _NAME.fullmatch(path.name)) for path in sorted(SNAPSHOTS.iterdir())]
    return [File(path, int(match[2]), match[4] == "solverstate", match[1] != "t") for path, match in found if match]


def strangers() -> list[str]:
    """The names of files that belong to no snapshot, such as temporary files."""
    return sorted(path.name for path in SNAPSHOTS.iterdir() if not _NAME.fullmatch(path.name))


def newest() -> File | None:
    """The state with the highest iteration."""
    return max((file for file in files() if file.is_state and not file.best), key=lambda file: file.iteration, default=None)


class Judge:
    """Checks snapshots: every file is whole, every state has its weights, and everything equals a run that was not disturbed."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.reference: dict[str, bytes] = {}
        self._checked: set[tuple[str, int, int]] = set()
        self._weights: dict[tuple[str, int, int], list[str]] = {}  # the weights of each state that has been read

    def learn(self) -> None:
        """Train without disturbance and keep the files as reference. snapshot_keep would remove most of them, so it is left out."""
        solver = pathlib.Path("solver.prototxt")
        text = solver.read_text()
        solver.write_text(re.sub(r"snapshot_keep: \d+", "", text))
        process = forked(arguments())
        outcome = process.wait(LIMITS)
        solver.write_text(text)
        if outcome.kind != "ok":
            raise RuntimeError(f"the undisturbed training fails: {outcome}\n{process.text()[-2000:]}")
        for file in files():
            if not file.best:
                self.reference[file.path.name] = file.path.read_bytes()
        clear()

    def faults(self) -> list[str]:
        """What is wrong with the snapshots on disk, one text for each kind of fault."""
        return sorted({fault for file in files() for fault in self._faults(file)})

    def _faults(self, file: File) -> list[str]:
        facts = file.path.stat()
        key = (file.path.name, facts.st_mtime_ns, facts.st_ino)
        found = []
        if file.is_state and not all(os.path.exists(name) for name in self._weights.get(key, ("",))):  # a state read before may have lost its weights
            try:
                state = load_state(str(file.path))
                if state.iter != file.iteration:
                    found.append("a state has another iteration")
                self._weights[key] = [name for name in (state.learned_net, state.averaged_net) if name]
                for name in self._weights[key]:
                    self._once(pathlib.Path(name))
            except Error as problem:
                found.append(f"a state cannot be resumed: {re.sub(r'[0-9]+', 'N', problem.fact)}")
        if key not in self._checked:
            self._checked.add(key)
            try:
                (read_state if file.is_state else read_weights)(file.path)
            except Error as problem:
                found.append(f"a file is torn: {problem.fact}")
            if not file.best and self.reference and file.path.read_bytes() != self.reference.get(file.path.name):
                found.append(f"a {'state' if file.is_state else 'weights file'} differs from the undisturbed run's")
        return found

    def _once(self, path: pathlib.Path) -> None:
        """Read weights that have not been read yet."""
        facts = path.stat()
        key = (str(path), facts.st_mtime_ns, facts.st_ino)
        if key not in self._checked:
            read_weights(path)
            self._checked.add(key)

    def verdict(self, before: int) -> Outcome:
        """`before`: the iteration of the newest state before the disturbance, which must not be lost."""
        found = self.faults()
        now = newest()
        if (now.iteration if now else 0) < before:
            found.append("the newest state is gone")
        return Outcome("wrong", "; ".join(found)) if found else Outcome("ok")


def clear() -> None:
    for path in SNAPSHOTS.iterdir():
        path.unlink()


def announced() -> list[str]:
    """The states that the log says were written, without the last one, which may be incomplete, and without best ones, which replace each other."""
    text = LOG.read_text(errors="replace") if LOG.exists() else ""
    found = re.findall(r"Snapshotting solver state to .*? file (\S+)", text)[:-1]
    return [name for name in found if "_best_iter_" not in name]


def use(device: str) -> None:
    """Let trainings use a device."""
    if device:
        os.environ["OCAFFE_DEVICE"] = device


def run_part(part: str, count: int, work: Callable[[Options, Tally], object], sections: tuple[str, ...] = (), preload: bool = True) -> int:
    """Run a part that disturbs trainings, in a temporary folder, as a program. Return its exit status.

    `count` and `sections` are those of `options`. `preload`: the part forks trainings, which shall start fast.
    """
    chosen = options(part, count, sections, device=True)
    use(chosen.device)
    if preload:
        load()
    with workplace():
        tally = Tally(part, chosen)
        work(chosen, tally)
        return tally.finish()
