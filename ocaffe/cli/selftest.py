"""ocaffe selftest: compare every kernel family with numpy on the user's device."""
from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from ocaffe.cl import unit_trial
from ocaffe.cl.device import choose, list_devices
from ocaffe.cli.flags import Parser, check_timeout, device_flags, kind_flag, timeout_flag
from ocaffe.errors import Error
from ocaffe.ir.matrix_units import supports
from ocaffe.selftest.selftest import all_cases, product_cases, selftest
from ocaffe.shown import say
from ocaffe.support.progress import Status


def announce(device: str) -> None:
    say(f"device {device}", "", flush=True)


def main(argv: Sequence[str]) -> int:
    parser = Parser("selftest", "Compare every kernel family with numpy on a device. A driver that crashes or hangs is reported; the test continues.")
    device_flags(parser)
    kind_flag(parser)
    parser.flag("only", "", "compare only the families whose name contains this text")
    parser.flag("products", False, "compare only the families that multiply matrices, as before the first use of a matrix unit (docs/matrix-units.md)")
    timeout_flag(parser, "family")
    parser.flag("list", False, "list the families")
    options = parser.parse(argv)
    check_timeout(options.timeout, "selftest")
    names = [case.name for case in (product_cases() if options.products else all_cases()) if options.only in case.name]
    if not names:
        raise Error(f"no family of kernels has '{options.only}' in its name", place="ocaffe selftest", fix="`ocaffe selftest --list` lists them")
    if options.list:
        say(*names)
        return 0
    begin, failed = time.perf_counter(), set()
    width = max(map(len, names))
    status = Status()

    def built(done: int, wanted: int) -> None:
        status(f"compiled {done} of {wanted} programs")

    rows = selftest(names, options.device or None, options.gpu or None, options.math or None, options.timeout, announce, kind=options.kind or None, built=built)
    for index, row in enumerate(rows):
        status.clear()
        if index == 0:
            say(f"{'family':<{width}}  result   largest error  seconds")
        error = "" if row.error is None else f"{row.error:13.1e}"
        say(f"{row.name:<{width}}  {row.word:<7}  {error:>13}  {row.seconds:7.1f}", flush=True)
        for line in row.detail.splitlines():
            say(f"    {line}")
        if row.word != "passed":
            failed.add(row.name)
    products = {case.name for case in product_cases()}
    if products <= set(names):
        _remember(options, not failed & products)
    say("", f"{len(names) - len(failed)} of {len(names)} families passed in {time.perf_counter() - begin:.0f} s")
    return 1 if failed else 0


def _remember(options: argparse.Namespace, passed: bool) -> None:
    """Store the verdict on the device's matrix unit, if the selftest used it."""
    info = choose(list_devices(), options.device or None, options.gpu or None, default=os.environ.get("OCAFFE_DEVICE"))
    math = options.math or os.environ.get("OCAFFE_MATH") or ""
    if supports(info.target.matrix_unit, math):
        unit_trial.store(info.facts, info.target.matrix_unit, math, passed)
