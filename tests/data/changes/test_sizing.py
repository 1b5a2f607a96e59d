"""Resizing by fields of NVCaffe, Intel and SSD before the crop: sizes by the forks' arithmetic, pixels, mean images, label images, errors."""
from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.data.changes.sizing import Sized, Sizing, sizing_of
from ocaffe.data.changes.transform import Transform, _crop, as_values
from ocaffe.data.dice import Dice
from ocaffe.errors import Error
from ocaffe.formats.blob import write_blobproto
from ocaffe.layers.data import image_transform
from tests.data.small_databases import image, png, raw, write
from tests.layers.single import layer_of

pytestmark = pytest.mark.quick

F = np.float32
SHAPE = (3, 20, 30)
SHORTER = "crop_size: 8 random_resize_param { min_size: %d max_size: %d %s }"
ASPECT = "crop_size: 8 random_aspect_ratio_param { %s }"
STRETCH = "crop_size: 8 img_rand_resize_lower: 12 img_rand_resize_upper: 16 %s"


def sizing(text: str, train: bool = True) -> Sizing:
    param = text_format.Parse(text, proto.TransformationParameter())
    found = sizing_of(param, _crop(param), train)
    assert found is not None
    return found


def drawn(text: str, height: int = 20, width: int = 30, count: int = 2000) -> list[Sized]:
    way = sizing(text)
    return [way.draw(Dice((1, 2), n), height, width) for n in range(count)]


# -- sizes ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("height, width", [(20, 30), (31, 20), (20, 20)])
def test_shorter_side(height: int, width: int) -> None:
    """Intel's random_resize_param: each whole length from min_size to max_size, the other side in proportion, truncated."""
    found = {sized.size for sized in drawn(SHORTER % (10, 14, ""), height, width)}
    ratio = F(max(height, width)) / F(min(height, width))
    sides = [(side, int(ratio * F(side))) for side in range(10, 15)]
    assert found == {pair if height < width else pair[::-1] for pair in sides}
    way = sizing(SHORTER % (0, 0, ""))
    assert set(way.sizes(height, width)) >= {(height, width)}, "0 stands for the sides of the image"
    assert sizing(SHORTER % (10, 14, ""), False).draw(None, height, width).size in found


def test_part_of_another_aspect() -> None:
    """Intel's random_aspect_ratio_param: areas and changes of aspect in thousandths, sides truncated, in both orders; the result has the crop's size."""
    found = drawn(ASPECT % "min_area_ratio: 0.3 max_area_ratio: 0.6 aspect_ratio_change: 0.75 max_attempt: 10")
    sides = {
        side for area in range(300, 601) for change in range(750, 1334)
        for side in [(int(math.sqrt(area / 1000 * 600) * change / 1000), int(math.sqrt(area / 1000 * 600) / (change / 1000)))]
    }  # fmt: skip
    sides |= {(b, a) for a, b in sides}
    near = {(a + i, b + j) for a, b in sides for i in (-1, 0, 1) for j in (-1, 0, 1)}  # products of floats may be rounded across a whole number
    for (y, x, height, width), size, _, _ in found:
        assert (height, width) in near and size == (8, 8) and 0 <= y <= 20 - height and 0 <= x <= 30 - width
    aspects = [width / height for (_, _, height, width), *_ in found]
    assert min(aspects) < 0.7 and max(aspects) > 1.5 and len({sized.part for sized in found}) > 1000


def test_part_that_never_fits() -> None:
    """After max_attempt the whole image is resized to the crop by its shorter side; so it is in TEST."""
    text = ASPECT % "min_area_ratio: 4 max_area_ratio: 4"
    assert {sized.size for sized in drawn(text, count=20)} == {(8, 12)}
    assert sizing(ASPECT % "", False).draw(None, 20, 30) == Sized((0, 0, 20, 30), (8, 12), Interpolation.LINEAR)


def lround(value: float) -> int:
    return math.floor(value + 0.5)


def test_stretch() -> None:
    """NVCaffe: both sides are stretched by themselves after the shorter one has its length; at least the crop, at most the image."""
    found = drawn(STRETCH % "vertical_stretch_lower: 0.5 vertical_stretch_upper: 1.5 horizontal_stretch_lower: 0.9 horizontal_stretch_upper: 1.1", count=4000)
    heights, widths = ({sized.size[axis] for sized in found} for axis in (0, 1))
    assert (min(heights), max(heights)) == (8, 20) and (min(widths), max(widths)) == (lround(18 * 0.9), lround(24 * 1.1))
    assert {sized.method for sized in found} == {Interpolation.NEAREST}
    larger = drawn(STRETCH % "vertical_stretch_upper: 1.5 vertical_stretch_lower: 0.5 allow_upscale: true interpolation_algo_up: INTER_AREA", count=4000)
    assert max(sized.size[0] for sized in larger) == 24
    assert {sized.method for sized in larger} == {Interpolation.NEAREST, Interpolation.AREA}
    assert all((sized.method is Interpolation.AREA) == (sized.size[0] > 20) for sized in larger)


def test_ratio_of_the_sides() -> None:
    """NVCaffe's rand_resize_ratio: the longer side is the shorter one times the ratio; of a square either side."""
    text = STRETCH % "rand_resize_ratio_lower: 1.2 rand_resize_ratio_upper: 1.4 allow_upscale: true"
    for height, width in ((20, 30), (30, 20)):
        for sized in drawn(text, height, width, 300):
            assert 1.15 < max(sized.size) / min(sized.size) < 1.45 and (sized.size[0] < sized.size[1]) == (height < width)
    assert {sized.size[0] < sized.size[1] for sized in drawn(text, 20, 20, 50)} == {True, False}


def test_small_images_keep_their_size() -> None:
    """Without allow_upscale NVCaffe does not enlarge: a crop that is larger than the image is an error."""
    assert {sized.size for sized in drawn(STRETCH % "", 10, 11, 20)} == {(10, 11)}
    with pytest.raises(Error, match="the crop of 8 x 8 is larger than the image of 6 x 9"):
        transform(STRETCH % "").check(3, 6, 9)


def test_middle_of_ranges_in_test() -> None:
    text = STRETCH % "vertical_stretch_lower: 0.5 vertical_stretch_upper: 1.5 rand_resize_ratio_lower: 1 rand_resize_ratio_upper: 1.2"
    assert sizing(text, False).draw(None, 20, 30).size == (14, lround(14 * 1.1))


def test_each_image_draws_an_interpolation() -> None:
    text = SHORTER % (10, 10, "resize_param { interp_mode: CUBIC interp_mode: AREA }")
    assert {sized.method for sized in drawn(text, count=50)} == {Interpolation.CUBIC, Interpolation.AREA}
    assert sizing(text, False).draw(None, 20, 30).method is Interpolation.CUBIC


# -- pixels --------------------------------------------------------------------------------------------------------------------------------


def transform(text: str, train: bool = True) -> Transform:
    return image_transform(layer_of(f"name: 'l' type: 'Data' transform_param {{ {text} }}", proto.TRAIN if train else proto.TEST))  # type: ignore[arg-type]


def samples(device: Any, folder: pathlib.Path, text: str, phase: int = proto.TEST, write_record: Callable[..., bytes] = png) -> np.ndarray:
    path = folder / f"{write_record.__name__}s"
    if not path.exists():
        write(path, [write_record(n, SHAPE) for n in range(4)])
    source = f"data_param {{ source: '{path}' batch_size: 4 backend: LMDB }}"
    net = Net(text_format.Parse(f"layer {{ name: 'd' type: 'Data' top: 'data' top: 'label' {source} transform_param {{ {text} }} }}", proto.NetParameter()),
              phase=phase, device=device, seed=3)  # fmt: skip
    net.forward()
    data = net.blobs["data"].data.copy()
    net.close()
    return data


def middle(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    y, x = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
    return pixels[:, y : y + height, x : x + width].astype(np.float32)


@pytest.mark.parametrize("record", [png, raw])
@pytest.mark.parametrize(
    "text, size, method",
    [
        (SHORTER % (10, 10, "resize_param { interp_mode: CUBIC }"), (10, 15), Interpolation.CUBIC),
        (ASPECT % "resize_param { interp_mode: AREA }", (8, 12), Interpolation.AREA),
        (STRETCH % "", (14, 21), Interpolation.NEAREST),
        (STRETCH % "interpolation_algo_down: INTER_LINEAR", (14, 21), Interpolation.LINEAR),
        ("crop_size: 8 resize_param { height: 12 width: 11 interp_mode: LANCZOS4 }", (12, 11), Interpolation.LANCZOS4),
        ("resize_param { height: 12 width: 11 interp_mode: NEAREST }", (12, 11), Interpolation.NEAREST),
        ("crop_size: 8 resize_param { height: 12 width: 11 resize_mode: FIT_SMALL_SIZE }", (12, 18), Interpolation.LINEAR),
    ],
)
def test_pixels_in_test(
    device: Any, tmp_path: pathlib.Path, text: str, size: tuple[int, int], method: Interpolation, record: Callable[..., bytes]
) -> None:  # fmt: skip
    """The middle crop of each resized image, less the mean, in bytes as OpenCV resizes them."""
    found = samples(device, tmp_path, f"{text} mean_value: 3 scale: 0.5", write_record=record)
    for n, sample in enumerate(found):
        wanted = middle(resize(image(n, SHAPE), *size, method), *((8, 8) if "crop_size" in text else size))
        np.testing.assert_array_equal(sample, (wanted - 3) * 0.5)


@pytest.mark.parametrize("record", [png, raw])
@pytest.mark.parametrize("text", [SHORTER % (10, 14, ""), ASPECT % "", STRETCH % "vertical_stretch_lower: 0.8 vertical_stretch_upper: 1.2"])
def test_random_pixels_in_train(device: Any, tmp_path: pathlib.Path, text: str, record: Callable[..., bytes]) -> None:
    """Each sample is a crop of a resized image; the samples repeat with the seed."""
    first, second = (samples(device, tmp_path, f"{text} mirror: true", proto.TRAIN, record) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    way = sizing(text)
    for n, sample in enumerate(first):
        options = {way.draw(Dice((5, k), k), *SHAPE[1:]).size for k in range(300)} if "aspect" not in text else set()
        methods = [Interpolation.LINEAR if "random_" in text else Interpolation.NEAREST]
        crops = [
            resized[:, y : y + 8, x : x + 8][:, :, ::flip]
            for size in options for method in methods for resized in [resize(image(n, SHAPE), *size, method)]
            for y in range(size[0] - 7) for x in range(size[1] - 7) for flip in (1, -1)
        ]  # fmt: skip
        assert "aspect" in text or any(np.array_equal(sample, crop) for crop in crops)
    assert len({sample.tobytes() for sample in first}) == 4


def test_colors_follow_resizing(device: Any, tmp_path: pathlib.Path) -> None:
    """Fields of the device's augmentation apply to the resized images."""
    text = f"{STRETCH % ''} erase {{ prob: 1 min_area: 0.3 max_area: 0.3 value: 77 }}"
    found = samples(device, tmp_path, text, proto.TRAIN)
    assert found.shape == (4, 3, 8, 8) and all(0.2 < (sample == 77).mean() < 0.4 for sample in found)


# -- mean images ---------------------------------------------------------------------------------------------------------------------------


def mean_file(folder: pathlib.Path, height: int, width: int) -> tuple[str, np.ndarray]:
    mean = np.random.default_rng(5).uniform(90, 140, (3, height, width)).astype(np.float32)
    write_blobproto(folder / "mean", mean[None])
    return str(folder / "mean"), mean


def test_mean_image_of_the_resized_size(device: Any, tmp_path: pathlib.Path) -> None:
    """resize_param with mean_file: the mean is cropped like the resized image, as in Caffe with images of that size."""
    path, mean = mean_file(tmp_path, 12, 11)
    text = f"crop_size: 8 resize_param {{ height: 12 width: 11 }} mean_file: '{path}'"
    for n, sample in enumerate(samples(device, tmp_path, text)):
        resized = resize(image(n, SHAPE), 12, 11).astype(np.float32)
        np.testing.assert_allclose(sample, middle(resized - mean, 8, 8), atol=1e-4)
    plain = [resize(image(n, SHAPE), 12, 11).astype(np.float32) - mean for n in range(4)]
    crops = [[image_[:, y : y + 8, x : x + 8] for y in range(5) for x in range(4)] for image_ in plain]
    for sample, own in zip(samples(device, tmp_path, text, proto.TRAIN), crops):
        assert any(np.allclose(sample, crop, atol=1e-4) for crop in own)


def test_mean_image_of_nvcaffe(device: Any, tmp_path: pathlib.Path) -> None:
    """With img_rand_resize NVCaffe subtracts the middle of the mean image from every crop, and mirrors the difference."""
    path, mean = mean_file(tmp_path, 13, 12)
    text = f"crop_size: 8 img_rand_resize_lower: 12 img_rand_resize_upper: 12 mean_file: '{path}'"
    resized = [resize(image(n, SHAPE), 12, 18, Interpolation.NEAREST).astype(np.float32) for n in range(4)]
    own = mean[:, 2:10, 2:10]
    for sample, pixels in zip(samples(device, tmp_path, text), resized):
        np.testing.assert_allclose(sample, middle(pixels, 8, 8) - own, atol=1e-4)
    for sample, pixels in zip(samples(device, tmp_path, f"{text} mirror: true", proto.TRAIN), resized):
        crops = [(pixels[:, y : y + 8, x : x + 8] - own)[:, :, ::flip] for y in range(5) for x in range(11) for flip in (1, -1)]
        assert any(np.allclose(sample, crop, atol=1e-4) for crop in crops)


# -- label images --------------------------------------------------------------------------------------------------------------------------


def test_label_images_are_resized_alike(device: Any, tmp_path: pathlib.Path) -> None:
    pixels = np.repeat(np.random.default_rng(0).integers(0, 5, (20, 30, 1), np.uint8), 3, 2) * 50
    Image.fromarray(pixels).save(tmp_path / "i.png")
    Image.fromarray(pixels[..., 0] // 50).save(tmp_path / "l.png")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/i.png {tmp_path}/l.png\n")
    text = f"dense_image_data_param {{ source: '{tmp_path}/list.txt' batch_size: 3 }} transform_param {{ {STRETCH % ''} mirror: true }}"
    net = Net(text_format.Parse(f"layer {{ name: 'd' type: 'DenseImageData' top: 'data' top: 'label' {text} }}", proto.NetParameter()),
              phase=proto.TRAIN, device=device)  # fmt: skip
    net.forward()
    np.testing.assert_array_equal(net.blobs["data"].data[:, :1], net.blobs["label"].data * 50)
    net.close()
    with pytest.raises(Error, match="padding has no labels"):
        padded = text.replace(STRETCH % "", "resize_param { height: 9 width: 9 resize_mode: FIT_LARGE_SIZE_AND_PAD }")
        Net(text_format.Parse(f"layer {{ name: 'd' type: 'DenseImageData' top: 'data' top: 'label' {padded} }}", proto.NetParameter()), phase=proto.TRAIN,
            device=device)  # fmt: skip


# -- errors --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, fact",
    [
        ("random_resize_param { min_size: 9 }", "random_resize_param is set without crop_size"),
        ("crop_size: 4 random_resize_param { min_size: 9 max_size: 8 }", "min_size 9 above max_size 8"),
        ("crop_size: 4 random_resize_param { } random_aspect_ratio_param { }", "random_resize_param and random_aspect_ratio_param all set the size"),
        ("crop_size: 4 random_resize_param { } resize_param { height: 5 width: 5 }", "random_resize_param and resize_param all set the size"),
        ("crop_size: 4 vertical_stretch_upper: 2 random_resized_crop { }", "vertical_stretch_upper and random_resized_crop all set the size"),
        ("crop_size: 4 random_resize_param { resize_param { height: 8 width: 8 } }", "Intel's fork sets the size itself"),
        ("crop_h: 4 crop_w: 5 random_aspect_ratio_param { }", "the crop is 4 x 5"),
        ("crop_size: 4 random_aspect_ratio_param { min_area_ratio: 0.9 max_area_ratio: 0.5 }", "min_area_ratio 0.9, max_area_ratio 0.5"),
        ("crop_size: 4 random_aspect_ratio_param { aspect_ratio_change: 2 }", "aspect_ratio_change 2"),
        ("crop_size: 4 img_rand_resize_lower: 9", "img_rand_resize_lower is 9, img_rand_resize_upper 0"),
        ("crop_size: 4 vertical_stretch_lower: 2", "vertical_stretch_lower is 2, vertical_stretch_upper 1"),
        ("crop_size: 4 rand_resize_ratio_lower: 0.5 rand_resize_ratio_upper: 2", "rand_resize_ratio_lower is 0.5"),
        ("vertical_stretch_lower: 0.5", "vertical_stretch_lower is set without crop_size"),
        ("resize_param { height: 8 interp_mode: CUBIC }", "resize_param has height 8 and width 0"),
        ("resize_param { height: 8 width: 8 interp_mode: CUBIC prob: 0.5 }", "resize_param has prob 0.5 without crop_size"),
        ("resize_param { height: 8 width: 8 interp_mode: CUBIC height_scale: 3 }", "has height_scale, which needs boxes"),
    ],
)
def test_errors(text: str, fact: str) -> None:
    with pytest.raises(Error, match=fact) as caught:
        transform(text)
    assert caught.value.fix and caught.value.layer


def test_mean_image_of_another_size(tmp_path: pathlib.Path) -> None:
    path, _ = mean_file(tmp_path, 12, 11)
    with pytest.raises(Error, match="is 3 x 12 x 11, the image is 3 x 10 x 15, resized from 20 x 30"):
        transform(f"{SHORTER % (10, 10, '')} mean_file: '{path}'").check(*SHAPE)
    with pytest.raises(Error, match="is 3 x 12 x 11, the crop is 14 x 14"):
        transform(f"{(STRETCH % '').replace('crop_size: 8', 'crop_size: 14')} mean_file: '{path}'")


def test_a_mean_image_becomes_values(tmp_path: pathlib.Path) -> None:
    """A layer that cannot subtract a mean image names the averages of its channels."""
    path, mean = mean_file(tmp_path, 12, 11)
    text = as_values(path)
    numbers = [float(value) for value in re.findall(r"mean_value: (\S+)", text)]
    assert np.allclose(numbers, mean.reshape(-1, 12, 11).mean((1, 2)), atol=0.006) and text.endswith(" in transform_param")
    assert as_values(str(tmp_path / "absent")) == "remove mean_file, and set mean_value once for each channel"
