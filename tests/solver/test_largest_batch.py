"""The search for the largest batch that fits (`--batch auto`): few plans, and no batch that does not fit."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ocaffe.errors import Error
from ocaffe.ir.target import Target
from ocaffe.solver.largest_batch import CONTEXT, HOST_SHARE, SHARE, largest_batch, room

pytestmark = pytest.mark.quick

PLANS: dict[str, Callable[[int], int]] = {
    "in proportion": lambda batch: 1000 * batch,
    "with parameters": lambda batch: 500_000 + 1000 * batch,
    "in steps": lambda batch: 300_000 + 1000 * (-(-batch // 8) * 8),
    "another algorithm for large batches": lambda batch: 1000 * batch if batch < 300 else 600 * batch + 150_000,
    "a workspace for few images": lambda batch: 700 * batch + max(0, 200_000 - 5000 * batch),
    "no growth up to 100": lambda batch: 400_000 + 1000 * max(0, batch - 100),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("allowed", [501_000, 520_000, 777_777, 1_500_000, 40_000_000])
@pytest.mark.parametrize("most", [3, 64, 1000, 1 << 20])
def test_the_largest_batch_is_found(name: str, allowed: int, most: int) -> None:
    plans, asked = PLANS[name], list[int]()

    def planned(batch: int) -> int:
        asked.append(batch)
        return plans(batch)

    found = largest_batch(planned, allowed, most)
    assert plans(found.batch) == found.bytes <= allowed and found.whole == (found.batch == most)
    assert found.batch == most or plans(int(found.batch * 1.05) + 1) > allowed
    assert len(asked) <= 20 and len(set(asked)) == len(asked)


def test_batches_that_no_net_can_have() -> None:
    def planned(batch: int) -> int:
        if batch > 50:
            raise Error("a blob has too many values")
        return batch

    assert 49 <= largest_batch(planned, 1 << 40, 1000).batch <= 50
    with pytest.raises(Error, match="too many values"):
        largest_batch(lambda batch: planned(batch + 50), 1 << 40, 1000)
    with pytest.raises(Error, match=r"a training with one image takes 2.0 MiB of 1.0 MiB"):
        largest_batch(lambda batch: 2 << 20, 1 << 20, 1000)


def test_room() -> None:
    cpu = Target(free_memory=1 << 30, global_memory=1 << 40)
    gpu = replace(cpu, kind="gpu", unified_memory=False)
    assert room(cpu, None) == int((1 << 30) * HOST_SHARE) and room(cpu, 5 << 20) == 5 << 20
    assert room(gpu, None) == int((1 << 30) * SHARE) - CONTEXT and room(gpu, None, 100) == int((1 << 30) * SHARE) - 100
