"""`Net` with pycaffe's names. Tests of running and memory are in tests/api/test_forward_backward.py."""
from __future__ import annotations

import gc
import pathlib
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe.errors import Error
from tests.api.nets import LEARNING, SMALL, net, numbers
from tests.harness import of_its_own

pytestmark = pytest.mark.quick


def test_both_constructors(device: Any, tmp_path: pathlib.Path) -> None:
    file, weights = tmp_path / "net.prototxt", str(tmp_path / "net.caffemodel")
    staged = SMALL.replace('name: "relu" type', 'name: "relu" include { stage: "deploy" } type')
    file.write_text(staged)
    first = caffe.Net(str(file), caffe.TRAIN, device=device, seed=5)
    first.save(weights)
    assert first.phase == caffe.TRAIN and "relu" not in first.layer_dict and first.name == "small"
    first.name = "ours"  # as in test scripts of py-faster-rcnn
    assert first.name == "ours"
    made = [
        caffe.Net(str(file), caffe.TEST, 0, ["deploy"], weights, device=device),
        caffe.Net(str(file), caffe.TEST, stages=["deploy"], weights=weights, device=device),
        caffe.Net(network_file=file, phase=caffe.TEST, level=0, stages=["deploy"], weights=weights, device=device),
    ]
    old = caffe.Net(str(file), weights, caffe.TEST, device=device)
    assert "relu" not in old.layer_dict and all("relu" in one.layer_dict for one in made)
    for one in [*made, old]:
        np.testing.assert_array_equal(one.params["conv"][0].data, first.params["conv"][0].data)


@pytest.mark.parametrize("args", [("net.caffemodel", "TEST"), (1, "weights"), (1, 0, "deploy"), (1, 0, None, None, 7), (1.5,), (7,)])
def test_arguments_that_are_none_are_told(args: tuple[Any, ...]) -> None:
    with pytest.raises(Error, match="Net"):
        caffe.Net("net.prototxt", *args)


@pytest.mark.parametrize(
    ("options", "told"), [({"keep": "pool"}, "keep is the text 'pool'"), ({"memory_limit": "1G"}, "memory_limit is '1G'"), ({"memory_limit": 0}, "is 0")]
)
def test_options_that_are_none_are_told(device: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(Error, match=told):
        net(device, **options)
    with pytest.raises(Error, match=told):
        caffe.SGDSolver("solver.prototxt", device=device, **options)


def test_missing_and_broken_files_are_exceptions(device: Any, tmp_path: pathlib.Path) -> None:
    """BVLC Caffe kills the process instead (BVLC#35, #2976)."""
    (tmp_path / "net.prototxt").write_text(SMALL.replace("num_output: 4", "num_outputs: 4"))
    with pytest.raises(Error, match="num_outputs"):
        caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST, device=device)
    with pytest.raises(Error, match=r"none\.prototxt"):
        caffe.Net(str(tmp_path / "none.prototxt"), caffe.TEST, device=device)
    (tmp_path / "net.prototxt").write_text(SMALL)
    with pytest.raises(Error, match=r"none\.caffemodel"):
        caffe.Net(str(tmp_path / "net.prototxt"), str(tmp_path / "none.caffemodel"), caffe.TEST, device=device)
    with pytest.raises(Error, match="no blob 'typo' to keep"):
        net(device, keep=["pool", "typo"])


def test_names_ids_and_layers(device: Any) -> None:
    text = SMALL + 'layer { name: "both" type: "Eltwise" bottom: "pool" bottom: "pool" top: "sum" }'
    small = net(device, text)
    assert small._layer_names == ["data", "conv", "relu", "pool", "pool_pool_0_split", "score", "prob", "both"]
    assert small._blob_names[:3] == ["data", "conv", "pool"] and len(small._blobs) == len(small.blobs)
    assert isinstance(small.blobs, OrderedDict) and isinstance(small.params, OrderedDict)
    assert small.top_names["relu"] == small.bottom_names["relu"] == ["conv"] and small.bottom_names["data"] == []
    assert [small._blob_names[i] for i in small._bottom_ids(7)] == small.bottom_names["both"] == ["pool_pool_0_split_1", "pool_pool_0_split_2"]
    assert small._top_ids(1) == small._top_ids(2) == [1] == small._bottom_ids(2)
    assert [small._blob_names[i] for i in small._inputs] == ["data"] and [small._blob_names[i] for i in small._outputs] == small.outputs == ["prob", "sum"]
    assert [layer.type for layer in small.layers[:3]] == ["Input", "Convolution", "ReLU"] and small.layer_dict["score"].type == "Convolution"
    small.layer_dict["conv"].blobs[1].data[...] = 3
    assert (small.params["conv"][1].data == 3).all() and (small.layers[1].blobs[1].data == 3).all() and small.layers[2].blobs == []
    assert list(small.params) == ["conv", "score"]


def test_loss_and_private_runs(device: Any) -> None:
    learning = net(device, LEARNING.replace('top: "loss"', 'top: "loss" loss_weight: 2'), caffe.TRAIN)
    assert learning.blob_loss_weights["loss"] == 2 and learning.blob_loss_weights["ip"] == 0 and learning._blob_loss_weights[-1] == 2
    learning.blobs["data"].data[...] = numbers(4, 3)
    last = len(learning.layers) - 1
    loss = learning._forward(0, last)
    assert loss == pytest.approx(2 * float(learning.blobs["loss"].data), rel=1e-6) and loss > 0
    assert learning._forward(0, 1) == 0
    learning._backward(last, 0)
    assert np.abs(learning.params["ip"][0].diff).max() > 0


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda n: n.forward(nope=1), "no input"),
        (lambda n: n.forward(data=numbers(1, 3, 8, 8)), "1 x 3 x 8 x 8, the blob 2 x 3"),
        (lambda n: n.forward(data=numbers(2, 3, 8, 9)), "2 x 3 x 8 x 9"),
        (lambda n: n.forward(blobs=["nope"]), "no blob 'nope'"),
        (lambda n: n.forward(end="nope"), "no layer 'nope'"),
        (lambda n: n.backward(nope=1), "no blob 'nope'"),
        (lambda n: n.backward(prob=numbers(1, 5, 3, 3)), "the blob 2 x 5"),
        (lambda n: n.backward(diffs=["nope"]), "no blob 'nope'"),
        (lambda n: n.forward_all(), "nothing"),
        (lambda n: n.forward_all(data=numbers(3, 3, 8, 8), prob=numbers(3, 5, 3, 3)), "data, prob"),
        (lambda n: n.forward_backward_all(data=numbers(3, 3, 8, 8), prob=numbers(2, 5, 3, 3)), r"3 \(data\), 2 \(prob\) rows"),
        (lambda n: n.forward_all(data=numbers(0, 3, 8, 8)), "at least one"),
        (lambda n: n.set_input_arrays(numbers(2, 3, 8, 8)), "no MemoryData"),
    ],
)
def test_refused_calls(device: Any, call: Any, told: str) -> None:
    with pytest.raises(Error, match=told):
        call(net(device))


def test_forward_all_batches_and_pads(device: Any) -> None:
    small, many = net(device), numbers(5, 3, 8, 8)
    found = small.forward_all(blobs=["pool"], data=many)
    assert set(found) == {"prob", "pool"} and found["prob"].shape == (5, 5, 3, 3)
    for begin in range(0, 4, 2):
        out = small.forward(["pool"], data=many[begin : begin + 2])
        for name, array in out.items():
            np.testing.assert_array_equal(found[name][begin : begin + 2], array)
    parts = list(small._batch({"data": many}))
    assert [len(part["data"]) for part in parts] == [2, 2, 2] and not parts[2]["data"][1].any()


def test_forward_backward_all(device: Any) -> None:
    small = net(device, "force_backward: true" + SMALL)
    images, slopes = numbers(3, 3, 8, 8), numbers(3, 5, 3, 3, seed=2)
    out, diffs = small.forward_backward_all(["pool"], ["pool"], data=images, prob=slopes)
    assert {name: array.shape for name, array in diffs.items()} == {"data": (3, 3, 8, 8), "pool": (3, 4, 3, 3)}
    small.forward(data=images[:2])
    np.testing.assert_allclose(small.backward(prob=slopes[:2])["data"], diffs["data"][:2], rtol=1e-5, atol=1e-7)
    assert set(out) == {"prob", "pool"} and len(out["pool"]) == 3
    learning = net(device, LEARNING, caffe.TRAIN)
    loss = learning.forward_all(data=numbers(8, 3), label=np.zeros(8))["loss"]
    assert loss.shape == (2,), "a loss is one number for each batch"


def test_callbacks_see_each_layer_and_may_change_it(device: Any) -> None:
    small = net(device, "force_backward: true" + SMALL)
    plain = small.forward(data=numbers(2, 3, 8, 8))["prob"].copy()
    order: list[tuple[str, int]] = []
    small.before_forward(lambda layer: order.append(("before", layer)))
    small.after_forward(lambda layer: order.append(("after", layer)))
    np.testing.assert_array_equal(small.forward()["prob"], plain)
    assert order == [(when, layer) for layer in range(6) for when in ("before", "after")]
    order.clear()
    small.before_backward(lambda layer: order.append(("before", layer)))
    small.after_backward(lambda layer: order.append(("after", layer)))
    small.backward(prob=plain, end="conv")
    assert order == [(when, layer) for layer in range(5, 0, -1) for when in ("before", "after")]

    def negate(layer: int) -> None:
        if small._layer_names[layer] == "conv":
            small.blobs["conv"].data[...] = -1

    small.after_forward(negate)
    assert not small.forward()["pool" if "pool" in small.outputs else "prob"].any() or not small.blobs["pool"].data.any()


def test_shared_weights_are_one_memory(device: Any) -> None:
    """Siamese net: values written to one branch appear in the other; gradients stay separate."""
    first, second = net(device, seed=1, phase=caffe.TRAIN), net(device, seed=2, phase=caffe.TRAIN)
    images = numbers(2, 3, 8, 8)
    expected = first.forward(data=images)["prob"].copy()
    assert not np.allclose(second.forward(data=images)["prob"], expected)
    second.share_with(first)
    np.testing.assert_array_equal(second.forward(data=images)["prob"], expected)
    second.params["score"][1].data[...] = [0, 9, 0, 0, 0]
    assert (first.forward(data=images)["prob"][:, 1] > 0.9).all(), "what was written into one net is not seen by the other"
    first.params["conv"][0].data[...] = 0
    np.testing.assert_array_equal(second.params["conv"][0].data, 0)
    assert (second.forward(data=images)["conv" if "conv" in second.outputs else "prob"][:, 1] > 0.9).all()
    third = net(device, seed=3)
    third.share_with(second)
    first.params["conv"][1].data[...] = 2
    third.forward(data=images)
    np.testing.assert_array_equal(third.blobs["conv"].data, 2)
    del first, second
    np.testing.assert_array_equal(third.params["conv"][1].data, 2)


def test_other_shapes_are_not_shared(device: Any) -> None:
    first, second = net(device), net(device, SMALL.replace("num_output: 4", "num_output: 6"))
    before = second.params["conv"][0].data.copy()
    with pytest.raises(Error, match=r"6 x 3 x 3 x 3.* here and 4 x 3 x 3 x 3"):
        second.share_with(first)
    np.testing.assert_array_equal(second.params["conv"][0].data, before)


def test_hdf5_goes_round(device: Any, tmp_path: pathlib.Path) -> None:
    first, second, path = net(device, seed=1, phase=caffe.TRAIN), net(device, seed=2), str(tmp_path / "w.caffemodel.h5")
    first.params["score"][1].data[...] = 7
    first.save_hdf5(path)
    second.load_hdf5(path)
    for name, blobs in first.params.items():
        for a, b in zip(blobs, second.params[name]):
            np.testing.assert_array_equal(a.data, b.data)
    first.forward(data=numbers(2, 3, 8, 8))
    first.backward(prob=numbers(2, 5, 3, 3))
    first.save_hdf5(path, True)
    import h5py

    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["diff/conv/0"][()], first.params["conv"][0].diff)
    with pytest.raises(Error, match="cannot be written"):
        first.save(str(tmp_path / "none" / "w.caffemodel"))


def test_input_arrays(device: Any) -> None:
    text = SMALL.replace('type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } }',
                         'type: "MemoryData" top: "data" top: "label" memory_data_param { batch_size: 2 channels: 3 height: 8 width: 8 }')  # fmt: skip
    small, images = net(device, text), numbers(4, 3, 8, 8)
    small.set_input_arrays(images, np.arange(4))
    for begin in (0, 2, 0):
        small.forward()
        np.testing.assert_array_equal(small.blobs["data"].data, images[begin : begin + 2])
        np.testing.assert_array_equal(small.blobs["label"].data.reshape(-1), [begin, begin + 1])
    with pytest.raises(Error, match="multiple of the batch size"):
        small.set_input_arrays(images[:3])
    small.close()


TWO_STREAMS = """
layer { name: "a" type: "MemoryData" top: "a" top: "x" memory_data_param { batch_size: 2 channels: 3 height: 8 width: 8 } }
layer { name: "b" type: "MemoryData" top: "b" top: "y" memory_data_param { batch_size: 2 channels: 3 height: 8 width: 8 } }
layer { name: "conv" type: "Convolution" bottom: "a" top: "conv" convolution_param { num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "more" type: "Convolution" bottom: "b" top: "more" convolution_param { num_output: 4 kernel_size: 2 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "pool" bottom: "more" top: "sum" }
layer { name: "labels" type: "Eltwise" bottom: "x" bottom: "y" top: "labels" }
"""


def test_two_streams_of_batches_are_the_same_on_a_device_of_its_own_memory(device: Any) -> None:
    """Batches are sent ahead of their runs, with new arrays, repeated passes and partial passes in between."""

    def everything(on: Any) -> list[np.ndarray]:
        found = []
        with net(on, TWO_STREAMS) as two:
            def see(passed: dict[str, np.ndarray]) -> None:
                found.extend(passed[name].copy() for name in ("sum", "labels"))
                found.extend(two.blobs[name].data.copy() for name in ("a", "b", "x"))

            for layer, rows in (("a", 6), ("b", 4)):
                two.set_input_arrays(numbers(rows, 3, 8, 8, seed=rows), np.arange(rows), layer)
            for _ in range(4):
                see(two.forward())
            two.backward(sum=numbers(2, 4, 4, 4))  # repeats the forward pass
            found.append(two.params["conv"][0].diff.copy())
            see(two.forward())
            two.set_input_arrays(numbers(10, 3, 8, 8, seed=9), np.arange(10), "b")
            for _ in range(3):
                see(two.forward())
            two.forward(end="pool")  # now layer by layer
            two.forward(start="more")
            see(two.forward())
            two.share_with(net(on, TWO_STREAMS))  # moves to another session
            see(two.forward())
            two.backward(sum=numbers(2, 4, 4, 4))
            found.append(two.params["more"][0].diff.copy())
        return found

    shared, own = everything(device), everything(of_its_own(device))
    assert len(shared) == len(own)
    for left, right in zip(shared, own):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("own", [False, True])
def test_an_array_in_pinned_memory(device: Any, own: bool) -> None:
    small = net(of_its_own(device) if own else device)
    array = small.pinned("data")
    assert array.shape == (2, 3, 8, 8) and array.dtype == np.float32 and not array.any()
    for seed in range(3):
        array[...] = numbers(2, 3, 8, 8, seed=seed)
        np.testing.assert_array_equal(small.forward(data=array)["prob"], net(device).forward(data=numbers(2, 3, 8, 8, seed=seed))["prob"])
    with pytest.raises(Error, match="no blob 'image'"):
        small.pinned("image")
    small.close()
    with pytest.raises(Error, match="closed"):
        small.pinned("data")
    row = array[0]
    del small, array
    gc.collect()
    row[...] = 1
    assert row.sum() == 192


def test_features_from_a_middle_blob(device: Any) -> None:
    """Run up to a layer and read its blob; later layers do not run."""
    small = net(device)
    small.forward(data=numbers(2, 3, 8, 8))
    whole = small.blobs["pool"].data.copy()
    small.blobs["prob"].data[...] = -1
    features = small.forward(data=numbers(2, 3, 8, 8), end="pool")
    assert list(features) == ["pool"]
    np.testing.assert_array_equal(features["pool"], whole)
    np.testing.assert_array_equal(small.blobs["prob"].data, -1)


def test_fully_connected_becomes_convolution_for_any_image(device: Any) -> None:
    """Net surgery: copy the weights of an InnerProduct to a Convolution, which runs on larger images."""
    full = net(device, SMALL.replace('"Convolution" bottom: "pool" top: "score" convolution_param { num_output: 5 kernel_size: 1',
                                     '"InnerProduct" bottom: "pool" top: "score" inner_product_param { num_output: 5'))  # fmt: skip
    conv = net(device, SMALL.replace("kernel_size: 1", "kernel_size: 3"))
    for name in full.params:
        for mine, theirs in zip(conv.params[name], full.params[name]):
            mine.data.flat = theirs.data.flat
    conv.blobs["data"].reshape(1, 3, 12, 10)
    conv.reshape()
    image = numbers(1, 3, 12, 10)
    dense = conv.forward(data=image)["prob"]
    assert dense.shape == (1, 5, 3, 2)
    for row in range(3):
        for column in range(2):
            window = image[:, :, 2 * row : 2 * row + 8, 2 * column : 2 * column + 8]
            alone = full.forward(data=np.repeat(window, 2, 0))["prob"]
            np.testing.assert_allclose(dense[0, :, row, column], alone[0], rtol=1e-4, atol=1e-6)


def test_context_manager_frees_and_refuses_use(device: Any) -> None:
    with net(device) as small:
        held = small.forward(data=numbers(2, 3, 8, 8))["prob"]
        before = held.copy()
    np.testing.assert_array_equal(held, before)
    assert not small._network.session._persistent
    for use in (lambda: small.forward(), lambda: small.blobs["data"].data, lambda: small.params["conv"][0].data):
        with pytest.raises(Error, match="closed"):
            use()
    small.close()
