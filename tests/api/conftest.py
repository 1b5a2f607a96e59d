"""Fixtures of all tests of the API."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from ocaffe.support import parent


@pytest.fixture(autouse=True)
def one_process() -> Iterator[None]:
    """NCCL.new_uid() tells the processes that a script starts next to become ranks. A test must not leave that to the others."""
    yield
    parent.tell(processes="")
