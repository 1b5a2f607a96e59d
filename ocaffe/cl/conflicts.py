"""Explain why a runtime that worked in its test offers no platform in this process.

The dynamic linker loads one library per name. If another package has loaded its own copy of a library that the runtime needs,
the linker gives the runtime that copy. Intel's runtime and OpenVINO both contain a libtbb.so.12, and OpenVINO's is too old
for the runtime. The other order works, because a new TBB also supports programs for an old one.

Intel's TBB in the global scope (RTLD_GLOBAL) lets both load in either order. It is not done, because the plugins that OpenVINO
loads later would then use another TBB than OpenVINO itself.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ocaffe.cl.discovery import Runtime, discover
from ocaffe.shown import Lines

FIRST = "`import ocaffe; ocaffe.set_mode_cpu()`"  # lists the platforms, which loads every runtime


class Absence(NamedTuple):
    fact: str
    fix: str


def absences(platform_names: Collection[str]) -> list[Absence]:
    """Return the working runtimes without a platform in this process. `platform_names` are the platforms that the loader lists."""
    tested = (runtime for runtime in discover().runtimes if runtime.devices)
    return [_explained(runtime) for runtime in tested if not any(name in platform_names for name, _ in runtime.platforms)]


def _explained(runtime: Runtime) -> Absence:
    try:
        ctypes.CDLL(runtime.library)
        reason = "its library loads, but another package used OpenCL first, or a variable such as CUDA_VISIBLE_DEVICES hides the device"
    except OSError as error:
        reason = str(error)
    rivals = list(_rivals(Path(runtime.library).resolve().parent))
    copies = [f"    {package or 'another package'} has loaded another copy of {library.name}: {library}" for library, package in rivals]
    others = sorted({f"`import {package}`" for _, package in rivals if package}) or ["other packages are imported"]
    fact = Lines(f"{runtime.library} works in a process of its own, but not in this one: {reason}", *copies)
    return Absence(fact, f"run {FIRST} before {' and '.join(others)}")


def _rivals(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield libraries of this process that have the name of a file in the runtime's folder but are from another folder, with their packages."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # not Linux
        return
    loaded = dict.fromkeys(Path(line.split(maxsplit=5)[5]) for line in lines if line.count("/"))
    with contextlib.suppress(OSError):
        ours = {name for name in os.listdir(folder) if ".so" in name}
        yield from ((path, _package(path)) for path in loaded if path.name in ours and path.parent != folder)


def _package(library: Path) -> str:
    """Return the imported package whose folder contains the library, or ''."""
    for name, module in list(sys.modules.items()):
        folders = getattr(module, "__path__", ()) if "." not in name else ()
        if any(Path(folder).resolve() in library.parents for folder in folders):
            return name
    return ""
