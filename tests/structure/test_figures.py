"""The figures find what they count."""
from __future__ import annotations

import ast

import pytest

from tests.structure.figures import _deciding, floors, launch_fields, launch_parameters, upward


@pytest.mark.parametrize(
    ("code", "decides"),
    [
        ("launch.what == PACK", True),
        ("(launch.layer, launch.what) != (last.layer, last.what)", True),
        ("call.program in FAMILIES", True),
        ("call.program.startswith('pooling')", True),
        ("{(schedule[step].layer, schedule[step].what) for step in steps}", True),
        ("launch.call.is_product", True),
        ("launch.kernel.name == 'pack'", True),
        ("table[call.function]", True),
        ("f'the kernel {launch.what}'", False),
        ("Launch(place.layer, what=place.what)", False),
        ("launch.kernel is PACK", False),
        ("ref.name == 'data'", False),
    ],
)
def test_decisions_by_a_name(code: str, decides: bool) -> None:
    assert bool([child for node in ast.walk(ast.parse(code)) for child in _deciding(node)]) == decides


def test_fields_and_parameters_are_found() -> None:
    assert {"layer", "operands", "origin"} <= set(launch_fields()["Launch"]) and "source" in launch_fields()["Upload"]
    assert {"args", "size", "defines"} <= set(launch_parameters())


def test_upward_imports_are_the_fewest() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert len(upward(graph)) == 1 and upward({**graph, "c": {"d"}}) == []
    assert floors(graph) == 2 and floors({**graph, "c": {"d"}}) == 4
