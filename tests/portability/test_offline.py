"""tests/portability/offline.json has all devices with all nets, and their programs compile, without scratch, large spills, or products at occupancy 1."""
from __future__ import annotations

import json

import pytest

from ocaffe.kernels.matmul.families import family_of
from tests.portability.corpus import NETS, SELFTEST
from tests.portability.devices import DEVICES
from tests.portability.offline import LABELS, RECORD, SPILLS

COMPILED = [name for name, device in DEVICES.items() if device.compiler]
RESULTS = json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("imitated", COMPILED)
def test_programs_of_ten_nets(imitated: str) -> None:
    row, (target, maker, _) = RESULTS[LABELS[0]][imitated], DEVICES[imitated]
    assert len(NETS) == 10 and row["nets"] == ",".join((*NETS, SELFTEST)), "run tests/portability/offline.py again"
    assert (row["maker"], row["family"]) == (maker, family_of(target).name)
    assert (row["errors"], row["low"]) == (0, 0) and row["worst"] <= SPILLS[maker] and row["programs"] > 150
    assert sum(row["occupancy" if maker == "amd" else "width"].values()) == row["products"]
