"""Pooling."""
from __future__ import annotations

import itertools

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from tests.layers.single import KINDS, cases, close, layer_of, run, run_golden

LOWEST = -np.finfo(np.float32).max


def windows(layer, image):
    """Iterate over (output, index of the pixels, AVE divisor) of each window of an inferred layer."""
    p = layer.pool
    for output in itertools.product(*map(range, p.outputs)):
        first = [o * s - q for o, s, q in zip(output, p.stride, p.pad)]
        last = [min(f + k, n + q) for f, k, n, q in zip(first, p.kernel, image, p.pad)]
        pixels = [[f + t * d for t in range(k) if 0 <= f + t * d < n] for f, k, n, d in zip(first, p.kernel, image, p.dilation)]
        area = np.prod([b - a for a, b in zip(first, last)]) if p.include_pad else np.prod([len(each) for each in pixels])
        yield output, np.ix_(*pixels), area


def pooled(layer, x, dy):
    """Return (y, mask, dx) in float64, window by window."""
    y, mask, dx = np.zeros((*x.shape[:2], *layer.pool.outputs)), np.full((*x.shape[:2], *layer.pool.outputs), -1.0), np.zeros(x.shape)
    is_max = layer.own().pool == proto.PoolingParameter.MAX
    places = np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:])
    for (n, c), (output, pixels, area) in itertools.product(np.ndindex(*x.shape[:2]), list(windows(layer, x.shape[2:]))):
        window, at = x[n, c][pixels], (n, c, *output)
        if not is_max:
            y[at] = window.sum() / area
            dx[n, c][pixels] += dy[at] / area
        elif window.size and not np.isnan(window).all():
            mask[at] = places[pixels].flat[np.nanargmax(window)]
            y[at] = np.nanmax(window)
            dx[n, c].flat[int(mask[at])] += dy[at]
        else:
            y[at] = LOWEST
    return y, mask, dx


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", cases("Pooling"))
def test_golden(device, kind, case):
    run_golden(device, kind, case)


WINDOWS = [
    ("kernel_size: 2 stride: 2", (5, 24, 23)),
    ("kernel_size: 3 stride: 2", (2, 55, 55)),
    ("kernel_size: 3 stride: 1 pad: 1", (3, 14, 7)),
    ("kernel_size: 3 stride: 1 pad: 1", (2, 4, 150)),
    ("kernel_size: 5 stride: 3 pad: 2", (2, 12, 13)),
    ("kernel_h: 2 kernel_w: 9 stride_h: 3 stride_w: 4 pad_h: 1 pad_w: 4", (1, 7, 75)),
    ("kernel_size: 16 stride: 5", (1, 20, 33)),
    ("kernel_size: 1 stride: 2", (2, 3, 41)),
    ("kernel_size: 6 stride: 2", (1, 5, 6)),
]


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("window", "shape"), WINDOWS, ids=str)
def test_windows(device, kind, window, shape, method):
    rng = np.random.default_rng(1)
    text = f"type: 'Pooling' pooling_param {{ pool: {method} {window} }}"
    x = rng.integers(-9, 10, (2, *shape)).astype(np.float32)  # with ties
    layer = layer_of(text)
    (out,) = layer.infer(x.shape)
    dy = rng.normal(size=out)
    result = run(device, kind, text, [x], [dy], strided=True, held=2.0)
    y, _, dx = pooled(layer, x, dy)
    close(result.tops[0], y)
    close(result.diffs[0], dx + 2)
    assert "x0" not in {ref.name for ref in result.rec.launches[-1].reads}


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["1 1", "7 7", "13 70"])
def test_whole_planes(device, kind, size, method):
    rng = np.random.default_rng(2)
    x, dy = rng.normal(size=(3, 5, *map(int, size.split()))), rng.normal(size=(3, 5, 1, 1))
    text = f"type: 'Pooling' pooling_param {{ pool: {method} global_pooling: true }}"
    result = run(device, kind, text, [x], [dy], strided=True, held=2.0)
    y, _, dx = pooled(result.layer, x, dy)
    close(result.tops[0], y)
    close(result.diffs[0], dx + 2)
    assert all(launch.call.program == "pooling_plane" for launch in result.rec.launches if launch.layer == "layer")


@pytest.mark.parametrize("train", [True, False], ids=["train", "test"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", ["kernel_size: 3 stride: 2 pad: 1", "kernel_size: 2 stride: 3", "global_pooling: true"])
def test_mask(device, kind, window, train):
    x = np.random.default_rng(3).normal(size=(2, 3, 5, 9)).astype(np.float32)
    x[0, 1] = np.nan
    x[1, 2] = -np.inf
    text = f"type: 'Pooling' top: 'y' top: 'mask' pooling_param {{ pool: MAX {window} }}"
    result = run(device, kind, text, [x], [np.ones(layer_of(text).infer(x.shape)[0]), None] if train else None, train=train)
    finite = np.where(np.isfinite(x), x, np.nan)
    y, mask, dx = pooled(result.layer, finite, np.ones(result.tops[0].shape))
    close(result.tops[0], y)
    close(result.tops[1], mask)
    if train:
        close(result.diffs[0], dx)


@pytest.mark.parametrize("kind", KINDS)
def test_ties_take_the_first_row_by_row(device, kind):
    x = np.zeros((1, 1, 4, 40))
    x[0, 0, 1, 1::2] = x[0, 0, 0, 2::4] = 1
    result = run(device, kind, "type: 'Pooling' top: 'y' top: 'mask' pooling_param { kernel_size: 3 stride: 1 }", [x])
    y, mask, _ = pooled(result.layer, x, np.zeros(result.tops[0].shape))
    close(result.tops[0], y)
    close(result.tops[1], mask)


@pytest.mark.parametrize(("window", "dtype"), [("kernel_size: 15", "uint8"), ("kernel_size: 16", "uint16"), ("kernel_size: 256", "uint32")])
def test_index_is_as_small_as_it_can_be(window, dtype):
    layer = layer_of(f"type: 'Pooling' pooling_param {{ {window} }}")
    layer.infer((1, 1, 260, 259))
    assert layer.pool.index_dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
def test_test_phase_saves_no_index(device, kind):
    result = run(device, kind, "type: 'Pooling' pooling_param { kernel_size: 2 stride: 2 }", [np.zeros((1, 2, 4, 4))], train=False)
    (launch,) = result.rec.launches
    assert [operand.ref.name for operand in launch.operands] == ["x0", "y0"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", ["kernel_size: 2 stride: 2", "global_pooling: true", "kernel_size: 2 dilation: 2"])
def test_no_samples(device, kind, window):
    """The bottom may have 0 rows if a detection layer found no object."""
    text = f"type: 'Pooling' top: 'y' top: 'mask' pooling_param {{ {window} }}"
    out = layer_of(text).infer((0, 2, 4, 4))[0]
    result = run(device, kind, text, [np.zeros((0, 2, 4, 4))], [np.zeros(out), None])
    assert [top.shape for top in result.tops] == [out, out] and result.diffs[0].shape == (0, 2, 4, 4)


STOCHASTIC = "type: 'Pooling' name: 'pool' pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }"


@pytest.mark.parametrize("kind", KINDS)
def test_stochastic_draws_by_share_and_backward_follows(device, kind):
    x = np.tile(np.array([[1, 2], [3, 0]], np.float32), (50, 40))[None, None] * np.ones((3, 2, 1, 1))
    dy = np.random.default_rng(4).normal(size=(3, 2, 50, 40))
    result = run(device, kind, STOCHASTIC, [x], [dy])
    y = result.tops[0]
    share = [(y == value).mean() for value in range(4)]
    assert np.allclose(share, [0, 1 / 6, 2 / 6, 3 / 6], atol=0.02)
    assert (y[0] != y[1]).any() and (y[:, 0] != y[:, 1]).any()
    expected = np.where(np.repeat(np.repeat(y, 2, 2), 2, 3) == x, np.repeat(np.repeat(dy, 2, 2), 2, 3), 0)
    close(result.diffs[0], expected)
    assert (run(device, kind, STOCHASTIC, [x]).tops[0] == y).all()


@pytest.mark.parametrize("kind", KINDS)
def test_stochastic_test_phase_is_the_expectation(device, kind):
    x = np.random.default_rng(5).random((2, 3, 6, 7))
    x[0, 0] = 0
    layer = layer_of(STOCHASTIC, proto.TEST)
    result = run(device, kind, layer, [x], train=False)
    y = np.zeros(result.tops[0].shape)
    for output, (rows, columns), _ in windows(layer, (6, 7)):
        window = x[:, :, rows, columns]
        total = window.sum((2, 3))
        y[:, :, output[0], output[1]] = np.divide((window**2).sum((2, 3)), total, out=np.zeros_like(total), where=total > 0)
    close(result.tops[0], y)
    with pytest.raises(Error, match="no gradient in the TEST phase"):
        run(device, kind, layer, [x], [y])


@pytest.mark.parametrize(
    ("text", "shape", "fact"),
    [
        ("pool: AVE kernel_size: 2 stride: 3", (1, 1, 6, 5), "AVE window at the last row covers no pixel of the 6 x 5 image .kernel 2, stride 3, pad 0, CEIL"),
        ("pool: AVE kernel_size: 2 stride: 3", (1, 1, 5, 6), "at the last column"),
        ("kernel_size: 3", (1, 3, 6), "bottom 0 is 1 x 3 x 6"),
        ("kernel_size: 2 pad: 2", (1, 1, 6, 6), "pad 2 is not smaller than kernel 2"),
        ("global_pooling: true kernel_h: 2", (1, 1, 6, 6), "kernel_h exclude each other"),
        ("global_pooling: true stride: 2", (1, 1, 6, 6), "not stride 2, pad 0"),
        ("kernel_size: 2 kernel_h: 3", (1, 1, 6, 6), "kernel_size and kernel_h are both given"),
        ("kernel_h: 3", (1, 1, 6, 6), "kernel_h is given without kernel_w"),
        ("stride: 2", (1, 1, 6, 6), "neither kernel_size nor kernel_h"),
        ("kernel_size: 0", (1, 1, 6, 6), "the kernel is 0"),
        ("kernel_size: 2 stride_h: 0 stride_w: 1", (1, 1, 6, 6), "the stride is 0 x 1"),
        ("kernel_size: 9", (1, 1, 6, 6), "9 does not fit into the 6 x 6 image with pad 0"),
        ("pool: STOCHASTIC kernel_size: 2 pad: 1", (1, 1, 6, 6), "takes no padding"),
        ("pool: AVE kernel_size: 2 } top: 'a' top: 'b' lrn_param {", (1, 1, 6, 6), "no mask"),
        ("pool: AVE kernel_size: 2 dilation: 2", (1, 1, 6, 6), "AVE pooling with dilation 2 is not supported"),
        ("kernel_size: 2 dilation: 0", (1, 1, 6, 6), "the dilation is 0"),
        ("kernel_size: 2 dilation: [1, 1, 1]", (1, 1, 6, 6), "dilation is given 3 times for 2 spatial axes"),
        ("kernel_size: 2 dilation: 2 pad: 3", (1, 1, 6, 6), "pad 3 is not smaller than kernel 2 with dilation 2"),
        ("kernel_size: 3 dilation: 3", (1, 1, 6, 6), "a window of 7 does not fit into the 6 x 6 image"),
        ("global_pooling: true dilation: 2", (1, 1, 6, 6), "and dilation 2"),
        ("kernel_size_3d: [2, 2, 2]", (1, 1, 6, 6), "kernel_size is given 3 times for 2 spatial axes"),
        ("kernel_size: 2 stride_3d: [1, 2]", (1, 1, 6, 6, 6), "stride is given 2 times for 3 spatial axes"),
        ("kernel_size: 2 kernel_depth: 1", (1, 1, 6, 6), "kernel_depth is given for 2 spatial axes"),
        ("kernel_depth: 1", (1, 1, 6, 6, 6), "kernel_depth is given without kernel_size"),
        ("kernel_size_3d: [2, 2, 2] kernel_depth: 1", (1, 1, 6, 6, 6), "kernel_depth is given, and kernel_size 3 times"),
        ("kernel_size: 2 temporal_stride: 2", (1, 1, 6, 6, 6), "temporal_stride is given without kernel_depth"),
        ("kernel_shape { dim: 2 dim: 2 }", (1, 1, 6, 6, 6), "kernel_shape has 2 numbers for 3 spatial axes"),
        ("kernel_shape { dim: 2 dim: -2 }", (1, 1, 6, 6), "kernel_shape is 2 x -2"),
        ("kernel_shape { dim: 2 dim: 2 } kernel_size: 2", (1, 1, 6, 6), "kernel_size and kernel_shape are given"),
        ("kernel_shape { dim: 2 dim: 2 } stride_h: 2 stride_w: 2 stride_shape { dim: 2 dim: 2 }", (1, 1, 6, 6), "stride_h is given beside stride_shape"),
        ("kernel_h: 2 kernel_w: 2", (1, 1, 6, 6, 6), "kernel_h and kernel_w are given for 3 spatial axes"),
        ("global_pooling: true kernel_size_3d: 2", (1, 1, 6, 6, 6), "kernel_size_3d exclude each other"),
        ("kernel_size: 2", (1, 1, 6, 6, 6, 6), "bottom 0 is 1 x 1 x 6 x 6 x 6 x 6 with channels in axis 1"),
    ],
)
def test_errors(text, shape, fact):
    with pytest.raises(Error, match=fact) as caught:
        layer_of(f"name: 'pool2' type: 'Pooling' pooling_param {{ {text} }}").infer(shape)
    assert "'pool2' (Pooling)" in str(caught.value) and caught.value.fix


FORKS = [
    ("pool: AVE kernel_size: 3 stride: 2 pad: 1 avg_include_pad: false", (2, 12, 13)),
    ("pool: AVE kernel_h: 3 kernel_w: 5 stride: 1 pad_h: 2 pad_w: 4 avg_include_pad: false", (1, 5, 70)),
    ("pool: MAX kernel_size: 3 stride: 2 pad: 2 dilation: 2", (2, 12, 13)),
    ("pool: MAX kernel_h: 2 kernel_w: 3 pad_h: 3 pad_w: 0 dilation: [4, 1]", (1, 4, 9)),
    ("pool: MAX kernel_size_3d: [2, 3, 3] stride_3d: [1, 2, 2] pad_3d: [1, 0, 1]", (2, 5, 6, 7)),
    ("pool: AVE kernel_size_3d: [2, 3, 3] stride_3d: [1, 2, 2] pad_3d: [1, 0, 1] avg_include_pad: false", (2, 5, 6, 7)),
    ("pool: AVE kernel_size: 3 stride: 2 pad: 1", (1, 6, 6, 7)),
    ("pool: MAX kernel_size: 2 dilation: [1, 2, 3]", (1, 4, 6, 7)),
    ("pool: AVE global_pooling: true", (2, 3, 4, 5)),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("settings", "shape"), FORKS, ids=str)
def test_fields_of_forks(device, kind, settings, shape):
    rng = np.random.default_rng(6)
    tops = "top: 'y' top: 'mask'" if "MAX" in settings else "top: 'y'"
    text = f"type: 'Pooling' {tops} pooling_param {{ {settings} }}"
    x = rng.integers(-9, 10, (2, *shape)).astype(np.float32)
    dy = rng.normal(size=layer_of(text).infer(x.shape)[0])
    result = run(device, kind, text, [x], [dy, None], strided=True, held=2.0)
    y, mask, dx = pooled(result.layer, x, dy)
    for got, want in zip(result.tops, (y, mask)):
        close(got, want)
    close(result.diffs[0], dx + 2)


def test_channels_in_another_axis(device):
    """The axes before the channels are one batch of planes, and shapes may change."""
    rng = np.random.default_rng(7)
    layer = layer_of("type: 'Pooling' pooling_param { kernel_size: 2 stride: 2 axis: -3 }")
    for height in (4, 6):
        x = rng.normal(size=(2, 3, 2, height, 4))
        result = run(device, "cpu", layer, [x], [np.ones((2, 3, 2, height // 2, 2))], strided=True)
        y, _, dx = pooled(layer, x.reshape(2, 6, height, 4), np.ones((2, 6, height // 2, 2)))
        close(result.tops[0], y.reshape(2, 3, 2, height // 2, 2))
        close(result.diffs[0], dx.reshape(x.shape))


def test_stochastic_volumes_draw_from_their_window(device):
    x = np.random.default_rng(8).random((2, 2, 4, 4, 6))
    x[:, :, ::2] = 0
    result = run(device, "gpu", "type: 'Pooling' pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }", [x], [np.ones((2, 2, 2, 2, 3))])
    blocks = x.astype(np.float32).reshape(2, 2, 2, 2, 2, 2, 3, 2).transpose(0, 1, 2, 4, 6, 3, 5, 7).reshape(2, 2, 2, 2, 3, 8)
    drawn = blocks == result.tops[0][..., None]
    assert drawn.any(-1).all() and (result.tops[0] > 0).all() and len(set(drawn.argmax(-1).flat)) == 4
    close(result.diffs[0], np.where((x > 0) & np.isin(x.astype(np.float32), result.tops[0]), 1, 0))


def test_an_empty_window_of_max_is_told(capsys):
    text = "name: 'told' type: 'Pooling' pooling_param { kernel_size: 2 stride: 3 }"
    layer_of(text).infer((1, 1, 5, 5))
    assert "pooling" not in capsys.readouterr().err
    layer_of(text).infer((1, 1, 5, 6))
    layer_of(text).infer((1, 1, 5, 6))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("W") and "'told' (Pooling): the MAX window at the last column covers no pixel of the 5 x 6 image" in line


def test_ceil_mode_of_a_fork_is_floor():
    layer = layer_of("type: 'Pooling' pooling_param { kernel_size: 2 stride: 2 ceil_mode: false }")
    assert list(layer.infer((1, 1, 5, 5))) == [(1, 1, 2, 2)]
