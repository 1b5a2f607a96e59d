"""Task graphs: the same results as launches one by one, the order of conflicting launches, the limits of a graph, and programs as routines of one text."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ocaffe import Net, proto
from ocaffe.cl import task_graph
from ocaffe.cl.device import Device
from ocaffe.cl.program import ProgramKey, Programs
from ocaffe.cl.task_graph import Routine, Span, needed, routine_text
from ocaffe.formats.text import parse
from ocaffe.passes import join_launches
from tests.harness import changed, switch
from tests.structure.test_declarations import declared

CONV = 'convolution_param { num_output: %d kernel_size: %d pad: %d weight_filler { type: "msra" } bias_filler { type: "gaussian" } }'
NET = f"""
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: [2, 3, 23, 31] }} }} }}
layer {{ name: "a" type: "Convolution" bottom: "data" top: "a" {CONV % (20, 5, 0)} }}
layer {{ name: "pool" type: "Pooling" bottom: "a" top: "pool" pooling_param {{ kernel_size: 2 stride: 2 }} }}
layer {{ name: "b" type: "Convolution" bottom: "pool" top: "b" {CONV % (32, 3, 1)} }}
layer {{ name: "c" type: "Convolution" bottom: "pool" top: "c" {CONV % (16, 1, 0)} }}
layer {{ name: "d" type: "Convolution" bottom: "c" top: "d" {CONV % (24, 3, 1)} }}
layer {{ name: "both" type: "Concat" bottom: "b" bottom: "d" top: "both" }}
layer {{ name: "norm" type: "LRN" bottom: "both" top: "norm" }}
layer {{ name: "sigmoid" type: "Sigmoid" bottom: "norm" top: "sigmoid" }}
layer {{ name: "ip" type: "InnerProduct" bottom: "sigmoid" top: "ip" inner_product_param {{ num_output: 50 weight_filler {{ type: "msra" }} }} }}
layer {{ name: "prob" type: "Softmax" bottom: "ip" top: "prob" }}
"""


@pytest.fixture(autouse=True)
def cpu(device: Device) -> None:
    if not device.target.is_cpu:
        pytest.skip("task graphs are for CPUs")


@pytest.fixture
def made(device: Device) -> Iterator[Callable[..., Net]]:
    nets: list[Net] = []

    def make(text: str = NET, opened: Device = device, **more: Any) -> Net:
        nets.append(Net(parse(text, proto.NetParameter), proto.TEST, device=opened, keep=[], seed=3, **more))
        return nets[-1]

    yield make
    for net in nets:
        net.close()


def graphs(net: Net) -> list[task_graph.TaskGraph]:
    return net._engine.current().commands.graphs


def results(net: Net, runs: int = 20) -> list[np.ndarray]:
    """Return the outputs of runs with different images, more runs than slots of outputs."""
    images = np.random.default_rng(0).standard_normal((runs, *net.blobs["data"].shape)).astype(np.float32)
    return [net.forward(data=image)["prob"].copy() for image in images]


def plain(made: Callable[..., Net], monkeypatch: pytest.MonkeyPatch, text: str = NET) -> list[np.ndarray]:
    """Return the outputs without graphs. Everything else is the same."""
    with monkeypatch.context() as change:
        switch(change, "join=0")
        net = made(text)
        assert not graphs(net)
        return results(net)


def test_results_are_those_of_single_launches(made: Callable[..., Net], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(made, monkeypatch)
    net = made()
    (graph,) = graphs(net)
    assert len(graph.members) >= 9
    np.testing.assert_allclose(results(net), expected, rtol=1e-5, atol=1e-7)
    assert np.ptp(expected, axis=0).max() > 1e-3


@pytest.mark.parametrize("patience", [1, 4])
def test_work_groups_that_lose_patience(patience: int, made: Callable[..., Net], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without patience a work-group ends when it would wait. The others do the rest, and the next run begins with counters of 0."""
    expected = plain(made, monkeypatch)
    assert graphs(made())[0].patience >= task_graph.FEWEST_POLLS
    monkeypatch.setattr(task_graph.TaskGraph, "patience", patience)
    np.testing.assert_allclose(results(made()), expected, rtol=1e-5, atol=1e-7)


def test_as_many_buffers_as_arguments(made: Callable[..., Net], monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    expected = plain(made, monkeypatch)
    few = changed(device, argument_bytes=join_launches.OTHER_ARGUMENTS + 8 * 6)
    found = graphs(net := made(opened=few))
    assert len(found) > 1 and all(len(graph.members) >= join_launches.FEWEST and len(graph.homes) <= 6 for graph in found)
    np.testing.assert_allclose(results(net), expected, rtol=1e-5, atol=1e-7)


def different_expressions() -> str:
    """Return a net whose launches are poolings of one kind and 36 different expressions."""
    text = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: [2, 3, 13, 11] } } }'
    last = "data"
    for number, kinds in enumerate(itertools.product(("TanH", "Sigmoid", "AbsVal", "BNLL", "ELU", "Swish"), repeat=2)):
        x, y = f"x{number}", f"y{number}"
        text += f'layer {{ name: "{x}" type: "Pooling" bottom: "{last}" top: "{x}" pooling_param {{ kernel_size: 3 stride: 1 pad: 1 }} }}'
        text += "".join(f'layer {{ name: "{kind}{number}.{place}" type: "{kind}" bottom: "{x}" top: "{x}" }}' for place, kind in enumerate(kinds))
        text += f'layer {{ name: "{y}" type: "Eltwise" bottom: "{x}" bottom: "data" top: "{y}" }}'
        last = y
    return text + f'layer {{ name: "prob" type: "Softmax" bottom: "{last}" top: "prob" }}'


def test_as_many_routines_as_one_function_should_have(made: Callable[..., Net], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(made, monkeypatch, different_expressions())
    found = graphs(net := made(different_expressions()))
    assert len(found) > 1 and max(len(graph.routines) for graph in found) == join_launches.MOST_ROUTINES
    np.testing.assert_allclose(results(net), expected, rtol=1e-5, atol=1e-7)


def test_a_profile_has_all_launches(made: Callable[..., Net]) -> None:
    net = made()
    expected = results(net, 1)[0]
    profile = net.profile(iterations=2)
    assert {"a", "pool", "b", "c", "d", "norm", "ip", "prob"} <= {row.name for row in profile.layers}
    joined = [launch.graph for launch in profile.launches]
    assert joined.count(0) == len(graphs(net)[0].members) and f"{joined.count(0)} of the launches in 1 task graph" in str(profile)
    assert [launch["graph"] for launch in profile.record()["launches"]] == joined
    np.testing.assert_array_equal(results(net, 1)[0], expected)


def test_other_nets_have_no_graphs(made: Callable[..., Net], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets that run layer by layer, plain runs, and those of a switch."""
    net = made()
    net.forward(end="pool")
    assert not graphs(net)
    for word in ("fuse=0", "join=0"):
        with monkeypatch.context() as change:
            switch(change, word)
            assert not graphs(made())
    assert graphs(made())


# -- the order of launches -------------------------------------------------------------------------------------------


def span(home: str, begin: int, end: int, writes: bool = False) -> Span:
    return Span(home, begin, end, writes)


def test_launches_that_a_launch_needs() -> None:
    first, other = [span("x", 0, 8), span("slab", 0, 64, True)], [span("x", 0, 8), span("slab", 64, 96, True)]
    assert needed([first])[-1] == 0
    assert needed([first, other])[-1] == 0, "both only read x, and write different bytes"
    assert needed([first, other, [span("slab", 32, 64), span("slab", 96, 128, True)]])[-1] == 1, "it reads what the first one writes"
    assert needed([first, other, [span("slab", 60, 68), span("slab", 96, 128, True)]])[-1] == 2
    assert needed([[span("x", 0, 8)], [span("x", 8, 16, True)], [span("x", 4, 6, True)]])[-1] == 1, "it overwrites what the first one reads"
    assert needed([first, [span("other slab", 0, 64, True)]])[-1] == 0


def test_a_graph_can_read_all_scalars_of_joined_launches() -> None:
    assert task_graph._READ.keys() == join_launches.SCALARS


# -- programs as routines --------------------------------------------------------------------------------------------

DEFINES = ((), (("V", "8"), ("KH", "5"), ("KW", "5"), ("SH", "2"), ("SW", "2")))
JOINED = sorted({kernel.file for kernel in declared() if kernel.can.join and "." in kernel.name})


def test_all_programs_of_cpus_are_routines_of_one_text(device: Device) -> None:
    """Every family twice, with different defines: no name of one routine is seen in another."""
    fence = device.target.device_fence
    keys = [ProgramKey(family, defines) for family in JOINED for defines in DEFINES]
    assert len(keys) >= 60
    texts = [routine_text(number, Routine(key, "", 0, ()), fence) for number, key in enumerate(keys)]
    Programs(device).build_all([ProgramKey.generated(['#include "part.h"', *texts])])
