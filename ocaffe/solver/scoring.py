"""Tests: forward passes over many batches, and the means of their outputs."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from ocaffe import log
from ocaffe.cl.command_list import RING, Fetched
from ocaffe.compiler.network import CompiledNet, Network
from ocaffe.log import number

Output = tuple[str, np.ndarray, float]  # name, values, loss weight


class Means:
    """Sums outputs over batches as Caffe does, in single precision."""

    def __init__(self) -> None:
        self.batches = 0
        self.loss = np.float32(0)
        self._sums: list[Output] = []

    def add(self, loss: np.float32, outputs: Sequence[Output]) -> None:
        self.batches += 1
        self.loss += loss
        if self._sums:
            outputs = [(name, total + values, weight) for (name, values, weight), (_, total, _) in zip(outputs, self._sums)]
        self._sums = list(outputs)

    @property
    def mean_loss(self) -> np.float32:
        return np.float32(self.loss / np.float32(max(self.batches, 1)))

    @property
    def outputs(self) -> list[Output]:
        """The mean of every output."""
        return [(name, total / np.float32(self.batches), weight) for name, total, weight in self._sums]


def log_outputs(source: str, prefix: str, outputs: Sequence[Output]) -> None:
    """Log one line per element. A '#' in `prefix` becomes the running number of the element."""
    count = 0
    for name, values, weight in outputs:
        for value in values:
            extra = f" (* {number(weight)} = {number(np.float32(weight) * value)} loss)" if weight else ""
            log.info(source, f"{prefix.replace('#', f'#{count}')}{name} = {number(value)}{extra}")
            count += 1


def run_batches(network: Network, batches: int, rank: int = 0) -> Iterator[tuple[CompiledNet, Fetched]]:
    """Run forward for `batches` batches and yield the results. The host is at most RING runs ahead of the device.

    If the net has a stride, several ranks share the batches: this one runs those with the numbers rank, rank + stride, ...
    """
    pending: deque[tuple[CompiledNet, Fetched]] = deque()
    start = dict(network.cursor)
    if network.stride > 1:
        network.seek({name: batch + rank for name, batch in start.items()})
    for _ in range(rank, batches, network.stride):
        shapes = network.next_shapes()
        if shapes:
            network.reshape(shapes)
        compiled = network.bound()
        compiled.commands.set_step(RATE=0.0, ITERATION=max(network.cursor.values(), default=network.runs), PASS=0, SAMPLE=0)
        compiled = network.run(compiled)
        network.runs += 1
        network.advance()
        fetched = compiled.commands.fetch()
        network.log_debug(compiled, fetched, backward=False)
        pending.append((compiled, fetched))
        if len(pending) >= RING:
            pending[-RING][1].finish()
        while pending and (pending[0][1].arrived or network.reads_late(compiled)):
            yield pending.popleft()
    if network.stride > 1:
        network.cursor = {name: batch + batches for name, batch in start.items()}
    yield from pending


def as_lists(outputs: Sequence[Output]) -> dict[str, list[float]]:
    """Return outputs as lists, for JSON."""
    return {name: [float(value) for value in values] for name, values, _ in outputs}
