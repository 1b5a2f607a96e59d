"""Variants of the softmax cross-entropy: FocalLoss, InfogainLoss, and SoftmaxWithLoss with class weights."""
from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ocaffe.errors import Error, shape_text
from ocaffe.formats.blob import read_blobproto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape, split_axes
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.loss.softmax import softmax
from ocaffe.kernels.rearrange.rearrange import permute
from ocaffe.kernels.rearrange.rows import gather
from ocaffe.layers.base import Arity, Layer, register, times
from ocaffe.layers.loss import COUNTED, check_batch, check_labels, ignored, label_bottom, normalizer, refuse_smoothing, segnet_default
from ocaffe.support import log


class ProbabilityLoss(Layer):
    """Sum over positions of a function of the probabilities and the label, divided by the normalizer. A second top holds the probabilities.

    `value` and `slope` are texts for one class at one position: its part of the loss, and the gradient of its score. In them p is the probability
    of the class, l is 1 for the label's class and else 0, and x3, .. are the reads that `extra` returns. Fractions of labels
    are cut off. A label outside the classes makes the loss NaN.
    """

    bottoms: ClassVar[Arity] = 2
    tops: ClassVar[Arity] = (1, 2)
    is_loss = True
    value: str
    slope: str

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        scores, labels = bottoms[:2]
        self.class_axis = self.axis(self.axis_field(), scores)
        self.folded = split_axes(scores, self.class_axis)
        outer, _, inner = self.folded
        check_batch(self, scores, labels)
        check_labels(self, scores, labels, outer * inner)
        refuse_smoothing(self)
        self.ignore = ignored(self.param.loss_param)
        self.labels = label_bottom(self, scores[self.class_axis])
        self.divisor = normalizer(self, outer, inner, segnet_default(self))
        self.scalars: dict[str, float] = {}
        return [(), scores][: max(1, len(self.param.top))]

    def axis_field(self) -> int:
        return int(self.param.softmax_param.axis)

    def extra(self, rec: Recorder, bottoms: list[Blob]) -> list[Read]:
        """Return further reads, which broadcast to (outer, classes, inner)."""
        return []

    def probabilities(self, rec: Recorder, x: Ref) -> None:
        """Record the launches that write `prob`."""
        softmax(rec, x, self.prob, self.class_axis)

    def operands(self, rec: Recorder, bottoms: list[Blob]) -> list[Read]:
        outer, classes, inner = self.folded
        numbers = rec.constant("classes", np.arange(classes, dtype=np.float32))
        labels = bottoms[1].data.view((outer, 1, inner))
        return [self.prob.view(self.folded), (labels, 0), (numbers, 1), *self.extra(rec, bottoms)]

    def names(self) -> tuple[str, dict[str, float]]:
        """Return the statements that both texts start with, and the scalars."""
        has, label = self.ignore
        valid = "label != ignored" if has else "1"
        scalars = {**self.scalars, "classes": float(self.folded[1]), **({"ignored": float(label)} if has else {})}
        return f"p = x0; label = trunc(x1); l = label == x2; valid = {valid}; good = label >= 0 && label < classes", scalars

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        keep = rec.saved if rec.train else rec.scratch
        self.prob: Ref = tops[1].data if len(tops) > 1 else keep("prob", bottoms[0].shape)
        self.total = keep("divisor", ())
        self.probabilities(rec, bottoms[0].data)
        begin, scalars = self.names()
        counted = self.divisor == COUNTED
        scalars["n"] = float(self.folded[1]) if counted else self.divisor
        reduce(
            rec, f"{begin}; v0 = valid ? (good ? {self.value} : NAN) : 0; v1 = valid", reads=self.operands(rec, bottoms),
            writes=[tops[0].data, self.total], axes=(0, 1, 2), scalars=scalars,
            finish=f"m = fmax({'v1 / n' if counted else 'n'}, 1); y0 = v0 / m; y1 = m",
        )  # fmt: skip

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {i: "labels" if i == 1 else "H" for i in range(1, len(propagate))})
        if not propagate[0]:
            return
        assert tops[0].diff is not None and bottoms[0].diff is not None
        reads = self.operands(rec, bottoms)
        begin, scalars = self.names()
        weight, total = f"x{len(reads)}", f"x{len(reads) + 1}"
        text = f"{begin}; y0 = valid ? ({self.slope}) * {weight} / {total} : 0"
        used = {name: value for name, value in scalars.items() if name in text}
        reads += [(tops[0].diff.view(()), 0), (self.total, 0)]
        pointwise(rec, text, reads=reads, writes=[bottoms[0].diff.view(self.folded)], scalars=used)


class NormalizedLoss(ProbabilityLoss):
    """-log of x / norm instead of the softmax, with norm = sqrt(sum of x^2 + 1e-6) or sum of |x| + 1e-6 for softmax_param { normalize_type } L2 or L1.

    As in the fork, the gradient is that of a softmax with these probabilities, (p - 1 or 0) / normalizer. Source: NormFace and happynear/caffe-windows,
    src/caffe/layers/softmax_loss_layer.cpp.
    """

    origin = "NormFace"
    message = "softmax_param"
    value = "l * -log(p < FLT_MIN ? FLT_MIN : p)"
    slope = "p - l"
    norms: ClassVar[dict[str, tuple[str, str]]] = {"L2": ("x0 * x0", "sqrt(v0 + 1e-6)"), "L1": ("fabs(x0)", "v0 + 1e-6")}

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        kind = self.param.softmax_param.normalize_type
        self.check(kind in self.norms, f"normalize_type is {kind!r}", f"set softmax_param {{ normalize_type }} to Softmax, {' or '.join(self.norms)}")
        return super().infer(*bottoms)

    def probabilities(self, rec: Recorder, x: Ref) -> None:
        term, norm = self.norms[self.param.softmax_param.normalize_type]
        outer, _, inner = self.folded
        norms = rec.scratch("norms", (outer, 1, inner))
        reduce(rec, f"v0 = {term}", reads=[x.view(self.folded)], writes=[norms], axes=[1], finish=f"y0 = {norm}")
        pointwise(rec, "y0 = x0 / x1", reads=[x.view(self.folded), (norms, 0)], writes=[self.prob.view(self.folded)])


class WeightedSoftmaxWithLoss(ProbabilityLoss):
    """Cross-entropy of the softmax, with each position weighted by its label's class_weighting (SegNet). The normalizer ignores the weights."""

    origin = "SegNet"
    message = "softmax_param"
    value = "l * x3 * -log(p < FLT_MIN ? FLT_MIN : p)"
    slope = "x4 * (p - l)"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops = super().infer(*bottoms)
        self.weights = np.array(self.param.loss_param.class_weighting, np.float32)
        count, classes = len(self.weights), self.folded[1]
        self.check(count == classes, f"{count} class_weighting given for {classes} classes", f"write class_weighting {times(classes)}, one for each class")
        return tops

    def extra(self, rec: Recorder, bottoms: list[Blob]) -> list[Read]:
        reads: list[Read] = [(rec.constant("weights", self.weights), 1)]
        if rec.phase == "backward":  # the weight of the label, not of the class
            outer, _, inner = self.folded
            own = rec.scratch("label_weights", (outer * inner, 1))
            gather(rec, rec.constant("weights", self.weights).view((len(self.weights), 1)), bottoms[1].data.view((outer * inner,)), own)
            reads.append((own.view((outer, 1, inner)), 0))
        return reads


@register("FocalLoss")
class FocalLoss(ProbabilityLoss):
    """Focal loss of each label's probability p: -(alpha - p)^gamma log p (happynear), or -alpha (1 - p)^gamma log p (troyliu0105).

    `axis` or `activate` selects troyliu0105's. In happynear's, type: ONEADDP uses alpha + p; its gradient is exact only for alpha 1, as in the fork.
    """

    origin = "happynear, troyliu0105"

    def axis_field(self) -> int:
        return int(self.own().axis) if self.own().HasField("axis") else int(self.param.softmax_param.axis)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        tops, p = super().infer(*bottoms), self.own()
        troy = p.HasField("axis") or p.HasField("activate")
        if not troy and not p.HasField("type") and not p.HasField("beta"):
            log.warn_once("focal_loss_layer.cpp:1", f"{self.title}: taken as happynear's FocalLoss; focal_loss_param {{ axis: 1 }} says troyliu0105's")
        self.scalars = {"gamma": float(p.gamma), "alpha": float(p.alpha) if p.HasField("alpha") else 0.25 if troy else 1.0}
        one = "1 -" if troy else "alpha +" if p.type == p.ONEADDP else "alpha -"
        self.value = f"l * -{'alpha * ' if troy else ''}pow({one} p, gamma) * log(p < FLT_MIN ? FLT_MIN : p)"
        power = f"pow({one} x3, gamma)"  # x3: the probability of the label
        base, sign = ("1 + x3", "+") if not troy and p.type == p.ONEADDP else ("fmax(1 - x3, 1e-10)", "-")
        self.slope = f"{'alpha * ' if troy else ''}({power} {sign} gamma * {power} / ({base}) * log(x3 < FLT_MIN ? FLT_MIN : x3) * x3) * (p - l)"
        return tops

    def extra(self, rec: Recorder, bottoms: list[Blob]) -> list[Read]:
        if rec.phase != "backward":
            return []
        outer, classes, inner = self.folded  # `own`: the probability of the label at each position
        own = rec.scratch("label_prob", (outer, inner))
        reads: list[Read] = [self.prob.view(self.folded), (bottoms[1].data.view((outer, 1, inner)), 0),
                             (rec.constant("classes", np.arange(classes, dtype=np.float32)), 1)]  # fmt: skip
        reduce(rec, "v0 = trunc(x1) == x2 ? x0 : 0", reads=reads, writes=[own], axes=[1])
        return [(own.view((outer, 1, inner)), 0)]


@register("InfogainLoss")
class InfogainLoss(ProbabilityLoss):
    """Sum over classes of -H[label, class] log p[class] with p = softmax; H is bottom 2 or the matrix in the file `source`."""

    bottoms = (2, 3)
    value = "x3 * -log(p < 1e-20 ? 1e-20 : p)"
    slope = "x4 * p - x3"

    def axis_field(self) -> int:
        return int(self.own().axis)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.check(
            not self.param.loss_param.HasField("normalize"),
            "loss_param { normalize } is refused, as in Caffe",
            f"replace it by normalization: {'VALID' if self.param.loss_param.normalize else 'BATCH_SIZE'}",
        )
        tops = super().infer(*bottoms)
        classes = self.folded[1]
        if len(bottoms) > 2:
            shape = bottoms[2]
        else:
            self.check(self.own().source, "there is neither a third bottom nor infogain_loss_param { source }, and one must give H",
                       "give H as bottom 2, or write source: the path of a .binaryproto file with H")  # fmt: skip
            try:
                self.matrix = np.asarray(read_blobproto(pathlib.Path(self.own().source)), np.float32)
            except (Error, OSError) as problem:
                told, fix = (f"{problem.place}: {problem.fact}", problem.fix) if isinstance(problem, Error) else (str(problem), None)
                raise self.error(
                    f"H cannot be read: {told}",
                    fix or f"give the path of a .binaryproto file of {shape_text((1, 1, classes, classes))}",
                ) from problem
            shape = self.matrix.shape
        wanted = (1, 1, classes, classes)
        self.check(
            tuple(shape[-2:]) == wanted[2:] and int(np.prod(shape)) == classes * classes,
            f"H is {shape_text(tuple(shape))}, bottom 0 has {classes} classes",
            f"make H {shape_text(wanted)}: a row for each label",
        )
        return tops

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def extra(self, rec: Recorder, bottoms: list[Blob]) -> list[Read]:
        outer, classes, inner = self.folded
        matrix = bottoms[2].data if len(bottoms) > 2 else rec.constant("H", self.matrix)
        matrix = matrix.view((classes, classes))
        rows = rec.scratch("rows", (outer * inner, classes))
        gather(rec, matrix, bottoms[1].data.view((outer * inner,)), rows)
        reads: list[Read] = []
        if inner == 1:
            reads.append(rows.view(self.folded))
        else:
            moved = rec.scratch("moved", self.folded)
            permute(rec, rows, moved, (outer, inner, classes), (0, 2, 1))
            reads.append(moved)
        if rec.phase == "backward":
            sums = rec.scratch("row_sums", (outer * inner,))
            reduce(rec, "v0 = x0", reads=[rows], writes=[sums], axes=[1])
            reads.append((sums.view((outer, 1, inner)), 0))
        return reads
