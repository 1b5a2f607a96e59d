"""Functions that add a random layer of each type to a draft."""
from __future__ import annotations

from importlib import import_module

MODULES = ("pointwise", "windows", "shapes", "products", "losses", "boxes", "data")


def register() -> None:
    for module in MODULES:
        import_module(f"tests.oracle.kinds.{module}")
