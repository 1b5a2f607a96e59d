"""ocaffe train: train or finetune a model, as Caffe's train command."""
from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ocaffe import proto
from ocaffe.cl.device import Device, list_devices, select_device
from ocaffe.cli.flags import (
    AUTO_BATCH,
    Parser,
    auto_batch_flag,
    check_outputs,
    device_flags,
    kind_flag,
    max_slowdown,
    memory_flags,
    memory_limit,
    naming_bad_records,
    required,
    slowdown_flag,
    stages,
    state_flags,
)
from ocaffe.cli.matching import check_match, match_flag, warn_frozen
from ocaffe.cli.ranks import listed, rank_device, rank_flags, ranked, started_ranks
from ocaffe.cli.signals import Signals
from ocaffe.cli.view import view, view_flags
from ocaffe.errors import Error, within
from ocaffe.evaluation.sidecar import write_sidecar
from ocaffe.formats.text import read_net, read_solver
from ocaffe.formats.upgrade import upgrade_solver
from ocaffe.graph.options import NetOptions
from ocaffe.memory.process import RuntimeMemory, device_line, process_line
from ocaffe.memory.report import size_text
from ocaffe.parallel.world import ALONE, World
from ocaffe.shown import path_word, say
from ocaffe.solver.checks import writes_snapshots
from ocaffe.solver.largest_batch import MOST_BATCH, largest_batch, room
from ocaffe.solver.planning import Machine, NetsToPlan, solver_to_plan
from ocaffe.solver.rate_range import STEPS, RateRange, lines, ranged
from ocaffe.solver.snapshot import newest, owned, prefix_of
from ocaffe.solver.solver import Solver
from ocaffe.solver.watch import Watch
from ocaffe.support import log
from ocaffe.support.files import output, to_write
from ocaffe.support.process_memory import taken
from ocaffe.support.progress import progress
from ocaffe.tools.py_faster_rcnn import configured, log_ignored, read_configuration
from ocaffe.tools.sweep.grid import axes, with_values
from ocaffe.tools.training_logs.tensorboard import event_log


def main(argv: Sequence[str]) -> int:
    with ranked() as world, naming_bad_records("--set skip_bad_records=N"):
        options = train_options(argv)
        path = required(options, "solver", "the solver", "train")
        if options.find_lr:
            find_rate(path, options)
            return 0
        status = started_ranks("train", options.argv, options)
        if status is None:
            train(path, options, world)
    return status or 0


def train_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("train", "Train or finetune a model.")
    parser.flag("solver", "", "the solver prototxt")
    parser.flag("snapshot", "", "the .solverstate to resume from, without --weights; auto: the newest complete one, or a new start")
    device_flags(parser)
    kind_flag(parser)
    training_flags(parser)
    parser.flag("sigint_effect", "stop", "effect of SIGINT: snapshot, stop or none")
    parser.flag("sighup_effect", "snapshot", "effect of SIGHUP: snapshot, stop or none")
    parser.flag("sigterm_effect", "stop", "effect of SIGTERM: snapshot, stop or none")
    parser.add_argument(
        "--set", "-set", dest="settings", action="append", default=[], metavar="FIELD=VALUE", help="a field of the solver and its value; may be given again"
    )
    parser.former("max_iter")
    parser.flag("find_lr", False, f"train {STEPS} iterations with rising rates instead, and suggest a base_lr; nothing is written")
    auto_batch_flag(parser, "batch size of the TRAIN net, in place of the file's", least=1)
    imdb_flags(parser)
    rank_flags(parser)
    parser.flag("log_json", "", "also write a JSON record per display and test to this file")
    parser.flag("tensorboard", "", "also write event files for TensorBoard to this folder")
    view_flags(parser)
    words = parser.renewed(argv)
    options = parser.parse(words)
    options.argv = words
    check_outputs("train", (options.solver, options.weights, options.snapshot), log_json=options.log_json)
    return options


def find_rate(path: str, options: argparse.Namespace) -> None:
    """Print the losses of a short training with rising rates, and the suggested rate. Raise Error."""
    if listed(options):
        raise Error("--find-lr trains on one device", place="ocaffe train", fix="give --gpu or --device one device")
    if options.snapshot:
        raise Error("--find-lr begins a training, --snapshot resumes one", place="ocaffe train", fix="leave out --snapshot; --weights gives it trained weights")
    found = RateRange()
    with log.muted():
        train(path, options, ALONE, found)
    with within(path):
        for line in lines(found, ["ocaffe", "train", "--solver", path_word(path)]):
            say(line)


def train(path: str, options: argparse.Namespace, world: World, watch: Watch | None = None) -> None:
    """Train on the device of this rank. Without `watch`, the flags of `options` choose the output."""
    auto = options.snapshot == "auto"
    if options.snapshot and options.weights and not auto:
        fix = "leave out --weights to resume, or --snapshot to start a new training"
        raise Error("--snapshot resumes a training, --weights starts a new one", place="ocaffe train", fix=fix)
    slowdown = max_slowdown(options)
    signals = Signals(options.sigint_effect, options.sighup_effect, options.sigterm_effect)
    notes: list[str] = []
    param = _solver(path, options, notes.append)
    if options.find_lr:
        param = ranged(param)
    prefix = prefix_of(param, path)
    with contextlib.ExitStack() as stack:
        if watch is None:
            watch = stack.enter_context(view(options, prefix)) if world.first else Watch()
        for text in notes:  # they belong into the log file of the view
            log.warning("upgrade_proto.cpp:1", text)
        if writes_snapshots(param) and world.first:
            stack.enter_context(owned(prefix))
        resume = world.broadcast(newest(prefix) if auto and world.first else options.snapshot or None)
        device = training_device(param, options, world)
        stack.callback(device.close)
        batch = _largest(path, param, options, device, world) if options.batch == AUTO_BATCH else options.batch
        start, free = taken() if device.info.target.is_cpu else None, device.free() if device.context_bytes else None
        solver = Solver(
            param, device, file=path, weights=[options.weights] if options.weights else (), resume=resume, keep_resume=not auto,
            level=options.level, stages=stages(options.stage) or ("",), allow_unknown_fields=options.allow_unknown_fields,
            memory_limit=memory_limit(options.memory_limit, device.target.free_memory), max_slowdown=slowdown, recompute=options.recompute,
            world=world, exchange=options.exchange, gradient_bits=options.gradient_bits, batch=batch, prepare=prepared(options),
        )  # fmt: skip
        stack.callback(solver.close)
        if writes_snapshots(param) and world.first:
            write_sidecar(prefix, [network.message for network in (*solver.test_networks, solver.network)])
        check_match(solver.network.graph, solver.copied, options.allow_no_match)
        if not resume:
            warn_frozen(solver.network.graph, solver.copied)
        stack.enter_context(signals)
        solver.request = lambda: signals.request() or watch.request()
        logs = [(json_log, options.log_json), (event_log, options.tensorboard)]
        writers = [stack.enter_context(opened(target)) for opened, target in logs if target and world.first]

        def on_record(record: dict[str, Any]) -> None:
            for write in writers:
                write(record)
            watch.record(record)

        solver.on_record = on_record
        if resume:
            log.info("caffe.cpp:235", f"Resuming from {resume}")
        elif auto:
            log.info("caffe.cpp:235", f"No complete snapshot of {prefix}: starting at iteration 0")
        if world.first:
            bar = stack.enter_context(progress(solver.param.max_iter, "iter", done=solver.iter, hidden=options.quiet or options.v))
            solver.on_progress = lambda iteration: bar.update(iteration - bar.n)
            watch.started(solver, bar)
        log.info("caffe.cpp:239", "Starting Optimization")
        solver.solve()
        watch.ended(solver)
        session = solver.session
        line = device_line(device.context_bytes, session.planned_bytes, session.host_bytes, free, device.free())
        if start is not None:
            line = process_line(start, session.planned_bytes, RuntimeMemory.of(commands.schedule for commands in session.command_lists), taken())
        if line:
            log.info("caffe.cpp:249", line)
        log.info("caffe.cpp:250", "Optimization Done.")


def _largest(path: str, param: Any, options: argparse.Namespace, device: Device, world: World) -> int:
    """Return the largest batch whose training fits the device, or --memory-limit, of all ranks. Log it. Raise Error."""
    limit = memory_limit(options.memory_limit, device.target.free_memory)
    allowed, target = room(device.target, limit, device.context_bytes), Machine.assumed(device.target)
    param = type(param).FromString(param.SerializeToString())
    param.train_state.level = options.level
    param.train_state.stage.extend(stages(options.stage))
    settings, prepare = NetOptions(recompute=options.recompute, debug=param.debug_info), prepared(options)

    def planned(batch: int) -> NetsToPlan:
        with log.muted():
            return solver_to_plan(param, lambda name: read_net(name, options.allow_unknown_fields), settings, batch, prepare)

    least, more = planned(1), planned(2)
    records = least.records
    if least.batch == more.batch:
        raise Error("--batch is auto, and no layer of the TRAIN net has a batch size", place=path, fix="leave out --batch")
    try:
        found = largest_batch(lambda batch: planned(batch).plans(target)(None).bytes, allowed, records or MOST_BATCH)
    except Error as problem:
        problem.place = problem.place or path
        raise
    batch = min(world.gather(found.batch))
    why = f"all {records} images" if found.whole and records else f"the largest that fits {size_text(allowed)}"
    log.info("caffe.cpp:218", f"Batch of {batch}, {why}; the plan takes {size_text(found.bytes)}")
    return batch


def _solver(path: str, options: argparse.Namespace, warn: Callable[[str], None]) -> Any:
    """Return the SolverParameter with the fields that --set replaces. Raises Error."""
    param = upgrade_solver(read_solver(path, options.allow_unknown_fields, warn))
    given = axes(options.settings, {})
    several = next((axis for axis in given if len(axis.values) > 1), None)
    if several is not None:
        fact = f"--set gives {several.field} {len(several.values)} values"
        raise Error(fact, place="ocaffe train", fix=f"give one value: --set {several.field}={several.values[0]}; `ocaffe sweep` trains with each of several")
    return with_values(param, given, [axis.values[0] for axis in given])


def imdb_flags(parser: Parser) -> None:
    """Add the flags of `prepared`."""
    parser.flag("imdb", "", "the database of annotated images, for nets of py-faster-rcnn")
    parser.flag("proposals", "", "the proposals for these images, for Fast R-CNN: a file of `ocaffe dataset proposals`")
    parser.flag("cfg", "", "a .yml file with py-faster-rcnn's settings")


def prepared(options: argparse.Namespace) -> Callable[[Any, int], Any]:
    """Return the change of a net for a phase that --imdb, --proposals and --cfg make. Raises Error."""
    if not (options.imdb or options.proposals or options.cfg):
        return lambda net, phase: net
    settings = read_configuration(options.cfg) if options.cfg else []
    log_ignored(settings)

    def prepare(net: Any, phase: int) -> Any:
        imdb, proposals = (options.imdb, options.proposals) if phase == proto.TRAIN else ("", "")
        return configured(net, phase, imdb, proposals, settings)

    return prepare


def training_flags(parser: Parser) -> None:
    """Add the flags that `ocaffe sweep` passes on to each training."""
    parser.flag("weights", "", "weights to finetune from, separated by ','")
    match_flag(parser)
    state_flags(parser)
    memory_flags(parser)
    slowdown_flag(parser)
    parser.former("snapshot_interval_seconds", "skip_bad_records")


def training_device(param: Any, options: argparse.Namespace, world: World = ALONE) -> Device:
    """Open and log the device of --gpu or --device, else of an explicit solver_mode as in Caffe, else the best one."""
    device = rank_device(options, world)
    if device is not None:
        return announced(device)
    explicit = param.HasField("solver_mode")
    cpu = explicit and param.solver_mode == proto.SolverParameter.CPU
    gpu = options.gpu
    if not gpu and not options.device and explicit and not cpu:
        if any(info.kind == "gpu" for info in list_devices()):
            gpu = str(param.device_id)
            if len(param.device_ids) > 1:
                ids = ",".join(map(str, param.device_ids))
                fact = f"device_id of the solver lists GPUs {ids}, of which each rank of TSN takes one; this process takes {gpu}"
                log.warning("caffe.cpp:204", f"{fact}. `ocaffe train --gpu {ids}` trains on all of them")
        else:
            log.warning("caffe.cpp:197", "the solver has solver_mode: GPU, but there is no OpenCL GPU; ocaffe uses a CPU")
    return announced(select_device(options.device or None, gpu or None, solver_mode_cpu=cpu, math=options.math, kind=options.kind))


def announced(device: Device) -> Device:
    """Log Caffe's line for the mode, and the device. Return the device."""
    target = device.info.target  # without a wait for the trial of wgmma
    if target.is_cpu:
        log.info("caffe.cpp:197", "Use CPU.")
    else:
        log.info("caffe.cpp:204", f"Using GPUs {device.number}")
    log.info("caffe.cpp:218", f"Device {device.number}: {device.name} ({device.platform_name}, driver {device.driver_version})")
    if target.tuned.choices:
        log.info("caffe.cpp:218", f"Tuned choices of kernels: {target.tuned}")
    return device


@contextlib.contextmanager
def json_log(path: str) -> Iterator[Any]:
    """Open a file of JSON lines. Yield a function that writes a record and flushes it."""
    try:
        stream = open(path, "a", encoding="utf-8", opener=output)
    except OSError as reason:
        raise Error(f"cannot be written: {reason.strerror}", place=path, fix=to_write(path, reason, "choose another file with --log_json")) from reason
    channel = log.Channel(f"{path} (--log_json)")

    def write(record: dict[str, Any]) -> None:
        with channel:
            stream.write(json.dumps(record) + "\n")
            stream.flush()

    try:
        yield write
    finally:
        with channel:
            stream.close()
