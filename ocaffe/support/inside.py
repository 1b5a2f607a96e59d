"""Files that files of others name: they must lie below a folder, and no link may lead out of it."""
from __future__ import annotations

import os

from ocaffe.errors import Error, Place
from ocaffe.shown import command
from ocaffe.support.files import check_plain
from ocaffe.support.parsing import parsing


def inside(root: str, name: str, place: Place | str) -> str:
    """Return the path of the file `name`, which is relative to `root` and lies in it. Raise Error at `place`, where it is named.

    The file may be missing. Links are not followed: `is_below` tells where they lead.
    """
    path = os.path.normpath(name.replace("\\", "/"))
    if os.path.isabs(path) or path.split(os.sep)[0] == os.pardir or not _is_name(name):
        raise Error(f"{name!r:.200} lies outside of the folder {root}", place=place, fix="move the file there, and correct the name")
    return os.path.join(root, path)


def plain_inside(root: str, name: str, place: Place | str) -> str:
    """Do the same as `inside` for a file that must exist, that no link leads out to, and that is no pipe and no device."""
    path = inside(root, name, place)
    if not is_below(root, path):
        raise leads_out(root, path, place)
    with parsing(f"{path} cannot be read", place, f"copy it to {path}, or correct its name", path):
        check_plain(path)
    return path


def is_below(root: str, path: str) -> bool:
    """Return whether a path below `root` is there too when all links are followed."""
    whole = os.path.realpath(root)
    return os.path.commonpath((whole, os.path.realpath(path))) == whole


def check_below(root: str | None, path: str) -> None:
    """Raise Error for a path below `root` that `is_below` refuses. Without `root` every path is right: the user has named it."""
    if root is not None and not is_below(root, path):
        raise leads_out(root, path, path)


def leads_out(root: str, path: str, place: Place | str) -> Error:
    """Return the error for a path that `is_below` refuses."""
    whole = os.path.realpath(root)
    fix = f"{command('cp', '-rL', whole, f'{whole}.copy')}, which makes plain files of links, and give the copy"
    return Error(f"a link in {path} leads out of the folder {root}", place=place, fix=fix)


def _is_name(name: str) -> bool:
    """Return whether a file can have the name: no zero byte, no half of a character."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False
