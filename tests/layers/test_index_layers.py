"""Layers that compute or use indices: Embed, BatchReindex, Filter, ArgMax, SegNet's Upsample."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.ir.tensor import Shape
from tests.layers.single import KINDS, close, layer_of, run
from tests.layers.test_shape_layers import draw

NAN = float("nan")


def numbers(rows: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, rows, shape).astype(np.float32)


# -- Embed, BatchReindex -------------------------------------------------------------------------------------------------------------------


def embed_text(rows: int, outputs: int, bias: bool = True) -> str:
    return f"type: 'Embed' embed_param {{ input_dim: {rows} num_output: {outputs} bias_term: {str(bias).lower()} }}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows, shape, outputs, bias", [(7, (4, 5), 70, True), (300, (150,), 600, False), (2, (2, 3, 50), 5, True), (1, (1, 1), 1, True)])
def test_embed(device: Any, kind: str, rows: int, shape: Shape, outputs: int, bias: bool) -> None:
    """Rows are used often, once or never. There are more indices than a work-group reads, and more columns than it has items."""
    index, table, b = numbers(rows, *shape), draw(rows, outputs), draw(outputs)
    dy = draw(*shape, outputs)
    result = run(device, kind, embed_text(rows, outputs, bias), [index], [dy], params=[table, b] if bias else [table], propagate=[False], strided=True)
    close(result.tops[0], table[index.astype(int)] + (b if bias else 0), 1e-6)
    gradient = np.zeros((rows, outputs))
    np.add.at(gradient, index.astype(int).ravel(), dy.reshape(-1, outputs).astype(np.float64))
    close(result.param_diffs[0], gradient, 1e-6)
    if bias:
        close(result.param_diffs[1], dy.reshape(-1, outputs).sum(0, dtype=np.float64), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_name_no_row(device: Any, kind: str) -> None:
    """An index out of range gives NaN and no gradient, and no access outside of buffers, which run() checks. Fractions are truncated."""
    index = np.array([-1, 3, 1.9, 1e9, -1e9, NAN, np.inf, -0.5], np.float32)
    right = np.isin(np.arange(8), (2, 7))
    table, dy = draw(3, 6), draw(8, 6)
    result = run(device, kind, embed_text(3, 6, False), [index], [dy], params=[table], propagate=[False])
    assert (np.isnan(result.tops[0]).all(1) == ~right).all() and not np.isnan(result.tops[0][right]).any()
    close(result.tops[0][right], table[[1, 0]], 0)
    close(result.param_diffs[0], np.stack([dy[7], dy[2], 0 * dy[0]]), 0)


def test_gradients_of_embed_are_the_same_bits(device: Any) -> None:
    """Two runs of one device class give the same bits, and gradients are summed in the order of the indices."""
    index, dy, table = np.zeros((1000,)), draw(1000, 3), draw(2, 3)
    for kind in KINDS:
        one, two = (run(device, kind, embed_text(2, 3, False), [index], [dy], params=[table], propagate=[False]).param_diffs[0] for _ in range(2))
        assert (one == two).all() and (one[0] == np.cumsum(dy, 0, np.float32)[-1]).all() and (one[1] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape, count", [((5, 3, 30), 8), ((3, 2), 1), ((200, 1), 300), ((2, 700), 2)])
def test_batch_reindex(device: Any, kind: str, shape: Shape, count: int) -> None:
    x, index, dy = draw(*shape), numbers(shape[0], count), draw(count, *shape[1:])
    gradient = np.zeros(shape)
    np.add.at(gradient, index.astype(int), dy.astype(np.float64))
    for held in (None, 3.0):
        result = run(device, kind, "type: 'BatchReindex'", [x, index], [dy], propagate=[True, False], held=held, strided=True)
        close(result.tops[0], x[index.astype(int)], 0)
        close(result.diffs[0], gradient + (held or 0), 1e-6)


# -- Filter --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 5, 300])
def test_filter(device: Any, kind: str, samples: int) -> None:
    """The layer with a given extent, which in a net is measured. Without a selected sample the gradient is zero."""
    selector = (np.random.default_rng(samples).random((samples, 1, 1)) < 0.6) * np.float32(-2)
    chosen = selector.ravel() != 0
    a, b = draw(samples, 3, 5), draw(samples)
    for mask in (chosen, chosen & False):
        layer = layer_of("type: 'Filter' top: 'a' top: 'b' bottom: 'x' bottom: 'y' bottom: 's'")
        layer.extent = (int(mask.sum()),)
        dy = draw(*a[mask].shape), draw(*b[mask].shape)
        for held in (None, 1.0):
            result = run(device, kind, layer, [a, b, selector * mask.reshape(-1, 1, 1)], dy, propagate=[True, True, False], held=held, strided=bool(mask.any()))
            for top, bottom, diff, top_diff in zip(result.tops, (a, b), result.diffs, dy):
                close(top, bottom[mask], 0)
                expected = np.zeros_like(bottom)
                expected[mask] = top_diff
                close(diff, expected + (held or 0), 1e-6)


@pytest.fixture
def filter_net(device: Any) -> Iterator[Net]:
    """A net with a selection, a product with as many rows as are selected, and a sum."""
    text = """force_backward: true
        layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: 6 dim: 4 } } }
        layer { name: 's' type: 'Input' top: 's' input_param { shape { dim: 6 } } }
        layer { name: 'w' type: 'InnerProduct' bottom: 'x' top: 'w' inner_product_param { num_output: 3 weight_filler { type: 'gaussian' } } }
        layer { name: 'f' type: 'Filter' bottom: 'w' bottom: 's' top: 'f' }
        layer { name: 'v' type: 'InnerProduct' bottom: 'f' top: 'v' inner_product_param { num_output: 2 weight_filler { type: 'gaussian' } } }
        layer { name: 'r' type: 'Reduction' bottom: 'v' top: 'r' loss_weight: 1 reduction_param { operation: SUMSQ } }"""
    net = Net(text_format.Parse(text, proto.NetParameter()), phase=proto.TRAIN, device=device)
    yield net
    net.close()


def test_filter_in_a_net(filter_net: Net) -> None:
    """Forward and backward with selections of several sizes, also empty ones, then with another batch size."""
    net, rng = filter_net, np.random.default_rng(1)

    def step(x: np.ndarray, selector: np.ndarray) -> None:
        net.blobs["x"].data[...], net.blobs["s"].data[...] = x, selector
        net.forward()
        w, v = (net.params[name][0].data.astype(np.float64) for name in "wv")
        chosen = selector != 0
        h = x[chosen] @ w.T
        assert net.blobs["f"].shape == (chosen.sum(), 3)
        close(net.blobs["f"].data, h)
        close(net.blobs["r"].data, ((h @ v.T) ** 2).sum())
        net.clear_param_diffs()
        net.backward()
        dh = np.zeros((len(x), 3))
        dh[chosen] = 2 * h @ v.T @ v
        close(net.blobs["x"].diff, dh @ w)
        close(net.params["w"][0].diff, dh.T @ x)
        close(net.params["v"][0].diff, 2 * (h @ v.T).T @ h)

    for count in (6, 2, 0, 0, 5, 2, 6):
        step(rng.standard_normal((6, 4)).astype(np.float32), rng.permutation(np.arange(6) < count).astype(np.float32))
    net.blobs["x"].reshape(3, 4)
    net.blobs["s"].reshape(3)
    net.reshape()
    step(rng.standard_normal((3, 4)).astype(np.float32), np.array([0, 1, 1], np.float32))


# -- ArgMax --------------------------------------------------------------------------------------------------------------------------------


def largest(x: np.ndarray, k: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return indices and values of the k largest values along the axis. Of equal values the larger index comes first."""
    order = np.flip(np.argsort(x, axis, kind="stable"), axis).take(range(k), axis)
    return order, np.take_along_axis(x, order, axis)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "shape, axis, k",
    [((2, 21, 5, 7), 1, 3), ((3, 4, 2, 9), 1, 1), ((4, 150), 1, 5), ((70, 18), 0, 2), ((200, 2), 0, 2), ((2, 3, 5), -1, 5), ((2, 100, 3), 1, 4)],
)
def test_argmax_along_an_axis(device: Any, kind: str, shape: Shape, axis: int, k: int) -> None:
    """Values have many ties, and infinities."""
    x = np.random.default_rng(k).integers(-2, 3, shape).astype(np.float32)
    x[x == 2] = np.inf
    x[x == -2] = -np.inf
    index, value = largest(x, k, axis % len(shape))
    text = f"type: 'ArgMax' argmax_param {{ axis: {axis} top_k: {k} out_max_val: %s }}"
    assert np.array_equal(run(device, kind, text % "false", [x], strided=True).tops[0], index)
    assert np.array_equal(run(device, kind, text % "true", [x], strided=True).tops[0], value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape, top", [((3, 100), (3, 2, 4)), ((2, 3, 2), (2, 2, 4)), ((2, 3, 2, 4), (2, 2, 4, 1)), ((2, 3, 2, 4, 3), (2, 2, 4, 1, 1))])
def test_argmax_of_samples(device: Any, kind: str, shape: Shape, top: Shape) -> None:
    x = draw(*shape)
    index, value = largest(x.reshape(shape[0], -1), 4, 1)
    text = "type: 'ArgMax' argmax_param { top_k: 4 %s }"
    close(run(device, kind, text % "out_max_val: true", [x], strided=True).tops[0], np.stack([index, value], 1).reshape(top), 0)
    close(run(device, kind, text % "", [x], strided=True).tops[0], index.reshape(top[0], 1, *top[2:]), 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 4), (2, 130), (2, 4, 17)])
def test_argmax_passes_over_nan(device: Any, kind: str, shape: Shape) -> None:
    x = np.full(shape, NAN, np.float32)
    x[1, 2] = -np.inf
    text = "type: 'ArgMax' argmax_param { axis: 1 top_k: 2 %s }"
    index = run(device, kind, text % "", [x]).tops[0]
    value = run(device, kind, text % "out_max_val: true", [x]).tops[0]
    assert (index[0] == -1).all() and (index[1, 0] == 2).all() and (index[1, 1] == -1).all()
    assert np.isnan(value[0]).all() and (value[1, 0] == -np.inf).all() and np.isnan(value[1, 1]).all()


# -- Upsample with a mask ------------------------------------------------------------------------------------------------------------------

UNPOOL = "type: 'Upsample' bottom: 'x' bottom: 'mask' upsample_param {{ {} }}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape, settings, size", [((2, 3, 4, 5), "", (8, 10)), ((1, 20, 3, 7), "upsample_h: 5 upsample_w: 9", (5, 9))])
def test_unpooling(device: Any, kind: str, shape: Shape, settings: str, size: Shape) -> None:
    """Of several values with the same index, the last in row order is used. -1, Pooling's mask of an empty window, is ignored."""
    n, c, h, w = shape
    x, dy = draw(*shape), draw(n, c, *size)
    mask = np.random.default_rng(h).integers(-1, size[0] * size[1] // 2, shape)
    y, dx = np.zeros((n, c, size[0] * size[1]), np.float32), np.zeros((n, c, h * w), np.float32)
    for plane in np.ndindex(n, c):
        for i, at in enumerate(mask[plane].ravel()):
            if at >= 0:
                y[plane][at] = x[plane].flat[i]
                dx[plane][i] = dy[plane].flat[at]
    for held in (None, 2.0):
        result = run(device, kind, UNPOOL.format(settings), [x, mask], [dy], held=held, strided=True)
        close(result.tops[0], y.reshape(dy.shape), 0)
        close(result.diffs[0], dx.reshape(shape) + (held or 0), 1e-6)
        close(result.diffs[1], np.full(shape, held or 0))


@pytest.mark.parametrize("kind", KINDS)
def test_masks_that_are_no_place(device: Any, kind: str) -> None:
    """An invalid index makes the last element of its plane NaN and changes no other plane."""
    x, dy = draw(1, 4, 1, 2), draw(1, 4, 2, 4)
    mask = np.array([[8, 0], [NAN, 7], [1, -2], [7, 3]], np.float32).reshape(1, 4, 1, 2)
    result = run(device, kind, UNPOOL.format(""), [x, mask], [dy])
    assert (np.isnan(result.tops[0]).reshape(4, 8) == (np.arange(8) == 7) * np.array([[1], [1], [1], [0]])).all()
    assert (np.isnan(result.diffs[0]).reshape(4, 2) == [[1, 0], [1, 0], [0, 1], [0, 0]]).all()
    assert result.tops[0][0, 3].ravel()[[7, 3]].tolist() == x[0, 3].ravel().tolist()


@pytest.mark.parametrize(
    "text, shapes, fact",
    [
        ("type: 'Embed' embed_param { input_dim: 3 }", [(2,)], "num_output is missing"),
        ("type: 'Embed' embed_param { num_output: 3 }", [(2,)], "input_dim is missing"),
        (embed_text(2, 2), [()], "no axes"),
        ("type: 'BatchReindex'", [(2, 3), (2, 1)], "bottom 1 is 2 x 1, it must have one axis"),
        ("type: 'Filter' top: 'y'", [(2, 3), (2, 3)], r"the selector \(bottom 1\) is 2 x 3, it must hold one value for each sample"),
        ("type: 'Filter' top: 'y'", [(4, 3), (2, 1)], r"bottom 0 is 4 x 3, the selector \(bottom 1\) is 2 x 1"),
        ("type: 'Filter' top: 'y'", [(2, 3), (2, 3), (2,)], "3 bottoms and 1 tops"),
        ("type: 'ArgMax' argmax_param { top_k: 4 }", [(2, 3)], "top_k is 4, each sample of bottom 2 x 3 has 3 values"),
        ("type: 'ArgMax' argmax_param { top_k: 4 axis: 1 }", [(2, 3, 9)], "top_k is 4, axis 1 of bottom 2 x 3 x 9 has 3 values"),
        ("type: 'ArgMax' argmax_param { top_k: 0 }", [(2, 3)], "top_k is 0"),
        ("type: 'ArgMax' argmax_param { axis: 2 }", [(2, 3)], "axis 2 is outside"),
        (UNPOOL.format(""), [(2, 3, 4, 5), (2, 3, 4, 4)], r"bottom 0 is 2 x 3 x 4 x 5, the mask \(bottom 1\) is 2 x 3 x 4 x 4"),
        (UNPOOL.format(""), [(2, 3, 4), (2, 3, 4)], "must be N x C x H x W"),
        (UNPOOL.format("scale_h: 2"), [(2, 3, 4, 5)] * 2, "scale_h is given without scale_w"),
        (UNPOOL.format("upsample_h: 2"), [(2, 3, 4, 5)] * 2, "upsample_h is given without upsample_w"),
        (UNPOOL.format("upsample_h: 0 upsample_w: 3"), [(2, 3, 4, 5)] * 2, "the top would be 0 x 3 pixels"),
        (UNPOOL.format("scale: 3 pad_out_h: true"), [(2, 3, 4, 5)] * 2, "pad_out_h and pad_out_w go with a scale of 2, it is 3 x 3"),
        (UNPOOL.format("scale: 0"), [(2, 3, 4, 5)] * 2, "the scale is 0 x 0"),
        ("type: 'Gather' gather_param { axis: 2 }", [(3, 2), (4,)], "axis 2 is outside the 2 axes of bottom 3 x 2"),
        ("type: 'Gather'", [(0, 2), (4,)], "bottom 0 is 0 x 2"),
        ("type: 'GatherElements'", [(3, 2), (4, 3)], "bottom 1 is 4 x 3, bottom 0 is 3 x 2"),
        ("type: 'GatherND' gather_nd_param { batch_dims: 1 }", [(3, 2), (4, 1)], "bottom 1 is 4 x 1, bottom 0 is 3 x 2, batch_dims is 1"),
        ("type: 'GridSample'", [(2, 3, 4), (2, 3, 4, 2)], "bottom 0 is 2 x 3 x 4, it must be N x C x H x W"),
        ("type: 'GridSample'", [(2, 3, 4, 5), (2, 3, 4, 3)], "bottom 1 is 2 x 3 x 4 x 3, bottom 0 is 2 x 3 x 4 x 5"),
        ("type: 'ROIAlign'", [(2, 3, 4, 5), (2, 5)], "pooled_h is missing"),
        ("type: 'ROIAlign' roi_align_param { pooled_h: 1 pooled_w: 1 }", [(2, 3, 4, 5), (2, 4)], "bottom 1 is 2 x 4, it must be R x 5"),
        ("type: 'ROIAlign' roi_align_param { pooled_h: 1 pooled_w: 1 roi_end_mode: 1 }", [(2, 3, 4, 5), (2, 5)], "roi_end_mode is 1"),
        ("type: 'Where'", [(3, 2), (3, 1), (4,)], "the bottoms are 3 x 2, 3 x 1, 4"),
        ("type: 'Compare'", [(3, 2), (3,)], "the bottoms are 3 x 2, 3"),
        ("type: 'StridedSlice' strided_slice_param { axis: 0 axis: -2 }", [(3, 2)], "axis 0, 0 names an axis twice"),
        ("type: 'StridedSlice' strided_slice_param { axis: 0 start: 1 start: 2 }", [(3, 2)], "start is given 2 times for 1 axes"),
        ("type: 'StridedSlice'", [()], "bottom 0 has no axes"),
        ("type: 'StridedSlice' strided_slice_param { axis: 1 step: 0 }", [(3, 2)], "the step along axis 1 is 0"),
        ("type: 'StridedSlice' strided_slice_param { axis: 1 start: 2 }", [(3, 2)], "the slice 2::1 of axis 1 of bottom 3 x 2 is empty"),
    ],
)
def test_mistakes(text: str, shapes: list[Shape], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(text).infer(*shapes)


def test_an_index_out_of_range(device: Any) -> None:
    """It gives NaN and no gradient."""
    x, ids, dy = draw(3, 2), np.array([2.0, -1, 3, -4, 0]), np.ones((5, 2), np.float32)
    got = run(device, "cpu", "type: 'Gather'", [x, ids], [dy], propagate=[True, False])
    close(got.tops[0], np.stack([x[2], x[2], [NAN, NAN], [NAN, NAN], x[0]]))
    close(got.diffs[0], np.array([[1, 1], [0, 0], [2, 2]]))


def test_a_condition_has_no_gradient(device: Any) -> None:
    with pytest.raises(Error, match=r"there is no gradient for the condition \(bottom 0\)"):
        run(device, "cpu", "type: 'Where'", [draw(4, 2)] * 3, [draw(4, 2)], propagate=[True, False, False])
    assert not layer_of("type: 'Where'").force_backward(0)


@pytest.mark.parametrize(
    "text, shapes, propagate",
    [
        (embed_text(3, 2, False), [(4,)], [True]),
        ("type: 'BatchReindex'", [(3, 2), (4,)], [True, True]),
        ("type: 'Filter' top: 'y' bottom: 'x' bottom: 's'", [(4, 2), (4,)], [False, True]),
        ("type: 'Gather'", [(3, 2), (4,)], [True, True]),
    ],
)
def test_indices_have_no_gradient(device: Any, text: str, shapes: list[Shape], propagate: list[bool]) -> None:
    params = [draw(3, 2)] if "Embed" in text else []
    with pytest.raises(Error, match="there is no gradient for the"):
        run(device, "cpu", text, [np.zeros(shape) for shape in shapes], [draw(4, 2)], params=params, propagate=propagate)
    assert not layer_of(text).force_backward(len(shapes) - 1)
