"""The largest batch whose training fits the device or a limit: found by plans, before the start (`--batch auto`)."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from ocaffe.errors import Error
from ocaffe.ir.target import Target
from ocaffe.memory.report import size_text

MOST_BATCH = 1 << 16  # images, if the number of images is not known
TOLERANCE = 0.02  # between the batch that is found and one that does not fit
SHARE, HOST_SHARE = 0.95, 0.8  # of the free memory. Drivers need the rest for programs and queues; beside a CPU's plan there are buffers of images too
CONTEXT = 600 << 20  # bytes that a driver of a GPU takes for itself, if they are not measured
FIRST = 8  # the batch with which the search begins
FAR = 64  # times as large a batch may be tried next
LINES = 4  # steps by lines alone, before others halve the distance


class Largest(NamedTuple):
    """A batch and the planned bytes of its training. `whole`: all images are in it, so that no larger one is of use."""

    batch: int
    bytes: int
    whole: bool


def room(target: Target, limit: int | None, context: int | None = None) -> int:
    """Return the bytes that a plan may take on a device. `limit`: of --memory-limit. `context`: bytes of the driver's context, None if it is not known."""
    if target.is_cpu or target.unified_memory:
        free = int(target.available_memory * HOST_SHARE)
    else:
        free = int(target.available_memory * SHARE) - (CONTEXT if context is None else context)
    return free if limit is None else min(free, limit)


def largest_batch(planned: Callable[[int], int], allowed: int, most: int) -> Largest:
    """Return the largest batch of at most `most` images for whose training `planned` returns at most `allowed` bytes, within TOLERANCE. Raise Error.

    `planned` raises Error for a batch that no net can have, for example because a blob has too many values. Bytes grow about linearly, so a line through
    two batches leads near the largest one.
    """
    sizes: dict[int, int] = {}
    low, high, batch, refused = 0, most + 1, min(FIRST, most), 0
    for step in itertools.count():
        try:
            sizes[batch] = planned(batch)
            fits = sizes[batch] <= allowed
        except Error:
            if batch == 1:
                raise
            fits, refused = False, batch
        low, high = (batch, high) if fits else (low, batch)
        if high - low <= (1 if high > most else max(1, int(low * TOLERANCE))):
            break
        batch = (low + high) // 2 if low and high == refused else _next(sizes, low, high, allowed, step)
    if not low:
        fact = f"--batch is auto, and a training with one image takes {size_text(sizes[1])} of {size_text(allowed)}"
        raise Error(fact, fix="choose a smaller net, or smaller images; or give --batch 1 and --memory-limit, which computes values again")
    return Largest(low, sizes[low], low == most)


def _next(sizes: dict[int, int], low: int, high: int, allowed: int, step: int) -> int:
    """Return the next batch to plan, between `low`, which fits, and `high`, which does not or is too large. Some steps halve the distance."""
    if not low:
        return high // 2
    close = max(1, int(low * TOLERANCE))  # a batch so near decides the search
    other = high if high in sizes else max((batch for batch in sizes if batch < low), default=0)
    slope = (sizes[low] - sizes[other]) / (low - other) if other else sizes[low] / low
    line = low + math.floor((allowed - sizes[low]) / slope) if slope > 0 else high
    if step > LINES and step % 2:
        line = math.isqrt(low * high)
    guess = min(max(line, low + close), FAR * low)
    return min(guess, high - 1 if high not in sizes else max(high - close, low + 1))
