"""docs/api.md agrees with the docstrings."""
from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def test_page_is_fresh() -> None:
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    assert spec is not None and spec.loader is not None
    made: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert (DOCS / "api.md").read_text(encoding="utf-8") == made.page(), "run `python docs/make_api.py`"
