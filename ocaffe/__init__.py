"""ocaffe trains, tests and converts Caffe networks on any OpenCL device. `import ocaffe as caffe` offers pycaffe's names."""
from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_NAMES = {  # module: the names that ocaffe exports from it; keep __init__.pyi, for type checkers, in step
    "as_caffe": "install_as_caffe",
    "api.blob": "Blob",
    "classifier": "Classifier",
    "detector": "Detector",
    "errors": "Error",
    "layers.base": "layer_type_list",
    "support.log": "init_log",
    "api.net": "Net",
    "net_spec": "NetSpec params to_proto",
    "api.processes": "NCCL has_nccl set_multiprocess set_solver_count set_solver_rank solver_count solver_rank",
    "proto": "TEST TRAIN",
    "pylayer": "Layer",
    "api.pysolver": "AdaDeltaSolver AdaGradSolver AdamSolver NesterovSolver RMSPropSolver SGDSolver Solver get_solver",
    "api.runtime": "Timer set_device set_mode_cpu set_mode_gpu set_random_seed",
}
_MODULES = ("classifier", "coord_map", "detector", "draw", "io", "layers", "log", "net_spec", "proto", "pycaffe")  # with pycaffe's names
_PLACES = {"log": "support.log"}  # modules of _MODULES that are in a package
_PRIVATE = ("_caffe",)  # pycaffe's extension module, which some scripts use
_LAZY = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(["__version__", *_LAZY, *_MODULES])


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `ocaffe --version` needs no OpenCL."""
    import importlib

    if name in _LAZY:
        value: Any = getattr(importlib.import_module(f"ocaffe.{_LAZY[name]}"), name)
    elif name in _MODULES or name in _PRIVATE:
        value = importlib.import_module(f"ocaffe.{_PLACES.get(name, name)}")
    else:
        raise AttributeError(f"module 'ocaffe' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
