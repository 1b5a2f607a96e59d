"""ocaffe fit DATA --out OUT: from a folder of images to a tested net. It writes the files of `ocaffe new`, trains, and tests the best snapshot."""
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ocaffe.cl.device import Device, select_device
from ocaffe.cli.flags import Parser, device_flags, max_slowdown, slowdown_flag
from ocaffe.cli.new import choices_of, project_flags
from ocaffe.cli.planning import sentence_about_less
from ocaffe.cli.train import train, train_options
from ocaffe.errors import Error
from ocaffe.fit.boxes import Boxes
from ocaffe.fit.classes import Classes
from ocaffe.fit.files import BEST, LOG, batch_in, keep_best, unfinished
from ocaffe.fit.head import START
from ocaffe.fit.masks import Masks
from ocaffe.fit.report import Run, announce, report
from ocaffe.fit.see import CLASSES, see
from ocaffe.fit.start import EPOCHS, NET, PUBLIC, PUBLIC_SIDE, SIDES, TUNING_EPOCHS
from ocaffe.fit.tags import Tags
from ocaffe.fit.task import Task, Wanted
from ocaffe.fit.text import Texts
from ocaffe.fit.training import NotBegun, Progress
from ocaffe.parallel.world import ALONE
from ocaffe.shown import say
from ocaffe.support import log
from ocaffe.zoo.project import Project, discard

NAME = "fit"
PATIENCE = 8  # tests, of about 20 in a training. The rate falls to zero, so the best ones come late
TASKS: dict[str, Task] = {task.name: task for task in (Classes(), Boxes(), Masks(), Texts(), Tags())}


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
    fields = {"size": options.size, "epochs": options.epochs, "patience": options.patience, "freeze": options.freeze}
    choices = choices_of(options, trained=BEST, solver=f"random_seed: {options.seed}", **fields)
    seen = see(options.data, options.task)
    task = TASKS[seen.task]
    if seen.task != CLASSES:
        say(f"data      {seen.task}: {seen.why}", flush=True)
    if options.freeze and seen.task != CLASSES:
        raise Error(f"--freeze is given, and the data are {seen.task}", place=f"ocaffe {NAME}", fix="leave it out: it is for images with one class each")
    again = unfinished(options.out)
    if again and choices.auto_batch:  # the memory that is free may be another one now
        choices = replace(choices, batch=batch_in(options.out))
    wanted = Wanted(options.data, seen, options.out, options.net, choices, device.target, again)
    project = task.project(wanted)
    announce(project, device.info.name)
    if slowdown is None and not options.memory_limit and (less := sentence_about_less(project.path("solver.prototxt"), project.bytes, device.target)):
        say(f"memory    {less}")
    try:
        _prepare(task, project, device)
        ended = _train(project, Progress(project, task.score), options, wanted.again)
    except NotBegun as problem:
        if not wanted.again:
            discard(project, LOG, START)
        raise problem.error from None
    best = keep_best(project)
    device = select_device(options.device or None, options.gpu or None, math=options.math or None)
    result = task.test(project, best, device)
    report(project, task, result, Run(time.monotonic() - started, ended, options.max_slowdown, device.info.name))
    return 0


def _prepare(task: Task, project: Project, device: Device) -> None:
    try:
        if done := task.prepare(project, device):
            say(f"phase 1   {done}", flush=True)
    except Error as problem:
        raise NotBegun(problem) from problem
    finally:
        device.close()


def _parser() -> Parser:
    parser = Parser(NAME, "Train a net on your own images and test it. All files are ordinary prototxts: edit them and go on with `ocaffe train`.")
    parser.add_argument("data", metavar="DATA", help="class folders, a table (.csv), a list (.txt), a folder with parts for training and testing, "
                                                    "or data with boxes (VOC, COCO, YOLO, LabelMe), masks, lines of text or tags")  # fmt: skip
    parser.flag("out", "", "folder for all files; required")
    parser.flag("task", "", "what the data are, if it is not clear", choices=tuple(TASKS))
    parser.flag("net", "", f"a net of `ocaffe zoo`, or a deploy.prototxt; default: for classes {PUBLIC} if its public weights are installed and the images "
                f"are photos, else {NET}; otherwise by the device")  # fmt: skip
    sizes = f"as published; of {NET} {SIDES[0]} for small images, else {SIDES[1]}; of {PUBLIC} {PUBLIC_SIDE} on a CPU"
    project_flags(parser, sizes, f"{EPOCHS}, from weights {TUNING_EPOCHS}", "; of classes 'none' is for no public weights")
    parser.flag("freeze", "", "of classes: keep the weights of all layers up to this one, such as 'pool'")
    parser.flag("patience", PATIENCE, "stop after so many tests without a better accuracy")
    parser.flag("seed", 1, "seed of the division, the fillers and the random changes")
    slowdown_flag(parser)
    device_flags(parser)
    return parser


def _train(project: Project, tests: Progress, options: Any, again: bool) -> int:
    """Train with the log in a file. Return the number of iterations. `again`: from the newest snapshot on."""
    argv = ["--solver", project.path("solver.prototxt"), *(["--snapshot", "auto"] if again else [])]
    flags = [name for name in ("device", "gpu", "math", "max_slowdown", "memory_limit") if getattr(options, name)]
    argv += [text for name in flags for text in (f"--{name}", getattr(options, name))]
    with log.into(project.path(LOG), "a" if again else "w", links=False, once=True):
        for note in project.notes:
            log.info("caffe.cpp:1", note)
        try:
            train(project.path("solver.prototxt"), train_options(argv), ALONE, tests)
        except Error as problem:
            if tests.begun:
                raise
            raise NotBegun(problem) from problem
    if tests.iterations < project.iterations:
        say(f"stopped at iteration {tests.iterations} of {project.iterations}")
    return tests.iterations
