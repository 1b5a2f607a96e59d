"""Scored boxes: sort the best of each segment (`rank`), and greedy non-maximum suppression (`suppress`); nms.cl.

A segment is an independent list, such as a class of an image. N samples have S segments of P candidates each. Both operations
give the same bits on every device, and equal scores are ordered by their numbers.
"""
from __future__ import annotations

import math

import numpy as np

from ocaffe.ir.kernel import Kernel, read, reads, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

RANK = Kernel("nms.rank", read("scores"), read("limits", optional=True), *writes("order", "counts", "keys", "other_order", "other_keys"))
SUPPRESS = Kernel("nms.suppress", *reads("boxes", "order", "counts"), *writes("kept", "kept_counts"))
ALL = float(-np.finfo(np.float32).max)  # a threshold that every finite score exceeds
GROUP = 256
BITS = 4  # of a digit


def rank(
    rec: Recorder, scores: Ref, order: Ref, counts: Ref, *, threshold: float = ALL, limits: Ref | None = None, skipped: int = -1, sort: bool = True
) -> None:
    """order[n, s] = numbers of the candidates with the highest scores, by descending score; counts[n, s] = their count.

    Equal scores are ordered by number. `scores` is (N, P, S). Scores not above `threshold` and NaN are not candidates. `order` is
    (N, S, K) int32. A list has at most K entries, and at most limits[n, s] (int32). Entries after its end are not written. `counts`
    is (N, S) int32. The list of the segment `skipped` is empty. Without `sort`, the same candidates are ordered by number.
    """
    samples, count, segments = scores.shape
    most = order.shape[2]
    assert order.shape == (samples, segments, most) and counts.shape == (samples, segments), f"{order}, {counts} of {scores}"
    rows = (samples, segments, most)
    keys = rec.scratch("keys", rows, np.uint32)
    other_order, other_keys = (rec.scratch("other_order", rows, np.int32), rec.scratch("other_keys", rows, np.uint32)) if sort else (order, keys)
    group, defines = _group(rec)
    rec.launch(
        RANK(scores=scores, limits=limits, order=order, counts=counts, keys=keys, other_order=other_order, other_keys=other_keys),
        args=[count, segments, most, np.float32(threshold), skipped, sort],
        size=(segments * group, samples),
        local=(group, 1),
        defines=defines | {"LIMITS": int(limits is not None)},
    )


def suppress(
    rec: Recorder,
    boxes: Ref,
    order: Ref,
    counts: Ref,
    kept: Ref,
    kept_counts: Ref,
    *,
    threshold: float,
    most: int | None = None,
    eta: float = 1.0,
    smallest: float = 0.0,
    pixels: bool = False,
) -> None:
    """kept[n, s] = the boxes of order[n, s] whose overlap with every kept box before is at most `threshold`, in the same order.

    kept_counts[n, s] is their count. `order` and `counts` are results of `rank`. `boxes` (xmin, ymin, xmax, ymax) is (N, P, 4), the
    same for all segments, or (N, P, S, 4). If N is 1, all samples have the same boxes. `kept` is (N, S, R) int32 with
    R >= min(K, most). At most `most` boxes are kept. Each kept box multiplies the threshold by `eta`, as long as the threshold is
    above 0.5. Boxes smaller than `smallest` are dropped. `pixels`: corners are pixels, so a side is x2 - x1 + 1, not x2 - x1.
    """
    samples, segments, listed = order.shape
    room = kept.shape[2]
    most = listed if most is None else min(most, listed)
    assert kept.shape == (samples, segments, room) and room >= most, f"{kept} has no room for {most} of {order}"
    assert boxes.shape[0] in (1, samples) and boxes.shape[2:] in ((4,), (segments, 4)), f"{boxes} are no boxes of {order}"
    step = math.prod(boxes.shape[2:])
    group, defines = _group(rec)
    rec.launch(
        SUPPRESS(boxes=boxes, order=order, counts=counts, kept=kept, kept_counts=kept_counts),
        args=[listed, room, most, boxes.shape[0] > 1, step, 4 if boxes.shape[2:] != (4,) else 0, float(threshold), float(eta), float(smallest), float(pixels)],
        size=(segments * group, samples),
        local=(group, 1),
        defines=defines,
        inplace=[("order", "kept"), ("counts", "kept_counts")] if kept.shape == order.shape else [],
    )


def _group(rec: Recorder) -> tuple[int, dict[str, object]]:
    """Return the work-items per group and the defines of nms.cl. Without limits, one program has both kernels.

    On a GPU, each work-item of `rank` keeps a counter for each value of a digit, and a sum, in local memory.
    """
    target = rec.target
    if target.is_cpu:
        return 1, {"GROUP": 1, "BITS": 8, "LIMITS": 0}
    group = target.group(min(GROUP, target.local_memory // (4 * (2**BITS + 1))))
    return group, {"GROUP": group, "BITS": BITS, "LIMITS": 0}
