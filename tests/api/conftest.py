"""Fixtures of all tests of the API."""
from __future__ import annotations

import pytest

from ocaffe.parallel.own_processes import FOLDER


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL.new_uid() sets a variable for the processes that a script starts next. A test must not leave it to the others."""
    monkeypatch.setenv(FOLDER, "")
    monkeypatch.delenv(FOLDER)
