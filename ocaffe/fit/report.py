"""What `ocaffe fit` prints before and after its training, and the files with the result."""
from __future__ import annotations

import json
import os
from typing import NamedTuple

from ocaffe import __version__
from ocaffe.errors import shape_text
from ocaffe.evaluation.answers import picture_of
from ocaffe.fit.conversion import LEFT_OUT
from ocaffe.fit.curves import curves_of
from ocaffe.fit.files import BEST, CONFUSION, LOG, RESULTS
from ocaffe.fit.page import FILE as PAGE
from ocaffe.fit.page import Content, Group, Shown, page
from ocaffe.fit.task import Result, Task
from ocaffe.formats.text import read_solver
from ocaffe.memory.report import size_text
from ocaffe.shown import command, path_word, say
from ocaffe.support.files import atomic_write, read_plain
from ocaffe.zoo.images import UNREADABLE
from ocaffe.zoo.project import Project


def announce(project: Project, device: str) -> None:
    """Print what will be trained."""
    images = project.images
    say(f"images    {images.train.images} for training, {images.test.images} for testing; {project.classes} classes")
    say(f"net       {project.net}, input {shape_text(project.shape)}, batch {project.batch}; {size_text(project.bytes)} on {device}")
    say(f"training  {project.iterations} iterations; log in {project.path(LOG)}")
    for note in project.notes:
        say(f"note      {note}")


class Run(NamedTuple):
    """What is known after a training. `seconds`: of the whole command. `ended`: iterations. `slowdown`: of --max-slowdown. `device`: its name."""

    seconds: float
    ended: int
    slowdown: str
    device: str


def report(project: Project, task: Task, result: Result, run: Run) -> None:
    """Write and print the result."""
    pictures, following = result.pictures(), _next(project, task, run)
    pictures = {**pictures, PAGE: page(_content(project, task, result, run, following)).encode()}
    for name, content in pictures.items():
        os.makedirs(os.path.dirname(project.path(name)), exist_ok=True)
        with atomic_write(project.path(name)) as out:
            out.write(content)
    with atomic_write(project.path(RESULTS)) as out:
        out.write((json.dumps(result.record(), indent=1) + "\n").encode())
    say()
    say(*result.lines())
    say()
    say(f"{result.sentence()} that were not trained on, after {run.seconds:.0f} s")
    say("          (the same images chose the best snapshot)")
    for name in dict.fromkeys(os.path.dirname(name) or name for name in pictures):
        say(f"{'page' if name == PAGE else 'picture' if name in pictures else 'examples':<9} {project.path(name)}")
    for what, text in following:
        say(f"{what:<9} {text}")


def _content(project: Project, task: Task, result: Result, run: Run, following: list[tuple[str, str]]) -> Content:
    """Return the parts of the page."""
    pictures = result.pictures()
    drawn = [Shown([picture_of(content)], os.path.basename(name)) for name, content in pictures.items() if os.path.dirname(name)]
    groups = [*result.groups(), Group("Examples", "Images for testing, with the answers of the net.", drawn)]
    files = [name for name in (UNREADABLE, LEFT_OUT) if any(name in note for note in project.notes)]
    left_out = [(name, read_plain(project.path(name)).decode("utf-8", "surrogateescape").splitlines()) for name in files]
    curves = curves_of(project.path(LOG), project.accuracy, task.score)
    title = f"{project.net}: {task.name} in {project.folder}"
    sentence = f"{result.sentence()} that were not trained on. The same images chose the best snapshot. The command took {run.seconds:.0f} s."
    return Content(
        title, sentence, result.record(), curves, groups, task.data(project), left_out, project.notes, _settings(project, run), following,
        pictures.get(CONFUSION, b""),
    )  # fmt: skip


def _settings(project: Project, run: Run) -> list[tuple[str, str]]:
    """Return the settings of the training for people: words and texts."""
    solver, images = read_solver(project.path("solver.prototxt")), project.images
    return [
        ("data", f"{images.train.images} images for training, {images.test.images} for testing; {project.classes} classes"),
        ("net", f"{project.net}, input {shape_text(project.shape)}"),
        ("batch", f"{project.batch} images"),
        ("iterations", f"{run.ended} of {project.iterations}"),
        ("begins from", ", ".join([project.begins] if project.begins else solver.weights) or "random weights"),
        ("solver", f"{solver.type}, base_lr {solver.base_lr:g}, lr_policy {solver.lr_policy}, weight_decay {solver.weight_decay:g}"),
        ("seed", str(solver.random_seed)),
        ("memory", f"{size_text(project.bytes)} planned on {run.device}"),
        ("ocaffe", __version__),
    ]


def _next(project: Project, task: Task, run: Run) -> list[tuple[str, str]]:
    """Return what may come next: a word, and a command or file."""
    solver, net, deploy, best, onnx = (
        path_word(project.path(name)) for name in ("solver.prototxt", "train_val.prototxt", "deploy.prototxt", BEST, f"{project.net}.onnx")
    )
    train = ["ocaffe", "train", "--solver", solver, *(["--max-slowdown", run.slowdown] if run.slowdown else [])]
    labels = project.path("labels.txt")
    tests = read_solver(solver).test_iter[0]
    return [
        *([("labels", labels)] if os.path.exists(labels) else []),
        ("predict", command("ocaffe", "predict", path_word(project.folder), "IMAGE", *task.predict_flags)),
        ("test", command("ocaffe", "test", "--model", net, "--weights", best, "--iterations", tests, *task.test_flags)),
        ("export", command("ocaffe", "convert", deploy, best, onnx)),
        *([("continue", command(*train, "--snapshot", "auto"))] if run.ended < project.iterations else []),
        ("train on", f"edit {solver}, then: {command(*train, '--weights', best)}"),
    ]
