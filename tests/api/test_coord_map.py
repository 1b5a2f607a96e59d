"""`coord_map.crop`: offsets of fully convolutional nets."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe import coord_map
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


def spec(kernel: Any = 3, stride: Any = 1, pad: Any = 0, pool: int = 2, up: int = 2, up_pad: int = 0) -> caffe.NetSpec:
    """Convolution, pooling and upsampling by a kernel of two strides."""
    n = caffe.NetSpec()
    n.data = image()
    n.conv = L.Convolution(n.data, num_output=4, kernel_size=kernel, stride=stride, pad=pad)
    n.pool = L.Pooling(n.conv, kernel_size=pool, stride=pool)
    n.up = L.Deconvolution(n.pool, convolution_param=dict(num_output=4, kernel_size=2 * up, stride=up, pad=up_pad))
    return n


def same(found: Any, axis: int | None, scale: Any, shift: Any) -> None:
    assert found[0] == axis
    np.testing.assert_array_equal(found[1], scale)
    np.testing.assert_array_equal(found[2], shift)
    assert np.shape(found[1]) == np.shape(scale) and np.shape(found[2]) == np.shape(shift)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"pool": 4, "up": 4}, {"pool": 3, "up": 3}, {"pool": 4}, {"pad": 7}, {"up_pad": 3}, {"pad": 5, "up_pad": 5}, {"stride": 3, "up": 6}, {"kernel": 1},
        {"kernel": 7, "stride": 2, "pad": 3}, {"pool": 49, "up": 49}, {"kernel": [3, 5], "stride": [1, 2], "pad": [0, 10]}, {"kernel": 3, "pad": [0, 1, 2]},
    ],
)  # fmt: skip
def test_maps_of_convolution_pooling_and_upsampling(options: Any) -> None:
    """The result has exact numbers, or arrays where windows differ by axis. The expected ones follow from the centers of windows."""
    n = spec(**options)
    values = {"kernel": 3, "stride": 1, "pad": 0, "pool": 2, "up": 2, "up_pad": 0, **options}
    kernel, stride, pad, pool, up, up_pad = (np.array(value) * 1.0 for value in values.values())
    center = ((pool - 1) * up - pool * (2 * up - 1 - 2 * up_pad)) / (2 * up)  # of the pixel 0 of the last top, in pixels of the convolution
    scale, shift = np.broadcast_arrays(stride * pool / up, stride * center + (kernel - 1) / 2 - pad)
    same(coord_map_from_to(n.up, n.data), 1, scale, shift)


def test_maps_of_other_layers() -> None:
    n = spec()
    for layer in ("ReLU", "LRN", "Dropout", "PReLU", "Power", "BatchNorm", "Scale"):
        top = getattr(L, layer)(n.up)
        same(coord_map_from_to(top, n.data), *coord_map_from_to(n.up, n.data))
        same(coord_map_from_to(top, n.up), None, 1, 0)
        assert layer in coord_map.PASS_THROUGH_LAYERS
    same(coord_map_from_to(L.Convolution(n.up, kernel_size=1, num_output=2), n.data), 1, 1, 0)
    same(coord_map_from_to(n.pool, n.data), 1, 2, 1.5)
    same(coord_map_from_to(n.data, n.pool), 1, 0.5, -0.75)
    both = L.Eltwise(n.pool, L.Pooling(n.conv, kernel_size=2, stride=2))
    same(coord_map_from_to(both, n.conv), 1, 2, 0.5)
    n.aux = image()
    one, two = L.Convolution(n.data, n.aux, ntop=2, num_output=1, kernel_size=5, stride=2)
    same(coord_map_from_to(one, n.data), *coord_map_from_to(two, n.aux))
    high = L.Convolution(n.data, kernel_h=3, kernel_w=5, num_output=1)
    same(coord_map_from_to(high, n.data), 1, [1, 1], [1, 2])
    dilated = L.Convolution(n.data, kernel_size=3, dilation=4, num_output=1)
    same(coord_map_from_to(dilated, n.data), 1, 1, 4)


@pytest.mark.parametrize(("offset", "shift"), [(3, 3), ([4, 6], [4, 6])])
def test_crop_of_a_crop(offset: Any, shift: Any) -> None:
    n = spec()
    same(coord_map_from_to(L.Crop(n.up, n.data, crop_param=dict(axis=2, offset=offset)), n.data), 1, np.ones(np.shape(shift)), shift)


def test_maps_are_tuples_of_numbers_as_in_pycaffe() -> None:
    n = spec()
    same(coord_map.coord_map(n.conv.fn), 1, 1, -1)
    same(coord_map.coord_map(n.pool.fn), 1, 0.5, -0.25)
    same(coord_map.coord_map(n.up.fn), 1, 2, 1.5)
    assert coord_map.coord_map(L.ReLU(n.up).fn) == (None, 1, 0)
    assert coord_map.compose((None, 1, 0), (1, 2.0, 3.0)) == (1, 2, 3) and coord_map.inverse((1, 2.0, 3.0)) == (1, 0.5, -1.5)
    axis, stride, extent, pad = coord_map.conv_params(L.Convolution(n.data, kernel_size=3, dilation=2, pad=1, stride=2, axis=2).fn)
    assert axis == 2 and [list(part) for part in (stride, extent, pad)] == [[2], [5], [1]]
    axis, offset = coord_map.crop_params(L.Crop(n.up, n.data, axis=2, offset=[1, 2]).fn)
    assert axis == 1 and list(offset) == [1, 2]
    with pytest.raises(UndefinedMapException):
        coord_map.coord_map(L.Pooling(n.data, global_pooling=True).fn)


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [
        (lambda data: (L.InnerProduct(data, num_output=1), data), RuntimeError, "no blob is an ancestor"),
        (lambda data: (L.Pooling(data, kernel_size=2, stride=2), data), AssertionError, "scales .* differ"),
        (lambda data: (data, L.Convolution(data, kernel_size=3, num_output=1, pad=3)), AssertionError, "outside"),
        (lambda data: (L.Convolution(data, kernel_size=4, pad=3, num_output=1), data), AssertionError, "not a whole number"),
        (
            lambda data: (L.Crop(L.Convolution(data, kernel_size=3, num_output=1), data, crop_param=dict(axis=1, offset=[0])), data),
            AxisMismatchException, "axes",
        ),
    ],
)
def test_refused(make: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told) as caught:
        crop(*make(image()))
    assert isinstance(caught.value, Error)
