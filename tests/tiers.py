"""Which tests CI runs: the markers `quick`, `long` and `sweep` (CONTRIBUTING.md)."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def rest_is_long(cases: Iterable[Any], first: int) -> list[Any]:
    """Parameters of a test: all but the `first` ones have the marker `long`, so that `bin/release-check` runs them and CI does not."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*row, marks=pytest.mark.long if number >= first else ()) for number, row in enumerate(rows)]
