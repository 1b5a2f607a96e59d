"""Remedies for missing files."""
from __future__ import annotations

import pathlib

import pytest

from ocaffe.formats.nearby import near

pytestmark = pytest.mark.quick


def test_names_that_are_near(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("train_val.prototxt").touch()
    for name in ("a_iter_900", "a_iter_1000", "a_iter_80", "a_iter_5", "b_iter_7"):
        pathlib.Path(f"{name}.solverstate").touch()
    assert near("a_iter_70.solverstate") == "this folder has a_iter_80.solverstate, a_iter_900.solverstate, a_iter_1000.solverstate"
    assert near(tmp_path / "train_vl.prototxt") == f"{tmp_path} has train_val.prototxt"
    assert near("x.binaryproto") is None
    assert "the folder none does not exist either" in str(near("none/a.prototxt"))
