"""Finite floats of 32 bits in texts, flags and files of others. NaN, infinity and larger numbers would make every result NaN, without a word."""
from __future__ import annotations

from typing import Any

import numpy as np

LARGEST = float(np.finfo(np.float32).max)


def singles(what: str, values: Any) -> np.ndarray:
    """Return numbers as floats of 32 bits. Raise ValueError for NaN, and for numbers that are too large. `what` is their name, such as 'the mean'."""
    array = np.asarray(values)
    wide = array if array.dtype == np.float32 else array.astype(np.float64)
    beyond = wide[~(abs(wide) <= LARGEST)]
    if beyond.size:
        raise ValueError(f"{what} has {beyond.flat[0]:g}, which is no finite float of 32 bits")
    return array.astype(np.float32)
