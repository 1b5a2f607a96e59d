"""Child processes end with the process that started them."""
from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARENT = """
import sys, time
from ocaffe.cl.discovery import start_child
sys.path.insert(0, sys.argv[1])  # with a pyopencl that takes a minute to import, as a slow compiler does to build
child = start_child("probe", {}, "")
print(child.pid, flush=True)
time.sleep(60)
"""


def runs(process: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="a feature of Linux")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_ends_with_its_parent(number: int, tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyopencl.py").write_text(f"import pathlib, time\npathlib.Path({str(tmp_path / 'begun')!r}).touch()\ntime.sleep(60)\n")
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        assert runs(child)
        parent.send_signal(number)
    deadline = time.monotonic() + 10
    while runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    survived = runs(child)
    if survived:
        os.kill(child, signal.SIGKILL)
    assert not survived
