"""The tests of conversion run single launches."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import switch


@pytest.fixture(scope="package", autouse=True)
def single_launches() -> Iterator[None]:
    """A task graph is a program of its own for each net, which takes 2 to 4 s to build. Single launches share programs.

    tests/cl/test_task_graph.py compares both.
    """
    with pytest.MonkeyPatch.context() as change:
        switch(change, "join=0")
        yield
