"""Names and loss weights of inserted splits."""
from __future__ import annotations

import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.graph.splits import insert_splits

pytestmark = pytest.mark.quick


def net(text: str) -> object:
    return parse(text, proto.NetParameter, "net.prototxt")


def test_consumers_are_numbered_in_order() -> None:
    result = insert_splits(net("""
        layer { name: "in" type: "Input" top: "a" top: "b" }
        layer { name: "x" type: "ReLU" bottom: "b" top: "x" }
        layer { name: "y" type: "Eltwise" bottom: "b" bottom: "a" bottom: "b" top: "y" }
    """))
    names = [(layer.name, list(layer.bottom), list(layer.top)) for layer in result.layer]
    assert names[1] == ("b_in_1_split", ["b"], ["b_in_1_split_0", "b_in_1_split_1", "b_in_1_split_2"])
    assert names[2][1] == ["b_in_1_split_0"]
    assert names[3][1] == ["b_in_1_split_1", "a", "b_in_1_split_2"]


def test_an_in_place_layer_makes_a_new_value() -> None:
    result = insert_splits(net("""
        layer { name: "in" type: "Input" top: "a" }
        layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
        layer { name: "x" type: "ReLU" bottom: "a" top: "x" }
        layer { name: "y" type: "ReLU" bottom: "a" top: "y" }
    """))
    assert [layer.name for layer in result.layer] == ["in", "relu", "a_relu_0_split", "x", "y"]


def test_a_loss_weight_moves_to_the_first_top_of_the_split() -> None:
    result = insert_splits(net("""
        layer { name: "in" type: "Input" top: "a" }
        layer { name: "l" type: "ReLU" bottom: "a" top: "b" loss_weight: 2 }
        layer { name: "x" type: "ReLU" bottom: "b" top: "x" }
    """))
    assert list(result.layer[1].loss_weight) == [0]
    assert list(result.layer[2].loss_weight) == [2, 0]
    assert list(result.layer[3].bottom) == ["b_l_0_split_1"]


def test_unknown_bottom_names_file_and_line() -> None:
    text = 'layer { name: "x"\n type: "ReLU" bottom: "nowhere" top: "x" }'
    with pytest.raises(Error, match="unknown bottom blob 'nowhere'") as caught:
        message = parse(text, proto.NetParameter, "net.prototxt")
        message.source_file = "net.prototxt"
        insert_splits(message)
    assert str(caught.value.place) == "net.prototxt:1"
