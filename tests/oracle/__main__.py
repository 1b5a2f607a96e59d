"""Compare ocaffe with a real Caffe: `python -m tests.oracle --seeds 0:300`, or `python -m tests.oracle net.prototxt [weights.caffemodel]`.

`OCAFFE_CAFFE_PYTHON` names a Python that can import caffe (CONTRIBUTING.md). The exit status is 1 if there are differences.
"""
from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from typing import Any

from ocaffe.errors import Error
from tests.oracle import tables
from tests.oracle.campaign import Part, drawn, run_parts
from tests.oracle.files import from_file
from tests.oracle.oracle import Counts, Oracle
from tests.oracle.peer import VARIABLE


def seeds(text: str) -> range:
    first, last = (int(number) for number in text.split(":"))
    return range(first, last)


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, sizes = text.split("=")
    return name, tuple(int(size) for size in sizes.split(","))


def run_seeds(options: argparse.Namespace) -> int:
    start = time.time()
    parts = [options.seeds[number :: options.jobs] for number in range(options.jobs)]
    results = run_parts([Part(options.what, part, options.types, options.fault) for part in parts if part])
    counts, found = Counts(), 0
    for reports, part, _ in results:
        found += len(reports)
        counts.add(part)
    caffe, ocaffe = (sum(seconds[number] for _, _, seconds in results) for number in (0, 1))
    print(f"{counts.line()}\n{found} with differences; {time.time() - start:.0f} s; processor time: {caffe:.0f} s in Caffe, {ocaffe:.0f} s in ocaffe")
    for name, count in counts.explained.most_common():
        print(f"  {count} x {name}")
    return int(found > 0)


def show_drawn(options: argparse.Namespace) -> int:
    for name, count in drawn(options.seeds, options.types).most_common():
        print(f"{count:6} {name}")
    return 0


def run_file(options: argparse.Namespace) -> int:
    """Compare a net file. Both programs load the weights, or have the same random ones."""
    case = from_file(options.net, options.phase, dict(options.shape))
    extra: dict[str, Any] = {"load": os.path.abspath(options.weights)} if options.weights else {}
    with Oracle() as oracle:
        found = oracle.findings(case, **extra)
        for finding in found:
            print(finding)
        print(f"{oracle.counts.arrays} arrays compared, {len(found)} differ" + "".join(f"; {name}" for name in oracle.counts.explained))
    return int(bool(found))


def show_tables() -> int:
    for title, rules in (("Variants of the package", tables.VENDOR), ("Documented differences", tables.DOCUMENTED)):
        print(title, *(f"  {rule.name}: {rule.reason}" for rule in rules), sep="\n")
    others = {"Nets that Caffe refuses": tables.ABORTS, "Types that are not drawn": tables.NOT_DRAWN, "Forms that are not drawn": tables.FORMS}
    for title, table in others.items():
        print(title, *(f"  {name}: {reason}" for name, reason in table.items()), sep="\n")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", nargs="?", help="a prototxt to compare")
    parser.add_argument("weights", nargs="?", help="its weights")
    parser.add_argument("--seeds", type=seeds, default=range(0, 300), help="a range FIRST:LAST of random nets")
    parser.add_argument("--what", choices=("nets", "solvers", "specs"), default="nets")
    parser.add_argument("--types", nargs="*", default=[], help="only layers of these types")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--phase", choices=("TRAIN", "TEST"), default="TEST", help="of a net file")
    parser.add_argument("--shape", type=shape, action="append", default=[], help="of an input of a net file: data=1,3,224,224")
    parser.add_argument("--fault", default="", help="plant a fault of tests/oracle/faults.py")
    parser.add_argument("--drawn", action="store_true", help="print how many nets of the seeds have each type and form, and run none")
    parser.add_argument("--tables", action="store_true", help="print what is known to differ")
    options = parser.parse_args(arguments)
    if options.tables:
        return show_tables()
    if options.drawn:
        return show_drawn(options)
    if not os.environ.get(VARIABLE) or not shutil.which(os.environ[VARIABLE]):
        print(f"${VARIABLE} must name a Python that can import caffe (CONTRIBUTING.md)", file=sys.stderr)
        return 2
    try:
        return run_file(options) if options.net else run_seeds(options)
    except Error as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
