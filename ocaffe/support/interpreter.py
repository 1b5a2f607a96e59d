"""The Python interpreter that starts ocaffe's helper processes."""
from __future__ import annotations

import os
import sys

from ocaffe.errors import Error


def interpreter() -> str:
    """Return the path of the interpreter. Raise Error if a program contains Python, and does not name one."""
    if not sys.executable:
        fact = "sys.executable is empty, as in a program that contains Python, and ocaffe starts Python in other processes"
        raise Error(fact, fix=f"before `import ocaffe`: {setting()}")
    return sys.executable


def not_started(what: str, problem: OSError) -> Error:
    """Return the error for a helper process that the system does not start. `what` says what it does."""
    fact = f"the Python that {what}, sys.executable {sys.executable}, does not start: {problem.strerror}"
    return Error(fact, fix=f"before `import ocaffe`: {setting()}")


def setting() -> str:
    """Return the line of Python that names the interpreter which has the modules of this process."""
    number = f"{sys.version_info.major}.{sys.version_info.minor}"
    path = os.path.join(sys.exec_prefix, "bin", f"python{number}")
    found = os.path.isfile(path) and path != sys.executable
    return f"import sys; sys.executable = {path if found else f'/usr/bin/python{number}'!r}" + ("" if found else f", or where else Python {number} is")
