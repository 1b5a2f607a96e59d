"""ocaffe layers: list all layer types, or one with its parameters and their defaults."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.cli.flags import Parser, nearest
from ocaffe.errors import Error
from ocaffe.layers.catalogue import Entry, catalogue, markdown
from ocaffe.shown import lines_of, say
from ocaffe.support import log
from ocaffe.support.files import atomic_write


def main(argv: Sequence[str]) -> int:
    parser = Parser("layers", "List the layer types with a summary; with TYPE, show one with its parameters.")
    parser.add_argument("name", metavar="TYPE", nargs="?", default="", help="a layer type; upper and lower case are equal")
    parser.flag("type", "", "the same as TYPE")
    parser.flag("markdown", False, "print everything as the page docs/layer-types.md")
    parser.flag("write", "", "write that page to this file; it stays as it is if there is an error")
    options = parser.parse(argv)
    log.quiet()
    if options.write:
        with atomic_write(options.write) as page:
            page.write(markdown().encode())
        return 0
    if options.markdown:
        say(lines_of(markdown().rstrip("\n")))
        return 0
    entries = catalogue()
    if wanted := options.name or options.type:
        say(*_one(_find(entries, wanted)))
        return 0
    width = max(len(entry.type) for entry in entries)
    for entry in entries:
        say(f"{entry.type:<{width}}  {entry.summary}")
    say("", f"{len(entries)} types; `ocaffe layers TYPE` shows the parameters of one.")
    return 0


def _find(entries: Sequence[Entry], name: str) -> Entry:
    by_case = {entry.type.lower(): entry for entry in entries}
    if name.lower() not in by_case:
        near = nearest(name.lower(), by_case, 3)
        fix = f"did you mean {' or '.join(by_case[key].type for key in near)}?" if near else "`ocaffe layers` lists all types"
        raise Error(f"unknown layer type '{name}'", place="ocaffe layers", fix=fix)
    return by_case[name.lower()]


def _one(entry: Entry) -> list[str]:
    lines = [f"{entry.type} ({entry.origin})", f"  {entry.summary}", f"  bottoms: {entry.bottoms}, tops: {entry.tops}"]
    if entry.fields:
        width = max(len(field.name) for field in entry.fields)
        lines += ["", f"  {entry.message} {{"]
        lines += [f"    {field.name:<{width}}  {field.kind}{f' = {field.default}' if field.default else ''}" for field in entry.fields]
        lines.append("  }")
    return lines
