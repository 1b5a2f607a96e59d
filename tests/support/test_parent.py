"""OCAFFE_PARENT: notes for the processes that a process starts."""
from __future__ import annotations

import os

import pytest

from ocaffe.support import parent


def test_notes_for_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(parent.VARIABLE, "")
    assert parent.told("vendors") == ""
    parent.tell(vendors="/home/a b/=&\udcff", affinity="7")
    assert parent.told("vendors") == "/home/a b/=&\udcff" and parent.told("affinity") == "7"
    one = parent.telling(unit_trial="1")
    assert not parent.told("unit_trial")
    parent.tell(vendors="")
    assert os.environ[parent.VARIABLE] == "affinity=7"
    os.environ.update(one)
    assert parent.told("unit_trial") == "1" and parent.told("vendors").endswith("\udcff")
