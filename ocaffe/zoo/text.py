"""Prototxts for people: small messages are on one line."""
from __future__ import annotations

import re
from typing import Any

from ocaffe.formats.text import write_text

# A message whose fields are no messages. Layers and their parameters keep a line for each field.
_SMALL = re.compile(r"^( *)(?!\w*_param\b|layer\b)(\w+) \{\n((?: *\w+: [^\n]*\n)*) *\}$", re.MULTILINE)


def prototxt(message: Any) -> str:
    """Return `message` in text format."""
    text = write_text(message).replace("\\'", "'")  # strings are in double quotes, and hold single ones in param_str
    return _SMALL.sub(lambda found: f"{found[1]}{found[2]} {{ {' '.join(map(str.strip, found[3].splitlines()))} }}", text)
