"""SSD's loss: match priors with true boxes, mine negatives, compute the loss and its gradients (multibox.cl, nms.cl)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ocaffe.ir.kernel import Given, Kernel, modify, read, reads, write, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.detection.boxes import over
from ocaffe.kernels.detection.nms import rank, suppress
from ocaffe.kernels.detection.true_boxes import true_boxes

OVERLAPS = Kernel("multibox.overlaps", *reads("settings", "truth", "loc", "priors"), write("overlaps"))
BIPARTITE = Kernel("multibox.bipartite", *reads("settings", "truth", "overlaps", "lists", "numbers"), *writes("partners", "nearest", "best"))
MATCH = Kernel("multibox.match", *reads("settings", "truth", "loc", "conf", "priors", "overlaps", "lists", "numbers", "partners"), *writes("matches", "losses"))
SUM = Kernel("multibox.sum", *reads("settings", "truth", "loc", "conf", "priors", "matches"), write("partial"))
TOTAL = Kernel("multibox.total", read("settings"), read("partial"), read("bad"), write("loss"), write("normalizer"))
QUOTAS = Kernel("multibox.quotas", read("settings"), read("matches"), write("quotas"))
CHOOSE = Kernel("multibox.choose", *reads("settings", "chosen", "numbers", "quotas"), modify("matches"))
LOC_BACKWARD = Kernel("multibox.loc_backward", *reads("settings", "truth", "loc", "priors", "matches", "normalizer", "weight"), write("dloc"))
CONF_BACKWARD = Kernel("multibox.conf_backward", *reads("settings", "truth", "conf", "matches", "normalizer", "weight"), write("dconf"))
DECODE = Kernel("multibox.decode", read("settings"), read("loc"), read("priors"), write("boxes"))

NO_MINING, MAX_NEGATIVE, HARD_EXAMPLE = 0, 1, 2  # MultiBoxLossParameter.MiningType
SMALLEST = 1e-5  # candidates of a smaller box are dropped in suppression
GROUP = 256
MAX_PARTIAL_SUMS = 256  # of the loss


class Settings(NamedTuple):
    """Settings that do not depend on shapes, in the order of multibox.cl. The fields are SSD's (MultiBoxLossParameter)."""

    classes: int
    share_location: bool
    use_prior_for_matching: bool
    background: int
    use_difficult_gt: bool
    ignore_cross_boundary: bool
    per_prediction: bool
    overlap_threshold: float
    code: int
    variance_in_target: bool
    mining: int
    neg_pos_ratio: float
    neg_overlap: float
    sample_size: int
    agnostic: bool
    bp_inside: bool
    l2: bool
    logistic: bool
    loc_weight: float
    normalizer: float  # 0: the number of matches
    loc_counts: bool  # the loss includes the location term
    conf_counts: bool

    @property
    def lanes(self) -> int:
        return 1 if self.share_location or self.use_prior_for_matching else self.classes

    @property
    def own_boxes(self) -> int:
        return 1 if self.share_location else self.classes


@dataclass(frozen=True)
class Suppression:
    """Suppression of candidates in mining. It considers at most `top_k`. With `use_prior`, it uses the overlap of priors, not of predictions."""

    threshold: float
    top_k: int
    use_prior: bool


@dataclass(frozen=True)
class MultiBox:
    """The loss on `priors` priors for images with true boxes in `truth` (G x 8). `forward` returns Losses, which records backward."""

    settings: Settings
    priors: int
    suppression: Suppression | None

    def forward(self, rec: Recorder, loc: Ref, conf: Ref, priors: Ref, truth: Ref, loss: Ref) -> Losses:
        """loss = the loss. Return the operands of backward."""
        s, count, (images, truths) = self.settings, self.priors, (conf.shape[0], truth.shape[0])
        settings = rec.constant("settings", np.array(s, np.float32))
        keep = rec.saved if rec.train else rec.scratch
        matches, normalizer = keep("matches", (images, s.lanes, count), np.int32), keep("normalizer", (1,))
        lists, numbers, bad = true_boxes(rec, truth, images, s.classes, s.background, s.use_difficult_gt, s.agnostic)
        overlaps = rec.scratch("overlaps", (max(1, truths), count))
        _over(rec, OVERLAPS(settings=settings, truth=truth, loc=loc, priors=priors, overlaps=overlaps), (count, truths), images)
        partners, nearest, best = (rec.scratch(name, (max(1, truths),), kind) for name, kind in (("partners", "i4"), ("nearest", "i4"), ("best", "f4")))
        _groups(
            rec,
            BIPARTITE(settings=settings, truth=truth, overlaps=overlaps, lists=lists, numbers=numbers, partners=partners, nearest=nearest, best=best),
            (s.lanes, images), count,
        )
        losses = rec.scratch("losses", (images, count, 1))
        _over(
            rec,
            MATCH(
                settings=settings, truth=truth, loc=loc, conf=conf, priors=priors, overlaps=overlaps, lists=lists, numbers=numbers,
                partners=partners, matches=matches, losses=losses,
            ),
            (count, images),
        )
        if s.mining != NO_MINING:
            self._mine(rec, settings, loc, priors, losses, matches)
        share = max(GROUP, -(-images * count // MAX_PARTIAL_SUMS))
        partial = rec.scratch("partial", (-(-images * count // share), 4))
        _groups(
            rec,
            SUM(settings=settings, truth=truth, loc=loc, conf=conf, priors=priors, matches=matches, partial=partial),
            (partial.shape[0],), count, images, share,
        )
        _groups(rec, TOTAL(settings=settings, partial=partial, bad=bad, loss=loss, normalizer=normalizer), (1,), partial.shape[0], images)
        return Losses(self, settings, matches, normalizer)

    def _mine(self, rec: Recorder, settings: Ref, loc: Ref, priors: Ref, losses: Ref, matches: Ref) -> None:
        """Select the candidates with the largest losses. Afterwards matches[n] tells which priors count."""
        images, count, nms = losses.shape[0], self.priors, self.suppression
        quotas, numbers = (rec.scratch(name, (images, 1), np.int32) for name in ("quotas", "chosen_numbers"))
        _groups(rec, QUOTAS(settings=settings, matches=matches, quotas=quotas), (1, images), count)
        if nms is None:
            chosen = rec.scratch("chosen", (images, 1, count), np.int32)
            rank(rec, losses, chosen, numbers, limits=quotas, sort=False)
        else:
            order, chosen = (rec.scratch(name, (images, 1, nms.top_k), np.int32) for name in ("order", "chosen"))
            listed = rec.scratch("listed", (images, 1), np.int32)
            rank(rec, losses, order, listed)
            boxes = priors.view((1, 2 * count, 4))
            if not nms.use_prior:
                boxes = rec.scratch("boxes", (images, count, 4))
                _over(rec, DECODE(settings=settings, loc=loc, priors=priors, boxes=boxes), (count, images))
            suppress(rec, boxes, order, listed, chosen, numbers, threshold=nms.threshold, smallest=SMALLEST)
        _groups(rec, CHOOSE(settings=settings, chosen=chosen, numbers=numbers, quotas=quotas, matches=matches), (1, images), count)


@dataclass(frozen=True)
class Losses:
    """The results of the forward pass that backward reads."""

    box: MultiBox
    settings: Ref
    matches: Ref
    normalizer: Ref

    def loc_backward(self, rec: Recorder, loc: Ref, priors: Ref, truth: Ref, weight: Ref, dloc: Ref) -> None:
        count = self.box.priors * self.box.settings.own_boxes
        _over(
            rec,
            LOC_BACKWARD(
                settings=self.settings, truth=truth, loc=loc, priors=priors, matches=self.matches, normalizer=self.normalizer, weight=weight,
                dloc=dloc,
            ),
            (count, loc.shape[0]), self.box.priors, rec.accumulates(dloc),
        )

    def conf_backward(self, rec: Recorder, conf: Ref, truth: Ref, weight: Ref, dconf: Ref) -> None:
        _over(
            rec,
            CONF_BACKWARD(
                settings=self.settings, truth=truth, conf=conf, matches=self.matches, normalizer=self.normalizer, weight=weight, dconf=dconf,
            ),
            (self.box.priors, conf.shape[0]), conf.shape[0], rec.accumulates(dconf),
        )


def _over(rec: Recorder, given: Given, size: tuple[int, ...], *args: Any) -> None:
    """Record a launch with one work-item per element of `size`."""
    over(rec, given, size, *args, defines={"GROUP": _group(rec)})


def _groups(rec: Recorder, given: Given, groups: tuple[int, ...], *args: Any) -> None:
    """Record a launch with one work-group per element of `groups`."""
    group = _group(rec)
    size, local = (groups[0] * group, *groups[1:]), (group, *[1] * (len(groups) - 1))
    rec.launch(given, args=args, size=size, local=local, defines={"GROUP": group})


def _group(rec: Recorder) -> int:
    return 1 if rec.target.is_cpu else rec.target.group(GROUP)
