"""No fusion is lost silently: launches and fusions of the zoo's nets on each device class equal the committed counts (tests/zoo/counts.json)."""
from __future__ import annotations

import json

import pytest

from tests.zoo.counts import FILE, TARGETS, cases, counted

COUNTS = json.loads(FILE.read_text())


def test_every_net_is_counted() -> None:
    assert COUNTS.keys() == {" ".join(case) for case in cases()}


@pytest.mark.parametrize(("net", "phase", "name"), list(cases()))
def test_counts(net: str, phase: str, name: str) -> None:
    assert counted(net, phase, TARGETS[name]) == COUNTS[f"{net} {phase} {name}"], "if this is meant: `python -m tests.zoo.counts`, and say why in the commit"


def test_fusions_of_resnet50_on_a_gpu() -> None:
    """The counts would show a lost fusion; this names those that a renamed local variable once lost."""
    assert COUNTS["resnet50 TRAIN H100"]["fusions"]["statistics"] == 53
