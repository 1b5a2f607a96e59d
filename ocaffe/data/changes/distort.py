"""SSD's changes to the pixels of an image, with OpenCV's arithmetic: random color distortions, and noise. Those of deepdetect differ in when they happen.

Images are channels x height x width, uint8, in the order blue, green, red.
"""
from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ocaffe.data.dice import Dice
from ocaffe.errors import Error

_HUES = 180  # in a full circle
_HUE_BITS = 12
_COLOR_BITS = 14
_POSTERIZED = 64  # levels that are merged into one
_CLIP = 4.0  # CLAHE: clip limit, in units of the mean count of a histogram bin
_AT_ONCE = 1 << 20  # pixels that a color distortion takes at a time: its floats need many times the memory of the image
_TILES = 8  # CLAHE: tiles along each side
# From linear red, green, blue to X, Y, Z relative to the white D65.
_XYZ = np.array([[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]]) / [[0.950456], [1], [1.088754]]


def _bytes(values: np.ndarray) -> np.ndarray:
    """Round (halves to even) and clip to 0 ... 255."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


# -- colors


def _reciprocals(numerator: float) -> np.ndarray:
    """Return `numerator` / n for n = 0 ... 255 in fixed point with _HUE_BITS bits; 0 for n = 0."""
    return np.rint(np.concatenate([[0], numerator * (1 << _HUE_BITS) / np.arange(1, 256)])).astype(np.int32)


_SATURATIONS, _HUE_STEPS = _reciprocals(255), _reciprocals(_HUES / 6)


def to_hsv(image: np.ndarray) -> np.ndarray:
    """Convert blue, green, red to hue (0 to 179), saturation, value."""
    value = np.maximum(np.maximum(image[0], image[1]), image[2])
    spread = value - np.minimum(np.minimum(image[0], image[1]), image[2])
    blue, green, red = image.astype(np.int16)
    sixth = spread.astype(np.int16)
    half = 1 << (_HUE_BITS - 1)
    hue = np.where(value == red, green - blue, np.where(value == green, blue - red + 2 * sixth, red - green + 4 * sixth))
    hue = hue * _HUE_STEPS.take(spread) + half >> _HUE_BITS
    hue += (hue < 0) * np.int32(_HUES)
    result = np.empty(image.shape, np.uint8)
    result[0], result[1], result[2] = hue, spread * _SATURATIONS.take(value) + half >> _HUE_BITS, value
    return result


def _shares() -> np.ndarray:
    """Return 3 x 256 factors: the fraction of the saturation that is subtracted from blue, green and red at each hue from 0 to 255."""
    hue = np.arange(256, dtype=np.float32) * np.float32(6 / _HUES)
    hue = np.where(hue >= 6, hue - np.float32(6), hue)
    sector = np.floor(hue).astype(np.intp)
    part = hue - sector.astype(np.float32)
    levels = np.stack([np.zeros_like(part), np.ones_like(part), part, 1 - part])
    which = np.array([[1, 3, 0], [1, 0, 2], [3, 0, 1], [0, 2, 1], [0, 1, 3], [2, 1, 0]])[sector]
    return np.take_along_axis(levels, which.T, 0)


_SHARES = _shares()
_PARTS = np.arange(256, dtype=np.float32) * np.float32(1 / 255)


def from_hsv(image: np.ndarray) -> np.ndarray:
    """Convert hue, saturation, value to blue, green, red."""
    hue, saturation, value = image[0], _PARTS.take(image[1]), _PARTS.take(image[2])
    result = np.empty(image.shape, np.uint8)
    for channel, shares in zip(result, _SHARES):
        level = shares.take(hue)
        level *= saturation
        np.subtract(1, level, out=level)
        level *= value
        level *= 255
        channel[...] = np.rint(level, out=level)
    return result


def brightness(image: np.ndarray, delta: float) -> np.ndarray:
    return _bytes(image + np.float32(delta))


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    return _bytes(image * np.float32(factor))


def saturation(image: np.ndarray, factor: float) -> np.ndarray:
    hsv = to_hsv(image)
    hsv[1] = contrast(hsv[1], factor)
    return from_hsv(hsv)


def hue(image: np.ndarray, delta: float) -> np.ndarray:
    """Add `delta` to the hue. The sum is clipped at 0 and does not wrap, as in SSD."""
    hsv = to_hsv(image)
    hsv[0] = brightness(hsv[0], delta)
    return from_hsv(hsv)


Step = Callable[[np.ndarray], np.ndarray]


def _by_rows(step: Step) -> Step:
    """Return the step for images of any size. It takes some rows at a time, because it changes each pixel alone."""

    def run(image: np.ndarray) -> np.ndarray:
        result, rows = np.empty_like(image), max(1, _AT_ONCE // max(1, image.shape[2]))
        for start in range(0, image.shape[1], rows):
            result[:, start : start + rows] = step(image[:, start : start + rows])
        return result

    return run


_EFFECTS = ("brightness", "contrast", "saturation", "hue", "random_order")


def in_ssds_form(param: Any) -> Any:
    """Return a DistortionParameter with SSD's probabilities. Those of deepdetect have one `prob`, for all effects or for those that are set to true.

    Raise Error without a place if there are fields of both.
    """
    own = [name for name in (*_EFFECTS, "all_effects", "prob") if param.HasField(name)]
    if not own:
        return param
    mixed = [f"{name}_prob" for name in _EFFECTS if param.HasField(f"{name}_prob")]
    if mixed:
        raise Error(f"distort_param has {own[0]} (deepdetect's) and {mixed[0]} (SSD's)", fix=f"remove {mixed[0]}, or {own[0]}")
    result = type(param)()
    result.CopyFrom(param)
    for name in _EFFECTS:
        setattr(result, f"{name}_prob", param.prob if param.all_effects or getattr(param, name) else 0)
    for name in own:
        result.ClearField(name)
    return result


def draw(param: Any, dice: Dice) -> list[Step]:
    """Draw the steps of a DistortionParameter. Contrast is at random before or after saturation and hue."""
    early = dice.uniform() > 0.5
    drawn: dict[str, list[Step]] = {}
    for name, step, low, high in (
        ("brightness", brightness, -param.brightness_delta, param.brightness_delta),
        ("contrast", contrast, param.contrast_lower, param.contrast_upper),
        ("saturation", saturation, param.saturation_lower, param.saturation_upper),
        ("hue", hue, -param.hue_delta, param.hue_delta),
    ):
        happens, amount = dice.uniform() < getattr(param, f"{name}_prob"), dice.uniform(low, high)
        drawn[name] = [_by_rows(lambda rows, step=step, amount=amount: step(rows, amount))] if happens else []  # type: ignore[misc]
    if dice.uniform() < param.random_order_prob:
        order = sorted(range(3), key=lambda _: dice.word())
        drawn["order"] = [lambda image: image[order]]
    names = ("brightness", "contrast", "saturation", "hue") if early else ("brightness", "saturation", "hue", "contrast")
    return [step for name in (*names, "order") for step in drawn.get(name, [])]


def check_distortion(param: Any) -> None:
    """Raise Error without a place if a range is empty."""
    for name in ("contrast", "saturation"):
        low, high = getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper")
        if getattr(param, f"{name}_prob") > 0 and not 0 <= low <= high:
            fix = f"set both in distort_param so that 0 <= {name}_lower <= {name}_upper"
            raise Error(f"distort_param has {name}_lower {low:g} and {name}_upper {high:g}", fix=fix)
    for name in ("brightness", "hue"):
        if getattr(param, f"{name}_delta") < 0:
            delta = getattr(param, f"{name}_delta")
            raise Error(f"distort_param has {name}_delta {delta:g}", fix=f"distort_param {{ {name}_delta: {-delta:g} }}: it is the most to either side")


# -- noise


def check_noise(param: Any) -> None:
    """Raise Error without a place for settings that are not supported."""
    if param.convert_to_lab and not param.all_effects:
        raise Error("noise_param convert_to_lab is not supported (in SSD itself it reads floats as bytes)", fix="remove convert_to_lab from noise_param")
    if param.all_effects and not 0 <= param.prob <= 1:
        raise Error(f"noise_param has prob {param.prob:g}", fix="set prob in noise_param to a probability from 0 to 1")
    if (param.saltpepper or (param.all_effects and param.saltpepper_param.fraction)) and not param.saltpepper_param.value:
        fix = "set value in saltpepper_param to the gray level of the changed pixels, such as value: 255 for white"
        raise Error("noise_param saltpepper has no value", fix=fix)


def add_noise(image: np.ndarray, param: Any, dice: Dice) -> np.ndarray:
    """Apply the steps of a NoiseParameter in SSD's order. SSD ignores the field prob, and so does this function.

    With deepdetect's all_effects each of its effects happens with the probability prob, but jpeg, which has a field of its own. The conversions of colors
    are left out for gray images. deepdetect itself never decolorizes, because it asks an empty image for its channels.
    """
    colored = len(image) == 3

    def happens(name: str) -> bool:
        return dice.uniform() < param.prob if param.all_effects else bool(getattr(param, name))

    if happens("decolorize") and colored:
        image = np.broadcast_to(_gray(image), image.shape)
    if happens("gauss_blur"):
        image = gauss_blur(image)
    if happens("hist_eq"):
        image = _on_luminance(image, equalized)
    if happens("clahe"):
        image = _on_luminance(image, clahe)
    if param.jpeg > 0:
        image = _through_jpeg(image, int(param.jpeg))
    if happens("erode"):
        image = eroded(image)
    if happens("posterize"):
        image = image // _POSTERIZED * _POSTERIZED + _POSTERIZED // 2
    if happens("inverse"):
        image = 255 - image
    if happens("saltpepper") and (param.saltpepper_param.value or not param.all_effects):
        image = _salted(image, param.saltpepper_param, dice)
    if happens("convert_to_hsv"):
        if not (colored or param.all_effects):
            fix = "set force_color: true in transform_param, or remove convert_to_hsv"
            raise Error("noise_param convert_to_hsv is set, and the image has 1 channel", fix=fix)
        image = to_hsv(image) if colored else image
    if param.all_effects and happens("convert_to_lab") and colored:
        image = to_lab(image)
    return image


def to_lab(image: np.ndarray) -> np.ndarray:
    """Convert blue, green, red of sRGB to L (0 to 100), a and b. As in deepdetect, a and b are clipped to 0 ... 127: negative ones become 0.

    OpenCV reads the root and the gamma from tables; results may differ by 1.
    """
    linear = image[::-1] / 255
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    xyz = np.tensordot(_XYZ, linear, 1)
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    light = np.where(xyz[1] > 0.008856, 116 * root[1] - 16, 903.3 * xyz[1])
    return _bytes(np.stack([light, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])]))


def _gray(image: np.ndarray) -> np.ndarray:
    blue, green, red = image.astype(np.int32)
    return (blue * 1868 + green * 9617 + red * 4899 + (1 << _COLOR_BITS - 1) >> _COLOR_BITS).astype(np.uint8)


def _on_luminance(image: np.ndarray, change: Step) -> np.ndarray:
    """Apply `change` to a gray image, or to the luminance of a color image (YCrCb)."""
    if len(image) == 1:
        return change(image[0])[None]
    half, middle = 1 << _COLOR_BITS - 1, 128 << _COLOR_BITS
    blue, _, red = image.astype(np.int32)
    before = _gray(image).astype(np.int32)
    cr = np.clip((red - before) * 11682 + middle + half >> _COLOR_BITS, 0, 255) - 128
    cb = np.clip((blue - before) * 9241 + middle + half >> _COLOR_BITS, 0, 255) - 128
    after = change(before.astype(np.uint8)).astype(np.int32)
    channels = [cb * 29049, cb * -5636 + cr * -11698, cr * 22987]
    return np.clip(np.stack([after + (channel + half >> _COLOR_BITS) for channel in channels]), 0, 255).astype(np.uint8)


def gauss_blur(image: np.ndarray) -> np.ndarray:
    """Blur with a 7 x 7 kernel, sigma 1.5. Beyond an edge the image is reflected; the edge pixel itself is not repeated."""
    weights = np.exp(-(np.arange(-3.0, 4.0) ** 2) / (2 * 1.5**2)).astype(np.float32)
    weights /= weights.sum()
    result = image.astype(np.float32)
    for axis in (1, 2):
        count = image.shape[axis]
        places = np.abs(np.arange(-3, count + 3))
        places = np.abs((count - 1) - np.abs((count - 1) - places % max(2 * count - 2, 1)))  # a small image is reflected several times
        padded = result.take(places, axis)
        result = sum((padded.take(range(k, k + count), axis) * weights[k] for k in range(7)), np.float32(0))  # type: ignore[assignment]
    return _bytes(result)


def equalized(image: np.ndarray) -> np.ndarray:
    """Equalize the histogram of a gray image. The darkest level that occurs becomes 0."""
    counts = np.bincount(image.ravel(), minlength=256)
    darkest = int(np.flatnonzero(counts)[0])
    if counts[darkest] == image.size:
        return image
    sums = np.cumsum(counts) - counts[darkest]
    scale = np.float32(255) / np.float32(image.size - counts[darkest])
    return _bytes(np.maximum(sums, 0).astype(np.float32) * scale)[image]


def clahe(image: np.ndarray) -> np.ndarray:
    """Contrast limited adaptive histogram equalization of a gray image.

    Each of 8 x 8 tiles has its own table of levels. A pixel's value is interpolated between the tables of the nearest tiles.
    """
    height, width = image.shape
    more = int(height % _TILES > 0 or width % _TILES > 0)  # in both directions, as in OpenCV
    down, across = height // _TILES + more, width // _TILES + more
    pad = (0, down * _TILES - height), (0, across * _TILES - width)
    padded = np.pad(image, pad, mode="reflect") if min(height, width) > 1 else np.pad(image, pad, mode="edge")
    tiles = padded.reshape(_TILES, down, _TILES, across).swapaxes(1, 2).reshape(_TILES * _TILES, -1)
    limit = max(int(_CLIP * tiles.shape[1] / 256), 1)
    levels = np.empty((_TILES, _TILES, 256), np.uint8)
    for tile, table in zip(tiles, levels.reshape(-1, 256)):
        counts = np.bincount(tile, minlength=256)
        spare = int(np.maximum(counts - limit, 0).sum())
        counts = np.minimum(counts, limit) + spare // 256
        rest = spare % 256
        if rest:
            counts[np.arange(0, 256, max(256 // rest, 1))[:rest]] += 1
        table[:] = _bytes(np.cumsum(counts).astype(np.float32) * np.float32(255 / tiles.shape[1]))
    result = np.zeros(image.shape, np.float32)
    for row, row_share in zip(*_between(height, down)):
        for column, column_share in zip(*_between(width, across)):
            result += levels[row[:, None], column, image] * (row_share[:, None] * column_share)
    return _bytes(result)


def _between(count: int, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each of `count` pixels, the two tiles whose centres are nearest on either side, and their weights (both 2 x count)."""
    at = np.arange(count, dtype=np.float32) * np.float32(1 / tile) - np.float32(0.5)
    first = np.floor(at)
    share = at - first
    tiles = np.clip(np.stack([first, first + 1]), 0, _TILES - 1).astype(np.intp)
    return tiles, np.stack([1 - share, share])


def _through_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    """Encode the image as JPEG and decode it in color."""
    file = io.BytesIO()
    picture = Image.fromarray(image[0]) if len(image) == 1 else Image.fromarray(np.ascontiguousarray(image[::-1].transpose(1, 2, 0)))
    picture.save(file, "JPEG", quality=min(quality, 100), subsampling="4:2:0")
    pixels = np.asarray(Image.open(file).convert("RGB"))[..., ::-1].transpose(2, 0, 1)
    return pixels[: len(image)]


def eroded(image: np.ndarray) -> np.ndarray:
    """Return the minimum of each pixel and its four neighbours. OpenCV's 3 x 3 ellipse is this cross."""
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)), constant_values=255)
    height, width = image.shape[1:]
    shifts = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    return np.minimum.reduce([padded[:, y : y + height, x : x + width] for y, x in shifts])


def _salted(image: np.ndarray, param: Any, dice: Dice) -> np.ndarray:
    """Set `fraction` of the pixels to `value`. The pixels are drawn with repetition."""
    values: Sequence[float] = list(param.value) * (len(image) if len(param.value) == 1 else 1)
    if len(values) != len(image):
        often = f"once, or {len(image)} times" if len(image) > 1 else "once"
        raise Error(f"saltpepper_param has {len(values)} values, the image {len(image)} channels", fix=f"give value in saltpepper_param {often}")
    _, height, width = image.shape
    count = int(param.fraction * height * width)
    places = (dice.words(count) % np.uint64(height * width)).astype(np.intp)
    image = np.array(image).reshape(len(image), -1)
    image[:, places] = np.array([int(value) & 255 for value in values], np.uint8)[:, None]
    return image.reshape(-1, height, width)
