"""The working folder is asked for by `ocaffe.support.here` alone: it may no longer exist, and `os.getcwd` raises then."""
from __future__ import annotations

import re

import pytest

from tests.structure.figures import PRODUCT, python_files

pytestmark = pytest.mark.quick

ASKS = re.compile(r"\bgetcwdb?\b|\.cwd\(\)")


def test_one_module_asks_for_the_working_folder() -> None:
    found = [path.relative_to(PRODUCT).as_posix() for path in python_files(PRODUCT) if ASKS.search(path.read_text(encoding="utf-8"))]
    assert found == ["support/here.py"]


@pytest.mark.parametrize("text", ["os.getcwd()", "from os import getcwd", "Path.cwd()", "pathlib.Path.cwd()", "os.getcwdb()"])
def test_an_own_question_is_found(text: str) -> None:
    assert ASKS.search(text)
