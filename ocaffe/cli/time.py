"""ocaffe time: forward and backward times of a net, layer by layer; Caffe's time command."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ocaffe import log, proto
from ocaffe.cl.device import select_device
from ocaffe.cl.session import Session
from ocaffe.cli.flags import Parser, device_flags, memory_flags, memory_limit, required, stages, state_flags
from ocaffe.cli.train import announced
from ocaffe.errors import Error
from ocaffe.graph.record import Choices
from ocaffe.log import number
from ocaffe.model.text import read_net
from ocaffe.network import Network, phase_net


def main(argv: Sequence[str]) -> int:
    parser = Parser("time", "Time a net, layer by layer (no weights are needed).")
    parser.flag("model", "", "the net prototxt")
    parser.flag("iterations", 50, "how many forward-backward pairs")
    parser.flag("phase", "", "TRAIN or TEST; default TRAIN")
    memory_flags(parser)
    device_flags(parser)
    state_flags(parser)
    options = parser.parse(argv)
    path = required(options, "model", "the model", "time")
    if options.iterations < 1:
        raise Error(f"--iterations is {options.iterations}", place="ocaffe time", fix="at least 1")
    if options.phase not in ("", "TRAIN", "TEST"):
        raise Error(f"--phase is '{options.phase}'", place="ocaffe time", fix="TRAIN or TEST")
    phase = proto.TEST if options.phase == "TEST" else proto.TRAIN
    message = read_net(path, options.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text))
    device = announced(select_device(options.device or None, options.gpu or None, math=options.math))
    net = phase_net(message, phase, options.level, stages(options.stage) or ("",))
    limit = memory_limit(options.memory_limit, device.target.free_memory)
    network = Network(net, phase, Session(device), Choices(backward=True, recompute=options.recompute != "none", limit=limit))
    network.fill_parameters()
    network.start_prefetch()
    try:
        benchmark(network, options.iterations)
    finally:
        network.close()
        device.close()
    return 0


def benchmark(network: Network, iterations: int) -> None:
    """One warm pass, then the layers one by one, each waited for; then whole passes, which overlap host and device."""
    variant = network.variant()
    network.session.bind([variant.tape])
    tape, recording, queue = variant.tape, variant.recording, network.session.device.queue
    tape.set_step(RATE=0.0, ITERATION=0, PASS=0, SAMPLE=0)

    def timed(run: Callable[[], None]) -> float:
        begin = time.perf_counter()
        run()
        queue.finish()
        return (time.perf_counter() - begin) * 1000

    def whole() -> None:
        tape.run()
        network.advance()

    log.info("caffe.cpp:351", "Performing Forward")
    timed(lambda: tape.run(0, recording.forward_end))
    log.info("caffe.cpp:356", f"Initial loss: {number(network.loss(variant, tape.outputs.fetch()))}")
    log.info("caffe.cpp:357", "Performing Backward")
    timed(lambda: tape.run(recording.forward_end))
    log.info("caffe.cpp:365", "*** Benchmark begins ***")
    log.info("caffe.cpp:366", f"Testing for {iterations} iterations.")
    names = [node.name for node in network.graph.nodes]
    forward, backward = [0.0] * len(names), [0.0] * len(names)
    pairs: list[float] = []
    for iteration in range(iterations):
        for index, (begin, end) in enumerate(recording.forward_ranges):
            forward[index] += timed(lambda begin=begin, end=end: tape.run(begin, end))  # type: ignore[misc]
        for index, (begin, end) in recording.backward_ranges.items():
            backward[index] += timed(lambda begin=begin, end=end: tape.run(begin, end))  # type: ignore[misc]
        tape.runs += 1
        pairs.append(timed(whole))
        log.info("caffe.cpp:394", f"Iteration: {iteration + 1} forward-backward time: {number(pairs[-1])} ms.")
    log.info("caffe.cpp:397", "Average time per layer: ")
    for index, name in enumerate(names):
        log.info("caffe.cpp:400", f"{name:>10}\tforward: {number(forward[index] / iterations)} ms.")
        log.info("caffe.cpp:403", f"{name:>10}\tbackward: {number(backward[index] / iterations)} ms.")
    log.info("caffe.cpp:408", f"Average Forward pass: {number(sum(forward) / iterations)} ms.")
    log.info("caffe.cpp:410", f"Average Backward pass: {number(sum(backward) / iterations)} ms.")
    log.info("caffe.cpp:412", f"Average Forward-Backward: {number(sum(pairs) / iterations)} ms.")
    log.info("caffe.cpp:414", f"Total Time: {number(sum(pairs))} ms.")
    log.info("caffe.cpp:415", "*** Benchmark ends ***")
