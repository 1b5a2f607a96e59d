"""The loss in the log: the mean over the last average_loss iterations, in Caffe's float arithmetic."""
from __future__ import annotations

import numpy as np


class SmoothedLoss:
    """`value` is the mean of `recent`, which has the last `size` losses (fewer at the start)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.recent: list[np.float32] = []
        self.value = np.float32(0)
        self._sum = np.float32(0)

    def restart(self) -> None:
        """Forget all losses, as every call of step does (docs/quirks.md, quirk 34)."""
        self.recent, self.value = [], np.float32(0)

    def add_pass(self, loss: np.float32, index: int, passes: int, since: int) -> None:
        """Add the loss of pass `index` of `passes` of an iteration, the `since`-th after the restart."""
        self._sum = loss if index == 0 else np.float32(self._sum + loss)
        if index == passes - 1:
            self.add(np.float32(self._sum / np.float32(passes)), since)

    def add(self, loss: np.float32, since: int) -> None:
        """Add the loss of a whole iteration."""
        count = np.float32(len(self.recent))
        if len(self.recent) < self.size:
            self.recent.append(loss)
            self.value = np.float32((self.value * count + loss) / (count + np.float32(1)))
        else:
            index = since % self.size
            self.value = np.float32(self.value + (loss - self.recent[index]) / np.float32(self.size))
            self.recent[index] = loss
