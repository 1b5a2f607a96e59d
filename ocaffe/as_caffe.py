"""Makes `import caffe` import ocaffe: `ocaffe.install_as_caffe()`, or `python -m ocaffe.as_caffe script.py [arguments]`."""
from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType

from ocaffe.errors import Error
from ocaffe.shown import command, path_word, write

PREFIX = "caffe"
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


def install_as_caffe() -> None:
    """Make `import caffe`, `from caffe.proto import caffe_pb2`, `import caffe.io` and so on import ocaffe.

    Raises Error if another caffe was imported before.
    """
    import ocaffe

    present = sys.modules.get(PREFIX)
    if present is not None and present is not ocaffe:
        raise Error(f"another caffe was imported before, from {getattr(present, '__file__', 'somewhere')}", fix="call install_as_caffe() earlier")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    sys.modules[PREFIX] = ocaffe


def main(argv: Sequence[str] | None = None) -> int:
    """Run a script, or with -m a module, as Python does, with ocaffe in place of caffe."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help") or args == ["-m"]:
        write(sys.stderr, "usage: python -m ocaffe.as_caffe script.py [arguments]", "       python -m ocaffe.as_caffe -m module [arguments]")
        return 0 if args and args[0] != "-m" else 1
    install_as_caffe()
    if args[0] == "-m":
        sys.argv = args[1:]
        sys.path[0] = os.getcwd()
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
