"""`coord_map.crop`: offsets of fully convolutional nets."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe import layers as L
from ocaffe.coord_map import AxisMismatchException, UndefinedMapException, coord_map_from_to, crop
from ocaffe.errors import Error


def offsets(top: Any) -> list[int]:
    return list(top.to_proto().layer[-1].crop_param.offset)


def image() -> Any:
    return L.Input(shape=dict(dim=[1, 1, 100, 100]))


def test_fcn_32s() -> None:
    """FCN-32s of Shelhamer: a padding of 100, five poolings and an upsampling kernel of 64 give the offset 19."""
    data = image()
    top = L.Convolution(data, kernel_size=3, pad=100, num_output=1)
    for _ in range(5):
        top = L.Pooling(top, kernel_size=2, stride=2)
    top = L.Convolution(top, kernel_size=7, num_output=1)
    top = L.Deconvolution(top, convolution_param=dict(kernel_size=64, stride=32, num_output=1))
    assert offsets(crop(top, data)) == [19] and crop(top, data).to_proto().layer[-1].crop_param.axis == 2


@pytest.mark.parametrize("pad", [0, 2, 5])
def test_offsets_put_pixels_on_their_place(device: Any, pad: int) -> None:
    """The crop restores the image after a net that only moves and copies pixels."""
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 1, 12, 12]))
    n.wide = L.Convolution(n.data, kernel_size=3, pad=pad + 1, num_output=1, bias_term=False)
    n.small = L.Pooling(n.wide, kernel_size=1, stride=1)
    n.up = L.Deconvolution(n.small, convolution_param=dict(kernel_size=3, stride=1, num_output=1, bias_term=False))
    n.score = crop(n.up, n.data)
    net = caffe.Net(n.to_proto(), caffe.TEST, device=device)
    for name in ("wide", "up"):
        net.params[name][0].data[...] = 0
        net.params[name][0].data[0, 0, 1, 1] = 1
    picture = np.random.default_rng(1).random((1, 1, 12, 12), np.float32)
    np.testing.assert_array_equal(net.forward(data=picture)["score"], picture)


def test_maps_along_ways() -> None:
    data = image()
    half = L.Pooling(L.ReLU(L.Convolution(data, kernel_size=3, pad=1, num_output=1)), kernel_size=2, stride=2)
    assert coord_map_from_to(half, data) == (2, [2.0], [0.5])
    assert coord_map_from_to(data, half) == (2, [0.5], [-0.25])
    both = L.Eltwise(half, L.Pooling(data, kernel_size=2, stride=2))
    up = L.Deconvolution(both, convolution_param=dict(kernel_size=4, stride=2, pad=1, num_output=1))
    assert coord_map_from_to(up, data) == (2, [1.0], [0.0]) and offsets(crop(up, data)) == [0]
    inner = L.Crop(up, data, crop_param=dict(axis=2, offset=[3]))
    assert coord_map_from_to(inner, data) == (2, [1.0], [3.0])
    two = L.Convolution(data, kernel_h=3, kernel_w=5, num_output=1)
    assert coord_map_from_to(two, data)[2] == [1.0, 2.0] and coord_map_from_to(L.ReLU(data), data)[1] == [1.0]


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [
        (lambda data: (L.InnerProduct(data, num_output=1), data), UndefinedMapException, "no blob is an ancestor"),
        (lambda data: (L.Pooling(data, kernel_size=2, stride=2), data), Error, "scales .* differ"),
        (lambda data: (data, L.Convolution(data, kernel_size=3, num_output=1, pad=3)), Error, "outside"),
        (lambda data: (L.Convolution(data, kernel_size=4, pad=3, num_output=1), data), Error, "not a whole number"),
        (
            lambda data: (L.Crop(L.Convolution(data, kernel_size=3, num_output=1), data, crop_param=dict(axis=1, offset=[0])), data),
            AxisMismatchException, "axes",
        ),
    ],
)
def test_refused(make: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        crop(*make(image()))
