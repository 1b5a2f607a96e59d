"""`coord_map`: maps of coordinates with pycaffe's conventions, and the offsets of Crop layers."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe import coord_map as maps
from ocaffe import layers as L
from ocaffe.coord_map import AxisMismatchException, UndefinedMapException, coord_map_from_to, crop
from ocaffe.errors import Error

pytestmark = pytest.mark.quick


def image(*spatial: int) -> Any:
    return L.Input(shape=dict(dim=[1, 1, *(spatial or (100, 100))]))


def conv(bottom: Any, kernel: Any = 3, **fields: Any) -> Any:
    return L.Convolution(bottom, kernel_size=kernel, num_output=1, **fields)


def pool(bottom: Any, size: Any = 2) -> Any:
    return L.Pooling(bottom, kernel_size=size, stride=size)


def up(bottom: Any, kernel: Any = 4, stride: Any = 2, **fields: Any) -> Any:
    return L.Deconvolution(bottom, convolution_param=dict(kernel_size=kernel, stride=stride, num_output=1, **fields))


def offsets(top: Any) -> list[int]:
    return list(top.to_proto().layer[-1].crop_param.offset)


def same(found: Any, axis: int | None, scale: Any, shift: Any) -> bool:
    """Whether a map has this axis, and this scale and shift as numbers or arrays."""
    return bool(found[0] == axis and np.array_equal(np.ravel(found[1]), np.ravel(scale)) and np.array_equal(np.ravel(found[2]), np.ravel(shift)))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: conv(x), (1, 1, -1)),
        (lambda x: conv(x, pad=1), (1, 1, 0)),
        (lambda x: conv(x, pad=100), (1, 1, 99)),
        (lambda x: conv(x, 1), (1, 1, 0)),
        (lambda x: conv(x, 4), (1, 1, -1.5)),
        (lambda x: conv(x, dilation=4), (1, 1, -4)),
        (lambda x: conv(x, dilation=4, pad=4), (1, 1, 0)),
        (lambda x: conv(x, 11, stride=4), (1, 1 / 4, -5 / 4)),
        (lambda x: conv(x, 3, stride=3), (1, 1 / 3, -1 / 3)),
        (lambda x: conv(x, axis=2), (2, 1, -1)),
        (lambda x: conv(x, [3, 5]), (1, 1, [-1, -2])),
        (lambda x: conv(x, [3, 5], pad=[0, 10], stride=[1, 2]), (1, [1, 1 / 2], [-1, 4])),
        (lambda x: conv(x, [3], pad=[1], stride=[2]), (1, 1 / 2, 0)),
        (lambda x: conv(x, dilation=[1, 2]), (1, 1, [-1, -2])),
        (lambda x: L.Convolution(x, kernel_h=3, kernel_w=5, pad_h=1, num_output=1), (1, 1, [0, -2])),
        (lambda x: L.Convolution(x, kernel_size=3, stride_h=2, stride_w=1, num_output=1), (1, [1 / 2, 1], [-1 / 2, -1])),
        (lambda x: L.Convolution(x, convolution_param=dict(kernel_size=5, stride=2, pad=2)), (1, 1 / 2, 0)),
        (lambda x: L.Convolution(x, convolution_param=caffe.proto.ConvolutionParameter(kernel_size=[5, 3], axis=2)), (2, 1, [-2, -1])),
        (lambda x: L.ConvolutionDepthwise(x, kernel_size=3), (1, 1, -1)),
        (lambda x: L.Im2col(x, kernel_size=5, stride=2), (1, 1 / 2, -1)),
        (lambda x: pool(x), (1, 1 / 2, -1 / 4)),
        (lambda x: L.Pooling(x, kernel_size=3, stride=2, pad=1), (1, 1 / 2, 0)),
        (lambda x: L.Pooling(x, pooling_param=dict(kernel_size=2, stride=2)), (1, 1 / 2, -1 / 4)),
        (lambda x: up(x), (1, 2, 1.5)),
        (lambda x: up(x, pad=1), (1, 2, 0.5)),
        (lambda x: up(x, 64, 32), (1, 32, 31.5)),
        (lambda x: up(x, [4, 8], [2, 4]), (1, [2, 4], [1.5, 3.5])),
        (lambda x: L.Crop(x, x), (1, 1, 0)),
        (lambda x: L.Crop(x, x, axis=2, offset=7), (1, 1, -7)),
        (lambda x: L.Crop(x, x, crop_param=dict(axis=1, offset=[0, 3, 4])), (0, 1, [0, -3, -4])),
        (lambda x: L.Concat(x, x), (None, 1, 0)),
    ],
)  # fmt: skip
def test_map_of_a_layer(make: Any, expected: Any) -> None:
    assert same(maps.coord_map(make(image()).fn), *expected)


@pytest.mark.parametrize("kind", maps.PASS_THROUGH_LAYERS)
def test_layers_that_keep_coordinates(kind: str) -> None:
    data = image()
    top = getattr(L, kind)(data)
    assert maps.coord_map(top.fn) == (None, 1, 0) == coord_map_from_to(top, data)
    assert coord_map_from_to(getattr(L, kind)(conv(data)), data)[0] == 1
    assert offsets(crop(top, data)) == [0]


@pytest.mark.parametrize("layer", ["InnerProduct", "Reshape", "Permute", "Python", "SPP"])
def test_layers_without_a_map(layer: str) -> None:
    with pytest.raises(UndefinedMapException, match=f"a {layer} layer"):
        maps.coord_map(getattr(L, layer)(image()).fn)


@pytest.mark.parametrize("make", [lambda x: L.Concat(x, x, axis=2), lambda x: L.Concat(x, x, concat_dim=3), lambda x: L.Pooling(x, global_pooling=True)])
def test_fields_that_leave_no_map(make: Any) -> None:
    with pytest.raises(UndefinedMapException):
        maps.coord_map(make(image()).fn)


def test_types_that_scripts_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "PASS_THROUGH_LAYERS", [*maps.PASS_THROUGH_LAYERS, "Python"])
    assert maps.coord_map(L.Python(image(), module="m", layer="Noise").fn) == (None, 1, 0)


@pytest.mark.parametrize(
    ("pooling", "stride", "shift"), [(2, 2, 0), (4, 4, -1), (3, 3, -0.5), (8, 8, -3)],
)  # fmt: skip
def test_convolution_pooling_deconvolution(pooling: int, stride: int, shift: float) -> None:
    """An upsampling kernel of twice the stride restores the scale; the sum of the margins is the shift."""
    data = image()
    assert same(coord_map_from_to(up(pool(conv(data), pooling), 2 * stride, stride), data), 1, 1, shift)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"pool": 4, "up": 4}, {"pool": 3, "up": 3}, {"pool": 4}, {"pad": 7}, {"up_pad": 3}, {"pad": 5, "up_pad": 5}, {"stride": 3, "up": 6}, {"kernel": 1},
        {"kernel": 7, "stride": 2, "pad": 3}, {"pool": 49, "up": 49}, {"kernel": [3, 5], "stride": [1, 2], "pad": [0, 10]}, {"kernel": 3, "pad": [0, 1, 2]},
    ],
)  # fmt: skip
def test_maps_follow_from_the_centers_of_windows(options: Any) -> None:
    values = {"kernel": 3, "stride": 1, "pad": 0, "pool": 2, "up": 2, "up_pad": 0, **options}
    data = image()
    found = coord_map_from_to(up(pool(conv(data, values["kernel"], stride=values["stride"], pad=values["pad"]), values["pool"]),
                                 2 * values["up"], values["up"], pad=values["up_pad"]), data)  # fmt: skip
    kernel, stride, pad, pooling, upsampling, up_pad = (np.array(value) * 1.0 for value in values.values())
    center = ((pooling - 1) * upsampling - pooling * (2 * upsampling - 1 - 2 * up_pad)) / (2 * upsampling)  # of pixel 0, in pixels of the convolution
    assert same(found, 1, stride * pooling / upsampling, stride * center + (kernel - 1) / 2 - pad)


@pytest.mark.parametrize("pad", [0, 1, 5, 10])
def test_padding_of_both_ends_cancels_out(pad: int) -> None:
    def net(pad: int, back: int) -> Any:
        data = image()
        return coord_map_from_to(up(pool(conv(data, pad=pad)), pad=back), data)

    assert same(net(pad, 0), 1, 1, -pad) and same(net(0, pad), 1, 1, pad) and same(net(pad, pad), 1, 1, 0)


def test_windows_that_differ_per_axis_equal_their_parts() -> None:
    def net(**fields: Any) -> Any:
        data = image()
        return coord_map_from_to(up(pool(L.Convolution(data, num_output=1, **fields))), data)

    tall, wide, both = net(kernel_size=3), net(kernel_size=5, stride=2, pad=10), net(kernel_size=[3, 5], stride=[1, 2], pad=[0, 10])
    for part in (1, 2):
        assert isinstance(both[part], np.ndarray) and both[part].dtype == float
        assert both[part].tolist() == [tall[part].item(), wide[part].item()]


def test_three_spatial_axes() -> None:
    data = image(20, 20, 20)
    axis, scale, shift = coord_map_from_to(up(pool(conv(data, [3, 3, 3], stride=[1, 1, 1], pad=[0, 1, 2]))), data)
    assert axis == 1 and scale.tolist() == [1, 1, 1] and shift.tolist() == [0, -1, -2]


def test_numbers_as_scripts_use_them() -> None:
    """A map that is the same for all axes compares with numbers, and has the methods of arrays that scripts with their own crop use."""
    data = image()
    axis, scale, shift = coord_map_from_to(up(pool(conv(data), 4), 8, 4), data)
    assert axis == 1 and scale == 1 and shift == -1 and scale[0] == 1
    assert (scale == 1).all() and (shift <= 0).all() and (np.round(shift) == shift).all()
    assert list(-np.round(shift).astype(int)) == [1]


def test_scales_are_exact() -> None:
    data = image()
    top = data
    for _ in range(20):
        top = pool(top, 3)
    for _ in range(20):
        top = up(top, 3, 3)
    assert same(coord_map_from_to(top, data), 1, 1, 0) and offsets(crop(top, data)) == [0]


@pytest.mark.parametrize("offset", [0, 3, [4, 6]])
def test_crop_of_a_crop(offset: Any) -> None:
    data = image()
    big = up(pool(conv(data, pad=10)))
    inner = L.Crop(big, data, axis=2, offset=offset)
    assert same(coord_map_from_to(inner, data), 1, 1, np.add(-10, offset))
    assert offsets(crop(inner, data)) == list(np.ravel(np.subtract(10, offset)))


def test_size_of_a_crop_is_no_coordinate() -> None:
    """The second bottom of a Crop sets its size only, so it is no ancestor."""
    data, other = image(), image()
    with pytest.raises(RuntimeError, match="no common ancestor through layers of images"):
        coord_map_from_to(L.Crop(other, data), data)


def test_several_bottoms_tops_and_in_place_layers() -> None:
    data, aux = image(), image(20, 20)
    first, second = L.Convolution(data, aux, ntop=2, num_output=10, kernel_size=5, stride=2)
    assert same(coord_map_from_to(first, data), 1, 2, 2) and same(coord_map_from_to(second, aux), 1, 2, 2)
    inner = L.ReLU(first, in_place=True)
    assert same(coord_map_from_to(inner, data), 1, 2, 2)
    both = L.Eltwise(pool(data), L.Dropout(pool(L.Scale(data, in_place=True)), in_place=True))
    assert same(coord_map_from_to(up(both, pad=1), data), 1, 1, 0)
    assert same(coord_map_from_to(L.Eltwise(L.InnerProduct(data), pool(data)), data), 1, 2, 0.5)


def test_directions() -> None:
    data = image()
    half = pool(L.ReLU(conv(data, pad=1)))
    assert same(coord_map_from_to(half, data), 1, 2, 0.5) and same(coord_map_from_to(data, half), 1, 0.5, -0.25)
    assert same(coord_map_from_to(data, data), None, 1, 0)
    assert same(coord_map_from_to(pool(half), pool(half)), 1, 1, 0)  # by their ancestor


def test_compose_and_inverse() -> None:
    """The functions take maps of plain numbers and of arrays."""
    half, moved = (1, 0.5, 3.0), (None, 1, -2)
    assert maps.compose(half, moved) == (1, 0.5, 2.0) and maps.compose(moved, half) == (1, 0.5, 1.0)
    assert maps.inverse(half) == (1, 2.0, -6.0) and maps.compose(half, maps.inverse(half)) == (1, 1.0, 0.0)
    per_axis = maps.compose((1, np.array([2.0, 4.0]), np.array([0.0, 1.0])), (1, np.array([0.5]), np.array([1.0])))
    assert same(per_axis, 1, [1, 2], [2, 5]) and same(maps.inverse(per_axis), 1, [1, 0.5], [-2, -2.5])
    with pytest.raises(AxisMismatchException, match="after axis 1 and after axis 2"):
        maps.compose((1, 1, 0), (2, 1, 0))
    with pytest.raises(AxisMismatchException, match="different numbers of values"):
        maps.compose((1, np.ones(2), np.ones(2)), (1, np.ones(3), np.ones(3)))


def test_parameters_of_layers() -> None:
    axis, stride, extent, pad = maps.conv_params(conv(image(), [3, 5], dilation=2, pad=[1, 0]).fn)
    assert (axis, stride.tolist(), extent.tolist(), pad.tolist()) == (1, [1], [5, 9], [1, 0])
    axis, offset = maps.crop_params(L.Crop(image(), image()).fn)
    assert (axis, offset.tolist()) == (2, [0])
    with pytest.raises(KeyError, match="no kernel_size") as caught:
        maps.conv_params(L.Convolution(image(), num_output=1).fn)
    assert isinstance(caught.value, Error)
    with pytest.raises(ValueError, match="stride 0"):
        maps.conv_params(conv(image(), stride=0).fn)
    for kernel in ("3", 2.5, [3, 1.5]):
        with pytest.raises(ValueError, match="kernel_size of a Convolution layer is"):
            maps.conv_params(conv(image(), kernel).fn)
    assert maps.conv_params(conv(image(), 8 / 2).fn)[2] == 4


def test_fcn_32s() -> None:
    """FCN-32s of Shelhamer: a padding of 100, five poolings and an upsampling kernel of 64 give the offset 19."""
    n = caffe.NetSpec()
    n.data = image()
    top = conv(n.data, pad=100)
    for _ in range(5):
        top = pool(top)
    n.score_fr = conv(top, 7)
    n.upscore = up(n.score_fr, 64, 32)
    n.score = crop(n.upscore, n.data)
    layer = n.to_proto().layer[-1]
    assert (layer.name, layer.type, list(layer.bottom)) == ("score", "Crop", ["upscore", "data"])
    assert layer.crop_param.axis == 2 and list(layer.crop_param.offset) == [19]


def test_fcn_alexnet() -> None:
    """FCN-AlexNet of Shelhamer: a stride of 4, three poolings of 3 and an upsampling kernel of 63 give its published offset, 18."""
    data = image()
    top = conv(data, 11, stride=4, pad=100)
    top = L.Pooling(L.ReLU(top, in_place=True), kernel_size=3, stride=2)
    top = conv(L.LRN(top), 5, pad=2)
    top = conv(L.LRN(L.Pooling(top, kernel_size=3, stride=2)), 3, pad=1)
    top = conv(L.Pooling(top, kernel_size=3, stride=2), 6)
    assert offsets(crop(up(top, 63, 32), data)) == [18]


def test_fcn_8s() -> None:
    """FCN-8s of Shelhamer fuses three scales; its published offsets are 5, 9 and 31."""
    n = caffe.NetSpec()
    n.data = image()
    n.pool3 = pool(pool(pool(conv(n.data, pad=100))))
    n.pool4 = pool(n.pool3)
    n.score_fr = conv(L.Dropout(L.ReLU(conv(pool(n.pool4), 7), in_place=True), in_place=True), 1)
    n.upscore2 = up(n.score_fr)
    n.score_pool4c = crop(conv(n.pool4, 1), n.upscore2)
    n.upscore_pool4 = up(L.Eltwise(n.upscore2, n.score_pool4c))
    n.score_pool3c = crop(conv(n.pool3, 1), n.upscore_pool4)
    n.upscore8 = up(L.Eltwise(n.upscore_pool4, n.score_pool3c), 16, 8)
    n.score = crop(n.upscore8, n.data)
    found = {layer.name: list(layer.crop_param.offset) for layer in n.to_proto().layer if layer.type == "Crop"}
    assert found == {"score_pool4c": [5], "score_pool3c": [9], "score": [31]}


def test_axis_of_the_crop() -> None:
    data = image()
    assert crop(conv(data, axis=2, pad=2), data).to_proto().layer[-1].crop_param.axis == 3
    assert crop(L.ReLU(data), data).to_proto().layer[-1].crop_param.axis == 2


@pytest.mark.parametrize("pad", [0, 2, 5])
def test_offsets_put_pixels_on_their_place(device: Any, pad: int) -> None:
    """The crop restores the image after a net that only moves and copies pixels."""
    n = caffe.NetSpec()
    n.data = image(12, 12)
    n.wide = conv(n.data, pad=pad + 1, bias_term=False)
    n.small = pool(n.wide, 1)
    n.up = up(n.small, 3, 1, bias_term=False)
    n.score = crop(n.up, n.data)
    net = caffe.Net(n.to_proto(), caffe.TEST, device=device)
    for name in ("wide", "up"):
        net.params[name][0].data[...] = 0
        net.params[name][0].data[0, 0, 1, 1] = 1
    picture = np.random.default_rng(1).random((1, 1, 12, 12), np.float32)
    np.testing.assert_array_equal(net.forward(data=picture)["score"], picture)


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [
        (lambda data: (L.InnerProduct(data, num_output=1), data), RuntimeError, "no common ancestor through layers of images"),
        (lambda data: (image(), data), RuntimeError, "no common ancestor through layers of images"),
        (lambda data: (pool(data), data), AssertionError, "differ in size by the factor 2"),
        (lambda data: (up(pool(conv(data), 3)), data), AssertionError, "differ in size by the factor 1.5"),
        (lambda data: (data, conv(data, pad=3)), AssertionError, "begin at pixel -2, outside"),
        (lambda data: (up(pool(conv(data)), pad=10), data), AssertionError, "begin at pixel -10, outside"),
        (lambda data: (conv(data, pad=[5, 0]), data), AssertionError, "begin at pixel 4, -1, outside"),
        (lambda data: (conv(data, 4, pad=3), data), AssertionError, "1.5 pixels apart, not a whole number"),
        (lambda data: (L.Crop(conv(data), data, crop_param=dict(axis=1, offset=[0])), data), AxisMismatchException, "after axis"),
        (lambda data: (conv(data, [3, 3], stride=[1, 1, 1]), data), AxisMismatchException, "different numbers of values"),
    ],
)  # fmt: skip
def test_refused(make: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told) as caught:
        crop(*make(image()))
    assert isinstance(caught.value, Error) and caught.value.fix
