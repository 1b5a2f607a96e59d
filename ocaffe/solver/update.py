"""The update of all parameters as launches: clip, normalise, weight decay, rule (docs/quirks.md, quirk 30)."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from ocaffe.graph.parameters import PARAMETER_ALIGNMENT, ParameterGroup
from ocaffe.ir.kernel import Can, Kernel, modify, read, reads, write
from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.solver.faults import Fault, refuse, unknown_choice

WHOLE, PIECE = 32 << 20, 4 << 20  # bytes: above WHOLE an update takes pieces, if values are in the host's memory

UPDATE = Kernel(
    "update.update", *reads("gradient", "blocks", "factors", "step", "clip"), read("guard", optional=True),
    read("rates", optional=True), *(modify(name) for name in ("weight", "history", "history2")), modify("average", optional=True), can=Can(side_effect=True),
)  # fmt: skip
EXCHANGE = Kernel("update.exchange", modify("weight"), modify("average"), can=Can(side_effect=True))
SUM_SQUARES = Kernel("update.sum_squares", read("gradient"), read("blocks"), write("partial"))
CLIP_SCALE = Kernel("update.clip_scale", read("partial"), write("result"))
LOCAL_RATES = Kernel("update.local_rates", *reads("gradients", "weights", "ranges", "factors", "step", "clip"), write("rates"))


class Rule(NamedTuple):
    """A solver type: its number in update.cl and its number of history blobs per parameter."""

    number: int
    histories: int
    takes_momentum: bool = True


RULES = {
    "SGD": Rule(0, 1), "Nesterov": Rule(1, 1), "AdaGrad": Rule(2, 1, False), "RMSProp": Rule(3, 1, False),
    "AdaDelta": Rule(4, 2), "Adam": Rule(5, 2), "AdamW": Rule(6, 2),
}  # fmt: skip


def update_faults(solver: Any) -> Iterator[Fault]:
    """Yield the values of the update that do not exist, those that Caffe refuses, and fields of forks that contradict others."""
    yield from unknown_choice(solver, "type", RULES, "unknown solver type")
    yield from unknown_choice(solver, "regularization_type", ("L1", "L2"), "unknown regularization_type")
    if solver.type in RULES and not RULES[solver.type].takes_momentum and solver.momentum:
        yield Fault("momentum", f"momentum {solver.momentum:g} cannot be used with {solver.type}", 'remove momentum, or set type: "SGD" or type: "Nesterov"')
    if solver.type == "RMSProp" and not 0 <= solver.rms_decay < 1:
        yield Fault("rms_decay", f"rms_decay is {solver.rms_decay:g}", "set rms_decay to 0 or more and below 1; 0.98 is usual")
    yield from _changing_faults(solver)
    yield from _adaptive_faults(solver)


def _changing_faults(solver: Any) -> Iterator[Fault]:
    for name, choices in {"momentum_policy": ("fixed", "poly", "opt"), "weight_decay_policy": ("fixed", "poly")}.items():
        yield from unknown_choice(solver, name, choices)
        if getattr(solver, name) == "poly" and solver.max_iter < 1:
            yield Fault(name, f"{name} is 'poly', and max_iter is {solver.max_iter}", "set max_iter to the iterations of the training")
    if solver.momentum_policy != "fixed" and solver.type != "SGD":
        fact = f"momentum_policy is '{solver.momentum_policy}', and the type is {solver.type}: NVCaffe applies it with SGD only, and ignores it else"
        yield Fault("momentum_policy", fact, 'remove momentum_policy, or set type: "SGD"')


def _adaptive_faults(solver: Any) -> Iterator[Fault]:
    if solver.larc and solver.local_lr_auto:
        yield Fault("larc", "larc (NVCaffe's) and local_lr_auto (Intel's) are both set", "remove larc, or local_lr_auto")
    for name in ("larc", "local_lr_auto"):
        if getattr(solver, name) and solver.type != "SGD":
            fact = f"{name} is set, and the type is {solver.type}: the forks apply it with SGD only, and ignore it else"
            yield Fault(name, fact, f'remove {name}, or set type: "SGD"')
    if solver.larc:
        yield from unknown_choice(solver, "larc_policy", ("scale", "clip"))


class Updater:
    """History and tables of one parameter group. Only parameters with a gradient have history, because the others never change."""

    def __init__(self, group: ParameterGroup, solver: Any, guard: Ref | None = None) -> None:
        """`solver` is the SolverParameter. The update changes nothing once `guard` is not 0. Raises Error for the first of `update_faults`."""
        refuse(update_faults(solver))
        self.group, self.solver, self.guard = group, solver, guard
        self.rule = RULES[solver.type]
        shape = (group.gradient_count,)
        self.adaptive = _adaptive(solver)
        self.momentum_changes = solver.momentum_policy != "fixed"
        self.decay_changes = solver.weight_decay_policy == "poly"
        self.history = [Ref(f"history{i}", shape, Role.HISTORY, value=0) for i in range(self.rule.histories)]
        self.average = Ref("average", shape, Role.HISTORY, value=0) if solver.ema_decay else None
        trained = [parameter for parameter in group.params if parameter.propagate]
        chunks = _chunks([parameter.count for parameter in trained])
        decay = 1.0 if self.decay_changes else solver.weight_decay
        factors = [(parameter.lr_mult, decay * parameter.decay_mult) for parameter in trained]
        self.chunks = Ref("update.chunks", (max(len(chunks), 1), 2), Role.CONSTANT, np.dtype(np.uint32), value=_table(chunks, np.uint32))
        self.factors = Ref("update.factors", (max(len(factors), 1), 2), Role.CONSTANT, value=_table(factors, np.float32))
        self.clip = Ref("update.clip", (2,), Role.OUTPUT if self.clips else Role.CONSTANT, value=None if self.clips else np.array([1, 0], np.float32))
        self.count = len(chunks)
        counts = np.bincount(chunks[:, 0], minlength=len(trained)) if len(trained) else np.zeros(0, np.int64)
        ranges = np.stack([counts.cumsum() - counts, counts], 1)
        self.ranges = Ref("update.ranges", (max(len(ranges), 1), 2), Role.CONSTANT, np.dtype(np.uint32), value=_table(ranges, np.uint32))
        self.parameters = len(trained)

    @property
    def clips(self) -> bool:
        return bool(self.solver.clip_gradients >= 0)

    @property
    def can_flush(self) -> bool:
        """Whether some parameters can be updated before others. Clipping needs all gradients, rates by norms all of a parameter."""
        return not (self.clips or self.adaptive)

    @property
    def corrects(self) -> bool:
        """Whether the rule corrects the bias of its histories, by a factor that depends on the iteration."""
        return self.rule in (RULES["Adam"], RULES["AdamW"])

    def words(self, iteration: int, rate: float) -> dict[str, float]:
        """Return the words of the step buffer for an update: rate, iteration and Adam's bias correction, in Caffe's float arithmetic."""
        result = {"RATE": rate, "ITERATION": iteration}
        if self.corrects:
            beta1, beta2, t = np.float32(self.solver.momentum), np.float32(self.solver.momentum2), np.float32(iteration + 1)
            result["SCALE"] = float(np.sqrt(np.float32(1) - np.power(beta2, t)) / (np.float32(1) - np.power(beta1, t)))
        if self.momentum_changes or self.adaptive:
            result["MOMENTUM"] = momentum_of(self.solver, iteration, rate)
        if self.decay_changes:
            result["DECAY"] = weight_decay_of(self.solver, iteration)
        return result

    def _defines(self, rec: Recorder) -> dict[str, int]:
        cpu = rec.target.is_cpu
        words = ["RATE"] + ["ITERATION"] * (self.average is not None) + ["SCALE"] * self.corrects + ["DECAY"] * self.decay_changes
        words += ["MOMENTUM"] * (self.momentum_changes or bool(self.adaptive))  # only those: command lists send the words that defines name
        return {
            "BLOCK": PARAMETER_ALIGNMENT, "V": 16 if cpu else 1, "LANES": 1 if cpu else 64,
            **({"GUARD": 1} if self.guard is not None else {}), **({"MOMENTUM": 1} if self.momentum_changes else {}),
            **({"DECAY": 1} if self.decay_changes else {}), **({"ADAPTIVE": self.adaptive} if self.adaptive else {}),
            "RULE": self.rule.number, "L1": int(self.solver.regularization_type == "L1"), "EMA": int(self.average is not None),
            **{f"STEP_{word}": STEP[word] for word in words},
        }  # fmt: skip

    def exchange(self, rec: Recorder) -> None:
        """Record a launch that swaps the trained weights and their average."""
        assert self.average is not None
        defines = self._defines(rec)
        weight = self.group.data.view(self.average.shape)
        rec.launch(EXCHANGE(weight=weight, average=self.average), size=(self.average.count // defines["V"],), defines=defines)

    def __call__(self, rec: Recorder, gradients: Ref, step: Ref, begin: int = 0) -> None:
        """Record the launches that update the range of the group that starts at element `begin`, from `gradients`."""
        if not gradients.count:
            return
        rec.enter("update", "update")
        solver = self.solver
        defines = self._defines(rec)
        lanes = int(defines["LANES"])
        if self.clips:
            partial = rec.scratch("sums", (self.count,))
            self._sum_squares(rec, gradients, partial)
            args = [self.count, float(solver.clip_gradients)]
            rec.launch(CLIP_SCALE(partial=partial, result=self.clip), args=args, size=(lanes, 1), local=(lanes, 1), defines=defines)
        rates = None
        if self.adaptive:
            squares = [rec.scratch(name, (self.count,)) for name in ("gradients", "weights")]
            for values, partial in zip((gradients, self.group.data.view(gradients.shape)), squares):
                self._sum_squares(rec, values, partial)
            rates = rec.scratch("rates", (self.parameters,))
            rec.launch(
                LOCAL_RATES(
                    gradients=squares[0], weights=squares[1], ranges=self.ranges, factors=self.factors, step=step, clip=self.clip, rates=rates,
                ),
                args=[1.0 / solver.iter_size, float(solver.larc_eta if solver.larc else solver.local_gw_ratio), float(solver.weight_decay)],
                size=(lanes, self.parameters), local=(lanes, 1), defines=defines,
            )  # fmt: skip
        for start, count in self._pieces(rec, gradients):
            self._update(rec, gradients.view((count,), start), begin + start, step, rates)

    def _pieces(self, rec: Recorder, values: Ref) -> Iterator[tuple[int, int]]:
        """Yield begin and count of the ranges in which to update a range of the group: one, unless values are on the host.

        Then all parameters together, and a large range, have several. Others are updated during backward, and their copies run beside it.
        """
        chunks = values.count // PARAMETER_ALIGNMENT
        several = rec.on_host and (values.count == self.group.gradient_count or values.nbytes > WHOLE)
        size = PIECE // (4 * PARAMETER_ALIGNMENT) if several else chunks
        for first in range(0, chunks, size):
            yield first * PARAMETER_ALIGNMENT, min(size, chunks - first) * PARAMETER_ALIGNMENT

    def _sum_squares(self, rec: Recorder, values: Ref, partial: Ref) -> None:
        """Record the sums of the squares of each chunk of the whole group."""
        defines = self._defines(rec)
        lanes = int(defines["LANES"])
        for start, count in self._pieces(rec, values):
            first, chunks = start // PARAMETER_ALIGNMENT, count // PARAMETER_ALIGNMENT
            with rec.on_device(values.view((count,), start), stores=False) as here:
                rec.launch(
                    SUM_SQUARES(gradient=here, blocks=self.chunks.view((chunks, 2), 2 * first), partial=partial.view((chunks,), first)),
                    size=(lanes, chunks), local=(lanes, 1), defines=defines,
                )  # fmt: skip

    def _update(self, rec: Recorder, gradients: Ref, begin: int, step: Ref, rates: Ref | None) -> None:
        """Record the launch that updates a range of the group. Values in the host's memory are on the device meanwhile."""
        first, count = begin // PARAMETER_ALIGNMENT, gradients.count // PARAMETER_ALIGNMENT
        defines, solver = self._defines(rec), self.solver
        lanes = int(defines["LANES"])
        with ExitStack() as stack:
            here = stack.enter_context(rec.on_device(gradients, stores=False))
            history = [stack.enter_context(rec.on_device(ref.view(gradients.shape, begin))) for ref in self.history]
            average = None if self.average is None else self.average.view(gradients.shape, begin)
            rec.launch(
                UPDATE(
                    gradient=here, blocks=self.chunks.view((count, 2), 2 * first), factors=self.factors, step=step, clip=self.clip, guard=self.guard,
                    rates=rates, weight=self.group.data.view(gradients.shape, begin), history=history[0], history2=history[-1], average=average,
                ),
                args=[1.0 / solver.iter_size, solver.momentum, solver.momentum2, solver.rms_decay, solver.delta, solver.ema_decay],
                size=(lanes, count),
                local=(lanes, 1),
                defines=defines,
            )


LARC_SCALE, LARC_CLIP, LOCAL_AUTO = 1, 2, 3  # ADAPTIVE in update.cl


def _adaptive(solver: Any) -> int:
    """Return how each parameter's rate follows from the norms of its weights and its gradient, or 0."""
    if solver.local_lr_auto:
        return LOCAL_AUTO
    return (LARC_CLIP if solver.larc_policy == "clip" else LARC_SCALE) if solver.larc else 0


def momentum_of(solver: Any, iteration: int, rate: float) -> float:
    """Return the momentum of an iteration by NVCaffe's momentum_policy: fixed, poly to max_momentum, or opt, which follows from the rate."""
    first, last = np.float32(solver.momentum), np.float32(solver.max_momentum)
    if solver.momentum_policy == "poly":
        return float(first + (last - first) * np.power(np.float32(iteration) / np.float32(solver.max_iter), np.float32(solver.momentum_power)))
    if solver.momentum_policy == "opt":
        best = np.float32((1 - 0.5 * math.sqrt(rate)) ** 2)
        return float(min(best, last) if solver.HasField("max_momentum") else best)
    return float(first)


def weight_decay_of(solver: Any, iteration: int) -> float:
    """Return the weight decay of an iteration by NVCaffe's weight_decay_policy poly: from weight_decay to max_weight_decay."""
    first, last = np.float32(solver.weight_decay), np.float32(solver.max_weight_decay)
    return float(first + (last - first) * np.power(np.float32(iteration) / np.float32(solver.max_iter), np.float32(solver.weight_decay_power)))


def _chunks(counts: Sequence[int]) -> np.ndarray:
    """Return parameter index and number of elements of each chunk.

    Chunks have PARAMETER_ALIGNMENT elements; the last chunk of a parameter can have fewer.
    """
    sizes = np.array(counts, np.int64)
    numbers = -(-sizes // PARAMETER_ALIGNMENT)
    parameter = np.repeat(np.arange(len(sizes)), numbers)
    begin = (np.arange(len(parameter)) - np.repeat(numbers.cumsum() - numbers, numbers)) * PARAMETER_ALIGNMENT
    return np.stack([parameter, np.minimum(PARAMETER_ALIGNMENT, sizes[parameter] - begin)], 1)


def _table(rows: Any, dtype: Any) -> np.ndarray:
    return np.array(rows if len(rows) else [(0, 0)], dtype)
