"""ocaffe time: time forward and backward of a net, layer by layer, as Caffe's time command. --profile times every launch."""
from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ocaffe import proto
from ocaffe.cl.device import select_device
from ocaffe.cl.session import Session
from ocaffe.cli.flags import Parser, batch_flag, check_outputs, device_flags, kind_flag, memory_flags, memory_limit, required, shape_flag, stages, state_flags
from ocaffe.cli.ranks import listed, rank_device, ranked, started_ranks
from ocaffe.cli.train import announced, training_device
from ocaffe.compiler.compile import CompiledNet
from ocaffe.compiler.network import Network, phase_net
from ocaffe.data.databases.assumed import assumed_data, parse_shape
from ocaffe.errors import Error
from ocaffe.formats.batch import batched
from ocaffe.formats.text import read_net, read_solver
from ocaffe.graph.options import NetOptions
from ocaffe.graph.record import Recording
from ocaffe.parallel.world import ALONE, World
from ocaffe.profiling.profile import NetProfile, measure
from ocaffe.profiling.roofline import page
from ocaffe.shown import say
from ocaffe.solver.solver import Solver
from ocaffe.support import log
from ocaffe.support.files import atomic_write
from ocaffe.support.log import number

PRINTED = 0.99  # share of the time: the longest launches up to it are printed; the files have all
# Fields of a solver that do more than iterations.
SILENT = ("display", "snapshot", "test_iter", "test_interval", "test_net", "test_net_param", "test_state", "best_output")


def main(argv: Sequence[str]) -> int:
    with ranked() as world, contextlib.ExitStack() as stack:
        options = _options(argv)
        if options.profile or options.html or options.json:
            if world.several or len(listed(options)) > 1:
                fact = "--profile, --html and --json measure one device, and several are chosen"
                raise Error(fact, place="ocaffe time", fix="choose one device by --gpu or --device, without mpiexec")
            report(profile_solver(options, stack) if options.solver else profile_net(options, stack), options)
            return 0
        status = started_ranks("time", argv, options)
        if status is None:
            benchmark(*opened_net(options, stack, world), options.iterations, world)
    return status or 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("time", "Time a net, layer by layer (no weights are needed).")
    parser.flag("model", "", "the net prototxt")
    parser.flag("iterations", 50, "number of forward-backward pairs")
    parser.flag("phase", "", "TRAIN or TEST; default TRAIN")
    parser.flag("profile", False, "time every launch on the device, and compare with the device's peak rates")
    parser.flag("solver", "", "with --profile: time a training iteration with its update, in place of --model")
    parser.flag("html", "", "with --profile: write diagrams and a table of all launches to this file")
    parser.flag("json", "", "with --profile: write the numbers to this file")
    shape_flag(parser)
    batch_flag(parser)
    memory_flags(parser)
    device_flags(parser)
    kind_flag(parser)
    state_flags(parser)
    options = parser.parse(argv)
    if options.iterations < 1:
        raise Error(f"--iterations is {options.iterations}", place="ocaffe time", fix="--iterations 50, or another number of 1 or more")
    if options.phase not in ("", "TRAIN", "TEST"):
        raise Error(f"--phase is '{options.phase}'", place="ocaffe time", fix="--phase TRAIN or --phase TEST")
    check_outputs("time", (options.model, options.solver), html=options.html, json=options.json)
    return options


def opened_net(options: argparse.Namespace, stack: contextlib.ExitStack, world: World = ALONE) -> tuple[Network, NetOptions]:
    """Return the net of --model on its device, with filled parameters and started prefetchers, and its options. The stack closes the net."""
    path = required(options, "model", "the model", "time")
    phase = proto.TEST if options.phase == "TEST" else proto.TRAIN
    data = stack.enter_context(assumed_data())
    read = read_net(path, options.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text))
    message = data.complete(batched(read, options.batch), parse_shape(options.shape))
    for note in data.notes:
        log.warning("caffe.cpp:321", note)
    device = announced(rank_device(options, world) or select_device(options.device or None, options.gpu or None, math=options.math, kind=options.kind))
    stack.callback(device.close)
    net = phase_net(message, phase, options.level, stages(options.stage, message) or ("",))
    limit = memory_limit(options.memory_limit, device.target.free_memory)
    network = Network(net, phase, Session(device, limit is not None))
    stack.callback(network.close)
    network.fill_parameters()
    network.inputs.start()
    return network, NetOptions(backward=True, recompute=options.recompute, limit=limit)


def benchmark(network: Network, options: NetOptions, iterations: int, world: World = ALONE) -> None:
    """Run one pass to warm up. Then, per iteration, time each layer with a wait, and a whole pass, which overlaps host and device.

    Several ranks run at the same time, without an exchange. The first one logs its layers, and the passes of all.
    """
    queue = network.session.device.queue
    compiled = next_pass(network, options)

    def timed(run: Callable[[], CompiledNet]) -> float:
        nonlocal compiled
        begin = time.perf_counter()
        compiled = run()  # of other shapes if a layer measured the shapes of its tops
        queue.finish()
        return (time.perf_counter() - begin) * 1000

    def forward_of(index: int, recording: Recording) -> int:
        return recording.forward_ranges[index][1]

    def backward_of(index: int, recording: Recording) -> int:
        return recording.backward_ranges[index][1]

    def whole() -> CompiledNet:
        return network.nets.run(next_pass(network, options))

    log.info("caffe.cpp:351", "Performing Forward")
    timed(partial(network.nets.run, compiled, 0, lambda recording: recording.forward_end))
    log.info("caffe.cpp:356", f"Initial loss: {number(network.loss(compiled, compiled.commands.fetch()))}")
    log.info("caffe.cpp:357", "Performing Backward")
    timed(partial(network.nets.run, compiled, compiled.recording.forward_end))
    log.info("caffe.cpp:365", "*** Benchmark begins ***")
    log.info("caffe.cpp:366", f"Testing for {iterations} iterations.")
    names = [node.name for node in network.graph.nodes]
    forward, backward = [0.0] * len(names), [0.0] * len(names)
    pairs: list[float] = []
    for iteration in range(iterations):
        compiled = next_pass(network, options)
        for index in range(len(names)):
            begin = compiled.recording.forward_ranges[index][0]
            forward[index] += timed(partial(network.nets.run, compiled, begin, partial(forward_of, index)))
        for index, (begin, _) in compiled.recording.backward_ranges.items():
            backward[index] += timed(partial(network.nets.run, compiled, begin, partial(backward_of, index)))
        pairs.append(timed(whole))
        log.info("caffe.cpp:394", f"Iteration: {iteration + 1} forward-backward time: {number(pairs[-1])} ms.")
    log.info("caffe.cpp:397", "Average time per layer: ")
    for index, name in enumerate(names):
        log.info("caffe.cpp:400", f"{name:>10}\tforward: {number(forward[index] / iterations)} ms.")
        log.info("caffe.cpp:403", f"{name:>10}\tbackward: {number(backward[index] / iterations)} ms.")
    log.info("caffe.cpp:408", f"Average Forward pass: {number(sum(forward) / iterations)} ms.")
    log.info("caffe.cpp:410", f"Average Backward pass: {number(sum(backward) / iterations)} ms.")
    log.info("caffe.cpp:412", f"Average Forward-Backward: {number(sum(pairs) / iterations)} ms.")
    for rank, mean in enumerate(world.gather(sum(pairs) / iterations) if world.several else ()):
        log.info("caffe.cpp:412", f"Average Forward-Backward of rank {rank} on {world.hosts[rank]}: {number(mean)} ms.")
    log.info("caffe.cpp:414", f"Total Time: {number(sum(pairs))} ms.")
    log.info("caffe.cpp:415", "*** Benchmark ends ***")


def next_pass(network: Network, options: NetOptions) -> CompiledNet:
    """Return the compiled net for the shapes of the next batch. Its next pass begins."""
    network.follow_batch()
    compiled = network.nets.bound(options)
    network.begin(compiled)
    return compiled


def profile_net(options: argparse.Namespace, stack: contextlib.ExitStack) -> NetProfile:
    """Profile forward of --model and, in the phase TRAIN, backward."""
    network, net_options = opened_net(options, stack)
    net_options = replace(net_options, backward=network.phase == proto.TRAIN, prepack_weights=network.phase == proto.TEST)

    def passes(count: int) -> None:
        for _ in range(count):
            network.nets.run(next_pass(network, net_options))

    return measure(network.session, pathlib.Path(options.model).name, network.graph.nodes, passes, options.iterations)


def profile_solver(options: argparse.Namespace, stack: contextlib.ExitStack) -> NetProfile:
    """Profile whole training iterations, without tests and snapshots."""
    if options.model:
        raise Error("--model and --solver are both given", place="ocaffe time", fix="leave out --model; the solver names the net")
    param = read_solver(options.solver, options.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text))
    for field in SILENT:
        param.ClearField(field)
    device = training_device(param, options)
    stack.callback(device.close)
    solver = Solver(
        param, device, file=options.solver, level=options.level, stages=stages(options.stage) or ("",), allow_unknown_fields=options.allow_unknown_fields,
        memory_limit=memory_limit(options.memory_limit, device.target.free_memory), recompute=options.recompute,
    )  # fmt: skip
    stack.callback(solver.close)
    return measure(solver.session, pathlib.Path(options.solver).name, solver.network.graph.nodes, solver.step, options.iterations)


def report(profile: NetProfile, options: argparse.Namespace) -> None:
    """Print the tables, and write the files of --html and --json."""
    for line in (str(profile), "", *profile.launch_table(PRINTED)):
        say(line)
    for path, text in ((options.html, page), (options.json, lambda found: json.dumps(found.record(), indent=1) + "\n")):
        if path:
            with atomic_write(path) as out:
                out.write(text(profile).encode())
