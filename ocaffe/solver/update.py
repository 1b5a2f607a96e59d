"""The update of all parameters as launches: clip, normalise, weight decay, rule (docs/quirks.md, quirk 30)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ocaffe.graph.parameters import PARAMETER_ALIGNMENT, ParameterGroup
from ocaffe.ir.kernel import Can, Kernel, modify, read, reads, write
from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.solver.faults import Fault, refuse

UPDATE = Kernel(
    "update.update", *reads("gradient", "blocks", "factors", "step", "clip"), read("guard", optional=True),
    *(modify(name) for name in ("weight", "history", "history2")), modify("average", optional=True), can=Can(side_effect=True),
)  # fmt: skip
EXCHANGE = Kernel("update.exchange", modify("weight"), modify("average"), can=Can(side_effect=True))
SUM_SQUARES = Kernel("update.sum_squares", read("gradient"), read("blocks"), write("partial"))
CLIP_SCALE = Kernel("update.clip_scale", read("partial"), write("result"))


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
    """Yield the values of the update that do not exist, and those that Caffe refuses."""
    for field, known in (("type", tuple(RULES)), ("regularization_type", ("L1", "L2"))):
        value = getattr(solver, field)
        if value not in known:
            near = next((name for name in known if name.lower() == value.lower()), None)
            what = "solver type" if field == "type" else field
            yield Fault(field, f"unknown {what} '{value}'", f'{field}: "{near}"' if near else f"one of {', '.join(known)}")
    if solver.type in RULES and not RULES[solver.type].takes_momentum and solver.momentum:
        yield Fault("momentum", f"momentum {solver.momentum:g} cannot be used with {solver.type}", "remove momentum, or use SGD or Nesterov")
    if solver.type == "RMSProp" and not 0 <= solver.rms_decay < 1:
        yield Fault("rms_decay", f"rms_decay is {solver.rms_decay:g}", "rms_decay: 0.98, or another number from 0 to below 1")


class Updater:
    """History and tables of one parameter group. Only parameters with a gradient have history, because the others never change."""

    def __init__(self, group: ParameterGroup, solver: Any, guard: Ref | None = None) -> None:
        """`solver` is the SolverParameter. The update changes nothing once `guard` is not 0. Raises Error for the first of `update_faults`."""
        refuse(update_faults(solver))
        self.group, self.solver, self.guard = group, solver, guard
        self.rule = RULES[solver.type]
        shape = (group.gradient_count,)
        self.history = [Ref(f"history{i}", shape, Role.HISTORY, value=0) for i in range(self.rule.histories)]
        self.average = Ref("average", shape, Role.HISTORY, value=0) if solver.ema_decay else None
        trained = [parameter for parameter in group.params if parameter.propagate]
        blocks = _blocks([parameter.count for parameter in trained])
        factors = [(parameter.lr_mult, solver.weight_decay * parameter.decay_mult) for parameter in trained]
        self.blocks = Ref("update.blocks", (max(len(blocks), 1), 2), Role.CONSTANT, np.dtype(np.uint32), value=_table(blocks, np.uint32))
        self.factors = Ref("update.factors", (max(len(factors), 1), 2), Role.CONSTANT, value=_table(factors, np.float32))
        self.clip = Ref("update.clip", (2,), Role.OUTPUT if self.clips else Role.CONSTANT, value=None if self.clips else np.array([1, 0], np.float32))
        self.count = len(blocks)

    @property
    def clips(self) -> bool:
        return bool(self.solver.clip_gradients >= 0)

    @property
    def in_parts(self) -> bool:
        """Whether parameters can be updated in parts. With clipping they cannot, because the scale depends on all gradients."""
        return not self.clips

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
        return result

    def _defines(self, rec: Recorder) -> dict[str, int]:
        cpu = rec.target.is_cpu
        words = ["RATE"] + ["ITERATION"] * (self.average is not None) + ["SCALE"] * self.corrects  # only those: command lists send the words that defines name
        return {
            "BLOCK": PARAMETER_ALIGNMENT, "V": 16 if cpu else 1, "LANES": 1 if cpu else 64,
            **({"GUARD": 1} if self.guard is not None else {}),
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
        """Record the launches that update the part of the group that starts at element `begin`, from `gradients`."""
        first, count = begin // PARAMETER_ALIGNMENT, gradients.count // PARAMETER_ALIGNMENT
        if not count:
            return
        rec.enter("update", "update")
        solver = self.solver
        defines = self._defines(rec)
        lanes = int(defines["LANES"])
        if self.clips:
            partial = rec.scratch("sums", (self.count,))
            rec.launch(SUM_SQUARES(gradient=gradients, blocks=self.blocks, partial=partial), size=(lanes, count), local=(lanes, 1), defines=defines)
            args = [self.count, float(solver.clip_gradients)]
            rec.launch(CLIP_SCALE(partial=partial, result=self.clip), args=args, size=(lanes, 1), local=(lanes, 1), defines=defines)
        states = {"weight": self.group.data, "history": self.history[0], "history2": self.history[-1], "average": self.average}
        parts = {name: ref.view(gradients.shape, begin) for name, ref in states.items() if ref is not None}
        rec.launch(
            UPDATE(
                gradient=gradients, blocks=self.blocks.view((count, 2), 2 * first), factors=self.factors, step=step, clip=self.clip,
                guard=self.guard, **parts,
            ),
            args=[1.0 / solver.iter_size, solver.momentum, solver.momentum2, solver.rms_decay, solver.delta, solver.ema_decay],
            size=(lanes, count),
            local=(lanes, 1),
            defines=defines,
        )


def _blocks(counts: Sequence[int]) -> np.ndarray:
    """Return parameter index and number of elements of each block.

    Blocks have PARAMETER_ALIGNMENT elements; the last block of a parameter can have fewer.
    """
    sizes = np.array(counts, np.int64)
    numbers = -(-sizes // PARAMETER_ALIGNMENT)
    parameter = np.repeat(np.arange(len(sizes)), numbers)
    begin = (np.arange(len(parameter)) - np.repeat(numbers.cumsum() - numbers, numbers)) * PARAMETER_ALIGNMENT
    return np.stack([parameter, np.minimum(PARAMETER_ALIGNMENT, sizes[parameter] - begin)], 1)


def _table(rows: Any, dtype: Any) -> np.ndarray:
    return np.array(rows if len(rows) else [(0, 0)], dtype)
