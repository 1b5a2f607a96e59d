"""ocaffe train: Caffe's train command."""
from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ocaffe import log, proto
from ocaffe.cl.device import Device, list_devices, select_device
from ocaffe.cli.flags import Parser, device_flags, memory_flags, memory_limit, required, stages, state_flags
from ocaffe.cli.signals import Signals
from ocaffe.errors import Error
from ocaffe.model.text import read_solver
from ocaffe.solver.solver import Solver
from ocaffe.tools.tensorboard import event_log


def main(argv: Sequence[str]) -> int:
    parser = Parser("train", "Train or finetune a model.")
    parser.flag("solver", "", "the solver prototxt")
    parser.flag("weights", "", "weights to finetune from, separated by ','; excludes --snapshot")
    parser.flag("snapshot", "", "the .solverstate to resume from")
    device_flags(parser)
    state_flags(parser)
    parser.flag("sigint_effect", "stop", "what SIGINT does: snapshot, stop or none")
    parser.flag("sighup_effect", "snapshot", "what SIGHUP does: snapshot, stop or none")
    parser.flag("sigterm_effect", "stop", "what SIGTERM does: snapshot, stop or none")
    memory_flags(parser)
    parser.flag("log_json", "", "also write a JSON record per display and test to this file")
    parser.flag("tensorboard", "", "also write event files for TensorBoard to this folder")
    options = parser.parse(argv)
    path = required(options, "solver", "the solver", "train")
    if options.snapshot and options.weights:
        raise Error("--snapshot resumes a training, --weights begins a new one", place="ocaffe train", fix="give one of them")
    signals = Signals(options.sigint_effect, options.sighup_effect, options.sigterm_effect)
    param = read_solver(path, options.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text))
    device = training_device(param, options)
    with contextlib.ExitStack() as stack:
        stack.callback(device.close)
        solver = Solver(
            param, device, file=path, weights=[options.weights] if options.weights else (), resume=options.snapshot or None,
            level=options.level, stages=stages(options.stage) or ("",), allow_unknown_fields=options.allow_unknown_fields,
            memory_limit=memory_limit(options.memory_limit, device.target.free_memory), recompute=options.recompute != "none",
        )  # fmt: skip
        stack.callback(solver.close)
        stack.enter_context(signals)
        solver.request = signals.request
        logs = [(json_log, options.log_json), (event_log, options.tensorboard)]
        writers = [stack.enter_context(opened(target)) for opened, target in logs if target]

        def on_record(record: dict[str, Any]) -> None:
            for write in writers:
                write(record)

        solver.on_record = on_record
        if options.snapshot:
            log.info("caffe.cpp:235", f"Resuming from {options.snapshot}")
        solver.on_progress = stack.enter_context(progress(solver.param.max_iter, solver.iter))
        log.info("caffe.cpp:239", "Starting Optimization")
        solver.solve()
        log.info("caffe.cpp:250", "Optimization Done.")
    return 0


def training_device(param: Any, options: argparse.Namespace) -> Device:
    """--gpu or --device; else what the solver states explicitly, as in Caffe; else the best device. The log says which."""
    explicit = param.HasField("solver_mode")
    cpu = explicit and param.solver_mode == proto.SolverParameter.CPU
    gpu = options.gpu
    if not gpu and not options.device and explicit and not cpu:
        if any(info.kind == "gpu" for info in list_devices()):
            gpu = str(param.device_id)
        else:
            log.warning("caffe.cpp:197", "the solver says solver_mode: GPU, but no OpenCL GPU is here; a CPU runtime does the work")
    return announced(select_device(options.device or None, gpu or None, solver_mode_cpu=cpu, math=options.math))


def announced(device: Device) -> Device:
    """Caffe's line for the mode, and the device."""
    if device.target.is_cpu:
        log.info("caffe.cpp:197", "Use CPU.")
    else:
        log.info("caffe.cpp:204", f"Using GPUs {device.number}")
    log.info("caffe.cpp:218", f"Device {device.number}: {device.name} ({device.platform_name}, driver {device.driver_version})")
    if device.target.tuned.choices:
        log.info("caffe.cpp:218", f"Tuned choices of kernels: {device.target.tuned}")
    return device


@contextlib.contextmanager
def json_log(path: str) -> Iterator[Any]:
    """A file of JSON lines; each record is complete on disk when it is written."""
    try:
        stream = open(path, "a", encoding="utf-8")
    except OSError as reason:
        raise Error(f"cannot be written: {reason.strerror}", place=path, fix="give --log_json a path that can be written") from reason
    with stream:
        def write(record: dict[str, Any]) -> None:
            stream.write(json.dumps(record) + "\n")
            stream.flush()

        yield write


@contextlib.contextmanager
def progress(total: int, start: int) -> Iterator[Any]:
    """A bar below the log where stderr is a terminal; log lines move above it."""
    if not sys.stderr.isatty():
        yield lambda iteration: None
        return
    from tqdm import tqdm

    with tqdm(total=total, initial=start, unit="iter", dynamic_ncols=True, file=sys.stderr) as bar:
        old, log.sink = log.sink, lambda line: bar.write(line, file=sys.stderr)
        try:
            yield lambda iteration: bar.update(iteration - bar.n)
        finally:
            log.sink = old
