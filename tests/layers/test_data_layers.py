"""Data layers and HDF5Output, compared with Caffe's output (golden/data and golden/forks), or with numpy for random settings."""
from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import shutil
import types
from typing import Any

import h5py
import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.formats.blob import write_blobproto
from ocaffe.formats.fillers import fill
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Role
from ocaffe.layers.base import Layer, registry
from tests.data.pictures import listing, save
from tests.harness import execute
from tests.layers.single import KINDS, close, ref

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
CASES = sorted(
    f"{path.parent.name}/{path.stem}"
    for kind in ("data/Data-", "data/HDF5Data-", "data/ImageData-", "data/WindowData-", "forks/AnnotatedData.")
    for path in GOLDEN.glob(f"{kind}*.npz")
)


@pytest.fixture(autouse=True)
def in_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)


def layer_of(text: str, phase: int = proto.TRAIN) -> Layer:
    param = text_format.Parse(text, proto.LayerParameter())
    return registry()[param.type](param, phase)


def run(device: Any, kind: str, layer: Layer, batch: int = 0, *, strided: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the layer's output for batch number `batch`. Like a net, record for the shapes of this batch."""
    layer.seed = seed
    shapes = [tuple(shape) for shape in layer.infer()]
    source = layer.source  # type: ignore[attr-defined]
    if source is not None and layer.moves_data:
        shapes = list(source.fill(batch, np.empty(source.nbytes, np.uint8)).shapes)
    rec = Recorder(dataclasses.replace(device.target, kind=kind), train=True, seed=seed)
    rec.enter(layer.param.name, "forward")
    tops = [Blob(name, shape) for name, shape in zip(layer.param.top, shapes)]
    if layer.moves_data:
        for top in tops:
            top.data = ref(top.name, top.shape, Role.ACTIVATION, strided)
    layer.forward(rec, [], tops)
    return dict(zip(layer.param.top, execute(rec, device.context, {}, [top.data for top in tops], batch=batch)))


def golden_layer(case: str) -> Layer:
    net = text_format.Parse((GOLDEN / f"{case}.prototxt").read_text(), proto.NetParameter())
    (param,) = net.layer
    return registry()[param.type](param, net.state.phase)


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_golden(device: Any, kind: str, case: str, strided: bool) -> None:
    if case == "data/Data-leveldb":
        pytest.importorskip("plyvel")
    layer = golden_layer(case)
    arrays = dict(np.load(GOLDEN / f"{case}.npz"))
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
    """The output is (x - mean) * scale at the drawn crop, mirrored if drawn. mean_file is read at the position in the whole image."""
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
    buffer = np.empty(layout.nbytes, np.uint8)
    layer.source.fill(3, buffer)  # type: ignore[attr-defined]
    height, width = tops["data"].shape[2:]
    table = layout.table(buffer)
    for got, number, (_, _, _, _, y, x, mirror, _) in zip(tops["data"], numbers, table):
        cut = expected[number][:, y : y + height, x : x + width]
        close(got, cut[:, :, ::-1] if mirror else cut, 1e-6)
    assert set(table[:, 6]) == {0, 1} and (not crop or len({*map(tuple, table[:, 4:6])}) > 1)
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
    layer = golden_layer("data/Data-mean-file")
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
    assert (run(device, kind, dummy("shape { dim: 4 }", 2))["t1"] == 0).all()  # no filler means zeros


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


FILLERS = {
    "uniform": ("type: 'uniform' min: -3 max: 5", lambda x: (x + 3) / 8),
    "gaussian": ("type: 'gaussian' mean: 2 std: 0.5", lambda x: normal((x - 2) / 0.5)),
    "xavier": ("type: 'xavier'", lambda x: x / (2 * math.sqrt(3 / 300)) + 0.5),
    "msra": ("type: 'msra' variance_norm: FAN_OUT", lambda x: normal(x / math.sqrt(2 / 200))),
}


def normal(values: np.ndarray) -> np.ndarray:
    return np.array([0.5 + 0.5 * math.erf(value / math.sqrt(2)) for value in values.tolist()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILLERS)
def test_dummy_distributions(device: Any, kind: str, name: str) -> None:
    """The largest distance from the distribution function is below the limit of Kolmogorov and Smirnov for a chance of 1 in 1,000,000."""
    text, distribution = FILLERS[name]
    shape = (200, 300)
    values = run(device, kind, dummy(f"shape {{ dim: {shape[0]} dim: {shape[1]} }} data_filler {{ {text} }}"))["t0"].astype(np.float64)
    expected = distribution(np.sort(values.ravel()))
    count = values.size
    assert max(np.abs(expected - np.arange(count) / count).max(), np.abs(expected - np.arange(1, count + 1) / count).max()) < 2.7 / math.sqrt(count)
    assert len(np.unique(values)) > 0.99 * count
    for other in (values[1:, :], np.roll(values, 1, 1)[:-1, :]):  # neighbours are independent
        assert abs(np.corrcoef(values[:-1].ravel(), other.ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_dummy_special_fillers(device: Any, kind: str) -> None:
    sparse = run(device, kind, dummy("shape { dim: 50 dim: 401 } data_filler { type: 'gaussian' std: 1 mean: 9 sparse: 10 }"))["t0"]
    assert abs((sparse != 0).mean() - 0.2) < 0.02 and abs(sparse[sparse != 0].mean() - 9) < 0.1
    ball = run(device, kind, dummy("shape { dim: 20 dim: 7 dim: 9 } data_filler { type: 'positive_unitball' }"))["t0"]
    assert np.allclose(ball.reshape(20, -1).sum(1), 1) and ball.min() >= 0 and ball.std() > 0.001
    layer = dummy("shape { dim: 3 dim: 2 dim: 4 dim: 4 } data_filler { type: 'bilinear' }")
    assert (run(device, kind, layer)["t0"] == fill(proto.FillerParameter(type="bilinear"), (3, 2, 4, 4), np.random.default_rng(0))).all()
    assert run(device, kind, dummy("shape { } data_filler { type: 'uniform' min: 4 max: 4 }"))["t0"] == 4
    assert run(device, kind, dummy("shape { dim: 0 dim: 3 } data_filler { type: 'uniform' }"))["t0"].size == 0


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "dummy_data_param has no shape"),
        ("shape { dim: 2 } shape { dim: 2 }", "2 shape given for 3 tops"),
        ("shape { dim: 2 } data_filler { } data_filler { }", "2 data_filler given for 3 tops"),
        ("shape { dim: 2 } num: 2", "shape is set, and the older num too"),
        ("num: 2 height: 3", "of the older fields only num, height is set"),
        ("num: 2 num: 2 channels: 1 height: 3 width: 1", "2 num given for 3 tops"),
        ("shape { dim: -2 }", "has a negative dim"),
        ("shape { dim: 2 } data_filler { type: 'uniform' min: 2 max: 1 }", "min 2 above max 1"),
        ("shape { dim: 2 } data_filler { type: 'gaussian' sparse: 3 }", "has sparse 3, blob 2 has 2 outputs"),
        ("shape { dim: 2 } data_filler { type: 'nonsense' }", "there is no filler 'nonsense'"),
    ],
)
def test_dummy_errors(text: str, fact: str) -> None:
    layer = dummy(text, 3)
    with pytest.raises(Error) as caught:
        layer.infer()
    assert fact in caught.value.fact and caught.value.layer == "'d' (DummyData)"


# -- WindowData, DenseImageData, AnnotatedData


def blob_mean(path: pathlib.Path, shape: tuple[int, ...]) -> np.ndarray:
    mean = np.random.default_rng(5).uniform(50, 150, shape).astype(np.float32)
    write_blobproto(str(path), mean)
    return mean


def filled(layer: Layer, batch: int) -> np.ndarray:
    """Return the buffer that the last `run` of a batch read."""
    source = layer.source  # type: ignore[attr-defined]
    buffer = np.zeros(max(source.nbytes, source.fill(batch, np.empty(0, np.uint8)).nbytes), np.uint8)
    source.fill(batch, buffer)
    return buffer


@pytest.mark.parametrize("kind", KINDS)
def test_windows_and_the_mean_around_them(device: Any, kind: str, tmp_path: pathlib.Path) -> None:
    """The mean is the centre of the mean image at the position in the sample.

    Pixels outside the image are 0. The scale is the one in window_data_param.
    """
    mean = blob_mean(tmp_path / "mean", (3, 21, 21))
    layer = layer_of(
        f"""name: "w" type: "WindowData" top: "data" top: "label" transform_param {{ crop_size: 16 mirror: true scale: 7 mean_file: "{tmp_path}/mean" }}
        window_data_param {{ source: "data/windows.txt" batch_size: 6 fg_fraction: 0.5 context_pad: 3 scale: 0.25 }}"""
    )
    got = run(device, kind, layer, 2, seed=4)
    layout = layer.source.layout  # type: ignore[attr-defined]
    buffer = filled(layer, 2)
    for n, (height, width, y, x) in enumerate(layout.table(buffer)[:, :4]):
        window = layout.pixels(buffer)[n][: 3 * height * width].reshape(3, height, width)
        place = slice(y, y + height), slice(x, x + width)
        expected = np.zeros((3, 16, 16), np.float32)
        expected[:, place[0], place[1]] = (window - mean[:, 2:18, 2:18][:, place[0], place[1]]) * np.float32(0.25)
        close(got["data"][n], expected, 1e-6)
    assert got["label"].tolist() == [0, 0, 0, 2, 2, 2]
    assert any("scale 7 of transform_param has no effect" in text for _, text in layer.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_dense_labels_have_no_mean(device: Any, kind: str, tmp_path: pathlib.Path) -> None:
    names = [f"files/images/im0{n}.png" for n in range(4)]
    (tmp_path / "list").write_text("".join(f"{name} {name}\n" for name in names))
    layer = layer_of(
        f"""name: "d" type: "DenseImageData" top: "data" top: "label" transform_param {{ crop_size: 13 mirror: true scale: 0.5 mean_value: 100 }}
        dense_image_data_param {{ source: "{tmp_path}/list" batch_size: 8 is_color: false }}"""
    )
    got = run(device, kind, layer, 1, seed=4)
    assert got["data"].shape == got["label"].shape == (8, 1, 13, 13) and got["label"].min() >= 0 and got["label"].max() > 100
    close(got["data"], (got["label"] - 100) * 0.5, 1e-6)
    assert len({each.tobytes() for each in got["label"]}) > 4
    plain = run(device, kind, layer_of(str(layer.param).replace("mirror: true", "").replace("crop_size: 13", "")))
    assert plain["data"].shape == plain["label"].shape == (8, 1, 24, 28)
    close(plain["data"], (plain["label"] - 100) * 0.5, 1e-6)


MOVED = "affine { rotation: 40 shear: 10 translation: 0.2 min_zoom: 0.35 max_zoom: 1.5 border: %s value: 77 label: 9 } vertical_mirror: true"


def moved(device: Any, kind: str, border: str, labels: list[np.ndarray], folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels and the labels that the layer makes of gray images of 60 x label."""
    lines = [f"{save(folder / f'i{n}.png', 60 * each[None])} {save(folder / f'l{n}.png', each[None])}" for n, each in enumerate(labels)]
    layer = layer_of(
        f"""name: "d" type: "DenseImageData" top: "data" top: "label"
        dense_image_data_param {{ source: "{listing(folder, lines)}" batch_size: 8 is_color: false }}
        transform_param {{ crop_size: 24 mirror: true scale: 0.5 mean_value: 100 {MOVED % border} }}"""
    )
    got = run(device, kind, layer, 1, seed=4)
    return 2 * got["data"] + 100, got["label"]


@pytest.mark.parametrize("kind", KINDS)
def test_labels_move_with_their_image(device: Any, kind: str, tmp_path: pathlib.Path) -> None:
    """Pixels between flat blocks are mixed, and so have another level than 60 x label. Pixels outside of the image are 77."""
    rng = np.random.default_rng(3)
    levels, labels = moved(device, kind, "CONSTANT", [rng.integers(0, 5, (5, 6), np.uint8).repeat(12, 0).repeat(12, 1) for _ in range(4)], tmp_path)
    flat = np.isin(np.round(levels, 2), [0, 60, 120, 180, 240, 77])
    assert flat.mean() > 0.6 and set(labels[flat]) == {0, 1, 2, 3, 4, 9}
    expected = np.where(np.rint(levels) == 77, 9, np.rint(levels / 60))
    assert (labels[flat] == expected[flat]).mean() > 0.999  # a mixed pixel may have the level of a third block


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_those_of_the_nearest_pixel(device: Any, kind: str, tmp_path: pathlib.Path) -> None:
    """The images have one edge. A pixel there has the label of the side with the larger share of its level."""
    levels, labels = moved(device, kind, "REFLECT", [np.repeat(np.arange(0, 5, 4, dtype=np.uint8), 36)[None].repeat(60, 0)] * 2, tmp_path)
    mixed = (levels > 1) & (levels < 239) & (abs(levels - 120) > 0.1)
    assert mixed.sum() > 50 and (labels == 4 * (levels > 120))[mixed].all() and set(labels.ravel()) == {0, 4}


@pytest.mark.parametrize("kind", KINDS)
def test_augmented_images_and_their_mean(device: Any, kind: str, tmp_path: pathlib.Path) -> None:
    mean = blob_mean(tmp_path / "mean", (3, 20, 30))
    layer = layer_of(
        f"""name: "a" type: "AnnotatedData" top: "data" top: "label" data_param {{ source: "forks/annotated_png_lmdb" batch_size: 4 backend: LMDB }}
        transform_param {{ mirror: true crop_h: 11 crop_w: 17 mean_file: "{tmp_path}/mean" resize_param {{ height: 20 width: 30 interp_mode: AREA }} }}
        annotated_data_param {{ batch_sampler {{ max_sample: 1 sampler {{ min_scale: 0.5 }} }} }}"""
    )
    got = run(device, kind, layer, 3, seed=4)
    source, buffer = layer.source, filled(layer, 3)  # type: ignore[attr-defined]
    layout, rows = source.layout([top.shape for top in got.values()])
    mirrors = 0
    for n, (_, _, _, _, y, x, mirror, _) in enumerate(layout.table(buffer)):
        expected = layout.pixels(buffer)[n].reshape(3, 11, 17) - mean[:, y : y + 11, x : x + 17]
        close(got["data"][n], expected[:, :, ::-1] if mirror else expected, 1e-6)
        mirrors += mirror
    assert 0 < mirrors < 4 and (got["label"] == rows.views(buffer)[0]).all()


def test_what_only_annotated_data_can_do() -> None:
    for layer, field in (("Data", "noise_param { decolorize: true }"), ("ImageData", "expand_param { prob: 0.5 }")):
        text = f"name: 'd' type: '{layer}' top: 'd' transform_param {{ {field} }}"
        with pytest.raises(Error, match="is not supported here"):
            layer_of(text).infer()


# -- MemoryData


MEMORY = """layer { name: "m" type: "MemoryData" top: "data" top: "label" memory_data_param { batch_size: 2 channels: 3 height: 2 width: 1 } }"""


def memory_net(device: Any) -> Net:
    return Net(text_format.Parse(MEMORY, proto.NetParameter()), proto.TEST, device=device)


def test_memory_goes_round_and_begins_anew(device: Any) -> None:
    net = memory_net(device)
    try:
        with pytest.raises(Error, match="the layer has no data yet"):
            net.forward()
        first = np.arange(36, dtype=np.float64).reshape(6, 3, 2, 1)
        net.set_input_arrays(first, np.arange(6))
        held = first.copy()
        first[...] = -1  # the net has copied it
        for index in (0, 1, 2, 0):
            net.forward()
            assert (net.blobs["data"].data == held[2 * index : 2 * index + 2]).all()
            assert net.blobs["label"].data.shape == (2, 1, 1, 1) and net.blobs["label"].data.ravel().tolist() == [2 * index, 2 * index + 1]
        net.set_input_arrays(held[4:] * 2)
        for _ in range(2):
            net.forward()
            assert (net.blobs["data"].data == held[4:] * 2).all() and not net.blobs["label"].data.any()
    finally:
        net.close()


def test_memory_errors(device: Any) -> None:
    net = memory_net(device)
    data = np.zeros((4, 3, 2, 1))
    for arrays, fact in (
        ((data[:, :2],), "data is 4 x 2 x 2 x 1, and the layer requires n x 3 x 2 x 1"),
        ((data[:3],), "data has 3 rows, not a multiple of the batch size 2"),
        ((data[:0],), "data has 0 rows"),
        ((data, np.zeros(3)), "labels has 3 values, data 4 rows"),
        ((data, None, "other"), "the net has no MemoryData layer 'other'"),
    ):
        with pytest.raises(Error) as caught:
            net.set_input_arrays(*arrays)
        assert fact in caught.value.fact and caught.value.fix
    net.close()
    for text, fact in (
        ("channels: 3 height: 2 width: 1", "memory_data_param has no batch_size"),
        ("batch_size: 1 dim: 3", "dim is given, and batch_size too"),
        ("dim: 3 dim: 0", "is 3 x 0"),
    ):
        with pytest.raises(Error, match=fact):
            layer_of(f"name: 'm' type: 'MemoryData' top: 'x' memory_data_param {{ {text} }}").infer()
    layer = layer_of("name: 'm' type: 'MemoryData' top: 'x' transform_param { scale: 2 } memory_data_param { batch_size: 1 channels: 1 height: 1 width: 1 }")
    assert layer.infer() == [(1, 1, 1, 1)] and "does not transform" in layer.notes[0][1]


# -- HDF5Output


def output_net(device: Any, path: pathlib.Path, shapes: str = "shape { dim: 2 dim: 3 } shape { dim: 2 }") -> Net:
    text = f"""force_backward: true layer {{ name: "in" type: "Input" top: "x" top: "y" input_param {{ {shapes} }} }}
        layer {{ name: "out" type: "HDF5Output" bottom: "x" bottom: "y" hdf5_output_param {{ file_name: "{path}" }} }}"""
    return Net(text_format.Parse(text, proto.NetParameter()), proto.TRAIN, device=device)


def test_output_of_several_passes(device: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "out.h5"
    path.write_text("an older file")
    net = output_net(device, path)
    assert path.read_text() == "an older file"  # until a new file replaces it
    for number in range(3):
        net.forward(x=np.full((2, 3), number), y=[number, -number])
        with h5py.File(path) as file:
            assert file["data"].shape == (2 * number + 2, 3, 1, 1) and file["label"].shape == (2 * number + 2, 1, 1, 1)
            assert file["data"][..., 0, 0].tolist() == [[n // 2] * 3 for n in range(2 * number + 2)]
            assert file["label"][..., 0, 0, 0].tolist() == [[n // 2, -(n // 2)][n % 2] for n in range(2 * number + 2)]
    assert os.listdir(tmp_path) == ["out.h5"]
    net.blobs["x"].diff[...] = 7
    net.backward()
    assert not net.blobs["x"].diff.any()
    net.close()


def test_output_errors(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shapes, fact in (
        ("shape { dim: 2 dim: 3 } shape { dim: 3 }", "bottom 0 has 2 rows, bottom 1 has 3"),
        ("shape { dim: 2 dim: 1 dim: 1 dim: 1 dim: 1 } shape { dim: 2 }", "bottom 0 is 2 x 1 x 1 x 1 x 1"),
    ):
        with pytest.raises(Error, match=fact):
            output_net(device, tmp_path / "x.h5", shapes)
    with pytest.raises(Error, match="file_name is missing"):
        layer_of("name: 'o' type: 'HDF5Output' hdf5_output_param { }").infer((1,), (1,))
    with pytest.raises(Error, match="cannot be written") as caught:
        output_net(device, tmp_path / "none" / "x.h5").forward()
    assert "make the folder" in str(caught.value.fix)
    path = tmp_path / "x.h5"
    net = output_net(device, path)
    net.forward()
    before = path.read_bytes()
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=100))
    with pytest.raises(Error, match=r"bytes more, and 100 are free"):
        net.forward()
    assert path.read_bytes() == before
    monkeypatch.undo()
    net.blobs["x"].reshape(2, 4)
    with pytest.raises(Error, match=r"a sample of bottom .* is 4 x 1 x 1, and those in dataset 'data' of .* are 3 x 1 x 1"):
        net.forward()
    net.blobs["x"].reshape(2, 3)
    with h5py.File(path, "r"), pytest.raises(Error) as caught:
        net.forward()
    assert str(caught.value.fix).startswith("close the file in this script before forward: file.close(), or `with h5py.File(")
    path.unlink()
    with pytest.raises(Error, match="cannot be written"):
        net.forward()
    net.close()
