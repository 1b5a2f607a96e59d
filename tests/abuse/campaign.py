"""Options and figures of the campaign's parts.

Every part is a program: `python -m tests.abuse.PART --seed N --count N --seconds N`. Case number i of a seed is always the same. The program prints one
line of JSON: the number of cases of each kind (tests/abuse/harness.py) and the findings. It keeps the first input of every finding. The exit status is
1 if there is a finding. `python -m tests.abuse.report FILE...` adds such lines up.
"""
from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator

from tests.abuse.harness import GOOD, Outcome


class Options(argparse.Namespace):
    """The settings of a part. `device` is empty unless the part uses one."""

    seed: int
    first: int
    count: int
    seconds: float
    findings: pathlib.Path
    section: str
    device: str
    seeds: str
    processes: int


def options(part: str, count: int, sections: tuple[str, ...] = (), device: bool = False, seeds: bool = False) -> Options:
    """Parse the command line of a part. `count` is the default number of cases, `sections` are the possible values of --section.

    `seeds`: the part can run a range of seeds in several processes.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.abuse.{part}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=count, help="number of cases at most")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case after this time")
    parser.add_argument("--findings", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir(), "ocaffe-findings"), help="folder for inputs of findings")
    parser.add_argument("--section", choices=sections, default="", help="default: all, in turns" if sections else argparse.SUPPRESS)
    parser.add_argument("--device", default="", help="the OpenCL device" if device else argparse.SUPPRESS)
    if seeds:
        parser.add_argument("--seeds", default="", help="FIRST:END: run each seed from FIRST on and below END in a process of its own")
        parser.add_argument("--processes", type=int, default=1, help="with --seeds: so many at a time")
    return parser.parse_args(namespace=Options())


class Tally:
    """Counts outcomes and keeps inputs of findings."""

    def __init__(self, part: str, chosen: Options) -> None:
        self.part, self.options = part, chosen
        self.kinds: collections.Counter[str] = collections.Counter()
        self.findings: dict[str, dict[str, object]] = {}
        self.extra: dict[str, object] = {}  # further figures of a part
        self.begun = time.monotonic()

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of cases while count and seconds last."""
        for number in range(self.options.first, self.options.first + self.options.count):
            if self.spent():
                return
            yield number

    def spent(self) -> bool:
        return time.monotonic() - self.begun > self.options.seconds

    def add(self, outcome: Outcome, number: int, content: bytes = b"", ending: str = "") -> None:
        """Count a case. `content` is its input, or its log; it is written to the folder of findings if the case is the first of a new fault."""
        self.kinds[outcome.kind] += 1
        if outcome.kind in GOOD:
            return
        key = f"{outcome.kind}: {outcome.note}"
        if key not in self.findings:
            name = re.sub(r"[^\w.]+", "-", f"{self.part}-{self.options.section}-{self.options.seed}-{number}-{outcome.kind}")
            path = self.options.findings / f"{name}{ending}"
            self.findings[key] = {"number": number, "count": 0, "file": str(path)}
            self.options.findings.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            print(f"finding: {key}: case {number}, {path}", file=sys.stderr, flush=True)
        self.findings[key]["count"] = int(str(self.findings[key]["count"])) + 1

    def finish(self) -> int:
        """Print the figures and return the exit status."""
        print(json.dumps({
            "part": self.part, "section": self.options.section, "device": self.options.device, "seed": self.options.seed,
            "cases": self.kinds.total(), "kinds": dict(self.kinds), "seconds": round(time.monotonic() - self.begun, 1), "findings": self.findings, **self.extra,
        }), flush=True)  # fmt: skip
        return 1 if self.findings else 0
