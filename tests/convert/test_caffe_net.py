"""The form of a net that the rewrites of Caffe nets work on: names of values, changes, and the message that is written."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.convert.caffe.net import Net, net_of
from ocaffe.formats.text import parse, write_text
from ocaffe.graph.build import build

pytestmark = pytest.mark.quick

HEAD = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 4 dim: 4 } } }\n'


def layer(name: str, kind: str, bottom: str, top: str, more: str = "") -> str:
    ends = " ".join([*(f'bottom: "{each}"' for each in bottom.split()), *(f'top: "{each}"' for each in top.split())])
    return f'layer {{ name: "{name}" type: "{kind}" {ends} {more} }}\n'


CONV = "convolution_param { num_output: 3 kernel_size: 1 }"
CHAIN = HEAD + layer("conv", "Convolution", "data", "conv", CONV) + layer("bn", "BatchNorm", "conv", "conv") + layer("relu", "ReLU", "conv", "conv")


def net(text: str, *outputs: str, arrays: Any = None) -> Net:
    return net_of(parse(text, proto.NetParameter), arrays or {}, outputs)


def ends(each: Any) -> list[tuple[str, list[str], list[str]]]:
    return [(each.name, list(each.bottom), list(each.top)) for each in each.layer]


def values(made: Net) -> list[str]:
    return [top for each in made.layers for top in each.top]


def test_values_have_names_of_their_own() -> None:
    made = net(CHAIN, "conv")
    assert values(made) == ["data", "conv.conv", "conv.bn", "conv"] and made.in_place == {"bn", "relu"}
    assert made.shapes == dict.fromkeys(values(made), (1, 3, 4, 4)) and set(made.blobs.values()) == {"data", "conv"}
    assert made.producer("conv.bn").name == "bn" and [each.name for each in made.readers("conv.bn")] == ["relu"]


@pytest.mark.parametrize(
    "text",
    [
        CHAIN,
        CHAIN + layer("more", "ReLU", "conv", "other") + layer("sum", "Eltwise", "conv other", "sum"),
        HEAD + layer("relu", "ReLU", "data", "data") + layer("tanh", "TanH", "data", "out"),
        HEAD + layer("slice", "Slice", "data", "a b c") + layer("relu", "ReLU", "b", "b") + layer("join", "Concat", "a b c", "join"),
    ],
    ids=["chain", "branches", "input", "second top"],
)
def test_message_is_the_source_again(text: str) -> None:
    source = parse(text, proto.NetParameter)
    made = net_of(source, {}, [source.layer[-1].top[0]])
    assert write_text(made.message()) == write_text(source)
    build(made.message(), proto.TEST)


def test_value_with_two_readers_is_not_replaced() -> None:
    """Some programs write a net in which a layer replaces a value that another reads. ocaffe keeps both values apart."""
    text = HEAD + layer("conv", "Convolution", "data", "conv", CONV) + layer("other", "TanH", "conv", "other") + layer("relu", "ReLU", "conv", "conv")
    message = net(text + layer("sum", "Eltwise", "conv other", "sum"), "sum").message()
    assert ends(message)[1:] == [
        ("conv", ["data"], ["conv.conv"]), ("other", ["conv.conv"], ["other"]), ("relu", ["conv.conv"], ["conv"]), ("sum", ["conv", "other"], ["sum"])
    ]  # fmt: skip


def test_input_keeps_its_name_where_it_is_replaced() -> None:
    text = HEAD + layer("other", "TanH", "data", "other") + layer("relu", "ReLU", "data", "data") + layer("sum", "Eltwise", "data other", "sum")
    assert ends(net(text, "sum").message())[:3] == [("data", [], ["data"]), ("other", ["data"], ["other"]), ("relu", ["data"], ["data_1"])]


def test_names_of_layers_differ() -> None:
    text = HEAD + layer("x", "ReLU", "data", "a") + layer("x", "ReLU", "a", "b") + layer("", "TanH", "b", "c")
    assert [each.name for each in net(text, "c").layers] == ["data", "x", "x_1", "tanh"]


def test_remove_keeps_the_name_that_a_user_knows() -> None:
    """Of a blob that layers replaced the last value has the name; of others the first, unless the second is an output."""
    made = net(CHAIN, "conv")
    made.remove(made.layers[2])
    assert ends(made.message())[1:] == [("conv", ["data"], ["conv"]), ("relu", ["conv"], ["conv"])]
    text = HEAD + layer("one", "TanH", "data", "a") + layer("drop", "Dropout", "a", "b") + layer("two", "TanH", "b", "c") + layer("end", "Dropout", "c", "d")
    made = net(text, "d")
    for name in ("drop", "end"):
        made.remove(next(each for each in made.layers if each.name == name))
    assert ends(made.message())[1:] == [("one", ["data"], ["a"]), ("two", ["a"], ["d"])] and set(made.shapes) == {"data", "a", "d"}


def test_remove_keeps_what_a_pass_says() -> None:
    text = HEAD + layer("conv", "Convolution", "data", "a", CONV) + layer("bn", "BatchNorm", "a", "b") + layer("relu", "ReLU", "b", "c")
    for keep in "ab":
        made = net(text, "c")
        made.remove(made.layers[2], keep=keep)
        assert ends(made.message())[1:] == [("conv", ["data"], [keep]), ("relu", [keep], ["c"])]


def test_outputs_and_inputs_stay() -> None:
    made = net(HEAD + layer("drop", "Dropout", "data", "out"), "out")
    assert not made.can_remove(made.layers[1])
    with pytest.raises(ValueError, match="'drop' cannot be removed"):
        made.remove(made.layers[1])
    text = HEAD + layer("conv", "Convolution", "data", "a", CONV) + layer("drop", "Dropout", "a", "b")
    assert not net(text, "a", "b").can_remove(net(text, "a", "b").layers[2])
    made = net(text, "b")
    assert not made.can_remove(made.layers[2], keep="a") and made.can_remove(made.layers[2], keep="b")


def test_insert_and_replace() -> None:
    made = net(CHAIN, "conv", arrays={"conv": [np.ones((3, 3, 1, 1)), np.zeros(3)]})
    made.insert(proto.LayerParameter(name="relu", type="TanH", bottom=["conv.conv"], top=[made.fresh("conv")]), after=made.layers[1])
    made.rewire(made.layers[3], "conv.conv", "conv_1")
    assert [each.name for each in made.layers] == ["data", "conv", "relu_1", "bn", "relu"] and made.shapes["conv_1"] == (1, 3, 4, 4)
    relu, mul = made.layers[-1], made.fresh("mul")
    first, second = proto.LayerParameter(name="relu", type="Sigmoid", bottom=relu.bottom, top=[mul]), proto.LayerParameter(type="Eltwise", top=["conv"])
    second.bottom.extend([relu.bottom[0], mul])
    made.replace(relu, (first, ()), (second, ()))
    message = made.message()
    build(message, proto.TEST)
    assert ends(message)[1:] == [
        ("conv", ["data"], ["conv.conv"]), ("relu_1", ["conv.conv"], ["conv.bn"]), ("bn", ["conv.bn"], ["conv.bn"]), ("relu", ["conv.bn"], ["mul"]),
        ("eltwise", ["conv.bn", "mul"], ["conv"]),
    ]  # fmt: skip
    assert set(made.weights()) == {"conv"} and made.weights()["conv"][0].dtype == np.float32


def test_sweep_removes_what_no_output_needs() -> None:
    text = HEAD.replace('top: "data"', 'top: "data" top: "more"') + layer("conv", "Convolution", "data", "conv", CONV) + layer("a", "TanH", "more", "a")
    made = net(text + layer("b", "TanH", "a", "b"), "conv", arrays={"conv": [np.ones((3, 3, 1, 1)), np.zeros(3)]})
    assert made.sweep() == 2 and ends(made.message()) == [("data", [], ["data"]), ("conv", ["data"], ["conv"])]
    assert set(made.shapes) == {"data", "conv"} and "conv" in made.arrays and made.sweep() == 0


def test_sharers_are_found_by_others() -> None:
    def conv(name: str, params: str) -> str:
        return layer(name, "Convolution", "data", name, f"{CONV} {' '.join(f'param {{ name: {chr(34)}{each}{chr(34)} }}' for each in params.split())}")

    made = net(HEAD + conv("a", "w") + conv("b", "w v") + conv("c", "u v") + conv("d", "other"), "a", "b", "c", "d")
    assert [each.name for each in made.sharers(made.layers[1])] == ["a", "b", "c"] and [each.name for each in made.sharers(made.layers[4])] == ["d"]


def test_computed_knows_the_meaning_of_fields() -> None:
    made = net(HEAD + layer("conv", "Convolution", "data", "conv", "convolution_param { num_output: 6 group: 3 kernel_h: 3 kernel_w: 1 pad_h: 1 }"), "conv")
    found: Any = made.computed(made.layers[1])
    assert found.window.kernel == (3, 1) and found.geometry.group == 3


def test_setting_of_the_net_comes_to_the_layers() -> None:
    made = net("bn_stats_batch_size: 2\n" + CHAIN, "conv")
    assert made.layers[2].batch_norm_param.stats_batch_size == 2 and not made.message().bn_stats_batch_size
