"""Concat and Slice."""
from __future__ import annotations

import numpy as np
import pytest

from ocaffe.errors import Error
from tests.layers.single import KINDS, cases, close, layer_of, run, run_golden


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [case for case in cases("Concat") + cases("Slice") if not case.endswith("single")])
def test_golden(device, kind, case):
    run_golden(device, kind, case)


@pytest.mark.parametrize("case", ["Concat-single", "Slice-single"])
def test_single_is_passed_on(device, case):
    run_golden(device, "cpu", case)
    x = np.arange(24).reshape(2, 3, 4)
    result = run(device, "cpu", f"type: '{case.split('-')[0]}'", [x], [x])
    assert not result.rec.launches
    close(result.tops[0], x)
    close(result.diffs[0], x)


SHAPES = [((3, 4, 5), 1), ((2, 3, 5000), 1), ((2, 5, 3, 7), 2), ((2, 3, 4), 2), ((4, 33), 0), ((7,), 0), ((2, 3, 4, 17), -1)]


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_concat(device, kind, shape, axis, strided):
    rng = np.random.default_rng(1)
    sizes = (shape[axis], 1, 3)
    xs = [rng.normal(size=tuple(np.where(np.arange(len(shape)) == axis % len(shape), size, shape))) for size in sizes]
    whole = np.concatenate(xs, axis)
    dy = rng.normal(size=whole.shape)
    text = f"type: 'Concat' concat_param {{ axis: {axis} }}"
    result = run(device, kind, text, xs, [dy], strided=strided, propagate=[True, False, True], held=2.0)
    close(result.tops[0], whole.astype(np.float32), 0)
    parts = np.split(dy, np.cumsum(sizes)[:-1], axis)
    close(result.diffs[0], parts[0] + 2, 1e-6)
    assert result.diffs[1] is None
    close(result.diffs[2], parts[2] + 2, 1e-6)


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("held", [None, 2.0], ids=["overwrite", "accumulate"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES[:5], ids=str)
def test_slice(device, kind, shape, axis, held, strided):
    rng = np.random.default_rng(2)
    x = rng.normal(size=shape)
    parts = np.split(x, [1, 2], axis)
    dys = [rng.normal(size=part.shape) for part in parts]
    text = f"type: 'Slice' top: 'a' top: 'b' top: 'c' slice_param {{ axis: {axis} slice_point: 1 slice_point: 2 }}"
    result = run(device, kind, text, [x], dys, strided=strided, held=held)
    for top, part in zip(result.tops, parts):
        close(top, part.astype(np.float32), 0)
    close(result.diffs[0], np.concatenate(dys, axis) + (held or 0), 1e-6)


@pytest.mark.parametrize(
    ("text", "shapes", "fact"),
    [
        ("type: 'Concat'", [(2, 3), (3, 4)], "bottom 0 is 2 x 3, bottom 1 is 3 x 4"),
        ("type: 'Concat'", [(2, 3), (2, 3, 1)], "bottom 1 is 2 x 3 x 1"),
        ("type: 'Concat' concat_param { axis: 2 }", [(2, 3)], "axis 2 is outside"),
        ("type: 'Concat' concat_param { axis: 1 concat_dim: 1 }", [(2, 3)], "axis and concat_dim"),
        ("type: 'Concat' concat_param { concat_dim: 2 }", [(2, 3)], "concat_dim 2 is outside"),
        ("type: 'Slice' top: 'a' top: 'b'", [(2, 5)], "2 tops do not evenly divide axis 1 of bottom 2 x 5"),
        ("type: 'Slice' top: 'a' top: 'b' slice_param { slice_point: 1 slice_point: 2 }", [(2, 5)], "2 slice_points for 2 tops"),
        ("type: 'Slice' top: 'a' top: 'b' top: 'c' slice_param { slice_point: 3 slice_point: 2 }", [(2, 5)], "3, 2 do not rise"),
        ("type: 'Slice' top: 'a' top: 'b' slice_param { slice_point: 5 }", [(2, 5)], "from 1 to 4"),
        ("type: 'Slice' top: 'a' slice_param { axis: 1 slice_dim: 1 }", [(2, 5)], "axis and slice_dim"),
    ],
)
def test_errors(text, shapes, fact):
    with pytest.raises(Error, match=fact):
        layer_of(text).infer(*shapes)
