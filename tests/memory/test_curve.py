"""The curve of step time against memory, on invented plans: no net is compiled."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from ocaffe.cli.flags import memory_limit
from ocaffe.memory import curve
from ocaffe.memory.curve import Curve, Plans, Point, front, knee, limit_text, rounded, smallest_within, table, trace
from ocaffe.memory.curve_picture import curve_section

pytestmark = pytest.mark.quick
MIB = 1 << 20


def point(size: int, seconds: float, limit: int | None = None, kept: bool = True, host: int = 0) -> Point:
    return Point(limit, kept, size, host, seconds, 3, 1, True)


class Invented:
    """Plans of a training that takes `free` bytes without a limit and at least `least`. `cost`: more time with so many bytes, as a share."""

    def __init__(self, free: int, least: int, cost: Callable[[float], float], fill: float = 1.0) -> None:
        self.free, self.least, self.cost, self.fill, self.made = free, least, cost, fill, list[int]()

    def __call__(self, limit: int | None) -> Point:
        if limit is None:
            return point(self.free, 1.0)
        self.made.append(limit)
        size = max(self.least, int(self.fill * limit))
        return point(size, 1 + self.cost(size), limit, size <= limit)


def hyperbola(free: int) -> Callable[[float], float]:
    return lambda size: 0.02 * (free / size - 1)


@pytest.mark.parametrize(("free", "least"), [(5000 * MIB, 1700 * MIB), (90 * MIB, 50 * MIB), (9_000_000, 6_100_000), (40 * MIB, MIB), (4000, 1000)])
@pytest.mark.parametrize("fill", [1.0, 0.93])
def test_the_curve_reaches_from_no_limit_to_the_smallest_plan(free: int, least: int, fill: float) -> None:
    plans = Invented(free, least, hyperbola(free), fill)
    points = trace(plans)
    assert points[0] == plans(None) and all(point.kept for point in points)
    assert least <= points[-1].bytes <= least + 1024
    assert 8 <= len(points) <= 24 or free < 100_000  # below that, whole KiB are too coarse
    assert len(plans.made) <= 26
    for larger, smaller in itertools.pairwise(points):
        assert smaller.bytes < larger.bytes and smaller.seconds > larger.seconds
    assert trace(Invented(free, least, hyperbola(free), fill)) == points


def test_plans_that_another_one_beats_are_left_out() -> None:
    free = point(100, 1.0)
    dear, same, good, refused = point(80, 1.5), point(60, 1.3), point(60, 1.2), point(10, 1.0, kept=False)
    assert front([free, dear, refused, good, same]) == [free, good]
    assert front([point(100, 2.0), good]) == [point(100, 2.0), good]  # the plan without a limit stays, because all others are compared with it


def test_a_net_that_cannot_shrink_is_one_point() -> None:
    for plans in (Invented(5 * MIB, 5 * MIB, hyperbola(5 * MIB)), Invented(0, 0, lambda size: 0.0)):
        assert trace(plans) == [plans(None)] and knee(trace(plans)) is None
        assert smallest_within(plans, 0.5) == plans(None)
        assert list(table(Curve("batch 4", 4, trace(plans))))[-1].startswith("no smaller memory is possible")


def test_the_smallest_plan_is_found_although_the_refused_one_is_smaller() -> None:
    """The limit of the smallest plan that a refusal names may be refused, too."""

    def plans(limit: int | None) -> Point:
        if limit is None:
            return point(100 * MIB, 1.0)
        return point(60 * MIB, 1.4, limit, kept=False) if limit < 70 * MIB else point(limit, 1 + (100 * MIB - limit) / (100 * MIB), limit)

    assert 70 * MIB <= trace(plans)[-1].bytes <= curve.TOLERANCE * 71 * MIB


@pytest.mark.parametrize(("costs", "expected"), [
    ([0.0, 0.01, 0.02, 0.04, 0.5, 1.0], 3),  # of 100, 80, 60, 40, 30, 20 bytes
    ([0.0, 0.25, 0.5, 0.75, 0.875, 1.0], None),  # all on the chord
    ([0.0, 0.9, 0.95, 0.96, 0.98, 1.0], None),  # all above it
    ([0.0, 0.0, 0.0, 0.0, 0.0, 0.0], None),
])  # fmt: skip
def test_the_knee_is_farthest_below_the_chord(costs: list[float], expected: int | None) -> None:
    points = [point(size, 1 + cost) for size, cost in zip((100, 80, 60, 40, 30, 20), costs)]
    for scale, more in ((1, 1.0), (MIB, 1e-3)):  # whatever the units are
        scaled = [each._replace(bytes=scale * each.bytes, seconds=more * each.seconds) for each in points]
        assert knee(scaled) == (None if expected is None else scaled[expected])
    assert knee(points[:1]) is None and knee([points[0], points[-1]]) is None


@pytest.mark.parametrize("slowdown", [0.0, 0.01, 0.05, 0.1, 0.3, 5.0])
@pytest.mark.parametrize(("free", "least"), [(5000 * MIB, 1700 * MIB), (90 * MIB, 20 * MIB), (9_000_000, 6_100_000)])
def test_the_smallest_limit_for_a_slowdown_is_found_within_a_few_per_cent(slowdown: float, free: int, least: int) -> None:
    cost = hyperbola(free)
    plans = Invented(free, least, cost)
    found = smallest_within(plans, slowdown)
    best = min(size for size in range(least, free + 1, 4096) if cost(size) <= slowdown or size + 4096 > free)
    assert found.slowdown(plans(None)) <= slowdown and found.kept
    assert found.bytes <= max(curve.TOLERANCE * best, best + MIB)
    assert len(plans.made) <= 25
    assert found.limit is None or plans(found.limit) == found  # the limit makes this plan again


def test_one_dear_limit_does_not_end_the_search() -> None:
    """Time is not monotone: of ResNet-50's plans on a GPU, the one for 1934 MiB is faster than the one for 2411 MiB."""
    plans = Invented(1000 * MIB, 300 * MIB, lambda size: 0.2 if 750 * MIB < size < 900 * MIB else 0.05 if size > 500 * MIB else 0.5)
    found = smallest_within(plans, 0.1)
    assert 500 * MIB < found.bytes <= 512 * MIB


def test_a_search_that_is_stopped_returns_what_it_has() -> None:
    plans = Invented(1000 * MIB, 300 * MIB, hyperbola(1000 * MIB))
    assert smallest_within(plans, 1.0, lambda: True).limit is None
    assert smallest_within(plans, 1.0, lambda: len(plans.made) > 1).bytes == rounded(0.85 * 850 * MIB)


@pytest.mark.parametrize("limit", [812 << 10, 1432 * MIB, 64 * MIB, 3 * MIB, 12345])
def test_limits_can_be_typed(limit: int) -> None:
    assert memory_limit(limit_text(limit)) == limit


def test_rounded_limits() -> None:
    assert rounded(100.5 * MIB) == 100 * MIB and rounded(100.5 * MIB, up=True) == 101 * MIB
    assert rounded(10_000) == 9216 and rounded(10_000, up=True) == 10_240 and rounded(500) == 0
    assert all(memory_limit(limit_text(rounded(size))) == rounded(size) for size in (5e9, 7e7, 1e6))


def test_table() -> None:
    plans: Plans = Invented(1000 * MIB, 300 * MIB, hyperbola(1000 * MIB))
    points = trace(plans)
    text = list(table(Curve("batch 8", 8, points)))
    assert text[0].split() == ["--memory-limit", "memory", "step", "image", "more", "time", "recomputed", "microbatches", "bits"]
    assert text[1].split()[:5] == ["none", "1000", "MiB", "1.00", "s"] and len(text) == len(points) + 2
    best = knee(points)
    assert best is not None
    marked = [line for line in text[:-1] if line.endswith("<- knee")]
    assert [line.split()[0] for line in marked] == [best.flag] and f"--memory-limit {best.flag} takes" in text[-1]
    last = points[-1]._replace(host_bytes=5 * MIB, same_bits=False, microbatches=4)
    lines = list(table(Curve("batch 8", 8, [*points[:-1], last])))
    assert "host" in lines[0].split() and "5.0 MiB" in lines[-2] and "may differ" in lines[-2]


def test_picture() -> None:
    given = (("batch <8>", 8, 1000), ("b", 16, 700))
    curves = [Curve(name, images, trace(Invented(size * MIB, 300 * MIB, hyperbola(size * MIB)))) for name, images, size in given]
    text = "\n".join(curve_section(curves, "'A & B' <i>"))
    assert "<8>" not in text and "batch &lt;8&gt;" in text and "A &amp; B" in text and "<i>" not in text
    assert text.count("<polyline") == 2 and text.count('class="point"') == sum(len(each.points) for each in curves) and text.count('class="knee"') == 2
    assert "ms for an image" in text and "nan" not in text and "inf" not in text
    assert "ms for a step" in "\n".join(curve_section([curves[0]._replace(images=0)], "x"))
    for value in (0, 5):  # nothing is divided by 0
        assert "<svg" in "\n".join(curve_section([Curve("x", 0, [point(value, value / 5)])], "x"))
    assert not list(curve_section([], "x"))


def test_times_of_a_step_without_a_prediction() -> None:
    assert point(5, 0.0).slowdown(point(9, 0.0)) == 0.0 and math.isfinite(point(5, 1.0).slowdown(point(9, 0.0)))
