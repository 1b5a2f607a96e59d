"""The parts of `ocaffe sweep`: the grid, the values of a training, its end, the table."""
from __future__ import annotations

import csv
import json
import pathlib

import pytest

from ocaffe.errors import Error
from ocaffe.tools.sweep.grid import axes, combinations, folder_name
from ocaffe.tools.sweep.sweep_results import Criterion, table, write_results
from ocaffe.tools.sweep.training_queue import Training, _outcome, run
from ocaffe.tools.training_logs.history import History

pytestmark = pytest.mark.quick


def test_grid() -> None:
    found = [(folder_name(settings), len(values)) for settings, values in combinations(axes(["type=SGD,Adam", "base_lr=0.1,1e-2"]))]
    assert found == [("type=SGD_base_lr=0.1", 2), ("type=SGD_base_lr=0.01", 2), ("type=Adam_base_lr=0.1", 2), ("type=Adam_base_lr=0.01", 2)]
    (lists,) = axes(["stepvalue=[10,20],[5],7"])
    assert [list(value.stepvalue) for value in lists.values] == [[10, 20], [5], [7]] and lists.texts == ["[10,20]", "5", "7"]
    (level,) = axes(["train_state.level=1,2"])
    assert [value.train_state.level for value in level.values] == [1, 2]
    (nets,) = axes(['net=a/b.prototxt,"c,d.prototxt"'])
    assert [value.net for value in nets.values] == ["a/b.prototxt", "c,d.prototxt"]
    names = [folder_name({"net": text}) for text in ("a/b", "a b", "a-b", "x" * 500)]
    assert len(set(names)) == 4 and not any("/" in name or " " in name or len(name) > 200 for name in names)


def test_history_of_a_training_that_repeats_iterations(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "records.jsonl"

    def test(iteration: int, accuracy: float) -> str:
        return json.dumps({"phase": "test", "net": 0, "iteration": iteration, "outputs": {"accuracy": [accuracy], "per_class": [1.0, 2.0]}}) + "\n"

    history = History(path)
    history.read()
    path.write_text(test(0, 0.1) + test(5, 0.9) + test(10, 0.5) + '{"phase": "te\n')
    history.read()
    assert history.best("accuracy", False) == (0.9, 5) and history.last() == {"accuracy": 0.5} and history.iteration == 10
    with path.open("a") as stream:
        stream.write(json.dumps({"phase": "train", "iteration": 2, "loss": 1.5}) + "\n" + test(5, 0.4) + test(10, 0.4)[:-5])
    history.read()
    assert history.best("accuracy", False) == (0.4, 5) and history.last() == {"accuracy": 0.4, "train_loss": 1.5} and history.iteration == 5
    with path.open("a") as stream:
        stream.write(test(10, 0.4)[-5:] + test(15, float("nan")))
    history.read()
    assert history.best("accuracy", False) == (0.4, 5) and history.best("accuracy", True) == (0.1, 0) and history.best("none", True) is None
    assert history.iteration == 15


STOPPED = "I0101 1 solver.cpp:322] Optimization stopped early.\n"


@pytest.mark.parametrize(
    "status, text, stopping, state, error",
    [
        (0, "I0101 1 solver.cpp:332] Optimization Done.\n", False, "finished", ""),
        (0, STOPPED, False, "stopped", ""),
        (0, "I0101 1 solver.cpp:430] Early stopping: loss is no better\n" + STOPPED, False, "finished", ""),
        (1, "I0101 x\nerror: net.prototxt:3\n  a fact\n  fix: a remedy\n", False, "failed", "net.prototxt:3\n  a fact\n  fix: a remedy"),
        (1, "Traceback\nValueError: x\n\n", True, "failed", "its process ended with status 1: ValueError: x"),
        (-9, "", False, "failed", "its process was ended by SIGKILL"),
        (-15, "", True, "stopped", ""),
    ],
)
def test_outcome(status: int, text: str, stopping: bool, state: str, error: str) -> None:
    assert _outcome(status, text, stopping) == (state, error)


def training(folder: pathlib.Path, *values: float) -> Training:
    """Return a finished training with an accuracy for each of the iterations 0, 10, ..."""
    folder.mkdir()
    records = [{"phase": "test", "net": 0, "iteration": 10 * number, "outputs": {"accuracy": [value]}} for number, value in enumerate(values)]
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    made = Training({"base_lr": folder.name}, folder, "", "", (), 100, state="finished", seconds=1.25)
    made.history.read()
    return made


def test_results(tmp_path: pathlib.Path) -> None:
    trainings = [training(tmp_path / name, *values) for name, values in (("a", (0.1, 0.4)), ("b", ()), ("c", (0.7, float("nan"))), ("d", (0.6,)))]
    trainings[1].state, trainings[1].error = "failed", "the loss is NaN"
    highest = Criterion("accuracy", False)
    assert [each.folder.name for each in highest.order(trainings)] == ["c", "d", "a", "b"]
    assert [each.folder.name for each in Criterion("accuracy", True).order(trainings)] == ["a", "d", "c", "b"]
    text = table(trainings, highest).splitlines()
    assert text[0].split() == ["base_lr", "state", "iteration", "accuracy", "best_accuracy", "best_iteration", "seconds"]
    assert text[1].split() == ["c", "finished", "100", "nan", "0.7", "0", "1.2"] and "base_lr=b: the loss is NaN" in text
    write_results(tmp_path, "solver.prototxt", trainings, highest)
    found = json.loads((tmp_path / "results.json").read_text())["trainings"]
    assert found[0]["last"] == {"accuracy": None} and found[0]["best"] == {"value": 0.7, "iteration": 0} and found[3]["best"] is None
    with open(tmp_path / "results.csv", newline="") as stream:
        assert [row["best_accuracy"] for row in csv.DictReader(stream)] == ["0.7", "0.6", "0.4", ""]


def test_a_training_that_cannot_start_does_not_stop_the_others(tmp_path: pathlib.Path) -> None:
    trainings = [Training({"base_lr": name}, tmp_path / name, "", "", (), 100) for name in ("a", "b")]
    for each in trainings:
        each.folder.write_text("a file, so no folder of this name can be made")
    run(trainings, [""], (), lambda: "", lambda: None, lambda: None)
    assert all(each.state == "failed" and each.error.startswith("it cannot start: ") for each in trainings)


def test_an_unreadable_list_of_values() -> None:
    with pytest.raises(Error, match="only once, but this is a list"):
        axes(["base_lr=[1,2]"])
