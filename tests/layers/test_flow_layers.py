"""FlowNet's layers of data, augmentation and files, and SegData: random numbers, orders, files, a training, and errors. Cases are in flow_cases.py."""
from __future__ import annotations

import itertools
import json
import pathlib
import shlex
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.api.pysolver import SGDSolver
from ocaffe.cl.device import Device
from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.data.sources.slices import SliceSource, _glibc
from ocaffe.errors import Error
from ocaffe.formats import flow_files
from ocaffe.formats.text import parse
from ocaffe.io import array_to_blobproto
from ocaffe.kernels.inputs.flow_augment import COEFFICIENTS, DEFAULTS, PLACE
from ocaffe.layers.base import registry
from ocaffe.layers.flow_augmentation import DataAugmentation, middle
from ocaffe.selftest import flow
from ocaffe.selftest.case import Case, layer
from ocaffe.selftest.flow import maps, places
from tests.data.small_databases import LMDB, image, raw, write
from tests.layers.flow_cases import CASES, write_boxes, write_files, write_pairs
from tests.layers.single import KINDS, close, run
from tests.layers.test_fork_layers import refusal

pytestmark = pytest.mark.quick

SAMPLES = 600
CROP = "crop_width: 6 crop_height: 5"


def net_of(device: Device, text: str, phase: int = proto.TRAIN, seed: int = 1, **shapes: tuple[int, ...]) -> Net:
    inputs = "".join(
        f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in shape)} }} }} }}\n'
        for name, shape in shapes.items()
    )
    return Net(parse(inputs + text, proto.NetParameter, "net.prototxt"), phase, device=device, seed=seed)


def drawn(device: Device, fields: str, more: str = "", passes: int = 1, seed: int = 1) -> dict[str, np.ndarray]:
    """Return the coefficients that GenerateAugmentationParameters draws for large images, by name, as the layer passes them on."""
    size = "crop_width: 6 crop_height: 5 bottomwidth: 600 bottomheight: 500"
    text = layer("GenerateAugmentationParameters", "", "y", f"augmentation_param {{ num: {SAMPLES} {size} {fields} }} {more}")
    with net_of(device, text, seed=seed) as net:
        for _ in range(passes):
            net.forward()
        values = net.blobs["y"].data.reshape(SAMPLES, COEFFICIENTS).copy()
    return {name: values[:, index] for name, index in PLACE.items()}


def test_distributions(device: Device) -> None:
    """Means and spreads of each kind of random number, the probability, and the coefficients that share a number."""
    found = drawn(
        device,
        "rotate { mean: 0.1 spread: 0.2 } translate { rand_type: 'gaussian' spread: 0.5 } mirror { rand_type: 'bernoulli' prob: 0.3 } "
        "zoom { rand_type: 'uniform_bernoulli' exp: true mean: 1 spread: 0.1 prob: 0.25 } "
        "gamma { rand_type: 'gaussian_bernoulli' exp: true spread: 0.4 prob: 0.5 } "
        "brightness { spread: 3 discretize: true multiplier: 0.1 } sat_pow { exp: true spread: 0.2 } color { exp: true spread: 0.2 }",
    )
    near = pytest.approx
    assert found["angle"].min() > -0.1 and found["angle"].max() < 0.3 and found["angle"].mean() == near(0.1, abs=0.02) and found["angle"].std() > 0.1
    assert found["dx"].std() == near(0.5, rel=0.15) and found["dy"].std() == near(0.5, rel=0.15) and abs(np.corrcoef(found["dx"], found["dy"])[0, 1]) < 0.15
    assert set(found["mirror"]) == {0, 1} and found["mirror"].mean() == near(0.3, abs=0.07)
    zoomed = found["zoom_x"] != 0
    assert zoomed.mean() == near(0.25, abs=0.07) and np.abs(found["zoom_x"][zoomed] - 1).max() < 0.1 and (found["zoom_x"] == found["zoom_y"]).all()
    kept = found["gamma"] == 0  # exp(0) where the probability misses
    assert kept.mean() == near(0.5, abs=0.08) and found["gamma"][~kept].std() == near(0.4, rel=0.2)
    assert set(np.round(10 * found["brightness"]).astype(int)) == set(range(-3, 4))
    assert (found["pow_withmean1"] == found["pow_withmean2"]).all() and found["pow_withmean1"].std() == near(0.2 / np.sqrt(3), rel=0.15)
    assert abs(np.corrcoef(found["color1"], found["color2"])[0, 1]) < 0.15
    assert not any(found[name].any() for name in DEFAULTS if name.startswith(("add", "fog", "lmult")))


def test_numbers_depend_on_seed_and_pass_alone(device: Device) -> None:
    fields = "rotate { spread: 0.2 } gamma { exp: true spread: 0.2 }"
    first, again, later, other = drawn(device, fields), drawn(device, fields), drawn(device, fields, passes=2), drawn(device, fields, seed=2)
    assert (first["angle"] == again["angle"]).all() and (first["angle"] != later["angle"]).any() and (first["angle"] != other["angle"]).any()


def test_schedule_of_the_spread(device: Device) -> None:
    """Half of the way from initial_coeff to final_coeff after half_life passes; a distribution can stay out of it."""
    fields = "rotate { spread: 1 } translate { spread: 1 apply_schedule: false }"
    schedule = "coeff_schedule_param { half_life: 3 initial_coeff: 0 final_coeff: 0.8 }"
    early, late = (drawn(device, fields, schedule, passes) for passes in (1, 3))
    share = 2 / (1 + np.exp(-1.0986 / 3)) - 1
    assert np.abs(early["angle"]).max() == pytest.approx(0.8 * share, rel=0.02) and np.abs(late["angle"]).max() == pytest.approx(0.4, rel=0.02)
    assert np.abs(early["dx"]).max() > 0.95


def test_samples_stay_in_the_image(device: Device) -> None:
    """Places are drawn until the corners of the sample lie in the image. Where that is impossible, nothing moves."""
    spread = "rotate { spread: 0.5 } translate { spread: 0.5 } zoom { exp: true mean: 0.4 spread: 0.4 } squeeze { exp: true spread: 0.2 }"
    text = layer("DataAugmentation", "x", "y p", f"augmentation_param {{ {CROP} {spread} }}")
    far = layer("DataAugmentation", "x", "z q", f"augmentation_param {{ {CROP} translate {{ mean: 9 }} brightness {{ mean: 0.5 }} }}")
    with net_of(device, text + far, x=(200, 3, 9, 10)) as net:
        net.forward()
        stored, moved = (net.blobs[name].data.reshape(200, COEFFICIENTS).astype(float) for name in "pq")
    values = {name: np.exp(stored[:, k]) if DEFAULTS[name] else stored[:, k] for name, k in PLACE.items()}
    at = places(maps(values, (5, 6), (9, 10)), (5, 6))
    free = stored[:, :6].any(1)
    assert free.mean() > 0.9 and at[free, 0].min() > -1e-4 and at[free, 0].max() < 9 and at[free, 1].min() > -1e-4 and at[free, 1].max() < 8
    assert np.abs(stored[:, PLACE["zoom_x"]] - stored[:, PLACE["zoom_y"]]).max() > 0.1
    assert not moved[:, :6].any() and moved[:, PLACE["brightness"]] == pytest.approx(0.5)


def test_noise(device: Device) -> None:
    text = layer("DataAugmentation", "x", "y", f"augmentation_param {{ {CROP} noise {{ mean: 0.1 }} max_multiplier: 1 }}")
    with net_of(device, text, x=(40, 3, 9, 10)) as net:
        net.blobs["x"].data[...] = 0.5
        net.forward()
        first = net.blobs["y"].data.copy()
        net.forward()
        second = net.blobs["y"].data.copy()
    assert first.std() == pytest.approx(0.1, rel=0.05) and first.mean() == pytest.approx(0.5, abs=0.01) and (first != second).mean() > 0.99
    assert abs(np.corrcoef(first[:, 0].ravel(), first[:, 1].ravel())[0, 1]) < 0.1


def test_black_samples(device: Device) -> None:
    """All images of a black sample are the last one, and its flow is 0. Borders come at two sides, above and below, and at all."""
    text = layer("BlackAugmentation", "a b f", "x y g", "black_augmentation_param { black { rand_type: 'bernoulli' prob: 0.4 } border { mean: 0.3 } }")
    with net_of(device, text, a=(60, 3, 10, 10), b=(60, 3, 10, 10), f=(60, 2, 10, 10)) as net:
        for k, name in enumerate("abf"):
            net.blobs[name].data[...] = np.random.default_rng(k).uniform(1, 2, net.blobs[name].data.shape)
        net.forward()
        a, b, x, y, g = (net.blobs[name].data.copy() for name in "abxyg")
    black = (x == b).all((1, 2, 3))
    assert 0.2 < black.mean() < 0.6 and (y[black] == b[black]).all() and not g[black].any()
    rows, columns = (x[~black] == 0)[:, 0, :, 5].sum(1), (x[~black] == 0)[:, 0, 5].sum(1)
    assert set(zip(rows.tolist(), columns.tolist())) == {(0, 6), (6, 0), (6, 6)}
    assert ((x[~black] == 0) | (x[~black] == a[~black])).all() and (g[~black] == 0).any()


def test_means_of_the_first_batches(device: Device) -> None:
    """recompute_mean 2: the third pass uses the means of two batches, in TEST too."""
    text = layer("DataAugmentation", "x", "y", "augmentation_param { recompute_mean: 2 mean_per_pixel: false }")
    batches = np.random.default_rng(1).uniform(0, 9, (3, 2, 3, 4, 5)).astype(np.float32)
    with net_of(device, text, proto.TEST, x=(2, 3, 4, 5)) as net:
        for k, batch in enumerate(batches):
            net.blobs["x"].data[...] = batch
            net.forward()
            mean = batches[: min(k + 1, 2)].mean((0, 1, 3, 4))
            np.testing.assert_allclose(net.blobs["y"].data, batch - mean[:, None, None], atol=1e-5)
        assert [float(net.params["y"][0].data.ravel()[0]), net.params["y"][2].data.shape] == [3, (1, 3, 1, 1)]


@pytest.mark.parametrize("per_pixel", [False, True])
def test_means_of_a_file_with_another_size(per_pixel: bool) -> None:
    """A file of a training with a crop gives the mean of each channel."""
    text = layer("DataAugmentation", "x", "y", f"augmentation_param {{ recompute_mean: 2 mean_per_pixel: {str(per_pixel).lower()} }}")
    param = parse(text, proto.NetParameter, "")
    made = DataAugmentation(param.layer[0], proto.TEST)
    made.infer((2, 3, 4, 5))
    pixels, channels = np.random.default_rng(1).uniform(0, 9, (1, 3, 6, 7)), np.array([1.0, 2, 3]).reshape(1, 3, 1, 1)
    count, mean, each = made.stored([np.full((1, 1, 1, 1), 9.0), pixels, channels])
    assert count is not None and mean is not None and each is not None and count.item() == 9 and mean.shape == (1, 3, 4, 5)
    np.testing.assert_allclose(each.ravel(), pixels.mean((0, 2, 3)) if per_pixel else [1, 2, 3], rtol=1e-6)
    np.testing.assert_allclose(mean[0, :, 2, 2], pixels.mean((0, 2, 3)) if per_pixel else 0, rtol=1e-6)
    same = made.stored([np.zeros((1, 1, 1, 1)), np.ones((1, 3, 4, 5)), channels])[1]
    assert same is not None and (same == (1 if per_pixel else 0)).all()


def test_the_middle_is_between_pixels_if_the_difference_is_odd() -> None:
    np.testing.assert_allclose(middle(5, 2), [[0, 0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5, 0]])
    np.testing.assert_allclose(middle(3, 3)[2], [0, 0.05, 0.95], atol=1e-6)
    np.testing.assert_allclose(middle(1, 1), [[1]])


# -- CustomData --------------------------------------------------------------------------------------------------------

FIRST = [1804289383, 846930886, 1681692777, 1714636915]  # rand() of glibc after srand(1)


def records(tmp_path: pathlib.Path, batches: int = 3, entries: int = 10, key: tuple[int, int] = (1, 2), **fields: Any) -> list[list[int]]:
    """Return the labels of batches of 4 records, which are their numbers."""
    if not (tmp_path / "db").exists():
        write(tmp_path / "db", [raw(n) for n in range(entries)])
    param = proto.DataParameter(source=str(tmp_path / "db"), backend=LMDB, batch_size=4, **fields)
    source = SliceSource(param, 2)
    source.key = key
    found = []
    for index in range(batches):
        buffer = np.empty(source.nbytes, np.uint8)
        source.fill(index, buffer)
        found.append(source.layout.views(buffer)[1].ravel().astype(int).tolist())
    return found


def test_random_numbers_of_glibc() -> None:
    assert list(itertools.islice(_glibc(1), 4)) == FIRST


def test_orders(tmp_path: pathlib.Path) -> None:
    assert records(tmp_path) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    assert records(tmp_path, range_start=2, range_end=6) == [[2, 3, 4, 5], [6, 2, 3, 4], [5, 6, 2, 3]]
    order, words = list(range(10)), _glibc(77)
    for i in range(1, 10):  # std::random_shuffle
        j = next(words) % (i + 1)
        order[i], order[j] = order[j], order[i]
    twice = order * 2
    assert records(tmp_path, rand_permute=True, rand_permute_seed=77) == [twice[:4], twice[4:8], twice[8:12]]
    assert records(tmp_path, 1, rand_permute=True, rand_permute_seed=77, range_start=1, range_end=4)[0] == order[1:5]
    chosen = records(tmp_path, 1, rand_permute=True, rand_permute_seed=77, range_start=1, range_end=4, rand_permute_order=1)[0]
    assert sorted(chosen) == [1, 2, 3, 4] and chosen != order[1:5]
    blocks = list(itertools.chain(*records(tmp_path, 2, rand_permute=True, block_size=5)))
    assert sorted(blocks[:5]) == [0, 1, 2, 3, 4] and blocks[4] == 4  # the last one of a block stays
    mine, other = records(tmp_path, rand_permute=True), records(tmp_path, rand_permute=True, key=(1, 3))
    assert mine != other and sorted([*itertools.chain(*mine)][:10]) == list(range(10)) and mine == records(tmp_path, rand_permute=True)
    again = records(tmp_path, 6, rand_permute=True, rand_permute_seed=77, permute_every_iter=2)
    assert again[:2] == [twice[:4], twice[4:8]] and again[2] != twice[8:12]


def test_preselection(tmp_path: pathlib.Path) -> None:
    (tmp_path / "labels.txt").write_text("0 1 0 1 1 0 1 0 0 1\n")
    given = {"preselection_file": str(tmp_path / "labels.txt"), "preselection_label": 1}
    assert records(tmp_path, 2, **given) == [[1, 3, 4, 6], [9, 1, 3, 4]]
    assert records(tmp_path, 1, range_start=2, **given) == [[4, 6, 9, 4]]
    with pytest.raises(Error, match="has no 7"):
        records(tmp_path, **(given | {"preselection_label": 7}))
    with pytest.raises(Error, match="without preselection_label"):
        records(tmp_path, preselection_file=given["preselection_file"])
    (tmp_path / "labels.txt").write_text("0 1 x\n")
    with pytest.raises(Error, match="has 'x'"):
        records(tmp_path, **given)
    (tmp_path / "labels.txt").write_text("0 1\n")
    with pytest.raises(Error, match="has 2 numbers, the database 10 records"):
        records(tmp_path, **given)


def test_subtract_and_scale(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "db", [raw(n) for n in range(3)])
    source = SliceSource(proto.DataParameter(source=str(tmp_path / "db"), backend=LMDB, batch_size=2, slice_point=[1], subtract=[3, 5], scale=0.5), 2)
    buffer = np.empty(source.nbytes, np.uint8)
    source.fill(0, buffer)
    first, rest = source.layout.views(buffer)
    pixels = np.stack([image(n) for n in range(2)]).astype(float)
    np.testing.assert_array_equal(np.concatenate([first, rest], 1), (pixels - np.array([3, 5, 0])[:, None, None]) / 2)


@pytest.mark.parametrize(
    ("fields", "tops", "told"),
    [
        ("batch_size: 2 slice_point: 9", "a b", "slice_point are 9, a record has 9 channels"),
        ("batch_size: 2 slice_point: 3", "a b c d", "the layer has 4 tops, and slice_point makes 2 slices"),
        ("batch_size: 2 slice_point: 3 encoding: UINT8 encoding: UINT8", "a b", "it has 304 bytes of data, and slices of UINT8, UINT8 have 270"),
        ("batch_size: 2 crop_size: 3", "a", "'crop_size' is not supported here"),
        ("", "a", "batch_size is missing"),
        ("batch_size: 2 range_start: 3 range_end: 1", "a", "range_end is 1, range_start 3"),
        ("batch_size: 2 limit_samples: 3", "a", "limit_samples is set, which is not supported: other layers of FlowNet 2"),
        ('batch_size: 2 preselection_file: "none.txt" preselection_label: 1', "a", "none.txt does not exist"),
    ],
)
def test_mistakes_of_custom_data(tmp_path: pathlib.Path, device: Device, fields: str, tops: str, told: str) -> None:
    write_pairs(str(tmp_path))
    text = layer("CustomData", "", tops, f'data_param {{ source: "{tmp_path}/pairs" backend: LMDB {fields} }}')
    with pytest.raises(Error) as caught, net_of(device, text) as net:
        net.forward()
    assert told in str(caught.value), str(caught.value)


# -- files ---------------------------------------------------------------------------------------------------------------


def test_written_files(tmp_path: pathlib.Path, device: Device) -> None:
    """Two samples in two passes: names with the numbers of the pass and of the sample; the contents are FlowNet's."""
    folder = tmp_path / "new" / "out"
    writers = [
        ("FLOWriter", "f", ""), ("FloatWriter", "f", 'suffix: "_v"'), ("PFMWriter", "d", ""), ("ImgWriter", "i", "scale: 2"),
        ("ImgWriter", "d", "normalize: true"),
    ]  # fmt: skip
    text = "".join(
        f'layer {{ name: "w{k}" type: "{kind}" bottom: "{bottom}" writer_param {{ folder: "{folder}" prefix: "p{k}_" {more} }} }}\n'
        for k, (kind, bottom, more) in enumerate(writers)
    )
    rng = np.random.default_rng(1)
    values = {"f": rng.normal(0, 9, (2, 2, 3, 4)), "d": rng.uniform(-3, 9, (2, 1, 3, 4)), "i": rng.uniform(-20, 140, (2, 3, 3, 4))}
    values = {name: array.astype(np.float32) for name, array in values.items()}
    with net_of(device, text, proto.TEST, **{name: array.shape for name, array in values.items()}) as net:
        for name, array in values.items():
            net.blobs[name].data[...] = array
        net.forward()
        net.forward()
    made = sorted(path.name for path in folder.iterdir())
    assert len(made) == 20 and made[:4] == ["p0_0000000(000).flo", "p0_0000000(001).flo", "p0_0000001(000).flo", "p0_0000001(001).flo"]
    content = (folder / "p0_0000000(001).flo").read_bytes()
    assert content[:12] == b"PIEH" + np.array([4, 3], "<i4").tobytes()
    np.testing.assert_array_equal(np.frombuffer(content[12:], "<f4").reshape(3, 4, 2).transpose(2, 0, 1), values["f"][1])
    assert (folder / "p1_0000000(000)_v.float3").read_bytes().startswith(b"float\n3\n4\n3\n2\n")
    np.testing.assert_array_equal(flow_files.read_float3(str(folder / "p1_0000000(000)_v.float3")), values["f"][0])
    assert (folder / "p2_0000000(000).pfm").read_bytes().startswith(b"Pf\n4 3\n1.0\n")
    np.testing.assert_array_equal(flow_files.read_pfm(str(folder / "p2_0000000(000).pfm")), values["d"][0])
    shown = np.asarray(Image.open(folder / "p3_0000001(001).ppm")).transpose(2, 0, 1)[::-1]
    np.testing.assert_array_equal(shown, np.clip(2 * values["i"][1], 0, 255).astype(np.uint8))
    gray = np.asarray(Image.open(folder / "p4_0000000(000).pgm"))
    assert gray.min() == 0 and gray.max() == 255


def test_a_file_that_is_named(tmp_path: pathlib.Path, device: Device) -> None:
    text = f'layer {{ name: "w" type: "FLOWriter" bottom: "f" writer_param {{ file: "{tmp_path}/one.flo" }} }}'
    with net_of(device, text, proto.TEST, f=(1, 2, 3, 4)) as net:
        net.forward()
    assert [path.name for path in tmp_path.iterdir()] == ["one.flo"]
    (tmp_path / "taken").write_text("")
    text = f'layer {{ name: "w" type: "FLOWriter" bottom: "f" writer_param {{ folder: "{tmp_path}/taken/x" }} }}'
    with net_of(device, text, proto.TEST, f=(1, 2, 3, 4)) as net, pytest.raises(Error, match=r"taken.* cannot be written"):
        net.forward()


def test_disparities_of_little_endian_files(tmp_path: pathlib.Path) -> None:
    values = np.arange(24, dtype="<f4").reshape(2, 4, 3)
    (tmp_path / "a.pfm").write_bytes(b"PF\n4 2\n-1.0\n" + values[::-1].tobytes())
    np.testing.assert_array_equal(flow_files.read_pfm(str(tmp_path / "a.pfm")), -values.transpose(2, 0, 1))
    (tmp_path / "a.float3").write_bytes(b"float\n2\n3\n2\n" + values[0, :2].tobytes())
    np.testing.assert_array_equal(flow_files.read_float3(str(tmp_path / "a.float3")), values[0, :2].reshape(1, 2, 3))


@pytest.mark.parametrize(
    "content",
    [b"", b"float\n3\n4\n", b"float\n4\n1\n1\n1\n1\n", b"float\n3\n9\n9\n9\n1234", b"float\n3\n0\n1\n1\n", b"PF\n9 9\n1\n12", b"PF\n1\n"],
)
def test_damaged_files(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    for read in (flow_files.read_float3, flow_files.read_pfm):
        with pytest.raises(Error, match="bad "):
            read(str(path))


@pytest.mark.parametrize(
    ("kind", "more", "shapes", "told"),
    [
        ("DataAugmentation", "augmentation_param { crop_width: 9 crop_height: 2 }", ("1 3 4 4",), "the sample is 2 x 9, the image is 4 x 4"),
        ("DataAugmentation", "", ("1 3 4 4", "1 41 1 1"), "bottom 1 is 1 x 41 x 1 x 1, and there are 1 samples"),
        ("DataAugmentation", f"augmentation_param {{ {CROP} gamma {{ spread: 1 }} }}", ("1 2 9 9",), "gamma given for 2 channels"),
        ("DataAugmentation", f"augmentation_param {{ {CROP} sat_pow {{ spread: 1 }} }}", ("1 3 9 9",), "sat_pow without chromatic_eigvec"),
        ("DataAugmentation", "augmentation_param { chromatic_eigvec: 1 }", ("1 3 9 9",), "chromatic_eigvec is given once"),
        ("DataAugmentation", f"augmentation_param {{ {CROP} rotate {{ rand_type: 'normal' }} }}", ("1 3 9 9",), "rotate has the rand_type 'normal'"),
        ("GenerateAugmentationParameters", "", ("1 3 9 9", "1 3 9 9"), "2 bottoms are given"),
        ("GenerateAugmentationParameters", "", ("1 42 1 1",), "crop_width and crop_height are not given"),
        ("GenerateAugmentationParameters", f"augmentation_param {{ {CROP} rotate {{ spread: 1 }} }}", ("1 42 1 1",), "bottomwidth and bottomheight are"),
        ("GenerateAugmentationParameters", "augmentation_param { mode: 'mix' }", ("1 42 1 1", "1 3 9 9", "1 3 5 5"), "mode is 'mix'"),
        ("GenerateAugmentationParameters", f"augmentation_param {{ {CROP} }}", (), "num is missing"),
        ("FlowAugmentation", "", ("1 2 9 9", "1 42 1 1", "1 42 1 1"), "crop_width and crop_height are not given"),
        ("FlowAugmentation", f"augmentation_param {{ {CROP} }}", ("1 3 9 9", "1 42 1 1", "1 42 1 1"), "bottom 0 is 1 x 3 x 9 x 9"),
        ("BlackAugmentation", "", ("1 4 9 9",), "bottom 0 is 1 x 4 x 9 x 9"),
        ("BlackAugmentation", "", ("1 3 9 9", "1 3 9 9"), "2 bottoms and 1 tops are given"),
        ("Accum", "", ("1 3 9 9", "2 3 9 9"), "bottom 1 is 2 x 3 x 9 x 9, bottom 0 is 1 x 3 x 9 x 9"),
        ("Accum", "accum_param { have_reference: true }", ("1 3 9 9",), "have_reference is true, and 1 bottom is given"),
        ("Accum", "accum_param { size_divisible_by: 0 }", ("1 3 9 9",), "size_divisible_by is 0"),
        ("Eltwise", "", ("1 3 9 9",), "1 bottom is given"),
        ("Eltwise", "eltwise_param { operation: MAX }", ("1 3 9 9",), "1 bottom is given"),
        ("FLOWriter", "writer_param { folder: 'x' }", ("1 3 9 9",), "bottom 0 is 1 x 3 x 9 x 9"),
        ("FLOWriter", "", ("1 2 9 9",), "neither file nor folder is given"),
        ("ImgWriter", "writer_param { file: 'x' }", ("2 3 9 9",), "file is x, and the batch has 2 samples"),
        ("ImgReader", "", (), "file is missing"),
        ("ImgReader", "reader_param { file: 'none.png' }", (), "file none.png does not exist"),
    ],
)
def test_errors(kind: str, more: str, shapes: tuple[str, ...], told: str) -> None:
    bottoms = " ".join(f"x{k}" for k in range(len(shapes)))
    inputs = "".join(
        f'layer {{ name: "x{k}" type: "Input" top: "x{k}" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in shape.split())} }} }} }}\n'
        for k, shape in enumerate(shapes)
    )
    top = "" if kind.endswith("Writer") else 'top: "y"'
    named = "".join(f' bottom: "{name}"' for name in bottoms.split())
    text = inputs + f'layer {{ name: "y" type: "{kind}"{named} {top} {more} }}'
    with pytest.raises(Error) as caught:
        Net(parse(text, proto.NetParameter, "net.prototxt"), proto.TRAIN)
    assert told in str(caught.value), str(caught.value)


# -- SegData -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def street(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two pictures of different sizes with labels, of which the second has nearly one label alone."""
    for n, (height, width) in enumerate([(21, 30), (17, 12)]):
        Image.fromarray(np.ascontiguousarray(image(n, (3, height, width))[::-1].transpose(1, 2, 0))).save(tmp_path / f"i{n}.png")
        labels = image(n + 5, (1, height, width))[0] % 9
        if n:
            labels[:, :10] = 3
        Image.fromarray(labels).save(tmp_path / f"l{n}.png")
    (tmp_path / "list.txt").write_text("i0.png l0.png\ni1.png l1.png\n")
    return tmp_path


def seg_net(device: Device, folder: pathlib.Path, transform: str, param: str = "") -> Net:
    source = f'seg_data_param {{ source: "{folder}/list.txt" root_dir: "{folder}/" {param} }}'
    return net_of(device, layer("SegData", "", "data label", f"{source} transform_param {{ {transform} }}"), seed=3)


def test_scales_strides_and_mirrors(device: Device, street: pathlib.Path) -> None:
    """Each sample is a crop of the scaled picture, its sides are multiples of the stride, at most upper_height and upper_width, and labels move alike."""
    shapes, flips = set(), 0
    fields = "scale_ratios: 0.8 scale_ratios: 1.5 stride: 4 upper_height: 20 upper_width: 32 mirror: true mean_value: 100 crop_size: 3"
    with seg_net(device, street, fields) as net:
        assert net.blobs["data"].data.shape == (1, 3, 20, 28)
        for step in range(24):
            net.forward()
            data, label = net.blobs["data"].data[0] + 100, net.blobs["label"].data[0]
            n = step % 2
            height, width = (21, 30) if n == 0 else (17, 12)
            pixels, labels = image(n, (3, height, width)), np.asarray(Image.open(street / f"l{n}.png"))[None]
            sides = [(int(np.float32(height) * scale + 0.5), int(np.float32(width) * scale + 0.5)) for scale in np.float32(0.8 + np.arange(701) / 1000)]
            found = [
                (size, flip)
                for size in dict.fromkeys(sides)
                if (min(size[0] // 4 * 4, 20), min(size[1] // 4 * 4, 32)) == data.shape[1:]
                for flip in (1, -1)
                if shows(resize(pixels, *size), resize(labels, *size, Interpolation.NEAREST), data[:, :, ::flip], label[:, :, ::flip])
            ]
            assert found, (step, data.shape)
            shapes.add(data.shape)
            flips += found[0][1] < 0
    assert len(shapes) > 6 and 4 < flips < 20


def shows(pixels: np.ndarray, labels: np.ndarray, data: np.ndarray, label: np.ndarray) -> bool:
    """Whether data and label are one crop of a picture and its labels."""
    height, width = data.shape[1:]
    corners = itertools.product(range(pixels.shape[1] - height + 1), range(pixels.shape[2] - width + 1))
    return any(
        np.array_equal(labels[:, y : y + height, x : x + width], label) and np.allclose(pixels[:, y : y + height, x : x + width], data, atol=1e-3)
        for y, x in corners
    )


def test_balance(device: Device, street: pathlib.Path) -> None:
    """A sample of which one label has more than 80 % is drawn again, so such samples are rarer."""
    (street / "list.txt").write_text("i1.png l1.png\n")
    shares = []
    for param in ("", "balance: true"):
        with seg_net(device, street, "stride: 1 upper_height: 8 upper_width: 8", param) as net:
            found = []
            for _ in range(30):
                net.forward()
                found.append(np.bincount(net.blobs["label"].data.ravel().astype(int)).max() / 64 > 0.8)
        shares.append(np.mean(found))
    assert shares[0] > 0.4 and shares[1] < 0.3


@pytest.mark.parametrize(
    ("transform", "told"),
    [
        ("stride: 0", "stride is 0"),
        ("stride: 40", "nothing is left of it with stride 40"),
        ("scale_ratios: 0.5", "scale_ratios are 0.5"),
        ("scale_ratios: 2 scale_ratios: 1", "scale_ratios are 2, 1"),
        ("upper_height: 8", "only upper_height of upper_height and upper_width is given"),
        ("upper_size: 0", "the largest sample is 0 x 0"),
        ('mean_file: "x"', "x does not exist"),
        ("original_image: true", "original_image is set, which is not supported"),
    ],
)
def test_mistakes_of_seg_data(device: Device, street: pathlib.Path, transform: str, told: str) -> None:
    with pytest.raises(Error) as caught:
        seg_net(device, street, transform)
    assert told in str(caught.value), str(caught.value)


def test_missing_files_of_seg_data(device: Device, street: pathlib.Path) -> None:
    (street / "list.txt").write_text("i0.png l0.png\ni1.png none.png\n")
    with seg_net(device, street, "") as net, pytest.raises(Error, match=r"list.txt, line 2: .*none.png"):
        for _ in range(3):
            net.forward()


# -- FrcnnRoiData --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "settings", "told"),
    [
        ("# 0\nimage.png\n1\n3 1 1 2 2 0\n", {}, "line 4: the label is 3, and n_classes is 3\n  fix: write a label from 1 to 2, or set"),
        ("# 0\nimage.png\n1\n1 3 1 2 2 0\n", {}, "line 4: the box x1 y1 x2 y2 is 3 1 2 2"),
        ("# 0\nimage.png\n1\n1 1 1\n", {}, "line 4: '1 1 1' instead of a box"),
        ("# 0\nimage.png\n0\n", {}, "image.png has no boxes"),
        ("# 0\nother.png\n1\n1 1 1 2 2 0\n", {}, "other.png does not exist"),
        ("1\nimage.png\n1\n1 1 1 2 2 0\n", {}, "line 1: '1' instead of '#' and a number"),
        ("", {}, "'the end of the file' instead of '#'"),
        ("# 0\nimage.png\n1\n1 1 1 2 2 0\n", {"data_jitter": "0.1"}, "sets data_jitter: 0.1"),
        ("# 0\nimage.png\n1\n1 1 1 2 2 0\n", {"use_haze_free": "1"}, "sets use_haze_free: 1"),
        ("# 0\nimage.png\n1\n1 1 1 2 2 0\n", {"scales": "0"}, "scales are [0.0]"),
    ],
)
def test_mistakes_of_frcnn_roi_data(tmp_path: pathlib.Path, words: str, settings: dict[str, str], told: str) -> None:
    write_boxes(str(tmp_path))
    (tmp_path / "boxes.txt").write_text(words)
    config = json.loads((tmp_path / "config.json").read_text()) | settings
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = f'top: "i" top: "b" window_data_param {{ source: "{tmp_path}/boxes.txt" config: "{tmp_path}/config.json" root_folder: "{tmp_path}/" }}'
    assert told in refusal("FrcnnRoiData", text)


def test_settings_of_the_data_layer_are_those_of_the_net(tmp_path: pathlib.Path, device: Device) -> None:
    """The nets of the fork name the file of settings in FrcnnRoiData alone; it has 3 classes."""
    write_boxes(str(tmp_path))
    source = f'window_data_param {{ source: "{tmp_path}/boxes.txt" config: "{tmp_path}/config.json" root_folder: "{tmp_path}/" }}'
    text = layer("FrcnnRoiData", "", "data im_info gt_boxes", source) + layer("FrcnnProposalTarget", "rois gt_boxes", "r labels targets inside outside")
    with net_of(device, text, rois=(20, 5)) as net:
        assert net.blobs["targets"].data.shape[1] == 12
    with pytest.raises(Error, match="frcnn_param names no file"):
        net_of(device, layer("FrcnnProposalTarget", "rois gt_boxes", "r labels targets inside outside"), rois=(20, 5), gt_boxes=(2, 5))


def test_mirrored_boxes(tmp_path: pathlib.Path, device: Device) -> None:
    """In TRAIN about half of the images are mirrored, and their boxes too."""
    write_boxes(str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text()) | {"scales": "6", "max_size": "8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = f'window_data_param {{ source: "{tmp_path}/boxes.txt" config: "{tmp_path}/config.json" root_folder: "{tmp_path}/" }}'
    seen = []
    with net_of(device, layer("FrcnnRoiData", "", "data im_info gt_boxes", source)) as net:
        for _ in range(12):
            net.forward()
            data, boxes = net.blobs["data"].data[0] + np.array([10, 20, 30])[:, None, None], net.blobs["gt_boxes"].data
            flip = bool(np.allclose(data[:, :6], image(3)[:, :, ::-1], atol=1e-4))
            assert flip or np.allclose(data[:, :6], image(3), atol=1e-4)
            expected = [[2, 2, 6, 4, 2], [0, 0, 7, 3, 1]] if flip else [[1, 2, 5, 4, 2], [0, 0, 7, 3, 1]]
            np.testing.assert_allclose(boxes[:2], expected)
            seen.append(flip)
    assert 2 < sum(seen) < 10


# -- a training ----------------------------------------------------------------------------------------------------------

FLOWNET = """
layer { name: "CustomData1" type: "CustomData" top: "blob0" top: "blob1" top: "blob2" top: "mask"
  data_param { source: "{folder}/pairs" batch_size: 4 backend: LMDB rand_permute: true rand_permute_seed: 77 slice_point: 3 slice_point: 6 slice_point: 8
    encoding: UINT8 encoding: UINT8 encoding: UINT16FLOW encoding: BOOL1 verbose: true } }
layer { name: "Silence" type: "Silence" bottom: "mask" }
layer { name: "e1" type: "Eltwise" bottom: "blob0" top: "blob4" eltwise_param { operation: SUM coeff: 0.00392156862745 } }
layer { name: "e2" type: "Eltwise" bottom: "blob1" top: "blob5" eltwise_param { operation: SUM coeff: 0.00392156862745 } }
layer { name: "img0s_aug" type: "DataAugmentation" bottom: "blob4" top: "img0_aug" top: "blob7" propagate_down: false
  augmentation_param { max_multiplier: 1 recompute_mean: 3 mean_per_pixel: false crop_width: 16 crop_height: 16
    translate { rand_type: "uniform_bernoulli" spread: 0.1 } rotate { rand_type: "uniform_bernoulli" spread: 0.1 } zoom { exp: true mean: 0.3 spread: 0.1 }
    lmult_pow { exp: true mean: -0.2 spread: 0.4 } sat_mult { exp: true mean: -0.3 spread: 0.5 } col_rotate { spread: 1 } noise { mean: 0.03 spread: 0.03 }
    chromatic_eigvec: [0.51, 0.56, 0.65, 0.79, 0.01, -0.62, 0.35, -0.83, 0.44] } }
layer { name: "aug_params1" type: "GenerateAugmentationParameters" bottom: "blob7" bottom: "blob4" bottom: "img0_aug" top: "blob8"
  augmentation_param { translate { rand_type: "gaussian_bernoulli" spread: 0.03 } gamma { exp: true spread: 0.02 } }
  coeff_schedule_param { half_life: 50000 initial_coeff: 0.5 final_coeff: 1 } }
layer { name: "img1s_aug" type: "DataAugmentation" bottom: "blob5" bottom: "blob8" top: "img1_aug" propagate_down: false propagate_down: false
  augmentation_param { max_multiplier: 1 recompute_mean: 3 mean_per_pixel: false crop_width: 16 crop_height: 16
    chromatic_eigvec: [0.51, 0.56, 0.65, 0.79, 0.01, -0.62, 0.35, -0.83, 0.44] } }
layer { name: "FlowAugmentation1" type: "FlowAugmentation" bottom: "blob2" bottom: "blob7" bottom: "blob8" top: "flow_gt"
  augmentation_param { crop_width: 16 crop_height: 16 } }
layer { name: "FlowScaling" type: "Eltwise" bottom: "flow_gt" top: "scaled" eltwise_param { operation: SUM coeff: 0.05 } }
layer { name: "Concat1" type: "Concat" bottom: "img0_aug" bottom: "img1_aug" top: "pair" }
layer { name: "conv1" type: "Convolution" bottom: "pair" top: "conv1" convolution_param { num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" relu_param { negative_slope: 0.1 } }
layer { name: "predict" type: "Convolution" bottom: "conv1" top: "predict"
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
layer { name: "loss" type: "L1Loss" bottom: "predict" bottom: "scaled" top: "loss" l1_loss_param { l2_per_location: true } }
"""


def write_moved(folder: pathlib.Path) -> None:
    """Write pairs of images of 24 x 24 pixels, of which the second is the first, moved by (3, -2)."""
    made = []
    for n in range(6):
        first = image(n, (3, 24, 24))
        second = np.roll(first, (-2, 3), (1, 2))
        flow = np.broadcast_to(np.array([3 * 32, -2 * 32], "<i2")[:, None, None], (2, 24, 24))
        content = first.tobytes() + second.tobytes() + flow.tobytes() + np.packbits(np.ones(576, np.uint8)).tobytes()
        made.append(proto.Datum(channels=9, height=24, width=24, data=content).SerializeToString())
    write(folder / "pairs", made)


def test_a_training_of_flow(tmp_path: pathlib.Path, device: Device) -> None:
    """The data part of FlowNet's and LiteFlowNet's training nets: the loss falls, the flow is that of the moved images, and the weights have the means."""
    write_moved(tmp_path)
    (tmp_path / "net.prototxt").write_text(FLOWNET.replace("{folder}", str(tmp_path)))
    (tmp_path / "solver.prototxt").write_text(
        f'net: "{tmp_path}/net.prototxt" base_lr: 0.00001 momentum: 0.9 lr_policy: "fixed" max_iter: 60 random_seed: 5 snapshot_prefix: "{tmp_path}/flow"'
    )
    solver = SGDSolver(str(tmp_path / "solver.prototxt"), device=device)
    losses = []
    for _ in range(60):
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data))
    flow, stored = solver.net.blobs["flow_gt"].data, solver.net.blobs["blob7"].data.reshape(4, COEFFICIENTS)
    assert np.isfinite(losses).all() and np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10])
    assert stored[:, PLACE["angle"]].any() and stored[:, PLACE["zoom_x"]].min() > 0.2
    # zoom makes the flow longer, rotations and the second image's own move turn and shift it
    assert 3 < np.hypot(flow[:, 0], flow[:, 1]).mean() < 7
    count, _, channels = (parameter.data for parameter in solver.net.params["img0s_aug"])
    assert count.ravel()[0] == 60 and 0.2 < channels.mean() < 0.8
    assert abs(float(solver.net.blobs["img0_aug"].data.mean())) < 0.2
    solver.close()


def test_a_deploy_net_reads_and_writes_files(tmp_path: pathlib.Path, device: Device) -> None:
    """ImgReader, the mean of the weights, and FLOWriter, as FlowNet 2's deploy nets have them."""
    write_files(str(tmp_path))
    text = (
        layer("ImgReader", "", "a", f'reader_param {{ file: "{tmp_path}/image.png" }}')
        + layer("Eltwise", "a", "s", "eltwise_param { operation: SUM coeff: 0.00392156862745 }")
        + layer("DataAugmentation", "s", "m", "augmentation_param { recompute_mean: 1000 mean_per_pixel: false augment_during_test: true }")
        + layer("Convolution", "m", "flow", "convolution_param { num_output: 2 kernel_size: 1 }")
        + f'layer {{ name: "w" type: "FLOWriter" bottom: "flow" writer_param {{ file: "{tmp_path}/out.flo" }} }}'
    )
    channels = np.array([0.4, 0.5, 0.6], np.float32)
    weights = np.array([[1, 0, 0], [0, 1, 1]], np.float32).reshape(2, 3, 1, 1)
    mean = [np.full((1, 1, 1, 1), 5000.0), np.zeros((1, 3, 384, 448)), channels.reshape(1, 3, 1, 1)]
    model = proto.NetParameter()
    for name, blobs in (("m", mean), ("flow", [weights, np.zeros(2, np.float32)])):
        model.layer.add(name=name, type="Convolution").blobs.extend(array_to_blobproto(blob) for blob in blobs)
    (tmp_path / "net.caffemodel").write_bytes(model.SerializeToString())
    with net_of(device, text, proto.TEST) as net:
        net.copy_from(str(tmp_path / "net.caffemodel"))
        net.forward()
    pixels = image(3) / 255 - channels[:, None, None]
    content = np.frombuffer((tmp_path / "out.flo").read_bytes()[12:], "<f4").reshape(6, 8, 2)
    np.testing.assert_allclose(content[..., 0], pixels[0], atol=1e-5)
    np.testing.assert_allclose(content[..., 1], pixels[1] + pixels[2], atol=1e-5)


# -- views with gaps, and both classes of devices ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("case", [*flow.cases()[:3], *(case for case in CASES if case.name.startswith("Accum"))], ids=lambda case: case.name)
def test_views(device: Device, case: Case, kind: str, strided: bool) -> None:
    """Bottoms, tops and diffs may be slices of other blobs. Diffs that hold values are added to."""
    arrays = case.arrays()
    param = case.message(arrays, "").layer[-1]
    bottoms = [arrays[name] for name in param.bottom]
    expected = case.values({name: array.astype(float) for name, array in arrays.items()}, {})["y"]
    slope = np.random.default_rng(1).standard_normal(expected.shape) if case.smooth else None
    wanted = [name in case.smooth for name in param.bottom]
    params = [np.zeros((1, 1, 1, 1))] if param.type == "DataAugmentation" else []
    given = {"params": params, "propagate": wanted, "strided": strided}
    made = registry()[param.type](param, proto.TRAIN)
    result = run(device, kind, made, bottoms, None if slope is None else [slope], held=None if slope is None else 0.5, **given)
    close(result.tops[0], expected)
    if slope is not None:
        plain = run(device, kind, registry()[param.type](param, proto.TRAIN), bottoms, [slope], params=params, propagate=wanted)
        for found, diff, want in zip(result.diffs, plain.diffs, wanted):
            if want:
                assert diff is not None
                close(found, diff + 0.5)


def test_a_flo_file_for_float_reader(tmp_path: pathlib.Path) -> None:
    """The fix is a command that makes the file, and works as it stands."""
    flow = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    flow_files.write_flo(str(tmp_path / "a b.flo"), flow)
    with pytest.raises(Error) as caught:
        flow_files.read_float3(str(tmp_path / "a b.flo"))
    assert "is a .flo file of Middlebury, not a .float3 file" in caught.value.fact
    command, _, named = str(caught.value.fix).partition("; then name ")
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    assert np.array_equal(flow_files.read_float3(named), flow) and named == str(tmp_path / "a b.float3")
