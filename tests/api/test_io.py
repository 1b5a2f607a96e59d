"""ocaffe.io: images to net inputs and back, compared with numpy."""
from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import io, proto
from ocaffe.errors import Error
from ocaffe.io import Transformer, load_image, oversample, resize_image

IMAGES = pathlib.Path(__file__).resolve().parents[1] / "golden" / "files" / "images"


def picture(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).random(shape, np.float32)


def test_load_image(tmp_path: pathlib.Path) -> None:
    color, gray = load_image(str(IMAGES / "im00.png")), load_image(str(IMAGES / "gray0.png"), color=False)
    np.testing.assert_array_equal(color, np.asarray(Image.open(IMAGES / "im00.png").convert("RGB"), np.float32) / np.float32(255))
    assert color.dtype == gray.dtype == np.float32 and gray.shape[2] == 1
    assert (load_image(str(IMAGES / "gray0.png")) == gray).all()  # the same values in three channels
    np.testing.assert_allclose(load_image(str(IMAGES / "im00.png"), False)[..., 0], color @ [0.2125, 0.7154, 0.0721], atol=1e-6)
    Image.fromarray(np.full((2, 3), 13107, np.uint16)).save(tmp_path / "deep.png")
    assert np.allclose(load_image(str(tmp_path / "deep.png")), 0.2) and load_image(str(tmp_path / "deep.png"), False).shape == (2, 3, 1)
    (tmp_path / "text.png").write_text("no image")
    for name, told in (("text.png", "not an image file"), ("none.png", "No such file")):
        with pytest.raises(Error, match=told) as caught:
            load_image(str(tmp_path / name))
        assert name in str(caught.value)


@pytest.mark.parametrize(("old", "new"), [((8, 6), (4, 3)), ((5, 7), (9, 4)), ((4, 4), (4, 4)), ((1, 1), (3, 3))])
def test_resize_is_bilinear_at_centres(old: tuple[int, int], new: tuple[int, int]) -> None:
    image = picture(*old, 3)
    padded = np.full((old[0] + 2, old[1] + 2, 3), image.min())
    padded[1:-1, 1:-1] = image
    out = resize_image(image, new)
    assert out.shape == (*new, 3) and out.dtype == np.float32
    for row in range(new[0]):
        for column in range(new[1]):
            y, x = ((n + 0.5) * a / b - 0.5 + 1 for n, a, b in zip((row, column), old, new))
            i, j = int(np.floor(y)), int(np.floor(x))
            block = padded[i : i + 2, j : j + 2]
            wy, wx = np.array([1 - (y - i), y - i])[: block.shape[0]], np.array([1 - (x - j), x - j])[: block.shape[1]]
            np.testing.assert_allclose(out[row, column], np.einsum("i,j,ijc->c", wy, wx, block), atol=1e-6)


def test_nearest_and_refused_order() -> None:
    image = picture(4, 6, 3)
    np.testing.assert_allclose(resize_image(image, (2, 3), 0), image[[1, 3]][:, [1, 3, 5]], atol=1e-7)  # halves are rounded up, as by skimage
    with pytest.raises(Error, match="interp_order is 3"):
        resize_image(image, (2, 3), 3)


def test_oversample() -> None:
    image = picture(7, 9, 3)
    crops = oversample([image, image + 1], (4, 6))
    plain = [image[y : y + 4, x : x + 6] for y, x in ((0, 0), (0, 3), (3, 0), (3, 3), (1, 1))]
    np.testing.assert_array_equal(crops[:10], [*plain, *(crop[:, ::-1] for crop in plain)])
    assert crops.shape == (20, 4, 6, 3) and np.allclose(crops[10:], crops[:10] + 1)
    with pytest.raises(Error, match="8 x 6 does not fit into an image of 7 x 9"):
        oversample([image], (8, 6))


def test_preprocess_in_caffes_order() -> None:
    made = Transformer({"data": (10, 3, 4, 6)})
    image = picture(4, 6, 3)
    mean = picture(3, 4, 6) * 100
    made.set_transpose("data", (2, 0, 1))
    made.set_channel_swap("data", (2, 0, 1))
    made.set_raw_scale("data", 255)
    made.set_mean("data", mean)
    made.set_input_scale("data", 0.5)
    out = made.preprocess("data", image)
    np.testing.assert_allclose(out, (image.transpose(2, 0, 1)[[2, 0, 1]] * 255 - mean) * 0.5, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made.deprocess("data", out), image, atol=1e-5)
    assert made.preprocess("data", picture(9, 9, 3)).shape == (3, 4, 6)
    for value in (np.array([1.0, 2.0, 3.0]), np.array([[[1.0]], [[2.0]], [[3.0]]])):
        made.set_mean("data", value)
        np.testing.assert_allclose(made.preprocess("data", image)[:, 0, 0], (image[0, 0][[2, 0, 1]] * 255 - [1, 2, 3]) * 0.5, rtol=1e-4)
    made.set_mean("data", picture(3, 8, 12))
    np.testing.assert_allclose(made.mean["data"], resize_image(picture(3, 8, 12).transpose(1, 2, 0), (4, 6)).transpose(2, 0, 1))


def test_refused() -> None:
    made, set_up = Transformer({"data": (1, 3, 4, 6)}), Transformer({"data": (1, 3, 4, 6)})
    set_up.set_transpose("data", (2, 0, 1))
    set_up.set_mean("data", np.ones(3))
    for call, told in (
        (lambda: made.preprocess("image", picture(4, 6, 3)), "'image' is not an input of the net"),
        (lambda: set_up.preprocess("data", picture(4, 6)), "4 x 6 does not become the input 'data' of 3 x 4 x 6"),
        (lambda: set_up.preprocess("data", picture(4, 6, 4)), "4 x 6 x 4 does not become"),
        (lambda: made.set_transpose("data", (1, 0)), "2 axes"),
        (lambda: made.set_channel_swap("data", (1, 0)), "2 channels for an input of 3"),
        (lambda: made.set_mean("data", picture(2)), "2 values"),
        (lambda: made.set_mean("data", picture(2, 4, 6)), "the mean is 2 x 4 x 6"),
    ):
        with pytest.raises(Error, match=told):
            call()


def test_blobprotos() -> None:
    array, diff = picture(2, 3, 4, 5), picture(2, 3, 4, 5) + 1
    blob = io.array_to_blobproto(array, diff)
    assert list(blob.shape.dim) == [2, 3, 4, 5]
    np.testing.assert_array_equal(io.blobproto_to_array(blob), array)
    np.testing.assert_array_equal(io.blobproto_to_array(blob, return_diff=True), diff)
    legacy = proto.BlobProto(num=1, channels=2, height=1, width=2, data=[1, 2, 3, 4])  # the format of files before 2014
    assert io.blobproto_to_array(legacy).tolist() == [[[[1, 2]], [[3, 4]]]]
    doubles = io.array_to_blobproto(np.array([0.1, 0.2]))
    assert list(doubles.double_data) == [0.1, 0.2] and io.blobproto_to_array(doubles).dtype == np.float64
    text = io.arraylist_to_blobprotovector_str([array, diff[0]])
    for found, expected in zip(io.blobprotovector_str_to_arraylist(text), [array, diff[0]], strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(Error, match="not a BlobProtoVector"):
        io.blobprotovector_str_to_arraylist(b"\xff\xff")


def test_datums() -> None:
    pixels = (picture(3, 4, 5) * 255).astype(np.uint8)
    datum = io.array_to_datum(pixels, 7)
    assert (datum.channels, datum.height, datum.width, datum.label) == (3, 4, 5, 7) and datum.data == pixels.tobytes()
    np.testing.assert_array_equal(io.datum_to_array(datum), pixels)
    np.testing.assert_array_equal(io.datum_to_array(io.array_to_datum(picture(1, 2, 2))), picture(1, 2, 2))
    encoded = proto.Datum(encoded=True, data=(IMAGES / "im00.png").read_bytes())
    with Image.open(IMAGES / "im00.png") as image:
        np.testing.assert_array_equal(io.datum_to_array(encoded), np.asarray(image.convert("RGB"))[..., ::-1].transpose(2, 0, 1))
    for call, told in (
        (lambda: io.array_to_datum(np.zeros((2, 2))), "three axes, the array is 2 x 2"),
        (lambda: io.datum_to_array(proto.Datum(channels=1, height=2, width=2, data=b"abc")), "holds 3 values"),
        (lambda: io.datum_to_array(proto.Datum(encoded=True, data=b"no image")), "cannot be decoded"),
    ):
        with pytest.raises(Error, match=told):
            call()


@pytest.mark.parametrize(
    ("new", "order", "expected"),
    [  # skimage.transform.resize(image, new, order=order, mode="constant", anti_aliasing=False) of skimage 0.26, first channel
        ((2, 2), 0, [[0.5, 0.7], [1.3, 1.5]]),
        ((3, 2), 1, [[0.1167, 0.3167], [0.65, 0.85], [1.1833, 1.3833]]),
        ((4, 7), 1, [[0.0, 0.0357, 0.0929, 0.15, 0.2071, 0.2643, 0.2357],
                     [0.3143, 0.4357, 0.4929, 0.55, 0.6071, 0.6643, 0.55],
                     [0.6286, 0.8357, 0.8929, 0.95, 1.0071, 1.0643, 0.8643],
                     [0.9429, 1.2357, 1.2929, 1.35, 1.4071, 1.4643, 1.1786]]),
    ],
)  # fmt: skip
def test_resize_equals_skimage(new: tuple[int, int], order: int, expected: list[list[float]]) -> None:
    """On scikit-image's own results. skimage's later default, a low-pass filter before shrinking, did not exist in Caffe's time."""
    image = (np.arange(16, dtype=np.float32).reshape(4, 4, 1) / 10) * np.float32([1, 0.5, 0.25])
    np.testing.assert_allclose(resize_image(image, new, order)[..., 0], expected, atol=1e-3)


def test_scikit_image_as_in_pycaffe(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts call caffe.io.skimage.io.imsave and others. ocaffe needs no scikit-image."""
    monkeypatch.setitem(sys.modules, "skimage", None)
    module: Any = io
    with pytest.raises(AttributeError, match="pip install scikit-image"):
        _ = module.skimage
    monkeypatch.delitem(sys.modules, "skimage")
    (tmp_path / "skimage").mkdir()
    (tmp_path / "skimage" / "__init__.py").touch()
    (tmp_path / "skimage" / "io.py").write_text("imsave = print")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert module.skimage.io.imsave is print
    for name in ("skimage", "skimage.io"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = module.nope
