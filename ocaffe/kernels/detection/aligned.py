"""AlignedBoxLoss: assign priors to true boxes, compute the loss and its gradients (aligned.cl, true_boxes.cl, nms.cl)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ocaffe.ir.kernel import Kernel, reads, write, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.detection.boxes import over
from ocaffe.kernels.detection.nms import rank
from ocaffe.kernels.detection.true_boxes import true_boxes
from ocaffe.kernels.expression.expression import reduce

METRICS = Kernel("aligned.metrics", *reads("settings", "truth", "loc", "conf", "priors"), write("metrics"))
MATCH = Kernel("aligned.match", *reads("settings", "truth", "loc", "priors", "metrics", "order", "counts", "lists", "numbers"), write("matches"))
SCALES = Kernel("aligned.scales", *reads("settings", "truth", "loc", "priors", "metrics", "order", "counts", "matches"), write("scales"))
TARGETS = Kernel("aligned.targets", *reads("metrics", "matches", "scales"), write("targets"))
LOSSES = Kernel("aligned.losses", *reads("settings", "truth", "loc", "conf", "priors", "matches", "targets"), write("losses"))
TOTAL = Kernel("aligned.total", *reads("settings", "sums", "bad"), *writes("loss", "normalizer"))
LOC_BACKWARD = Kernel("aligned.loc_backward", *reads("settings", "truth", "loc", "priors", "matches", "targets", "normalizer", "weight"), write("dloc"))
CONF_BACKWARD = Kernel("aligned.conf_backward", *reads("settings", "truth", "conf", "matches", "targets", "normalizer", "weight"), write("dconf"))

TERMS = 3  # classes, boxes, targets


class Settings(NamedTuple):
    """Settings that do not depend on shapes, in the order of aligned.cl. The fields are those of AlignedBoxLossParameter."""

    classes: int
    background: int
    code: int
    score_power: float
    overlap_power: float
    gamma: float
    loc_weight: float


@dataclass(frozen=True)
class Aligned:
    """The loss on `priors` priors, of which each true box trains at most `most`. `forward` returns Losses, which records backward."""

    settings: Settings
    priors: int
    most: int
    difficult_counts: bool

    def forward(self, rec: Recorder, loc: Ref, conf: Ref, priors: Ref, truth: Ref, loss: Ref) -> Losses:
        """loss = the loss of the predictions for the true boxes in `truth` (G x 8). Return the operands of backward."""
        s, count, images, rows = self.settings, self.priors, conf.shape[0], truth.shape[0]
        settings = rec.constant("settings", np.array(s, np.float32))
        keep = rec.saved if rec.train else rec.scratch
        matches, targets, normalizer = keep("matches", (images, count), np.int32), keep("targets", (images, count)), keep("normalizer", (1,))
        lists, numbers, bad = true_boxes(rec, truth, images, s.classes, s.background, self.difficult_counts)
        metrics, order = rec.scratch("metrics", (rows, count, 1)), rec.scratch("order", (rows, 1, self.most), np.int32)
        counts = rec.scratch("counts", (rows, 1), np.int32)
        over(rec, METRICS(settings=settings, truth=truth, loc=loc, conf=conf, priors=priors, metrics=metrics), (count, rows), images)
        rank(rec, metrics, order, counts, threshold=0)
        found = {"settings": settings, "truth": truth, "loc": loc, "priors": priors, "metrics": metrics, "order": order, "counts": counts}
        over(rec, MATCH(**found, lists=lists, numbers=numbers, matches=matches), (count, images), self.most)
        scales = rec.scratch("scales", (rows, 2))
        over(rec, SCALES(**found, matches=matches, scales=scales), (rows,), count, self.most)
        over(rec, TARGETS(metrics=metrics, matches=matches, scales=scales, targets=targets), (count, images))
        losses, sums = rec.scratch("losses", (TERMS, images, count)), rec.scratch("sums", (TERMS,))
        operands = {"settings": settings, "truth": truth, "loc": loc, "conf": conf, "priors": priors, "matches": matches, "targets": targets}
        over(rec, LOSSES(**operands, losses=losses), (count, images), images)
        reduce(rec, "v0 = x0", reads=[losses], writes=[sums], axes=[1, 2])
        rec.launch(TOTAL(settings=settings, sums=sums, bad=bad, loss=loss, normalizer=normalizer), args=[images], size=(1,), local=(1,))
        return Losses(self, settings, matches, targets, normalizer)


@dataclass(frozen=True)
class Losses:
    """The results of the forward pass that backward reads."""

    aligned: Aligned
    settings: Ref
    matches: Ref
    targets: Ref
    normalizer: Ref

    def loc_backward(self, rec: Recorder, loc: Ref, priors: Ref, truth: Ref, weight: Ref, dloc: Ref) -> None:
        given = LOC_BACKWARD(
            settings=self.settings, truth=truth, loc=loc, priors=priors, matches=self.matches, targets=self.targets, normalizer=self.normalizer,
            weight=weight, dloc=dloc,
        )  # fmt: skip
        over(rec, given, (self.aligned.priors, loc.shape[0]), rec.accumulates(dloc))

    def conf_backward(self, rec: Recorder, conf: Ref, truth: Ref, weight: Ref, dconf: Ref) -> None:
        given = CONF_BACKWARD(
            settings=self.settings, truth=truth, conf=conf, matches=self.matches, targets=self.targets, normalizer=self.normalizer, weight=weight,
            dconf=dconf,
        )  # fmt: skip
        over(rec, given, (self.aligned.priors, conf.shape[0]), rec.accumulates(dconf))
