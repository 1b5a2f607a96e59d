"""ROIPooling and PSROIPooling: cases beyond Caffe's, compared with loops in numpy. Bin edges are in float32, as in Caffe."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.detection.regions.roi_pooling import PsRoiPooling, RoiPooling
from tests.harness import execute
from tests.layers.single import KINDS, close, layer_of, run

Edges = Callable[[float, float, float, int], Iterator[tuple[int, int]]]
F = np.float32


def half_away(value: Any) -> Any:
    return F(np.copysign(np.floor(np.abs(value) + F(0.5)), value))


def max_edges(low: float, high: float, scale: float, count: int) -> Iterator[tuple[int, int]]:
    first, last = int(half_away(F(low) * F(scale))), int(half_away(F(high) * F(scale)))
    size = F(max(last - first + 1, 1)) / F(count)
    for i in range(count):
        yield int(np.floor(F(i) * size)) + first, int(np.ceil(F(i + 1) * size)) + first


def mean_edges(low: float, high: float, scale: float, count: int) -> Iterator[tuple[int, int]]:
    first, last = half_away(low) * F(scale), (half_away(high) + F(1)) * F(scale)
    size = max(last - first, F(0.1)) / F(count)
    for i in range(count):
        yield int(np.floor(F(i) * size + first)), int(np.ceil(F(i + 1) * size + first))


def bins(edges: Edges, x: np.ndarray, roi: np.ndarray, counts: tuple[int, int], scale: float) -> Iterator[tuple[int, int, slice, slice]]:
    """Iterate over (row, column, rows, columns) of the nonempty bins."""
    clip = lambda pair, size: slice(*(min(max(edge, 0), size) for edge in pair))  # noqa: E731
    for row, ys in enumerate(edges(roi[2], roi[4], scale, counts[0])):
        for column, xs in enumerate(edges(roi[1], roi[3], scale, counts[1])):
            rows, columns = clip(ys, x.shape[2]), clip(xs, x.shape[3])
            if rows.start < rows.stop and columns.start < columns.stop:
                yield row, column, rows, columns


def max_pool(x: np.ndarray, rois: np.ndarray, counts: tuple[int, int], scale: float, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y, dx = np.zeros(dy.shape), np.zeros(x.shape)
    for r, roi in enumerate(rois):
        n = int(roi[0])
        for row, column, rows, columns in bins(max_edges, x, roi, counts, scale):
            for c in range(x.shape[1]):
                part = x[n, c, rows, columns]
                at = np.unravel_index(part.argmax(), part.shape)
                y[r, c, row, column] = part[at]
                dx[n, c, rows, columns][at] += dy[r, c, row, column]
    return y, dx


def mean_pool(x: np.ndarray, rois: np.ndarray, group: int, scale: float, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y, dx = np.zeros(dy.shape), np.zeros(x.shape)
    for r, roi in enumerate(rois):
        n = int(roi[0])
        for row, column, rows, columns in bins(mean_edges, x, roi, (group, group), scale):
            for k in range(y.shape[1]):
                c = (k * group + row) * group + column
                part = x[n, c, rows, columns]
                y[r, k, row, column] = part.mean()
                dx[n, c, rows, columns] += dy[r, k, row, column] / part.size
    return y, dx


def regions(rng: np.random.Generator, count: int, images: int, size: tuple[float, float]) -> np.ndarray:
    """Return random regions. Some have swapped corners, some are partly or completely outside the image of `size` (height, width)."""
    corners = rng.uniform(-0.3, 1.3, (count, 4)) * [size[1], size[0], size[1], size[0]]
    return np.column_stack([rng.integers(0, images, count), corners]).astype(np.float32)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize(
    "shape, counts, scale, count",
    [((2, 6, 17, 23), (3, 2), 0.25, 9), ((1, 3, 5, 4), (7, 7), 1.0, 4), ((1, 1, 263, 259), (4, 5), 0.5, 3), ((3, 9, 9, 8), (1, 1), 0.0625, 40)],
    ids=str,
)
def test_max(device: Any, kind: str, shape: tuple[int, ...], counts: tuple[int, int], scale: float, count: int) -> None:
    """Forward and backward, strided, adding to diffs; with planes above 65535 pixels, and with more regions than a pixel has bins."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    rois = regions(rng, count, shape[0], (shape[2] / scale, shape[3] / scale))
    dy = rng.standard_normal((count, shape[1], *counts)).astype(np.float32)
    text = f"type: 'ROIPooling' roi_pooling_param {{ pooled_h: {counts[0]} pooled_w: {counts[1]} spatial_scale: {scale} }}"
    y, dx = max_pool(x, rois, counts, scale, dy)
    result = run(device, kind, text, [x, rois], [dy], strided=True, held=2.0)
    assert (result.tops[0] == y).all()
    close(result.diffs[0], 2 + dx, 1e-5)
    assert (result.diffs[1] == 2).all(), "regions have no gradient"
    deploy = run(device, kind, text, [x, rois], train=False)
    assert (deploy.tops[0] == y).all() and not any("index" in ref.name for launch in deploy.rec.launches for ref in launch.writes)


@pytest.mark.parametrize("shape, group, scale, count", [((2, 18, 17, 23), 3, 0.25, 9), ((1, 4, 7, 6), 1, 1.0, 5), ((2, 49, 12, 9), 7, 0.0625, 20)], ids=str)
def test_mean(device: Any, kind: str, shape: tuple[int, ...], group: int, scale: float, count: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype(np.float32).astype(np.float64)
    rois = regions(rng, count, shape[0], (shape[2] / scale, shape[3] / scale))
    dims = shape[1] // group**2
    dy = rng.standard_normal((count, dims, group, group))
    text = f"type: 'PSROIPooling' psroi_pooling_param {{ spatial_scale: {scale} output_dim: {dims} group_size: {group} }}"
    y, dx = mean_pool(x, rois, group, scale, dy)
    result = run(device, kind, text, [x, rois], [dy], strided=True, held=-1.0)
    close(result.tops[0], y, 1e-5)
    close(result.diffs[0], -1 + dx, 1e-5)
    assert (result.diffs[1] == -1).all(), "regions have no gradient"
    aim = rng.standard_normal(shape)  # the mean is linear, so a difference of any size is the derivative
    rise = (mean_pool(x + aim, rois, group, scale, dy)[0] - mean_pool(x - aim, rois, group, scale, dy)[0]) / 2
    close(np.array([(dx * aim).sum()]), [(rise * dy).sum()], 1e-9)


@pytest.mark.parametrize("pool, edges", [(RoiPooling((7, 14), 0.0625), max_edges), (PsRoiPooling(7, 0.0625), mean_edges)], ids=["max", "mean"])
def test_edges(device: Any, pool: Any, edges: Edges) -> None:
    """The last bit of a quotient can move an edge by a pixel. So test all sizes up to 1600 pixels, also with positions that scale to halves."""
    size = (100, 120)
    sides = np.arange(0, 1600, 4, dtype=np.float32)
    rois = np.stack([0 * sides, sides % 100, sides % 72, sides % 100 + sides, sides % 72 + sides], 1)
    rec = Recorder(dataclasses.replace(device.target, kind="gpu"), train=True)
    source, x, table = Ref("rois", rois.shape, Role.ACTIVATION), Ref("x", (1, 1, *size), Role.ACTIVATION), rec.saved("bins", (len(rois), pool.row), "int32")
    pool.locate(rec, source, x, table)
    (found,) = execute(rec, device.context, {source: rois}, [table])
    counts = pool.bins if isinstance(pool, RoiPooling) else (pool.group, pool.group)
    for roi, row in zip(rois, found):
        rows = [min(max(edge, 0), size[0]) for pair in edges(roi[2], roi[4], pool.scale, counts[0]) for edge in pair]
        columns = [min(max(edge, 0), size[1]) for pair in edges(roi[1], roi[3], pool.scale, counts[1]) for edge in pair]
        assert row.tolist() == [0, *rows, *columns], roi


PARAMS = {
    "ROIPooling": "roi_pooling_param { pooled_h: 2 pooled_w: 2 }",
    "PSROIPooling": "psroi_pooling_param { spatial_scale: 1 output_dim: 1 group_size: 2 }",
}


@pytest.mark.parametrize("which", PARAMS)
def test_no_regions(device: Any, kind: str, which: str) -> None:
    """If a Proposal finds no region, the gradient is zero."""
    x, channels = np.ones((2, 4, 5, 5), np.float32), 4 if which == "ROIPooling" else 1
    result = run(device, kind, f"type: '{which}' {PARAMS[which]}", [x, np.zeros((0, 5))], [np.zeros((0, channels, 2, 2))])
    assert result.tops[0].shape == (0, channels, 2, 2)
    assert result.diffs[0] is not None and (result.diffs[0] == 0).all()


@pytest.mark.parametrize("which", PARAMS)
def test_image_that_is_not_there(device: Any, kind: str, which: str) -> None:
    rois = np.array([[2, 0, 0, 3, 3], [-1, 0, 0, 3, 3], [np.nan, 0, 0, 3, 3], [1, 0, 0, 3, 3]], np.float32)
    x = np.ones((2, 4, 5, 5), np.float32)
    channels = 4 if which == "ROIPooling" else 1
    result = run(device, kind, f"type: '{which}' {PARAMS[which]}", [x, rois], [np.ones((4, channels, 2, 2))], propagate=[True, False])
    assert np.isnan(result.tops[0][:3]).all() and (result.tops[0][3] == 1).all()
    assert result.diffs[0] is not None
    assert (result.diffs[0][0] == 0).all() and abs(result.diffs[0][1].sum() - 4 * channels) < 1e-6


def test_regions_change(device: Any) -> None:
    """The image size and the number of regions change between passes."""
    net = text_format.Parse(
        """force_backward: true
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 8 dim: 6 dim: 7 } } }
        layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 3 dim: 5 } } }
        layer { name: "max" type: "ROIPooling" bottom: "x" bottom: "rois" top: "max" roi_pooling_param { pooled_h: 2 pooled_w: 3 } }
        layer { name: "mean" type: "PSROIPooling" bottom: "x" bottom: "rois" top: "mean"
                psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 2 } }""",
        proto.NetParameter(),
    )
    rng = np.random.default_rng(2)
    built = Net(net, proto.TRAIN, device=device)
    try:
        for images, height, width, count in ((1, 6, 7, 3), (2, 9, 5, 4), (1, 6, 7, 2)):
            x = rng.standard_normal((images, 8, height, width)).astype(np.float32)
            rois = regions(rng, count, images, (height, width))
            built.blobs["x"].reshape(*x.shape)
            built.blobs["rois"].reshape(*rois.shape)
            out = built.forward(x=x, rois=rois)
            dys = [rng.standard_normal((count, *shape)).astype(np.float32) for shape in ((8, 2, 3), (2, 2, 2))]
            y, dx = max_pool(x, rois, (2, 3), 1, dys[0])
            mean, dx_mean = mean_pool(x, rois, 2, 1, dys[1])
            close(out["max"], y)
            close(out["mean"], mean)
            close(built.backward(max=dys[0], mean=dys[1])["x"], dx + dx_mean)
    finally:
        built.close()


@pytest.mark.parametrize(
    "text, shapes, fact",
    [
        ("type: 'ROIPooling' roi_pooling_param { pooled_h: 2 }", [(1, 2, 3, 4), (2, 5)], "pooled_w is missing"),
        ("type: 'ROIPooling' roi_pooling_param { pooled_h: 2 pooled_w: 2 }", [(2, 3, 4), (2, 5)], "bottom 0 is 2 x 3 x 4, it must be N x C x H x W"),
        ("type: 'ROIPooling' roi_pooling_param { pooled_h: 2 pooled_w: 2 }", [(1, 2, 3, 4), (2, 4)], "bottom 1 is 2 x 4, it must be R x 5"),
        ("type: 'ROIPooling' roi_pooling_param { pooled_h: 2 pooled_w: 2 }", [(1, 2, 3, 4), (5,)], "bottom 1 is 5, it must be R x 5"),
        ("type: 'PSROIPooling' psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 2 }", [(1, 9, 3, 4), (2, 5)], "has 9 channels, .* need 8"),
        ("type: 'PSROIPooling' psroi_pooling_param { spatial_scale: 1 output_dim: 0 group_size: 2 }", [(1, 9, 3, 4), (2, 5)], "output_dim is 0"),
        ("type: 'PSROIPooling' psroi_pooling_param { spatial_scale: 1 output_dim: 2 group_size: 2 }", [(1, 8, 3, 4), (2, 5, 2)], "bottom 1 is 2 x 5 x 2"),
    ],
)
def test_mistakes(text: str, shapes: list[tuple[int, ...]], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' {text}").infer(*shapes)
