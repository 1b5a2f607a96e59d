"""DetectionOutput with its sorting and suppression: Caffe's cases on the kernels of the other device class, then cases beyond Caffe's."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.detection.nms import rank, suppress
from ocaffe.layers.base import registry
from tests.harness import execute
from tests.layers.single import KINDS, close, layer_of, run

FORKS = pathlib.Path(__file__).parent.parent / "golden" / "forks"
CASES = sorted(path.stem for path in FORKS.glob("DetectionOutput.*.npz"))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def overlaps(box: np.ndarray, others: np.ndarray, pixel: float = 0) -> np.ndarray:
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]) + pixel
    both = np.prod(np.maximum(sides, 0), 1)
    size = [np.prod(boxes[:, 2:] - boxes[:, :2] + pixel, 1) for boxes in (box[None], others)]
    return both / (size[0] + size[1] - both)


def greedy(boxes: np.ndarray, order: list[int], threshold: float, eta: float = 1, pixel: float = 0, most: int | None = None) -> list[int]:
    kept: list[int] = []
    for i in order:
        if len(kept) != most and (overlaps(boxes[i], boxes[kept], pixel) <= threshold).all():
            kept.append(i)
            threshold *= eta if threshold > 0.5 else 1
    return kept


def ints(name: str, *shape: int) -> Ref:
    return Ref(name, shape, Role.ACTIVATION, np.dtype(np.int32))


@pytest.mark.parametrize("limited", [False, True])
def test_rank(device: Any, kind: str, limited: bool) -> None:
    """Ranking with equal scores, -0, NaN and infinity, with lists shorter and longer than the candidates, sorted and unsorted."""
    rng = np.random.default_rng(0)
    samples, count, segments, most = 2, 700, 3, 300
    scores = (rng.integers(-40, 40, (samples, count, segments)) / 7).astype(np.float32)
    scores[0, :4, 0] = np.nan, -0.0, 0, np.inf
    scores[1, 100:, 0] = -9
    limits = rng.integers(0, 400, (samples, segments)).astype(np.int32)
    rec = Recorder(dataclasses.replace(device.target, kind=kind), train=False)
    x, limit = Ref("scores", scores.shape, Role.ACTIVATION), ints("limits", samples, segments)
    found = [(ints("order", samples, segments, most), ints("counts", samples, segments)) for _ in range(2)]
    for (order, counts), sort in zip(found, (True, False)):
        rank(rec, x, order, counts, threshold=-4, skipped=2, limits=limit if limited else None, sort=sort)
    feeds = {x: scores, limit: limits} if limited else {x: scores}
    ordered, counts, unordered, same_counts = execute(rec, device.context, feeds, [ref for pair in found for ref in pair])
    for n, s in np.ndindex(samples, segments):
        best = [i for i in np.argsort(-scores[n, :, s], kind="stable") if scores[n, i, s] > -4]
        best = [] if s == 2 else best[: min(most, limits[n, s]) if limited else most]
        assert counts[n, s] == same_counts[n, s] == len(best)
        assert ordered[n, s, : len(best)].tolist() == best and unordered[n, s, : len(best)].tolist() == sorted(best)


@pytest.mark.parametrize("pixels, eta, most, smallest", [(False, 1, None, 0.5), (True, 0.97, 80, 0), (False, 0.5, 5, 0)])
def test_suppress(device: Any, kind: str, pixels: bool, eta: float, most: int | None, smallest: float) -> None:
    rng = np.random.default_rng(1)
    samples, count, segments = 2, 900, 2
    for shape in ((samples, count, 4), (samples, count, segments, 4), (1, count, 4)):
        corners = rng.uniform(0, 20, (*shape[:-1], 2))
        boxes = np.concatenate([corners, corners + rng.uniform(0, 4, corners.shape)], -1).astype(np.float32)
        order = np.stack([[rng.permutation(count) for _ in range(segments)] for _ in range(samples)]).astype(np.int32)
        counts = np.array([[count, 0], [300, 1]], np.int32)
        rec = Recorder(dataclasses.replace(device.target, kind=kind), train=False)
        refs = Ref("boxes", shape, Role.ACTIVATION), ints("order", *order.shape), ints("counts", *counts.shape)
        kept, numbers = ints("kept", samples, segments, most or count), ints("numbers", samples, segments)
        suppress(rec, *refs, kept, numbers, threshold=0.3 if eta == 1 else 0.7, eta=eta, most=most, smallest=smallest, pixels=pixels)
        result, found = execute(rec, device.context, dict(zip(refs, (boxes, order, counts))), [kept, numbers])
        for n, s in np.ndindex(samples, segments):
            own = boxes[n % len(boxes)] if len(shape) == 3 else boxes[n, :, s]
            listed = [i for i in order[n, s, : counts[n, s]] if np.prod(own[i, 2:] - own[i, :2]) >= smallest]
            wanted = greedy(own, listed, 0.3 if eta == 1 else 0.7, eta, pixels, most)
            assert found[n, s] == len(wanted) and result[n, s, : len(wanted)].tolist() == wanted


def test_golden(device: Any) -> None:
    for case in CASES:
        net, arrays = text_format.Parse((FORKS / f"{case}.prototxt").read_text(), proto.NetParameter()), dict(np.load(FORKS / f"{case}.npz"))
        (param,) = [layer for layer in net.layer if layer.type != "Input"]
        layer = registry()[param.type](param, net.state.phase)
        result = run(device, "gpu" if device.target.is_cpu else "cpu", layer, [arrays[f"in/{name}"] for name in param.bottom], strided=True, train=False)
        wanted = arrays[f"out/{param.top[0]}"]
        close(result.tops[0][:, :, : wanted.shape[2]], wanted)
        assert (result.tops[0][0, 0, wanted.shape[2] :, 1:] == -1).all(), "rows that are measured away"


def predictions(rng: np.random.Generator, images: int, priors: int, classes: int) -> list[np.ndarray]:
    """Return locations, distinct scores, and priors for CENTER_SIZE."""
    centres, sides = rng.uniform(0, 1, (priors, 2)), rng.uniform(0.05, 0.5, (priors, 2))
    boxes = np.concatenate([centres - sides / 2, centres + sides / 2], 1).reshape(-1)
    scores = rng.permutation(images * priors * classes).reshape(images, -1) / (images * priors * classes)
    inputs = [rng.standard_normal((images, 4 * priors)), scores, np.stack([boxes, np.tile([0.1, 0.1, 0.2, 0.2], priors)])[None]]
    return [array.astype(np.float32) for array in inputs]


def detected(inputs: list[np.ndarray], classes: int, threshold: float, overlap: float, top_k: int | None, keep: int | None) -> np.ndarray:
    loc, conf, priors = (array.astype(np.float64) for array in inputs)
    boxes, variance = priors[0].reshape(2, -1, 4)
    rows = []
    for n in range(len(loc)):
        own, scores = loc[n].reshape(-1, 4) * variance, conf[n].reshape(-1, classes)
        sides = boxes[:, 2:] - boxes[:, :2]
        centres, reach = (boxes[:, :2] + boxes[:, 2:]) / 2 + own[:, :2] * sides, np.exp(own[:, 2:]) * sides / 2
        decoded = np.concatenate([centres - reach, centres + reach], 1)
        found = []
        for c in range(1, classes):
            order = [i for i in np.argsort(-scores[:, c], kind="stable") if scores[i, c] > threshold][:top_k]
            found += [(c, i) for i in greedy(decoded, order, overlap)]
        best = sorted(found, key=lambda pair: -scores[pair[1], pair[0]])[:keep]
        rows += [[n, c, scores[i, c], *decoded[i]] for c, i in found if (c, i) in set(best)]
    return np.array(rows or [[n, *[-1] * 6] for n in range(len(loc))])[None, None]


@pytest.mark.parametrize("top_k, keep, threshold", [(None, None, 0.01), (400, 200, 0.5), (50, None, 0.9), (0, None, 0.5), (9, 0, 0.5)])
def test_many(device: Any, kind: str, top_k: int | None, keep: int | None, threshold: float) -> None:
    """Lists longer than a work-group, with and without top_k and keep_top_k, which may leave no box."""
    classes = 4
    inputs = predictions(np.random.default_rng(2), 2, 1500, classes)
    cuts = f"nms_param {{ nms_threshold: 0.45 {'' if top_k is None else f'top_k: {top_k}'} }} {'' if keep is None else f'keep_top_k: {keep}'}"
    param = f"num_classes: {classes} code_type: CENTER_SIZE confidence_threshold: {threshold} {cuts}"
    result = run(device, kind, f"type: 'DetectionOutput' detection_output_param {{ {param} }}", inputs, train=False)
    wanted = detected(inputs, classes, threshold, 0.45, top_k, keep)
    assert result.tops[0].shape[2] >= wanted.shape[2]
    close(result.tops[0][:, :, : wanted.shape[2]], wanted, 1e-5)
    assert (result.tops[0][0, 0, wanted.shape[2] :, 1:] == -1).all()


def test_images_for_pictures(device: Any, kind: str) -> None:
    """SSD's DetectionOutput takes the images as a fourth bottom, into which it draws with `visualize`. The rows are the same."""
    inputs = predictions(np.random.default_rng(4), 2, 30, 3)
    text = "type: 'DetectionOutput' detection_output_param { num_classes: 3 code_type: CENTER_SIZE confidence_threshold: 0.5 visualize: true }"
    plain = run(device, kind, text, inputs, train=False)
    drawn = run(device, kind, text, [*inputs, np.zeros((2, 3, 20, 20), np.float32)], train=False)
    assert np.array_equal(plain.tops[0], drawn.tops[0]) and (plain.tops[0][..., 2] > 0.5).any()


NET = """layer {{ name: "loc" type: "Input" top: "loc" input_param {{ shape {{ dim: {images} dim: {locations} }} }} }}
    layer {{ name: "conf" type: "Input" top: "conf" input_param {{ shape {{ dim: {images} dim: {scores} }} }} }}
    layer {{ name: "prior" type: "Input" top: "prior" input_param {{ shape {{ dim: 1 dim: 2 dim: {locations} }} }} }}
    layer {{ name: "out" type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "prior" top: "out" detection_output_param {{
        num_classes: 3 code_type: CENTER_SIZE confidence_threshold: 0.5 nms_param {{ nms_threshold: 0.45 top_k: 20 }} keep_top_k: 15 }} }}
    layer {{ name: "twice" type: "Power" bottom: "out" top: "twice" power_param {{ scale: 2 }} }}"""


def test_changes(device: Any) -> None:
    """The number of rows depends on the data: other scores, no detection, other numbers of images and priors. The next layer adapts."""
    net = Net(text_format.Parse(NET.format(images=2, locations=4 * 30, scores=3 * 30), proto.NetParameter()), proto.TEST, device=device)
    rng, sizes = np.random.default_rng(3), set()
    try:
        for images, priors, lower in ((2, 30, 0.0), (2, 30, 0.4), (2, 30, 1.0), (3, 50, 0.45), (1, 12, 0.0), (2, 30, 0.4)):
            inputs = predictions(rng, images, priors, 3)
            inputs[1] -= np.float32(lower)
            for name, array in zip(("loc", "conf", "prior"), inputs):
                net.blobs[name].reshape(*array.shape)
            out = net.forward(**dict(zip(("loc", "conf", "prior"), inputs)))["twice"]
            wanted = detected(inputs, 3, 0.5, 0.45, 20, 15)
            close(out, 2 * wanted, 1e-5)
            sizes.add(out.shape)
    finally:
        net.close()
    assert len(sizes) > 2


@pytest.mark.parametrize(
    "param, shapes, fact",
    [
        ("", [(2, 8), (2, 6), (1, 2, 8)], "num_classes is missing"),
        ("num_classes: 3", [(2, 8), (2, 6), (1, 8)], "bottom 2 is 1 x 8, it must be 1 x 2 x 4P"),
        ("num_classes: 3", [(2, 8), (3, 6), (1, 2, 8)], "bottom 0 is 2 x 8, bottom 1 is 3 x 6"),
        ("num_classes: 3", [(2, 12), (2, 6), (1, 2, 8)], "12 locations of an image, 2 priors need 2 x 4"),
        ("num_classes: 3 share_location: false", [(2, 8), (2, 6), (1, 2, 8)], "8 locations of an image, 2 priors need 2 x 12"),
        ("num_classes: 3", [(2, 8), (2, 8), (1, 2, 8)], "8 confidences of an image, 2 priors need 2 x 3"),
        ("num_classes: 3 nms_param { nms_threshold: -1 }", [(2, 8), (2, 6), (1, 2, 8)], "nms_threshold is -1"),
        ("num_classes: 3 nms_param { eta: 1.5 }", [(2, 8), (2, 6), (1, 2, 8)], "eta is 1.5"),
    ],
)
def test_mistakes(param: str, shapes: list[tuple[int, ...]], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' type: 'DetectionOutput' detection_output_param {{ {param} }}").infer(*shapes)


@pytest.mark.parametrize("shared", [0, 4, 8])
def test_regions(device: Any, kind: str, shared: int) -> None:
    """The detections of Faster R-CNN: boxes of each class, or shared ones (`shared` columns, of R-FCN 8). A row whose scores are NaN is padding."""
    rng, classes, count, (height, width) = np.random.default_rng(4), 4, 60, (90.0, 120.0)
    corners = rng.uniform(0, [width - 30, height - 30], (count, 2))
    rois = np.column_stack([np.zeros(count), corners, corners + rng.uniform(8, 40, (count, 2))])
    loc = rng.normal(0, 0.2, (count, shared or 4 * classes))
    conf = rng.uniform(0, 1, (count, classes))
    conf[-5:] = np.nan
    rois[-5:, 0] = -1
    text = f"""type: 'DetectionOutput' detection_output_param {{ num_classes: {classes} share_location: {str(bool(shared)).lower()}
        nms_param {{ nms_threshold: 0.3 }} keep_top_k: 20 confidence_threshold: 0.4 }}"""
    bottoms = [np.float32(array) for array in (loc, conf, rois, [[height, width, 2]])]
    expected = []
    for label in range(1, classes):
        deltas = loc[:, -4:] if shared else loc[:, 4 * label : 4 * label + 4]
        sides = rois[:, 3:] - rois[:, 1:3] + 1
        centre, reach = rois[:, 1:3] + sides / 2 + deltas[:, :2] * sides, np.exp(deltas[:, 2:]) * sides / 2
        found = np.clip(np.concatenate([centre - reach, centre + reach], 1), 0, [width - 1, height - 1] * 2)
        order = [i for i in np.argsort(-conf[:, label], kind="stable") if conf[i, label] > 0.4]
        expected += [(0, label, conf[i, label], *((found[i] + (0, 0, 1, 1)) / [width, height, width, height])) for i in greedy(found, order, 0.3, pixel=1)]
    best = sorted(expected, key=lambda row: -row[2])[:20]
    expected = [row for row in expected if row in best]
    (rows,) = run(device, kind, text, bottoms).tops
    assert len(expected) == 20
    close(rows[0, 0, :20], np.array(expected), 1e-5)


@pytest.mark.parametrize(
    "shapes, fact",
    [
        ([(9, 16), (9, 4), (9, 4), (1, 3)], "bottom 2 is 9 x 4, it must be R x 5"),
        ([(9, 12), (9, 4), (9, 5), (1, 3)], "bottom 0 is 9 x 12: 12 values of a region, with num_classes is 4 and share_location is false"),
        ([(9, 16), (8, 4), (9, 5), (1, 3)], "bottom 1 is 8 x 4, bottom 2 is 9 x 5: the numbers of regions differ"),
        ([(9, 16), (9, 4), (9, 5), (1, 2)], "bottom 3 is 1 x 2, it must be 1 x 3"),
    ],
)
def test_mistakes_of_regions(shapes: list[tuple[int, ...]], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of("name: 'd' type: 'DetectionOutput' detection_output_param { num_classes: 4 share_location: false }").infer(*shapes)
