"""Histograms of values: histogram.cl. Bins have a fixed range, so that counts of batches add up, whatever their order."""
from __future__ import annotations

import numpy as np

from ocaffe.ir.kernel import Kernel, Order, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.expression.expression import reduce

FIRST, OCTAVES, STEPS = -16, 32, 64  # magnitudes from 2^-16 to 2^16, 64 bins for each power of two
BINS = OCTAVES * STEPS  # of one sign
COUNT = Kernel("histogram.count", read("x", order=Order.EITHER), write("counts"), write("extremes"))
ROWS = 4  # of counts that a CPU's work-item adds to in turn
GPU_GROUP, EACH = 256, 1 << 14  # work-items of a group; the fewest elements that a group counts, because it also writes all bins


def edges() -> np.ndarray:
    """Return the BINS + 1 bounds of the bins of one sign, in float64. The first is 0."""
    steps = np.arange(BINS + 1)
    bounds = np.ldexp(1 + steps % STEPS / STEPS, FIRST + steps // STEPS)
    bounds[0] = 0
    return bounds


def histogram(rec: Recorder, x: Ref, counts: Ref, extremes: Ref) -> None:
    """counts = the numbers of values in the BINS positive bins, in the BINS negative ones, and of those that are not finite; extremes = largest x and -x."""
    target, total = rec.target, x.count
    groups = max(1, min(4 * target.compute_units, total // EACH))
    each = -(-total // groups)
    rows = groups * (ROWS if target.is_cpu else 1)
    parts = rec.scratch("counts", (rows, counts.count), np.uint32)
    ends = rec.scratch("extremes", (groups, 2))
    samples = x.shape[0] if x.shape else 1
    group = {"ROWS": ROWS} if target.is_cpu else {"GROUP": target.group(GPU_GROUP)}
    local = group.get("GROUP", 1)
    defines = {"FIRST": FIRST, "OCTAVES": OCTAVES, **group}
    args = [max(1, total // max(1, samples)), np.uint64(total), np.uint64(each)]
    rec.launch(COUNT(x=x, counts=parts, extremes=ends), args=args, size=(groups * local,), local=(local,), defines=defines)
    reduce(rec, "v0 = x0", reads=[parts], writes=[counts], axes=[0])
    reduce(rec, "v0 = x0", reads=[ends], writes=[extremes], axes=[0], op="max")
