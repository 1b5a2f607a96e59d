"""The position of a Ref in its root."""
from __future__ import annotations

import pytest

from ocaffe.ir.tensor import Ref, Role

pytestmark = pytest.mark.quick


def part(shape: tuple[int, ...], offset: int, stride: int | None = None) -> Ref:
    return ROOT.view(shape, offset, stride)


ROOT = Ref("root", (4, 6, 5), Role.ACTIVATION)
CHANNELS = part((4, 2, 5), 10, 30)  # channels 2 and 3 of each sample: elements 10 to 110


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        (ROOT, ROOT, True),
        (part((10,), 0), part((10,), 10), False),
        (part((11,), 0), part((10,), 10), True),
        (part((), 7), part((2,), 6), True),
        (part((), 7), part((2,), 8), False),
        (CHANNELS, part((10,), 0), False),
        (CHANNELS, part((10,), 110), False),
        (CHANNELS, part((1,), 109), True),
        (CHANNELS.view((2,), 0), part((1,), 109), True),  # not samples of the strided view, so its whole extent counts
        (ROOT, Ref("other", (4, 6, 5), Role.ACTIVATION), False),
    ],
)
def test_overlaps(one: Ref, other: Ref, meet: bool) -> None:
    assert one.overlaps(other) == other.overlaps(one) == meet
