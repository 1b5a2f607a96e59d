"""ocaffe install-links DIR: write scripts with the names of Caffe's programs, so that old shell scripts work."""
from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.files import atomic_write

LINKS = {  # name of Caffe's program: the command that replaces it; '' is the program with actions
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


def main(argv: Sequence[str]) -> int:
    parser = Parser("install-links", f"Make {', '.join(LINKS)} in a folder, for scripts that call Caffe's programs.")
    parser.add_argument("folder", metavar="DIR", help="the folder, for example ~/bin or build/tools; created if it does not exist")
    parser.flag("force", False, "replace other files with these names")
    options = parser.parse(argv)
    folder = os.path.expanduser(options.folder)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as problem:
        raise Error(f"cannot be made: {problem.strerror}", place=folder, fix="another folder") from None
    paths = {name: os.path.join(folder, name) for name in LINKS}
    foreign = [path for path in paths.values() if os.path.lexists(path) and not _ours(path)]
    if foreign and not options.force:
        raise Error(f"{', '.join(foreign)}: something else has this name", place="ocaffe install-links", fix="another folder, or --force")
    for name, command in LINKS.items():
        _install(paths[name], command)
    print(f"{len(LINKS)} programs in {folder}" + ("" if _on_path(folder) else f'; to find them: export PATH="{os.path.abspath(folder)}:$PATH"'))
    return 0


def _install(path: str, command: str) -> None:
    if os.path.islink(path):  # with --force: remove the link, not its target
        os.unlink(path)
    arguments = f"[{command!r}, *sys.argv[1:]]" if command else ""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    text = _SCRIPT.format(python=sys.executable, mark=_MARK, root=root, arguments=arguments)
    with atomic_write(path) as out:
        out.write(text.encode())
    os.chmod(path, 0o755)
    if os.name == "nt":
        with atomic_write(f"{os.path.splitext(path)[0]}.cmd") as out:
            out.write(f'@"{sys.executable}" "{os.path.abspath(path)}" %*\r\n'.encode())


def _ours(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return _MARK.encode() in stream.read(4096)
    except OSError:
        return False


def _on_path(folder: str) -> bool:
    return os.path.abspath(folder) in (os.path.abspath(entry) for entry in os.environ.get("PATH", "").split(os.pathsep))
