"""Connectionist temporal classification: ctc.cl. Scores are steps x samples x classes."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocaffe.ir.kernel import JOIN, Given, Kernel, read, reads, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.expression.expression import pointwise, reduce

# Labels alone, with indicators, or with lengths and numbers (LAYOUT 0, 1, 2 of ctc.cl).
GIVEN = ("given",), ("indicators", "given"), ("lengths", "numbers", "given")
TARGETS = [Kernel("ctc.targets", *reads(*names), *writes("targets", "counts"), can=JOIN) for names in GIVEN]
FORWARD = Kernel("ctc.forward", *reads("x", "logz", "targets", "counts"), *writes("alpha", "costs"), can=JOIN)
BACKWARD = Kernel("ctc.backward", *reads("x", "logz", "targets", "counts", "alpha", "costs", "weight"), *writes("dx", "beta", "passed"), can=JOIN)
BEST = Kernel("ctc.best", *reads("x"), *writes("winners", "scores"), can=JOIN)
DECODE = Kernel("ctc.decode", *reads("winners", "scores"), read("indicators", optional=True), *writes("sequences", "lengths", "totals"), can=JOIN)
EDIT_DISTANCE = Kernel("ctc.edit_distance", *reads("sequences", "lengths", "targets", "counts"), *writes("results", "row"), can=JOIN)
GPU_GROUP = 64


@dataclass(frozen=True)
class Targets:
    """The labels of all samples (samples x most labels, int32), and for each sample its numbers of labels and of steps (samples x 2, int32)."""

    labels: Ref
    counts: Ref

    @property
    def row(self) -> int:
        """The largest number of labels with blanks between and around them."""
        return 2 * self.labels.shape[1] + 1


def targets(rec: Recorder, given: Sequence[Ref], steps: int, classes: int, blank: int, shift: int = 0) -> Targets:
    """Read labels. `given` is (labels) as samples x labels, (indicators, labels) as steps x samples, or (lengths, numbers, labels x samples).

    `steps`: the steps of a sample, or the most that `given` may say. `shift` is added to labels that are given with indicators. A label outside the
    classes is -1 in the result, as is the blank where it is not left out.
    """
    layout, labels = len(given) - 1, given[-1]
    samples, most = labels.shape[:2] if layout == 0 else (labels.shape[1], labels.shape[0])
    result = Targets(rec.saved("targets", (samples, most), np.int32), rec.saved("counts", (samples, 2), np.int32))
    args = [samples, steps, most, classes, blank, shift]
    operands = dict(zip(GIVEN[layout], given))
    _per_item(rec, TARGETS[layout](targets=result.labels, counts=result.counts, **operands), samples, args, {"LAYOUT": layout})
    return result


@dataclass(frozen=True)
class Paths:
    """Results of a forward pass that its gradient reads."""

    logz: Ref
    alpha: Ref
    costs: Ref


def ctc_loss(rec: Recorder, x: Ref, of: Targets, loss: Ref, blank: int) -> Paths:
    """loss = the mean of -log(probability of the labels) over the samples; scores are not normalized. A sample without a path counts as 0."""
    steps, samples, classes = x.shape
    most = rec.scratch("most", (steps, samples))
    paths = Paths(rec.saved("logz", (steps, samples)), rec.saved("alpha", (samples, steps, of.row)), rec.saved("costs", (samples,)))
    reduce(rec, "v0 = x0", reads=[x], writes=[most], axes=[2], op="max")
    reduce(rec, "v0 = exp(x0 - x1)", reads=[x, (most, 0)], writes=[paths.logz], axes=[2], finish="y0 = log(v0) + x1")
    args = [classes, of.row, blank]
    _per_group(rec, FORWARD(x=x, logz=paths.logz, targets=of.labels, counts=of.counts, alpha=paths.alpha, costs=paths.costs), samples, args)
    reduce(rec, "v0 = x0", reads=[paths.costs], writes=[loss], axes=[0], finish="y0 = v0 / n", scalars={"n": float(samples)})
    return paths


def ctc_loss_backward(rec: Recorder, x: Ref, of: Targets, paths: Paths, weight: Ref, dx: Ref, blank: int) -> None:
    """dx = weight times the gradient of the sum of the samples' costs."""
    steps, samples, classes = x.shape
    _per_group(
        rec,
        BACKWARD(
            x=x, logz=paths.logz, targets=of.labels, counts=of.counts, alpha=paths.alpha, costs=paths.costs, weight=weight, dx=dx,
            beta=rec.scratch("beta", (samples, 2, of.row)), passed=rec.scratch("passed", (samples, of.row)),
        ),
        samples, [steps, classes, of.row, blank, rec.accumulates(dx)],
    )


@dataclass(frozen=True)
class Decoded:
    """The decoded labels (samples x steps, -1 after the end), their number (int32), and the negated sums of the scores."""

    sequences: Ref
    lengths: Ref
    totals: Ref


def decode(rec: Recorder, x: Ref, indicators: Ref | None, sequences: Ref, blank: int, merge: bool) -> Decoded:
    """Find the best class of every step; leave out blanks, and with `merge` repetitions. An indicator 0 (steps x samples) ends a sample."""
    steps, samples, classes = x.shape
    winners, scores = rec.scratch("winners", (steps, samples), np.int32), rec.scratch("scores", (steps, samples))
    _per_item(rec, BEST(x=x, winners=winners, scores=scores), steps * samples, [steps * samples, samples, classes], {})
    result = Decoded(sequences, rec.scratch("lengths", (samples,), np.int32), rec.scratch("totals", (samples,)))
    args, defines = [samples, steps, blank, int(merge)], {"INDICATORS": int(indicators is not None)}
    _per_item(
        rec,
        DECODE(winners=winners, scores=scores, indicators=indicators, sequences=sequences, lengths=result.lengths, totals=result.totals),
        samples, args, defines,
    )
    return result


def sequence_accuracy(rec: Recorder, decoded: Decoded, of: Targets, result: Ref) -> None:
    """result[0] = the mean of 1 - (edit distance / larger length); result[1], if there is one, the share of samples that are equal and not empty."""
    samples, most = of.labels.shape
    each, row = rec.scratch("each", (samples, 2)), rec.scratch("row", (samples, most + 1), np.int32)
    _per_item(
        rec,
        EDIT_DISTANCE(sequences=decoded.sequences, lengths=decoded.lengths, targets=of.labels, counts=of.counts, results=each, row=row),
        samples, [samples], {},
    )
    means = rec.scratch("means", (2,))
    reduce(rec, "v0 = x0", reads=[each], writes=[means], axes=[0], finish="y0 = v0 / n", scalars={"n": float(samples)})
    pointwise(rec, "y0 = x0", reads=[means.view((result.count,))], writes=[result.view((result.count,))])


def _per_item(rec: Recorder, given: Given, items: int, args: Sequence[Any], defines: Mapping[str, object]) -> None:
    group = 1 if rec.target.is_cpu else GPU_GROUP
    rec.launch(given, args=args, size=(items,), local=(group,), defines=defines)


def _per_group(rec: Recorder, given: Given, groups: int, args: Sequence[Any]) -> None:
    group = 1 if rec.target.is_cpu else GPU_GROUP
    rec.launch(given, args=args, size=(groups * group,), local=(group,), defines={"GROUP": group})
