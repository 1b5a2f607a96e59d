"""The files with OpenCL C. Programs and #include lines name a file without its folder."""
from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def kernel_files() -> dict[str, Path]:
    """Return all .cl and .h files of this package by name. tests/structure/test_packaging.py checks that no two have one name."""
    return {path.name: path for path in Path(__file__).parent.rglob("*") if path.suffix in (".cl", ".h")}


@functools.cache
def kernel_text(name: str) -> str:
    """Return the text of a file, such as 'common.h'."""
    return kernel_files()[name].read_text(encoding="utf-8")
