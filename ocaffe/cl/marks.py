"""Marks of names in kernel files, by which a program can be one of several routines of a text (docs/kernels.md, "Task graphs on CPUs").

A file writes ENTRY(name) where it defines a kernel, and OWN(name) where it defines another function, a type, a table or an enumerator. They are expanded
here and not by the device's compiler. So a program on its own has the text that it would have without marks, and caches of built programs stay valid.
"""
from __future__ import annotations

import re

_MARK = re.compile(r"\b(?:ENTRY|OWN)\((\w+)\)")
_ENTRY = re.compile(r"\bENTRY\((\w+)\)\(")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)


def unmarked(text: str) -> str:
    """Return a text with its names in place of the marks."""
    return _MARK.sub(r"\1", text)


def as_routine(text: str, prefix: str) -> str:
    """Return a text whose marked names get a prefix, and whose kernels get their work-item as an argument (kernels/common/part.h). Its macros end with it."""
    macros, names = ([f"#undef {name}" for name in sorted(set(each.findall(text)))] for each in (_MACRO, _MARK))
    defines = [f"#define {name} {prefix}{name}" for name in sorted(set(_MARK.findall(text)))]
    return "\n".join([*macros, *defines, unmarked(_ENTRY.sub(r"\1(WORK_ITEM, ", text)), *names, *macros])
