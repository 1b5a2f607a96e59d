"""Pipes, devices and folders in place of every file that a command or a net names. The cases run in a program, because they fork."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from ocaffe.cli import COMMANDS
from ocaffe.cli.flags import spelling
from ocaffe.cli.parsers import parser_of
from tests.abuse import pipes
from tests.abuse.harness import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the harness needs fork and /proc of Linux")


def test_every_argument_is_in_a_table() -> None:
    """A new argument is an input with a command line, or it is named as none."""
    there = {f"{command} {name}" for command, name in pipes.arguments()}
    inputs = {f"{command} {name}" for command, lines in pipes.INPUTS.items() for name in lines if not name.startswith("(")}
    others = {each for each in there if each in pipes.NO_INPUTS or each.split()[-1] in pipes.NO_INPUTS}
    assert inputs <= there and inputs | others == there and not inputs & others
    assert {command.split()[0] for command in pipes.INPUTS} | set(pipes.NONE) == set(COMMANDS)


def test_the_page_of_security_lists_every_argument() -> None:
    """The table of docs/security.md has the arguments of INPUTS as a user types them."""
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8").replace("\\|", "/")
    table = page.partition("## Files that are opened")[2].partition("\n## ")[0]
    rows = [line.split("|", 3)[1:3] for line in table.splitlines() if line.startswith("| `")]
    told = {command.strip(" `"): set(re.findall(r"`([^`]+)`", names)) for command, names in rows}
    wanted = {}
    for command, lines in pipes.INPUTS.items():
        actions = {action.dest: action for action in parser_of(*command.split())._actions}
        names = [actions[name] for name in lines if not name.startswith("(")]
        wanted[command] = {str(spelling(each) if each.option_strings else each.metavar or each.dest).replace("|", "/") for each in names}
    wanted["convert"] = {"files", "--summary", "--verify"}  # --noverify is another spelling of --verify
    assert told == wanted


def test_all_cases() -> None:
    device = os.environ.get("OCAFFE_TEST_DEVICE", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **({"OCAFFE_DEVICE": device} if device else {})}
    done = subprocess.run([sys.executable, "-m", "tests.abuse.pipes"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    assert len(lines) > 400, done.stderr[-2000:]
    assert not [line for line in lines if not line["good"]]
