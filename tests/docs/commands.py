"""The commands of a page: the lines of its `sh` blocks, without comments."""
from __future__ import annotations

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def commands(page: pathlib.Path) -> list[str]:
    """Return the commands of a page in their order. A line that ends with a backslash continues on the next one."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").split("\n")
    return [command for line in lines if (command := re.sub(r"(^|\s+)#.*", "", line).strip())]
