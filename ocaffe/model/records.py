"""The content of weights and solver state files, whatever their format: Weights and SolverState."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass
class LayerWeights:
    """One layer of a weights file. `blobs` are read-only arrays as stored; None where an HDF5 file left out a blob because
    another layer, which shares it, has it. `type` is '' where the file does not say."""

    name: str
    type: str = ""
    blobs: list[np.ndarray | None] = field(default_factory=list)


@dataclass
class Weights:
    """The layers of a weights file, in its order, layers without blobs included."""

    name: str
    layers: list[LayerWeights]
    path: str = ""


class Cursor(NamedTuple):
    """Where a data layer stands: `batch` batches delivered in net 'train' or 'test 0', 'test 1', ..."""

    layer: str
    net: str
    batch: int


@dataclass
class SolverState:
    """`history`: read-only arrays in the solver's order. `learned_net`: the weights file, as the path was given.
    A state that Caffe wrote has no `cursors`, no `random_seed` and empty `choices` (JSON).

    `averaged_net`: the file of the weights' moving average, if there is one; `best_value` of the solver's best_output, reached at `best_iter`."""

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
