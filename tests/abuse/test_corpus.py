"""Every input of the corpus is read, or refused with an Error."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.abuse import corpus
from tests.abuse.harness import GOOD, ROOT

Ends = dict[str, tuple[str, str]]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the harness needs fork and /proc of Linux")


@pytest.fixture(scope="module")
def ends() -> Ends:
    """The kind and the note of every file, from one process, because each of several would import everything again."""
    device = os.environ.get("OCAFFE_TEST_DEVICE", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.abuse.corpus", *(["--device", device] if device else [])]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"file"')]
    assert lines, done.stderr[-2000:]
    return {line["file"]: (line["kind"], line["note"]) for line in lines}


@pytest.mark.parametrize("path", corpus.files(), ids=corpus.name)
def test_input(path: pathlib.Path, ends: Ends) -> None:
    kind, note = ends[corpus.name(path)]
    assert kind in GOOD, f"{kind}: {note}"
