"""ReLU, the activations, Dropout, Scale, Bias, Eltwise, BatchNorm, Silence: Caffe's cases, then further cases."""
from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role, Shape
from tests.harness import execute
from tests.layers.single import KINDS, Result, cases, close, layer_of, run, run_golden

ACTIVATIONS = ["ReLU", "Sigmoid", "TanH", "AbsVal", "BNLL", "Clip", "ELU", "Exp", "Log", "Power", "Swish", "Threshold"]
TYPES = [*ACTIVATIONS, "PReLU", "Dropout", "Scale", "Bias", "Eltwise", "Silence"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def draw(shape: Shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@pytest.fixture
def other(device: Any) -> str:
    """The other device class. tests/test_golden.py runs the cases on the device's own class."""
    return "gpu" if device.target.is_cpu else "cpu"


@pytest.mark.parametrize("layer_type", TYPES)
def test_golden(device: Any, other: str, layer_type: str) -> None:
    for case in cases(layer_type):
        run_golden(device, other, case)


def differentiate(function: Any, x: np.ndarray, dy: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Return the gradient of sum(dy * function(x)) for an elementwise function, by central differences in float64."""
    x = x.astype(np.float64)
    return dy * (function(x + step) - function(x - step)) / (2 * step)


FUNCTIONS = {
    "ReLU": ("", lambda x: np.maximum(x, 0)),
    "ReLU slope": ("relu_param { negative_slope: 0.1 }", lambda x: np.where(x > 0, x, 0.1 * x)),
    "ReLU negative slope": ("relu_param { negative_slope: -0.5 }", lambda x: np.where(x > 0, x, -0.5 * x)),
    "Sigmoid": ("", lambda x: 1 / (1 + np.exp(-x))),
    "TanH": ("", np.tanh),
    "AbsVal": ("", np.abs),
    "BNLL": ("", lambda x: np.log1p(np.exp(x))),
    "Clip": ("clip_param { min: -0.5 max: 1.25 }", lambda x: np.clip(x, -0.5, 1.25)),
    "ELU": ("elu_param { alpha: 0.7 }", lambda x: np.where(x > 0, x, 0.7 * np.expm1(x))),
    "ELU negative": ("elu_param { alpha: -0.7 }", lambda x: np.where(x > 0, x, -0.7 * np.expm1(x))),
    "Gelu": ("", lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))),
    "Gelu tanh": ("gelu_param { approximate: true }", lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "Swish": ("swish_param { beta: 1.5 }", lambda x: x / (1 + np.exp(-1.5 * x))),
    "Exp": ("exp_param { base: 2 scale: 0.5 shift: 1 }", lambda x: 2 ** (1 + 0.5 * x)),
    "Log": ("log_param { base: 2 scale: 0.5 shift: 5 }", lambda x: np.log2(5 + 0.5 * x)),
    "Power": ("power_param { power: 3 scale: 0.5 shift: 1 }", lambda x: (1 + 0.5 * x) ** 3),
    "Power 1": ("power_param { power: 1 scale: 0.5 shift: 1 }", lambda x: 1 + 0.5 * x),
    "ReLU6": ("", lambda x: np.clip(x, 0, 6)),
    "ReLU6 slope": ("relu6_param { negative_slope: 0.1 }", lambda x: np.minimum(np.where(x > 0, x, 0.1 * x), 6)),
    "ReLU6 negative slope": ("relu6_param { negative_slope: -0.3 }", lambda x: np.minimum(np.where(x > 0, x, -0.3 * x), 6)),
    "HardSwish": ("", lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "HardSigmoid": ("hard_sigmoid_param { alpha: 0.3 beta: 0.4 }", lambda x: np.clip(0.3 * x + 0.4, 0, 1)),
    "Mish": ("", lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "Power 2": ("power_param { power: 2 scale: 0.5 shift: 1 }", lambda x: (1 + 0.5 * x) ** 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(device: Any, kind: str, name: str) -> None:
    """Strided views, a diff that is added to, and sizes that are not multiples of a vector."""
    text, function = FUNCTIONS[name]
    for shape in [(3, 5, 7), (2, 37)]:
        x, dy = draw(shape, 1), draw(shape, 2)
        if name.split()[0] in ("ReLU6", "HardSwish", "HardSigmoid"):
            x = 4 * x  # so that x reaches all linear pieces of the function
        result = run(device, kind, f"type: '{name.split()[0]}' {text}", [x], [dy], strided=True, held=3.0)
        close(result.tops[0], function(x.astype(np.float64)), 1e-5)
        close(result.diffs[0], 3 + differentiate(function, x, dy))


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"Clip"}))  # Caffe's Clip makes `min` of NaN
def test_activations_keep_nan(device: Any, kind: str, name: str) -> None:
    x = np.array([[1, np.nan, 2]], np.float32)
    assert np.isnan(run(device, kind, f"type: '{name.split()[0]}' {FUNCTIONS[name][0]}", [x]).tops[0]).tolist() == [[False, True, False]]


def test_activations_where_a_plain_formula_overflows(device: Any, kind: str) -> None:
    x = np.array([[-1e30, -100, -20, 19, 20, 21, 45, 1000, 1e30]], np.float32)
    mish = run(device, kind, "type: 'Mish'", [x], [np.ones_like(x)])
    assert (mish.tops[0][0, 4:] == x[0, 4:]).all() and (np.abs(mish.tops[0][0, :2]) < 1e-37).all()
    close(mish.tops[0][:, 2], [-20 * np.exp(-20)], 1e-5)
    close(mish.diffs[0], [[0, 0, -19 * np.exp(-20.0), 1, 1, 1, 1, 1, 1]], 1e-6)


@pytest.mark.parametrize("shape", [(4, 6), (3, 5, 6, 7), (2, 3, 40)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_prelu(device: Any, kind: str, shape: Shape, shared: bool) -> None:
    """Slopes of both signs, strided views, and a diff that is added to."""
    x, dy = draw(shape, 1), draw(shape, 2)
    slope = np.float32(-0.7) if shared else draw((shape[1],), 3)
    text = f"type: 'PReLU' prelu_param {{ channel_shared: {str(shared).lower()} }}"
    result = run(device, kind, text, [x], [dy], params=[slope], strided=True, held=2.0)
    wide = spread(np.asarray(slope), 1, shape) if not shared else np.float64(slope)
    close(result.tops[0], np.where(x > 0, x, wide * x), 1e-6)
    close(result.diffs[0], 2 + dy * np.where(x > 0, 1, wide), 1e-6)
    others = tuple(d for d in range(len(shape)) if shared or d != 1)
    close(result.param_diffs[0], np.where(x > 0, 0, dy.astype(np.float64) * x).sum(others), 1e-5)


def test_prelu_that_does_not_learn(device: Any) -> None:
    rec, layer, bottoms, tops = recorded("type: 'PReLU' prelu_param { filler { type: 'xavier' } }", [(4, 3, 2)], device.target)
    assert layer.parameters()[0].filler.type == "xavier"
    rec.enter("layer", "backward")
    layer.params[0].diff = None
    layer.backward(rec, tops, bottoms, [True])
    assert [[ref.name for ref in launch.writes] for launch in rec.launches] == [["x0.diff"]]


@pytest.mark.parametrize("factor", [(3, 5), (3, 5, 1, 1)], ids=str)
def test_axpy(device: Any, kind: str, factor: Shape) -> None:
    a, x, b, dy = draw(factor, 1), draw((3, 5, 6, 7), 2), draw((3, 5, 6, 7), 3), draw((3, 5, 6, 7), 4)
    wide = a.reshape(3, 5, 1, 1).astype(np.float64)
    result = run(device, kind, "type: 'Axpy'", [a, x, b], [dy], strided=True, held=1.0)
    close(result.tops[0], wide * x + b, 1e-6)
    close(result.diffs[0], 1 + (dy.astype(np.float64) * x).sum((2, 3)).reshape(factor), 1e-5)
    close(result.diffs[1], 1 + wide * dy, 1e-6)
    close(result.diffs[2], 1 + dy, 1e-6)
    only = run(device, kind, "type: 'Axpy'", [a, x, b], [dy], propagate=[False, True, False])
    assert only.diffs[0] is None and only.diffs[2] is None
    close(only.diffs[1], wide * dy, 1e-6)


@pytest.mark.parametrize("slope, kept", [(0.0, "y0"), (0.1, "y0"), (-0.1, "x0")])
def test_relu_keeps_one_of_its_blobs(slope: float, kept: str) -> None:
    rec, layer, bottoms, tops = recorded(f"type: 'ReLU' relu_param {{ negative_slope: {slope} }}", [(3, 4)], Target())
    layer.forward(rec, bottoms, tops)
    assert rec.launches[0].lower.means.slope == pytest.approx(slope)  # type: ignore[union-attr]
    rec.enter("layer", "backward")
    layer.backward(rec, tops, bottoms, [True])
    assert {ref.name for ref in rec.launches[1].reads} == {"y0.diff", kept}


def recorded(text: str, shapes: list[Shape], target: Any, phase: int | None = None, train: bool = True) -> tuple[Recorder, Any, list[Blob], list[Blob]]:
    """Return a layer after infer, Refs for all its blobs, and a recorder that has entered its forward."""
    layer = layer_of(text, phase)
    rec = Recorder(target, train=train)
    rec.enter("layer", "forward")
    blobs: list[list[Blob]] = []
    for letter, group in (("x", shapes), ("y", list(layer.infer(*shapes)))):
        names = [(f"{letter}{i}", shape) for i, shape in enumerate(group)]
        blobs.append([Blob(name, shape, data=Ref(name, shape, Role.ACTIVATION), diff=Ref(f"{name}.diff", shape, Role.DIFF)) for name, shape in names])
    layer.params = [Parameter("layer", i, p.shape, p.filler) for i, p in enumerate(layer.parameters())]
    for p in layer.params:
        p.data, p.diff = Ref(f"p{p.index}", p.shape, Role.PARAMETER), Ref(f"p{p.index}.diff", p.shape, Role.GRADIENT)
    return rec, layer, *blobs


@pytest.mark.parametrize(
    "text, fact",
    [
        ("type: 'Clip' clip_param { min: 0 }", "clip_param has no max"),
        ("type: 'Exp' exp_param { base: -2 }", "base is -2"),
        ("type: 'Log' log_param { base: 1 }", "there is no logarithm of base 1"),
        ("type: 'Dropout' dropout_param { dropout_ratio: 1 }", "dropout_ratio 1 is outside"),
        ("type: 'Dropout' dropout_param { dropout_ratio: -0.1 }", "dropout_ratio -0.1 is outside"),
        ("type: 'SpatialDropout' spatial_dropout_param { dropout_ratio: 1 }", "dropout_ratio 1 is outside"),
        ("type: 'Scale' scale_param { axis: 2 }", "axis 2 is outside"),
        ("type: 'Scale' scale_param { axis: 1 num_axes: 2 }", "axis 1 and num_axes 2 go beyond the 2 axes"),
        ("type: 'Bias' bias_param { num_axes: -2 }", "num_axes is -2"),
    ],
)
def test_mistakes(text: str, fact: str) -> None:
    layer = layer_of(f"name: 'l' {text}")
    with pytest.raises(Error, match=fact):
        layer.infer((4, 3))


@pytest.mark.parametrize(
    "text, shapes, fact",
    [
        ("type: 'PReLU'", [(4,)], "bottom 0 is 4, it must be N x C x .."),
        ("type: 'Axpy'", [(4, 3), (4, 3, 5), (4, 3, 6)], "bottom 2 is 4 x 3 x 6, bottom 1 is 4 x 3 x 5"),
        ("type: 'Axpy'", [(4, 2), (4, 3, 5), (4, 3, 5)], "bottom 0 is 4 x 2, for bottom 1 of 4 x 3 x 5 it must be 4 x 3"),
        ("type: 'SpatialDropout'", [(4,)], "bottom 0 is 4, it must be N x C x .."),
        ("type: 'Eltwise'", [(4, 3), (4, 2)], "bottom 1 is 4 x 2, bottom 0 is 4 x 3"),
        ("type: 'Eltwise' eltwise_param { operation: PROD coeff: 1 coeff: 2 }", [(4, 3), (4, 3)], "with operation: PROD, and weights a sum only"),
        ("type: 'Eltwise' eltwise_param { coeff: 1 }", [(4, 3), (4, 3)], "1 coeff for 2 bottoms"),
        ("type: 'Scale'", [(4, 3, 2), (2,)], "the second bottom is 2, the first 4 x 3 x 2 has 3 from axis 1 on"),
        ("type: 'Bias' bias_param { axis: 1 }", [(4, 3), (3, 2)], "the second bottom is 3 x 2"),
        ("type: 'BatchNorm'", [()], "bottom 0 is a scalar"),
    ],
)
def test_mistakes_of_shape(text: str, shapes: list[Shape], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' {text}").infer(*shapes)


# -- Dropout -------------------------------------------------------------------------------------------------------------------------------


def masks(device: Any, kind: str, text: str, x: np.ndarray, dy: np.ndarray, step: dict[str, int] | None = None) -> list[np.ndarray]:
    """Return top and bottom diff of a Dropout in TRAIN for the given step buffer."""
    rec, layer, bottoms, tops = recorded(text, [x.shape], dataclasses.replace(device.target, kind=kind))
    layer.forward(rec, bottoms, tops)
    rec.enter("layer", "backward")
    layer.backward(rec, tops, bottoms, [True])
    assert not any(ref.role is Role.SAVED for launch in rec.launches for ref in launch.writes)
    assert bottoms[0].diff is not None and tops[0].diff is not None
    words = np.zeros(8, np.uint32)
    for name, value in (step or {}).items():
        words[STEP[name]] = value
    return execute(rec, device.context, {bottoms[0].data: x, tops[0].diff: dy, rec.step: words}, [tops[0].data, bottoms[0].diff])


def test_dropout_train(device: Any, kind: str) -> None:
    x, dy = np.ones((20, 3, 701), np.float32), 2 * np.ones((20, 3, 701), np.float32)
    text = "type: 'Dropout' dropout_param { dropout_ratio: 0.3 }"
    y, dx = masks(device, kind, text, x, dy)
    kept = y != 0
    assert abs(kept.mean() - 0.7) < 0.01
    close(y, kept / 0.7, 1e-6)
    assert (dx == 2 * y).all(), "backward draws the mask of forward"
    later, _ = masks(device, kind, text, x, dy, {"ITERATION": 1})
    assert 0.5 < ((later != 0) == kept).mean() < 0.65, "another iteration has another mask"
    again, _ = masks(device, kind, text, x, dy)
    assert (again == y).all()


def test_dropout_of_a_split_batch(device: Any, kind: str) -> None:
    """Samples 10 to 19 of a batch have the same mask when they are computed as a microbatch."""
    x = np.ones((20, 333), np.float32)
    text = "type: 'Dropout'"
    whole, _ = masks(device, kind, text, x, x)
    half, _ = masks(device, kind, text, x[10:], x[10:], {"SAMPLE": 10})
    assert (half == whole[10:]).all()


def test_dropout_without_scale(device: Any, kind: str) -> None:
    text = "type: 'Dropout' dropout_param { dropout_ratio: 0.25 scale_train: false }"
    x = draw((4, 100))
    y, dx = masks(device, kind, text, x, x)
    assert ((y == x) | (y == 0)).all() and 0.15 < (y == 0).mean() < 0.35 and (y == dx).all()
    result = run(device, kind, layer_of(text, proto.TEST), [x], [x])
    close(result.tops[0], 0.75 * x, 1e-6)
    close(result.diffs[0], 0.75 * x, 1e-6)


def test_dropout_in_test_moves_nothing(device: Any, kind: str) -> None:
    x, dy = draw((4, 5)), draw((4, 5), 1)
    result = run(device, kind, layer_of("type: 'Dropout'", proto.TEST), [x], [dy])
    assert not result.layer.moves_data and not result.rec.launches
    assert (result.tops[0] == x).all() and result.diffs[0] is not None and (result.diffs[0] == dy).all()


def test_dropout_that_samples_in_test(device: Any, kind: str) -> None:
    """With SegNet's sample_weights_test, TEST drops and scales like TRAIN."""
    x = np.ones((20, 500), np.float32)
    text = "type: 'Dropout' dropout_param { dropout_ratio: 0.3 sample_weights_test: %s }"
    y = run(device, kind, layer_of(text % "true", proto.TEST), [x]).tops[0]
    assert abs((y != 0).mean() - 0.7) < 0.02
    close(y, (y != 0) / 0.7, 1e-6)
    assert not layer_moves(text % "false")


def layer_moves(text: str) -> bool:
    layer = layer_of(text, proto.TEST)
    layer.infer((2, 3))
    return layer.moves_data


def test_spatial_dropout(device: Any, kind: str) -> None:
    """Whole channels are dropped: the same in backward, others in another iteration, none in TEST."""
    x, dy = np.ones((50, 40, 3, 5), np.float32), 2 * np.ones((50, 40, 3, 5), np.float32)
    text = "type: 'SpatialDropout' spatial_dropout_param { dropout_ratio: 0.3 }"
    y, dx = masks(device, kind, text, x, dy)
    kept = y[:, :, 0, 0] != 0
    assert abs(kept.mean() - 0.7) < 0.04
    close(y, np.broadcast_to(kept[:, :, None, None], y.shape) / 0.7, 1e-6)
    assert (dx == 2 * y).all()
    later, _ = masks(device, kind, text, x, dy, {"ITERATION": 1})
    assert 0.5 < ((later[:, :, 0, 0] != 0) == kept).mean() < 0.66
    assert not layer_moves(text)


# -- Scale, Bias ---------------------------------------------------------------------------------------------------------------------------


def spread(values: np.ndarray, axis: int, shape: Shape) -> np.ndarray:
    return values.astype(np.float64).reshape((1,) * axis + values.shape + (1,) * (len(shape) - axis - values.ndim))


@pytest.mark.parametrize(
    "shape, axis, own",
    [((40, 30, 6, 7), 1, (30,)), ((5, 3, 4, 2), 1, (3, 4)), ((5, 3, 4), 0, ()), ((300, 50), 1, (50,)), ((4, 3, 5), 0, (4, 3, 5))],
    ids=str,
)
def test_scale_and_bias(device: Any, kind: str, shape: Shape, axis: int, own: Shape) -> None:
    """Both forms of the layers, strided views, and diffs that are added to."""
    x, s, b, dy = draw(shape, 1), draw(own, 2), draw(own, 3), draw(shape, 4)
    others = tuple(d for d in range(len(shape)) if not axis <= d < axis + len(own))
    wide, factor = x.astype(np.float64), spread(s, axis, shape)
    sums = {"scale": (dy * wide).sum(others), "bias": dy.astype(np.float64).sum(others)}
    where = f"axis: {axis} num_axes: {len(own)}"
    one = run(device, kind, f"type: 'Scale' scale_param {{ {where} bias_term: true }}", [x], [dy], params=[s, b], strided=True, held=2.0)
    close(one.tops[0], wide * factor + spread(b, axis, shape), 1e-6)
    close(one.diffs[0], 2 + dy * factor, 1e-6)
    close(one.param_diffs[0], sums["scale"], 1e-5)
    close(one.param_diffs[1], sums["bias"], 1e-5)
    two = run(device, kind, f"type: 'Scale' scale_param {{ axis: {axis} }}", [x, s], [dy], strided=True, held=2.0)
    close(two.tops[0], wide * factor, 1e-6)
    close(two.diffs[0], 2 + dy * factor, 1e-6)
    close(two.diffs[1], 2 + sums["scale"], 1e-5)
    bias = run(device, kind, f"type: 'Bias' bias_param {{ {where} }}", [x], [dy], params=[b], strided=True)
    close(bias.tops[0], wide + spread(b, axis, shape), 1e-6)
    close(bias.diffs[0], dy, 1e-6)
    close(bias.param_diffs[0], sums["bias"], 1e-5)
    lone = run(device, kind, f"type: 'Bias' bias_param {{ axis: {axis} }}", [x, b], [dy], propagate=[False, True], held=2.0)
    close(lone.diffs[1], 2 + sums["bias"], 1e-5)


def test_fillers() -> None:
    layer = layer_of("type: 'Scale' scale_param { bias_term: true }")
    layer.infer((2, 3))
    assert [(p.shape, p.filler.type, p.filler.value) for p in layer.parameters()] == [((3,), "constant", 1), ((3,), "constant", 0)]
    layer = layer_of("type: 'Scale' scale_param { filler { type: 'msra' } }")
    layer.infer((2, 3))
    assert layer.parameters()[0].filler.type == "msra"
    layer = layer_of("type: 'Scale' scale_param { bias_term: true }")
    layer.infer((2, 3), (3,))
    assert len(layer.parameters()) == 1
    layer = layer_of("type: 'BatchNorm'")
    layer.infer((2, 3, 4))
    assert [(p.shape, p.filler.type, p.filler.value) for p in layer.parameters()] == [((3,), "constant", 0), ((3,), "constant", 0), ((1,), "constant", 0)]


def test_frozen_scale_costs_nothing(device: Any) -> None:
    """Backward has no launches for parameters without a diff and bottoms without propagation."""
    rec, layer, bottoms, tops = recorded("type: 'Scale' scale_param { bias_term: true }", [(4, 3, 2)], device.target)
    rec.enter("layer", "backward")
    layer.params[0].diff = None
    layer.backward(rec, tops, bottoms, [False])
    assert [[ref.name for ref in launch.writes] for launch in rec.launches] == [["p1.diff"]]
    assert [ref.name for ref in rec.launches[0].reads] == ["y0.diff"], "the bias gradient needs no bottom"


# -- Eltwise -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 5])
def test_eltwise(device: Any, kind: str, count: int) -> None:
    shape = (3, 5, 7)
    bottoms, dy = [draw(shape, i) + (i == 1) for i in range(count)], draw(shape, 9)
    wide = [b.astype(np.float64) for b in bottoms]
    propagate = [i != 1 for i in range(count)]
    product = np.prod(wide, axis=0)
    largest = np.argmax(wide, axis=0)
    coeff = [1.0, -0.5, 2.0, 1.0, 0.25][:count]
    texts = {
        "operation: SUM": (sum(wide), [dy] * count),
        f"operation: SUM {' '.join(f'coeff: {c}' for c in coeff)}": (sum(c * b for c, b in zip(coeff, wide)), [c * dy for c in coeff]),
        "operation: PROD": (product, [dy * product / b for b in wide]),
        "operation: PROD stable_prod_grad: false": (product, [dy * product / b for b in wide]),
        "operation: MAX": (np.max(wide, axis=0), [np.where(largest == i, dy, 0) for i in range(count)]),
    }
    for text, (top, diffs) in texts.items():
        result = run(device, kind, f"type: 'Eltwise' eltwise_param {{ {text} }}", bottoms, [dy], propagate=propagate, strided=True, held=1.0)
        close(result.tops[0], top, 1e-5)
        for mine, theirs, wanted in zip(result.diffs, diffs, propagate):
            if wanted:
                close(mine, 1 + theirs, 1e-5)


@pytest.mark.parametrize(
    "text, kept",
    [
        ("operation: SUM", set()),
        ("operation: PROD", {"x0", "x1", "x2"}),
        ("operation: PROD stable_prod_grad: false", {"x0", "x1", "x2", "y0"}),
        ("operation: MAX", {"layer.index"}),
    ],
)
def test_what_eltwise_keeps(text: str, kept: set[str]) -> None:
    rec, layer, bottoms, tops = recorded(f"type: 'Eltwise' eltwise_param {{ {text} }}", [(3, 4)] * 3, Target())
    layer.forward(rec, bottoms, tops)
    rec.enter("layer", "backward")
    layer.backward(rec, tops, bottoms, [True] * 3)
    reads = {ref for launch in rec.launches if launch.phase == "backward" for ref in launch.reads}
    assert {ref.name for ref in reads} - {"y0.diff"} == kept
    assert all(ref.dtype == np.uint8 for ref in reads if ref.role is Role.SAVED)


def test_eltwise_max_without_backward_saves_nothing() -> None:
    rec, layer, bottoms, tops = recorded("type: 'Eltwise' eltwise_param { operation: MAX }", [(3, 4)] * 3, Target(), train=False)
    layer.forward(rec, bottoms, tops)
    assert len(rec.launches[0].writes) == 1


def test_eltwise_sum_passes_its_diff_on() -> None:
    """Bottoms without a diff share the top's diff, without a launch."""
    rec, layer, bottoms, tops = recorded("type: 'Eltwise'", [(3, 4)] * 2, Target())
    rec.enter("layer", "backward")
    for bottom in bottoms:
        bottom.diff = None
    layer.backward(rec, tops, bottoms, [True, True])
    assert not rec.launches and all(bottom.diff is not None and bottom.diff.root is tops[0].diff for bottom in bottoms)


# -- BatchNorm -----------------------------------------------------------------------------------------------------------------------------


def golden_batch_norm(device: Any, kind: str, case: str) -> None:
    """Run a case of one or several steps and compare its running statistics."""
    from google.protobuf import text_format

    from ocaffe.layers.base import registry
    from tests.layers.single import GOLDEN

    net = text_format.Parse((GOLDEN / f"{case}.prototxt").read_text(), proto.NetParameter())
    (param,) = [layer for layer in net.layer if layer.type != "Input"]
    arrays = dict(np.load(GOLDEN / f"{case}.npz"))
    blobs = [arrays[f"param/{param.name}/{i}"] for i in range(3)]
    for number in range(1, 4):
        at = "" if number == 1 else f"@{number}"
        if f"in{at}/{param.bottom[0]}" not in arrays:
            break
        layer = registry()[param.type](param, net.state.phase)
        result, blobs = batch_norm(device, kind, layer, arrays[f"in{at}/{param.bottom[0]}"], arrays.get(f"top_diff{at}/{param.top[0]}"), blobs)
        close(result.tops[0], arrays[f"out{at}/{param.top[0]}"])
        if f"in_diff{at}/{param.bottom[0]}" in arrays:
            close(result.diffs[0], arrays[f"in_diff{at}/{param.bottom[0]}"])
        for i, blob in enumerate(blobs):
            close(blob, arrays.get(f"param_after{at}/{param.name}/{i}", blob))


def batch_norm(
    device: Any, kind: str, layer: Any, x: np.ndarray, dy: np.ndarray | None, blobs: list[np.ndarray], **options: Any
) -> tuple[Result, list[np.ndarray]]:
    """Call `run` and also return the parameters after forward."""
    from tests.layers import single

    after: list[np.ndarray] = []

    def fetch_params(rec: Recorder, context: Any, feeds: dict[Ref, np.ndarray], fetches: list[Ref]) -> list[np.ndarray]:
        values = execute(rec, context, feeds, [*fetches, *(parameter.data for parameter in layer.params)])
        after.extend(values[len(fetches) :])
        return values[: len(fetches)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "execute", fetch_params)
        return run(device, kind, layer, [x], None if dy is None else [dy], params=blobs, **options), after


def test_batch_norm_golden(device: Any, other: str) -> None:
    for case in cases("BatchNorm"):
        golden_batch_norm(device, other, case)


@pytest.mark.parametrize("shape", [(7,), (50, 6), (8, 3, 40), (6, 5, 7, 7), (64, 2, 33, 33), (1, 4), (4, 2, 3, 3, 3)], ids=str)
def test_batch_norm(device: Any, kind: str, shape: Shape) -> None:
    """Means are far from zero, where E[x^2] - E[x]^2 would lose the variance."""
    channels, axes = (shape[1] if len(shape) > 1 else 1), tuple(d for d in range(len(shape)) if d != 1)
    x, dy = draw(shape, 1) + 1000, draw(shape, 2)
    m = x.size // channels
    blobs = [draw((channels,), 3), np.abs(draw((channels,), 4)), np.array([2.5], np.float32)]
    layer = layer_of("type: 'BatchNorm' batch_norm_param { moving_average_fraction: 0.9 eps: 1e-3 }", proto.TRAIN)
    result, after = batch_norm(device, kind, layer, x, dy, blobs, strided=True, held=1.0)
    wide = x.astype(np.float64)
    mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + 1e-3)
    y = (wide - mean) * inverse
    close(result.tops[0], y)
    gradient = (dy - dy.mean(axes, keepdims=True, dtype=np.float64) - y * (dy * y).mean(axes, keepdims=True)) * inverse
    close(result.diffs[0], 1 + gradient)
    close(after[0], 0.9 * blobs[0] + mean.ravel(), 1e-6)
    close(after[1], 0.9 * blobs[1] + variance.ravel() * (m / (m - 1) if m > 1 else 1), 1e-4)
    close(after[2], 0.9 * blobs[2] + 1, 1e-6)
    backward = [launch for launch in result.rec.launches if launch.phase == "backward" and launch.layer == "layer"]
    assert "x0" not in {ref.name for launch in backward for ref in launch.reads}, "in place is possible"
    assert [launch.kernel.can.side_effect for launch in result.rec.launches].count(True) == 1


def test_batch_norm_of_a_constant_channel(device: Any, kind: str) -> None:
    """The variance of a constant channel is exactly 0."""
    layer = layer_of("type: 'BatchNorm'", proto.TRAIN)
    x = np.full((300, 2, 5, 5), 1234.567, np.float32)
    result, after = batch_norm(device, kind, layer, x, None, [np.zeros(2), np.zeros(2), np.zeros(1)])
    assert (result.tops[0] == 0).all() and (after[1] == 0).all()
    close(after[0], np.full(2, np.float32(1234.567)), 1e-6)


@pytest.mark.parametrize("shape", [(6, 5, 7, 7), (20, 30), (7,)], ids=str)
def test_batch_norm_with_running_statistics(device: Any, kind: str, shape: Shape) -> None:
    channels = shape[1] if len(shape) > 1 else 1
    x, dy = draw(shape, 1), draw(shape, 2)
    blobs = [draw((channels,), 3), 1 + np.abs(draw((channels,), 4)), np.array([2.5], np.float32)]
    for text, phase in [("", proto.TEST), ("batch_norm_param { use_global_stats: true }", proto.TRAIN)]:
        result, after = batch_norm(device, kind, layer_of(f"type: 'BatchNorm' {text}", phase), x, dy, blobs, strided=True, held=1.0)
        form = (1, channels) + (1,) * (len(shape) - 2) if len(shape) > 1 else (1,)
        mean, variance = blobs[0].reshape(form) / 2.5, blobs[1].reshape(form) / 2.5
        close(result.tops[0], (x - mean) / np.sqrt(variance + 1e-5), 1e-5)
        close(result.diffs[0], 1 + dy / np.sqrt(variance + 1e-5), 1e-5)
        assert all((a == b).all() for a, b in zip(after, blobs)), "nothing is updated"


def test_silence_zeroes_what_is_asked_for(device: Any, kind: str) -> None:
    result = run(device, kind, "type: 'Silence'", [draw((3, 4)), draw((5,))], [], propagate=[True, False], held=2.0)
    assert (result.diffs[0] == 2).all(), "another consumer's diff stays"
    result = run(device, kind, "type: 'Silence'", [draw((3, 4)), draw((5,))], [], propagate=[True, False])
    assert (result.diffs[0] == 0).all() and result.diffs[1] is None
