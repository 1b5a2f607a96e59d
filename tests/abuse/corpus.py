"""Inputs that once crashed, hung or gave a traceback: `python -m tests.abuse.corpus`. One line of JSON for each file says how it ends.

A folder of tests/abuse/corpus is a section of the fuzzers, or one of two more: `nets` are planned, `devices` run on a device.
"""
from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable

from tests.abuse import fuzz
from tests.abuse.campaign import options
from tests.abuse.devices import LIMITS, run_net
from tests.abuse.harness import GOOD, isolated
from tests.abuse.nets import plan_net
from tests.abuse.workplace import CORPUS, workplace


def files() -> list[pathlib.Path]:
    return sorted(path for path in CORPUS.rglob("*") if path.is_file())


def name(path: pathlib.Path) -> str:
    return path.relative_to(CORPUS).as_posix()


def check(path: pathlib.Path, device: str) -> None:
    """Read one file as its folder says."""
    readers: dict[str, Callable[[str], object]] = {"nets": plan_net, "devices": lambda file: run_net(file, device)}
    section = path.parent.name
    shutil.copyfile(path, "input")
    (readers.get(section) or fuzz.SECTIONS[section].read)("input")


def main() -> int:
    chosen = options("corpus", 0, device=True)
    status = 0
    with workplace() as folder:
        for on_device in (True, False):
            paths = [path for path in files() if (path.parent.name == "devices") == on_device]
            if not on_device:
                os.environ["OCAFFE_CACHE"] = str(folder / "cache")  # a section damages it
            for path, outcome in isolated(paths, lambda path: check(path, chosen.device), LIMITS if on_device else fuzz.LIMITS):
                print(json.dumps({"file": name(path), "kind": outcome.kind, "note": outcome.note}), flush=True)
                status |= outcome.kind not in GOOD
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
