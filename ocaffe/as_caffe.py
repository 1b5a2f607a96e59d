"""Makes `import caffe` import ocaffe: `ocaffe.install_as_caffe()`, or `python -m ocaffe.as_caffe script.py [arguments]`.

It holds for processes that multiprocessing starts, by any method: the data that a new process gets before it imports the script installs the finder.
"""
from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import multiprocessing.spawn
import os
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ocaffe.errors import Error
from ocaffe.shown import command, path_word, write
from ocaffe.support.here import working_folder

PREFIX = "caffe"
_USAGE = ("script.py [arguments]", "-m module [arguments]", "-c code [arguments]")
_ROOT = str(Path(__file__).resolve().parents[1])
# For a process that is started by 'spawn' or 'forkserver'. It runs before its sys.path is that of its parent.
_INSTALL = f"""import importlib.util, sys
if importlib.util.find_spec("ocaffe") is None:
    sys.path.append({_ROOT!r})
from ocaffe.as_caffe import install_as_caffe
install_as_caffe()
"""
_PYTHON_2 = re.compile(r"^\s*(print|exec)\s+[^(=\s]|^\s*print\s*$|^\s*except\s+[\w., ()]+,\s*\w+\s*:|^\s*raise\s+\w+\s*,|\bxrange\(|<>|\.has_key\(", re.M)


def _ours(name: str) -> str:
    """Return ocaffe's module for `caffe` or `caffe.something`."""
    return "ocaffe" + name.removeprefix(PREFIX)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ocaffe's modules under the names of pycaffe's: the same module objects, not copies."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name != PREFIX and not name.startswith(f"{PREFIX}."):
            return None
        try:
            found = importlib.util.find_spec(_ours(name))
        except ModuleNotFoundError:
            found = None
        return importlib.machinery.ModuleSpec(name, self, is_package=bool(found.submodule_search_locations)) if found is not None else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(_ours(spec.name))
        spec.loader_state = module.__spec__  # the import system overwrites module.__spec__; exec_module restores it
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__ = module.__spec__.loader_state


class _Installation:
    """Installs the finder where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_INSTALL,)


def _install_in_children() -> None:
    """Add the installation to the data of processes that multiprocessing starts. A forked process has the finder already."""
    of_python = multiprocessing.spawn.get_preparation_data
    if getattr(of_python, "installs_caffe", False):
        return

    @functools.wraps(of_python)
    def with_installation(*args: Any, **settings: Any) -> dict[str, Any]:
        return {"install_as_caffe": _Installation(), **of_python(*args, **settings)}

    with_installation.installs_caffe = True  # type: ignore[attr-defined]
    multiprocessing.spawn.get_preparation_data = with_installation
    if sys.platform != "win32":
        from multiprocessing import forkserver

        server = getattr(forkserver, "_forkserver", None)
        if getattr(server, "_preload_modules", None) == ["__main__"]:  # the default: the server itself imports the script, without these data
            forkserver.set_forkserver_preload([])


def install_as_caffe() -> None:
    """Make `import caffe`, `from caffe.proto import caffe_pb2`, `import caffe.io` and so on import ocaffe, here and in processes of multiprocessing.

    Raises Error if another caffe was imported before.
    """
    import ocaffe

    present = sys.modules.get(PREFIX)
    if present is not None and present is not ocaffe:
        fact = f"another caffe was imported before, from {getattr(present, '__file__', 'somewhere')}"
        raise Error(fact, fix="call ocaffe.install_as_caffe() before the first `import caffe` of the program")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    sys.modules[PREFIX] = ocaffe
    _install_in_children()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a script, with -m a module, or with -c a text, as Python does, with ocaffe in place of caffe."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help") or args in (["-m"], ["-c"]):
        write(sys.stderr, *(f"{'usage:' if form is _USAGE[0] else '      '} python -m ocaffe.as_caffe {form}" for form in _USAGE))
        return 0 if args and args[0] not in ("-m", "-c") else 1
    install_as_caffe()
    if _ROOT not in sys.path:
        sys.path.append(_ROOT)  # ocaffe may have been found through the working directory, which the next lines replace
    if args[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *args[2:]], ""
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(args[1], "<string>", "exec"), vars(module))
        return 0
    if args[0] == "-m":
        sys.argv = args[1:]
        sys.path[0] = working_folder() or ""
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        return 0
    if not os.path.exists(args[0]):
        write(sys.stderr, f"error: {args[0]}", "  there is no such script")
        return 1
    sys.argv = args
    sys.path[0] = os.path.dirname(os.path.abspath(args[0]))
    try:
        runpy.run_path(args[0], run_name="__main__")
    except SyntaxError as problem:
        if problem.filename is None or not os.path.exists(problem.filename) or not _PYTHON_2.search(_text(problem.filename)):
            raise
        fact = f"this is Python 2: {problem.msg}"
        remedy = command("python", "-m", "fissix", "-w", path_word(problem.filename))
        fix = f"pip install fissix && {remedy}; divisions of integers need // by hand"
        write(sys.stderr, f"error: {problem.filename}:{problem.lineno}", f"  {fact}", f"  fix: {fix}")
        return 1
    return 0


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


if __name__ == "__main__":
    sys.exit(main())
