"""ocaffe trains, tests and converts Caffe networks on any OpenCL device. `import ocaffe as caffe` offers pycaffe's names."""
from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "Net": "ocaffe.net", "Error": "ocaffe.errors", "get_solver": "ocaffe.pysolver", "SGDSolver": "ocaffe.pysolver",
    "Layer": "ocaffe.pylayer", "TRAIN": "ocaffe.proto", "TEST": "ocaffe.proto", "set_random_seed": "ocaffe.pysolver",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used, so that `ocaffe --version` needs no OpenCL."""
    if name not in _LAZY:
        raise AttributeError(f"module 'ocaffe' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
