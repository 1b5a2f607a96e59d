"""Notes of a process for the processes that it starts, in the variable OCAFFE_PARENT. It is private: only ocaffe sets and reads it.

Notes: `vendors`, the value of OCL_ICD_VENDORS that is ocaffe's and not the user's. `affinity`, the process that has set POCL_AFFINITY. `unit_trial`, in the
processes of a selftest: a matrix unit may be used untested, and products of any size use it. `ranks`, the folder in which ranks tell their processes to
the process that started them. `processes`, the folder in which the processes of a script and their placeholders find each other.
"""
from __future__ import annotations

import os
from urllib.parse import parse_qsl, urlencode

VARIABLE = "OCAFFE_PARENT"
_ERRORS = "surrogateescape"  # paths may have bytes that are not UTF-8


def told(name: str) -> str:
    """Return a note of the process that has started this one, or of this process itself; '' if there is none."""
    return _notes().get(name, "")


def tell(**notes: str) -> None:
    """Set notes for all processes that this one starts from now on. An empty text removes one."""
    os.environ.update(telling(**notes))


def telling(**notes: str) -> dict[str, str]:
    """Return the variable for the environment of one process, with these notes besides those of this process."""
    return {VARIABLE: urlencode({name: text for name, text in (_notes() | notes).items() if text}, errors=_ERRORS)}


def _notes() -> dict[str, str]:
    return dict(parse_qsl(os.environ.get(VARIABLE, ""), errors=_ERRORS))
