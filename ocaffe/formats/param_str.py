"""The settings of Python layers in python_param { param_str }, as py-faster-rcnn writes them: a flat YAML mapping, with or without braces."""
from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from ocaffe.errors import Error

# One `'key': value` and the separator after it. Lists may have YAML's tag !!python/tuple.
_ENTRY = re.compile(r"""['"]?(\w+)['"]?\s*:\s*(?:!!\S+\s*)?(\[[^\]]*\]|\([^)]*\)|'[^'\n]*'|"[^"\n]*"|[^,\n}]+?)[ \t]*(?:[,\n]\s*|$)""")


def read_settings(text: str) -> dict[str, Any]:
    """Return the values by their keys in lower case. Tuples become lists. Raises Error without a place."""
    rest = re.sub(r"#.*", "", text).strip()
    if rest[:1] == "{" and rest[-1:] == "}":
        rest = rest[1:-1].strip()
    found = {}
    while rest:
        match = _ENTRY.match(rest)
        try:
            assert match is not None
            found[match[1].lower()] = read_value(match[2])
        except (AssertionError, ValueError, SyntaxError, MemoryError, RecursionError):  # the last two for thousands of signs
            fix = "write 'key': value, with a comma or a new line between two, and lists in [ ]"
            raise Error(f"param_str cannot be read at {rest[:30]!r}", fix=fix) from None
        rest = rest[match.end() :]
    return found


def read_value(text: str) -> Any:
    """Return a number, a text in quotes, a truth value, or a list. Raises ValueError or SyntaxError for others."""
    word = text.strip()
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    value = ast.literal_eval(word)
    return list(value) if isinstance(value, tuple) else value


def settings_text(values: Mapping[str, Any]) -> str:
    """Return the text of a param_str with these values."""
    return ", ".join(f"'{key}': {value!r}" for key, value in values.items())


def with_settings(text: str, values: Mapping[str, Any]) -> str:
    """Return a param_str with `values` in the place of its own. Raises Error without a place."""
    return settings_text({**read_settings(text), **values})
