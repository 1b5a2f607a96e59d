"""Exchange of gradients: where a schedule averages its buckets over all ranks, and where their updates follow.

The gradients of large fully connected layers come first in backward, and rows by rows. Their products can run later, because they need only the layer's
input and the diff of its output. Then the exchange of the rows overlaps with the rest of backward, or it takes memory that is free at the end.
"""
from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from ocaffe.ir.launch import Access, BeginExchange, EndExchange, Launch, Operand
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref


class Exchanges:
    """Records the exchange of buckets. The exchange of a bucket runs beside the following launches; its update comes after its end.

    `limit`: bytes of buckets whose exchange may be in progress. More of them overlap with more of backward, and take more memory.
    """

    def __init__(self, rec: Recorder, limit: int) -> None:
        self._rec, self._limit = rec, limit
        self._open: deque[tuple[Ref, int, Callable[[], None]]] = deque()
        self._later: deque[tuple[Sequence[Launch], Ref, int, Callable[[], None]]] = deque()

    def add(self, bucket: Ref, begin: int, update: Callable[[], None]) -> None:
        """Record the begin of the exchange of `bucket`, which starts at element `begin` of the parameter group. `update` records its update later."""
        rec = self._rec
        layer, phase = rec.layer, rec.phase
        self._open.append((bucket, begin, update))
        rec.enter("exchange", "update")
        rec.add(BeginExchange("exchange", "update", [Operand(bucket, Access.READ)], begin=begin))
        while sum(ref.nbytes for ref, _, _ in self._open) > self._limit:
            self._end()
        rec.enter(layer, phase)

    def postpone(self, first: int, bucket: Ref, begin: int, update: Callable[[], None]) -> None:
        """Remove the launches from number `first` on, which compute `bucket`. `resume` records them again. The other arguments are those of `add`."""
        launches = self._rec.launches
        self._later.append((launches[first:], bucket, begin, update))
        del launches[first:]

    def resume(self, share: float) -> None:
        """Record a share of the postponed launches, at least one, each with the begin of its exchange."""
        for _ in range(math.ceil(share * len(self._later))):
            made, bucket, begin, update = self._later.popleft()
            self._rec.launches.extend(made)
            self.add(bucket, begin, update)

    def finish(self, limit: int = 0) -> None:
        """Record all that is postponed, and the end of all exchanges, each with the update that follows. `limit`: a larger one from now on."""
        self._limit = max(self._limit, limit)
        self.resume(1.0)
        while self._open:
            self._end()

    def _end(self) -> None:
        bucket, begin, update = self._open.popleft()
        self._rec.enter("exchange", "update")
        end = EndExchange("exchange", "update", [Operand(bucket, Access.MODIFY)], begin=begin)
        self._rec.add(end)
        update()
