"""Runs and batches count themselves: a run that begins at the first launch is a new one, and the prefetchers count the batches."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.cl.session import Session
from ocaffe.compiler.network import Network, phase_net
from ocaffe.formats.text import parse
from ocaffe.graph.options import NetOptions

BATCHES = 5
NET = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "rows" type: "MemoryData" top: "data" top: "label" memory_data_param { batch_size: 2 channels: 3 height: 1 width: 1 } }
layer { name: "flat" type: "Flatten" bottom: "data" top: "flat" }
layer { name: "sum" type: "Eltwise" bottom: "x" bottom: "flat" top: "sum" }
layer { name: "ip" type: "InnerProduct" bottom: "sum" top: "ip" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture
def network(device: Device) -> Iterator[Network]:
    made = Network(phase_net(parse(NET, proto.NetParameter), proto.TRAIN), proto.TRAIN, Session(device), quiet=True)
    made.fill_parameters()
    values = np.arange(2 * BATCHES, dtype=np.float32)
    made.inputs.sources["rows"].hand_over(np.tile(values[:, None, None, None], (1, 3, 1, 1)), values % 4, 0)
    made.inputs.start()
    yield made
    made.close()


def test_parts_of_a_pass_are_one_run(network: Network) -> None:
    compiled = network.nets.bound(NetOptions())
    commands, recording = compiled.commands, compiled.recording

    def counted() -> tuple[int, dict[str, int]]:
        return commands.runs, network.inputs.cursor

    network.nets.run(compiled)
    assert counted() == (1, {"rows": 1})
    network.nets.run(compiled, 0, lambda recording: recording.forward_end)
    assert counted() == (2, {"rows": 2})
    network.nets.run(compiled, recording.forward_end)
    assert counted() == (2, {"rows": 2})
    for begin, end in (*recording.forward_ranges, *recording.backward_ranges.values()):  # layer "in" has no launches
        commands.run(begin, end)
    assert counted() == (3, {"rows": 3})


def test_a_run_that_is_never_finished_counts(network: Network) -> None:
    """A new run follows, with buffers of its own."""
    compiled = network.nets.bound(NetOptions())
    losses = []
    for batch in range(BATCHES):
        network.nets.run(compiled, 0, lambda recording: recording.forward_end)
        assert compiled.commands.runs == batch + 1
        losses.append(network.loss(compiled, compiled.commands.fetch()))
    network.inputs.seek({})
    assert [network.loss(each, each.commands.fetch()) for each in (network.nets.run(compiled) for _ in range(BATCHES))] == losses


def test_the_cursor_survives_a_stop(network: Network) -> None:
    compiled = network.nets.bound(NetOptions())
    network.nets.run(compiled)
    network.inputs.stop("rows")
    assert network.inputs.cursor == {"rows": 1}
    network.inputs.start()
    network.nets.run(compiled)
    network.close()
    assert network.inputs.cursor == {"rows": 2}


@pytest.mark.parametrize("rank", range(3))
def test_ranks_share_batches(network: Network, rank: int) -> None:
    network.inputs.stop("rows")
    network.inputs.share(rank, 3)
    network.inputs.seek({"rows": 1})
    network.inputs.start()
    (prefetcher,) = network.inputs.prefetchers.values()
    assert network.inputs.cursor == {"rows": 1} and prefetcher.peek().index == 1 + rank
    network.nets.run(network.nets.bound(NetOptions()))
    assert network.inputs.cursor == {"rows": 4} and prefetcher.peek().index == 4 + rank


def test_the_places_of_values(network: Network) -> None:
    compiled = network.nets.bound(NetOptions())
    network.nets.run(compiled)
    commands, data = compiled.commands, compiled.recording.data
    assert commands.home(data["loss"]) is commands.outputs and commands.outputs.holds(data["loss"])
    assert commands.home(data["x"]) is data["x"].root and not commands.outputs.holds(data["x"])
    assert commands.home(data["ip"]) in range(len(compiled.plan.slabs)) and not commands.outputs.holds(data["ip"])
    assert commands.read(data["loss"]) == commands.fetch().value(data["loss"])
    np.testing.assert_array_equal(commands.read(data["x"]), commands.fetch().value(data["x"]))
