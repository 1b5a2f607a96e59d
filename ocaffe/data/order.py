"""The order of records: which record is at each position of the endless sequence."""
from __future__ import annotations

import numpy as np

from ocaffe.data.source import RECORDS, SKIP, below, draws, permutation


class Order:
    """`entries` records in order, repeated without end.

    With `rand_skip` the sequence starts at a random one of the first `rand_skip` records. With `shuffle` every epoch has another random order.
    """

    def __init__(self, entries: int, shuffle: bool = False, rand_skip: int = 0) -> None:
        self.entries, self.shuffle, self.rand_skip = entries, shuffle, rand_skip
        self._orders: dict[int, np.ndarray] = {}  # of the last two epochs
        self._key: tuple[int, int] | None = None

    def records(self, key: tuple[int, int], positions: range) -> list[int]:
        """Return the numbers of the records at these positions."""
        if self.rand_skip:
            skipped = int(below(draws(key, SKIP, range(1))[0, :1], self.rand_skip)[0])
            positions = range(positions.start + skipped, positions.stop + skipped, positions.step)
        if not self.shuffle:
            return [position % self.entries for position in positions]
        if key != self._key:
            self._orders, self._key = {}, key
        return [int(self._epoch(key, position // self.entries)[position % self.entries]) for position in positions]

    def _epoch(self, key: tuple[int, int], epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            self._orders = {old: order for old, order in self._orders.items() if old == epoch - 1}
            self._orders[epoch] = permutation(key, RECORDS, epoch, self.entries)
        return self._orders[epoch]
