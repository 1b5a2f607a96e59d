"""MultiBoxLoss: Caffe's cases on the kernels of the other device class, then further cases, compared with a simple numpy program."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.layers.base import registry
from tests.layers.single import KINDS, close, layer_of, run

FORKS = pathlib.Path(__file__).parent.parent / "golden" / "forks"
CASES = sorted(path.stem for path in FORKS.glob("MultiBoxLoss.*.npz"))
BOTH = [True, True, False, False]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_golden(device: Any) -> None:
    """Bottoms are strided, and gradients are added to existing diffs."""
    for case in CASES:
        net, arrays = text_format.Parse((FORKS / f"{case}.prototxt").read_text(), proto.NetParameter()), dict(np.load(FORKS / f"{case}.npz"))
        param = net.layer[-1]
        inputs = [arrays["in/loc_in"] + arrays["param/loc/0"], arrays["in/conf_in"] + arrays["param/conf/0"], arrays["in/prior"], arrays["in/gt"]]
        layer, other = registry()[param.type](param, net.state.phase), "gpu" if device.target.is_cpu else "cpu"
        result = run(device, other, layer, inputs, [arrays["top_diff/mbox_loss"]], propagate=BOTH, strided=True, held=2.0)
        close(result.tops[0], arrays["out/mbox_loss"])
        for diff, name in zip(result.diffs, ("loc", "conf")):
            assert diff is not None
            close(diff - 2, arrays.get(f"param_diff/{name}/0", np.zeros(diff.shape)), 2e-4)  # cases without true boxes store no gradient


def problem(rng: np.random.Generator, images: int, priors: int, classes: int, truths: int) -> list[np.ndarray]:
    """Return bottoms. True boxes are clustered, so that several match the same prior; every fourth image has no true box."""
    centres, sides = rng.uniform(0, 1, (priors, 2)), rng.uniform(0.1, 0.5, (priors, 2))
    boxes = np.concatenate([centres - sides / 2, centres + sides / 2], 1)
    truth = np.zeros((truths, 8))
    truth[:, 0] = rng.integers(0, images, truths)
    truth[truth[:, 0] % 4 == 3, 0] = -1
    truth[:, 1] = rng.integers(1, classes, truths)
    near = boxes[rng.integers(0, min(priors, 5), truths)]
    truth[:, 3:7] = near + rng.uniform(-0.03, 0.03, (truths, 4))
    variance = np.tile([0.1, 0.1, 0.2, 0.2], priors)
    loc, conf = (rng.standard_normal((images, each * priors)) for each in (4, classes))
    return [array.astype(np.float32) for array in (loc, conf, np.stack([boxes.reshape(-1), variance])[None], truth[None, None])]


def overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    sides = np.maximum(np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]), 0)
    both = sides[:, 0] * sides[:, 1]
    return both / (np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], 1) - both)


def matched(table: np.ndarray) -> np.ndarray:
    """Return the true box of each prior, or -1, for overlaps (true boxes x priors)."""
    match, rest = np.full(table.shape[1], -1), table.copy()
    for _ in range(len(table)):
        prior, g = divmod(int(rest.T.argmax()), len(rest))  # of equal overlaps the lowest prior, then the lowest true box
        if rest[g, prior] <= 1e-6:
            break
        match[prior] = g
        rest[g], rest[:, prior] = 0, 0
    return np.where((match < 0) & (table.max(0) >= 0.5), table.argmax(0), match)


def roles(inputs: list[np.ndarray], classes: int) -> list[tuple[int, int, np.ndarray | None]]:
    """Return (image, prior, true box or None for a mined negative) of all priors in the loss."""
    _, conf, priors, truth = inputs
    boxes, result = priors[0, 0].reshape(-1, 4), []
    for n in range(len(conf)):
        own = truth[0, 0][truth[0, 0, :, 0] == n]
        if not len(own):
            continue
        table = np.stack([overlaps(box, boxes) for box in own[:, 3:7]])
        match, scores = matched(table), conf[n].reshape(-1, classes).astype(np.float64)
        loss = np.log(np.exp(scores).sum(1)) - scores[:, 0]
        loss[(match >= 0) | (table.max(0) >= 0.5)] = -1
        worst = np.argsort(-loss, kind="stable")[: min(int((match >= 0).sum() * 3), int((loss >= 0).sum()))]
        result += [(n, p, own[g]) for p, g in enumerate(match) if g >= 0] + [(n, int(p), None) for p in worst]
    return result


def value(loc: np.ndarray, conf: np.ndarray, priors: np.ndarray, classes: int, counted: list[tuple[int, int, np.ndarray | None]]) -> float:
    """Return SSD's loss of the given priors."""
    boxes, variance = priors[0].astype(np.float64).reshape(2, -1, 4)
    loss, matches = 0.0, 0
    for n, p, own in counted:
        scores = conf[n].reshape(-1, classes)[p]
        loss += np.log(np.exp(scores).sum()) - scores[0 if own is None else int(own[1])]
        if own is None:
            continue
        box, sides, matches = own[3:7].astype(np.float64), boxes[p, 2:] - boxes[p, :2], matches + 1
        way = ((box[:2] + box[2:]) / 2 - (boxes[p, :2] + boxes[p, 2:]) / 2) / sides
        d = np.abs(loc[n].reshape(-1, 4)[p] - np.concatenate([way, np.log((box[2:] - box[:2]) / sides)]) / variance[p])
        loss += np.where(d < 1, d * d / 2, d - 0.5).sum()
    return loss / max(matches, 1)


@pytest.mark.parametrize("images, priors, classes, truths", [(5, 300, 4, 40), (1, 17, 2, 30), (2, 8732, 21, 12)])
def test_loss(device: Any, kind: str, images: int, priors: int, classes: int, truths: int) -> None:
    """Many true boxes for few priors, and many priors. Gradients are compared with central differences."""
    rng = np.random.default_rng(4)
    inputs = problem(rng, images, priors, classes, truths)
    text = f"type: 'MultiBoxLoss' multibox_loss_param {{ num_classes: {classes} code_type: CENTER_SIZE }}"
    result = run(device, kind, text, inputs, [np.array(3.0)], propagate=BOTH, strided=True)
    counted = roles(inputs, classes)
    assert any(own is None for *_, own in counted) and sum(own is not None for *_, own in counted) > 10
    loc, conf, prior = (array.astype(np.float64) for array in inputs[:3])
    close(result.tops[0], value(loc, conf, prior, classes, counted), 1e-5)
    assert {(n, p) for n, p, _ in counted} == set(map(tuple, np.argwhere(result.diffs[1].reshape(images, priors, classes).any(2))))  # type: ignore[union-attr]
    for _ in range(3):
        aims = [1e-5 * rng.standard_normal(array.shape) for array in (loc, conf)]
        ends = [value(loc + sign * aims[0], conf + sign * aims[1], prior, classes, counted) for sign in (1, -1)]
        slope = sum(float((diff * aim).sum()) for diff, aim in zip(result.diffs, aims) if diff is not None)
        assert abs(slope - 3 * (ends[0] - ends[1]) / 2) <= 1e-4 * max(abs(slope), 1e-5)


def test_without_true_boxes(device: Any, kind: str) -> None:
    inputs = problem(np.random.default_rng(5), 2, 20, 3, 0)
    result = run(device, kind, "type: 'MultiBoxLoss' multibox_loss_param { num_classes: 3 }", inputs, [np.array(1.0)], propagate=BOTH)
    assert result.tops[0] == 0 and not result.diffs[0].any() and not result.diffs[1].any()  # type: ignore[union-attr]


@pytest.mark.parametrize("label, param", [(0, ""), (3, ""), (-1, ""), (0, "map_object_to_agnostic: true")])
def test_label_of_no_object(device: Any, kind: str, label: int, param: str) -> None:
    classes = 2 if param else 3
    inputs = problem(np.random.default_rng(6), 2, 20, classes, 6)
    inputs[3][0, 0, :, 0] = [0, 0, 1, 1, 1, 0]
    inputs[3][0, 0, 4, 1] = label
    text = f"type: 'MultiBoxLoss' multibox_loss_param {{ num_classes: {classes} {param} }}"
    assert np.isnan(run(device, kind, text, inputs).tops[0])
    inputs[3][0, 0, 4, 0] = -1
    assert np.isfinite(run(device, kind, text, inputs).tops[0])


@pytest.mark.parametrize("param", ["", "conf_loss_type: LOGISTIC", "mining_type: NONE", "mining_type: HARD_EXAMPLE sample_size: 4"])
def test_nan_of_one_prior_is_not_hidden(device: Any, kind: str, param: str) -> None:
    """Whether or not the prior has a match, and though mining selects few of those without."""
    inputs = problem(np.random.default_rng(6), 1, 20, 3, 2)
    for prior in range(20):
        wrong = inputs[1].reshape(20, 3).copy()
        wrong[prior, 1] = np.nan
        text = f"type: 'MultiBoxLoss' multibox_loss_param {{ num_classes: 3 background_label_id: 0 neg_overlap: 1 {param} }}"
        assert np.isnan(run(device, kind, text, [inputs[0], wrong.reshape(1, -1), *inputs[2:]]).tops[0]), prior


def test_terms(device: Any, kind: str) -> None:
    """propagate_down: false also removes the term from the loss."""
    inputs = problem(np.random.default_rng(7), 2, 40, 3, 9)
    text = "type: 'MultiBoxLoss' {} multibox_loss_param {{ num_classes: 3 code_type: CENTER_SIZE loc_weight: 2 }}"
    whole = run(device, kind, text.format(""), inputs).tops[0]
    parts = [
        run(device, kind, text.format(" ".join(f"propagate_down: {'true' if wanted else 'false'}" for wanted in which)), inputs).tops[0]
        for which in ((True, False, False, False), (False, True, False, False))
    ]
    assert min(parts) > 0.1
    close(parts[0] + parts[1], whole, 1e-5)


def test_shapes_change(device: Any) -> None:
    """The numbers of true boxes, images and priors change between passes; the loss has a weight."""
    shapes = {"loc": "2 dim: 80", "conf": "2 dim: 60", "prior": "1 dim: 2 dim: 80", "gt": "1 dim: 1 dim: 3 dim: 8"}
    text = "".join(f"layer {{ name: '{name}' type: 'Input' top: '{name}' input_param {{ shape {{ dim: {shape} }} }} }}" for name, shape in shapes.items())
    bottoms = " ".join(f"bottom: '{name}'" for name in shapes)
    flags = "propagate_down: true propagate_down: true propagate_down: false propagate_down: false"
    param = "multibox_loss_param { num_classes: 3 code_type: CENTER_SIZE }"
    text += f"layer {{ name: 'l' type: 'MultiBoxLoss' {bottoms} top: 'loss' {flags} loss_weight: 0.5 {param} }} force_backward: true"
    net = Net(text_format.Parse(text, proto.NetParameter()), proto.TRAIN, device=device)
    rng = np.random.default_rng(8)
    try:
        for images, priors, truths in ((2, 20, 3), (2, 20, 30), (6, 20, 9), (3, 77, 1), (2, 20, 3)):
            inputs = problem(rng, images, priors, 3, truths)
            for name, array in zip(shapes, inputs):
                net.blobs[name].reshape(*array.shape)
            loss = net.forward(**dict(zip(shapes, inputs)))["loss"]
            counted = roles(inputs, 3)
            close(loss, value(*(array.astype(np.float64) for array in inputs[:3]), 3, counted), 1e-5)  # type: ignore[arg-type, misc, call-arg]
            diff = net.backward()["conf"]
            assert {(n, p) for n, p, _ in counted} == set(map(tuple, np.argwhere(diff.reshape(images, priors, 3).any(2))))
    finally:
        net.close()


SHAPES = [(2, 8), (2, 6), (1, 2, 8), (1, 1, 3, 8)]


@pytest.mark.parametrize(
    "param, shapes, fact",
    [
        ("multibox_loss_param { }", SHAPES, "num_classes is missing"),
        ("multibox_loss_param { num_classes: 4 }", SHAPES, "6 confidences of an image, 2 priors need 2 x 4"),
        ("multibox_loss_param { num_classes: 3 }", [*SHAPES[:3], (1, 1, 3, 7)], "bottom 3 is 1 x 1 x 3 x 7, it must be 1 x 1 x G x 8"),
        ("multibox_loss_param { num_classes: 3 do_neg_mining: false }", SHAPES, "do_neg_mining is false, and mining_type is MAX_NEGATIVE, the default"),
        ("multibox_loss_param { num_classes: 3 share_location: false }", [(2, 24), *SHAPES[1:]], "MAX_NEGATIVE, the default, but share_location is false"),
        ("multibox_loss_param { num_classes: 3 mining_type: HARD_EXAMPLE sample_size: 0 }", SHAPES, "sample_size is 0"),
        ("multibox_loss_param { num_classes: 3 map_object_to_agnostic: true }", SHAPES, "map_object_to_agnostic is true, and num_classes is 3"),
        ("multibox_loss_param { num_classes: 3 } loss_param { normalization: PRE_FIXED }", SHAPES, "PRE_FIXED"),
    ],
)
def test_mistakes(param: str, shapes: list[tuple[int, ...]], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' type: 'MultiBoxLoss' {param}").infer(*shapes)


@pytest.mark.parametrize("bottom, what", [(2, "priors"), (3, "true boxes")])
def test_no_gradient(device: Any, bottom: int, what: str) -> None:
    inputs = problem(np.random.default_rng(9), 2, 20, 3, 4)
    layer = layer_of("name: 'l' type: 'MultiBoxLoss' multibox_loss_param { num_classes: 3 }")
    with pytest.raises(Error, match=f"there is no gradient for {what}"):
        run(device, "cpu", layer, inputs, [np.array(1.0)], propagate=[True, True, bottom == 2, bottom == 3])
    assert [layer.force_backward(i) for i in range(4)] == BOTH
