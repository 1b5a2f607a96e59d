"""A range of learning rates in one short training: the rate rises from iteration to iteration, and the loss shows where it helps and where it harms.

The learning rate range test of Smith, "Cyclical Learning Rates for Training Neural Networks", arXiv 1506.01186. The rates are a geometric series.
"""
from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ocaffe.errors import Error
from ocaffe.solver.watch import Watch

LOWEST, HIGHEST, STEPS = 1e-6, 10.0, 140  # 20 rates for each power of ten
SMOOTHING = 0.9  # of the running mean of losses
DIVERGED = 3.0  # times the least smoothed loss: the test ends
MARGIN = 10.0  # the suggested rate is so many times below that of the least loss: at that rate the training is about to diverge
FIRST = 20  # iterations whose rates are too small to change a net: their losses show the noise of batches
FALL, NOISE = 0.02, 4.0  # the loss must fall by this share, and by so many deviations of the smoothed loss
OTHERS = ("test_", "snapshot", "early_stopping", "best_", "ema_", "warmup_", "rampup_", "plateau_", "onecycle_", "stage", "step", "min_lr", "display", "eval_")


def ranged(param: Any) -> Any:
    """Return the SolverParameter of the test: the same net, data and update, without tests and snapshots."""
    made = type(param).FromString(param.SerializeToString())
    for described, _ in param.ListFields():
        if described.name.startswith(OTHERS):
            made.ClearField(described.name)
    made.base_lr, made.lr_policy, made.gamma = LOWEST, "exp", (HIGHEST / LOWEST) ** (1 / STEPS)
    made.max_iter, made.display, made.average_loss, made.snapshot_after_train = STEPS, 1, 1, False
    return made


@dataclass
class RateRange(Watch):
    """Collects the losses of the test. `request` ends it once the loss has risen far."""

    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # smoothed
    raw: list[float] = field(default_factory=list)
    _mean: float = 0.0

    def record(self, record: dict[str, Any]) -> None:
        loss = float(record["loss"])
        if record["phase"] == "train" and math.isfinite(loss) and not self.diverged:
            self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * loss
            self.raw.append(loss)
            self.rates.append(float(record["lr"]))
            self.losses.append(self._mean / (1 - SMOOTHING ** len(self.rates)))

    @property
    def diverged(self) -> bool:
        return len(self.losses) > FIRST and self.losses[-1] > DIVERGED * max(min(self.losses), 1e-30)

    def request(self) -> str:
        return "stop" if self.diverged else ""

    def suggestion(self) -> float:
        """Return the suggested base_lr, with one digit. Raise Error if no rate makes the loss fall."""
        if len(self.losses) <= FIRST:
            raise Error("no loss is finite", fix="train with a smaller scale of the data, or other fillers: `ocaffe lint` looks for reasons")
        least = min(range(FIRST, len(self.losses)), key=self.losses.__getitem__)
        first, best = statistics.fmean(self.raw[:FIRST]), self.losses[least]
        deviation = statistics.stdev(self.raw[:FIRST]) * math.sqrt((1 - SMOOTHING) / (1 + SMOOTHING))
        if best > min((1 - FALL) * first, first - NOISE * deviation):
            fact = f"the loss is {first:.4g} at first, and {best:.4g} at best: no rate from {LOWEST:g} to {self.rates[-1]:.2g} makes it fall"
            raise Error(fact, fix="check that images and labels belong together, and the fillers: `ocaffe lint` looks for reasons")
        return float(f"{self.rates[least] / MARGIN:.0e}")

    def table(self) -> Iterator[str]:
        """Lines of rates and losses, a few for each power of ten, with a bar of the loss's length."""
        shown = [*range(0, len(self.rates), 7)]
        most = max((self.losses[index] for index in shown), default=1.0) or 1.0
        yield f"{'rate':>9}  {'loss':>9}"
        for index in shown:
            yield f"{self.rates[index]:>9.1e}  {self.losses[index]:>9.4g}  {'#' * max(0, round(40 * self.losses[index] / most))}"


def lines(found: RateRange, command: Sequence[str]) -> Iterator[str]:
    """The answer of the test. `command`: the words of the training, to which the rate is added. Raise Error if no rate makes the loss fall."""
    yield from found.table()
    rate = found.suggestion()
    yield f"the loss is least at a rate of about {MARGIN * rate:.0e}; a tenth of it is a good base_lr to begin with"
    yield " ".join([*command, "--set", f"base_lr={rate:g}"])
