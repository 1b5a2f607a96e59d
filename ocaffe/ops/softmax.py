"""Operations along an axis of classes: softmax, softmax with loss, accuracy (kernels/softmax.cl)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ocaffe.graph.ir import Ref, split_axes
from ocaffe.graph.recorder import Recorder

ONE_GROUP = 32768  # scores: up to here one group sums everything, so that a small net has one launch less
Ignore = tuple[int, int]  # whether a label is ignored, and which


@dataclass(frozen=True)
class Classes:
    """A Ref as (outer, classes, inner), and the work-groups for it; see the head of kernels/softmax.cl for `mid` and `lanes`."""

    outer: int
    classes: int
    inner: int
    mid: int
    group: int
    lanes: int

    @classmethod
    def of(cls, rec: Recorder, scores: Ref, axis: int) -> Classes:
        outer, classes, inner = split_axes(scores.shape, axis)
        most = min(64 if rec.target.is_cpu else 256, rec.target.max_work_group)
        group = 1 << (most.bit_length() - 1)
        lanes = 1 if inner >= 16 else min(group, 1 << (classes - 1).bit_length())
        return cls(outer, classes, inner, outer // scores.shape[0] if axis else 0, group, lanes)

    @property
    def positions(self) -> int:
        return self.outer * self.inner

    @property
    def groups(self) -> int:
        """One for each tile of positions."""
        return -(-self.positions * self.lanes // self.group)

    def summing_groups(self, rec: Recorder) -> int:
        """Groups of a launch whose results are summed."""
        return 1 if self.positions * self.classes <= ONE_GROUP else min(self.groups, 8 * rec.target.compute_units)

    @property
    def shape_args(self) -> tuple[int, ...]:
        return self.positions, self.classes, self.inner, self.mid, self.lanes

    def launch(
        self,
        rec: Recorder,
        kernel: str,
        groups: int,
        reads: Sequence[Ref],
        writes: Sequence[Ref],
        args: Sequence[Any] = (),
        inplace: Sequence[tuple[int, int]] = (),
    ) -> None:
        rec.launch(
            f"softmax.{kernel}",
            reads=reads,
            writes=writes,
            args=args,
            size=(groups * self.group,),
            local=(self.group,),
            defines={"GROUP": self.group},
            inplace=inplace,
        )

    def launch_sum(
        self,
        rec: Recorder,
        kernel: str,
        reads: Sequence[Ref],
        write: Ref,
        sums: Ref,
        result: Ref,
        args: Sequence[Any],
        fixed: float,
        inplace: Sequence[tuple[int, int]] = (),
    ) -> None:
        """A kernel that sums over positions: sums = (sum, counted), result = sum / divisor; with many groups in two steps."""
        groups = self.summing_groups(rec)
        parts = sums if groups == 1 else rec.scratch("sums", (groups, 2))
        self.launch(rec, kernel, groups, reads, [write, parts, result], args, inplace)
        if groups > 1:
            self.launch(rec, "total", 1, [parts], [sums, result], [groups, fixed])


def softmax(rec: Recorder, x: Ref, y: Ref, axis: int) -> None:
    """y = exp(x) / sum of exp(x) along `axis`."""
    of = Classes.of(rec, x, axis)
    of.launch(rec, "softmax", of.groups, [x], [y], of.shape_args, [(0, 0)])


def softmax_backward(rec: Recorder, y: Ref, dy: Ref, dx: Ref, axis: int) -> None:
    """dx = y (dy - sum of dy y along `axis`)."""
    of = Classes.of(rec, y, axis)
    of.launch(rec, "softmax_backward", of.groups, [y, dy], [dx], [*of.shape_args, rec.accumulates(dx)], [(1, 0)])


def softmax_loss(
    rec: Recorder, x: Ref, label: Ref, prob: Ref, sums: Ref, loss: Ref, axis: int, *, ignore: Ignore, normalizer: float
) -> None:
    """prob = softmax(x); loss = sum of -log(prob of the label) / normalizer, a `normalizer` of 0 being the number of labels not ignored.

    `label` has a value for each position, `sums` two values, which the backward pass reads. A label that is no class makes the loss NaN.
    """
    of = Classes.of(rec, x, axis)
    args = [*of.shape_args, label.dense_stride, *ignore, float(normalizer)]
    of.launch_sum(rec, "softmax_loss", [x, label], prob, sums, loss, args, float(normalizer), [(0, 0)])


def softmax_loss_backward(
    rec: Recorder, prob: Ref, label: Ref, sums: Ref, weight: Ref, dx: Ref, axis: int, *, ignore: Ignore, normalizer: float
) -> None:
    """dx = (prob - [class is label]) * weight / normalizer, 0 for an ignored label; `weight` is a scalar on the device."""
    of = Classes.of(rec, prob, axis)
    if of.mid == 0:
        size = (of.inner, of.classes, 1)
    elif of.inner == 1:
        size = (of.classes, of.mid, prob.shape[0])
    else:
        size = (of.inner, of.mid * of.classes, prob.shape[0])
    rec.launch(
        "softmax.softmax_loss_backward",
        reads=[prob, label, sums, weight],
        writes=[dx],
        args=[of.classes, of.inner, of.mid, label.dense_stride, *ignore, float(normalizer), rec.accumulates(dx)],
        size=size,
        defines={"GROUP": of.group},
        inplace=[(0, 0)],
    )


def accuracy(rec: Recorder, x: Ref, label: Ref, result: Ref, per_class: Ref | None, axis: int, *, ignore: Ignore, top_k: int) -> None:
    """result = share of the labels whose score is among the `top_k` (equal scores count against it); `per_class` the same by label.

    Both are 0 where there is nothing to count; a label that is no class makes `result` NaN.
    """
    of = Classes.of(rec, x, axis)
    hits = rec.scratch("hits", (of.positions,), "int8")
    args = [*of.shape_args, label.dense_stride, *ignore, top_k]
    of.launch_sum(rec, "accuracy", [x, label], hits, rec.scratch("sum", (2,)), result, args, 0.0)
    if per_class is not None:
        of.launch(rec, "accuracy_per_class", of.classes, [label, hits], [per_class], [of.positions, label.dense_stride])
