"""benchmarks/matrix_units.json has every product on matrix units, and all are in order."""
from __future__ import annotations

import json

import pytest

from ocaffe.ir.matrix_units import UNITS
from tests.portability.matrix_units import DEVICES, RESULT, predicted, products, wrong

ROWS = json.loads(RESULT.read_text(encoding="utf-8"))


def test_every_unit_has_a_device() -> None:
    assert set(DEVICES.values()) == set(UNITS)


@pytest.mark.parametrize("card", DEVICES)
def test_results_are_complete(card: str) -> None:
    unit = DEVICES[card]
    want = {(p.math, f"{p.tile.rows} x {p.tile.columns}", p.call.function, predicted(unit, p)) for p in products(unit)}
    own = [row for row in ROWS if row["device"] == card]
    assert {(row["math"], row["tile"], row["kernel"], row["predicted"]) for row in own} == want, f"run `python -m tests.portability.matrix_units {card}`"
    assert not list(filter(wrong, own))
