"""`net.plan()` and `net.profile()`: the memory plan and the times of a net that a script holds."""
from __future__ import annotations

from ocaffe.api.engine import Engine
from ocaffe.memory.report import ROLES, persistent, report
from ocaffe.profiling.profile import NetPlan, NetProfile, measure


def plan_of(engine: Engine) -> NetPlan:
    compiled = engine.current()
    fixed = {ROLES.get(role, "kept blobs"): 0 for role in persistent([compiled.recording.schedule])}
    for role, size in persistent([compiled.recording.schedule]).items():
        fixed[ROLES.get(role, "kept blobs")] += size
    plan, name = compiled.plan, engine.network.graph.message.name or "net"
    return NetPlan(fixed, plan.total, plan.lower_bound, len(compiled.recording.schedule), tuple(report(name, compiled.recording.schedule, plan)))


def profile(engine: Engine, iterations: int, backward: bool) -> NetProfile:
    """`net.profile()`: time whole passes. Hooks are off, so layers are fused as usual. Data layers advance by the batches used."""
    nodes = engine.network.graph.nodes

    def passes(count: int) -> None:
        for _ in range(count):
            engine.forward(0, len(nodes) - 1)
            if backward:
                engine.backward(len(nodes) - 1, 0)

    own, engine.hooks = engine.hooks, {kind: [] for kind in engine.hooks}
    try:
        return measure(engine.session, engine.network.graph.message.name or "net", nodes, passes, iterations)
    finally:
        engine.hooks = own
