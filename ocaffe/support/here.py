"""The folder where relative names begin, for code and for the remedies of errors. It may be removed while a shell or a program is in it."""
from __future__ import annotations

import os

GONE = "the working directory no longer exists"
REMEDY = "`cd` to a folder that exists"


def working_folder() -> str | None:
    """Return the absolute path of the folder where relative names begin, None if it no longer exists. `os.getcwd` raises then; this never does."""
    try:
        return os.getcwd()
    except OSError:
        return None


def here() -> str:
    """Return the name of `working_folder` for a text such as `(relative to {here()})`."""
    return working_folder() or "the working directory, which no longer exists"


def absolute(path: str) -> str:
    """Do the same as `os.path.abspath`. Without a working folder, a relative path stays as it is: no file has it."""
    return os.path.abspath(path) if os.path.isabs(path) or working_folder() is not None else os.path.normpath(path)


def real(path: str) -> str:
    """Do the same as `os.path.realpath`. Without a working folder, a relative path stays as it is: no file has it."""
    whole = absolute(path)
    return os.path.realpath(whole) if os.path.isabs(whole) else whole
