"""The order of work of a session on a GPU with its own memory: compilers' contexts, then slabs, never more than the plan."""
from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ocaffe import proto
from ocaffe.cl import device as device_module
from ocaffe.cl import program, workers
from ocaffe.cl.device import Device
from ocaffe.cl.free_memory import LEAST_CONTEXT, UNKNOWN_CONTEXT
from ocaffe.cl.session import Session
from ocaffe.compiler.network import Network, phase_net
from ocaffe.formats.text import parse
from ocaffe.graph.options import NetOptions
from ocaffe.ir.launch import roots
from tests.harness import switch

MIB = 1 << 20
OPTIONS = NetOptions(backward=False, limit=1 << 40)
NET = """
input: "data" input_shape { dim: 64 dim: 3 dim: 16 dim: 16 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "norm" type: "LRN" bottom: "pool" top: "norm" }
layer { name: "ip" type: "InnerProduct" bottom: "norm" top: "ip" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""


def network(device: Device, limited: bool = True) -> Network:
    made = Network(phase_net(parse(NET, proto.NetParameter), proto.TEST), proto.TEST, Session(device, math.inf if limited else None), quiet=True)
    made.fill_parameters()
    return made


def allocated(session: Session) -> int:
    buffers = [buffer for buffers in session._persistent.values() for buffer in buffers] + session.arena.slabs
    return sum(buffer.size for buffer in buffers)


def test_contexts_of_compilers_and_buffers_never_exceed_the_plan(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = 2
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path))
    switch(monkeypatch, "fuse=0")  # several programs, also on a CPU: a task graph is one
    device = Device(device.info, device)
    device.programs = program.Programs(device, workers=lambda programs, room, context: room // context)
    net = network(device)
    session = net.session
    compiled = net.nets.compiled(OPTIONS)
    plan = compiled.plan.total + sum(root.nbytes * root.slots for root in roots(compiled.recording.schedule) if root.persistent)
    monkeypatch.setattr(device, "context_bytes", (plan - allocated(session)) // fitting)
    contexts: list[object] = []
    peaks: list[int] = []

    class Compiler:
        """Takes memory as a worker does, but leaves the programs to this process."""

        def __init__(self, *_: object) -> None:
            contexts.append(self)
            peaks.append(allocated(session) + len(contexts) * device.context_bytes)

        def runs(self) -> bool:
            return True

        def finish(self) -> list:
            return []

        def close(self) -> None:
            contexts.remove(self)

    make = Session._make_slabs

    def make_slabs(self: Session, *arguments: object) -> None:
        assert not contexts, "a compiler still has its context"
        make(self, *arguments)  # type: ignore[arg-type]
        peaks.append(allocated(session))

    monkeypatch.setattr(workers, "Worker", Compiler)
    monkeypatch.setattr(Session, "_make_slabs", make_slabs)
    net.nets.bound(OPTIONS)
    assert len(peaks) == fitting + 1, "as many contexts as fit, then the slabs"
    assert max(peaks) <= plan and allocated(session) <= plan


def test_a_later_build_has_the_memory_that_its_slabs_will_take(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[int] = []
    build_all = program.Programs.build_all
    monkeypatch.setattr(program.Programs, "build_all", lambda self, keys, room=0: (rooms.append(room), build_all(self, keys, room))[1])
    net = network(device)
    net.nets.bound(OPTIONS)
    net.shapes.reshape({"data": (8, 3, 16, 16)})
    net.nets.bound(OPTIONS)  # smaller: nothing is free
    before = allocated(net.session)
    net.shapes.reshape({"data": (128, 3, 16, 16)})
    net.nets.bound(OPTIONS)
    assert rooms[0] > 0
    assert allocated(net.session) - before <= rooms[2]
    assert rooms[1] < rooms[2]


def test_without_a_limit_compilers_have_an_eighth_of_the_free_memory(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[int] = []
    build_all = program.Programs.build_all
    monkeypatch.setattr(program.Programs, "build_all", lambda self, keys, room=0: (rooms.append(room), build_all(self, keys, room))[1])
    network(device, limited=False).nets.bound(replace(OPTIONS, limit=None))
    assert rooms == [device.target.free_memory // 8]


@pytest.mark.parametrize("limited", [False, True])
def test_compilers_start_before_the_plan_only_without_a_limit(device: Device, monkeypatch: pytest.MonkeyPatch, limited: bool) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(program.Programs, "expect", lambda self, *given: asked.append(given))
    monkeypatch.setattr(device, "context_bytes", 500 * MIB)
    layers = len(network(device, limited=limited).message.layer)
    assert asked == ([] if limited else [(layers // 5, device.target.free_memory // 8)])


@pytest.mark.parametrize(
    "before, after, expected",
    [(8000 * MIB, 7471 * MIB, 529 * MIB), (8000 * MIB, 8100 * MIB, LEAST_CONTEXT), (None, None, UNKNOWN_CONTEXT)],
    ids=["measured", "another process freed memory", "unknown"],
)
def test_a_context_is_measured_where_it_takes_device_memory(
    device: Device, monkeypatch: pytest.MonkeyPatch, before: int | None, after: int | None, expected: int
) -> None:
    info = replace(device.info, target=replace(device.target, unified_memory=False))
    free = iter([before, after])
    monkeypatch.setattr(device_module, "free_memory", lambda *_: next(free))
    opened = Device(info)
    assert opened.context_bytes == expected and Device(info, opened).context_bytes == expected
    assert Device(replace(info, target=replace(device.target, unified_memory=True))).context_bytes == 0
