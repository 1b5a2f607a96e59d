"""Verdicts on features of a device, from trials in other processes, because a driver may crash or hang on them. They are remembered in the cache.

The key of a verdict has the strings that identify device and driver, and everything that the trial depends on.
"""
from __future__ import annotations

import os
from pathlib import Path

from ocaffe.support.cache import Entries
from ocaffe.support.interpreter import interpreter

PASSED, FAILED = b"passed", b"failed"
_ROOT = Path(__file__).resolve().parents[2]
_here: dict[str, bool] = {}  # of this process alone
Facts = tuple[str, ...]  # the strings that identify device and driver


def recall(key: str) -> bool | None:
    """Return whether the trial has passed. None: there is no verdict."""
    stored = Entries("units").load(key)
    return _here.get(key) if stored is None else stored == PASSED


def remember(key: str, passed: bool, lasts: bool = True) -> Path | None:
    """Keep a verdict in the cache, and return its file. Without a cache, or if it does not last, keep it in this process alone."""
    entries = Entries("units")
    if not lasts or entries.folder is None:
        _here[key] = passed
        return None
    entries.store(key, PASSED if passed else FAILED)
    return entries.folder / key


def environment() -> dict[str, str]:
    """Return the environment of a process that runs a module of this ocaffe."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module."""
    return [interpreter(), "-m", module, *arguments]
