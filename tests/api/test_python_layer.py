"""`Layer`, the base class of Python layers in scripts. tests/layers/test_python.py tests the details."""
from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from tests.api.nets import net, numbers

TEXT = f"""
layer {{ name: "in" type: "Input" top: "x" top: "y" input_param {{ shape {{ dim: 4 dim: 3 }} shape {{ dim: 4 dim: 2 }} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param {{ num_output: 2 weight_filler {{ type: "gaussian" std: 1 }} }} }}
layer {{ name: "loss" type: "Python" bottom: "ip" bottom: "y" top: "loss" loss_weight: 1
  python_param {{ module: "{__name__}" layer: "EuclideanLoss" param_str: "{{'scale': 2}}" }} }}
"""


class EuclideanLoss(caffe.Layer):
    """The loss layer of pycaffe's examples."""

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        if len(bottom) != 2:
            raise Exception("needs two inputs")
        self.scale = eval(self.param_str)["scale"]

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        if bottom[0].count != bottom[1].count:
            raise Exception("inputs must have the same dimension")
        self.diff = np.zeros_like(bottom[0].data, dtype=np.float32)
        top[0].reshape(1)

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        self.diff[...] = bottom[0].data - bottom[1].data
        top[0].data[...] = self.scale * np.sum(self.diff**2) / bottom[0].num / 2.0

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        for i, sign in enumerate((1, -1)):
            if propagate_down[i]:
                bottom[i].diff[...] = sign * self.scale * self.diff / bottom[i].num


def test_loss_in_python(device: Any) -> None:
    made = net(device, TEXT, caffe.TRAIN)
    x, y = numbers(4, 3), numbers(4, 2, seed=2)
    loss = made.forward(x=x, y=y)["loss"]
    made.backward()
    weight, bias = (blob.data for blob in made.params["ip"])
    difference = x @ weight.T + bias - y
    np.testing.assert_allclose(loss, (difference**2).sum() / 4, rtol=1e-5)
    np.testing.assert_allclose(made.params["ip"][0].diff, 2 * difference.T @ x / 4, rtol=1e-4, atol=1e-6)


def test_parts_of_a_net_with_a_layer_in_python(device: Any) -> None:
    made = net(device, TEXT, caffe.TRAIN)
    made.forward(x=numbers(4, 3), y=numbers(4, 2))
    made.backward()
    whole = made.params["ip"][0].diff.copy()
    made.clear_param_diffs()
    made.forward(end="ip")
    made.forward(start="loss")
    made.backward(end="loss")
    made.backward(start="ip")
    np.testing.assert_allclose(made.params["ip"][0].diff, whole, rtol=1e-5, atol=1e-7)


# -- data layers of public programs, which prefetch and change shapes in forward -------------------------------------------


def produce(queue: Any) -> None:
    for number in range(1000):
        queue.put({"data": np.full((1, 3, 4 + number % 3, 5), number, np.float32), "labels": np.arange(number % 4 + 1, dtype=np.float32)})


class ByProcess(caffe.Layer):
    """A detector's data layer: a forked process reads ahead, and every batch has other shapes."""

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        context = multiprocessing.get_context("fork")
        self.queue = context.Queue(4)
        self.process = context.Process(target=produce, args=(self.queue,), daemon=True)
        self.process.start()
        top[0].reshape(1, 3, 100, 100)
        top[1].reshape(1)

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        """Shapes are set in forward."""

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        for index, array in enumerate(self.queue.get().values()):
            top[index].reshape(*array.shape)
            top[index].data[...] = array.astype(np.float32, copy=False)

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        """Data have no gradient."""


class ByThread(ByProcess):
    """A layer whose thread prepares the next batch while the net runs."""

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        self.number, self.found = 0, list[dict[str, Any]]()
        self.queue = self
        top[0].reshape(1, 3, 4, 5)
        top[1].reshape(1)
        self.start()

    def start(self) -> None:
        shapes = {"data": (1, 3, 4 + self.number % 3, 5), "labels": (self.number % 4 + 1,)}
        number = self.number
        self.thread = threading.Thread(target=lambda: self.found.append({name: np.full(shape, number) for name, shape in shapes.items()}))
        self.thread.start()

    def get(self) -> dict[str, Any]:
        self.thread.join()
        self.number += 1
        self.start()
        return self.found.pop(0)


class Proposals(caffe.Layer):
    """A layer whose tops have as many rows as the values of its bottom say."""

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        self.scale = json.loads(self.param_str)["feat_stride"]
        top[0].reshape(1, 5)
        top[1].reshape(1, 1, 1, 1)

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        """Shapes are set in forward."""

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        assert bottom[0].num == bottom[0].data.shape[0] == 1 and bottom[0].channels == 2 and bottom[0].width == 5
        rows = int(bottom[0].data[0, 0, 0, 0]) % 5 + 1
        top[0].reshape(*np.ones((rows, 5)).shape)
        top[0].data[...] = self.scale
        top[1].reshape(rows, 1, 1, 1)
        top[1].data[...] = rows

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        """Boxes have no gradient."""


@pytest.mark.parametrize("layer", ["ByProcess", "ByThread"])
def test_data_layers_that_prefetch(device: Any, layer: str) -> None:
    if layer == "ByProcess" and sys.platform != "linux":
        pytest.skip("needs fork")
    text = f"""
    layer {{ name: "in" type: "Python" top: "data" top: "labels" python_param {{ module: "{__name__}" layer: "{layer}" }} }}
    layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
      convolution_param {{ num_output: 2 kernel_size: 3 pad: 1 weight_filler {{ type: "constant" value: 1 }} }} }}
    layer {{ name: "rois" type: "Python" bottom: "conv" top: "rois" top: "counts"
      python_param {{ module: "{__name__}" layer: "Proposals" param_str: '{{"feat_stride": 16}}' }} }}
    """
    made = net(device, text, caffe.TRAIN)
    for number in range(6):
        out = made.forward()
        blobs = {name: blob.data for name, blob in made.blobs.items()}
        assert blobs["data"].shape == (1, 3, 4 + number % 3, 5) and (blobs["data"] == number).all()
        assert blobs["labels"].shape == (number % 4 + 1,) and blobs["conv"].shape == (1, 2, 4 + number % 3, 5)
        rows = int(12 * number) % 5 + 1  # 12 values lie below a window in a corner
        assert out["rois"].shape == (rows, 5) and (out["rois"] == 16).all() and (out["counts"] == rows).all()


class Alternating(caffe.Layer):
    """A layer that reads its next image in reshape."""

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        self.number = 0
        if eval(self.param_str)["tops"] != ["color", "label"] or len(top) != 2:
            raise Exception("needs two tops")

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        self.image = np.full((3, 4 + self.number % 2, 5), self.number, np.float32)
        top[0].reshape(1, *self.image.shape)
        top[1].reshape(1, 1, *self.image.shape[1:])

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        top[0].data[...] = self.image
        top[1].data[...] = -self.number
        self.number += 1

    def backward(self, top: list[Any], propagate_down: list[bool], bottom: list[Any]) -> None:
        """Data have no gradient."""


def test_a_layer_that_reads_in_reshape(device: Any) -> None:
    """Reshape runs before every forward pass, so data and label are of the same image."""
    text = f"""layer {{ name: "in" type: "Python" top: "data" top: "label"
      python_param {{ module: "{__name__}" layer: "Alternating" param_str: "{{'tops': ['color', 'label']}}" }} }}"""
    made = net(device, text, caffe.TEST)
    for number in range(5):
        made.forward()
        assert made.blobs["data"].shape == (1, 3, 4 + number % 2, 5) and made.blobs["label"].shape == (1, 1, 4 + number % 2, 5)
        assert (made.blobs["data"].data == number).all() and (made.blobs["label"].data == -number).all()
