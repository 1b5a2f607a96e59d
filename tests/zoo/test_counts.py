"""No fusion is lost silently: launches and fusions of every zoo net and device class equal the committed counts (tests/zoo/counts.json)."""
from __future__ import annotations

import json

import pytest

from tests.zoo.counts import FILE, TARGETS, counted, nets

COUNTS = json.loads(FILE.read_text())


def test_every_net_is_counted() -> None:
    assert COUNTS.keys() == {f"{net} {phase} {name}" for net in nets() for phase in ("TRAIN", "TEST") for name in TARGETS}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
@pytest.mark.parametrize("net", nets())
def test_counts(net: str, phase: str, name: str) -> None:
    assert counted(net, phase, TARGETS[name]) == COUNTS[f"{net} {phase} {name}"], "if this is meant: `python -m tests.zoo.counts`, and say why in the commit"


def test_fusions_of_resnet50_on_a_gpu() -> None:
    """The counts would show a lost fusion; this names those that a renamed local variable once lost."""
    assert COUNTS["resnet50 TRAIN H100"]["fusions"]["statistics"] == 53
