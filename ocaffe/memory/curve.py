"""Step time against memory: the plans of a training under smaller and smaller limits, and the smallest limit for a given slowdown.

Everything here works on a function that makes the plan for a limit, so that no net and no device is needed. Times are predicted.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ocaffe.memory.report import size_text

STEP = 0.85  # from one limit to the next smaller one; squared, and so on, after every WIDER points
WIDER = 6
TOLERANCE = 1.02  # between a limit that is too small and the one that is returned
FEWEST, MOST = 8, 14  # points that a curve should have, and the number of plans from which no more are made for them
MISSES = 2  # limits in a row that are too slow, after which no smaller one is tried: time does not always rise as memory falls
CLEAR = 1e-6  # distance of a knee from the chord; smaller ones are of rounding
COARSE = 64 << 20  # bytes from which limits are whole MiB; smaller ones are whole KiB


class Point(NamedTuple):
    """The plan for a limit.

    `limit`: in bytes, None for the plan without a limit. `kept`: whether the plan is within it; if not, it is the smallest plan that was found.
    `bytes`: on the device. `host_bytes`: of values that wait in the host's memory. `seconds`: the predicted time of a step. `recomputed`: launches
    that compute a value again. `microbatches`: parts of the batch in the first layers. `same_bits`: results are bit-equal to the plan without a limit.
    """

    limit: int | None
    kept: bool
    bytes: int
    host_bytes: int
    seconds: float
    recomputed: int
    microbatches: int
    same_bits: bool

    @property
    def flag(self) -> str:
        """The value of --memory-limit that makes this plan; '' for the plan without a limit."""
        return "" if self.limit is None else limit_text(self.limit)

    def slowdown(self, free: Point) -> float:
        """Return the additional time as a share of that of the plan without a limit: 0.1 for 10 % more."""
        return self.seconds / free.seconds - 1 if free.seconds else 0.0


Plans = Callable[[int | None], Point]  # the plan for a limit in bytes


class Curve(NamedTuple):
    """The plans of one net with one batch. `name`: for people. `images`: of a step; 0 if the net has none. `points`: as `trace` returns them."""

    name: str
    images: int
    points: Sequence[Point]


def limit_text(limit: int) -> str:
    """Return a limit as --memory-limit accepts it: 1432M, or 812K."""
    return f"{limit >> 20}M" if limit % (1 << 20) == 0 else f"{limit >> 10}K" if limit % 1024 == 0 else str(limit)


def rounded(size: float, up: bool = False) -> int:
    """Return a limit that people can type, at most `size`, or at least `size` if `up`."""
    unit = 1 << 20 if size >= COARSE else 1024
    return unit * (math.ceil(size / unit) if up else int(size // unit))


def trace(plans: Plans) -> list[Point]:
    """Return the curve: the plan without a limit, and then those that no other plan beats in both memory and time, down to the smallest one."""
    free = plans(None)
    found, refused = [free], None
    limit = rounded(STEP * free.bytes)
    while limit > 0 and refused is None:
        point = plans(limit)
        if point.kept:
            found.append(point)
            limit = rounded(STEP ** (1 + len(found) // WIDER) * min(limit, point.bytes))
        else:
            refused = point
    if refused is not None:
        found += _smallest(plans, refused, found[-1].bytes)
    for limit in _between(found):
        found.append(plans(limit))
    return front(found)


def _smallest(plans: Plans, refused: Point, high: int) -> Iterator[Point]:
    """Yield plans within ever smaller limits, from the smallest plan that was `refused` to `high` bytes, a limit that is kept."""
    low = refused.limit or 0
    limit = rounded(refused.bytes, up=True)
    while low < limit < high and high > TOLERANCE * low:
        point = plans(limit)
        if point.kept:
            yield point
            if limit == rounded(refused.bytes, up=True):
                return  # nothing smaller was found with less
            high = point.bytes
        else:
            low = limit
        limit = rounded(math.sqrt(low * high))


def _between(found: list[Point]) -> Iterator[int]:
    """Yield limits within the widest gaps, until `found`, to which the caller adds their plans, has enough points."""
    tried: set[int] = set()
    while len(found) < MOST and len(front(found)) < FEWEST:
        sizes = sorted({point.bytes for point in found})
        gaps = sorted((-high / low, rounded(math.sqrt(low * high))) for low, high in itertools.pairwise(sizes) if low)
        limit = next((limit for ratio, limit in gaps if -ratio > TOLERANCE and limit not in tried), None)
        if limit is None:
            return
        tried.add(limit)
        yield limit


def front(points: Sequence[Point]) -> list[Point]:
    """Return the first point, and those of the others that no point beats in both memory and time, the largest first. Refused ones are left out."""
    best, chosen = math.inf, list[Point]()
    for point in sorted((point for point in points if point.kept), key=lambda point: (point.bytes, point.seconds)):
        if point.seconds < best:
            chosen.append(point)
            best = point.seconds
    return [points[0], *reversed([point for point in chosen if point is not points[0] and point.bytes < points[0].bytes])]


def knee(points: Sequence[Point]) -> Point | None:
    """Return the point that is farthest below the chord between both ends, with both axes scaled to the ends; None if none is below it.

    Up to it memory is cheap; from it on each byte costs more time than the chord's slope (Satopaa et al., Finding a "Kneedle" in a Haystack, 2011).
    """
    first, last = points[0], points[-1]
    memory, time = first.bytes - last.bytes, last.seconds - first.seconds
    if memory <= 0 or time <= 0:
        return None
    distances = [1 - (point.bytes - last.bytes) / memory - (point.seconds - first.seconds) / time for point in points]
    best = max(range(len(points)), key=lambda index: distances[index])
    return points[best] if 0 < best < len(points) - 1 and distances[best] > CLEAR else None


def smallest_within(plans: Plans, slowdown: float, stop: Callable[[], bool] = lambda: False) -> Point:
    """Return the smallest plan that was found whose step takes at most `slowdown` more time (0.1: 10 %) than that of the plan without a limit.

    Limits fall step by step until a plan is too slow or refused; bisection follows. The plan without a limit is returned if none is smaller.
    `stop`: called before each plan; True ends the search.
    """
    free = best = plans(None)
    low, misses = 0, 0
    limit = rounded(STEP * free.bytes)
    while limit > 0 and misses < MISSES and not stop():
        point = plans(limit)
        if point.kept and point.slowdown(free) <= slowdown:
            best, low, misses = point, 0, 0
        else:
            misses = misses + 1 if point.kept else MISSES
            low = max(low, limit, point.bytes if not point.kept and point.bytes < best.bytes else 0)
        limit = rounded(STEP * min(limit, point.bytes))
    while not stop() and best.bytes > TOLERANCE * low and (limit := rounded(math.sqrt(low * best.bytes))) > low:
        point = plans(limit)
        if point.kept and point.slowdown(free) <= slowdown:
            best = point
        else:
            low = limit
    return best


def chosen_text(chosen: Point, free: Point, slowdown: float) -> str:
    """Return the sentence about the limit that `smallest_within` chose."""
    if chosen.limit is None:
        return f"no smaller memory takes at most {100 * slowdown:g} % more time, so that there is no memory limit"
    cost = percent_text(chosen.slowdown(free))
    return f"memory limit {chosen.flag}: predicted {cost} more time, {size_text(chosen.bytes)} instead of {size_text(free.bytes)}"


def percent_text(share: float) -> str:
    """Return a share for people: 0.096 is '9.6 %'."""
    return f"{100 * share + 0.0:.1f} %"


def seconds_text(seconds: float) -> str:
    """Return a time for people: '46.1 ms', '1.66 s'."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms" if seconds < 0.1 else f"{1e3 * seconds:.0f} ms"


def table(curve: Curve) -> Iterator[str]:
    """Yield the lines of a curve for people."""
    points, free = curve.points, curve.points[0]
    best = knee(points)
    host = any(point.host_bytes for point in points)
    heads = ["--memory-limit", "memory", *(["host"] if host else []), "step", "image", "more time", "recomputed", "microbatches", "bits"]
    rows = [heads]
    for point in points:
        per_image = seconds_text(point.seconds / curve.images) if curve.images else ""
        cells = [point.flag or "none", size_text(point.bytes), *([size_text(point.host_bytes)] if host else []), seconds_text(point.seconds), per_image]
        cells += ["" if point is free else percent_text(point.slowdown(free)), str(point.recomputed), str(point.microbatches)]
        rows.append([*cells, "equal" if point.same_bits else "may differ"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    marks = [False, *(point is best for point in points)]
    for row, marked in zip(rows, marks):
        yield "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths)), *(["<- knee"] if marked else [])])
    yield from _closing(points, best)


def _closing(points: Sequence[Point], best: Point | None) -> Iterator[str]:
    if len(points) == 1:
        yield "no smaller memory is possible: nothing of it can be recomputed, and the batch cannot be split"
    elif best is None:
        yield "the curve has no knee: no plan is below the line between the first and the last one"
    else:
        yield (
            f"the knee, farthest below the line between the first and the last plan, is {size_text(best.bytes)}: --memory-limit {best.flag} "
            f"takes {percent_text(1 - best.bytes / points[0].bytes)} less memory and {percent_text(best.slowdown(points[0]))} more time"
        )
