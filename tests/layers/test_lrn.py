"""LRN."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.normalization.lrn import Response
from tests.harness import execute
from tests.layers.single import KINDS, cases, close, layer_of, run, run_golden


def window_sum(x, size, across):
    half = size // 2
    pad = [(0, 0), (half, half), (0, 0), (0, 0)] if across else [(0, 0), (0, 0), (half, half), (half, half)]
    padded = np.pad(x, pad)
    if across:
        return sum(padded[:, j : j + x.shape[1]] for j in range(size))
    return sum(padded[:, :, a : a + x.shape[2], b : b + x.shape[3]] for a in range(size) for b in range(size))


def lrn(x, dy, param):
    """Return (y, dx) in float64."""
    across = param.norm_region == proto.LRNParameter.ACROSS_CHANNELS
    size, alpha, beta = param.local_size, param.alpha, param.beta
    share = alpha / size if across else alpha / size**2
    s = (param.k if across else 1.0) + share * window_sum(x * x, size, across)
    dx = dy * s**-beta - 2 * share * beta * x * window_sum(dy * x * s ** (-beta - 1), size, across)
    return x * s**-beta, dx


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", cases("LRN"))
def test_golden(device, kind, case):
    run_golden(device, kind, case)


SETTINGS = ["local_size: 5 alpha: 1e-4 beta: 0.75", "local_size: 3 alpha: 2 beta: 0.6 k: 2", "local_size: 1", "local_size: 9 alpha: 0.5"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_lrn(device, kind, setting, region):
    text = f"type: 'LRN' lrn_param {{ {setting} norm_region: {region} }}"
    rng = np.random.default_rng(1)
    for shape in ((2, 40, 5, 7), (3, 3, 4, 4), (1, 20, 3, 150)):
        x, dy = rng.normal(size=(2, *shape)) * 3
        result = run(device, kind, text, [x], [dy], strided=True, held=0.5)
        y, dx = lrn(x, dy, layer_of(text).own())
        close(result.tops[0], y, 1e-5)
        close(result.diffs[0], dx + 0.5, 1e-5)


def launches(device, kind, shape, train):
    result = run(device, kind, "type: 'LRN'", [np.zeros(shape)], [np.zeros(shape)] if train else None, train=train)
    return result.rec.launches


def test_in_place_only_where_one_work_item_has_all_channels(device):
    assert launches(device, "cpu", (1, 40, 2, 3), False)[0].inplace == (("x", "y"),)
    assert launches(device, "cpu", (1, 40, 2, 3), True)[-1].inplace == (("dy", "dx"),)
    assert launches(device, "gpu", (1, 40, 2, 3), False)[0].inplace == ()
    assert launches(device, "gpu", (1, 2, 128, 128), False)[0].inplace == (("x", "y"),)
    assert launches(device, "gpu", (1, 16, 2, 3), True)[0].inplace == (("x", "y"),)


@pytest.mark.parametrize("kind", KINDS)
def test_in_place_gives_the_same(device, kind):
    """The launches' `inplace` holds: y may be in x's memory, and dx in dy's."""
    x, dy = np.random.default_rng(4).normal(size=(2, 1, 16, 2, 30)).astype(np.float32)
    rec = Recorder(dataclasses.replace(device.target, kind=kind), train=True)
    refs = {name: Ref(name, x.shape, Role.ACTIVATION) for name in ("x", "copy", "dy")}
    response = Response(5, 0.3, 0.75, 1.0)
    rec.enter("lrn", "backward")
    response.across(rec, refs["x"], refs["x"].view(x.shape))
    response.across_backward(rec, refs["copy"], refs["dy"], refs["dy"].view(x.shape))
    assert all(launch.inplace for launch in rec.launches)
    y, dx = execute(rec, device.context, {refs["x"]: x, refs["copy"]: x, refs["dy"]: dy}, [refs["x"], refs["dy"]])
    expected = lrn(x.astype(float), dy.astype(float), proto.LRNParameter(local_size=5, alpha=0.3))
    close(y, expected[0], 1e-5)
    close(dx, expected[1], 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_nothing_is_saved(device, kind, region):
    shape = (1, 6, 4, 4)
    text = f"type: 'LRN' lrn_param {{ norm_region: {region} }}"
    result = run(device, kind, text, [np.ones(shape)], [np.ones(shape)])
    roles = {operand.ref.role.value for launch in result.rec.launches for operand in launch.operands}
    assert "saved" not in roles


@pytest.mark.parametrize(
    ("text", "shape", "fact"),
    [
        ("local_size: 4", (1, 2, 3, 4), "local_size is 4, LRN takes odd values only"),
        ("", (2, 3), "bottom 0 is 2 x 3"),
    ],
)
def test_errors(text, shape, fact):
    with pytest.raises(Error, match=fact) as caught:
        layer_of(f"name: 'norm1' type: 'LRN' lrn_param {{ {text} }}").infer(shape)
    assert "'norm1' (LRN)" in str(caught.value) and caught.value.fix
