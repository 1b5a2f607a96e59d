"""ocaffe fit DATA --out OUT: from a folder of images to a tested net. It writes the files of `ocaffe new`, trains, and tests the best snapshot."""
from __future__ import annotations

import glob
import json
import os
import shutil
import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from ocaffe import proto
from ocaffe.cl.device import select_device
from ocaffe.cli.flags import Parser, device_flags, max_slowdown, slowdown_flag
from ocaffe.cli.new import choices_of, project_flags
from ocaffe.cli.planning import sentence_about_less
from ocaffe.cli.train import train, train_options
from ocaffe.cli.view import Watch
from ocaffe.errors import Error, shape_text
from ocaffe.evaluation.confusion import Confusion
from ocaffe.evaluation.picture import confusion_png
from ocaffe.evaluation.scores import evaluate
from ocaffe.evaluation.sidecar import sidecar_of
from ocaffe.formats.text import parse, read_solver
from ocaffe.memory.report import size_text
from ocaffe.parallel.world import ALONE
from ocaffe.shown import command, path_word, say
from ocaffe.solver.solver import Solver
from ocaffe.support import log
from ocaffe.support.files import atomic_write, clear_killed, open_plain
from ocaffe.zoo.images import Images, find_images, typical_side
from ocaffe.zoo.project import FILES, TUNING_EPOCHS, Project, begin, discard, write_project
from ocaffe.zoo.unreadable import Check
from ocaffe.zoo.weights import check_weights

NAME = "fit"
NET = "resnet20"  # a small residual net, for images of any size
SIDES = (32, 64)  # of its images: the smaller one for images up to 48 pixels, the larger one for others
EPOCHS = 20  # from fillers
PATIENCE = 8  # tests, of about 20 in a training. The rate falls to zero, so the best ones come late
BEST, LOG, RESULTS, PICTURE = "best.caffemodel", "train.log", "results.json", "confusion.png"


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    options = _parser().parse(argv)
    if not options.out:
        raise Error("no folder is given for the files", place=f"ocaffe {NAME}", fix="--out FOLDER")
    if options.patience < 1:
        raise Error(f"--patience is {options.patience}", place=f"ocaffe {NAME}", fix="--patience 5, or another number of 1 or more tests")
    slowdown = max_slowdown(options)
    started = time.monotonic()
    log.quiet()
    device = select_device(options.device or None, options.gpu or None, math=options.math or None)
    again = _unfinished(options.out)
    begin(options.net, options.out, again)  # its errors, and those of the weights, come before the images are decoded
    check_weights(options.weights)
    check = Check(parse(options.transform, proto.TransformationParameter, "--transform").max_image_pixels)
    images = find_images(options.data, options.out, options.val, options.test, options.seed, check)
    epochs = options.epochs or (0 if options.weights else EPOCHS)
    size = options.size or _side(options.net, images)
    choices = choices_of(options, size=size, epochs=epochs, patience=options.patience, trained=BEST, solver=f"random_seed: {options.seed}")
    project = write_project(options.net, images, options.out, choices, device.target, again)
    _announce(project, device.info.name)
    if slowdown is None and (less := sentence_about_less(project.path("solver.prototxt"), project.bytes, device.target)):
        say(f"memory    {less}")
    device.close()
    try:
        ended = _train(project, options, again)
    except _NotBegun as problem:
        if not again:
            discard(project, LOG)
        raise problem.error from None
    best = _keep_best(project)
    device = select_device(options.device or None, options.gpu or None, math=options.math or None)
    confusion = evaluate(project.path("train_val.prototxt"), best, project.accuracy, device, images=images.test.images)
    names = images.classes or [str(number) for number in range(project.classes)]
    _report(project, confusion, names, time.monotonic() - started, ended, options.max_slowdown)
    return 0


def _unfinished(out: str) -> bool:
    """Return whether a process that was killed has left its files in `out`. The same command goes on with its training."""
    clear_killed(out)
    return all(os.path.isfile(os.path.join(out, name)) for name in FILES) and not os.path.lexists(os.path.join(out, RESULTS))


def _parser() -> Parser:
    parser = Parser(NAME, "Train a net on your own images and test it. All files are ordinary prototxts: edit them and go on with `ocaffe train`.")
    parser.add_argument("data", metavar="DATA", help="class folders, a table (.csv), a list (.txt), or a folder with parts for training and testing")
    parser.flag("out", "", "folder for all files; required")
    parser.flag("net", NET, "a net of `ocaffe zoo`, or a deploy.prototxt")
    project_flags(parser, f"as published; of {NET} {SIDES[0]} for small images, else {SIDES[1]}", f"{EPOCHS}, with --weights {TUNING_EPOCHS}")
    parser.flag("patience", PATIENCE, "stop after so many tests without a better accuracy")
    parser.flag("seed", 1, "seed of the division, the fillers and the random changes")
    slowdown_flag(parser)
    device_flags(parser)
    return parser


def _side(net: str, images: Images) -> int:
    """Return the side of the net's images; 0: as published."""
    if net != NET or images.stored:
        return 0
    return SIDES[typical_side(images) > sum(SIDES) // 2]


def _announce(project: Project, device: str) -> None:
    images = project.images
    say(f"images    {images.train.images} for training, {images.test.images} for testing; {project.classes} classes")
    say(f"net       {project.net}, input {shape_text(project.shape)}, batch {project.batch}; {size_text(project.bytes)} on {device}")
    say(f"training  {project.iterations} iterations; log in {project.path(LOG)}")
    for note in project.notes:
        say(f"note      {note}")


def _train(project: Project, options: Any, again: bool) -> int:
    """Train with the log in a file. Print a line for each test. Return the number of iterations. `again`: from the newest snapshot on."""
    argv = ["--solver", project.path("solver.prototxt"), *(["--snapshot", "auto"] if again else [])]
    argv += [text for name in ("device", "gpu", "math", "max_slowdown") if getattr(options, name) for text in (f"--{name}", getattr(options, name))]
    with log.into(project.path(LOG), "a" if again else "w", links=False):
        for note in project.notes:
            log.info("caffe.cpp:1", note)
        tests = _Tests(project)
        try:
            train(project.path("solver.prototxt"), train_options(argv), ALONE, tests)
        except Error as problem:
            if tests.begun:
                raise
            raise _NotBegun(problem) from problem
    if tests.iterations < project.iterations:
        say(f"stopped at iteration {tests.iterations} of {project.iterations}")
    return tests.iterations


class _NotBegun(Exception):
    """A training that failed before its first test, for example because the weights do not fit. Its files are of no use."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.fact)
        self.error = error


class _Tests(Watch):
    """Prints a line for each test."""

    def __init__(self, project: Project) -> None:
        self.project, self.best, self.iterations, self.begun = project, -1.0, 0, False

    def started(self, solver: Solver, bar: tqdm) -> None:
        if solver.limit_note:
            say(f"memory    {solver.limit_note.removeprefix('memory ')}")

    def record(self, record: dict[str, Any]) -> None:
        self.begun = True
        if record["phase"] != "test":
            return
        accuracy = record["outputs"][self.project.accuracy][0]
        mark = " (best)" if accuracy > self.best and record["iteration"] else ""  # in iteration 0 the net has learned nothing
        self.best = max(self.best, accuracy)
        say(f"  iteration {record['iteration']:>6} of {self.project.iterations}: accuracy {100 * accuracy:5.1f} %{mark}", flush=True)

    def ended(self, solver: Solver) -> None:
        self.iterations = solver.iter


def _keep_best(project: Project) -> str:
    """Give the weights of the best test a short name. Raise Error if the training was stopped before the first one."""
    found = glob.glob(f"{glob.escape(project.prefix)}_best_iter_*.caffemodel")
    if not found:
        fix = f"continue with: {command('ocaffe', 'train', '--solver', path_word(project.path('solver.prototxt')), '--snapshot', 'auto')}"
        raise Error("the training was stopped before a test", place=project.folder, fix=fix)
    best = project.path(BEST)
    newest = max(found, key=os.path.getmtime)
    for source, target in ((newest, best), (sidecar_of(newest), sidecar_of(best))):
        with open_plain(source) as stream, atomic_write(target) as out:
            shutil.copyfileobj(stream, out)
    return best


def _report(project: Project, confusion: Confusion, names: Sequence[str], seconds: float, ended: int, slowdown: str) -> None:
    with atomic_write(project.path(PICTURE)) as out:
        out.write(confusion_png(confusion, names))
    with atomic_write(project.path(RESULTS)) as out:
        out.write((json.dumps(confusion.record(names), indent=1) + "\n").encode())
    say()
    for line in [*confusion.table(names), *confusion.mistakes(names)]:
        say(line)
    say()
    say(f"accuracy {100 * confusion.accuracy:.1f} % on {confusion.images} images that were not trained on, after {seconds:.0f} s")
    say("          (the same images chose the best snapshot)")
    solver, net, deploy, best, onnx = (
        path_word(project.path(name)) for name in ("solver.prototxt", "train_val.prototxt", "deploy.prototxt", BEST, f"{project.net}.onnx")
    )
    train = ["ocaffe", "train", "--solver", solver, *(["--max-slowdown", slowdown] if slowdown else [])]
    tests = read_solver(solver).test_iter[0]
    for what, text in (
        ("picture", project.path(PICTURE)),
        ("labels", project.path("labels.txt")),
        ("predict", command("ocaffe", "predict", path_word(project.folder), "IMAGE")),
        ("test", command("ocaffe", "test", "--model", net, "--weights", best, "--iterations", tests)),
        ("export", command("ocaffe", "convert", deploy, best, onnx)),
        *([("continue", command(*train, "--snapshot", "auto"))] if ended < project.iterations else []),
        ("train on", f"edit {solver}, then: {command(*train, '--weights', best)}"),
    ):
        say(f"{what:<9} {text}")
