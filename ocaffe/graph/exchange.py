"""Exchange of gradients: where a schedule averages its buckets over all ranks, and where their updates follow."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ocaffe.ir.launch import Access, BeginExchange, EndExchange, Operand
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref


class Exchanges:
    """Records the exchange of buckets. The exchange of a bucket runs beside the following launches; its update comes after its end.

    `limit`: bytes of buckets whose exchange may be in progress. More of them overlap with more of backward, and take more memory.
    """

    def __init__(self, rec: Recorder, limit: int) -> None:
        self._rec, self._limit = rec, limit
        self._open: deque[tuple[Ref, int, Callable[[], None]]] = deque()

    def add(self, bucket: Ref, begin: int, update: Callable[[], None]) -> None:
        """Record the begin of the exchange of `bucket`, which starts at element `begin` of the parameter group. `update` records its update later."""
        rec = self._rec
        layer, phase = rec.layer, rec.phase
        self._open.append((bucket, begin, update))
        rec.enter("exchange", "update")
        rec.add(BeginExchange("exchange", "update", [Operand(bucket, Access.READ)], side_effect=True, what="exchange begin", begin=begin))
        while sum(ref.nbytes for ref, _, _ in self._open) > self._limit:
            self._end()
        rec.enter(layer, phase)

    def finish(self) -> None:
        """Record the end of all exchanges, each with the update that follows."""
        while self._open:
            self._end()

    def _end(self) -> None:
        bucket, begin, update = self._open.popleft()
        self._rec.enter("exchange", "update")
        end = EndExchange("exchange", "update", [Operand(bucket, Access.MODIFY)], side_effect=True, what="exchange end", begin=begin)
        self._rec.add(end)
        update()
