"""A Python layer whose two tops change their shapes, but not the sum of them."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe import pylayer


class Parted(pylayer.Layer):
    """The samples that the selector (bottom 1) chooses, and the others."""

    def setup(self, bottom: Any, top: Any) -> None:
        pass

    def reshape(self, bottom: Any, top: Any) -> None:
        self.chosen = bottom[1].data != 0
        for blob, mask in zip(top, (self.chosen, ~self.chosen)):
            blob.reshape(int(mask.sum()), *bottom[0].shape[1:])

    def forward(self, bottom: Any, top: Any) -> None:
        for blob, mask in zip(top, (self.chosen, ~self.chosen)):
            blob.data[...] = bottom[0].data[mask]

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        bottom[0].diff[...] = 0
        for blob, mask in zip(top, (self.chosen, ~self.chosen)):
            bottom[0].diff[mask] = np.asarray(blob.diff)
