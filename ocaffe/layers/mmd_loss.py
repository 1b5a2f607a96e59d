"""MMDLoss: the distance between two sets of features, for adaptation to another domain."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.rearrange.rows import gather, gather_adjoint
from ocaffe.layers.base import Layer, register, stated

PAIRS = ((0, 1, 1), (0, 3, -1), (2, 1, -1), (2, 3, 1))  # of a draw's samples (two of the source, two of the target), and the sign of their kernel
KERNELS = 16  # the most kernels


@register("MMDLoss")
class MMDLoss(Layer):
    """The maximum mean discrepancy of source features (N x ..) and target features (M x ..), from random draws with several Gaussian kernels.

    One of max(N, M) draws takes two source samples s, s' and two target samples t, t', and adds k(s, s') + k(t, t') - k(s, t') - k(t, s'). k(a, b) is the
    sum of exp(-g |a - b|^2) for kernel_num numbers g with the ratio kernel_mul; the middle one is the inverse of the mean of |a - b|^2 over all pairs of
    both sets, that of the first pass with fix_gamma. g counts as a constant. As in the fork, the value is the sum over the draws, and the gradient is that
    of their mean. The fork draws again for the gradient; here it has the same draws. It is in no deploy net.
    Source: thuml/transfer-caffe, src/caffe/layers/mmd_layer.cu.
    """

    origin = "Deep adaptation networks (transfer-caffe)"
    message = "mmd_param"
    bottoms = 2
    is_loss = True
    kept: Ref | None = None  # the middle number g, with fix_gamma

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (source, target) = self.own(), bottoms
        texts = f"bottom 0 is {shape_text(source)}, bottom 1 is {shape_text(target)}"
        for index, x in enumerate(bottoms):
            self.check(x, f"bottom {index} is a scalar, MMDLoss takes N x K: samples and features", f"give bottom {index} 2 axes")
            self.check_filled(x, index)
        fits = math.prod(source[1:]) == math.prod(target[1:])
        self.check(
            fits,
            f"{texts}: the numbers of features differ",
            f"give bottom 1 the shape {target[0]} x {math.prod(source[1:])}, by num_output of its layer",
        )
        self.check(min(source[0], target[0]) >= 2, f"{texts}: a bottom has one sample", "give both bottoms a batch of 2 samples or more")
        self.check(1 <= p.kernel_num <= KERNELS, stated(p, "kernel_num"), f"set kernel_num to a number from 1 to {KERNELS}")
        self.check(p.kernel_mul > 0, stated(p, "kernel_mul"), "set kernel_mul above 0")
        self.counts, self.features = (source[0], target[0]), math.prod(source[1:])
        self.draws = max(self.counts)
        self.ratios = [float(p.kernel_mul) ** (k - p.kernel_num // 2) for k in range(p.kernel_num)]
        return [()]

    def force_backward(self, bottom: int) -> bool:
        return True

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        keep = rec.saved if rec.train else rec.scratch
        sets = [bottom.data.view((count, self.features)) for bottom, count in zip(bottoms, self.counts)]
        self.middle = keep("middle", ())
        self._measure(rec, sets)
        # Rows 0, 1 of `numbers` are source samples, 2, 3 target samples.
        self.numbers = keep("numbers", (4, self.draws))
        rows = [self.numbers.view((self.draws,), k * self.draws) for k in range(4)]
        for k, (first, second) in enumerate((rows[:2], rows[2:])):
            text = "y0 = fmin(floor(uniform * n), n - 1)"
            scalars = {"n": float(self.counts[k])}
            pointwise(rec, text, writes=[first], scalars=scalars, random=f"first{k}")
            other = "i = fmin(floor(uniform * n), n - 1); j = i == x0 ? i + 1 : i; y0 = j < n ? j : 0"
            pointwise(rec, other, reads=[first], writes=[second], scalars=scalars, random=f"second{k}")
        self.samples = keep("samples", (4, self.draws, self.features))
        for k, row in enumerate(rows):
            gather(rec, sets[k // 2], row, self._sample(k))
        self.distances = keep("distances", (4, self.draws))
        for k, (i, j, _) in enumerate(PAIRS):
            reduce(rec, "d = x0 - x1; v0 = d * d", reads=[self._sample(i), self._sample(j)], writes=[self._pair(k)], axes=[1])
        terms = [f"exp(-g{k} * x{{0}})" for k in range(len(self.ratios))]
        text = " + ".join(f"({sign}) * ({' + '.join(terms).format(k)})" for k, (_, _, sign) in enumerate(PAIRS))
        reads: list[Read] = [*(self._pair(k) for k in range(4)), (self.middle, 0)]
        reduce(rec, f"{self._numbers('x4')}; v0 = {text}", reads=reads, writes=[tops[0].data.view(())], axes=[0], scalars=self._scalars())

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        slopes = rec.scratch("slopes", (4, self.draws, 1))
        terms = " + ".join(f"g{k} * exp(-g{k} * x0)" for k in range(len(self.ratios)))
        for k, (_, _, sign) in enumerate(PAIRS):
            reads: list[Read] = [self._pair(k), (self.middle, 0), (tops[0].diff.view(()), 0)]
            scalars = {**self._scalars(), "factor": -2.0 * sign / self.draws}
            write = slopes.view((self.draws,), k * self.draws)
            pointwise(rec, f"{self._numbers('x1')}; y0 = factor * x2 * ({terms})", reads=reads, writes=[write], scalars=scalars)
        for side, (bottom, wanted) in enumerate(zip(bottoms, propagate)):
            if not wanted:
                continue
            moved = rec.scratch(f"moved{side}", (2 * self.draws, self.features), role=Role.DIFF)
            for part, own in enumerate((2 * side, 2 * side + 1)):
                pairs = [(k, i + j - own) for k, (i, j, _) in enumerate(PAIRS) if own in (i, j)]
                reads = [self._sample(own), *(self._sample(other) for _, other in pairs)]
                reads += [(slopes.view((self.draws, 1), k * self.draws), 0) for k, _ in pairs]
                write = moved.view((self.draws, self.features), part * self.draws * self.features)
                pointwise(rec, "y0 = x3 * (x0 - x1) + x4 * (x0 - x2)", reads=reads, writes=[write])
            numbers = self.numbers.view((2 * self.draws,), 2 * side * self.draws)
            gather_adjoint(rec, moved, numbers, rec.diff_of(bottom).view((self.counts[side], self.features)))

    def _measure(self, rec: Recorder, sets: Sequence[Ref]) -> None:
        """Record `middle`. The sum of |a - b|^2 over all pairs of n samples is 2 n times that of the squared distances from their mean."""
        total, sums = sum(self.counts), rec.scratch("sums", (2, self.features))
        parts = [sums.view((self.features,), k * self.features) for k in range(2)]
        spread = [rec.scratch(f"spread{k}", ()) for k in range(2)]
        for samples, part in zip(sets, parts):
            reduce(rec, "v0 = x0", reads=[samples], writes=[part], axes=[0])
        for samples, result in zip(sets, spread):
            reads: list[Read] = [samples, *((part, 1) for part in parts)]
            reduce(rec, "d = x0 - (x1 + x2) / n; v0 = d * d", reads=reads, writes=[result], axes=[0, 1], scalars={"n": float(total)})
        text, scalars = "g = share / (x0 + x1)", {"share": (total - 1) / 2}
        if not self.own().fix_gamma:
            pointwise(rec, f"{text}; y0 = g", reads=list(spread), writes=[self.middle], scalars=scalars)
            return
        if self.kept is None:
            self.kept = Ref(f"{self.param.name}.gamma", (), Role.STATE, value=-1.0)
        text += "; m0 = m0 < 0 ? g : m0; y0 = m0"
        pointwise(rec, text, reads=list(spread), writes=[self.middle], modifies=[self.kept], scalars=scalars, side_effect=True)

    def _sample(self, number: int) -> Ref:
        return self.samples.view((self.draws, self.features), number * self.draws * self.features)

    def _pair(self, number: int) -> Ref:
        return self.distances.view((self.draws,), number * self.draws)

    def _numbers(self, middle: str) -> str:
        return "; ".join(f"g{k} = {middle} * ratio{k}" for k in range(len(self.ratios)))

    def _scalars(self) -> dict[str, float]:
        return {f"ratio{k}": ratio for k, ratio in enumerate(self.ratios)}
