"""Layers that change only the shape or name of data: Split, Flatten, Reshape, Input."""
from __future__ import annotations

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import pointwise
from tests.harness import execute
from tests.layers.single import GOLDEN, cases, close, layer_of, run, run_golden

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("case", cases("Flatten") + cases("Reshape"))
def test_golden(device, case):
    run_golden(device, "cpu", case)


@pytest.mark.parametrize("text", ["type: 'Flatten'", "type: 'Reshape' reshape_param { shape { dim: 0 dim: -1 } }"])
def test_no_data_moves_and_shared_diffs_are_added_to(device, text):
    x = np.arange(24).reshape(2, 3, 4)
    result = run(device, "cpu", text, [x], [x.reshape(2, 12)])
    assert not result.rec.launches
    close(result.diffs[0], x)
    close(run(device, "cpu", text, [x], [x.reshape(2, 12)], held=2.0).diffs[0], x + 2)


def split_backward(device, tops, shared):
    """Return the diff of a split bottom and the number of launches.

    The first `shared` consumers add to the bottom's diff, the others have separate diffs. The diff of top i is i + 1.
    """
    layer = layer_of("type: 'Split' " + "top: 't' " * tops)
    shape = (2, 3)
    assert list(layer.infer(shape)) == [shape] * tops
    rec = Recorder(Target(), train=True)
    bottom = Blob("x", shape, data=Ref("x", shape, Role.ACTIVATION), diff=Ref("x.diff", shape, Role.DIFF))
    blobs = [Blob(f"t{i}", shape) for i in range(tops)]
    layer.forward(rec, [bottom], blobs)
    assert not rec.launches and all(blob.data.root is bottom.data for blob in blobs)
    for i, blob in enumerate(blobs):
        rec.enter(f"consumer{i}", "backward")
        blob.diff = bottom.diff.view(shape) if i < shared else Ref(f"t{i}.diff", shape, Role.DIFF)
        pointwise(rec, "y0 = v", writes=[blob.diff], scalars={"v": float(i + 1)})
    rec.enter("split", "backward")
    before = len(rec.launches)
    layer.backward(rec, blobs, [bottom], [True])
    (diff,) = execute(rec, device.context, {}, [bottom.diff])
    return diff, len(rec.launches) - before


@pytest.mark.parametrize(("tops", "shared", "launches"), [(2, 2, 0), (2, 0, 1), (3, 1, 1), (3, 2, 1), (20, 0, 3), (1, 0, 1)])
def test_split_adds_what_its_consumers_did_not(device, tops, shared, launches):
    diff, count = split_backward(device, tops, shared)
    close(diff, np.full((2, 3), tops * (tops + 1) / 2), 1e-6)
    assert count == launches


@pytest.mark.parametrize("case", cases("Split"))
def test_split_is_identity_and_sum(case):
    arrays = dict(np.load(GOLDEN / f"{case}.npz"))
    names = sorted(key.split("/")[1] for key in arrays if key.startswith("out/"))
    for name in names:
        close(arrays["in/data"], arrays[f"out/{name}"], 0)
    close(sum(arrays[f"top_diff/{name}"] for name in names), arrays["in_diff/data"], 1e-6)


def test_input_shapes():
    one = "input_param { shape { dim: 2 dim: 3 } } "
    assert list(layer_of(f"type: 'Input' top: 'a' {one}").infer()) == [(2, 3)]
    assert list(layer_of(f"type: 'Input' top: 'a' top: 'b' {one}").infer()) == [(2, 3), (2, 3)]
    two = "input_param { shape { dim: 2 } shape { dim: 4 dim: 5 } }"
    assert list(layer_of(f"type: 'Input' top: 'a' top: 'b' {two}").infer()) == [(2,), (4, 5)]
    assert list(layer_of("type: 'Input' top: 'a' input_param { shape { } }").infer()) == [()]


def test_reshape_and_flatten_refuse_to_work_in_place():
    for kind in ("Reshape", "Flatten", "Split"):
        assert not layer_of(f"type: '{kind}'", proto.TEST).inplace_top


def reshape(dims, extra=""):
    return f"type: 'Reshape' reshape_param {{ shape {{ {' '.join(f'dim: {dim}' for dim in dims)} }} {extra} }}"


@pytest.mark.parametrize(
    ("text", "shape", "fact"),
    [
        (reshape([-1, -1]), (2, 6), "2 dims of -1"),
        (reshape([2, 5]), (2, 6), "output count must match input count: top 2 x 5 has 10 values, bottom 2 x 6 has 12"),
        (reshape([5, -1]), (2, 6), "12 values, which 5, the product of the other sizes of shape 5 x -1, does not divide"),
        (reshape([0, -1]), (0, 6), "bottom 0 x 6 has no values, so the dim of -1 in shape 0 x -1 may be any number"),
        (reshape([2, 3, 0]), (2, 6), "dim 2 of shape 2 x 3 x 0 copies axis 2"),
        (reshape([2, -2]), (2, 6), "below -1"),
        (reshape([6], "axis: 3"), (2, 6), "axis 3 is outside the 2 axes"),
        (reshape([6], "axis: -4"), (2, 6), "axis -4 is outside the 2 axes"),
        (reshape([6], "axis: 1 num_axes: 2"), (2, 6), "reach beyond the 2 axes"),
        (reshape([6], "num_axes: -2"), (2, 6), "num_axes is -2"),
        ("type: 'Flatten' flatten_param { axis: 2 end_axis: 0 }", (2, 3, 4), "end_axis 0 is before axis 2"),
        ("type: 'Flatten' flatten_param { axis: 3 }", (2, 3, 4), "axis 3 is outside"),
    ],
)
def test_errors(text, shape, fact):
    with pytest.raises(Error, match=fact):
        layer_of(text).infer(shape)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("top: 'a' top: 'b' top: 'c' input_param { shape { dim: 1 } shape { dim: 1 } }", "2 shapes for 3 tops"),
        ("top: 'a'", "0 shapes for 1 tops"),
        ("top: 'a' input_param { shape { dim: 2 dim: 0 } }", "shape 2 x 0 has a dim below 1"),
    ],
)
def test_input_errors(text, fact):
    with pytest.raises(Error, match=fact):
        layer_of(f"type: 'Input' {text}").infer()
