"""Which values of a net are rounded, and which products compute with integers."""
from __future__ import annotations

import pytest

from ocaffe.quantize.places import places, rounded_products
from ocaffe.quantize.scheme import read_scheme
from tests.quantize.nets import conv, data, fc, net_of, text

pytestmark = pytest.mark.quick
POOL = "pooling_param { pool: MAX kernel_size: 2 stride: 2 }"
AVERAGE = "pooling_param { pool: AVE kernel_size: 2 stride: 2 }"
START = [data(2, 3, 8, 8)]


def found(scheme: str, *layers: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    net = net_of(*START, *layers)
    return {place.value: (place.product, place.readers) for place in places(net, read_scheme(scheme))}


CASES = {
    "a ReLU in place is computed with its product": (
        [conv("data", "a", 4), text("ReLU", "a", "a", name="relu"), conv("a", "b", 4)],
        {"data": ("", ("a",)), "a": ("a", ("b",)), "b": ("b", ())},
    ),
    "a ReLU with a top of its own too": (
        [conv("data", "a", 4), text("ReLU", "a", "r"), conv("r", "b", 4)],
        {"data": ("", ("a",)), "r": ("a", ("b",)), "b": ("b", ())},
    ),
    "a value that a ReLU and another layer read is rounded, and the ReLU's too": (
        [conv("data", "a", 4), text("ReLU", "a", "r"), text("Eltwise", "a r", "s"), conv("s", "b", 4)],
        {"data": ("", ("a",)), "a": ("a", ()), "r": ("", ()), "s": ("", ("b",)), "b": ("b", ())},
    ),
    "MAX pooling keeps the grid": (
        [conv("data", "a", 4), text("Pooling", "a", "p", POOL), conv("p", "b", 4)],
        {"data": ("", ("a",)), "a": ("a", ("b",)), "b": ("b", ())},
    ),
    "AVE pooling makes new values": (
        [conv("data", "a", 4), text("Pooling", "a", "p", AVERAGE), conv("p", "b", 4, 1)],
        {"data": ("", ("a",)), "a": ("a", ()), "p": ("", ("b",)), "b": ("b", ())},
    ),
    "branches read one rounded value": (
        [conv("data", "a", 4), conv("a", "b", 4), conv("a", "c", 4), text("Concat", "b c", "d"), conv("d", "e", 4)],
        {"data": ("", ("a",)), "a": ("a", ("b", "c")), "b": ("b", ()), "c": ("c", ()), "d": ("", ("e",)), "e": ("e", ())},
    ),
    "a sum and its ReLU are one": (
        [conv("data", "a", 4), conv("a", "b", 4, 3, "pad: 1"), text("Eltwise", "a b", "s"), text("ReLU", "s", "s", name="relu"), conv("s", "c", 4)],
        {"data": ("", ("a",)), "a": ("a", ("b",)), "b": ("b", ()), "s": ("", ("c",)), "c": ("c", ())},
    ),
    "Softmax stays a float": (
        [conv("data", "a", 4), fc("a", "f", 5), text("Softmax", "f", "prob")],
        {"data": ("", ("a",)), "a": ("a", ("f",)), "f": ("f", ())},
    ),
    "Flatten and Reshape keep the grid": (
        [conv("data", "a", 4), text("Flatten", "a", "f"), text("Reshape", "f", "g", "reshape_param { shape { dim: 0 dim: -1 } }"), fc("g", "h", 5)],
        {"data": ("", ("a",)), "a": ("a", ("h",)), "h": ("h", ())},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_places(case: str) -> None:
    layers, wanted = CASES[case]
    assert found("int8", *layers) == wanted


def test_only_inputs_of_products() -> None:
    layers = [conv("data", "a", 4), text("ReLU", "a", "a", name="relu"), text("Pooling", "a", "p", AVERAGE), conv("p", "b", 4, 1), text("Softmax", "b", "prob")]
    assert found("ncnn", *layers) == {"data": ("", ("a",)), "p": ("", ("b",))}


def test_a_type_without_integers_is_no_product() -> None:
    net = net_of(*START, conv("data", "a", 4, 2, "stride: 2", "Deconvolution"), conv("a", "b", 4))
    for scheme, names in (("int8", ["a", "b"]), ("ncnn", ["b"])):
        given = read_scheme(scheme)
        assert [layer.name for layer in rounded_products(net, given, places(net, given))] == names
