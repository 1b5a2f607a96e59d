"""Processes that prepare side by side, and measure one at a time: planning and compiling use the cores, and nothing disturbs a measurement.

A child calls `my_turn()` when it is ready; it then waits until all others are ready and those before it have ended. Each line of JSON that it prints is a row.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

READY, FLAG = "ready", "OCAFFE_BENCHMARK_TURNS"


def my_turn() -> None:
    """Wait for the turn of this process; alone, go on."""
    if os.environ.get(FLAG):
        print(READY, flush=True)
        sys.stdin.readline()


def in_turns(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Run the commands, print their rows and return them. A command that fails is named, with the end of its messages."""
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {FLAG: "1"})
        for command in commands
    ]
    for child in children:
        assert child.stdout
        while (line := child.stdout.readline()) and line.strip() != READY:
            pass
    rows = []
    for command, child in zip(commands, children):
        said, problem = child.communicate("go\n")
        rows += [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        print(said if child.returncode == 0 else f"{' '.join(command)} failed: {problem[-500:]}", end="", flush=True)
    return rows
