"""ocaffe/data/changes/distort.py, compared with colorsys and simple definitions."""
from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.changes import distort
from ocaffe.data.dice import Dice
from tests.data.pictures import failure

pytestmark = pytest.mark.quick

IMAGE = np.random.default_rng(3).integers(0, 256, (3, 21, 34), np.uint8)


def noise(image: np.ndarray, **fields: Any) -> np.ndarray:
    param = proto.NoiseParameter(**fields)
    distort.check_noise(param)
    return distort.add_noise(image, param, Dice((1, 2), 3))


def test_hsv() -> None:
    hsv = distort.to_hsv(IMAGE).reshape(3, -1).T
    for (blue, green, red), (hue, saturation, value) in zip(IMAGE.reshape(3, -1).T / 255, hsv):
        expected = colorsys.rgb_to_hsv(red, green, blue)
        turn = abs(hue / 180 - expected[0])
        assert min(turn, 1 - turn) < 0.004 and abs(saturation / 255 - expected[1]) < 0.003 and value == round(255 * expected[2])
    colors = np.random.default_rng(4).integers(0, 180, (3, 7, 9), np.uint8)
    for (hue, saturation, value), color in zip(colors.reshape(3, -1).T, distort.from_hsv(colors).reshape(3, -1).T):
        assert np.abs(np.array(colorsys.hsv_to_rgb(hue / 180, saturation / 255, value / 255)) * 255 - color[::-1]).max() < 0.51
    assert np.abs(distort.from_hsv(distort.to_hsv(IMAGE)).astype(int) - IMAGE).max() <= 6  # one step of hue is two degrees
    grays = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 1, 256))
    assert (distort.from_hsv(distort.to_hsv(grays)) == grays).all()


def test_adjustments() -> None:
    whole = IMAGE.astype(float)
    assert (distort.brightness(IMAGE, -40) == np.clip(whole - 40, 0, 255)).all() and distort.contrast(IMAGE, 2).max() == 255
    assert (distort.contrast(IMAGE, 0.5) == np.rint(whole * 0.5)).all()
    gray = distort.saturation(IMAGE, 0)
    assert (gray == IMAGE.max(0)).all()
    red = np.zeros((3, 1, 1), np.uint8)
    red[2] = 255
    assert distort.hue(red, 60).ravel().tolist() == [0, 255, 0] and distort.hue(red, 120).ravel().tolist() == [255, 0, 0]
    assert distort.hue(red, -30).ravel().tolist() == [0, 0, 255]  # clipped at 0 instead of wrapped, as in SSD


def test_draws() -> None:
    param = proto.DistortionParameter(
        brightness_prob=0.5, brightness_delta=32, contrast_prob=0.5, contrast_lower=0.5, contrast_upper=1.5,
        saturation_prob=0.5, saturation_lower=0.5, saturation_upper=1.5, hue_prob=0.5, hue_delta=18, random_order_prob=0.5,
    )  # fmt: skip
    counts = np.array([len(distort.draw(param, Dice((1, 1), n))) for n in range(400)])
    assert set(counts) == {0, 1, 2, 3, 4, 5} and abs(counts.mean() - 2.5) < 0.2
    only = proto.DistortionParameter(brightness_prob=1, brightness_delta=32)
    shifts = [int(distort.draw(only, Dice((1, 1), n))[0](np.full((3, 1, 1), 100, np.uint8))[0, 0, 0]) - 100 for n in range(400)]
    assert min(shifts) < -28 and max(shifts) > 28 and abs(np.mean(shifts)) < 3
    swap = proto.DistortionParameter(random_order_prob=1)
    orders = {tuple(distort.draw(swap, Dice((1, 1), n))[0](np.arange(3, dtype=np.uint8).reshape(3, 1, 1)).ravel()) for n in range(60)}
    assert len(orders) == 6
    assert not distort.draw(proto.DistortionParameter(), Dice((1, 1), 0))


@pytest.mark.parametrize("at_once", [1, 40, 100])
def test_colors_change_some_rows_at_a_time(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    param = proto.DistortionParameter(
        brightness_prob=1, brightness_delta=32, contrast_prob=1, contrast_lower=0.5, contrast_upper=1.5,
        saturation_prob=1, saturation_lower=0.5, saturation_upper=1.5, hue_prob=1, hue_delta=18,
    )  # fmt: skip
    found = []
    for pixels in (at_once, 1 << 20):
        monkeypatch.setattr(distort, "_AT_ONCE", pixels)
        image = IMAGE
        for step in distort.draw(param, Dice((1, 1), 0)):
            image = step(image)
        found.append(image)
    np.testing.assert_array_equal(*found)


def test_simple_noise() -> None:
    gray = noise(IMAGE, decolorize=True)
    assert (gray[0] == gray[1]).all() and np.abs(gray[0] - (0.114 * IMAGE[0] + 0.587 * IMAGE[1] + 0.299 * IMAGE[2])).max() < 0.6
    assert (noise(IMAGE, inverse=True) == 255 - IMAGE).all()
    assert (np.unique(noise(IMAGE, posterize=True)) == [32, 96, 160, 224]).all()
    assert (noise(IMAGE, convert_to_hsv=True) == distort.to_hsv(IMAGE)).all()
    eroded = noise(IMAGE, erode=True)
    for y in range(IMAGE.shape[1]):
        for x in range(IMAGE.shape[2]):
            row, column = IMAGE[:, y, max(x - 1, 0) : x + 2], IMAGE[:, max(y - 1, 0) : y + 2, x]
            assert (eroded[:, y, x] == np.minimum(row.min(1), column.min(1))).all()


@pytest.mark.parametrize("shape", [(3, 21, 34), (1, 5, 5), (1, 2, 3), (3, 1, 1)])
def test_gauss_blur(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(5).integers(0, 256, shape, np.uint8)
    weights = np.exp(-(np.arange(-3, 4)[:, None] ** 2 + np.arange(-3, 4) ** 2) / 4.5)
    padded = np.pad(image.astype(float), ((0, 0), (3, 3), (3, 3)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), (1, 2))
    expected = (windows * weights).sum((-2, -1)) / weights.sum()
    assert np.abs(noise(image, gauss_blur=True) - expected).max() < 0.51


def test_equalisation() -> None:
    image = (IMAGE[:1] // 4 + 90).astype(np.uint8)
    flat = noise(image, hist_eq=True)
    assert flat.min() == 0 and flat.max() == 255 and (np.argsort(image.ravel(), kind="stable") == np.argsort(flat.ravel(), kind="stable")).all()
    plain = np.full((1, 4, 4), 77, np.uint8)
    assert (noise(plain, hist_eq=True) == 77).all()
    colored = noise(IMAGE // 2 + 60, hist_eq=True)
    assert noise(colored, decolorize=True)[0].std() > 1.8 * noise(IMAGE // 2 + 60, decolorize=True)[0].std()


@pytest.mark.parametrize("shape", [(1, 64, 64), (1, 61, 40), (3, 30, 33), (1, 1, 9)])
def test_clahe(shape: tuple[int, ...]) -> None:
    """Contrast increases within tiles, monotonically in each pixel's value. A smooth image has no steps between tiles."""
    ramp = np.broadcast_to(np.linspace(100, 130, shape[2]), shape).astype(np.uint8)
    result = noise(ramp, clahe=True).astype(int)
    assert result.shape == shape
    if shape[1] > 30:
        assert result[0].max() - result[0].min() > 30 and np.abs(np.diff(result[0], axis=1)).max() < 40
    rows = result[0][:, 1:-1]
    assert np.abs(np.diff(rows, axis=0)).max(initial=0) <= 60


def test_jpeg() -> None:
    smooth = np.broadcast_to(np.linspace(0, 255, 40), (3, 30, 40)).astype(np.uint8)
    fine, coarse = (np.abs(noise(smooth, jpeg=quality).astype(int) - smooth) for quality in (95, 5))
    assert fine.max() <= 4 and coarse.mean() > 2 * fine.mean()


def test_salt_and_pepper() -> None:
    param = {"fraction": 0.25, "value": [0, 255, 7]}
    salted = noise(IMAGE, saltpepper=True, saltpepper_param=param)
    hit = (salted == np.array([0, 255, 7], np.uint8)[:, None, None]).all(0)
    assert 0.15 < hit.mean() < 0.25 and (salted[:, ~hit] == IMAGE[:, ~hit]).all()
    assert "2 values, the image 3 channels" in failure(lambda: noise(IMAGE, saltpepper=True, saltpepper_param={"value": [1, 2]})).fact
    assert "saltpepper has no value" in failure(lambda: noise(IMAGE, saltpepper=True)).fact


def test_errors() -> None:
    assert "convert_to_lab is not supported" in failure(lambda: noise(IMAGE, convert_to_lab=True)).fact
    assert "1 channel" in failure(lambda: noise(IMAGE[:1], convert_to_hsv=True)).fact
    for fields, fact in (
        ({"contrast_prob": 1, "contrast_lower": 2, "contrast_upper": 1}, "contrast_lower 2 and contrast_upper 1"),
        ({"saturation_prob": 1, "saturation_lower": -1}, "saturation_lower -1"),
        ({"hue_delta": -3}, "hue_delta -3"),
    ):
        assert fact in failure(lambda fields=fields: distort.check_distortion(proto.DistortionParameter(**fields))).fact  # type: ignore[misc]


# -- deepdetect's forms --------------------------------------------------------------------------------------------------------------------


def test_probability_of_deepdetects_colors() -> None:
    """One prob holds for all effects, or for those that are set; SSD has one for each."""
    amounts = {"brightness_delta": 20, "contrast_lower": 0.5, "contrast_upper": 1.5}
    everything = distort.in_ssds_form(proto.DistortionParameter(all_effects=True, prob=0.3, **amounts))
    assert everything == proto.DistortionParameter(
        brightness_prob=0.3, contrast_prob=0.3, saturation_prob=0.3, hue_prob=0.3, random_order_prob=0.3, **amounts
    )  # fmt: skip
    some = distort.in_ssds_form(proto.DistortionParameter(contrast=True, prob=0.3, **amounts))
    assert some.contrast_prob == pytest.approx(0.3) and not (some.brightness_prob or some.hue_prob)
    assert not distort.in_ssds_form(proto.DistortionParameter(all_effects=True, **amounts)).brightness_prob, "its default prob is 0"
    plain = proto.DistortionParameter(brightness_prob=0.5, **amounts)
    assert distort.in_ssds_form(plain) is plain
    both = proto.DistortionParameter(all_effects=True, hue_prob=1)
    assert "all_effects (deepdetect's) and hue_prob (SSD's)" in failure(lambda: distort.in_ssds_form(both)).fact


def test_all_effects_of_noise() -> None:
    """Each effect happens with the probability prob, independently of the others."""
    def noisy(n: int, prob: float) -> np.ndarray:
        param = proto.NoiseParameter(all_effects=True, prob=prob)
        distort.check_noise(param)
        return distort.add_noise(IMAGE, param, Dice((1, 2), n))

    assert (noisy(0, 0) == IMAGE).all()
    seldom, often = (np.mean([(noisy(n, prob) != IMAGE).any() for n in range(200)]) for prob in (0.02, 0.2))
    assert 0.05 < seldom < 0.35 and often > 0.7
    assert any((noisy(n, 0.1) == 255 - IMAGE).all() for n in range(100)), "inverse alone"
    gray = proto.NoiseParameter(all_effects=True, prob=1)
    assert distort.add_noise(IMAGE[:1], gray, Dice((1, 2), 3)).shape == IMAGE[:1].shape
    assert "prob 2" in failure(lambda: distort.check_noise(proto.NoiseParameter(all_effects=True, prob=2))).fact
    salt = proto.NoiseParameter(all_effects=True, prob=1, saltpepper_param={"fraction": 0.1})
    assert "saltpepper has no value" in failure(lambda: distort.check_noise(salt)).fact


def test_lab() -> None:
    """Known colors, blue, green, red: L is 0 to 100, and negative a and b become 0 (Lindbloom's values for D65)."""
    known = {(255, 255, 255): (100, 0, 0), (0, 0, 0): (0, 0, 0), (0, 0, 255): (53, 80, 67), (255, 0, 0): (32, 79, 0), (0, 255, 0): (88, 0, 83),
             (119, 119, 119): (50, 0, 0), (0, 128, 255): (67, 43, 74)}  # fmt: skip
    for color, expected in known.items():
        found = distort.to_lab(np.array(color, np.uint8).reshape(3, 1, 1)).ravel().astype(int)
        assert np.abs(found - expected).max() <= 1, color
