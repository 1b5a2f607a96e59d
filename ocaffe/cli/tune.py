"""ocaffe tune: measure the fastest tile or algorithm for each product and convolution of nets, for later runs on the device."""
from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ocaffe import __version__, proto
from ocaffe.cl.device import Device, DeviceInfo, choose, list_devices, no_opencl, with_math
from ocaffe.cl.session import Session
from ocaffe.cl.tuned_tables import content, load, merged, shipped, table, user_file
from ocaffe.cli.flags import Parser, device_flags, stages, state_flags
from ocaffe.compiler.network import phase_net
from ocaffe.errors import Error
from ocaffe.formats.batch import batched
from ocaffe.formats.text import read_net, read_solver
from ocaffe.graph.build import build
from ocaffe.ir.graph import Graph
from ocaffe.ir.target import Target
from ocaffe.ir.tuned import Tuned
from ocaffe.kernels.matmul.families import family_of
from ocaffe.profiling import family_row
from ocaffe.profiling.tune import Found, Tuner, problems
from ocaffe.shown import command, lines_of, say
from ocaffe.solver.nets import net_messages
from ocaffe.support import log
from ocaffe.support.files import atomic_write, to_write
from ocaffe.zoo import FOLDER, templates


def main(argv: Sequence[str]) -> int:
    parser = Parser("tune", "Measure the fastest tile or algorithm for each product and convolution of nets, for later runs on this device.")
    parser.flag("solver", "", "the nets of this solver")
    parser.flag("model", "", "or these nets, separated by ',', in both phases; default: the zoo's classifiers")
    parser.flag("batch", 0, "batch size of data and inputs, in place of the files'")
    parser.flag("seconds", 0, "start no measurement after this many seconds (0: no limit); the longest problems are measured first")
    parser.flag("output", "", "write the table to this file instead of the cache folder; with --report, instead of tuned_DEVICE.json")
    parser.flag("list", False, "show the choices in use for the device")
    parser.flag("report", False, "write your table for the device, with the measured times and, for a GPU, its rates, to a file to contribute")
    parser.flag("reset", False, "remove your table for the device")
    device_flags(parser)
    state_flags(parser)
    options = parser.parse(argv)
    if options.solver and options.model:
        raise Error("--model and --solver are both given", place="ocaffe tune", fix="leave out --model; the solver names the net")
    log.quiet()
    info = _device(options)
    if options.reset:
        _reset(info.target)
    elif options.list:
        _list(load(info.target))
    elif options.report:
        _report(info, options.output)
    else:
        _tune(info, options)
    return 0


def _device(options: argparse.Namespace) -> DeviceInfo:
    """Return the device as in other commands, but without tuned tables, so that this works if a table is damaged."""
    info = choose(list_devices() or _none(), options.device or None, options.gpu or None, default=os.environ.get("OCAFFE_DEVICE"))
    return with_math(info, options.math or None)


def _none() -> list[DeviceInfo]:
    raise no_opencl()


def _reset(target: Target) -> None:
    path = user_file(target)
    if path is None or not os.path.exists(path):
        say(f"you have no table for '{target.name}'")
        return
    try:
        path.unlink()
    except OSError as reason:
        fix = f"let its owner allow you to write: {command('chmod', 'a+w', path.parent)}"
        raise Error(f"cannot be removed: {reason.strerror}", place=str(path), fix=fix) from reason
    say(f"removed {path}")


def _list(found: Tuned) -> None:
    for key, name in sorted(found.choices.items()):
        say(f"{key}: {name}")
    say(str(found) if found.choices else "no tuned choices: estimates are used")


def _tune(info: DeviceInfo, options: argparse.Namespace) -> None:
    path = pathlib.Path(options.output) if options.output else user_file(info.target)
    if path is None:
        raise Error("there is no cache folder for the table", place="ocaffe tune", fix="ocaffe tune --output FILE, and then export OCAFFE_TUNED=FILE to use it")
    old = content(path) if os.path.exists(path) else {"choices": {}}
    base = merged(shipped(info.target))
    device = Device(replace(info, target=replace(info.target, tuned=base)))
    try:
        asked = problems(device.target, _graphs(options))
        tuner = Tuner(Session(device), base)
        say(f"{len(asked)} products and convolutions on {device.info}")
        try:
            for found in tuner.tune(asked, options.seconds or None):
                say(_line(found), flush=True)
        finally:  # after an interruption, the measurements so far are written
            measured = {str(problem): _change(found) for problem, found in tuner.found.items()}
            choices = {key: name for key, name in old["choices"].items() if key not in measured} | tuner.choices
            _write(path, table(_facts(device.target), choices, measured=old.get("measured", {}) | measured))
    finally:
        device.close()
    for problem, error in tuner.refused.items():
        say(f"not measured: {problem}: {error.fact}")
    say(f"{len(tuner.found)} measured, {len(tuner.choices)} better than the default; {path} has {len(choices)} choices")
    before, after = (sum(found.seconds[getattr(found, name)] for found in tuner.found.values()) * 1e3 for name in ("default", "best"))
    if before:
        say(f"each of them once: {before:.3f} ms before, {after:.3f} ms after, {100 * (1 - after / before):.1f} % less")


def _line(found: Found) -> str:
    return f"{100 * found.gain:3.0f} %  {found.problem}: {_change(found)}"


def _change(found: Found) -> str:
    """Return time and name of the default and, if it is another one, of the best candidate."""
    default, best = (f"{found.seconds[name] * 1e3:.3f} ms" for name in (found.default, found.best))
    return f"{default} {found.default} -> {best} {found.best}" if found.best != found.default else f"{default} {found.default}"


def _report(info: DeviceInfo, output: str) -> None:
    """Write the user's table with facts of the device: a file that ocaffe can ship as it is. For a GPU, it has a row of families.py too."""
    own = user_file(info.target)
    if own is None or not os.path.exists(own):
        raise Error(f"you have no table for '{info.name}'", place="ocaffe tune --report", fix="run `ocaffe tune` first, which writes it")
    found = content(own)
    target = info.target
    about = {
        "ocaffe": __version__, "platform": f"{info.platform_name}, {info.platform_version}", "opencl": info.version, "driver": info.driver_version,
        "compute_units": target.compute_units, "clock_mhz": info.clock, "max_work_group": target.max_work_group, "local_memory": target.local_memory,
        "global_memory": target.global_memory,
    }  # fmt: skip
    path = pathlib.Path(output or f"tuned_{own.stem.replace('-', '_')}.json")
    family = {} if target.is_cpu else _family(info)
    _write(path, table(_facts(target), found["choices"], about=about, measured=found.get("measured", {}), family=family))
    say(f"wrote {path}: {len(found['choices'])} choices, {len(found.get('measured', {}))} measured problems. docs/report.md says how to contribute it.")


def _family(info: DeviceInfo) -> dict[str, Any]:
    """Measure the device, and return the row of ocaffe/kernels/matmul/families.py for it, in lines."""
    device = Device(info)
    try:
        found = family_row.measured(Session(device), info.clock)
    finally:
        device.close()
    lines = family_row.text(info.target, found)
    say(f"A row for ocaffe/kernels/matmul/families.py, before that of {family_of(info.target).name}:", lines_of(lines))
    rates = {"gflops": found.peaks.gflops, "copy_gbytes": found.peaks.gbytes, "launch_us": 1e6 * found.launch}
    return {"of": family_of(info.target).name, **{name: float(f"{rate:.4g}") for name, rate in rates.items()}, "row": lines.splitlines()}


def _facts(target: Target) -> dict[str, Any]:
    """Return the facts that name the devices which a table is for, if ocaffe ships it."""
    facts: dict[str, Any] = {"kind": target.kind, "runtime": target.runtime}
    return facts | ({"vector_width": target.vector_width, "compute_units": target.compute_units} if target.is_cpu else {"name": target.name})


def _write(path: pathlib.Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        fix = to_write(path.parent, reason, "name another folder, OCAFFE_CACHE=FOLDER ocaffe tune")
        raise Error(f"the folder cannot be made: {reason.strerror}", place=str(path.parent), fix=fix) from reason
    with atomic_write(str(path)) as out:
        out.write(text.encode())


def _graphs(options: argparse.Namespace) -> Iterator[Graph]:
    if options.solver:
        yield from _solver_graphs(options)
        return
    nets = (read_net(file, options.allow_unknown_fields) for file in options.model.split(",")) if options.model else _zoo()
    for net in nets:
        net = batched(net, options.batch)
        for phase in (proto.TRAIN, proto.TEST):
            names = stages(options.stage, *([net] if options.model else [])) or ("",)
            yield _built(phase_net(net, phase, options.level, names), phase)


def _solver_graphs(options: argparse.Namespace) -> Iterator[Graph]:
    param = read_solver(options.solver, options.allow_unknown_fields)
    param.train_state.level = options.level
    param.train_state.stage.extend(stages(options.stage))
    train, tests = net_messages(param, lambda path: batched(read_net(path, options.allow_unknown_fields), options.batch))
    yield _built(train(), proto.TRAIN)
    for test in tests:
        yield _built(test(), proto.TEST)


def _built(message: Any, phase: int) -> Graph:
    return build(message, phase, lambda source, text: None)


def _zoo() -> Iterator[Any]:
    """Yield the zoo's classifiers. Inputs with the shape in deploy.prototxt replace the data layers, so no data is needed."""
    for name in templates.names():
        train = templates.upgraded(FOLDER / name / "train_val.prototxt")
        if templates.is_classifier(train):
            yield templates.without_data(train, templates.image_shape(templates.upgraded(FOLDER / name / "deploy.prototxt")))
