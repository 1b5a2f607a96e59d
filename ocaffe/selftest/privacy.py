"""Removes from a report everything that names the user or the machine: folders, the user's names, the name of the host."""
from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ocaffe.support.cache import cache_root
from ocaffe.support.here import real, working_folder

NAME_VARIABLES = ("USER", "LOGNAME", "LNAME", "USERNAME", "SUDO_USER")
HOST_VARIABLES = ("HOSTNAME", "HOST", "COMPUTERNAME", "USERDOMAIN")
_SLASH = r"(?:[/\\]|%2[Ff]|%5[Cc]){1,9}"  # few, or else long texts take long; also as web addresses and quoted texts have it
_PLAIN = r"""(?!%2[Ff]|%5[Cc])[^\s/\\'":;,()<>]"""  # a character of a name
_INNER = r"""(?<=\S)['",;()<>](?=[^\s'",;()<>:])"""  # within a name; at its end it belongs to the text
_CHAR = rf"""(?:{_PLAIN}|{_INNER}|\\[ '"(),&])"""  # a shell escapes some
_NAME = rf"{_CHAR}+(?: +{_CHAR}+)*"  # names of folders may have spaces
_FREE = r"(?<![\w/\\.])"  # what is before is no part of the path
_COLON = "(?::|%3[Aa])"
_BEGIN = "|".join((  # of a path with folders in it
    rf"<folder>{_SLASH}", rf"file{_COLON}{_SLASH}", rf"{_FREE}[A-Za-z]{_COLON}{_SLASH}",
    rf"(?<![\w/\\.:])(?://+|\\\\+){_CHAR}+{_SLASH}",  # a share. A web address is none
    rf"(?:{_FREE}|(?<=-[A-Za-z]))(?:\\?/|%2[Ff]){_CHAR}+{_SLASH}",  # also after a flag of a compiler
    rf"{_FREE}(?:\.{{1,2}}|~\w*|\$\w+|\${{\w+}}|%\w+%){_SLASH}",  # of the working directory, the home, a variable
))  # fmt: skip
_PATH = re.compile(rf"(?:{_BEGIN})(?:{_NAME}{_SLASH})*(?P<last>{_CHAR}*)")
# A relative path without dots may be a fraction, such as a/b. It is a path if a file with an extension is at its end.
_RELATIVE = re.compile(
    rf"(?:(?<![\w/\\.<>%-])(?!docs/)(?:[\w.+@-]+{_SLASH})+|(?<=[\"'])(?!docs/)(?:[\w.+@ -]+{_SLASH})+)(?=[\w.+@-]*\.[A-Za-z]\w*)"
)
_BREAK = r"(?:\\?\r?\n\s*)?"  # where a line ends within a path


class Scrubber:
    """Replaces the folders and names of this user and this machine in texts. Of a path only the name of a file stays: <folder>/NAME."""

    def __init__(self) -> None:
        self._folders = [re.compile(_any_spelling(folder), re.IGNORECASE) for folder in _folders()]
        self._names = [(re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.IGNORECASE), f"<{word}>") for name, word in _names()]

    def text(self, text: str) -> str:
        for folder in self._folders:
            text = folder.sub("<folder>", text)
        text = _PATH.sub(_file_alone, text)
        text = _RELATIVE.sub("<folder>/", text)
        for pattern, word in self._names:
            text = pattern.sub(word, text)
        return text

    def value(self, value: Any) -> Any:
        """Return a value of JSON with all its texts replaced. The keys of a report are fixed words and stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.value(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)) and value and all(isinstance(each, str) and "\n" not in each for each in value):
            lines = self.text("\n".join(value)).split("\n")  # a path may be divided between two lines
            return lines if len(lines) == len(value) else [self.text(each) for each in value]
        return [self.value(each) for each in value] if isinstance(value, (list, tuple)) else value


def _file_alone(found: re.Match[str]) -> str:
    """Return a path without its folders. Its last name is that of a file if it has an extension, or if the system knows such a file."""
    last = found["last"]
    if not last:
        return "<folder>/"
    try:
        known = os.path.exists(found[0]) and not os.path.isdir(found[0])
        folder = os.path.isdir(found[0])
    except ValueError:  # a zero byte
        known = folder = False
    return f"<folder>/{last}" if known or (re.search(r"\.[A-Za-z0-9]", last) and not folder) else "<folder>"


def _any_spelling(folder: str) -> str:
    """Return the pattern of a folder: with the slashes of Windows, single or as a quoted text doubles them, with characters as %XX, with escapes of a
    shell, and divided between lines. A name must end there."""
    names = [_BREAK.join(map(_character, part)) for part in re.split(r"[/\\]+", folder)]
    return rf"{_BREAK}{_SLASH}{_BREAK}".join(names) + r"(?![A-Za-z0-9_.-])"


def _character(character: str) -> str:
    encoded = "".join(f"%{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
    return rf"(?:\\?{re.escape(character)}|{encoded})"


def _folders() -> Iterator[str]:
    """Yield the folders whose names may have spaces, where a pattern of paths would end. The longest come first, because one may be in another."""
    named = os.path.expanduser("~"), working_folder() or "", sys.prefix, sys.base_prefix, tempfile.gettempdir(), str(Path(__file__).parents[2])
    found = {*named, str(cache_root() or "")}
    found |= {real(folder) for folder in found if folder}
    yield from sorted((folder for folder in found if len(folder.strip("/\\")) > 1), key=len, reverse=True)


def _names() -> Iterator[tuple[str, str]]:
    """Yield names of the user and of the host with the word for each, the longest first."""
    users = {*(os.environ.get(name, "") for name in NAME_VARIABLES), os.path.basename(os.path.expanduser("~")), *_account()}
    hosts = {*(os.environ.get(name, "") for name in HOST_VARIABLES), socket.gethostname(), platform.node()}
    hosts |= {host.split(".")[0] for host in hosts}
    found = {**dict.fromkeys(hosts, "host"), **dict.fromkeys(users, "user")}
    yield from sorted(((name, word) for name, word in found.items() if len(name) > 1), key=lambda pair: -len(pair[0]))


def _account() -> Iterator[str]:
    """Yield the name of the account and the full name that belongs to it, as far as the system has them."""
    try:
        yield getpass.getuser()
        import pwd

        account = pwd.getpwuid(os.getuid())
        yield account.pw_name
        yield account.pw_gecos.split(",")[0]
    except (ImportError, KeyError, OSError):  # Windows has no pwd; a container may have a user without an account
        return
