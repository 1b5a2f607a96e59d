"""The three upgrade tools: convert files of older Caffe formats to the current format."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ocaffe.cli.flags import Parser
from ocaffe.formats.binary import read_net_binary, write_net_binary
from ocaffe.formats.text import read_net, read_solver, write_text
from ocaffe.formats.upgrade import upgrade_net, upgrade_solver
from ocaffe.support import log
from ocaffe.support.files import atomic_write


class Kind(NamedTuple):
    """A tool: the name of its file format, and functions to read, upgrade and write it."""

    what: str
    read: Callable[[str], Any]
    upgrade: Callable[[Any, Callable[[str], None]], Any]
    write: Callable[[str, Any], None]


def _write_text(path: str, message: Any) -> None:
    with atomic_write(path) as out:
        out.write(write_text(message).encode())


KINDS = {
    "upgrade_net_proto_text": Kind("NetParameter text proto", read_net, upgrade_net, _write_text),
    "upgrade_net_proto_binary": Kind("NetParameter binary proto", read_net_binary, upgrade_net, write_net_binary),
    "upgrade_solver_proto_text": Kind("SolverParameter text proto", read_solver, upgrade_solver, _write_text),
}


def upgrade_file(command: str, argv: list[str]) -> int:
    """Run the tool `command`. IN and OUT may be the same file. Raises Error."""
    kind = KINDS[command]
    parser = Parser(command, f"Upgrade a {kind.what} to the current format.")
    parser.add_argument("source", metavar="IN", help="the file to upgrade")
    parser.add_argument("target", metavar="OUT", help="the file to write; may be the same")
    options = parser.parse(argv)
    message = kind.read(options.source)
    upgraded = kind.upgrade(message, lambda line: log.warning("upgrade_proto.cpp:1", line))
    if upgraded is message:
        log.info(f"{command}.cpp:1", f"File already in latest proto format: {options.source}")
    kind.write(options.target, upgraded)
    log.info(f"{command}.cpp:1", f"Wrote upgraded {kind.what} to {options.target}")
    return 0
