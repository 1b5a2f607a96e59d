"""ocaffe selftest: compare every kernel family with numpy on the user's device."""
from __future__ import annotations

import time
from collections.abc import Sequence

from ocaffe.check.selftest import all_cases, selftest
from ocaffe.cli.flags import Parser, device_flags
from ocaffe.errors import Error


def announce(device: str) -> None:
    print(f"device {device}\n", flush=True)


def main(argv: Sequence[str]) -> int:
    parser = Parser("selftest", "Compare every kernel family with numpy on a device. A driver that crashes or hangs is reported; the test continues.")
    device_flags(parser)
    parser.flag("only", "", "compare only the families whose name contains this text")
    parser.flag("timeout", 300.0, "seconds after which a family without a result counts as hanging")
    parser.flag("list", False, "list the families")
    options = parser.parse(argv)
    names = [case.name for case in all_cases() if options.only in case.name]
    if not names:
        raise Error(f"no family has '{options.only}' in its name", place="ocaffe selftest", fix="`ocaffe selftest --list` lists them")
    if options.list:
        print("\n".join(names))
        return 0
    begin, failed = time.perf_counter(), 0
    width = max(map(len, names))
    rows = selftest(names, options.device or None, options.gpu or None, options.math or None, options.timeout, announce)
    for index, row in enumerate(rows):
        if index == 0:
            print(f"{'family':<{width}}  result   largest error  seconds")
        error = "" if row.error is None else f"{row.error:13.1e}"
        print(f"{row.name:<{width}}  {row.word:<7}  {error:>13}  {row.seconds:7.1f}", flush=True)
        for line in row.detail.splitlines():
            print(f"    {line}")
        failed += row.word != "passed"
    print(f"\n{len(names) - failed} of {len(names)} families passed in {time.perf_counter() - begin:.0f} s")
    return 1 if failed else 0
