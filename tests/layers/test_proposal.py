"""Proposal, AnchorTarget and ProposalTarget, compared with Faster R-CNN's algorithms in float64 numpy."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.ir.graph import Blob
from ocaffe.ir.launch import Measure
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.detection.regions.anchors import thin
from ocaffe.layers.anchors import base_anchors, settings
from tests.harness import execute
from tests.layers.single import KINDS, close, layer_of

# The anchors of every published Faster R-CNN model: base 16, ratios 0.5, 1 and 2, scales 8, 16 and 32.
PUBLISHED = [
    [-84, -40, 99, 55], [-176, -88, 191, 103], [-360, -184, 375, 199],
    [-56, -56, 71, 71], [-120, -120, 135, 135], [-248, -248, 263, 263],
    [-36, -80, 51, 95], [-80, -168, 95, 183], [-168, -344, 183, 359],
]  # fmt: skip
PYTHON = "type: 'Python' python_param {{ module: 'rpn.{0}_layer' layer: '{1}Layer' param_str: \"{2}\" }}"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def forward(device: Any, kind: str, text: str, bottoms: Sequence[np.ndarray], *, iteration: int = 0, phase: int = proto.TRAIN) -> list[np.ndarray]:
    """Return the tops of a layer, in the shapes that it measures."""
    layer = layer_of(text, phase)
    while True:
        rec = Recorder(dataclasses.replace(device.target, kind=kind), train=False, seed=5)
        blobs = [Blob(f"x{i}", np.shape(array), data=Ref(f"x{i}", np.shape(array), Role.ACTIVATION)) for i, array in enumerate(bottoms)]
        tops = [Blob(f"y{i}", shape, data=Ref(f"y{i}", shape, Role.ACTIVATION)) for i, shape in enumerate(layer.infer(*(b.shape for b in blobs)))]
        rec.enter("layer", "forward")
        layer.forward(rec, blobs, tops)
        measured = [launch.operands[0].ref for launch in rec.launches if isinstance(launch, Measure)]
        feeds = {blob.data: array for blob, array in zip(blobs, bottoms)} | {rec.step: np.array([0, iteration, 0, 0, 0, 0, 0, 0])}
        found = execute(rec, device.context, feeds, [top.data for top in tops] + measured)
        if not measured or layer.extent is not None:
            return found[: len(tops)]
        layer.extent = tuple(found[-1].reshape(-1).tolist())


def all_anchors(height: int, width: int, stride: int = 16, base: Any = PUBLISHED) -> np.ndarray:
    """Return all anchors as A x H x W x 4."""
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    return np.asarray(base, float)[:, None, None] + stride * np.stack([columns, rows, columns, rows], 2)


def overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the intersection over union of every row of a with every row of b. Corner pixels belong to the boxes."""
    a, b = a[:, None], b[None]
    shared = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]) + 1
    both = np.where((shared > 0).all(-1), shared.prod(-1), 0)
    return both / ((a[..., 2:] - a[..., :2] + 1).prod(-1) + (b[..., 2:] - b[..., :2] + 1).prod(-1) - both)


def encode(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the transform from the boxes a to the boxes b."""
    sides, wanted = a[..., 2:] - a[..., :2] + 1, b[..., 2:] - b[..., :2] + 1
    return np.concatenate([(b[..., :2] + wanted / 2 - a[..., :2] - sides / 2) / sides, np.log(wanted / sides)], -1)


def boxes(rng: np.random.Generator, count: int, height: float, width: float, smallest: float = 20) -> np.ndarray:
    """Return boxes inside the image, rounded to float32."""
    sides = rng.uniform(smallest, [width * 0.7, height * 0.7], (count, 2))
    corner = rng.uniform(0, 1, (count, 2)) * (np.array([width, height]) - sides)
    return np.concatenate([corner, corner + sides - 1], 1).astype(np.float32).astype(float)


# -- anchors and settings ----------------------------------------------------------------------------------------------


def test_published_anchors() -> None:
    assert base_anchors(16, [0.5, 1, 2], [8, 16, 32]).tolist() == PUBLISHED


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", {}),
        ("'feat_stride': 8", {"feat_stride": 8}),
        ("{'feat_stride': 8, 'scales': [4, 8.5]}", {"feat_stride": 8, "scales": [4, 8.5]}),
        ("'scales': !!python/tuple [2, 4]  # small\n'ratios': (1,)\nagnostic: True\n", {"scales": [2, 4], "ratios": [1], "agnostic": True}),
        ('{"RATIOS": [1], agnostic: true, "feat_stride": 1e1}', {"ratios": [1], "agnostic": True, "feat_stride": 10}),
    ],
)
def test_settings(text: str, expected: dict[str, Any]) -> None:
    defaults = {"feat_stride": 16, "ratios": [0.5], "scales": [8.0], "agnostic": False}
    layer = layer_of("name: 'l' type: 'AnchorTarget'")
    layer.param.python_param.param_str = text
    assert vars(settings(layer, defaults)) == defaults | expected


@pytest.mark.parametrize(
    "text, fact",
    [
        ("'feat_strides': 16", "'feat_strides', which is no setting of AnchorTarget"),
        ("'feat_stride'; 16", "param_str cannot be read at \"'feat_stride'; 16\""),
        ("'feat_stride': sixteen", "param_str cannot be read at"),
        (f"'feat_stride': {'-' * 9900}1", "param_str cannot be read at"),
        ("'feat_stride': [16]", r"'feat_stride': \[16\]"),
        ("'scales': 8", "'scales': 8"),
        ("'scales': []", r"scales has no numbers"),
        ("'ratios': [0, 1]", r"a number in ratios is 0"),
        ("'base_size': 0", "base_size is 0"),
        ("'batch_size': 0", "batch_size is 0"),
        ("'fg_fraction': 1.5", "fg_fraction is 1.5"),
        ("'positive_weight': 1", "positive_weight is 1"),
        ("'bbox_inside_weights': [1, 1]", r"bbox_inside_weights has 2 numbers: \[1, 1\]"),
    ],
)
def test_mistakes_in_settings(text: str, fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of("name: 'l' " + PYTHON.format("anchor_target", "AnchorTarget", text)).infer((1, 18, 4, 5), (3, 5), (1, 3), (1, 3, 64, 80))


@pytest.mark.parametrize(
    "text, shapes, fact",
    [
        ("type: 'AnchorTarget'", [(1, 18, 4), (3, 5), (1, 3)], "bottom 0 is 1 x 18 x 4, it must be 1 x C x H x W"),
        ("type: 'AnchorTarget'", [(2, 18, 4, 5), (3, 5), (1, 3)], "bottom 0 is 2 x 18 x 4 x 5: 2 images"),
        ("type: 'AnchorTarget'", [(1, 18, 4, 5), (3, 4), (1, 3)], "bottom 1 is 3 x 4, it must be G x 5"),
        ("type: 'AnchorTarget'", [(1, 18, 4, 5), (3, 5), (1, 2)], "bottom 2 is 1 x 2, it must be 1 x 3"),
        ("type: 'AnchorTarget'", [(1, 18, 1000, 2000), (3, 5), (1, 3)], "has 18,000,000 anchors"),
        (PYTHON.format("proposal_target", "ProposalTarget", ""), [(3, 5), (2, 5)], "num_classes is 0"),
        (PYTHON.format("proposal_target", "ProposalTarget", "'num_classes': 3"), [(3, 4), (2, 5)], "bottom 0 is 3 x 4, it must be R x 5"),
        (PYTHON.format("proposal_target", "ProposalTarget", "'num_classes': 3"), [(3, 5), (2, 4)], "bottom 1 is 2 x 4, it must be G x 5"),
        (PYTHON.format("proposal_target", "ProposalTarget", "'num_classes': 3, 'batch_size': 0"), [(3, 5), (2, 5)], "batch_size is 0"),
        (PYTHON.format("proposal_target", "ProposalTarget", "'num_classes': 3, 'fg_fraction': 2"), [(3, 5), (2, 5)], "fg_fraction is 2"),
        (PYTHON.format("proposal_target", "ProposalTarget", "'num_classes': 3, 'bbox_normalize_stds': [1]"), [(3, 5), (2, 5)], "stds has 1 numbers"),
    ],
)
def test_mistakes(text: str, shapes: list[tuple[int, ...]], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' {text}").infer(*shapes)


# -- AnchorTarget ------------------------------------------------------------------------------------------------------

IMAGE = (400.0, 560.0)  # rows and columns; one cell every 16 pixels
CELLS = (25, 35)


def anchor_labels(truth: np.ndarray, border: float = 0, positive: float = 0.7, negative: float = 0.3, clobber: bool = False) -> tuple[np.ndarray, ...]:
    """Return labels before sampling, targets (both A x H x W ..), and the anchors inside the image."""
    anchors = all_anchors(*CELLS)
    inside = (anchors[..., :2] >= -border).all(-1) & (anchors[..., 2] < IMAGE[1] + border) & (anchors[..., 3] < IMAGE[0] + border)
    found = overlaps(anchors[inside], truth[:, :4])
    labels = np.full(len(found), -1.0)
    largest = found.max(1)
    labels[largest < negative] = 0
    labels[(found == found.max(0)).any(1)] = 1
    labels[largest >= positive] = 1
    if clobber:
        labels[largest < negative] = 0
    all_labels, targets = np.full(inside.shape, -1.0), np.zeros((*inside.shape, 4))
    all_labels[inside] = labels
    targets[inside] = encode(anchors[inside], truth[found.argmax(1), :4])
    return all_labels, targets, inside


def truths(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.concatenate([np.round(boxes(rng, count, *IMAGE, smallest=100)), rng.integers(1, 5, (count, 1))], 1)


def anchor_target(device: Any, kind: str, truth: np.ndarray, text: str = "'feat_stride': 16", iteration: int = 0) -> list[np.ndarray]:
    bottoms = [np.zeros((1, 18, *CELLS)), truth, np.array([[*IMAGE, 1.5]]), np.zeros((1, 3, 400, 560))]
    return forward(device, kind, PYTHON.format("anchor_target", "AnchorTarget", text), bottoms, iteration=iteration)


def by_side(values: np.ndarray) -> np.ndarray:
    """Convert 1 x 4A x H x W to A x H x W x 4."""
    return np.moveaxis(values.reshape(-1, 4, *CELLS), 1, -1)


@pytest.mark.parametrize(
    "extra, keywords",
    [
        ("", {}),
        ("'allowed_border': 1000", {"border": 1000}),
        ("'positive_overlap': 0.5, 'negative_overlap': 0.45, 'clobber_positives': True", {"positive": 0.5, "negative": 0.45, "clobber": True}),
    ],
)
def test_anchor_targets(device: Any, kind: str, extra: str, keywords: dict[str, Any]) -> None:
    """The batch is large enough for every label, so no label is sampled."""
    truth = truths(np.random.default_rng(0), 7)
    expected, targets, inside = anchor_labels(truth, **keywords)
    labels, found, within, outside = anchor_target(device, kind, truth, f"'batch_size': 100000, {extra}")
    assert labels.shape == (1, 1, 9 * CELLS[0], CELLS[1]) and {0, 1} <= set(expected.reshape(-1)) and (inside.all() or not keywords.get("border"))
    assert (labels.reshape(expected.shape) == expected).all()
    close(by_side(found), targets, 1e-5)
    assert (by_side(within) == (expected == 1)[..., None]).all()
    close(by_side(outside), np.repeat((expected >= 0)[..., None] / (expected >= 0).sum(), 4, -1), 1e-6)


def test_weights_of_anchors(device: Any) -> None:
    truth = truths(np.random.default_rng(0), 7)
    expected, *_ = anchor_labels(truth)
    _, _, within, outside = anchor_target(device, "gpu", truth, "'batch_size': 100000, 'positive_weight': 0.25, 'bbox_inside_weights': [1, 2, 3, 4]")
    close(by_side(within), (expected == 1)[..., None] * np.array([1, 2, 3, 4]))
    weight = np.where(expected == 1, 0.25 / (expected == 1).sum(), np.where(expected == 0, 0.75 / (expected == 0).sum(), 0))
    close(by_side(outside), np.repeat(weight[..., None], 4, -1), 1e-6)


def test_draw_of_anchors(device: Any, kind: str) -> None:
    """256 labels are drawn, at most 5 of them positive. Each iteration draws others, with equal probability."""
    truth = truths(np.random.default_rng(3), 8)
    expected, *_ = anchor_labels(truth)
    positives, negatives = (expected == 1).reshape(-1), (expected == 0).reshape(-1)
    assert positives.sum() > 15 and negatives.sum() > 700
    drawn = []
    for iteration in (0, 0, 1, 2, 3):
        labels, _, within, outside = anchor_target(device, kind, truth, f"'fg_fraction': {5 / 256 + 1e-6}", iteration)
        labels = labels.reshape(-1)
        drawn.append(labels)
        assert (labels == 1).sum() == 5 and (labels == 0).sum() == 251
        assert positives[labels == 1].all() and negatives[labels == 0].all()
        assert within.sum() == 20
        close(np.unique(outside), [0, 1 / 256], 1e-6)
    assert (drawn[0] == drawn[1]).all() and (drawn[1] != drawn[2]).any()
    places = np.cumsum(negatives)[np.concatenate([np.flatnonzero(labels == 0) for labels in drawn[1:]])] / negatives.sum()
    assert abs(places.mean() - 0.5) < 5 / np.sqrt(12 * len(places)), "drawn evenly from front to back"
    assert abs(places.std() - 1 / np.sqrt(12)) < 0.02


@pytest.mark.parametrize("high", [1, 3, 1 << 32])
def test_thin(device: Any, kind: str, high: int) -> None:
    """Labels with the smallest tickets are kept, of equal tickets the first. Quotas are smaller, equal, larger and zero."""
    rng = np.random.default_rng(4)
    tickets, labels = rng.integers(0, high, 3000, dtype=np.uint32 if high < 1 << 32 else np.uint64).astype(np.uint32), rng.integers(-1, 2, 3000)
    for positives, most in ((100, 300), (0, 7), (int((labels == 1).sum()), 5000), (5000, 5000), (5000, 10)):
        rec = Recorder(dataclasses.replace(device.target, kind=kind), train=False)
        refs = Ref("tickets", (3000,), Role.ACTIVATION, np.dtype(np.uint32)), rec.scratch("counts", (2,), np.int32), Ref("labels", (3000,), Role.ACTIVATION)
        thin(rec, *refs, positives, most)
        counts, found = execute(rec, device.context, {refs[0]: tickets, refs[2]: labels}, [refs[1], refs[2]])
        expected = labels.copy()
        for which, quota in ((1, positives), (0, most)):
            places = np.flatnonzero(labels == which)
            kept = places[np.argsort(tickets[places], kind="stable")][: max(quota - (0 if which else (expected == 1).sum()), 0)]
            expected[np.setdiff1d(places, kept)] = -1
        assert (found == expected).all()
        assert counts.tolist() == [(expected == 1).sum(), (expected == 0).sum()]


def test_no_true_box(device: Any, kind: str) -> None:
    labels, targets, within, _ = anchor_target(device, kind, np.zeros((0, 5)))
    assert (labels == 0).sum() == 256 and (labels != 1).all() and not targets.any() and not within.any()


def test_padding_of_true_boxes(device: Any, kind: str) -> None:
    """Rows with a negative label have no effect."""
    truth = truths(np.random.default_rng(0), 7)
    padded = np.concatenate([truth[:3], np.full((2, 5), -1), truth[3:], np.full((4, 5), -1)])
    for text in ("'batch_size': 100000", "'feat_stride': 16"):
        for plain, other in zip(anchor_target(device, kind, truth, text), anchor_target(device, kind, padded, text)):
            assert (plain == other).all()
    labels, *_ = anchor_target(device, kind, np.full((2, 5), -1.0))
    assert (labels == 0).sum() == 256 and (labels != 1).all()


# -- ProposalTarget ----------------------------------------------------------------------------------------------------


def candidates(rng: np.random.Generator, regions: int, truth: np.ndarray) -> np.ndarray:
    """Return regions, half of them near true boxes."""
    near = truth[rng.integers(0, len(truth), regions // 2), :4] + rng.normal(0, 15, (regions // 2, 4))
    rois = np.concatenate([near, boxes(rng, regions - regions // 2, *IMAGE)])
    return np.column_stack([np.zeros(regions), rois]).astype(np.float32).astype(float)


def sample(rois: np.ndarray, truth: np.ndarray, classes: int, low: float = 0.1, agnostic: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the kind (1, 0, -1) of each candidate, and its row: roi, label, targets, inside weights, outside weights."""
    own = np.concatenate([rois, np.column_stack([np.zeros(len(truth)), truth[:, :4]])])
    found = overlaps(own[:, 1:], truth[:, :4])
    largest, match = found.max(1), truth[found.argmax(1)]
    kinds = np.where(largest >= 0.5, 1, np.where(largest >= low, 0, -1))
    targets, weights = np.zeros((len(own), classes, 4)), np.zeros((len(own), classes, 4))
    positive = np.flatnonzero(kinds == 1)
    place = np.ones(len(positive), int) if agnostic else match[positive, 4].astype(int)
    targets[positive, place] = encode(own[positive, 1:], match[positive, :4]) / [0.1, 0.1, 0.2, 0.2]
    weights[positive, place] = 1
    labels = np.where(kinds == 1, match[:, 4], 0)
    flat = [table.reshape(len(own), -1) for table in (targets, weights, weights)]
    return kinds, np.concatenate([own, labels[:, None], *flat], 1)


def proposal_target(device: Any, kind: str, rois: np.ndarray, truth: np.ndarray, text: str, iteration: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows in the format of `sample`."""
    tops = forward(device, kind, PYTHON.format("proposal_target", "ProposalTarget", text), [rois, truth], iteration=iteration)
    assert tops[1].shape == (len(tops[0]),)
    return np.concatenate([top.reshape(len(top), -1) for top in tops], 1)


def indices(rows: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return the index of each row's region in `of`, where it must be unique."""
    found = (rows[:, None, :5] == of[None, :, :5]).all(-1)
    assert (found.sum(1) == 1).all()
    return found.argmax(1)


@pytest.mark.parametrize("extra, keywords", [("", {}), ("'bg_thresh_lo': 0.0, 'agnostic': True", {"low": 0.0, "agnostic": True})])
def test_all_proposals(device: Any, kind: str, extra: str, keywords: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    truth = truths(rng, 6)
    rois = candidates(rng, 150, truth)
    kinds, expected = sample(rois, truth, 5, **keywords)
    assert (kinds == 1).sum() > 10 and (kinds == 0).sum() > 10 and (-1 in kinds) != bool(keywords)
    rows = proposal_target(device, kind, rois, truth, f"'num_classes': 5, 'batch_size': -1, {extra}")
    at = indices(rows, expected)
    assert sorted(at) == np.flatnonzero(kinds >= 0).tolist() and (np.diff(kinds[at]) <= 0).all(), "all, foreground first"
    close(rows, expected[at], 1e-5)


@pytest.mark.parametrize("batch, fraction, positives", [(40, 0.25, 10), (40, 1.0, 40), (4000, 0.25, 1000)])
def test_draw_of_proposals(device: Any, kind: str, batch: int, fraction: float, positives: int) -> None:
    rng = np.random.default_rng(6)
    truth = truths(rng, 6)
    rois = candidates(rng, 300, truth)
    truth[:, 4] = 2
    kinds, expected = sample(rois, truth, 3)
    chosen = []
    for iteration in (0, 0, 1, 2):
        rows = proposal_target(device, kind, rois, truth, f"'num_classes': 3, 'batch_size': {batch}, 'fg_fraction': {fraction}", iteration)
        at = indices(rows, expected)
        some = min(positives, (kinds == 1).sum())
        assert (kinds[at] == 1).sum() == some and (kinds[at] == 0).sum() == min(batch - some, (kinds == 0).sum()) and len(set(at)) == len(at)
        close(rows, expected[at], 1e-5)
        chosen.append(at)
    assert chosen[0].tolist() == chosen[1].tolist() != chosen[2].tolist()
    if batch < 100:
        places = np.concatenate([np.cumsum(kinds == kinds[i])[i : i + 1] / (kinds == kinds[i]).sum() for at in chosen[1:] for i in at])
        assert abs(places.mean() - 0.5) < 5 / np.sqrt(12 * len(places)), "drawn evenly from front to back"


def test_padding_of_proposals(device: Any, kind: str) -> None:
    """Rois of the image -1 and true boxes with a negative label are no candidates."""
    rng = np.random.default_rng(5)
    truth = truths(rng, 6)
    rois = candidates(rng, 150, truth)
    kinds, expected = sample(rois, truth, 5, low=0.0)
    rois = np.concatenate([rois, [[-1, 0, 0, 0, 0]] * 9])
    rows = proposal_target(device, kind, rois, np.concatenate([truth, np.full((2, 5), -1)]), "'num_classes': 5, 'batch_size': -1, 'bg_thresh_lo': 0.0")
    at = indices(rows, expected)
    assert sorted(at) == np.flatnonzero(kinds >= 0).tolist()
    close(rows, expected[at], 1e-5)


def test_number_of_proposals_changes(device: Any) -> None:
    """The next layer gets as many rows as there are proposals."""
    net = text_format.Parse(
        f"""layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 1 dim: 2 dim: 25 dim: 35 }} }} }}
        layer {{ name: "in" type: "Input" top: "rois" top: "truth" input_param {{ shape {{ dim: 30 dim: 5 }} shape {{ dim: 4 dim: 5 }} }} }}
        layer {{ name: "sample" bottom: "rois" bottom: "truth" top: "some" top: "labels" top: "targets" top: "inside" top: "outside"
                 {PYTHON.format("proposal_target", "ProposalTarget", "'num_classes': 5")} }}
        layer {{ name: "pool" type: "ROIPooling" bottom: "x" bottom: "some" top: "pool"
                 roi_pooling_param {{ pooled_h: 2 pooled_w: 2 spatial_scale: 0.0625 }} }}
        layer {{ name: "rest" type: "Silence" bottom: "labels" bottom: "targets" bottom: "inside" bottom: "outside" }}""",
        proto.NetParameter(),
    )
    rng = np.random.default_rng(7)
    built = Net(net, proto.TRAIN, device=device)
    try:
        x = np.full((1, 2, *CELLS), 3, np.float32)
        for _ in range(3):
            truth = truths(rng, 4)
            rois = candidates(rng, 30, truth)
            kinds, expected = sample(rois, truth, 5)
            out = built.forward(x=x, rois=rois.astype(np.float32), truth=truth.astype(np.float32))
            assert out["pool"].shape == ((kinds >= 0).sum(), 2, 2, 2) and (out["pool"] == 3).all()
            at = indices(built.blobs["some"].data, expected)
            assert (built.blobs["labels"].data == expected[at, 5]).all()
    finally:
        built.close()


# -- Proposal ----------------------------------------------------------------------------------------------------------


def propose(
    scores: np.ndarray,
    deltas: np.ndarray,
    scale: float,
    *,
    base: Any = PUBLISHED,
    smallest: float = 16,
    before: int = 6000,
    after: int = 300,
    threshold: float = 0.7,
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (0, x1, y1, x2, y2) and scores."""
    anchors = all_anchors(*CELLS, base=base)
    moves = by_side(deltas).astype(float)
    sides = anchors[..., 2:] - anchors[..., :2] + 1
    centre = anchors[..., :2] + sides / 2 + moves[..., :2] * sides
    reach = np.exp(moves[..., 2:]) * sides / 2
    limits = np.array([IMAGE[1] - 1, IMAGE[0] - 1] * 2)
    found = np.clip(np.concatenate([centre - reach, centre + reach], -1), 0, limits).reshape(-1, 4)
    values = scores[0, len(base) :].reshape(-1)
    large = (found[:, 2:] - found[:, :2] + 1 >= smallest * scale).all(1)
    order = [i for i in np.argsort(-values, kind="stable") if large[i]][:before]
    found, values = found[order], values[order]
    kept: list[int] = []
    alive = np.ones(len(found), bool)
    for i in range(len(found)):
        if alive[i]:
            kept.append(i)
            alive &= overlaps(found[i : i + 1], found)[0] <= threshold
        if len(kept) == after:
            break
    return np.column_stack([np.zeros(len(kept)), found[kept]]), values[kept]


def maps(rng: np.random.Generator, anchors: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct scores, and deltas."""
    scores = rng.permutation(2 * anchors * CELLS[0] * CELLS[1]).reshape(1, -1, *CELLS) / (2.0 * anchors * CELLS[0] * CELLS[1])
    return scores.astype(np.float32), rng.normal(0, 0.3, (1, 4 * anchors, *CELLS)).astype(np.float32)


@pytest.mark.parametrize(
    "text, phase, keywords",
    [
        ("type: 'Proposal'", proto.TRAIN, {}),
        ("type: 'Proposal' proposal_param { nms_thresh: 0.3 pre_nms_topn: 3000 post_nms_topn: 1000 }", proto.TEST, {"threshold": 0.3, "before": 3000}),
        ("type: 'Proposal' proposal_param { ratio: 1 scale: 2 scale: 5 min_size: 30 }", proto.TEST, {"base": base_anchors(16, [1], [2, 5]), "smallest": 30}),
        (PYTHON.format("proposal", "Proposal", "'feat_stride': 16"), proto.TEST, {}),
        (PYTHON.format("proposal", "Proposal", "'feat_stride': 16"), proto.TRAIN, {"before": 12000, "after": 2000}),
        (PYTHON.format("proposal", "Proposal", "{'nms_thresh': 1.0, 'post_nms_topn': 20}"), proto.TRAIN, {"threshold": 1.0, "before": 12000, "after": 20}),
    ],
)
def test_proposals(device: Any, kind: str, text: str, phase: int, keywords: dict[str, Any]) -> None:
    scores, deltas = maps(np.random.default_rng(8), len(keywords.get("base", PUBLISHED)))
    expected, values = propose(scores, deltas, 1.5, **keywords)
    rois, found = forward(device, kind, f"top: 'rois' top: 'scores' {text}", [scores, deltas, [[*IMAGE, 1.5]]], phase=phase)
    close(rois, expected, 1e-5)
    assert (found == values[:, None]).all()


@pytest.mark.parametrize("fill, count", [(np.nan, 0), (-np.inf, 0), (np.inf, 1)])
def test_proposals_of_odd_deltas(device: Any, kind: str, fill: float, count: int) -> None:
    """NaN deltas give no box, zero sides are too small, and infinite sides give the whole image."""
    scores, deltas = maps(np.random.default_rng(9))
    deltas[:, 2::4] = fill
    deltas[:, 3::4] = fill
    (rois,) = forward(device, kind, "type: 'Proposal'", [scores, deltas, [[*IMAGE, 1]]], phase=proto.TEST)
    assert rois.tolist() == [[0, 0, 0, IMAGE[1] - 1, IMAGE[0] - 1]] * count


@pytest.mark.parametrize(
    "text, shapes, fact",
    [
        ("type: 'Proposal'", [(1, 18, 4, 5), (1, 18, 4, 5), (1, 3)], "bottom 1 is 1 x 18 x 4 x 5, 9 anchors .* need 1 x 36 x 4 x 5"),
        ("type: 'Proposal' proposal_param { scale: 8 }", [(1, 18, 4, 5), (1, 36, 4, 5), (1, 3)], "bottom 0 is 1 x 18 x 4 x 5, 3 anchors .* need 1 x 6"),
        ("type: 'Proposal'", [(2, 18, 4, 5), (2, 36, 4, 5), (2, 3)], "bottom 0 is 2 x 18 x 4 x 5: 2 images"),
        ("type: 'Proposal'", [(1, 18, 4, 5), (1, 36, 4, 5), (1, 2)], "bottom 2 is 1 x 2"),
        ("type: 'Proposal' proposal_param { post_nms_topn: 0 }", [(1, 18, 4, 5), (1, 36, 4, 5), (1, 3)], "post_nms_topn is 0"),
        ("type: 'Proposal' proposal_param { ratio: -1 }", [(1, 18, 4, 5), (1, 36, 4, 5), (1, 3)], r"a number in ratios is -1"),
    ],
)
def test_mistakes_of_proposals(text: str, shapes: list[tuple[int, ...]], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' {text}").infer(*shapes)


def test_faster_rcnn(device: Any) -> None:
    """Train a small Faster R-CNN whose prototxt names the three Python layers of py-faster-rcnn."""
    conv = "type: 'Convolution' convolution_param { num_output: %d kernel_size: %d pad: %d weight_filler { type: 'gaussian' std: 0.1 } }"
    net = text_format.Parse(
        f"""layer {{ name: "in" type: "Input" top: "data" top: "im_info" top: "gt_boxes"
            input_param {{ shape {{ dim: 1 dim: 3 dim: 25 dim: 35 }} shape {{ dim: 1 dim: 3 }} shape {{ dim: 3 dim: 5 }} }} }}
        layer {{ name: "conv" bottom: "data" top: "conv" {conv % (8, 3, 1)} }}
        layer {{ name: "rpn_cls_score" bottom: "conv" top: "rpn_cls_score" {conv % (18, 1, 0)} }}
        layer {{ name: "rpn_bbox_pred" bottom: "conv" top: "rpn_bbox_pred" {conv % (36, 1, 0)} }}
        layer {{ name: "two" type: "Reshape" bottom: "rpn_cls_score" top: "two" reshape_param {{ shape {{ dim: 0 dim: 2 dim: -1 dim: 0 }} }} }}
        layer {{ name: "rpn-data" bottom: "rpn_cls_score" bottom: "gt_boxes" bottom: "im_info" bottom: "data"
                 top: "rpn_labels" top: "rpn_targets" top: "rpn_inside" top: "rpn_outside"
                 {PYTHON.format("anchor_target", "AnchorTarget", "'feat_stride': 16")} }}
        layer {{ name: "rpn_loss" type: "SoftmaxWithLoss" bottom: "two" bottom: "rpn_labels" top: "rpn_loss" propagate_down: true propagate_down: false
                 loss_param {{ ignore_label: -1 normalize: true }} }}
        layer {{ name: "prob" type: "Softmax" bottom: "two" top: "prob" }}
        layer {{ name: "prob_reshape" type: "Reshape" bottom: "prob" top: "prob_reshape" reshape_param {{ shape {{ dim: 0 dim: 18 dim: -1 dim: 0 }} }} }}
        layer {{ name: "proposal" bottom: "prob_reshape" bottom: "rpn_bbox_pred" bottom: "im_info" top: "rpn_rois"
                 {PYTHON.format("proposal", "Proposal", "'feat_stride': 16")} }}
        layer {{ name: "roi-data" bottom: "rpn_rois" bottom: "gt_boxes" top: "rois" top: "labels" top: "targets" top: "inside" top: "outside"
                 {PYTHON.format("proposal_target", "ProposalTarget", "'num_classes': 5")} }}
        layer {{ name: "pool" type: "ROIPooling" bottom: "conv" bottom: "rois" top: "pool"
                 roi_pooling_param {{ pooled_h: 3 pooled_w: 3 spatial_scale: 0.0625 }} }}
        layer {{ name: "cls" type: "InnerProduct" bottom: "pool" top: "cls" inner_product_param {{ num_output: 5 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "cls" bottom: "labels" top: "loss" propagate_down: true propagate_down: false }}
        layer {{ name: "rest" type: "Silence" bottom: "rpn_targets" bottom: "rpn_inside" bottom: "rpn_outside"
                 bottom: "targets" bottom: "inside" bottom: "outside" }}""",
        proto.NetParameter(),
    )
    rng = np.random.default_rng(10)
    built = Net(net, proto.TRAIN, device=device)
    try:
        for _ in range(2):
            truth = truths(rng, 3).astype(np.float32)
            built.forward(data=rng.normal(size=(1, 3, *CELLS)).astype(np.float32), im_info=np.array([[*IMAGE, 1]], np.float32), gt_boxes=truth)
            blobs = {name: blob.data.copy() for name, blob in built.blobs.items()}
            rois, _ = propose(blobs["prob_reshape"], blobs["rpn_bbox_pred"], 1, before=12000, after=2000)
            close(blobs["rpn_rois"][: len(rois)], rois, 1e-4)
            assert (blobs["rpn_rois"][len(rois) :, 0] == -1).all(), "padding, which ProposalTarget skips"
            labels = blobs["labels"].astype(int)
            assert len(blobs["rois"]) == len(blobs["pool"]) == len(labels) > 0 and labels.max() > 0
            shifted = blobs["cls"] - blobs["cls"].max(1, keepdims=True)
            prob = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
            close(blobs["loss"], -np.log(prob[np.arange(len(labels)), labels]).mean())
            built.clear_param_diffs()
            built.backward()
            prob[np.arange(len(labels)), labels] -= 1
            close(built.params["cls"][0].diff, prob.T @ blobs["pool"].reshape(len(labels), -1) / len(labels), 1e-3)
            assert np.isfinite(built.params["conv"][0].diff).all() and np.abs(built.params["conv"][0].diff).max() > 0
            assert not built.params["rpn_bbox_pred"][0].diff.any(), "no gradient comes through proposals"
    finally:
        built.close()
