"""Python layers of random nets. Both programs import this module."""
from __future__ import annotations

import importlib
from typing import Any

import numpy as np

caffe: Any = importlib.import_module("caffe")  # ocaffe installs itself under this name where there is no other


class Affine(caffe.Layer):
    """y = a x + b; param_str has a and b. It works in place too."""

    def setup(self, bottom: Any, top: Any) -> None:
        self.a, self.b = (float(number) for number in self.param_str.split())

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = self.a * bottom[0].data + self.b

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = self.a * top[0].diff


class Product(caffe.Layer):
    """Two tops: the product of two bottoms, and its sum over all but the first axis."""

    def setup(self, bottom: Any, top: Any) -> None:
        pass

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(*bottom[0].data.shape)
        top[1].reshape(bottom[0].data.shape[0])

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = bottom[0].data * bottom[1].data
        top[1].data[...] = top[0].data.reshape(len(top[0].data), -1).sum(1)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        grad = top[0].diff + top[1].diff.reshape(-1, *[1] * (top[0].diff.ndim - 1))
        for index in range(2):
            if propagate_down[index]:
                bottom[index].diff[...] = grad * bottom[1 - index].data


class Gain(caffe.Layer):
    """y = g x^2, with a learned g for each place of the second axis."""

    def setup(self, bottom: Any, top: Any) -> None:
        self.blobs.add_blob(bottom[0].data.shape[1])

    def reshape(self, bottom: Any, top: Any) -> None:
        top[0].reshape(*bottom[0].data.shape)

    def _gain(self, x: np.ndarray) -> Any:
        return self.blobs[0].data.reshape(1, -1, *[1] * (x.ndim - 2))

    def forward(self, bottom: Any, top: Any) -> None:
        top[0].data[...] = self._gain(bottom[0].data) * bottom[0].data ** 2

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        x, dy = bottom[0].data, top[0].diff
        self.blobs[0].diff[...] += (dy * x**2).sum((0, *range(2, x.ndim)))
        if propagate_down[0]:
            bottom[0].diff[...] = 2 * self._gain(x) * x * dy
