"""ocaffe install-links: write scripts with the names of Caffe's programs, so that old shell scripts work, and a package `caffe` for Python scripts."""
from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import PathFinder

from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.shown import command, say
from ocaffe.support.files import atomic_write, open_plain, to_write
from ocaffe.support.here import absolute, working_folder

LINKS = {  # name of Caffe's program: the command that replaces it, with a flag; '' is the program with actions
    "caffe": "",
    "caffe.bin": "",
    "convert_imageset": "convert_imageset",
    "compute_image_mean": "compute_image_mean",
    "extract_features": "extract_features",
    "upgrade_net_proto_text": "upgrade_net_proto_text",
    "upgrade_net_proto_binary": "upgrade_net_proto_binary",
    "upgrade_solver_proto_text": "upgrade_solver_proto_text",
    "convert_annoset": "convert_annoset",
    "create_label_map": "create_label_map",
    "classify.py": "classify",
    "detect.py": "detect",
    "draw_net.py": "draw_net",
    "parse_log.py": "parse_log",
    "parse_log.sh": "parse_log --tables",
    "plot_training_log.py": "plot --chart",
}
_MARK = "# made by `ocaffe install-links`"
_SCRIPT = """#!{python}
{mark}
import sys

sys.path.append({root!r})

from ocaffe.cli import main

if __name__ == "__main__":
    sys.exit(main({arguments}))
"""
_PACKAGE = """{mark}
import sys

sys.path.append({root!r})

import ocaffe

del sys.modules["caffe"]  # this file; from here on the name is ocaffe's
ocaffe.install_as_caffe()
"""


def main(argv: Sequence[str]) -> int:
    parser = Parser("install-links", f"Make Caffe's programs callable by their names in a folder. It gets {', '.join(LINKS)}.")
    parser.add_argument("folder", metavar="DIR", nargs="?", help="the folder, for example ~/bin or build/tools; created if it does not exist")
    parser.flag("python", False, "make a package caffe in this Python environment, so that `import caffe` imports ocaffe")
    parser.flag("remove", False, "remove what an earlier call made: the programs in DIR, with --python the package")
    parser.flag("force", False, "replace other files with these names")
    options = parser.parse(argv)
    if not options.folder and not options.python:
        raise Error("neither DIR nor --python is given", place="ocaffe install-links", fix="ocaffe install-links ~/bin, or ocaffe install-links --python")
    folder = os.path.expanduser(options.folder or "")
    if options.remove:
        if options.python:
            _remove_package()
        if folder:
            _remove_programs(folder)
        return 0
    if options.python:
        _install_package()
    if folder:
        _install_programs(folder, options.force)
    return 0


def _install_package() -> None:
    """Write the package `caffe` into the environment of this Python. Raise Error if another one is there."""
    folder = _package()
    init = os.path.join(folder, "__init__.py")
    found = PathFinder.find_spec("caffe", [path for path in sys.path if path not in ("", working_folder())])
    other = found.origin if found is not None else None  # None: a folder without __init__.py, such as Caffe's own checkout
    if other is not None and not _ours(other):
        raise Error("another package caffe is in this environment", place=other, fix="remove it, or make a new environment: python -m venv DIR")
    try:
        os.makedirs(folder, exist_ok=True)
        with atomic_write(init) as out:
            out.write(_PACKAGE.format(mark=_MARK, root=_root()).encode())
    except (OSError, Error) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem.fact
        fix = "make an environment of your own: python -m venv DIR; or run scripts by python -m ocaffe.as_caffe script.py"
        raise Error(f"the package caffe cannot be written: {reason}", place=folder, fix=fix) from None
    say(f"`import caffe` imports ocaffe now, by {folder}; `ocaffe install-links --python --remove` removes it")


def _remove_package() -> None:
    folder = _package()
    if not _ours(os.path.join(folder, "__init__.py")):
        raise Error("there is no package caffe of `ocaffe install-links`", place=folder, fix="nothing needs to be removed")
    try:
        os.unlink(os.path.join(folder, "__init__.py"))
    except OSError as problem:
        raise Error(f"the package cannot be removed: {problem.strerror}", place=folder, fix=f"remove it as its owner: {command('rm', '-r', folder)}") from None
    shutil.rmtree(os.path.join(folder, "__pycache__"), ignore_errors=True)
    with contextlib.suppress(OSError):  # other files are the user's
        os.rmdir(folder)
    say(f"removed {folder}")


def _package() -> str:
    return os.path.join(sysconfig.get_path("purelib"), "caffe")


def _root() -> str:
    """Return the folder of the package ocaffe."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _remove_programs(folder: str) -> None:
    made = [path for name in LINKS if _ours(path := os.path.join(folder, name))]
    for path in made:
        os.unlink(path)
        if os.name == "nt":
            os.unlink(f"{os.path.splitext(path)[0]}.cmd")
    say(f"removed {len(made)} programs from {folder}")


def _install_programs(folder: str, force: bool) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as problem:
        raise Error(f"cannot be made: {problem.strerror}", place=folder, fix=to_write(folder, problem)) from None
    paths = {name: os.path.join(folder, name) for name in LINKS}
    foreign = [path for path in paths.values() if os.path.lexists(path) and not _ours(path)]
    if foreign and not force:
        fact = f"{', '.join(foreign)}: something else has this name"
        raise Error(fact, place="ocaffe install-links", fix="choose another folder, or replace them by --force")
    for name, started in LINKS.items():
        _install(paths[name], started)
    say(f"{len(LINKS)} programs in {folder}" + ("" if _on_path(folder) else f"; to find them: export PATH={command(os.path.abspath(folder))}:\"$PATH\""))


def _install(path: str, command: str) -> None:
    if os.path.islink(path):  # with --force: remove the link, not its target
        os.unlink(path)
    arguments = f"[*{command.split()!r}, *sys.argv[1:]]" if command else ""
    text = _SCRIPT.format(python=sys.executable, mark=_MARK, root=_root(), arguments=arguments)
    with atomic_write(path) as out:
        out.write(text.encode())
    os.chmod(path, 0o755)
    if os.name == "nt":
        with atomic_write(f"{os.path.splitext(path)[0]}.cmd") as out:
            out.write(f'@"{_batch(sys.executable)}" "{_batch(os.path.abspath(path))}" %*\r\n'.encode())


def _ours(path: str) -> bool:
    try:
        with open_plain(path) as stream:
            return _MARK.encode() in stream.read(4096)
    except OSError:
        return False


def _on_path(folder: str) -> bool:
    return absolute(folder) in (absolute(entry) for entry in os.environ.get("PATH", "").split(os.pathsep))


def _batch(path: str) -> str:
    """Return a path in quotation marks of a .cmd file, where a percent sign begins a variable."""
    return path.replace("%", "%%")
