"""Ranks that are killed at random moments (tests/parallel/kills.py), eight minutes with `pytest -m abuse`."""
from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest

from tests.parallel.launch import environment, finished, needs_mpi, python

pytestmark = [needs_mpi, pytest.mark.skipif(sys.platform != "linux", reason="the test looks at processes in /proc")]


def run(folder: pathlib.Path, device: Any, section: str, *flags: str) -> None:
    variables = environment(device)
    command = python(1, "-m", "tests.parallel.kills", "--device", device.number, "--findings", str(folder), "--section", section, *flags)
    done = finished(command, folder, variables)
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"part"')]
    assert done.returncode == 0 and figures and figures[0]["cases"], done.stdout[-4000:]


@pytest.mark.abuse
@pytest.mark.parametrize("section", ["2 mpiexec", "2 device", "4 mpiexec", "4 device"])
def test_kills(section: str, device: Any, tmp_path: pathlib.Path) -> None:
    run(tmp_path, device, section, "--count", "1000", "--seconds", "120")
