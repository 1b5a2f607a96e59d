"""`Blob`: writable arrays with write-through (CAFFE.md §4)."""
from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe.errors import Error
from tests.api.nets import net, numbers


def test_every_way_to_write(device: Any) -> None:
    small, image = net(device), numbers(2, 3, 8, 8)
    expected = small.forward(data=image)["prob"].copy()

    def by_slice(blob: Any) -> None:
        blob.data[...] = image

    def by_sample(blob: Any) -> None:
        blob.data[0], blob.data[1, ...] = image[0], image[1]

    def by_flat(blob: Any) -> None:
        blob.data.flat = image.ravel()

    def by_copyto(blob: Any) -> None:
        np.copyto(blob.data, image)

    def by_kept_part(blob: Any) -> None:
        row = blob.data[1]
        blob.data[0] = image[0]
        row[...] = image[1]

    def by_assignment(blob: Any) -> None:
        blob.data = image

    def by_arithmetic(blob: Any) -> None:
        blob.data[...] = 2 * image
        blob.data[...] /= 2

    def through_torch(blob: Any) -> None:
        torch = pytest.importorskip("torch")
        torch.from_dlpack(blob.data)[...] = torch.from_numpy(image)

    def through_dlpack(blob: Any) -> None:
        np.asarray(np.from_dlpack(blob))  # what numpy gives is read-only; torch's is not
        torch = pytest.importorskip("torch")
        torch.from_dlpack(blob)[...] = torch.from_numpy(image)

    for write in (by_slice, by_sample, by_flat, by_copyto, by_kept_part, by_assignment, by_arithmetic, through_torch, through_dlpack):
        small.blobs["data"].data[...] = 0
        small.forward()
        write(small.blobs["data"])
        np.testing.assert_array_equal(small.forward()["prob"], expected, err_msg=write.__name__)


def test_an_array_that_is_held_is_written_run_after_run(device: Any) -> None:
    """`data = net.blobs['data'].data` once, before the loop."""
    small, other = net(device), net(device)
    image, copy = small.blobs["data"].data, np.empty((2, 3, 8, 8), np.float32)
    weight = small.params["score"][1].data
    for seed in range(3):
        image[...] = copy[...] = numbers(2, 3, 8, 8, seed=seed)
        weight[...] = seed
        other.params["score"][1].data[...] = seed
        np.testing.assert_array_equal(small.forward()["prob"], other.forward(data=copy)["prob"])


def test_a_part_that_is_kept_stays_connected(device: Any) -> None:
    """An array that a script took a slice of is written and refreshed run after run."""
    small = net(device)
    row = small.blobs["data"].data[1]
    out = small.blobs["prob"].data[1]
    for seed in range(3):
        row[...] = numbers(3, 8, 8, seed=seed)
        small.forward()
        np.testing.assert_array_equal(small.blobs["data"].data[1], numbers(3, 8, 8, seed=seed))
        np.testing.assert_array_equal(small.blobs["prob"].data[1], out)
        np.testing.assert_allclose(out.sum(0), 1, rtol=1e-5)


def test_nothing_is_copied_that_nobody_touched(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small = net(device)
    small.forward(data=numbers(2, 3, 8, 8))
    copies: list[str] = []
    for name in ("read", "write"):
        inner = getattr(type(small._engine), name)
        monkeypatch.setattr(type(small._engine), name, lambda self, ref, *rest, _n=name, _i=inner: (copies.append(f"{_n} {ref.name}"), _i(self, ref, *rest))[1])
    gc.collect()
    small.forward(data=numbers(2, 3, 8, 8))
    assert copies == ["write data", "read prob"]
    weights = small.params["conv"][0].data
    copies.clear()
    small.forward()
    assert "write conv/0" not in copies and weights.any(), "what was only read is not written"


def test_shapes_and_refusals(device: Any) -> None:
    small = net(device)
    blob = small.blobs["data"]
    assert repr(blob) == "<Blob 'data' 2 x 3 x 8 x 8>" and np.asarray(blob).shape == blob.shape
    with pytest.raises(Error, match=r"parameter 'conv/0' is 4 x 3 x 3 x 3"):
        small.params["conv"][0].reshape(1, 2)
    small.params["conv"][0].reshape(4, 3, 3, 3)
    small.blobs["pool"].reshape(1, 1)  # layers give it its shape, as in Caffe
    assert small.blobs["pool"].shape == (2, 4, 3, 3)
    with pytest.raises(ValueError, match="broadcast"):
        blob.data[...] = numbers(3, 3)
    with pytest.raises(Error, match="5 axes"):
        _ = net(device, 'layer { name: "i" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 1 dim: 1 dim: 2 } } }').blobs["x"].num


def test_diffs_by_hand(device: Any) -> None:
    small = net(device, phase=caffe.TRAIN)
    small.forward(data=numbers(2, 3, 8, 8))
    small.blobs["prob"].diff[...] = numbers(2, 5, 3, 3)
    small.backward()
    by_blob = small.params["conv"][0].diff.copy()
    small.clear_param_diffs()
    small.backward(prob=numbers(2, 5, 3, 3))
    np.testing.assert_array_equal(small.params["conv"][0].diff, by_blob)
    small.params["conv"][0].diff[...] = 1
    small.backward()
    np.testing.assert_allclose(small.params["conv"][0].diff, by_blob + 1, rtol=1e-5, atol=1e-6)


def test_blobs_outlive_the_name_of_the_net(device: Any) -> None:
    weight = net(device, seed=4).params["conv"][0]
    np.testing.assert_array_equal(weight.data, net(device, seed=4).params["conv"][0].data)
