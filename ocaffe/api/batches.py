"""Split arrays of any number of rows into batches of fixed size, for `forward_all` and `forward_backward_all`."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ocaffe.errors import WrongValue


def batches(arrays: Mapping[str, Any], size: int) -> Iterator[tuple[dict[str, np.ndarray], int]]:
    """Yield chunks of `size` rows of all arrays, and the number of real rows in each. Zeros pad the last chunk.

    Raises Error if the arrays differ in their number of rows.
    """
    whole = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    rows = {name: len(array) if array.ndim else 0 for name, array in whole.items()}
    if len(set(rows.values())) > 1 or not all(rows.values()):
        fact = f"the arrays have {', '.join(f'{count} ({name})' for name, count in rows.items())} rows"
        raise WrongValue(fact, fix="give as many rows in each array, at least one")
    count = next(iter(rows.values()), 0)
    for begin in range(0, count, size):
        end = min(begin + size, count)
        yield {name: _filled(array[begin:end], size) for name, array in whole.items()}, end - begin


def _filled(rows: np.ndarray, size: int) -> np.ndarray:
    if len(rows) == size:
        return rows
    return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])


def collect(found: dict[str, list[np.ndarray]], results: Mapping[str, np.ndarray], rows: int) -> None:
    """Append copies of the real rows of a batch to `found`. A scalar, such as a loss, adds one value per batch."""
    for name, array in results.items():
        found.setdefault(name, []).append(np.array(array[:rows] if array.ndim else array[None]))
