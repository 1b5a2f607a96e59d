"""The output of a training: Caffe's log on stderr, or on a terminal a short view with the log in a file.

Terminal prints the net, memory and device, each test, and a bar.
"""
from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.memory.report import size_text
from ocaffe.shown import command, visible
from ocaffe.solver.solver import Solver
from ocaffe.solver.watch import Watch
from ocaffe.support import log
from ocaffe.support.files import to_write

STARTS = ("snapshot", "weights")  # flags that say where a training starts


class Terminal(Watch):
    """The short view. `path` is the log file, `prefix` that of snapshots, `command` continues a training that was stopped."""

    def __init__(self, path: str, prefix: str, command: str) -> None:
        self.path, self.prefix, self.command = path, prefix, command
        self.images, self.shown = 0, {"loss": "-"}  # the loss is the first figure of the bar
        self.last: tuple[int, float] | None = None
        self.begin = time.monotonic()

    def started(self, solver: Solver, bar: tqdm) -> None:
        self.bar = bar
        graph = solver.network.graph
        parameters = sum(parameter.count for parameter in graph.params if parameter.learned)
        fed = [node.tops[0].shape for node in graph.nodes if not node.bottoms and node.tops]
        batch = max((shape[0] for shape in fed if shape), default=0)  # images and labels may have layers each
        self.images = batch * solver.param.iter_size * solver.world.size
        device = solver.session.device
        lines = [
            ("net", f"{graph.message.name or self.prefix}: {len(graph.nodes)} layers, {parameters:,} parameters, batches of {self.images}"),
            ("memory", size_text(solver.session.planned_bytes) + (f"; {solver.limit_note}" if solver.limit_note else "")),
            ("device", f"{device.number} {device.name}"),
            ("log", f"{self.path} (-v prints it here)"),
        ]
        for name, text in lines:
            self._print(text, log.colored(f"{name:<8}", log.BOLD))

    def record(self, record: dict[str, Any]) -> None:
        now, iteration = time.monotonic(), record["iteration"]
        if record["phase"] == "test":
            values = {name: value[0] for name, value in record["outputs"].items() if len(value) == 1}
            self._print(f"iteration {iteration}, test: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
            self.shown.update((f"test {name}", f"{value:.3f}") for name, value in values.items() if "acc" in name.lower())
            self.last = None  # the time of a test is not that of iterations
        else:
            self.shown["loss"] = f"{record['loss']:.4g}"
            if self.last is not None and now > self.last[1] and iteration > self.last[0]:
                self.shown["images/s"] = f"{(iteration - self.last[0]) * self.images / (now - self.last[1]):.0f}"
            self.last = iteration, now
        self.bar.set_postfix(self.shown, refresh=False)

    def ended(self, solver: Solver) -> None:
        state = "stopped" if solver.stopped else "done"
        self._print(f"{state} at iteration {solver.iter} after {time.monotonic() - self.begin:.0f} s; snapshots: {self.prefix}_iter_*")
        if solver.stopped:
            self._print(f"continue: {self.command}")

    def _print(self, text: str, begin: str = "") -> None:
        self.bar.write(begin + visible(text), file=log.stderr)


def view_flags(parser: Parser) -> None:
    """Add the flags of `view`."""
    parser.flag("v", False, "print Caffe's whole log, as without a terminal")
    parser.flag("quiet", False, "print warnings and errors alone, without a bar and without a log file")
    parser.flag("log", "", "write the log to this file too; on a terminal the default is <snapshot_prefix>.log")


def continued(argv: Sequence[str]) -> str:
    """Return the command that continues a training from its newest snapshot, with the same flags."""
    kept, rest = list[str](), list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.lstrip("-").partition("=")
        if word.startswith("-") and name in STARTS:
            del rest[: 0 if equals else 1]
        else:
            kept.append(word)
    return command("ocaffe", "train", *kept, "--snapshot", "auto")


@contextlib.contextmanager
def view(options: argparse.Namespace, prefix: str) -> Iterator[Watch]:
    """Context of a training with the output that the flags choose. `prefix`: of snapshots. Raises Error."""
    if options.v and options.quiet:
        raise Error("-v and --quiet are both given", place="ocaffe train", fix="give -v for Caffe's log, or --quiet for no output")
    short = log.stderr.isatty() and not (options.v or options.quiet)
    path = options.log or (f"{prefix}.log" if short else "")
    with contextlib.ExitStack() as stack:
        if path:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(log.into(path, "a", echo=not (short or options.quiet), links=bool(options.log)))
            except OSError as problem:
                fix = to_write(path, problem, "choose another file with --log, or give -v for a log on the terminal alone")
                raise Error(f"the log cannot be written: {problem.strerror}", place=path, fix=fix) from problem
        elif options.quiet:
            log.quiet()
        yield Terminal(path, prefix, continued(options.argv)) if short else Watch()
