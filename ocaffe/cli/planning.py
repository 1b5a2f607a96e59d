"""Plans of the solver in a file, for `ocaffe new` and `fit`."""
from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ocaffe.data.databases.assumed import assumed_data
from ocaffe.formats.text import read_net, read_solver
from ocaffe.graph.options import NetOptions
from ocaffe.ir.target import Target
from ocaffe.memory.curve import Plans, percent_text, smallest_within
from ocaffe.memory.report import size_text
from ocaffe.shown import command, path_word
from ocaffe.solver.planning import Machine, solver_to_plan

WORTH = 256 << 20  # bytes of a training on a CPU, from which less memory is of interest
TRADE = 0.1  # more time, for the sentence of `new` and `fit`
PATIENCE, QUICK = 1.5, 0.4  # seconds of the search for it, and those of the first plan, above which there is no search


@contextlib.contextmanager
def plans_of_solver(path: str, machine: Machine) -> Iterator[Plans]:
    """Context with the plans of the solver in a file. Missing data are assumed in it."""
    with assumed_data() as data:
        yield solver_to_plan(read_solver(path), lambda net: data.complete(read_net(net)), NetOptions()).plans(machine)


def sentence_about_less(path: str, size: int, target: Target) -> str:
    """Return the sentence of `new` and `fit` about their training, of `size` bytes, with less memory; '' if little is to be saved.

    `path`: the solver. A net that takes long to plan gets the command that shows the curve.
    """
    if target.is_cpu and size < WORTH:
        return ""
    began = time.monotonic()
    see = f"{command('ocaffe', 'plan', '--solver', path_word(path), '--curve')} shows its time with less memory"
    with plans_of_solver(path, Machine.assumed(target)) as plans:
        if time.monotonic() - began > QUICK:
            return see
        began = time.monotonic()
        free, best = plans(None), smallest_within(plans, TRADE, lambda: time.monotonic() - began > PATIENCE)
    if best.limit is None:
        return see if time.monotonic() - began > PATIENCE else ""
    return f"with {size_text(best.bytes)} this takes {percent_text(best.slowdown(free))} longer, as predicted: add --max-slowdown {100 * TRADE:g}%"
