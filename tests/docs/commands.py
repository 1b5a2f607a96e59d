"""The commands of a page: its `sh` blocks."""
from __future__ import annotations

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(page: pathlib.Path) -> list[str]:
    """Return the blocks of commands in their order."""
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: pathlib.Path) -> list[str]:
    """Return the single commands, without comments. A line that ends with a backslash continues on the next one."""
    lines = "".join(blocks(page)).replace("\\\n", " ").split("\n")
    return [command for line in lines if (command := re.sub(r"(^|\s+)#.*", "", line).strip())]
