"""`Blob`: writable arrays with write-through."""
from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe.errors import Error
from tests.api.nets import net, numbers

pytestmark = pytest.mark.quick


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
        np.asarray(np.from_dlpack(blob))  # numpy's view is read-only, torch's is not
        torch = pytest.importorskip("torch")
        torch.from_dlpack(blob)[...] = torch.from_numpy(image)

    for write in (by_slice, by_sample, by_flat, by_copyto, by_kept_part, by_assignment, by_arithmetic, through_torch, through_dlpack):
        small.blobs["data"].data[...] = 0
        small.forward()
        write(small.blobs["data"])
        np.testing.assert_array_equal(small.forward()["prob"], expected, err_msg=write.__name__)


def test_an_array_that_is_held_is_written_run_after_run(device: Any) -> None:
    """A script takes `net.blobs['data'].data` once, before its loop."""
    small, other = net(device), net(device)
    image, copy = small.blobs["data"].data, np.empty((2, 3, 8, 8), np.float32)
    weight = small.params["score"][1].data
    for seed in range(3):
        image[...] = copy[...] = numbers(2, 3, 8, 8, seed=seed)
        weight[...] = seed
        other.params["score"][1].data[...] = seed
        np.testing.assert_array_equal(small.forward()["prob"], other.forward(data=copy)["prob"])


def test_a_part_that_is_kept_stays_connected(device: Any) -> None:
    """If a script holds a slice of an array, the array is written and refreshed in every run."""
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


def test_an_input_goes_to_the_device_at_once(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The assigned array is copied to the device before the run if the script holds no array of the blob."""
    small, expected = net(device), net(device)
    written: list[np.ndarray] = []
    inner = type(small._engine).write
    monkeypatch.setattr(type(small._engine), "write", lambda self, ref, array: (written.append(array), inner(self, ref, array))[1])
    for seed in range(3):
        image = numbers(2, 3, 8, 8, seed=seed)
        small.blobs["data"].data = image
        assert len(written) == 1 and written.pop() is image
        np.testing.assert_array_equal(small.blobs["data"].data, image)
        small.blobs["data"].data = other = numbers(2, 3, 8, 8, seed=seed + 10)
        assert not written, "an array was taken since, which shows the new values and is written before the run"
        image[...] = 0
        out = small.forward()["prob"]
        np.testing.assert_array_equal(small.blobs["data"].data, other)
        np.testing.assert_array_equal(out, expected.forward(data=other)["prob"])
        small.forward()  # releases the array that was read
        written.clear()


def test_an_array_that_is_held_shows_what_is_assigned(device: Any) -> None:
    small, expected = net(device), net(device)
    held = small.blobs["data"].data
    part = held[1]
    for seed in range(3):
        image = numbers(2, 3, 8, 8, seed=seed)
        out = small.forward(data=image)["prob"]
        np.testing.assert_array_equal(held, image)
        np.testing.assert_array_equal(part, image[1])
        np.testing.assert_array_equal(out, expected.forward(data=image)["prob"])
    del held
    small.blobs["data"].data = image = numbers(2, 3, 8, 8, seed=7)
    np.testing.assert_array_equal(part, image[1])


IN_PLACE = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "double" type: "Power" bottom: "data" top: "data" power_param { scale: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 weight_filler { type: "gaussian" std: 1 } } }
"""


def test_an_input_that_a_layer_works_on_in_place(device: Any) -> None:
    small = net(device, IN_PLACE)
    for seed in range(3):
        small.blobs["data"].data = image = numbers(2, 3, seed=seed)
        np.testing.assert_array_equal(small.blobs["data"].data, image)
        small.blobs["data"].data = image = numbers(2, 3, seed=seed + 5)
        small.forward()
        np.testing.assert_array_equal(small.blobs["data"].data, 2 * image)
        small.forward(data=image, end="double")
        np.testing.assert_array_equal(small.blobs["data"].data, 2 * image)
        small.forward(start="double")
        np.testing.assert_array_equal(small.blobs["data"].data, 4 * image)


@pytest.mark.parametrize("kind", ["scalar", "row", "list", "float64", "strided", "swapped"])
def test_what_can_be_assigned(device: Any, kind: str) -> None:
    small, image = net(device), numbers(2, 3, 8, 8)
    value: Any = {
        "scalar": 0.5, "row": image[:1], "list": image.tolist(), "float64": image.astype(np.float64), "strided": np.repeat(image, 2, axis=3)[..., ::2],
        "swapped": image.astype(">f4"),
    }[kind]  # fmt: skip
    small.blobs["data"].data = value
    whole = np.broadcast_to(np.asarray(value, np.float32), (2, 3, 8, 8))
    np.testing.assert_array_equal(small.blobs["data"].data, whole)
    small.blobs["data"].data = value
    np.testing.assert_array_equal(small.forward()["prob"], net(device).forward(data=whole)["prob"])


def test_assigned_before_and_after_a_new_shape(device: Any) -> None:
    small, image = net(device), numbers(1, 3, 8, 8)
    small.forward(data=numbers(2, 3, 8, 8))
    small.blobs["data"].reshape(1, 3, 8, 8)
    small.blobs["data"].data = image
    out = small.forward()["prob"]
    assert out.shape == (1, 5, 3, 3)
    np.testing.assert_array_equal(out[0], net(device).forward(data=np.concatenate([image, image]))["prob"][0])
    with pytest.raises(ValueError, match="broadcast"):
        small.blobs["data"].data = numbers(2, 3, 8, 8)


def test_assigned_while_an_earlier_run_is_under_way(device: Any) -> None:
    small, other = net(device), net(device)
    small.share_with(other)  # one session, one queue
    images = [numbers(2, 3, 8, 8, seed=seed) for seed in range(6)]
    expected = [net(device).forward(data=image)["prob"] for image in images]
    for n, (image, want) in enumerate(zip(images, expected)):
        user = (small, other)[n % 2]
        user.blobs["data"].data = image
        user._engine.forward(0, len(user.layers) - 1)  # enqueued without waiting
        user.blobs["data"].data = images[n - 1]
        np.testing.assert_array_equal(user.blobs["prob"].data, want)


def test_assigned_between_forward_and_another_recording(device: Any) -> None:
    """backward of a TEST net repeats the last pass for its recording. Blobs keep the values of that pass, the input keeps values assigned since."""
    small, image, later = net(device), numbers(2, 3, 8, 8), numbers(2, 3, 8, 8, seed=2)
    score = small.forward(["score"], data=image)["score"].copy()
    small.blobs["data"].data = later
    small.backward(prob=numbers(2, 5, 3, 3))
    np.testing.assert_array_equal(small.blobs["score"].data, score)
    np.testing.assert_array_equal(small.blobs["data"].data, later)


def test_shapes_and_refusals(device: Any) -> None:
    small = net(device)
    blob = small.blobs["data"]
    assert repr(blob) == "<Blob 'data' 2 x 3 x 8 x 8>" and np.asarray(blob).shape == blob.shape
    with pytest.raises(Error, match=r"parameter 'conv/0' is 4 x 3 x 3 x 3"):
        small.params["conv"][0].reshape(1, 2)
    small.params["conv"][0].reshape(4, 3, 3, 3)
    small.blobs["pool"].reshape(1, 1)  # the layers set its shape, as in Caffe
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
