"""Graph construction: multipliers, automatic tops, marks."""
from __future__ import annotations

import pytest

from ocaffe import proto
from ocaffe.formats.text import parse
from ocaffe.graph.build import build
from ocaffe.graph.microbatch import Microbatch
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import record
from ocaffe.ir.graph import Graph
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Role

pytestmark = pytest.mark.quick

INPUT = 'layer { name: "in" type: "Input" top: "x" top: "t" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } shape { dim: 2 } } }'


def graph(text: str) -> Graph:
    return build(parse(INPUT + text, proto.NetParameter, "net.prototxt"), proto.TRAIN)


@pytest.mark.parametrize("specs", ["", "param { lr_mult: 1 }", "param { lr_mult: 0 } param { lr_mult: 0 } param { lr_mult: 0 }"])
def test_running_statistics_are_never_learned(specs: str) -> None:
    """Caffe masks BatchNorm's blobs from the solver, whatever the prototxt says (docs/quirks.md, quirk 13)."""
    net = graph(f'layer {{ name: "bn" type: "BatchNorm" bottom: "x" top: "y" {specs} }}'
                'layer { name: "f" type: "InnerProduct" bottom: "y" top: "f" inner_product_param { num_output: 2 } }'
                'layer { name: "l" type: "SoftmaxWithLoss" bottom: "f" bottom: "t" top: "l" }')  # fmt: skip
    statistics = [parameter for parameter in net.params if parameter.layer == "bn"]
    assert [(p.lr_mult, p.decay_mult, p.propagate) for p in statistics] == [(0, 0, False)] * 3
    group = ParameterGroup(net.params)
    recording = record(net, group, Target(), NetOptions())
    gradients = {ref.name for launch in recording.schedule for ref in launch.writes if ref.root.role is Role.GRADIENT}
    assert gradients == {"f/0.diff", "f/1.diff"} and [group.held_gradient(parameter) for parameter in statistics] == [None] * 3


@pytest.mark.parametrize("options", [NetOptions(), NetOptions(hold_gradients=True), NetOptions(microbatch=Microbatch(1, 2))])
def test_a_graph_keeps_no_refs_of_a_recording(options: NetOptions) -> None:
    """So all recordings of a graph can be used, not only the last one."""
    net = graph('layer { name: "c" type: "InnerProduct" bottom: "x" top: "c" inner_product_param { num_output: 9 } }'
                'layer { name: "r" type: "ReLU" bottom: "c" top: "c" }'
                'layer { name: "f" type: "InnerProduct" bottom: "c" top: "f" inner_product_param { num_output: 2 } }'
                'layer { name: "l" type: "SoftmaxWithLoss" bottom: "f" bottom: "t" top: "l" }')  # fmt: skip
    first, second = (record(net, ParameterGroup(net.params), Target(), options) for _ in range(2))
    blobs = [top for node in net.nodes for top in node.tops]
    assert all(blob.data is None and blob.diff is None for blob in blobs)
    assert all(parameter.data is not None and parameter.diff is None for parameter in net.params)
    of_layers = [blob for blob in blobs if blob.producer is not None and blob.producer.bottoms and first.blobs[blob][0] is not None]
    assert of_layers and all(first.blobs[blob][0] is not second.blobs[blob][0] for blob in of_layers)


def test_a_loss_without_a_top_gets_one() -> None:
    net = graph('layer { name: "f" type: "InnerProduct" bottom: "x" top: "f" inner_product_param { num_output: 2 } }'
                'layer { name: "l" type: "SoftmaxWithLoss" bottom: "f" bottom: "t" }')  # fmt: skip
    assert net.outputs == [] and net.nodes[-1].tops[0].loss_weight == 1
    assert net.nodes[-2].backward


@pytest.mark.parametrize("kind", ["ReLU", "Sigmoid", "Softmax", "Pooling", "LRN", "Dropout", "Slice"])
def test_propagate_down_false_stops_backward(kind: str) -> None:
    extra = 'pooling_param { kernel_size: 2 }' if kind == "Pooling" else ""
    tops = 'top: "a" top: "b"' if kind == "Slice" else 'top: "a"'
    axis = "slice_param { axis: 2 }" if kind == "Slice" else ""
    net = graph('layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 2 kernel_size: 1 } }'
                f'layer {{ name: "k" type: "{kind}" bottom: "c" {tops} propagate_down: false {extra} {axis} }}'
                'layer { name: "f" type: "InnerProduct" bottom: "a" top: "f" inner_product_param { num_output: 2 } }'
                'layer { name: "l" type: "SoftmaxWithLoss" bottom: "f" bottom: "t" top: "l" }')  # fmt: skip
    recording = record(net, ParameterGroup(net.params), Target(), NetOptions())
    assert {launch.layer for launch in recording.schedule if launch.phase == "backward"} <= {"l", "f", "zero"}
