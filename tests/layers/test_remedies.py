"""The remedies of errors that many layers share work if they are typed as they stand."""
from __future__ import annotations

import re

import pytest

from ocaffe import proto
from ocaffe.compiler.network import phase_net
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import record
from ocaffe.ir.target import Target
from ocaffe.layers.base import registry

INPUT = 'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {} }} }} }}\n'


def recorded(text: str) -> None:
    """Build and record the TRAIN net of a prototxt with its backward pass. Raises Error."""
    graph = build(phase_net(parse(text, proto.NetParameter, "net.prototxt"), proto.TRAIN), proto.TRAIN)
    record(graph, ParameterGroup(graph.params), Target(), NetOptions(backward=True))


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 3, 4), (2, 3, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("kind", ["LRN", "SPP"])
def test_a_bottom_with_other_axes_is_reshaped(shape: tuple[int, ...], kind: str) -> None:
    data = INPUT.format(" ".join(f"dim: {size}" for size in shape))
    reader = f'layer {{ name: "y" type: "{kind}" bottom: "BOTTOM" top: "y" spp_param {{ pyramid_height: 1 }} }}'
    with pytest.raises(Error, match="it must be N x C x H x W") as caught:
        recorded(data + reader.replace("BOTTOM", "x"))
    found = re.search(r"reshape_param \{ shape \{[^}]*\} \}", caught.value.fix or "")
    assert found is not None
    recorded(data + f'layer {{ name: "r" type: "Reshape" bottom: "x" top: "r" {found[0]} }}\n' + reader.replace("BOTTOM", "r"))


def test_an_axis_without_values_is_another_error() -> None:
    layer = registry()["GRN"](proto.LayerParameter(name="y", type="GRN"), proto.TRAIN)
    with pytest.raises(Error, match="bottom 0 is 2 x 0 x 3 x 3: axis 1 has the size 0"):
        layer.infer((2, 0, 3, 3))


@pytest.mark.parametrize("loss", ["SoftmaxWithLoss", "HingeLoss", "SigmoidCrossEntropyLoss"])
def test_labels_without_gradient_get_propagate_down(loss: str) -> None:
    """The labels come from a layer that learns, so their diff is wanted."""
    learned = "".join(
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "x" top: "{name}" inner_product_param {{ num_output: {outputs} }} }}\n'
        for name, outputs in (("a", 3), ("b", 1 if loss != "SigmoidCrossEntropyLoss" else 3))
    )
    net = f'{INPUT.format("dim: 2 dim: 4")}{learned}layer {{ name: "l" type: "{loss}" bottom: "a" bottom: "b" top: "l" MORE }}'
    with pytest.raises(Error, match=r"there is no gradient for \w+ \(bottom 1\); a layer before that bottom, propagate_down or .* asks for it") as caught:
        recorded(net.replace("MORE", ""))
    assert caught.value.fix == "write in this layer: propagate_down: true propagate_down: false"
    recorded(net.replace("MORE", caught.value.fix.removeprefix("write in this layer: ")))
