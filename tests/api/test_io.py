"""ocaffe.io: images to net inputs and back, compared with numpy, and with arrays that scikit-image computed."""
from __future__ import annotations

import pathlib
import re
import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import io, proto
from ocaffe.errors import Error
from ocaffe.io import Transformer, load_image, oversample, resize_image

pytestmark = pytest.mark.quick

# resize_image of BVLC's pycaffe with scikit-image 0.26 and scipy 1.17: 'HEIGHTxWIDTHxCHANNELS-NEWxNEW-ORDER' of picture(HEIGHT, WIDTH, CHANNELS).
# It passed anti_aliasing=False, or True for names with '-blurred'. Caffe's last version is older than that option.
RESIZED = np.load(pathlib.Path(__file__).with_name("resized.npz"))
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


def png(path: pathlib.Path, pixels: np.ndarray, color_type: int) -> None:
    """Write a PNG file of 16 bits, which Pillow writes for gray only."""
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, color_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def small(*shape: int, top: int = 256) -> np.ndarray:
    return np.random.default_rng(5).integers(0, top, shape)


def merged(mode: str, *bands: np.ndarray) -> Image.Image:
    return Image.merge(mode, [Image.fromarray(band.astype(np.uint8)) for band in bands])


COLOR, GRAY, ALPHA, WIDE = small(4, 5, 3), small(4, 5), small(4, 5)[::-1], small(4, 5, top=65536)
FLOATS = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)
PALETTE = Image.fromarray(COLOR.astype(np.uint8)).quantize(16)
FILES: list[tuple[str, Callable[[pathlib.Path], object], np.ndarray]] = [  # name, how it is written, values of three channels or one
    ("rgb.png", lambda path: Image.fromarray(COLOR.astype(np.uint8)).save(path), COLOR / 255),
    ("rgb.bmp", lambda path: Image.fromarray(COLOR.astype(np.uint8)).save(path), COLOR / 255),
    ("alpha.png", lambda path: merged("RGBA", *COLOR.transpose(2, 0, 1), ALPHA).save(path), COLOR / 255),
    ("palette.png", lambda path: PALETTE.save(path), np.asarray(PALETTE.convert("RGB")) / 255),
    ("clear.png", lambda path: PALETTE.save(path, transparency=3), np.asarray(PALETTE.convert("RGB")) / 255),
    ("gray.png", lambda path: Image.fromarray(GRAY.astype(np.uint8)).save(path), GRAY / 255),
    ("gray_alpha.png", lambda path: merged("LA", GRAY, ALPHA).save(path), GRAY / 255),
    ("bits.png", lambda path: Image.fromarray(GRAY > 99).save(path), GRAY > 99),
    ("wide.png", lambda path: Image.fromarray(WIDE.astype(np.uint16)).save(path), WIDE / 65535),
    ("wide.tif", lambda path: Image.fromarray(WIDE.astype(np.uint16)).save(path), WIDE / 65535),
    ("wide.pgm", lambda path: path.write_bytes(b"P5 5 4 65535\n" + WIDE.astype(">u2").tobytes()), WIDE / 65535),
    ("wider.tif", lambda path: Image.fromarray((WIDE << 15).astype(np.int32)).save(path), (WIDE << 15) / (2**31 - 1)),
    ("wide_rgb.png", lambda path: png(path, COLOR * 257, 2), COLOR / 255),
    ("wide_alpha.png", lambda path: png(path, np.dstack([COLOR, ALPHA]) * 257, 6), COLOR / 255),
    ("floats.tif", lambda path: Image.fromarray(FLOATS).save(path), FLOATS),
]


@pytest.mark.parametrize(("name", "write", "values"), FILES, ids=[name for name, _, _ in FILES])
def test_formats_of_images(name: str, write: Callable[[pathlib.Path], object], values: np.ndarray, tmp_path: pathlib.Path) -> None:
    write(tmp_path / name)
    color, gray = load_image(str(tmp_path / name)), load_image(str(tmp_path / name), color=False)
    assert color.shape == (4, 5, 3) and gray.shape == (4, 5, 1) and color.dtype == gray.dtype == np.float32
    expected = np.asarray(values, np.float32)
    np.testing.assert_allclose(color, expected if expected.ndim == 3 else np.repeat(expected[..., None], 3, 2), atol=1e-6)
    np.testing.assert_allclose(gray[..., 0], expected @ [0.2125, 0.7154, 0.0721] if expected.ndim == 3 else expected, atol=1e-6)


@pytest.mark.parametrize("name", RESIZED.files)
def test_resize_as_scikit_image(name: str) -> None:
    old, new, order, *blurred = name.split("-")
    image = picture(*map(int, old.split("x")))
    size = [int(n) for n in new.split("x")]
    found = resize_image(image, size, int(order), anti_aliasing=bool(blurred))
    np.testing.assert_allclose(found, RESIZED[name], atol=1e-5)
    np.testing.assert_allclose(resize_image(image * 255 - 9, size, int(order), anti_aliasing=bool(blurred)), RESIZED[name] * 255 - 9, atol=1e-3)


def test_resize_as_the_installed_scikit_image() -> None:
    transform = pytest.importorskip("skimage.transform")
    for new in ((30, 17), (90, 70), (31, 95)):
        image = picture(60, 50, 3)
        image = (image - image.min()) / (image.max() - image.min())
        for blur in (False, True):
            expected = transform.resize(image, new, order=1, mode="constant", anti_aliasing=blur)
            np.testing.assert_allclose(resize_image(image, new, anti_aliasing=blur), expected, atol=1e-3)


@pytest.mark.parametrize("image", [np.full((3, 4, 3), 7.5), np.zeros((3, 4, 1)), np.full((3, 4, 2), -1)])
def test_constant_images_stay_constant(image: np.ndarray) -> None:
    for size in ((2, 2), (5, 6)):
        assert (resize_image(image, size) == image.flat[0]).all() or image.shape[2] == 2
        assert resize_image(image, size).shape == (*size, image.shape[2])


@pytest.mark.parametrize("image", [picture(4, 6, 3), small(4, 6, 3).astype(np.uint8), small(4, 6, 3), picture(4, 6, 3).astype(np.float64)])
def test_types_of_images(image: np.ndarray) -> None:
    before = image.copy()
    assert resize_image(image, (4, 6)).dtype == resize_image(image, [2, 3]).dtype == np.float32
    np.testing.assert_allclose(resize_image(image, np.array([4, 6])), image, rtol=1e-6)
    np.testing.assert_array_equal(resize_image(image, (5, 5, 3)), resize_image(image, (5, 5)))  # some scripts give the channels too
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize(
    ("shape", "size", "fix"),
    [
        ((4, 6), (2, 2), "im[:, :, np.newaxis]"), ((0, 6, 3), (2, 2), "height x width x channels"), ((6,), (2, 2), "height x width x channels"),
        ((4, 6, 3), (2,), "(height, width)"), ((4, 6, 3), (0, 2), "(height, width)"), ((4, 6, 3), (2, 2, 1), "(height, width)"),
    ],
)  # fmt: skip
def test_sizes_that_are_refused(shape: tuple[int, ...], size: tuple[int, ...], fix: str) -> None:
    with pytest.raises(Error, match=re.escape(fix)):
        resize_image(np.zeros(shape), size)


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
            square = padded[i : i + 2, j : j + 2]
            wy, wx = np.array([1 - (y - i), y - i])[: square.shape[0]], np.array([1 - (x - j), x - j])[: square.shape[1]]
            np.testing.assert_allclose(out[row, column], np.einsum("i,j,ijc->c", wy, wx, square), atol=1e-6)


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
    with pytest.raises(ValueError, match="images of 7 x 9 x 1 and of 7 x 9 x 3"):
        oversample([image, image[..., :1]], (4, 6))
    with pytest.raises(IndexError, match="no image"):
        oversample([], (8, 6))


@pytest.mark.parametrize(("shape", "crop"), [((8, 8, 3), (8, 8)), ((9, 8, 1), (4, 4)), ((9, 8, 3), (4, 5)), ((6, 11, 4), (5, 3))])
def test_places_of_crops(shape: tuple[int, ...], crop: tuple[int, int]) -> None:
    """The centre is rounded down, and mirrors follow the five crops of their image."""
    image = picture(*shape)
    found = oversample([image], crop)
    y, x = int(shape[0] / 2 - crop[0] / 2), int(shape[1] / 2 - crop[1] / 2)
    assert found.shape == (10, *crop, shape[2]) and found.dtype == np.float32
    np.testing.assert_array_equal(found[4], image[y : y + crop[0], x : x + crop[1]])
    np.testing.assert_array_equal(found[3], image[-crop[0] :, -crop[1] :])
    np.testing.assert_array_equal(found[5:], found[:5, :, ::-1])
    np.testing.assert_array_equal(oversample(image[None], np.array(crop)), found)


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


@pytest.mark.parametrize("scale", [255, 0.017, np.float64(2), np.array([1.0, 2.0, 3.0])[:, None, None]])
@pytest.mark.parametrize("step", ["raw_scale", "input_scale"])
def test_scales(step: str, scale: Any) -> None:
    made = Transformer({"data": (1, 3, 4, 6)})
    made.set_transpose("data", (2, 0, 1))
    image = picture(4, 6, 3)
    getattr(made, f"set_{step}")("data", scale)
    out = made.preprocess("data", image)
    np.testing.assert_allclose(out, image.transpose(2, 0, 1) * scale, rtol=1e-6)
    np.testing.assert_allclose(made.deprocess("data", out), image, rtol=1e-6)
    assert getattr(made, step)["data"] is scale
    getattr(made, f"set_{step}")("data", None)
    np.testing.assert_array_equal(made.preprocess("data", image), image.transpose(2, 0, 1))


def test_preprocess_leaves_the_image() -> None:
    made = Transformer({"data": (1, 3, 4, 6)})
    made.set_raw_scale("data", 255)
    image = picture(4, 6, 3)
    made.preprocess("data", image)
    np.testing.assert_array_equal(image, picture(4, 6, 3))


@pytest.mark.parametrize("size", [(4, 6), (9, 7)])
def test_deprocess_any_size(size: tuple[int, int]) -> None:
    """Scripts such as Deep Dream deprocess images that are larger than the input."""
    made = Transformer({"data": (1, 3, 4, 6)})
    made.set_transpose("data", (2, 0, 1))
    made.set_channel_swap("data", (2, 1, 0))
    made.set_mean("data", np.array([1.0, 2.0, 3.0]))
    image = picture(*size, 3)
    blob = image.transpose(2, 0, 1)[::-1] - np.array([1, 2, 3])[:, None, None]
    for row in (blob, blob[None]):
        np.testing.assert_allclose(made.deprocess("data", row), image, atol=1e-6)


def test_deprocess_of_one_channel() -> None:
    """Without an order of axes, axes of size 1 are removed, as matplotlib needs it."""
    made = Transformer({"data": (1, 1, 4, 6)})
    image = picture(4, 6)
    assert made.deprocess("data", image[None, None]).shape == made.deprocess("data", image[None]).shape == (4, 6)
    made.set_transpose("data", (2, 0, 1))
    assert made.deprocess("data", image[None, None]).shape == (4, 6, 1)


@pytest.mark.parametrize(
    ("shape", "mean"), [((1, 1, 4, 6), (4, 6)), ((1, 3, 4, 6), (3, 4, 6)), ((1, 3, 4, 6), (3, 1, 1)), ((1, 3, 4, 6), (3, 256, 256)), ((1, 3, 4, 6), (4, 6))]
)
def test_shapes_of_means(shape: tuple[int, ...], mean: tuple[int, ...]) -> None:
    made = Transformer({"data": shape})
    made.set_transpose("data", (2, 0, 1))
    value = picture(*mean)
    made.set_mean("data", value)
    if mean[-1] == 256:
        value = resize_image(value.transpose(1, 2, 0), shape[2:]).transpose(2, 0, 1)
    image = picture(4, 6, shape[1])
    np.testing.assert_allclose(made.preprocess("data", image), image.transpose(2, 0, 1) - value, atol=1e-6)


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
        (lambda: made.set_mean("data", picture(1)), "1 values"),
        (lambda: set_up.deprocess("data", picture(2, 3, 4, 6)), "2 x 3 x 4 x 6 is no row of the input 'data' of 3 x 4 x 6"),
        (lambda: set_up.deprocess("data", picture(24)), "24 is no row"),
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
    doubles = proto.BlobProto(double_data=[0.1, 0.2], shape=proto.BlobShape(dim=[2]))
    assert io.blobproto_to_array(doubles).tolist() == [0.1, 0.2]
    text = io.arraylist_to_blobprotovector_str([array, diff[0]])
    for found, expected in zip(io.blobprotovector_str_to_arraylist(text), [array, diff[0]], strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(Error, match="damaged BlobProtoVector"):
        io.blobprotovector_str_to_arraylist(b"\xff\xff")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int64])
def test_blobprotos_hold_floats(dtype: type) -> None:
    """Scripts read `blob.data`, whatever the type of the array was."""
    array = np.arange(24).reshape(1, 2, 3, 4).astype(dtype)
    blob = io.array_to_blobproto(array, -array.astype(np.float64))
    assert list(blob.data) == list(range(24)) and blob.diff[5] == -5 and not blob.double_data
    np.testing.assert_array_equal(io.blobproto_to_array(blob), array)


@pytest.mark.parametrize("diff", [False, True])
def test_axes_of_blobprotos(diff: bool) -> None:
    values = {"diff" if diff else "data": range(12)}
    old, new = proto.BlobProto(num=1, channels=3, height=2, width=2, **values), proto.BlobProto(shape=proto.BlobShape(dim=[3, 4]), **values)
    assert io.blobproto_to_array(old, diff).shape == (1, 3, 2, 2) and io.blobproto_to_array(new, diff).shape == (3, 4)
    one = proto.BlobProto(**{name: [123] for name in values})
    assert io.blobproto_to_array(one, diff) == 123
    for blob in (proto.BlobProto(**values), proto.BlobProto(num=2, channels=3, height=2, width=2, **values)):
        with pytest.raises(ValueError, match="do not match its shape"):
            io.blobproto_to_array(blob, diff)
    with pytest.raises(ValueError, match="do not match its shape"):
        io.blobproto_to_array(new, not diff)


@pytest.mark.parametrize("label", [0, 7, np.int64(7), np.uint8(7)])
def test_labels_of_datums(label: Any) -> None:
    datum = io.array_to_datum(np.ones((10, 10, 3)), label)
    assert datum.label == label and datum.HasField("label")
    bare = io.array_to_datum(np.ones((10, 10, 3)))
    assert not bare.HasField("label") and len(bare.SerializeToString()) < len(datum.SerializeToString())
    assert io.datum_to_array(bare).shape == (10, 10, 3) and (io.datum_to_array(bare) == 1).all()


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
