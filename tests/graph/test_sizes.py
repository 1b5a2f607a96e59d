"""Nets of huge sizes are refused, or planned, in milliseconds: nothing is counted element by element."""
from __future__ import annotations

import random

import pytest

from ocaffe import proto
from ocaffe.compiler.compile import compile_net
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.graph.build import build, infer_shapes
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.graph import Graph
from ocaffe.ir.target import Target
from ocaffe.layers.window import _first_empty
from ocaffe.support.switches import Switches

pytestmark = pytest.mark.quick

LARGEST = 2**31 - 1


def graph(layer: str, *shape: int) -> Graph:
    dims = " ".join(f"dim: {size}" for size in shape)
    text = f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }} layer {{ name: "y" bottom: "data" top: "y" {layer} }}'
    return build(parse(text, proto.NetParameter, "net"), proto.TEST)


def convolution(kind: str, *fields: str) -> str:
    return f'type: "{kind}" convolution_param {{ {" ".join(fields)} }}'


@pytest.mark.parametrize(
    ("layer", "shape", "fact"),
    [
        ('type: "ArgMax"', (3, 1 << 32, 4), "a top would be 3 x 4294967296 x 4: 51,539,607,552 elements, a blob has at most 2,147,483,647"),
        ('type: "Tile" tile_param { tiles: 2147483647 }', (1, 3, 2, 2), "a top would be 1 x 6442450941 x 2 x 2"),
        (convolution("Convolution", "num_output: 2 kernel_size: 2147483647 pad: 2147483647"), (1, 3, 32, 32), "a top would be"),
        (convolution("Convolution", "num_output: 2 kernel_size: 30000 pad: 15000"), (1, 3, 2, 2), "a parameter would be 2 x 3 x 30000 x 30000"),
        (convolution("Convolution", "num_output: 2 kernel_size: 1 stride: 4294967295"), (1, 3, 8, 8), "stride is 4294967295, at most 2147483647"),
        ('type: "InnerProduct" inner_product_param { num_output: 2147483647 }', (1, 3), "a parameter would be"),
        ('type: "Pooling" pooling_param { kernel_size: 2 dilation: 65537 }', (1, 1, 70000, 1), "the dilation is 65537"),
        ('type: "PriorBox" bottom: "data" prior_box_param { min_size: 3 }', (1, 1, LARGEST, 1), "2,147,483,647 cells of 1 boxes"),
    ],
)
def test_refused(layer: str, shape: tuple[int, ...], fact: str) -> None:
    with pytest.raises(Error) as caught:
        graph(layer, *shape)
    assert fact in caught.value.fact and caught.value.place is None and caught.value.fix


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        ('type: "Pooling" pooling_param { kernel_size: 1 stride: 2 }', (1, 1, LARGEST, 1)),
        ('type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 1 pool: AVE }', (1, 1, 1, LARGEST)),
        (convolution("DepthwiseConvolution", "num_output: 4 group: 4 kernel_size: 3 pad: 1"), (1, 4, 76_000_000, 7)),
        (convolution("Deconvolution", "num_output: 4 group: 4 kernel_size: 3 pad: 1"), (1, 4, 76_000_000, 7)),
    ],
)
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_planned(layer: str, shape: tuple[int, ...], kind: str) -> None:
    net = graph(layer, *shape)
    target = Target(max_allocation=1 << 40, kind=kind)
    compiled = compile_net(net, ParameterGroup(net.params), target, NetOptions(), Switches())
    assert [launch.layer for launch in compiled.recording.schedule][:1] == ["y"]


def test_new_shapes() -> None:
    net = graph('type: "Tile" tile_param { tiles: 1000000 }', 1, 3)
    with pytest.raises(Error, match="a top would be 1 x 3000000000"):
        infer_shapes(net, {net.nodes[0].tops[0]: (1, 3000)})


def test_empty_windows() -> None:
    """The formula agrees with a count of the pixels of every window."""
    draw = random.Random(0)
    for _ in range(5000):
        kernel, dilation, stride, size, count = draw.randint(1, 5), draw.choice([1, 1, 2, 3, 7]), draw.randint(1, 6), draw.randint(1, 8), draw.randint(1, 8)
        extent = dilation * (kernel - 1) + 1
        pad = draw.randrange(extent)
        empty = [o for o in range(count) if not any(0 <= o * stride - pad + tap * dilation < size for tap in range(kernel))]
        assert _first_empty(count, extent, stride, pad, size, dilation) == (empty[0] if empty else None)
