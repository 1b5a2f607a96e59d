"""The constant places of a ScatterND: an array whose last axis has one number for each of the first axes of the data."""
from __future__ import annotations

import numpy as np


def covers(places: np.ndarray, axis: int, column: int, size: int) -> bool:
    """Whether a column of the places counts to `size` along one of their axes, on which the other columns do not depend."""
    if places.ndim < 2 or not places.shape[-1] or places.shape[axis] != size:
        return False
    along, others = np.moveaxis(places[..., column], axis, -1), np.delete(places, column, -1)
    return bool((along == np.arange(size)).all() and (others == others.take([0], axis)).all())
