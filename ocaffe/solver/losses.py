"""The loss that the log shows: the mean over the last average_loss iterations, in Caffe's float arithmetic."""
from __future__ import annotations

import numpy as np


class SmoothedLoss:
    """`value` is the mean of `window`, the last `size` losses (fewer at the beginning)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.window: list[np.float32] = []
        self.value = np.float32(0)
        self._sum = np.float32(0)

    def restart(self) -> None:
        """Forget all losses: every call of step does (quirk 34)."""
        self.window, self.value = [], np.float32(0)

    def add_pass(self, loss: np.float32, index: int, passes: int, since: int) -> None:
        """The loss of pass `index` of the `passes` of an iteration, the `since`-th after the restart."""
        self._sum = loss if index == 0 else np.float32(self._sum + loss)
        if index == passes - 1:
            self.add(np.float32(self._sum / np.float32(passes)), since)

    def add(self, loss: np.float32, since: int) -> None:
        """The loss of a whole iteration."""
        count = np.float32(len(self.window))
        if len(self.window) < self.size:
            self.window.append(loss)
            self.value = np.float32((self.value * count + loss) / (count + np.float32(1)))
        else:
            index = since % self.size
            self.value = np.float32(self.value + (loss - self.window[index]) / np.float32(self.size))
            self.window[index] = loss
