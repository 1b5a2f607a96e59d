"""C functions of the OpenCL loader that pyopencl is linked to. Some queries and calls have no method in pyopencl."""
from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
from typing import Any


def loader_function(name: str) -> Any | None:
    """Return a function such as clGetKernelWorkGroupInfo, for which the caller sets `argtypes`. None if the loader does not have it.

    Linux and macOS find it among the libraries that pyopencl's own one is linked to. Windows does not search these, so there it is the system's.
    """
    module = importlib.import_module("pyopencl._cl")
    with contextlib.suppress(OSError, AttributeError):
        return getattr(ctypes.CDLL("OpenCL.dll" if sys.platform == "win32" else str(module.__file__)), name)
    return None
