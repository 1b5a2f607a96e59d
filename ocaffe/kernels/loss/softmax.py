"""Operations along an axis of classes: softmax, softmax with loss, accuracy (softmax.cl, softmax_cpu.cl)."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ocaffe.ir.kernel import COUNTERS, JOIN, PARTS, Can, Kernel, read, reads, write, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, split_axes
from ocaffe.kernels.expression.expression import pointwise, reduce

FILES = ("softmax", Can()), ("softmax_cpu", JOIN)
SOFTMAX, SOFTMAX_CPU = (Kernel(f"{file}.softmax", read("x"), write("y"), can=can) for file, can in FILES)
SOFTMAX_OF_ROWS = Kernel("softmax_cpu.softmax_of_rows", read("x"), write("y"), can=JOIN)
BACKWARD, BACKWARD_CPU = (Kernel(f"{file}.softmax_backward", *reads("y", "dy"), write("dx"), can=can) for file, can in FILES)
TOTAL = Kernel("softmax.total", read("parts"), *writes("sums", "result"))
LOSS = Kernel("softmax.softmax_loss", *reads("x", "label"), COUNTERS, *writes("prob", "sums", "loss"), PARTS)
LOSS_CPU = Kernel("softmax_cpu.softmax_loss", *reads("x", "label"), *writes("prob", "parts"), can=JOIN)
LOSS_BACKWARD, LOSS_BACKWARD_CPU = (
    Kernel(f"{file}.softmax_loss_backward", *reads("prob", "label", "sums", "weight"), write("dx"), can=can) for file, can in FILES
)
ACCURACY = Kernel("softmax.accuracy", *reads("x", "label"), COUNTERS, *writes("hits", "sums", "result"), PARTS)
ACCURACY_CPU = Kernel("softmax_cpu.accuracy", *reads("x", "label"), *writes("hits", "parts"), can=JOIN)
PER_CLASS = Kernel("softmax.accuracy_per_class", *reads("label", "hits"), write("y"))
ONE_GROUP = 32768  # maximum scores that one group sums, which saves small nets a launch
CPU_POSITIONS = 16  # positions per work-item of softmax_cpu.cl, which needs rows at least this long
Ignore = tuple[int, int]  # (whether a label is ignored, the ignored label)
Places = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Classes:
    """A Ref as (outer, classes, inner), and its division among work-items. The kernel files explain `mid`, `group` and `lanes`."""

    outer: int
    classes: int
    inner: int
    mid: int
    group: int
    lanes: int
    rows: bool  # whether softmax_cpu.cl is used

    @classmethod
    def of(cls, rec: Recorder, scores: Ref, axis: int) -> Classes:
        outer, classes, inner = split_axes(scores.shape, axis)
        group = rec.target.group(64 if rec.target.is_cpu else 256)
        lanes = 1 if inner >= 16 else min(group, 1 << (classes - 1).bit_length())
        mid = outer // scores.shape[0] if axis else 0
        return cls(outer, classes, inner, mid, group, lanes, rec.target.is_cpu and inner >= CPU_POSITIONS)

    @property
    def positions(self) -> int:
        return self.outer * self.inner

    def launch(self, rec: Recorder, kernel: Kernel, kernel_cpu: Kernel, args: Sequence[Any], inplace: Places = (), **operands: Ref) -> None:
        """Record a kernel over all positions: that of softmax_cpu.cl if it is used, else that of softmax.cl."""
        if self.rows:
            size, shape = (-(-self.inner // CPU_POSITIONS), self.outer), (self.classes, self.inner, self.mid)
            rec.launch(kernel_cpu(**operands), args=[*shape, *args], size=size, local=(1, 1), inplace=inplace)
        else:
            groups = -(-self.positions * self.lanes // self.group)
            self.launch_groups(rec, kernel, groups, [*self._shape_args, *args], inplace, **operands)

    def launch_sum(
        self,
        rec: Recorder,
        kernel: Kernel,
        kernel_cpu: Kernel,
        sums: Ref,
        total: str,
        args: Sequence[Any],
        fixed: float,
        inplace: Places = (),
        **operands: Ref,
    ) -> None:
        """Record a kernel that sums over positions: sums = (sum, counted), result = sum / divisor. `total`: the operand for the result.

        The last work-group adds the partial sums. Without last-block reduction, a second launch adds them unless there is only one group.
        """
        if self.rows:
            partials = rec.scratch("sums", (self.outer * -(-self.inner // CPU_POSITIONS), 2))
            given = {name: ref for name, ref in operands.items() if name != total}
            self.launch(rec, kernel, kernel_cpu, args, inplace, **given, parts=partials)
        else:
            tiles = -(-self.positions * self.lanes // self.group)
            most = 8 * rec.target.compute_units
            if rec.target.last_block_reduction:
                groups = min(tiles, most)
                more = {"counters": rec.completion_counters.view((1,)), "sums": sums, "parts": rec.scratch("sums", (groups, 2))}
                self.launch_groups(rec, kernel, groups, [*self._shape_args, fixed, *args], inplace, **operands, **more)
                return
            groups = 1 if self.positions * self.classes <= ONE_GROUP else min(tiles, most)
            partials = rec.scratch("sums", (groups, 2)) if groups > 1 else sums
            self.launch_groups(rec, kernel, groups, [*self._shape_args, fixed, *args], inplace, **operands, sums=partials)
        if partials is not sums:
            self.launch_groups(rec, TOTAL, 1, [partials.shape[0], fixed], parts=partials, sums=sums, result=operands[total])

    def launch_groups(self, rec: Recorder, kernel: Kernel, groups: int, args: Sequence[Any], inplace: Places = (), **operands: Ref) -> None:
        """Record a kernel of softmax.cl with work-groups."""
        size, local = (groups * self.group,), (self.group,)
        rec.launch(kernel(**operands), args=args, size=size, local=local, defines=self.defines(rec), inplace=inplace)

    def defines(self, rec: Recorder) -> dict[str, Any]:
        return {"GROUP": self.group} | ({"DEVICE_FENCE": rec.target.device_fence} if rec.target.last_block_reduction else {})

    @property
    def _shape_args(self) -> tuple[int, ...]:
        return self.positions, self.classes, self.inner, self.mid, self.lanes


def softmax(rec: Recorder, x: Ref, y: Ref, axis: int) -> None:
    """y = exp(x) / sum of exp(x) along `axis`."""
    classes = Classes.of(rec, x, axis)
    if rec.target.is_cpu and classes.inner == 1 and classes.mid:
        args, size = [classes.classes, classes.mid], (1, classes.outer)
        rec.launch(SOFTMAX_OF_ROWS(x=x, y=y), args=args, size=size, local=(1, 1), inplace=[("x", "y")])
    else:
        classes.launch(rec, SOFTMAX, SOFTMAX_CPU, [], [("x", "y")], x=x, y=y)


def softmax_backward(rec: Recorder, y: Ref, dy: Ref, dx: Ref, axis: int) -> None:
    """dx = y (dy - sum of dy y along `axis`)."""
    Classes.of(rec, y, axis).launch(rec, BACKWARD, BACKWARD_CPU, [rec.accumulates(dx)], [("dy", "dx")], y=y, dy=dy, dx=dx)


def softmax_loss(
    rec: Recorder, x: Ref, label: Ref, prob: Ref, sums: Ref, loss: Ref, axis: int, *, ignore: Ignore, normalizer: float, smoothing: float = 0
) -> None:
    """prob = softmax(x); loss = sum of -log(prob of the label) / normalizer. A `normalizer` of 0 means the number of labels not ignored.

    `label` has one value per position. `sums` has two values, which the backward pass reads. An invalid label makes the loss NaN.
    `smoothing` is the share of each target that is distributed evenly to all classes (label smoothing).
    """
    args = [label.dense_stride, *ignore, float(smoothing)]
    of = Classes.of(rec, x, axis)
    of.launch_sum(rec, LOSS, LOSS_CPU, sums, "loss", args, float(normalizer), [("x", "prob")], x=x, label=label, prob=prob, loss=loss)


def softmax_loss_backward(
    rec: Recorder, prob: Ref, label: Ref, sums: Ref, weight: Ref, dx: Ref, axis: int, *, ignore: Ignore, normalizer: float, smoothing: float = 0
) -> None:
    """dx = (prob - target) * weight / normalizer, and 0 for an ignored label. `weight` is a scalar on the device.

    Without `smoothing`, the target is 1 for the label and 0 for other classes.
    """
    of = Classes.of(rec, prob, axis)
    args = [label.dense_stride, *ignore, float(smoothing), float(normalizer), rec.accumulates(dx)]
    operands = {"prob": prob, "label": label, "sums": sums, "weight": weight, "dx": dx}
    if of.rows:
        of.launch(rec, LOSS_BACKWARD, LOSS_BACKWARD_CPU, args, [("prob", "dx")], **operands)
        return
    if of.mid == 0:
        size = (of.inner, of.classes, 1)
    elif of.inner == 1:
        size = (of.classes, of.mid, prob.shape[0])
    else:
        size = (of.inner, of.mid * of.classes, prob.shape[0])
    rec.launch(
        LOSS_BACKWARD(**operands),
        args=[of.classes, of.inner, of.mid, *args],
        size=size,
        local=(min(of.group, 64), 1, 1),
        defines=of.defines(rec),
        inplace=[("prob", "dx")],
    )


def soft_loss(rec: Recorder, x: Ref, target: Ref, prob: Ref, loss: Ref, axis: int, *, normalizer: float, smoothing: float = 0) -> None:
    """prob = softmax(x); loss = sum of -t log(prob) / normalizer. `target` has the shape of x; `smoothing` of it is distributed evenly: t."""
    softmax(rec, x, prob, axis)
    text = "q = x0 < FLT_MIN ? FLT_MIN : x0; v0 = -(on * x1 + off) * log(q)"
    reduce(
        rec, text, reads=[prob, target], writes=[loss], axes=range(len(x.shape)), finish="y0 = v0 / n",
        scalars={**_shares(x.shape[axis], smoothing), "n": normalizer},
    )  # fmt: skip


def soft_loss_backward(rec: Recorder, prob: Ref, target: Ref, weight: Ref, dx: Ref, axis: int, *, normalizer: float, smoothing: float = 0) -> None:
    """dx = (prob - t) * weight / normalizer. The targets of a position sum to 1. `weight` is a scalar on the device."""
    pointwise(
        rec, "y0 = (x0 - (on * x1 + off)) * x2 / n", reads=[prob, target, (weight.view(()), 0)], writes=[dx],
        scalars={**_shares(prob.shape[axis], smoothing), "n": normalizer},
    )  # fmt: skip


def _shares(classes: int, smoothing: float) -> dict[str, float]:
    return {"on": 1 - smoothing, "off": smoothing / classes}


def accuracy(rec: Recorder, x: Ref, label: Ref, result: Ref, per_class: Ref | None, axis: int, *, ignore: Ignore, top_k: int) -> None:
    """result = the share of labels whose score is among the `top_k`. Equal scores of other classes count as better.

    `per_class` has the same share for each label. A share of no labels is 0. An invalid label makes `result` NaN.
    """
    of = Classes.of(rec, x, axis)
    hits = rec.scratch("hits", (of.positions,), "int8")
    args = [label.dense_stride, *ignore, top_k]
    of.launch_sum(rec, ACCURACY, ACCURACY_CPU, rec.scratch("sum", (2,)), "result", args, 0.0, x=x, label=label, hits=hits, result=result)
    if per_class is not None:
        of.launch_groups(rec, PER_CLASS, of.classes, [of.positions, label.dense_stride], label=label, hits=hits, y=per_class)
