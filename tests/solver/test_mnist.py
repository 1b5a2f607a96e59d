"""Real MNIST, from its original files through an LMDB to 99 %, with several solvers. Long: `pytest -m sweep`. Skipped without the folder ../shared/real."""
from __future__ import annotations

import pathlib
from typing import Any

import pytest

from ocaffe.cli.dataset import make
from ocaffe.solver.solver import Solver

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "real" / "data" / "mnist"
pytestmark = [pytest.mark.sweep, pytest.mark.skipif(not DATA.is_dir(), reason="../shared/real is not here")]
COMMON = """net: "net.prototxt" test_iter: 100 test_interval: 1000 max_iter: 4000 display: 1000 snapshot_prefix: "lenet" snapshot_after_train: false
            random_seed: 1 best_output: "accuracy" weight_decay: 0.0005 """
SOLVERS = {
    "SGD": 'type: "SGD" base_lr: 0.05 momentum: 0.9 lr_policy: "cosine"',
    "Nesterov": 'type: "Nesterov" base_lr: 0.05 momentum: 0.9 lr_policy: "cosine" warmup_iter: 200',
    "Adam": 'type: "Adam" base_lr: 0.002 momentum: 0.9 lr_policy: "onecycle" onecycle_rise: 0.2',
    "AdamW": 'type: "AdamW" base_lr: 0.002 momentum: 0.9 lr_policy: "fixed" ema_decay: 0.998 ema_test: true',
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the databases, and a LeNet that reads them in a new order in each epoch."""
    place = tmp_path_factory.mktemp("mnist")
    make("mnist", str(place), str(DATA))
    net = (ROOT / "zoo/lenet" / "train_val.prototxt").read_text().replace("examples/mnist/", "")
    (place / "net.prototxt").write_text(net.replace("backend: LMDB", "backend: LMDB shuffle: true"))
    return place


@pytest.mark.parametrize("name", SOLVERS)
def test_99_percent(name: str, device: Any, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    path = folder / f"{name}.prototxt"
    path.write_text(COMMON + SOLVERS[name])
    solver = Solver(str(path), device, file=str(path))
    scores: list[float] = []
    solver.on_record = lambda record: scores.append(record["outputs"]["accuracy"][0]) if record["phase"] == "test" else None
    try:
        solver.solve()
    finally:
        solver.close()
    assert scores[-1] >= 0.99 and solver.best is not None and solver.best.value == max(scores), scores
