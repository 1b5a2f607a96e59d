"""Data, HDF5Data and DummyData against what Caffe put out (golden/data), and against numpy where Caffe draws at random."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.graph.ir import Blob, Role
from ocaffe.graph.recorder import Recorder
from ocaffe.layers.base import Layer, registry
from tests.harness import execute
from tests.layers.single import KINDS, close, ref

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
CASES = sorted(path.stem for kind in ("Data", "HDF5Data") for path in (GOLDEN / "data").glob(f"{kind}-*.npz"))


@pytest.fixture(autouse=True)
def in_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)


def layer_of(text: str, phase: int = proto.TRAIN) -> Layer:
    param = text_format.Parse(text, proto.LayerParameter())
    return registry()[param.type](param, phase)


def run(device: Any, kind: str, layer: Layer, batch: int = 0, *, strided: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """What the layer puts out for batch number `batch`. As the net does, records for the shapes that this batch has."""
    layer.seed = seed
    shapes = [tuple(shape) for shape in layer.infer()]
    source = layer.source  # type: ignore[attr-defined]
    if source is not None:
        shapes_now = source.fill(batch, np.empty(0, np.uint8)).shapes if layer.param.type == "Data" else shapes
        shapes = list(shapes_now)
    rec = Recorder(dataclasses.replace(device.target, kind=kind), train=True)
    rec.enter(layer.param.name, "forward")
    tops = [Blob(name, shape) for name, shape in zip(layer.param.top, shapes)]
    if layer.moves_data:
        for top in tops:
            top.data = ref(top.name, top.shape, Role.ACTIVATION, strided)
    layer.forward(rec, [], tops)
    return dict(zip(layer.param.top, execute(rec, device.context, {}, [top.data for top in tops], batch=batch)))


def golden_layer(case: str) -> Layer:
    net = text_format.Parse((GOLDEN / "data" / f"{case}.prototxt").read_text(), proto.NetParameter())
    (param,) = net.layer
    return registry()[param.type](param, net.state.phase)


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_golden(device: Any, kind: str, case: str, strided: bool) -> None:
    if case == "Data-leveldb":
        pytest.importorskip("plyvel")
    layer = golden_layer(case)
    arrays = dict(np.load(GOLDEN / "data" / f"{case}.npz"))
    for batch in range(5):
        prefix = f"out@{batch + 1}/" if batch else "out/"
        expected = {key[len(prefix) :]: arrays.pop(key) for key in list(arrays) if key.startswith(prefix)}
        if expected:
            tops = run(device, kind, layer, batch, strided=strided)
            assert list(tops) == list(layer.param.top)
            for name, array in expected.items():
                close(tops[name], array, 1e-6)
    assert not arrays, f"not compared: {sorted(arrays)}"


# -- Data


@pytest.mark.parametrize("mean", ["", "mean_value: 17.5", "mean_value: 3 mean_value: 50 mean_value: -7", 'mean_file: "files/mean.binaryproto"'])
@pytest.mark.parametrize("crop", ["", "crop_size: 19", "crop_size: 23", "crop_h: 20 crop_w: 28"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_transform(device: Any, kind: str, crop: str, mean: str) -> None:
    """(x - mean) * scale at the place that was drawn, mirrored where that was drawn; mean_file at the place in the whole image."""
    layer = layer_of(
        f"""name: "data" type: "Data" top: "data" top: "label" data_param {{ source: "files/lmdb_raw" batch_size: 8 backend: LMDB }}
        transform_param {{ mirror: true scale: 0.125 {crop} {mean} }}"""
    )
    tops = run(device, kind, layer, 3, seed=11)
    whole = np.load("data/Data-raw-wrap.npz")
    images = np.concatenate([whole["out/data"], whole["out@2/data"], whole["out@3/data"][:2]])
    transform, layout = layer.source.transform, layer.source.layout((8, 3, 24, 28))  # type: ignore[attr-defined]
    numbers = [(24 + i) % 12 for i in range(8)]
    means = np.zeros(1, np.float32) if transform.mean is None else transform.mean
    expected = (images - (means if means.ndim == 3 else means[:, None, None])) * np.float32(0.125)
    block = np.empty(layout.nbytes, np.uint8)
    layer.source.fill(3, block)  # type: ignore[attr-defined]
    height, width = tops["data"].shape[2:]
    table = layout.table(block)
    for got, number, (_, _, y, x, _, _, mirror, _) in zip(tops["data"], numbers, table):
        cut = expected[number][:, y : y + height, x : x + width]
        close(got, cut[:, :, ::-1] if mirror else cut, 1e-6)
    assert set(table[:, 6]) == {0, 1} and (not crop or len({*map(tuple, table[:, 2:4])}) > 1)
    labels = np.concatenate([whole["out/label"], whole["out@2/label"], whole["out@3/label"][:2]])
    assert (tops["label"] == labels[numbers]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_and_the_name_decide(device: Any, kind: str) -> None:
    text = """name: "%s" type: "Data" top: "data" data_param { source: "files/lmdb_raw" batch_size: 8 backend: LMDB }
        transform_param { mirror: true crop_size: 9 }"""
    first, again, seed, name = (
        run(device, kind, layer_of(text % layer), 1, seed=number)["data"] for layer, number in (("a", 1), ("a", 1), ("a", 2), ("b", 1))
    )
    assert (first == again).all() and not (first == seed).all() and not (first == name).all()


def test_errors_name_the_layer() -> None:
    for field in ("mean_file: 'none'", "crop_size: 99", "force_gray: true force_color: true"):
        text = f"name: 'd' type: 'Data' top: 'd' transform_param {{ {field} }} data_param {{ source: 'files/lmdb_raw' batch_size: 1 backend: LMDB }}"
        with pytest.raises(Error) as caught:
            layer_of(text).infer()
        assert caught.value.layer == "'d' (Data)" and caught.value.fix


def test_log_lines_of_opening() -> None:
    layer = golden_layer("Data-mean-file")
    layer.infer()
    assert [text for _, text in layer.notes] == [  # type: ignore[attr-defined]
        "Opened lmdb files/lmdb_raw",
        "Loading mean file from: files/mean.binaryproto",
        "output data size: 3,3,24,28",
    ]


# -- HDF5Data


def test_hdf5_refuses_a_transform() -> None:
    text = "name: 'd' type: 'HDF5Data' top: 'x' transform_param { scale: 2 } hdf5_data_param { source: 'data/h5_list.txt' batch_size: 1 }"
    with pytest.raises(Error, match="does not transform"):
        layer_of(text).infer()


# -- DummyData


def dummy(text: str, tops: int = 1) -> Layer:
    names = " ".join(f"top: 't{i}'" for i in range(tops))
    return layer_of(f"name: 'd' type: 'DummyData' {names} dummy_data_param {{ {text} }}")


@pytest.mark.parametrize(
    ("text", "tops", "shapes"),
    [
        ("shape { dim: 2 dim: 3 }", 1, [(2, 3)]),
        ("shape { dim: 2 dim: 3 }", 2, [(2, 3), (2, 3)]),
        ("shape { dim: 2 } shape { }", 2, [(2,), ()]),
        ("num: 2 channels: 3 height: 4 width: 5", 2, [(2, 3, 4, 5)] * 2),
        ("num: 2 num: 7 channels: 3 height: 4 height: 1 width: 5", 2, [(2, 3, 4, 5), (7, 3, 1, 5)]),
    ],
)
def test_dummy_shapes(text: str, tops: int, shapes: list[tuple[int, ...]]) -> None:
    assert dummy(text, tops).infer() == shapes


@pytest.mark.parametrize("kind", KINDS)
def test_dummy_constants_take_no_launch(device: Any, kind: str) -> None:
    layer = dummy("shape { dim: 2 dim: 3 } shape { dim: 5 } shape { } data_filler { value: 2.5 } data_filler { } data_filler { value: -1 }", 3)
    tops = run(device, kind, layer)
    assert [(top.shape, set(top.ravel())) for top in tops.values()] == [((2, 3), {2.5}), ((5,), {0}), ((), {-1})]
    assert layer.source is None  # type: ignore[attr-defined]
    assert (run(device, kind, dummy("shape { dim: 4 }", 2))["t1"] == 0).all()  # no filler: zero


DUMMY = """shape { dim: 40 dim: 3 dim: 5 } shape { dim: 7 } shape { dim: 6001 }
    data_filler { type: 'gaussian' mean: 5 std: 2 } data_filler { value: 3 } data_filler { type: 'uniform' min: -1 max: 2 }"""


@pytest.mark.parametrize("kind", KINDS)
def test_dummy_random_tops_are_new_each_time(device: Any, kind: str) -> None:
    layer = dummy(DUMMY, 3)
    first, second, again = (run(device, kind, layer, batch) for batch in (0, 1, 0))
    assert abs(first["t0"].mean() - 5) < 0.3 and abs(first["t0"].std() - 2) < 0.2
    assert (first["t1"] == 3).all() and -1 <= first["t2"].min() < -0.9 and 1.9 < first["t2"].max() <= 2
    other = run(device, kind, dummy(DUMMY, 3), 0, seed=1)
    for name in ("t0", "t2"):
        assert not (first[name] == other[name]).any()
        assert (first[name] == again[name]).all() and not (first[name] == second[name]).any()
    assert not np.isin(first["t2"], first["t0"]).any()


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "it has no shape"),
        ("shape { dim: 2 } shape { dim: 2 }", "2 shape given for 3 tops"),
        ("shape { dim: 2 } data_filler { } data_filler { }", "2 data_filler given for 3 tops"),
        ("shape { dim: 2 } num: 2", "shape is set, and the older num too"),
        ("num: 2 height: 3", "of the older fields only num, height is set"),
        ("num: 2 num: 2 channels: 1 height: 3 width: 1", "2 num given for 3 tops"),
        ("shape { dim: -2 }", "is negative"),
        ("shape { dim: 2 } data_filler { type: 'nonsense' }", "there is no filler 'nonsense'"),
    ],
)
def test_dummy_errors(text: str, fact: str) -> None:
    layer = dummy(text, 3)
    with pytest.raises(Error) as caught:
        layer.infer()
        layer.source.fill(0, np.empty(1000, np.uint8))  # type: ignore[attr-defined]
    assert fact in caught.value.fact and caught.value.layer == "'d' (DummyData)"
