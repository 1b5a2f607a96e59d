"""What a net takes: `net.plan()`, memory, and `net.profile()`, time, layer by layer."""
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ocaffe.engine import Engine
from ocaffe.errors import Error
from ocaffe.memory.report import ROLES, persistent, report, size_text


@dataclass(frozen=True)
class NetPlan:
    """Bytes on the device: `fixed` by category (parameters, inputs, what is kept, ...), and `recycled`, which blobs share one after the other.

    `lower_bound`: what no plan could do without of the recycled. `launches`: kernels of a pass. `str()` is a report.
    """

    fixed: dict[str, int]
    recycled: int
    lower_bound: int
    launches: int
    lines: tuple[str, ...]

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.fixed.values()) + self.recycled

    def __str__(self) -> str:
        parts = [*self.fixed.items(), ("recycled", self.recycled), ("total", self.total)]
        return "\n".join([*self.lines, *(f"{name:<20}{size_text(size):>10}" for name, size in parts)])


def plan_of(engine: Engine) -> NetPlan:
    variant = engine.current()
    fixed = {ROLES.get(role, "kept blobs"): 0 for role in persistent([variant.recording.schedule])}
    for role, size in persistent([variant.recording.schedule]).items():
        fixed[ROLES.get(role, "kept blobs")] += size
    plan, name = variant.plan, engine.network.graph.message.name or "net"
    return NetPlan(fixed, plan.total, plan.lower_bound, len(variant.recording.schedule), tuple(report(name, variant.recording.schedule, plan)))


class LayerTime(NamedTuple):
    """Milliseconds of one layer, each waited for."""

    name: str
    type: str
    forward_ms: float
    backward_ms: float


@dataclass(frozen=True)
class NetProfile:
    """Times of all layers in the order of the net, and of whole passes, in which device and host overlap. `str()` is a table."""

    layers: tuple[LayerTime, ...]
    forward_ms: float
    backward_ms: float

    def __str__(self) -> str:
        wide = max([len(layer.name) for layer in self.layers] + [10])
        rows = [*self.layers, LayerTime("whole pass", "", self.forward_ms, self.backward_ms)]
        head = f"{'layer':<{wide}}  {'type':<16}{'forward':>12}{'backward':>12}"
        return "\n".join([head, *(f"{row.name:<{wide}}  {row.type:<16}{row.forward_ms:>9.3f} ms{row.backward_ms:>9.3f} ms" for row in rows)])


def profile(engine: Engine, iterations: int, backward: bool) -> NetProfile:
    """The mean of `iterations` passes. Raises Error for less than one. Data layers go on by the batches that it takes."""
    if iterations < 1:
        raise Error(f"profile over {iterations} iterations", fix="at least 1")
    nodes = engine.network.graph.nodes
    last = len(nodes) - 1
    clock = 0.0

    def finish() -> None:
        engine.session.device.queue.finish()

    def begin(index: int) -> None:
        nonlocal clock
        finish()
        clock = time.perf_counter()

    def end_of(times: list[float]) -> Callable[[int], None]:
        def end(index: int) -> None:
            finish()
            times[index] += time.perf_counter() - clock

        return end

    def passes() -> tuple[float, float]:
        start = time.perf_counter()
        engine.forward(0, last)
        finish()
        middle = time.perf_counter()
        if backward:
            engine.backward(last, 0)
            finish()
        return middle - start, time.perf_counter() - middle

    passes()
    whole = [passes() for _ in range(iterations)]
    forward, back = [0.0] * len(nodes), [0.0] * len(nodes)
    hooks = {"before_forward": begin, "after_forward": end_of(forward), "before_backward": begin, "after_backward": end_of(back)}
    own, engine.hooks = engine.hooks, {kind: [hook] for kind, hook in hooks.items()}
    engine.merged = True
    try:
        for _ in range(iterations):
            passes()
    finally:
        engine.hooks, engine.merged = own, False
    share = 1000 / iterations
    layers = tuple(LayerTime(node.name, node.type, share * a, share * b) for node, a, b in zip(nodes, forward, back))
    return NetProfile(layers, share * sum(a for a, _ in whole), share * sum(b for _, b in whole))
