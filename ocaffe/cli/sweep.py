"""ocaffe sweep SOLVER --set FIELD=VALUE,VALUE: train with every combination of settings, one training a device, and compare the results."""
from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ocaffe import proto
from ocaffe.cl.device import choose_several, list_devices, no_opencl
from ocaffe.cli.flags import Parser, math_flag, max_slowdown, stages
from ocaffe.cli.ranks import ranked
from ocaffe.cli.signals import Signals
from ocaffe.cli.train import training_flags
from ocaffe.errors import Error, within
from ocaffe.formats.text import read_net, read_solver, write_text
from ocaffe.formats.upgrade import upgrade_solver
from ocaffe.lint.rules import File, View, is_loss
from ocaffe.shown import say
from ocaffe.solver.checks import check_solver
from ocaffe.solver.nets import net_messages
from ocaffe.solver.snapshot import prefix_of
from ocaffe.support import log
from ocaffe.support.cache import digest
from ocaffe.support.files import to_write
from ocaffe.support.lock import FileLock
from ocaffe.support.progress import progress
from ocaffe.tools.sweep.grid import axes, combinations, folder_name, with_values
from ocaffe.tools.sweep.sweep_results import CSV, JSON, Criterion, table, write_results
from ocaffe.tools.sweep.training_queue import FAILED, FINISHED, SOURCE, Training, run
from ocaffe.tools.training_logs.history import TRAIN_LOSS, column

NET_FIELDS = (  # of a solver: they determine its nets
    "net", "net_param", "train_net", "train_net_param", "test_net", "test_net_param", "train_state", "test_state", "test_iter", "test_interval",
    "skip_bad_records",
)  # fmt: skip
DECISIVE = ("weights", "level", "stage", "math")  # flags that change the results of a training


def main(argv: Sequence[str]) -> int:
    with ranked() as world:
        if world.several:
            fact = f"it starts its trainings itself, and this is one of {world.size} ranks"
            raise Error(fact, place="ocaffe sweep", fix="--gpu all, without mpiexec or srun")
        return sweep(argv)


def sweep(argv: Sequence[str]) -> int:
    """Run the trainings of the command line, and print the results. Return the exit status."""
    parser = Parser("sweep", "Train with every combination of some settings, one training a device, and compare the results.")
    parser.add_argument("solver", metavar="SOLVER", help="the solver prototxt")
    parser.add_argument(
        "--set", "-set", dest="settings", action="append", default=[], metavar="FIELD=VALUE,VALUE",
        help="a field of the solver and its values; give --set once for each field",
    )  # fmt: skip
    parser.flag("out", "", "the folder of the trainings and results; default: the solver's path without extension, and _sweep")
    parser.flag("gpu", "", "the GPUs: ids as device_query lists them, separated by ',', or all")
    parser.flag("device", "", "the OpenCL devices: PLATFORM:INDEX or a part of a name each, separated by ','; default: the one that train chooses")
    parser.flag("jobs_per_device", 1, "trainings that a device runs at the same time")
    parser.flag("by", "", "the output that orders the results; default: best_output, else accuracy, else the first output of the TEST net")
    math_flag(parser)
    training_flags(parser)
    options = parser.parse(argv)
    max_slowdown(options)  # raises Error before the first training
    if options.jobs_per_device < 1:
        raise Error(f"--jobs-per-device is {options.jobs_per_device}", place="ocaffe sweep", fix="--jobs-per-device 1, or a larger number")
    if not options.settings:
        raise Error("there is nothing to vary: no --set is given", place="ocaffe sweep", fix="for example --set base_lr=0.1,0.01 --set momentum=0.9,0.95")
    out = Path(options.out or f"{os.path.splitext(options.solver)[0]}_sweep")
    trainings, by = _trainings(options, out)
    devices = _devices(options)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / "sweep.lock")
        owner = lock.acquire()
    except OSError as problem:
        fix = to_write(out / "sweep.lock", problem, "choose another folder with --out")
        raise Error(f"cannot be written: {problem.strerror}", place=str(out), fix=fix) from problem
    if owner is not None:
        raise Error(f"another sweep runs in this folder: {owner}", place=str(out), fix="wait for its end or stop it, or give another --out")
    try:
        for path in [out / CSV, out / JSON, *(path for training in trainings for path in training.paths(out))]:
            if path.is_symlink():  # of a folder of a stranger, to a file of this user
                raise Error("it is a link, and the sweep would write where it leads to", place=str(path), fix="remove the link, or give another --out")
        for training in trainings:
            training.load()
        _run(options, out, trainings, devices, by)
    finally:
        lock.release()
    say(table(trainings, by))
    say("", f"results: {out / CSV}, {out / JSON}")
    missing = [training for training in trainings if training.state != FINISHED]
    if missing:
        failed = sum(training.state == FAILED for training in missing)
        say(f"{len(missing)} of {len(trainings)} trainings are not finished, {failed} of them failed. The same command continues them.")
    return 1 if missing else 0


def _run(options: argparse.Namespace, out: Path, trainings: list[Training], devices: list[str], by: Criterion) -> None:
    """Run the trainings that are not finished. The files of results are complete after each change."""
    done = sum(training.state == FINISHED for training in trainings)
    if done:
        log.info(SOURCE, f"{done} of {len(trainings)} trainings are finished already")
    hangup = signal.getsignal(signal.SIGHUP) if hasattr(signal, "SIGHUP") else None
    signals = Signals("stop", "none" if hangup == signal.SIG_IGN else "stop", "stop")  # nohup ignores it

    def iterations() -> int:
        return sum(training.iteration for training in trainings)

    def changed() -> None:
        write_results(out, options.solver, trainings, by)

    changed()
    with signals, progress(sum(training.max_iter for training in trainings), "iter", done=iterations()) as bar:

        def advanced() -> None:
            finished = sum(training.state == FINISHED for training in trainings)
            bar.set_description(f"{finished} of {len(trainings)} trainings", refresh=False)
            bar.update(iterations() - bar.n)

        run(trainings, devices, _flags(options), signals.request, changed, advanced)


def _devices(options: argparse.Namespace) -> list[str]:
    """Return the device of each training that runs at the same time: each device once, then each a second time. '' is that of `ocaffe train`."""
    if not options.gpu and not options.device:
        return [""] * int(options.jobs_per_device)
    devices = list_devices()
    if not devices:
        raise no_opencl()
    return [info.number for info in choose_several(devices, options.device, options.gpu)] * int(options.jobs_per_device)


def _flags(options: argparse.Namespace, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the flags of `ocaffe train` that are not at their defaults; with `names` only these."""
    passed = Parser("sweep", "")
    math_flag(passed)
    training_flags(passed)
    given = {name: getattr(options, name) for name, default in vars(passed.parse([])).items() if getattr(options, name) != default}
    return tuple(f"--{name}={value}" for name, value in given.items() if names is None or name in names)


def _trainings(options: argparse.Namespace, out: Path) -> tuple[list[Training], Criterion]:
    """Return the trainings of the grid, and the order of the results. Raises Error for settings with which no training can begin."""
    solver = upgrade_solver(read_solver(options.solver, options.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text)))
    given = axes(options.settings)
    flags = _flags(options, DECISIVE)
    known: dict[bytes, Nets] = {}
    trainings: list[Training] = []
    for settings, values in combinations(given):
        folder = out / folder_name(settings)
        place = f"{options.solver} with {' '.join(f'{name}={text}' for name, text in settings.items())}"
        with within(place):
            param = upgrade_solver(with_values(solver, given, values))
            check_solver(param)
            fields = _net_fields(param, options)
            key = fields.SerializeToString()
            nets = known[key] = known.get(key) or _nets(fields, options)
        param.snapshot_prefix = str(folder / os.path.basename(prefix_of(param, options.solver)))
        trainings.append(Training(settings, folder, write_text(param), nets.digest, flags, param.max_iter))
    return trainings, _criterion(options.by, solver, {name: loss for nets in known.values() for name, loss in nets.outputs.items()})


class Nets(NamedTuple):
    """Facts of the nets of a solver."""

    digest: str
    outputs: dict[str, bool]  # of the TEST nets, and whether each is a loss


def _net_fields(solver: Any, options: argparse.Namespace) -> Any:
    """Return a SolverParameter with only the fields that determine the nets, as the flags change them."""
    fields = type(solver)()
    fields.MergeFrom(solver)
    for field, _ in solver.ListFields():
        if field.name not in NET_FIELDS:
            fields.ClearField(field.name)
    fields.train_state.level = options.level or fields.train_state.level
    fields.train_state.stage.extend(stages(options.stage))
    return fields


def _nets(solver: Any, options: argparse.Namespace) -> Nets:
    """Return the facts of the nets of `solver`. Raises Error if a net cannot be read."""
    before, log.minimum = log.minimum, 2  # the trainings log the lines of the nets
    try:
        train, tests = net_messages(solver, lambda path: read_net(path, options.allow_unknown_fields))
        views = [View(File("", net, {}), net, proto.TEST) for net in (test() for test in tests)]
        texts = [write_text(net) for net in (train(), *(view.net for view in views))]
    finally:
        log.minimum = before
    outputs: dict[str, bool] = {}
    owners: dict[str, int] = {}
    for number, view in enumerate(views):
        for layer, top in (value for value, readers in view.readers.items() if not readers):
            param = view.layers[layer]
            outputs[column(owners, param.top[top], number)] = bool(param.loss_weight[top]) if param.loss_weight else is_loss(param)
    return Nets(digest(*texts), outputs)


def _criterion(by: str, solver: Any, outputs: dict[str, bool]) -> Criterion:
    """Return the value that orders the results. `outputs`: those of the TEST nets, and whether each is a loss."""
    known = {**outputs, TRAIN_LOSS: True}
    if by and by not in known:
        raise Error(f"--by is '{by}', the outputs are {', '.join(known)}", place="ocaffe sweep", fix=f"--by {next(iter(known))}, or another of them")
    name = by or next(name for name in (solver.best_output, "accuracy", *known) if name in known)
    lower = solver.best_is == proto.SolverParameter.LOWER if solver.HasField("best_is") and name == solver.best_output else known[name]
    return Criterion(name, lower)
