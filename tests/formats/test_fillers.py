"""Fillers, compared with the statistics of Caffe's fillers (tests/golden/fillers) and its bilinear kernels."""
from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats import fillers
from ocaffe.formats.fillers import fill, generator
from ocaffe.support import process_memory

pytestmark = pytest.mark.quick

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
STATISTICS = json.loads((GOLDEN / "fillers" / "stats.json").read_text())


def message(text: str = "", **fields: object):
    return text_format.Parse(text, proto.FillerParameter(**fields))


def filler_of(prototxt: str):
    return message(re.search(r"filler \{(.*?)\}", prototxt, re.DOTALL)[1])


@pytest.mark.parametrize("case", STATISTICS, ids=lambda case: f"{case['layer']}-{case['filler']}")
def test_statistics_are_caffes(case):
    filler = filler_of(case["prototxt"])
    values = fill(filler, tuple(case["shape"]), generator(1, "l", 0))
    assert values.dtype == np.float32 and values.shape == tuple(case["shape"])
    if filler.type == "constant":
        assert (values == np.float32(filler.value)).all()
        return
    assert abs(values.std() / case["std"] - 1) < (0.05 if filler.sparse < 0 else 0.08)
    assert abs(values.mean() - case["mean"]) < 6 * case["std"] * np.sqrt(2 / values.size)
    assert abs((values == 0).mean() - case["zero_fraction"]) < 0.02
    if filler.type in ("uniform", "xavier", "positive_unitball"):
        width = case["max"] - case["min"]
        assert abs(values.min() - case["min"]) < 0.05 * width and abs(values.max() - case["max"]) < 0.1 * width
    if filler.type == "positive_unitball":
        assert np.allclose(values.reshape(len(values), -1).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("case", ["Filler-bilinear-k3", "Filler-bilinear-k4"])
def test_bilinear_is_caffes(case):
    expected = np.load(GOLDEN / "layers" / f"{case}.npz")["init/up/0"]
    assert np.allclose(fill(message(type="bilinear"), expected.shape, generator(0, "up", 0)), expected, atol=1e-7)


def test_streams_depend_on_seed_layer_and_blob_alone():
    first = fill(message(type="xavier"), (5, 7), generator(3, "conv1", 0))
    assert (first == fill(message(type="xavier"), (5, 7), generator(3, "conv1", 0))).all()
    for other in (generator(4, "conv1", 0), generator(3, "conv2", 0), generator(3, "conv1", 1)):
        assert (first != fill(message(type="xavier"), (5, 7), other)).any()
    assert generator(-1, "a", 0).random() == generator(2**64 - 1, "a", 0).random()


@pytest.mark.parametrize("kind", ["constant", "uniform", "gaussian", "positive_unitball", "xavier", "msra"])
@pytest.mark.parametrize("shape", [(), (6,), (2, 3, 1, 2, 2)])
def test_any_number_of_axes(kind, shape):
    values = fill(message(type=kind, value=2), shape, generator(0, "x", 0))
    assert values.shape == shape and np.isfinite(values).all()


def test_fan_in_of_a_vector_is_one():
    values = fill(message(type="xavier"), (4000,), generator(0, "x", 0))
    assert 1.7 < values.max() <= np.sqrt(3) + 1e-6
    values = fill(message(type="xavier", variance_norm=proto.FillerParameter.FAN_OUT), (4000,), generator(0, "x", 0))
    assert values.max() <= np.sqrt(3 / 4000) + 1e-6


@pytest.mark.parametrize(
    ("filler", "shape", "text"),
    [
        ({"type": "nope"}, (2, 2), "no filler 'nope'"),
        ({"type": "bilinear"}, (4, 6), "4 x 6"),
        ({"type": "bilinear"}, (1, 1, 3, 4), "1 x 1 x 3 x 4"),
        ({"type": "uniform", "min": 2, "max": 1}, (2,), "min 2 above max 1"),
        ({"type": "gaussian", "std": -1}, (2,), "std -1"),
        ({"type": "gaussian", "sparse": 5}, (4, 9), "sparse 5"),
        ({"type": "gaussian", "scale": 2}, (4, 9), "scale"),
    ],
)
def test_errors(filler, shape, text):
    with pytest.raises(Error, match=text) as caught:
        fill(message(**filler), shape, generator(0, "x", 0))
    assert caught.value.fix


def test_unknown_filler_names_the_known_ones():
    with pytest.raises(Error) as caught:
        fill(message(type="Xavier"), (2, 2), generator(0, "x", 0))
    assert "xavier" in caught.value.fix and "msra" in caught.value.fix


@pytest.mark.parametrize(
    ("filler", "fix"),
    [
        ('type: "gaussian" std: 0.01', 'type: "gaussian" std: 0.02'),
        ('type: "uniform" min: -1 max: 3', 'type: "uniform" min: -2 max: 6'),
        ('type: "msra"', 'type: "gaussian" std: 1'),
        ('type: "xavier"', 'type: "uniform" min: -1.225 max: 1.225'),
        ('type: "constant" value: 0.25', "value: 0.5"),
    ],
)
def test_the_remedy_of_a_scale_has_its_values(filler, fix):
    with pytest.raises(Error, match="filler field 'scale'") as caught:
        fill(message(f"{filler} scale: 2"), (4, 8), generator(0, "x", 0))
    assert caught.value.fix == f"replace the filler by {fix}"


@pytest.mark.parametrize("filler", [
    'type: "xavier"', 'type: "msra"', 'type: "gaussian" std: 2 mean: 0.1 sparse: 2', 'type: "uniform" min: -1 max: 2', 'type: "positive_unitball"',
    'type: "constant" value: 0.3',
])  # fmt: skip
@pytest.mark.parametrize("shape", [(3,), (7, 5), (5, 3, 3, 3), (4, 1001)])
def test_pieces_change_no_bit(filler: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A filler that draws a few values at a time gives those of one draw, also in memory that is given."""
    param = proto.FillerParameter()
    text_format.Parse(filler, param)
    whole = fill(param, shape, generator(3, "l", 1))
    for module in (process_memory, fillers):
        monkeypatch.setattr(module, "PIECE", 28)
    given = np.full(shape, np.nan, np.float32)
    fill(param, shape, generator(3, "l", 1), given)
    np.testing.assert_array_equal(given, whole)
