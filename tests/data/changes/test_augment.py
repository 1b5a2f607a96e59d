"""Augmentation: the device's pixels against numpy, the meaning of the fields, the random choices, and errors in the fields."""
from __future__ import annotations

import dataclasses
import math
import pathlib
import pickle
import sys
import time
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.data.changes import distort
from ocaffe.data.changes.augment import _ROW, Augmentation, beta, wants_augmentation
from ocaffe.data.changes.resample import resize
from ocaffe.data.changes.transform import Transform
from ocaffe.data.prefetch import Prefetcher
from ocaffe.data.source import upload
from ocaffe.data.sources.database_images import ImageSource
from ocaffe.errors import Error
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Role
from tests.data.small_databases import LMDB, batch_of, image, png, raw, write
from tests.harness import execute
from tests.layers.single import KINDS, ref

pytestmark = pytest.mark.quick

COUNT, SHAPE = 20, (3, 14, 17)
DISTORT = """distort_param { brightness_prob: 0.7 brightness_delta: 40 contrast_prob: 0.7 contrast_lower: 0.5 contrast_upper: 1.6
  saturation_prob: 0.7 saturation_lower: 0.5 saturation_upper: 1.7 hue_prob: 0.7 hue_delta: 36 random_order_prob: 0.6 }"""
AFFINE = "affine { rotation: 40 translation: 0.3 min_zoom: 0.7 max_zoom: 1.5 shear: 20 border: %s value: 77 }"
FIELDS = {
    "distort": f"crop_size: 9 mirror: true {DISTORT}",
    "constant": AFFINE % "CONSTANT",
    "reflect": f"crop_size: 11 mirror: true {AFFINE % 'REFLECT'}",
    "replicate": f"crop_h: 7 crop_w: 10 {AFFINE % 'REPLICATE'} lighting {{ std: 0.3 }} {DISTORT}",
    "patch": "crop_size: 5 mirror: true random_resized_crop { }",
    "reduced": "crop_size: 3 random_resized_crop { min_area: 0.8 }",
    "resize": "crop_size: 10 resize_param { prob: 0.5 height: 12 width: 20 } vertical_mirror: true",
    "turned": "crop_size: 8 random_90_deg_rot: true",
    "erase": "crop_size: 9 erase { prob: 0.8 value: 33 }",
    "noise": "mean_value: 10 scale: 0.5 erase { prob: 0.8 random: true }",
    "mix": "crop_size: 9 mirror: true mixup { prob: 0.5 alpha: 0.3 } cutmix { prob: 0.6 } label_classes: 10",
    "all": f"""crop_size: 7 mirror: true vertical_mirror: true random_90_deg_rot: true random_resized_crop {{ }} {AFFINE % 'REFLECT'} {DISTORT}
      lighting {{ }} erase {{ random: true }} mixup {{ prob: 0.4 alpha: 0.2 }} cutmix {{ prob: 0.4 }} label_classes: 10
      mean_value: 10 mean_value: 20 mean_value: 30 scale: 0.02""",
}
Words = dict[str, Any]


def settings(text: str, train: bool = True) -> Augmentation:
    return Augmentation(text_format.Parse(text, proto.TransformationParameter()), train)


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("databases")
    return {kind.__name__: write(folder / kind.__name__, [kind(n % 10, SHAPE) for n in range(COUNT)]) for kind in (raw, png)}


def source(path: str, text: str, batch: int = 8, train: bool = True, workers: int = 1) -> ImageSource:
    made = ImageSource(proto.DataParameter(source=path, batch_size=batch, backend=LMDB), settings(text, train), True, workers=workers)
    made.key = (5, 6)
    return made


def on_device(device: Any, kind: str, made: ImageSource, batch: int) -> list[np.ndarray]:
    """Return data and label of a batch, computed by the kernel."""
    rec = Recorder(dataclasses.replace(device.target, kind=kind), train=True)
    rec.enter("data", "forward")
    tops = [Blob(name, shape) for name, shape in zip(("data", "label"), made.shapes())]
    for top in tops:
        top.data = ref(top.name, top.shape, Role.ACTIVATION, True)
    layout = made.layout(tops[0].shape)
    made.transform.record(rec, upload(rec, made, layout.nbytes), layout, tops[0].data, tops[1].data)
    return execute(rec, device.context, {}, [top.data for top in tops], batch=batch)


# -- the reference ---------------------------------------------------------------------------------------------------


def words(row: np.ndarray) -> Words:
    values = _ROW.unpack(row.tobytes())
    names = ("height", "width", "y", "x", "rows", "columns", "flags", "partner")
    return {
        **dict(zip(names, values)), "matrix": np.reshape(values[8:14], (2, 3)), "colors": values[14:18], "shift": np.array(values[18:21]), "order": values[21],
        "erased": values[22:26], "seed": values[26], "share": values[27], "cut": values[28:32],
    }  # fmt: skip


def pixel_index(at: np.ndarray, size: int, border: int) -> np.ndarray:
    if border == proto.AffineParameter.REFLECT:
        return np.pad(np.arange(size), 200, mode="reflect")[at + 200]
    return np.clip(at, 0, size - 1)


def sampled(to: Augmentation, whole: np.ndarray, row: Words, height: int, width: int) -> np.ndarray:
    """Read a sample from a whole image (after the reduction), as if nothing had been cut off."""
    if not to.sampled:
        part = whole
        part = part[:, ::-1] if row["flags"] & 2 else part
        return (part[:, :, ::-1] if row["flags"] & 1 else part).astype(float)
    v, u = np.mgrid[:height, :width]
    x, y = (m[0] * u + m[1] * v + m[2] for m in row["matrix"])
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    total = np.zeros((len(whole), height, width))
    for down, across in np.ndindex(2, 2):
        weight = (y - top if down else 1 - (y - top)) * (x - left if across else 1 - (x - left))
        at_y, at_x = top + down, left + across
        values = whole[:, pixel_index(at_y, row["rows"], to.border), pixel_index(at_x, row["columns"], to.border)].astype(float)
        if to.border == proto.AffineParameter.CONSTANT:
            values = np.where((at_y >= 0) & (at_y < row["rows"]) & (at_x >= 0) & (at_x < row["columns"]), values, to.border_value)
        total += weight * values
    return total


def colored(to: Augmentation, sample: np.ndarray, row: Words) -> np.ndarray:
    """Distort colors by the functions of SSD's layer."""
    flags, amounts = row["flags"], [float(np.float32(amount)) for amount in row["colors"]]
    pixels = np.clip(np.rint(sample), 0, 255).astype(np.uint8)
    early = bool(flags & 4)
    steps = [(8, distort.brightness, 0), (16, distort.contrast, 1), (32, distort.saturation, 2), (64, distort.hue, 3)]
    for flag, step, which in steps if early else [steps[0], *steps[2:], steps[1]]:
        if flags & flag:
            pixels = step(pixels, amounts[which])
    if flags & 128:
        pixels = pixels[[row["order"] >> 2 * c & 3 for c in range(3)]]
    return pixels.astype(float)


def noise(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    n = (np.arange(math.prod(shape), dtype=np.uint64) * 0x9E3779B9 + seed) % 2**32
    n = (n ^ n >> np.uint64(16)) * 0x7FEB352D % 2**32
    n = (n ^ n >> np.uint64(15)) * 0x846CA68B % 2**32
    return ((n ^ n >> np.uint64(16)) >> np.uint64(24)).reshape(shape).astype(float)


def expected(to: Augmentation, batch: int, size: int, images: list[np.ndarray], labels: list[int]) -> tuple[np.ndarray, np.ndarray]:
    changes, samples, rows = to.samples((5, 6), range(batch * size, (batch + 1) * size)), [], []
    for n in range(size):
        pixels = images[n]
        (y, x, rows_, columns, shrink), packed = changes.at(n, pixels.shape)
        row = words(packed)
        if not to.sampled:
            pixels = pixels[:, y : y + rows_, x : x + columns]
        elif shrink > 1:
            tall, wide = (length // shrink for length in pixels.shape[1:])
            squares = pixels[:, : tall * shrink, : wide * shrink].reshape(3, tall, shrink, wide, shrink)
            pixels = np.floor(squares.mean((2, 4)) + 0.5)
        _, height, width = to.output(*images[n].shape)
        sample = sampled(to, pixels, row, height, width)
        sample = colored(to, sample, row) if to.distorts else sample
        sample = sample + row["shift"][:, None, None] if to.light else sample
        top, left, tall, wide = row["erased"]
        inside = np.s_[:, top : top + tall, left : left + wide]
        if to.erased_patch is not None:
            sample[inside] = (noise(row["seed"], sample.shape) if to.noise else np.full(sample.shape, to.erased))[inside]
        samples.append(sample)
        rows.append(row)
    mixed, soft = [], np.zeros((size, max(to.soft_classes, 1)))
    for n, row in enumerate(rows):
        result, share, other = samples[n].copy(), row["share"], samples[row["partner"]]
        if row["flags"] & 256:
            result = share * result + (1 - share) * other
        if row["flags"] & 512:
            top, left, tall, wide = row["cut"]
            result[:, top : top + tall, left : left + wide] = other[:, top : top + tall, left : left + wide]
        mean = 0 if to.mean is None else to.mean.reshape(-1, 1, 1)
        mixed.append((result - mean) * to.scale)
        if to.soft_classes:
            soft[n, labels[n]] += share
            soft[n, labels[row["partner"]]] += 1 - share
    return np.stack(mixed), soft if to.soft_classes else np.array(labels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", ["raw", "png"])
@pytest.mark.parametrize("name", FIELDS)
def test_pixels(device: Device, kind: str, stored: str, name: str, databases: dict[str, str]) -> None:
    made = source(databases[stored], FIELDS[name])
    for batch in (0, 2):
        records = [record % COUNT % 10 for record in range(8 * batch, 8 * batch + 8)]
        data, labels = expected(made.transform, batch, 8, [image(n, SHAPE) for n in records], records)  # type: ignore[arg-type]
        got = on_device(device, kind, made, batch)
        assert got[0].shape == data.shape
        off = np.abs(got[0] - data)
        if name in ("distort", "erase", "noise"):  # no fractions between pixels: SSD's bytes to the bit
            assert off.max() == 0
        elif "distort_param" in FIELDS[name]:  # a rounding before the colors may fall to the other side
            assert np.quantile(off / made.transform.scale, 0.98) < 1e-3
        else:
            assert off.max() < (1.02 if name == "reduced" else 0.02)  # Pillow rounds some means down
        np.testing.assert_allclose(got[1], labels, atol=1e-6)
    made.close()


# -- the meaning of fields -------------------------------------------------------------------------------------------


def shown(device: Device, text: str, pixels: np.ndarray, folder: pathlib.Path, train: bool = True, seed: int = 1) -> np.ndarray:
    """Return the sample that a net reads from one image."""
    path = write(folder / f"db{len(list(folder.iterdir()))}", [proto.Datum(
        channels=pixels.shape[0], height=pixels.shape[1], width=pixels.shape[2], data=pixels.tobytes(), label=0).SerializeToString()])
    layer = f"""layer {{ name: "d" type: "Data" top: "data" data_param {{ source: "{path}" backend: LMDB batch_size: 1 }} transform_param {{ {text} }} }}"""
    net = text_format.Parse(layer, proto.NetParameter())
    with Net(net, phase=proto.TRAIN if train else proto.TEST, device=device, seed=seed) as made:
        return np.array(made.forward()["data"][0])


def test_moves(device: Device, tmp_path: pathlib.Path) -> None:
    pixels = image(0, (3, 8, 8))
    assert (shown(device, "affine { }", pixels, tmp_path) == pixels).all()
    assert (shown(device, "resize_param { height: 8 width: 8 }", pixels, tmp_path) == pixels).all()
    turned = [shown(device, "random_90_deg_rot: true", pixels, tmp_path, seed=seed) for seed in range(12)]
    whole = [np.rot90(pixels, turns, (1, 2)) for turns in range(4)]
    assert {turns for sample in turned for turns in range(4) if (sample == whole[turns]).all()} == {0, 1, 2, 3}
    assert all(any((sample == turn).all() for turn in whole) for sample in turned)
    flipped = [shown(device, "vertical_mirror: true", pixels, tmp_path, seed=seed) for seed in range(8)]
    assert {bool((sample == pixels[:, ::-1]).all()) for sample in flipped} == {True, False}
    double = np.repeat(np.repeat(pixels[:, 2:6, 2:6], 2, 1), 2, 2)  # zoomed by 2: the middle; pixels at the same place have weights 9, 3, 3, 1
    near = pixels[:, 1:7, 1:7].astype(float)
    got = shown(device, "affine { min_zoom: 2 max_zoom: 2 }", pixels, tmp_path)
    np.testing.assert_allclose(got[:, 0, 0], (9 * near[:, 1, 1] + 3 * near[:, 0, 1] + 3 * near[:, 1, 0] + near[:, 0, 0]) / 16, atol=1e-3)
    assert np.corrcoef(got.ravel(), double.ravel())[0, 1] > 0.7


def test_resize_is_that_of_the_host(device: Device, tmp_path: pathlib.Path) -> None:
    """WARP by resize_param agrees with the resizing of other layers, but for their rounding to bytes."""
    pixels = image(3, (3, 9, 13))
    got = shown(device, "resize_param { height: 15 width: 16 }", pixels, tmp_path)
    assert np.abs(got - resize(pixels, 15, 16)).max() < 1


def test_test_phase(device: Device, tmp_path: pathlib.Path) -> None:
    pixels = image(1, (3, 9, 12))
    plain = "affine { rotation: 90 } erase { prob: 1 } mixup { } label_classes: 2 lighting { } vertical_mirror: true random_90_deg_rot: true crop_size: 5"
    assert (shown(device, f"{plain} {DISTORT}", pixels, tmp_path, train=False) == pixels[:, 2:7, 3:8]).all()
    middle = settings("crop_size: 7 random_resized_crop { }", train=False)
    _, row = middle.samples((1, 2), range(1)).at(0, (3, 8, 12))
    np.testing.assert_allclose(words(row)["matrix"], [[1, 0, 2.5], [0, 1, 0.5]])  # 8 rows are resized to 7 / 0.875 = 8
    first, second = (shown(device, "crop_size: 5 mirror: true random_resized_crop { }", pixels, tmp_path, train=False, seed=seed) for seed in (1, 2))
    assert (first == second).all()


def test_random_resized_crop_keeps_its_limits() -> None:
    to = settings("crop_size: 8 random_resized_crop { min_area: 0.2 max_area: 0.5 min_aspect: 0.5 max_aspect: 2 }")
    areas, aspects = [], []
    for n in range(300):
        box = to.samples((1, 2), range(n, n + 1))._box(to.samples((1, 2), range(n, n + 1))._numbers[0].tolist(), 100, 150, 8, 8)
        areas.append(box[2] * box[3] / 15000)
        aspects.append(box[3] / box[2])
        assert box[0] >= 0 and box[1] >= 0 and box[0] + box[2] <= 100 and box[1] + box[3] <= 150
    assert 0.19 < min(areas) < 0.23 and 0.47 < max(areas) < 0.51
    assert 0.48 < min(aspects) < 0.55 and 1.8 < max(aspects) < 2.1


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.6, 1.0, 4.0])
def test_beta(alpha: float) -> None:
    """Mean 1/2, variance 1 / (4 (2 alpha + 1)), fourth central moment 3 / (16 (2 alpha + 1) (2 alpha + 3))."""
    numbers = np.random.default_rng(1).random((20000, 16))
    shares = np.array([beta(alpha, row.tolist()) for row in numbers]) - 0.5
    assert abs(shares.mean()) < 0.01
    assert (shares**2).mean() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.04)
    assert (shares**4).mean() == pytest.approx(3 / (16 * (2 * alpha + 1) * (2 * alpha + 3)), rel=0.06)


# -- the random choices ----------------------------------------------------------------------------------------------


def parts(made: ImageSource, buffer: np.ndarray) -> list[np.ndarray]:
    """Return the table, the labels and the staged pixels of a buffer; what lies between them has no meaning."""
    layout = made.layout(made.shapes()[0])
    rows = layout.table(buffer)
    sizes = rows[:, 0] * rows[:, 1] * 3
    return [rows, layout.labels(buffer), *(pixels[:size] for pixels, size in zip(layout.pixels(buffer), sizes))]


def test_batches_do_not_depend_on_order_or_threads(databases: dict[str, str]) -> None:
    made, other = source(databases["png"], FIELDS["all"]), source(databases["png"], FIELDS["all"], workers=3)
    first = [parts(made, batch_of(made, index)) for index in range(4)]
    for index in (3, 1, 2, 0):
        assert all(np.array_equal(a, b) for a, b in zip(parts(other, batch_of(other, index)), first[index]))
    assert not np.array_equal(first[0][0], first[1][0])
    made.close()
    other.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs sockets that keep messages whole")
def test_processes_stage_the_same_batches(databases: dict[str, str]) -> None:
    made, crew = source(databases["png"], FIELDS["all"]), source(databases["png"], FIELDS["all"], workers=3)
    crew.hurry()
    deadline = time.monotonic() + 20
    while not (crew._crew is not None and crew._crew.ready):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    prefetcher = Prefetcher(crew, 3)
    for index in range(6):
        assert all(np.array_equal(a, b) for a, b in zip(parts(crew, prefetcher.get().data), parts(made, batch_of(made, index))))
    prefetcher.close()
    made.close()
    crew.close()


def test_images_of_several_sizes(device: Device, tmp_path: pathlib.Path) -> None:
    shapes = [(3, 14, 17), (3, 40, 9), (3, 5, 5), (3, 30, 60)]
    path = write(tmp_path / "db", [png(n, shape) for n, shape in enumerate(shapes)])
    made = source(path, "crop_size: 8 mirror: true random_resized_crop { min_area: 0.5 }", batch=4)
    data, _ = expected(made.transform, 0, 4, [image(n, shape) for n, shape in enumerate(shapes)], [0, 1, 2, 3])  # type: ignore[arg-type]
    assert np.abs(on_device(device, "gpu", made, 0)[0] - data).max() < 1.02  # the last one is reduced, and Pillow rounds some means down
    made.close()


def test_other_processes_make_the_same_choices() -> None:
    to = settings(FIELDS["all"])
    rows = [[made.samples((1, 2), range(8, 16)).at(n, SHAPE)[1].tobytes() for n in range(8)] for made in (to, pickle.loads(pickle.dumps(to)))]
    assert rows[0] == rows[1]


def test_a_further_field_leaves_the_other_choices() -> None:
    base, more = settings("crop_size: 7 mirror: true erase { }"), settings(f"crop_size: 7 mirror: true erase {{ }} lighting {{ }} {DISTORT}")
    for n in range(20):
        a, b = (words(to.samples((1, 2), range(n, n + 1)).at(0, SHAPE)[1]) for to in (base, more))
        assert (a["erased"], a["seed"], a["flags"] & 3) == (b["erased"], b["seed"], b["flags"] & 3)


def test_mixup_leaves_the_choices_of_cutmix() -> None:
    """Images that mixup leaves have the rectangles that they have without mixup."""
    base, more = settings("label_classes: 3 cutmix { }"), settings("label_classes: 3 cutmix { } mixup { prob: 0.5 }")
    rows = [[words(to.samples((1, 2), range(20)).at(n, SHAPE)[1]) for n in range(20)] for to in (base, more)]
    left = [(a["share"], a["cut"]) == (b["share"], b["cut"]) for a, b in zip(*rows) if not b["flags"] & 256]
    assert len(left) > 4 and all(left)


def test_large_windows_are_reduced() -> None:
    to = settings("crop_size: 10 random_resized_crop { min_area: 0.9 }")
    for shape in ((3, 100, 150), (3, 21, 20), (3, 1, 900), (3, 5000, 2)):
        window, row = to.samples((1, 2), range(1)).at(0, shape)
        assert row[0] * row[1] <= 400 and window.height == row[0] * window.shrink and window.width == row[1] * window.shrink
    assert to.samples((1, 2), range(1)).at(0, (3, 20, 20))[0].shrink == 1


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "fact", "fix"), [
    ("affine { prob: 1.5 }", "affine has prob 1.5", "0 to 1"),
    ("affine { min_zoom: 2 max_zoom: 1 }", "affine has min_zoom 2, max_zoom 1", "set both in affine so that 0 < min_zoom <= max_zoom"),
    ("affine { rotation: -3 }", "affine has rotation -3", "affine { rotation: 3 }"),
    ("affine { shear: 90 }", "affine has shear 90", "less than 90"),
    ("erase { prob: -0.1 }", "erase has prob -0.1", "0 to 1"),
    ("erase { min_area: 0.5 max_area: 0.2 }", "erase has min_area 0.5, max_area 0.2", "min_area <= max_area"),
    ("erase { min_aspect: 0 }", "erase has min_aspect 0", "0 < min_aspect"),
    ("random_resized_crop { }", "random_resized_crop is set without crop_size", "set crop_size"),
    ("crop_size: 4 random_resized_crop { max_area: 2 }", "max_area 2", "<= 1"),
    ("crop_size: 4 random_resized_crop { } resize_param { height: 8 width: 8 }", "both set the size", "remove random_resized_crop, or resize_param"),
    ("mixup { }", "label_classes is missing", "num_output"),
    ("mixup { } label_classes: 1", "label_classes is 1", "num_output"),
    ("cutmix { alpha: 0 } label_classes: 3", "cutmix has alpha 0", "cutmix { alpha: 0.2 }"),
    ("lighting { std: -1 }", "lighting has std -1", "0 or more"),
    ("distort_param { brightness_prob: 2 }", "brightness_prob 2", "0 to 1"),
    ("distort_param { contrast_prob: 1 contrast_lower: 2 contrast_upper: 1 }", "contrast_lower 2", "0 <= contrast_lower <= contrast_upper"),
    ("resize_param { height: 8 }", "resize_param has height 8 and width 0", "set width in resize_param"),
    ("resize_param { height: 8 width: 8 prob: 0.5 }", "prob 0.5 without crop_size", "prob: 1"),
    ("resize_param { height: 8 width: 8 resize_mode: FIT_SMALL_SIZE }", "resize_mode FIT_SMALL_SIZE without crop_size", "WARP"),
    ("img_rand_resize_lower: 9 crop_size: 4", "img_rand_resize_lower is 9, img_rand_resize_upper 0", "1 <= img_rand_resize_lower <= img_rand_resize_upper"),
    ("affine { translation: inf }", "affine has translation inf", "finite"),
    ("affine { value: nan }", "affine has value nan", "0 to 255"),
    ("crop_size: 4 random_resized_crop { max_aspect: inf }", "random_resized_crop has max_aspect inf", "finite"),
    ("lighting { std: inf }", "lighting has std inf", "finite"),
    ("erase { value: 1000 }", "erase has value 1000", "0 to 255"),
    ("distort_param { brightness_prob: 1 brightness_delta: nan }", "distort_param has brightness_delta nan", "finite"),
    ('mean_file: "m" lighting { }', "mean_file", "mean_value"),
])  # fmt: skip
def test_errors(text: str, fact: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.data.changes.transform.mean_image", lambda path: np.zeros((3, 14, 17)))
    with pytest.raises(Error) as failure:
        settings(text)
    assert fact in failure.value.fact and fix in (failure.value.fix or "")


def test_a_resizing_that_never_happens_needs_no_crop() -> None:
    assert settings("lighting { } resize_param { prob: 0 height: 8 width: 8 }").output(*SHAPE) == SHAPE


def test_errors_of_images(databases: dict[str, str], tmp_path: pathlib.Path) -> None:
    gray = write(tmp_path / "gray", [raw(n, (1, 6, 8)) for n in range(3)])
    with pytest.raises(Error, match="distort_param is set, and the image has 1 channels"):
        source(gray, DISTORT)
    with pytest.raises(Error, match="samples are 14 x 17"):
        source(databases["raw"], "random_90_deg_rot: true")
    with pytest.raises(Error, match=r"its label is 3; layer .* has 3 classes"):
        batch_of(source(databases["raw"], "mixup { } label_classes: 3"), 0)
    with pytest.raises(Error, match="the layer has no top for labels"):
        ImageSource(proto.DataParameter(source=databases["raw"], batch_size=2, backend=LMDB), settings("mixup { } label_classes: 10"), False)
    floats = write(tmp_path / "floats", [proto.Datum(channels=1, height=2, width=2, float_data=[1, 2, 3, 4], label=1).SerializeToString()])
    with pytest.raises(Error, match="the first record has float_data"):
        source(floats, "affine { rotation: 1 }")


def test_other_sources_refuse_the_fields() -> None:
    with pytest.raises(Error, match="transform_param field 'affine' is not supported here"):
        Transform(text_format.Parse("affine { rotation: 3 }", proto.TransformationParameter()), True)


def test_when_it_is_wanted() -> None:
    plain, moved, sized = (text_format.Parse(text, proto.TransformationParameter()) for text in ("crop_size: 4", "affine { }", "random_resized_crop { }"))
    assert [wants_augmentation(param, True) for param in (plain, moved, sized)] == [False, True, True]
    assert [wants_augmentation(param, False) for param in (plain, moved, sized)] == [False, False, True]
