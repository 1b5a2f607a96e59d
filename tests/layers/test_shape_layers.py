"""Layers that move values without changing them: Permute, ShuffleChannel, Reorg, Tile, Crop, Im2col, nearest Upsample; Reduction; Parameter."""
from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.ir.tensor import Shape
from tests.layers.single import KINDS, close, layer_of, run

Move = Callable[[np.ndarray], np.ndarray]


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def sources(move: Move, shape: Shape) -> np.ndarray:
    """Return the source of each value of the result: its index + 1, or 0 if it has none."""
    return move(np.arange(1, np.prod(shape) + 1).reshape(shape))


def adjoint(where: np.ndarray, dy: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the gradient of the move that `where` describes."""
    sums = np.bincount(where.ravel(), dy.ravel().astype(np.float64), int(np.prod(shape)) + 1)
    return sums[1:].reshape(shape)


def check_moves(device: Any, text: str, move: Move, shape: Shape, *others: Shape, **options: Any) -> None:
    """Compare a layer that moves the values of bottom 0 with numpy: forward, backward, and backward that adds to a diff."""
    x, where = draw(*shape), sources(move, shape)
    y, dy = np.concatenate([[0], x.ravel()])[where], draw(*where.shape) if where.ndim else draw(1)[0]
    propagate = [True] + [False] * len(others)
    for held in (None, 0.5):
        result = run(device, options.get("kind", "cpu"), text, [x, *(np.zeros(o) for o in others)], [dy], propagate=propagate, held=held,
                     strided=options.get("strided", False))  # fmt: skip
        close(result.tops[0], y, 0)
        close(result.diffs[0], adjoint(where, dy, shape) + (held or 0), 1e-6)


# -- one layer after another ---------------------------------------------------------------------------------------------------------------


def permute_text(*order: int) -> str:
    return f"type: 'Permute' permute_param {{ {' '.join(f'order: {axis}' for axis in order)} }}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "order, shape",
    [
        ((0, 2, 3, 1), (2, 21, 5, 7)),  # tiles with edges on both sides
        ((0, 2, 3, 1), (1, 70, 9, 8)),  # several tiles
        ((0, 3, 1, 2), (2, 6, 7, 33)),
        ((0, 2, 1), (3, 4, 5)),  # too short for tiles
        ((1, 0), (40, 37)),  # the batch becomes the contiguous axis
        ((3, 2, 1, 0), (18, 3, 2, 20)),
        ((0, 2, 1, 3, 4), (2, 3, 4, 5, 6)),
    ],
)
def test_permute(device: Any, kind: str, order: tuple[int, ...], shape: Shape) -> None:
    check_moves(device, permute_text(*order), lambda x: x.transpose(order), shape, kind=kind, strided=True)


@pytest.mark.parametrize(
    "text, shape",
    [
        (permute_text(0, 1, 2), (2, 3, 4)),
        (permute_text(0, 2, 3, 1), (2, 5, 1, 1)),
        (permute_text(), (2, 3)),
        ("type: 'ShuffleChannel'", (2, 4, 3)),
        ("type: 'ShuffleChannel' shuffle_channel_param { group: 4 }", (2, 4, 3)),
        ("type: 'Tile' tile_param { tiles: 1 }", (2, 4, 3)),
        ("type: 'Upsample' bottom: 'x'", (2, 4, 3, 3)),
        ("type: 'Reorg' reorg_param { stride: 1 }", (2, 4, 3, 3)),
    ],
)
def test_what_moves_nothing_is_passed_on(device: Any, text: str, shape: Shape) -> None:
    x = draw(*shape)
    result = run(device, "cpu", text, [x], [x.reshape(layer_of(text).infer(shape)[0])])
    assert not result.rec.launches
    close(result.diffs[0], x, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape, group", [((2, 6, 3, 5), 2), ((3, 12), 3), ((2, 40, 1), 20), ((1, 6, 2, 3, 3), 3)])
def test_shuffle_channel(device: Any, kind: str, shape: Shape, group: int) -> None:
    def move(x: np.ndarray) -> np.ndarray:
        n, c, *rest = x.shape
        return x.reshape(n, group, c // group, *rest).swapaxes(1, 2).reshape(x.shape)

    check_moves(device, f"type: 'ShuffleChannel' shuffle_channel_param {{ group: {group} }}", move, shape, kind=kind, strided=True)


def darknet(x: np.ndarray, stride: int, reverse: bool) -> np.ndarray:
    """Compute Darknet's loop over the input's shape."""
    n, c, h, w = x.shape
    part = c // stride**2
    top = (n, part, h * stride, w * stride) if reverse else (n, c * stride**2, h // stride, w // stride)
    flat, result = x.reshape(n, -1), np.zeros((n, c * h * w), x.dtype)
    for k, j, i in itertools.product(range(c), range(h), range(w)):
        offset = k // part
        there = (k % part * h * stride + j * stride + offset // stride) * w * stride + i * stride + offset % stride
        here = (k * h + j) * w + i
        if reverse:
            result[:, there] = flat[:, here]
        else:
            result[:, here] = flat[:, there]
    return result.reshape(top)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape, stride, reverse", [((2, 8, 6, 4), 2, False), ((1, 9, 3, 6), 3, False), ((2, 8, 3, 5), 2, True)])
def test_reorg(device: Any, kind: str, shape: Shape, stride: int, reverse: bool) -> None:
    text = f"type: 'Reorg' reorg_param {{ stride: {stride} reverse: {str(reverse).lower()} }}"
    check_moves(device, text, lambda x: darknet(x, stride, reverse), shape, kind=kind, strided=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape, axis, tiles, strided",
    [((3, 4), 0, 3, False), ((3, 4), 1, 5, True), ((2, 3, 17), 1, 2, True), ((2, 3, 1), -1, 40, True), ((2, 1, 3), 1, 33, False)],
)
def test_tile(device: Any, kind: str, strided: bool, shape: Shape, axis: int, tiles: int) -> None:
    def move(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x] * tiles, axis)

    check_moves(device, f"type: 'Tile' tile_param {{ axis: {axis} tiles: {tiles} }}", move, shape, kind=kind, strided=strided)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape, like, axis, offsets",
    [
        ((2, 3, 9, 20), (2, 3, 4, 18), 2, (5, 1)),
        ((2, 3, 9, 20), (9, 9, 9, 3), 2, (0, 17)),
        ((5, 6, 4), (3, 2, 4), 0, (1, 4, 0)),
        ((7,), (3,), 0, (2,)),
        ((2, 5, 4, 3, 6), (2, 2, 3, 2, 5), 1, (1,)),
        ((1, 1, 6, 6), (1, 1, 1, 1), 2, (3, 2)),
    ],
)
def test_crop(device: Any, kind: str, shape: Shape, like: Shape, axis: int, offsets: tuple[int, ...]) -> None:
    starts = [0] * axis + list(offsets if len(offsets) > 1 else offsets * (len(shape) - axis))
    sizes = shape[:axis] + like[axis:]

    def move(x: np.ndarray) -> np.ndarray:
        return x[tuple(slice(start, start + size) for start, size in zip(starts, sizes))]

    text = f"type: 'Crop' crop_param {{ axis: {axis} {' '.join(f'offset: {n}' for n in offsets)} }}"
    check_moves(device, text, move, shape, like, kind=kind, strided=True)


@pytest.mark.parametrize("text, shape", [("offset: 1", (2, 3, 5, 6)), ("", (2, 3, 3, 4))], ids=["cut", "whole"])
def test_crop_gives_its_size_no_gradient(device: Any, text: str, shape: Shape) -> None:
    x, like = draw(*shape), draw(2, 3, 3, 4)
    result = run(device, "cpu", f"type: 'Crop' crop_param {{ {text} }}", [x, like], [like], propagate=[True, True])
    close(result.diffs[1], np.zeros_like(like))
    close(result.diffs[0].sum(), like.sum(), 1e-6)


@pytest.mark.parametrize(("text", "size", "told"), [("", 5, True), ("", 8, False), ("crop_param { }", 5, False), ("crop_param { offset: 1 }", 5, False)])
def test_crop_without_a_message_says_where_it_begins(text: str, size: int, told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The forks of FCN and HED compute the offset there, BVLC Caffe begins at 0."""
    layer = layer_of(f"name: 'cut {text} {size}' type: 'Crop' {text}")
    assert layer.infer((1, 2, 8, 8), (1, 1, size, size))[0] == (1, 2, size, size)
    assert ("crop_param { offset: 1 }" in capsys.readouterr().err) == told


def windows(x: np.ndarray, kernel: Shape, stride: Shape, pad: Shape, dilation: Shape, axis: int) -> np.ndarray:
    """Compute Im2col in numpy."""
    axes = len(kernel)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    beyond = [max(span - n - 2 * p, 0) for n, p, span in zip(x.shape[axis + 1 :], pad, spans)]
    x = np.pad(x, [(0, 0)] * (axis + 1) + [(p, p + more) for p, more in zip(pad, beyond)])
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[axis + 1 :], kernel, stride, dilation)]
    taps = [x[(..., *(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(tap, dilation, out, stride)))]
            for tap in np.ndindex(*kernel)]  # fmt: skip
    assert all(tap.shape[-axes:] == tuple(out) for tap in taps)
    return np.stack(taps, axis + 1).reshape(*x.shape[:axis], -1, *out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text, shape, kernel, stride, pad, dilation, axis, strided",
    [
        ("kernel_size: 3 pad: 1", (2, 3, 5, 7), (3, 3), (1, 1), (1, 1), (1, 1), 1, True),
        ("kernel_h: 2 kernel_w: 3 stride: 2 dilation: 1 dilation: 2", (2, 2, 6, 8), (2, 3), (2, 2), (0, 0), (1, 2), 1, True),
        ("kernel_size: 3 stride: 2", (2, 2, 9), (3,), (2,), (0,), (1,), 1, True),
        ("kernel_size: 2 axis: 2 pad: 1 stride: 2", (2, 2, 3, 4, 5), (2, 2), (2, 2), (1, 1), (1, 1), 2, False),
        ("kernel_size: 3 stride: 2", (2, 2, 4, 2), (3, 3), (2, 2), (0, 0), (1, 1), 1, True),  # a window larger than the image
        ("kernel_size: 3 stride: 4 dilation: 2 pad: 1", (2, 2, 1, 2), (3, 3), (4, 4), (1, 1), (2, 2), 1, False),
        ("kernel_size: 2 pad: 0 pad: 1 pad: 0 pad: 1", (1, 2, 3, 3, 2, 3), (2,) * 4, (1,) * 4, (0, 1, 0, 1), (1,) * 4, 1, False),
    ],
)
def test_im2col(
    device: Any, kind: str, strided: bool, text: str, shape: Shape, kernel: Shape, stride: Shape, pad: Shape, dilation: Shape, axis: int
) -> None:
    def move(x: np.ndarray) -> np.ndarray:
        return windows(x, kernel, stride, pad, dilation, axis)

    check_moves(device, f"type: 'Im2col' convolution_param {{ {text} }}", move, shape, kind=kind, strided=strided)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape, scale", [((2, 3, 5, 7), 2), ((1, 2, 1, 30), 3), ((1, 40, 11, 13), 2)])
def test_nearest(device: Any, kind: str, shape: Shape, scale: int) -> None:
    text = f"type: 'Upsample' bottom: 'x' upsample_param {{ scale: {scale} }}"
    check_moves(device, text, lambda x: x.repeat(scale, 2).repeat(scale, 3), shape, kind=kind, strided=True)


def test_flatten_adds_an_axis() -> None:
    """As in Caffe, an end_axis before the first axis by one merges nothing."""
    for fields, shape in (("axis: 1 end_axis: 0", (2, 1, 3, 4)), ("axis: -1 end_axis: 1", (2, 3, 1, 4)), ("axis: 2 end_axis: 2", (2, 3, 4))):
        assert list(layer_of(f"type: 'Flatten' flatten_param {{ {fields} }}").infer((2, 3, 4))) == [shape]


# -- Reduction -----------------------------------------------------------------------------------------------------------------------------

REDUCTIONS = {
    "SUM": (lambda x: x, lambda x: np.ones_like(x)),
    "MEAN": (lambda x: x, lambda x: np.ones_like(x)),
    "ASUM": (np.abs, np.sign),
    "SUMSQ": (np.square, lambda x: 2 * x),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", REDUCTIONS)
def test_reduction(device: Any, kind: str, operation: str) -> None:
    """Reductions over the last axes and over all axes. ASUM has no gradient where a value is 0."""
    value, slope = REDUCTIONS[operation]
    for shape, axis in (((3, 4, 7), 2), ((5,), 0), ((2, 3, 4), -2)):
        x = draw(*shape)
        x.flat[0] = 0
        first = axis % len(shape)
        c = 0.3 / (np.prod(shape[first:]) if operation == "MEAN" else 1)
        y = c * value(x.astype(np.float64)).sum(tuple(range(first, len(shape))))
        dy = draw(*y.shape) if y.ndim else np.float32(0.7)
        text = f"type: 'Reduction' reduction_param {{ operation: {operation} axis: {axis} coeff: 0.3 }}"
        for held in (None, 2.0):
            result = run(device, kind, text, [x], [dy], held=held, strided=True)
            close(result.tops[0], y, 1e-5)
            close(result.diffs[0], c * slope(x) * dy.reshape(dy.shape + (1,) * (len(shape) - first)) + (held or 0), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", REDUCTIONS)
@pytest.mark.parametrize("count", [3, 60, 300, 5000])
def test_infinite_sums(device: Any, kind: str, operation: str, count: int) -> None:
    """Infinite values, and sums that overflow, are infinity; infinities of both signs are NaN."""
    x = np.ones((4, count), np.float32)
    x[0, :2] = 3e38
    x[1, 1] = np.inf
    x[2, [0, -1]] = np.inf, -np.inf
    (y,) = run(device, kind, f"type: 'Reduction' reduction_param {{ operation: {operation} axis: 1 }}", [x]).tops
    assert np.isposinf(y[:2]).all() and y[3] == (1 if operation == "MEAN" else count)
    assert np.isposinf(y[2]) if operation in ("ASUM", "SUMSQ") else np.isnan(y[2])


# -- Parameter -----------------------------------------------------------------------------------------------------------------------------


def test_parameter_is_its_top(device: Any) -> None:
    """The top is the parameter without a copy. Gradients of two readers are summed, and added to earlier passes until clear_param_diffs."""
    text = """force_backward: true
        layer { name: 'p' type: 'Parameter' top: 'p' parameter_param { shape { dim: 2 dim: 3 } } }
        layer { name: 'q' type: 'Power' bottom: 'p' top: 'q' power_param { scale: 3 } }
        layer { name: 's' type: 'Eltwise' bottom: 'p' bottom: 'q' top: 's' }"""
    net = Net(text_format.Parse(text, proto.NetParameter()), phase=proto.TRAIN, device=device)
    try:
        assert (net.params["p"][0].data == 0).all()
        net.params["p"][0].data[...] = x = draw(2, 3)
        net.forward()
        close(net.blobs["p"].data, x, 0)
        close(net.blobs["s"].data, 4 * x)
        net.blobs["s"].diff[...] = dy = draw(2, 3)
        net.clear_param_diffs()
        for passes in (1, 2):
            net.backward()
            close(net.params["p"][0].diff, 4 * passes * dy)
            net.forward()
            net.blobs["s"].diff[...] = dy
    finally:
        net.close()


# -- shapes that change, and mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, move, shapes, likes",
    [
        (permute_text(0, 2, 1), lambda x: x.transpose(0, 2, 1), [(2, 3, 4), (1, 40, 20), (2, 5, 1)], []),
        ("type: 'ShuffleChannel' shuffle_channel_param { group: 2 }", lambda x: x.reshape(len(x), 2, -1).swapaxes(1, 2).reshape(x.shape),
         [(2, 4), (3, 2), (1, 6)], []),
        ("type: 'Tile' tile_param { axis: 1 tiles: 2 }", lambda x: np.concatenate([x, x], 1), [(2, 3), (4, 1)], []),
        ("type: 'Crop' crop_param { axis: 1 }", lambda x: x[:, :2], [(2, 3), (4, 2), (1, 6)], [(1, 2)] * 3),
        ("type: 'Im2col' convolution_param { kernel_size: 2 }", lambda x: windows(x, (2,), (1,), (0,), (1,), 1), [(2, 3, 4), (1, 2, 6)], []),
    ],
)  # fmt: skip
def test_other_shapes(device: Any, text: str, move: Move, shapes: list[Shape], likes: list[Shape]) -> None:
    """One layer object infers and runs several shapes in turn."""
    layer: Any = layer_of(text)
    for i, shape in enumerate(shapes):
        check_moves(device, layer, move, shape, *likes[i : i + 1])


@pytest.mark.parametrize(
    "text, shapes, fact",
    [
        (permute_text(0, 3), [(2, 3, 4)], "order 0, 3 goes beyond the 3 axes of bottom 2 x 3 x 4"),
        (permute_text(1, 1), [(2, 3, 4)], "order 1, 1 names an axis twice"),
        ("type: 'ShuffleChannel' shuffle_channel_param { group: 4 }", [(2, 6, 3)], "group 4 does not divide the 6 channels"),
        ("type: 'ShuffleChannel' shuffle_channel_param { group: 0 }", [(2, 6, 3)], "group 0 does not divide"),
        ("type: 'ShuffleChannel'", [(2,)], "bottom 0 is 2, it must be N x C x .."),
        ("type: 'Reorg'", [(2, 4, 2, 2)], "stride is missing"),
        ("type: 'Reorg' reorg_param { stride: 2 }", [(2, 6, 2, 2)], "stride 2 squared, 4, does not divide the 6 channels"),
        ("type: 'Reorg' reorg_param { stride: 2 }", [(2, 4, 3, 2)], "stride 2 does not divide the 3 x 2 pixels"),
        ("type: 'Reorg' reorg_param { stride: 2 }", [(2, 4)], "must be N x C x H x W"),
        ("type: 'Flatten' flatten_param { axis: 2 end_axis: 0 }", [(2, 3, 4)], "end_axis 0 is before axis 2"),
        ("type: 'Tile'", [(2, 3)], "tiles is missing"),
        ("type: 'Tile' tile_param { tiles: 2 axis: 2 }", [(2, 3)], "axis 2 is outside the 2 axes"),
        ("type: 'Crop' crop_param { offset: 2 }", [(2, 3, 5, 5), (2, 3, 4, 4)], r"axis 2: offset 2 and size 4 \(bottom 1 is 2 x 3 x 4 x 4\) go beyond 5"),
        ("type: 'Crop' crop_param { axis: 1 offset: 2 offset: 1 }", [(2, 3, 5, 5), (2, 3, 4, 4)], "2 offset for the 3 axes from axis 1 on"),
        ("type: 'Crop'", [(2, 3, 5, 5), (2, 3)], "bottom 0 is 2 x 3 x 5 x 5, bottom 1 is 2 x 3"),
        ("type: 'Im2col' convolution_param { kernel_size: 6 }", [(2, 3, 5, 5)], "the window spans 6 x 6 pixels, more than the padded 5 x 5 image"),
        ("type: 'Im2col' convolution_param { kernel_size: 7 stride: 2 }", [(2, 3, 5, 5)], "the window spans 7 x 7 pixels"),
        ("type: 'Im2col' convolution_param { kernel_size: 6 }", [(2, 3)], "no axes follow axis 1"),
        ("type: 'Im2col'", [(2, 3, 5, 5)], "kernel_size is missing"),
        ("type: 'Reduction' reduction_param { operation: TOPK }", [(2, 3)], "TOPK"),
        ("type: 'Reduction' reduction_param { axis: 2 }", [(2, 3)], "axis 2 is outside"),
        ("type: 'Parameter'", [], "shape is missing"),
        ("type: 'Parameter' parameter_param { shape { dim: 2 dim: 0 } }", [], "shape 2 x 0 has a dim below 1"),
        ("type: 'Upsample' bottom: 'x' upsample_param { scale_h: 2 }", [(2, 3, 4, 4)], "scale_h given"),
        ("type: 'Upsample' bottom: 'x' upsample_param { scale: 0 }", [(2, 3, 4, 4)], "scale is 0"),
        ("type: 'Upsample' bottom: 'x'", [(2, 3, 4)], "must be N x C x H x W"),
    ],
)
def test_mistakes(text: str, shapes: list[Shape], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(text).infer(*shapes)
