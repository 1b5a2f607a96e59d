"""Weights and SolverState: the content of weights and solver state files, independent of the file format."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass
class LayerWeights:
    """One layer of a weights file.

    `blobs` are read-only arrays as stored. A blob is None if an HDF5 file omits it because another layer owns it.
    `type` is '' if the file has no type.
    """

    name: str
    type: str = ""
    blobs: list[np.ndarray | None] = field(default_factory=list)


@dataclass
class Weights:
    """The layers of a weights file in file order, including layers without blobs."""

    name: str
    layers: list[LayerWeights]
    path: str = ""


class Cursor(NamedTuple):
    """The position of a data layer: it has delivered `batch` batches in net 'train', 'test 0', 'test 1', ...

    `records`: in net 'train', the records that all ranks have read together. 0: the file does not tell.
    """

    layer: str
    net: str
    batch: int
    records: int = 0


@dataclass
class SolverState:
    """The content of a solver state file.

    `history`: read-only arrays in the solver's order. `learned_net`: the path of the weights file, as it was given.
    A state written by Caffe has no `cursors`, no `random_seed` and empty `choices` (JSON).
    `averaged_net`: the file with the moving average of the weights, or ''.
    `best_value`: the best value of the solver's best_output, reached at `best_iter`.
    `ranks`: the number of ranks of the training.
    """

    iter: int
    learned_net: str = ""
    history: list[np.ndarray] = field(default_factory=list)
    current_step: int = 0
    cursors: list[Cursor] = field(default_factory=list)
    random_seed: int | None = None
    choices: str = ""
    averaged_net: str = ""
    best_value: float | None = None
    best_iter: int | None = None
    ranks: int = 1

    @property
    def weights(self) -> list[str]:
        """The paths of all weights files of the snapshot."""
        return [path for path in (self.learned_net, self.averaged_net) if path]
