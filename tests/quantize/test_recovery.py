"""Recovery: corrected biases, trained weights and scales, chosen ranges; and the whole of `quantize`, which keeps what helps."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.cl.device import Device
from ocaffe.convert.caffe.net import Net
from ocaffe.errors import Error
from ocaffe.quantize.choose import AUTO, choose
from ocaffe.quantize.correct import correct
from ocaffe.quantize.grid import grid
from ocaffe.quantize.images import Images
from ocaffe.quantize.measure import judged, measure, output_error
from ocaffe.quantize.observe import observe
from ocaffe.quantize.page import page
from ocaffe.quantize.pair import alone, beside, own_name
from ocaffe.quantize.places import places, rounded_products
from ocaffe.quantize.quantize import Settings, quantize
from ocaffe.quantize.reconstruct import reconstruct
from ocaffe.quantize.scheme import Scheme, read_scheme
from ocaffe.quantize.sensitivity import wide
from ocaffe.quantize.simulate import copied, simulated
from ocaffe.quantize.table import Entry, Table
from ocaffe.quantize.thresholds import METHODS
from ocaffe.quantize.worst import worst
from tests.quantize.nets import conv, data, fc, images_of, net_of, outputs_of, text

pytestmark = pytest.mark.unoptimised
INT8 = read_scheme("int8")
FOUR = replace(INT8, bits=4, least=-8)
LAYERS = [data(8, 3, 8, 8), conv("data", "a", 8), text("ReLU", "a", "a", name="relu"), conv("a", "b", 8, 3, "group: 8"), text("ReLU", "b", "b", name="r2"),
          fc("b", "c", 6)]  # fmt: skip


def calibrated(net: Net, scheme: Scheme, images: Images, device: Any, method: str = "max") -> Table:
    at = places(net, scheme)
    entries = choose(net, at, observe(net, at, images, device), scheme, method, images, device)
    return Table(scheme, entries, [layer.name for layer in rounded_products(net, scheme, at)])


def error_of(net: Net, table: Table, images: Images, device: Any, original: Net) -> float:
    return output_error(net, measure(net, table, images, device, original=original))


def test_the_error_of_the_outputs_is_that_of_both_nets(device: Device) -> None:
    net = net_of(*LAYERS)
    images = images_of(net)
    table = calibrated(net, FOUR, images, device)
    (exact,), (rounded,) = outputs_of(net, images, device), outputs_of(simulated(net, table), images, device)
    assert error_of(net, table, images, device, net) == pytest.approx(((rounded - exact) ** 2).mean() / (exact**2).mean(), rel=1e-3)


def test_auto_takes_the_method_with_the_smallest_error(device: Device) -> None:
    net = net_of(*LAYERS)
    images = images_of(net)
    one = calibrated(net, FOUR, images, device, "auto").values["data"]
    errors = {}
    for method in METHODS:
        grid = calibrated(net, FOUR, images, device, method).values["data"].grid
        errors[method] = error_at(net, Table(FOUR, {"data": replace(one, grid=grid)}), net.producer("a").bottom[0], images, device)
    assert errors[one.method] == pytest.approx(min(errors.values()), rel=1e-3)
    assert errors[one.method] < 0.8 * errors["max"]


def error_at(net: Net, table: Table, value: str, images: Images, device: Any) -> float:
    (exact,), (rounded,) = outputs_of(net, images, device, (value,)), outputs_of(simulated(net, table), images, device, (value,))
    return float(((rounded - exact) ** 2).mean())


def test_bias_correction_removes_the_mean_error(device: Device) -> None:
    net = net_of(data(8, 3, 8, 8), conv("data", "a", 8), text("ReLU", "a", "a", name="relu"), fc("a", "c", 6))
    images = images_of(net, change=lambda x: np.abs(x, out=x))
    table = calibrated(net, FOUR, images, device)
    changed = copied(net)
    correct(changed, table, images, device)
    (exact,), (before,) = outputs_of(net, images, device), outputs_of(simulated(net, table), images, device)
    alone = Table(FOUR, table.values, ["c"])  # the product whose inputs are exact but for their rounding
    (after,) = outputs_of(simulated(changed, alone), images, device)
    assert error_of(changed, table, images, device, net) < error_of(net, table, images, device, net)
    assert np.abs((after - exact).mean(axis=0)).mean() < np.abs((before - exact).mean(axis=0)).mean()


def test_reconstruction_lessens_the_error(device: Device) -> None:
    net = net_of(*LAYERS)
    images = images_of(net, 64)
    table = calibrated(net, FOUR, images, device)
    before, changed, told = error_of(net, table, images, device, net), copied(net), list[int]()
    reconstruct(changed, table, images, 100, device, told.append)
    assert error_of(changed, table, images, device, net) < 0.85 * before
    assert told == list(range(1, 101))


def test_outputs_of_very_different_size_are_all_reconstructed(device: Device) -> None:
    """All outputs of a product have one rate, and it must suit the small ones."""
    net = net_of(*LAYERS[:2], text("ReLU", "a", "a", name="relu"), conv("a", "b", 6))
    sizes = np.geomspace(1e-3, 1, 8, dtype=np.float32)
    first, second = net.arrays["a"], net.arrays["b"]
    net.arrays["a"] = [first[0] * sizes.reshape(-1, 1, 1, 1), first[1] * sizes]
    net.arrays["b"] = [second[0] / sizes.reshape(1, -1, 1, 1), second[1]]
    images = images_of(net, 64)
    table = calibrated(net, INT8, images, device)
    table.values = {"data": table.values["data"]}  # the small channels have no integers of their own otherwise
    before, changed = error_of(net, table, images, device, net), copied(net)
    reconstruct(changed, table, images, 60, device)
    assert error_of(changed, table, images, device, net) < before


def test_two_reconstructions_have_the_same_bits(device: Device) -> None:
    net = net_of(*LAYERS)
    images, found = images_of(net), []
    for _ in range(2):
        changed, table = copied(net), calibrated(net, FOUR, images, device)
        reconstruct(changed, table, images, 5, device)
        found.append([array.tobytes() for arrays in changed.arrays.values() for array in arrays] + [entry.grid.scale for entry in table.values.values()])
    assert found[0] == found[1]


@pytest.mark.parametrize("scheme", ["int8", "onnx", "ncnn", "rknn", "nnie"])
def test_quantize_keeps_what_helps(scheme: str, device: Device) -> None:
    net = net_of(*LAYERS)
    images = images_of(net)
    made = quantize(net, Settings(read_scheme(scheme), steps=10), images, device)
    kept = [error for what, error in made.stages if "taken back" not in what]
    assert kept[-1] == min(error for _, error in made.stages)
    assert error_of(made.net, made.table, images, device, net) == pytest.approx(kept[-1], rel=1e-3)
    (weight, *_) = made.rounded().arrays["c"]
    assert np.isfinite(weight).all()
    assert len(np.unique(weight[0])) <= 256


def test_the_net_that_is_given_stays(device: Device) -> None:
    net = net_of(*LAYERS)
    before = {name: [array.copy() for array in arrays] for name, arrays in net.arrays.items()}
    quantize(net, Settings(INT8, steps=3), images_of(net), device)
    assert all((old == new).all() for name in before for old, new in zip(before[name], net.arrays[name]))


# -- bad input -------------------------------------------------------------------------------------------------------


def refused(net: Net, images: Images, device: Any, scheme: str = "int8") -> str:
    with pytest.raises(Error) as caught:
        quantize(net, Settings(read_scheme(scheme), steps=2), images, device)
    return str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_images_that_are_not_finite(bad: float, device: Device) -> None:
    net = net_of(*LAYERS)

    def spoil(x: np.ndarray) -> None:
        x[3, 1, 2, 4] = bad

    text_of = refused(net, images_of(net, change=spoil), device)
    assert "'data' has NaN or infinity in 1 place" in text_of
    assert "images" in text_of


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("index", [0, 1])
def test_weights_that_are_not_finite(bad: float, index: int, device: Device) -> None:
    net = net_of(*LAYERS)
    net.arrays["b"][index] = net.arrays["b"][index].copy()
    net.arrays["b"][index].reshape(-1)[1] = bad
    text_of = refused(net, images_of(net), device)
    assert "'b'" in text_of
    assert "NaN or infinity" in text_of


@pytest.mark.parametrize("constant", [0.0, 1.0, -2.5])
def test_constant_images(constant: float, device: Device) -> None:
    net = net_of(*LAYERS)
    made = quantize(net, Settings(INT8, steps=2), images_of(net, change=lambda x: x.fill(constant)), device)
    assert all(np.isfinite(entry.grid.scale) and entry.grid.scale > 0 for entry in made.table.values.values())
    assert made.stages[-1][1] < 1e-3


def test_weights_of_zero(device: Device) -> None:
    net = net_of(*LAYERS)
    net.arrays["a"] = [np.zeros_like(net.arrays["a"][0]), -np.ones_like(net.arrays["a"][1])]  # the ReLU behind it gives 0 alone
    made = quantize(net, Settings(INT8, steps=2), images_of(net), device)
    assert np.isfinite(made.stages[-1][1])
    assert all(np.isfinite(array).all() for arrays in made.rounded().arrays.values() for array in arrays)


def test_a_net_without_products(device: Device) -> None:
    net = net_of(data(8, 3, 8, 8), text("TanH", "data", "t"))
    assert "no layer that computes with integers: Convolution" in refused(net, images_of(net), device)


def test_values_of_any_size(device: Device) -> None:
    for size in (1e-6, 1e6):
        net = net_of(*LAYERS[:2])
        net.arrays["a"][1][...] = 0
        made = quantize(net, Settings(INT8, steps=2), images_of(net, change=lambda x, size=size: np.multiply(x, size, out=x)), device)
        assert made.stages[-1][1] < 1e-3, size


def test_products_that_follow_each_other(device: Device) -> None:
    """A product reads the rounded output of another one, without an activation between them."""
    net = net_of(data(8, 3, 9, 9), conv("data", "first", 6, 1), conv("first", "second", 5), fc("second", "third", 4))
    made = quantize(net, Settings(read_scheme("int8"), steps=3), images_of(net), device)
    assert made.table.products == ["first", "second", "third"] and 0 < made.stages[-1][1] < 1e-2


def test_auto_is_no_worse_for_the_whole_net_than_any_method(device: Device) -> None:
    """A few images with a very bright pixel: the best ranges of each product alone keep it, those of the whole net need not."""
    net = net_of(*LAYERS)

    def arrays() -> Iterator[dict[str, np.ndarray]]:
        for batch in images_of(net).batches_of_arrays():
            bright = np.array(batch["data"])
            bright[0, 0, 0, 0] = 200.0
            yield {"data": bright}

    images = Images(images_of(net).count, images_of(net).batch, arrays=arrays)
    errors = {name: quantize(net, Settings(FOUR, name, False, False, 0), images, device).stages[-1][1] for name in METHODS}
    made = quantize(net, Settings(FOUR, AUTO, False, False, 0), images, device)
    assert made.stages[-1][1] <= min(errors.values()) * (1 + 1e-6) and len(made.stages) == len(METHODS) + 1
    assert max(errors.values()) > 2 * min(errors.values()), "a test of methods that are alike shows nothing"


CHANNELS_LAST = "permute_param { order: 0 order: 2 order: 3 order: 1 }"
DETECTOR = [
    data(4, 3, 16, 16), conv("data", "f", 8, 3, "pad: 1 stride: 4"), conv("f", "loc", 8, 1), text("Permute", "loc", "locp", CHANNELS_LAST),
    text("Flatten", "locp", "locf"), conv("f", "conf", 6, 1), text("Permute", "conf", "confp", CHANNELS_LAST),
    text("Reshape", "confp", "confr", "reshape_param { shape { dim: 0 dim: -1 dim: 3 } }"), text("Softmax", "confr", "confs", "softmax_param { axis: 2 }"),
    text("Flatten", "confs", "conff"),
    text("PriorBox", "f data", "priors", "prior_box_param { min_size: 4 max_size: 6 }"),
    text("DetectionOutput", "locf conff priors", "found", "detection_output_param { num_classes: 3 keep_top_k: 40 confidence_threshold: 0.35 "
         "nms_param { nms_threshold: 0.4 } code_type: CENTER_SIZE }"),
]  # fmt: skip


def test_a_detector_whose_rounded_net_finds_other_boxes(device: Device) -> None:
    """It is judged by what its boxes are made of, because the numbers of its rows differ."""
    net = net_of(*DETECTOR)
    images = images_of(net)
    made = quantize(net, Settings(FOUR, "max", False, False, 0), images, device)
    exact, rounded = (outputs_of(each, images.first(images.batch), device)[0] for each in (net, simulated(net, made.table)))
    assert exact.shape != rounded.shape, "a test of nets with as many boxes shows nothing"
    assert judged(net) == ["locf", "conff"] and made.errors["locf"] > 0 and made.errors["conff"] > 0
    shown = worst(net, made.table, images, 3, device, original=net)
    assert len(shown) == 3 and shown[0].error >= shown[-1].error > 0 and not shown[0].floats.size
    assert "largest output" not in page("a detector", made, shown)


def test_images_that_judge_and_learn() -> None:
    """As many images as one batch: none remain behind it, so the same images do both."""
    for count, batch, left, skipped in ((300, 300, 300, 0), (512, 512, 512, 0), (512, 128, 384, 1), (300, 150, 150, 1), (40, 20, 40, 0)):
        behind = Images(count, batch).behind(128)
        assert (behind.count, behind.skipped) == (left, skipped)


ROWS = [data(8, 4, 6), text("Reshape", "data", "rows", "reshape_param { shape { dim: -1 dim: 6 } }"), fc("rows", "a", 5), text("ReLU", "a", "a", name="relu"),
        fc("a", "b", 3)]  # fmt: skip
AXES = {
    "several rows of an image": ROWS,
    "an axis before the outputs": [data(8, 4, 6), fc("data", "a", 5, "axis: 2"), text("ReLU", "a", "a", name="r"), fc("a", "b", 3)],
    "one output of a whole batch": [data(8, 6), fc("data", "a", 5, "axis: 0")],
}  # fmt: skip


@pytest.mark.parametrize("name", AXES)
def test_biases_are_corrected_along_the_outputs(name: str, device: Device) -> None:
    net = net_of(*AXES[name])
    images = images_of(net)
    table = calibrated(net, FOUR, images, device)
    changed = copied(net)
    correct(changed, table, images, device)
    pair = beside(net, table, chained=False)
    for layer in alone(net, table):
        exact, rounded = outputs_of(pair, images, device, (layer.top[0], own_name(layer.top[0])))
        new, old = (np.asarray(each.arrays[layer.name][1]) for each in (changed, net))
        np.testing.assert_allclose(old - new, (rounded - exact).reshape(-1, len(old)).mean(axis=0), rtol=1e-3, atol=1e-6)


def test_a_net_whose_outputs_are_no_numbers(device: Device) -> None:
    """ncnn rounds no output, so no histogram sees it."""
    net = net_of(*LAYERS)
    net.arrays["c"][1][0] = np.nan
    for name in ("int8", "ncnn"):
        with pytest.raises(Error, match="NaN or infinity"):
            quantize(net, Settings(read_scheme(name), AUTO, True, True, 2), images_of(net), device)


def test_a_method_without_a_number_is_the_last_choice(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(*LAYERS)
    real, calls = measure, []

    def first_is_nan(*args: Any, **more: Any) -> dict[str, float]:
        calls.append(1)
        found = real(*args, **more)
        return dict.fromkeys(found, float("nan")) if len(calls) == 1 else found

    monkeypatch.setattr("ocaffe.quantize.quantize.measure", first_is_nan)
    made = quantize(net, Settings(FOUR, AUTO, False, False, 0), images_of(net), device)
    assert len(calls) == len(METHODS) + 1 and made.stages[-1][1] > 0


def test_wide_values_of_a_scheme_of_powers_of_two() -> None:
    nnie = read_scheme("nnie")
    made = wide(Entry("ip", grid(-2.77, 2.49, nnie), "max", -2.77, 2.49, 0.0), nnie).grid
    assert made.scale == 2.0 ** round(np.log2(made.scale)) and made.scale * made.most >= 2.77 and made.most == 32767
