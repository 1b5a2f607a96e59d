"""ocaffe report: write a file about a device, to attach to an issue: facts, self-test, a benchmark of six nets, kernels that spill."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ocaffe.cli import INTERRUPTED
from ocaffe.cli.flags import Parser, check_timeout, kind_flag, memory_limit, nearest, timeout_flag
from ocaffe.errors import Error
from ocaffe.selftest.report import Report, summary, text_of
from ocaffe.selftest.section import BATCHES
from ocaffe.shown import say
from ocaffe.support.files import atomic_write
from ocaffe.support.progress import Status


def main(argv: Sequence[str]) -> int:
    parser = Parser("report", "Write a file about your device, to attach to an issue. It has no paths, and no names of you or your machine. Read it before.")
    parser.flag("output", "ocaffe-report.json", "the file to write")
    parser.flag("gpu", "", "run on the GPU with this id (ids as device_query lists them)")
    parser.flag("device", "", "run on this OpenCL device: PLATFORM:INDEX or a part of its name; default: the best one")
    kind_flag(parser)
    parser.flag("nets", ",".join(BATCHES), "nets to benchmark, separated by ',', or none")
    parser.flag("memory_limit", "", "memory limit of each net: bytes, or a number with K, M or G; default: nearly the free memory")
    timeout_flag(parser, "section")
    options = parser.parse(argv)
    check_timeout(options.timeout, "report")
    nets = [] if options.nets == "none" else options.nets.split(",")
    for net in nets:
        if net not in BATCHES:
            near = nearest(net, BATCHES)
            raise Error(f"--nets has '{net}'", place="ocaffe report", fix=f"did you mean {near[0]}?" if near else f"some of {','.join(BATCHES)}, or none")
    if options.memory_limit == "auto":
        options.memory_limit = ""

    def write() -> None:
        with atomic_write(options.output) as out:
            out.write(text_of(report.content).encode())

    def tell(line: str) -> None:
        status.clear()
        say(line, flush=True)

    status, limit = Status(), memory_limit(options.memory_limit) or 0
    report = Report(options.device or None, options.gpu or None, options.kind or None, limit, options.timeout, tell, write, status)
    interrupted = False
    try:
        report.make(nets)
    except KeyboardInterrupt:
        interrupted = True
    status.clear()
    for line in summary(report.content):
        say(line)
    if not Path(options.output).exists():
        return INTERRUPTED
    size = f"{Path(options.output).stat().st_size / 1024:.0f} KiB{', with the sections until the interruption' if interrupted else ''}"
    say(f"wrote {options.output} ({size}). Read it, then attach it to an issue (docs/report.md).")
    return INTERRUPTED if interrupted else 0
