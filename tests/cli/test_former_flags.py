"""Flags of older versions that --set replaces: they work, no page lists them, and the hint works as it stands."""
from __future__ import annotations

import argparse
import pathlib
import shlex

import pytest

from ocaffe.cli.flags import Parser
from ocaffe.cli.parsers import parser_of
from ocaffe.cli.train import _solver, train_options

FORMER = [("train", "max_iter"), *((command, field) for command in ("train", "sweep") for field in ("snapshot_interval_seconds", "skip_bad_records"))]
FILE = {"train": ["--solver", "solver.prototxt"], "sweep": ["solver.prototxt"]}


@pytest.mark.parametrize("separator", ["=", " "])
@pytest.mark.parametrize("dashes", ["-", "--"])
@pytest.mark.parametrize(("command", "field"), FORMER)
def test_every_spelling(command: str, field: str, dashes: str, separator: str, capfd: pytest.CaptureFixture[str]) -> None:
    parser = parser_of(command)
    assert isinstance(parser, Parser)
    for name in (field, field.replace("_", "-")):
        options = parser.parse([*FILE[command], *f"{dashes}{name}{separator}7".split()])
        assert options.settings == [f"{field}=7"]
        said = capfd.readouterr().err.splitlines()
        assert said == [f"hint: {dashes}{name} will go; type --set {field}=7"]
        assert parser.parse([*FILE[command], *shlex.split(said[0].partition("; type ")[2])]) == options
        assert not capfd.readouterr().err


@pytest.mark.parametrize(("command", "field"), FORMER)
def test_no_help_has_them(command: str, field: str) -> None:
    parser = parser_of(command)
    assert field not in {action.dest for action in parser._actions} and field.replace("_", "-") not in parser.format_help()


def test_the_solver_has_the_values(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The command that continues the training, and those of ranks, have the words of today."""
    path = tmp_path / "solver.prototxt"
    path.write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2')
    options = train_options(["--max-iter", "7", "--snapshot_interval_seconds=0.5", "-skip_bad_records", "3", "--solver", str(path)])
    param = _solver(str(path), options, print)
    assert (param.max_iter, param.snapshot_interval_seconds, param.skip_bad_records) == (7, 0.5, 3)
    assert options.argv == ["--set", "max_iter=7", "--set", "snapshot_interval_seconds=0.5", "--set", "skip_bad_records=3", "--solver", str(path)]
    assert len(capfd.readouterr().err.splitlines()) == 3


def test_convert_lists_one_flag_for_the_comparison() -> None:
    """--noverify works, as the negative of every switch does, and the help of --verify names it."""
    shown = [action for action in parser_of("convert")._actions if action.dest == "verify" and action.help != argparse.SUPPRESS]
    assert len(shown) == 1 and "--noverify" in str(shown[0].help)
