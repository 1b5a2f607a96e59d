"""A rule for each ONNX operator, which adds the equivalent Caffe layers. `rules` imports all modules here to fill the table."""
from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

from ocaffe.convert.importer.builder import Builder
from ocaffe.convert.importer.graph import Node

Rule = Callable[[Builder, Node], None]
_RULES: dict[str, Rule] = {}


def operator(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of these operators."""

    def add(rule: Rule) -> Rule:
        for name in names:
            assert name not in _RULES, f"operator {name} has two rules"
            _RULES[name] = rule
        return rule

    return add


@functools.cache
def rules() -> dict[str, Rule]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _RULES
