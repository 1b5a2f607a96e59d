"""`Layer`, the base class of Python layers in scripts. tests/layers/test_python.py tests the details."""
from __future__ import annotations

from typing import Any

import numpy as np

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
