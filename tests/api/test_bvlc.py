"""Caffe's own tests of pycaffe, as an outside check: OCAFFE_BVLC_TESTS names the folder python/caffe/test of Caffe's sources (with models and examples)."""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = os.environ.get("OCAFFE_BVLC_TESTS", "")
FILES = sorted(path.stem for path in pathlib.Path(FOLDER).glob("test_*.py")) if FOLDER else ["none"]


@pytest.mark.skipif(not FOLDER, reason="needs OCAFFE_BVLC_TESTS")
@pytest.mark.parametrize("name", FILES)
def test_file(name: str, device: Any) -> None:
    """The files run unchanged. They need the package six."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", ""), FOLDER]), "OCAFFE_DEVICE": device.number}
    command = [sys.executable, "-W", "ignore", "-m", "ocaffe.as_caffe", "-m", "unittest", name]
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ran = re.search(r"Ran (\d+) tests?", done.stderr)
    assert ran is not None and int(ran[1]) > 0
