"""The loss and test outputs of a training by iteration, from the file that `ocaffe train --log_json` writes."""
from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from ocaffe.support.files import open_plain

TRAIN_LOSS = "train_loss"


def column(owners: dict[str, int], output: str, net: int) -> str:
    """Return the name of an output of TEST net `net`. Only the first net with an output of this name has it without an addition.

    `owners`: the net of each name so far; the name is added.
    """
    return output if owners.setdefault(output, net) == net else f"{output} (net {net})"


class Score(NamedTuple):
    value: float
    iteration: int


class History:
    """Values by iteration and name. `read` adds the records that the training has written since the last call.

    A training that continues from a snapshot repeats iterations. Records of the earlier attempt beyond that point are dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[int, dict[str, float]] = {}
        self.iteration = 0  # of the newest record
        self._at = 0  # bytes that were read
        self._owners: dict[str, int] = {}

    def read(self) -> None:
        with contextlib.suppress(FileNotFoundError), open_plain(self.path) as stream:
            stream.seek(self._at)
            for line in stream:
                if not line.endswith(b"\n"):
                    return  # the training is still writing it
                self._at += len(line)
                with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):  # a line that a full disk has cut off
                    self._add(json.loads(line))

    def _add(self, record: dict[str, Any]) -> None:
        iteration = int(record["iteration"])
        if record["phase"] == "train":
            values = {TRAIN_LOSS: float(record["loss"])}
        else:
            values = {column(self._owners, name, record["net"]): float(each[0]) for name, each in record["outputs"].items() if len(each) == 1}
        if iteration < self.iteration:
            self.rows = {number: row for number, row in self.rows.items() if number <= iteration}
        self.iteration = iteration
        self.rows.setdefault(iteration, {}).update(values)

    def last(self) -> dict[str, float]:
        """Return the newest value of each name: outputs of the TEST nets first."""
        found: dict[str, float] = {}
        for row in self.rows.values():
            found.update(row)
        return {name: found[name] for name in sorted(found, key=TRAIN_LOSS.__eq__)}

    def best(self, name: str, lower: bool) -> Score | None:
        """Return the best value of `name`, and the first iteration that has it. NaN is never the best."""
        values = [Score(row[name], iteration) for iteration, row in self.rows.items() if name in row and not math.isnan(row[name])]
        return min(values, key=lambda score: (score.value if lower else -score.value, score.iteration), default=None)
