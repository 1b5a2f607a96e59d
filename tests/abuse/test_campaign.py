"""The campaign: a smoke of every part, all parts for 20 minutes with `pytest -m abuse`. The smoke of slow parts has the marker `long`.

Parts run as programs, because they fork, and a process that has used OpenCL must not. OCAFFE_ABUSE_SEED chooses other cases.
"""
from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.abuse.fuzz import SECTIONS
from tests.abuse.harness import ROOT

SEED = os.environ.get("OCAFFE_ABUSE_SEED", "1")
DEVICE = os.environ.get("OCAFFE_TEST_DEVICE", "")
SMOKE = {  # flags of the parts; a minute in all
    "fuzz": ("--count", "150"),
    "nets": ("--count", "60"),
    "devices": ("--count", "8"),
    "converts": ("--count", "60"),
    "images": ("--count", "200"),
    "kills": ("--count", "5", "--section", "all"),
    "disks": ("--count", "7"),
    "caches": ("--count", "4"),
    "writers": ("--count", "5"),
    "syscalls": ("--count", "2"),
    "commands": ("--count", "1"),
    "endurance": ("--count", "400"),
}
# 26 minutes on two cores
MINUTES = {"nets": 4, "devices": 8, "converts": 4, "images": 1, "kills": 6, "disks": 2, "caches": 3, "writers": 1, "syscalls": 2, "commands": 4, "endurance": 4}
FUZZ = 9 * 60 / len(SECTIONS)  # seconds of a section
SLOW = {"caches", "commands", "devices", "disks", "endurance", "images", "kills", "syscalls", "writers"}
ON_DEVICE = {"commands", "devices", "converts", "kills", "disks", "caches", "writers", "syscalls", "endurance"}

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the harness needs fork and /proc of Linux")
needs = {
    "images": pytest.mark.skipif(importlib.util.find_spec("cv2") is None, reason="needs opencv-python-headless"),
    "syscalls": pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
}


def marks(part: str) -> list[pytest.MarkDecorator]:
    return [needs[part]] if part in needs else []


def run(folder: pathlib.Path, part: str, *flags: str) -> None:
    """Run a part, and check that it found nothing."""
    device = ["--device", DEVICE] if part in ON_DEVICE and DEVICE else []
    command = [sys.executable, "-m", f"tests.abuse.{part}", "--seed", SEED, "--findings", str(folder), *device, *flags]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"part"')]
    assert figures and sum(each["cases"] for each in figures), f"{part} ran no case\n{done.stderr[-2000:]}"
    assert done.returncode == 0, f"{part}: inputs of these findings are in {folder}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("part", [pytest.param(part, marks=[*marks(part), *([pytest.mark.long] if part in SLOW else [])]) for part in SMOKE])
def test_smoke(part: str, tmp_path: pathlib.Path) -> None:
    run(tmp_path, part, *SMOKE[part])


@pytest.mark.abuse
@pytest.mark.parametrize("section", SECTIONS)
def test_fuzz(section: str, tmp_path: pathlib.Path) -> None:
    run(tmp_path, "fuzz", "--section", section, "--count", "10000000", "--seconds", str(FUZZ))


@pytest.mark.abuse
@pytest.mark.parametrize("part", [pytest.param(part, marks=marks(part)) for part in MINUTES])
def test_part(part: str, tmp_path: pathlib.Path) -> None:
    count = ["--count", "30000" if part == "endurance" else "10000000"]
    run(tmp_path, part, *count, "--seconds", str(60 * MINUTES[part]))
