"""What `ocaffe fit` prints before and after its training, and the files with the result."""
from __future__ import annotations

import json
import os

from ocaffe.errors import shape_text
from ocaffe.fit.files import BEST, LOG, RESULTS
from ocaffe.fit.task import Result, Task
from ocaffe.formats.text import read_solver
from ocaffe.memory.report import size_text
from ocaffe.shown import command, path_word, say
from ocaffe.support.files import atomic_write
from ocaffe.zoo.project import Project


def announce(project: Project, device: str) -> None:
    """Print what will be trained."""
    images = project.images
    say(f"images    {images.train.images} for training, {images.test.images} for testing; {project.classes} classes")
    say(f"net       {project.net}, input {shape_text(project.shape)}, batch {project.batch}; {size_text(project.bytes)} on {device}")
    say(f"training  {project.iterations} iterations; log in {project.path(LOG)}")
    for note in project.notes:
        say(f"note      {note}")


def report(project: Project, task: Task, result: Result, seconds: float, ended: int, slowdown: str) -> None:
    """Write and print the result. `seconds`: of the whole command. `ended`: iterations of the training. `slowdown`: of --max-slowdown."""
    pictures = result.pictures()
    for name, content in pictures.items():
        os.makedirs(os.path.dirname(project.path(name)), exist_ok=True)
        with atomic_write(project.path(name)) as out:
            out.write(content)
    with atomic_write(project.path(RESULTS)) as out:
        out.write((json.dumps(result.record(), indent=1) + "\n").encode())
    say()
    say(*result.lines())
    say()
    say(f"{result.sentence()} that were not trained on, after {seconds:.0f} s")
    say("          (the same images chose the best snapshot)")
    for name in dict.fromkeys(os.path.dirname(name) or name for name in pictures):
        say(f"{'picture' if name in pictures else 'examples':<9} {project.path(name)}")
    for what, text in _next(project, task, ended, slowdown):
        say(f"{what:<9} {text}")


def _next(project: Project, task: Task, ended: int, slowdown: str) -> list[tuple[str, str]]:
    """Return what may come next: a word, and a command or file."""
    solver, net, deploy, best, onnx = (
        path_word(project.path(name)) for name in ("solver.prototxt", "train_val.prototxt", "deploy.prototxt", BEST, f"{project.net}.onnx")
    )
    train = ["ocaffe", "train", "--solver", solver, *(["--max-slowdown", slowdown] if slowdown else [])]
    labels = project.path("labels.txt")
    tests = read_solver(solver).test_iter[0]
    return [
        *([("labels", labels)] if os.path.exists(labels) else []),
        ("predict", command("ocaffe", "predict", path_word(project.folder), "IMAGE", *task.predict_flags)),
        ("test", command("ocaffe", "test", "--model", net, "--weights", best, "--iterations", tests, *task.test_flags)),
        ("export", command("ocaffe", "convert", deploy, best, onnx)),
        *([("continue", command(*train, "--snapshot", "auto"))] if ended < project.iterations else []),
        ("train on", f"edit {solver}, then: {command(*train, '--weights', best)}"),
    ]
