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

NAME_VARIABLES = ("USER", "LOGNAME", "LNAME", "USERNAME", "SUDO_USER")
HOST_VARIABLES = ("HOSTNAME", "HOST", "COMPUTERNAME", "USERDOMAIN")
_CHAR = r"""[^\s/\\'":;,()<>]"""  # of a name in a path
_NAME = rf"{_CHAR}+(?: +{_CHAR}+)*"  # names of folders may have spaces
# A path from a known folder, a drive, a share, or '/', with the folders in it. A quoted text may have doubled backslashes. A web address is none.
_PATH = re.compile(rf"(?:<folder>[/\\]+|(?<![\w/\\.])(?:[A-Za-z]:[/\\]+|\\\\+{_CHAR}+[/\\]+|/{_CHAR}+/+))(?:{_NAME}[/\\]+)*(?={_CHAR}*)")


class Scrubber:
    """Replaces the folders and names of this user and this machine in texts. Of a path only the last name stays: <folder>/NAME."""

    def __init__(self) -> None:
        self._folders = [re.compile(_either_slash(folder), re.IGNORECASE) for folder in _folders()]
        self._names = [(re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.IGNORECASE), f"<{word}>") for name, word in _names()]

    def text(self, text: str) -> str:
        for folder in self._folders:
            text = folder.sub("<folder>", text)
        text = _PATH.sub("<folder>/", text)
        for pattern, word in self._names:
            text = pattern.sub(word, text)
        return text

    def value(self, value: Any) -> Any:
        """Return a value of JSON with all its texts replaced. The keys of a report are fixed words and stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.value(each) for key, each in value.items()}
        return [self.value(each) for each in value] if isinstance(value, (list, tuple)) else value


def _either_slash(folder: str) -> str:
    """Return the pattern of a folder, also with the slashes of Windows, single or as a quoted text doubles them. A name must end there."""
    return r"[/\\]+".join(re.escape(part) for part in re.split(r"[/\\]+", folder)) + r"(?![A-Za-z0-9_.-])"


def _folders() -> Iterator[str]:
    """Yield the folders whose names may have spaces, where a pattern of paths would end. The longest come first, because one may be in another."""
    found = {os.path.expanduser("~"), os.getcwd(), sys.prefix, sys.base_prefix, tempfile.gettempdir(), str(Path(__file__).parents[2]), str(cache_root() or "")}
    found |= {os.path.realpath(folder) for folder in found if folder}
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
