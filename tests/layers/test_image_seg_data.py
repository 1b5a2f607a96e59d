"""ImageSegData: images and labels as DeepLab and PSPNet make them, in numpy, and errors."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.compiler.network import phase_net
from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from tests.data.small_databases import image

pytestmark = pytest.mark.quick

SHAPES = [(3, 9, 12), (3, 5, 14), (3, 12, 6)]
MEAN = np.float32([104.008, 116.669, 122.675])[:, None, None]
MEANS = "mean_value: 104.008 mean_value: 116.669 mean_value: 122.675"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Three pictures of different sizes with gray label images, and lists of them."""
    for n, shape in enumerate(SHAPES):
        Image.fromarray(np.ascontiguousarray(image(n, shape)[::-1].transpose(1, 2, 0))).save(tmp_path / f"i{n}.png")
        Image.fromarray(image(n + 10, (1, *shape[1:]))[0] % 21).save(tmp_path / f"l{n}.png")
    (tmp_path / "pixel.txt").write_text("".join(f"/i{n}.png /l{n}.png\n" for n in range(3)))
    (tmp_path / "image.txt").write_text("".join(f"/i{n}.png {n + 7}\n" for n in range(3)))
    (tmp_path / "none.txt").write_text("".join(f"/i{n}.png\n" for n in range(3)))
    return tmp_path


def made(n: int) -> tuple[np.ndarray, np.ndarray]:
    return image(n, SHAPES[n]), image(n + 10, (1, *SHAPES[n][1:])) % 21


def net_of(device: Any, folder: pathlib.Path, transform: str, phase: int, param: str = "label_type: PIXEL", old: bool = False, tops: int = 3) -> Net:
    kind = "pixel" if "PIXEL" in param else "none" if "NONE" in param else "image"
    head = "layers { type: IMAGE_SEG_DATA" if old else 'layer { type: "ImageSegData"'
    names = " ".join(f'top: "{name}"' for name in ("data", "label", "data_dim")[:tops])
    source = f'image_data_param {{ source: "{folder}/{kind}.txt" root_folder: "{folder}" batch_size: 3 {param} }}'
    text = f'{head} name: "d" {names} {source} transform_param {{ {transform} }} }}'
    return Net(phase_net(parse(text, proto.NetParameter, "net.prototxt"), phase), phase=phase, device=device, seed=3)


def blobs_of(net: Net) -> list[np.ndarray]:
    net.forward()
    return [net.blobs[name].data.copy() for name in ("data", "label", "data_dim") if name in net.blobs]


def padded(pixels: np.ndarray, height: int, width: int, value: Any) -> np.ndarray:
    """Return float pixels padded with `value` at the bottom and the right up to this size."""
    result = np.empty((len(pixels), max(height, pixels.shape[1]), max(width, pixels.shape[2])), np.float64)
    result[...] = value
    result[:, : pixels.shape[1], : pixels.shape[2]] = pixels
    return result


def options(n: int, factor: float, height: int, width: int, ignored: int = 255) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return all samples of picture n with this scale: each crop, plain and mirrored, of the padded picture less the mean, with its labels."""
    size = int(np.float32(SHAPES[n][1]) * np.float32(factor)), int(np.float32(SHAPES[n][2]) * np.float32(factor))
    pixels, labels = made(n)
    pixels = padded(resize(pixels, *size), height, width, MEAN) - MEAN
    labels = padded(resize(labels, *size, Interpolation.NEAREST), height, width, ignored)
    return [
        (each[:, y : y + height, x : x + width][:, :, ::flip], own[:, y : y + height, x : x + width][:, :, ::flip])
        for each, own in [(pixels, labels)] for y in range(pixels.shape[1] - height + 1) for x in range(pixels.shape[2] - width + 1) for flip in (1, -1)
    ]  # fmt: skip


def number_of(sample: np.ndarray, label: np.ndarray, found: list[tuple[np.ndarray, np.ndarray]]) -> int:
    return next((i for i, (x, y) in enumerate(found) if np.allclose(sample, 0.5 * x, atol=1e-4) and np.array_equal(label, y)), -1)


@pytest.mark.parametrize("old", [False, True], ids=["new", "V1"])
def test_crops_in_train(device: Any, folder: pathlib.Path, old: bool) -> None:
    """Each sample is a crop of the picture, scaled by one of the factors and padded, and its labels are those of the same pixels."""
    text = f"crop_size: 7 mirror: true scale: 0.5 {MEANS} scale_factors: 0.5 scale_factors: 1 scale_factors: 1.5"
    net, seen = net_of(device, folder, text, proto.TRAIN, old=old), set()
    for _ in range(12):
        data, label, sizes = blobs_of(net)
        for n in range(3):
            kinds = [(factor, number_of(data[n], label[n], options(n, factor, 7, 7))) for factor in (0.5, 1.0, 1.5)]
            matching = [kind for kind in kinds if kind[1] >= 0]
            assert matching, f"picture {n}"
            seen |= {(n, *matching[0])}
            np.testing.assert_array_equal(sizes[n].ravel(), np.minimum(SHAPES[n][1:], 7))
    assert {factor for _, factor, _ in seen} == {0.5, 1.0, 1.5} and len(seen) > 20
    net.close()


def test_middle_in_test(device: Any, folder: pathlib.Path) -> None:
    """crop_height and crop_width; a picture that is smaller along one axis is padded there alone."""
    net = net_of(device, folder, f"crop_height: 6 crop_width: 10 scale: 0.5 {MEANS}", proto.TEST, "label_type: PIXEL ignore_label: 33")
    data, label, sizes = blobs_of(net)
    for n in range(3):
        pixels, labels = made(n)
        pixels, labels = padded(pixels, 6, 10, MEAN) - MEAN, padded(labels, 6, 10, 33)
        y, x = (pixels.shape[1] - 6) // 2, (pixels.shape[2] - 10) // 2
        np.testing.assert_allclose(data[n], 0.5 * pixels[:, y : y + 6, x : x + 10], atol=1e-4)
        np.testing.assert_array_equal(label[n], labels[:, y : y + 6, x : x + 10])
        np.testing.assert_array_equal(sizes[n].ravel(), np.minimum(SHAPES[n][1:], (6, 10)))
    net.close()


@pytest.mark.parametrize("param, expected", [("", [7, 8, 9]), ("label_type: NONE ignore_label: 44", [44] * 3)])
def test_labels_of_whole_images(device: Any, folder: pathlib.Path, param: str, expected: list[int]) -> None:
    """The default label_type IMAGE gives all pixels of an image one label, NONE ignore_label; padding has ignore_label."""
    net = net_of(device, folder, "crop_size: 8", proto.TEST, param)
    _, label, _ = blobs_of(net)
    for n, own in enumerate(expected):
        shown = [min(side, 8) for side in SHAPES[n][1:]]
        assert (label[n, 0, : shown[0], : shown[1]] == own).all() and (label[n, 0, shown[0] :] == (44 if param else 255)).all()
    net.close()


def test_resized_images_and_fewer_tops(device: Any, folder: pathlib.Path) -> None:
    net = net_of(device, folder, MEANS, proto.TEST, "label_type: PIXEL new_height: 6 new_width: 8", tops=2)
    data, label = blobs_of(net)
    for n in range(3):
        np.testing.assert_allclose(data[n], resize(made(n)[0], 6, 8) - MEAN, atol=1e-4)
        np.testing.assert_array_equal(label[n], resize(made(n)[1], 6, 8, Interpolation.NEAREST))
    net.close()


def test_batches_repeat_with_the_seed(device: Any, folder: pathlib.Path) -> None:
    nets = [net_of(device, folder, "crop_size: 5 mirror: true scale_factors: 0.75 scale_factors: 1.25", proto.TRAIN) for _ in range(2)]
    for _ in range(3):
        for mine, other in zip(*map(blobs_of, nets)):
            np.testing.assert_array_equal(mine, other)
    for net in nets:
        net.close()


@pytest.mark.parametrize(
    "transform, param, told",
    [
        ("", "label_type: PIXEL", r"the image is 3 x 5 x 14, the first one of its batch is 3 x 9 x 12"),
        ("scale_factors: 2", "label_type: PIXEL", "scale_factors are set without crop_size"),
        ("crop_size: 3 scale_factors: 0", "label_type: PIXEL", "scale_factors are 0"),
        ('crop_size: 3 mean_file: "m"', "label_type: PIXEL", "mean_file m|m: "),
        ("crop_size: 3", "label_type: PIXEL ignore_label: 300", "ignore_label is 300"),
        ("crop_size: 3", "label_type: PIXEL short_side: 3", "short_side"),
        ("crop_size: 3 affine { rotation: 3 }", "label_type: PIXEL", "transform_param field 'affine' is not supported here"),
    ],
)
def test_errors(device: Any, folder: pathlib.Path, transform: str, param: str, told: str) -> None:
    with pytest.raises(Error, match=told):
        net = net_of(device, folder, transform, proto.TRAIN, param)
        net.forward()


def test_a_list_of_another_kind(device: Any, folder: pathlib.Path) -> None:
    (folder / "image.txt").write_text("/i0.png /l0.png\n")
    with pytest.raises(Error, match=r"line 1: the label '/l0\.png' is not a number") as caught:
        net_of(device, folder, "crop_size: 3", proto.TRAIN, "")
    assert "label_type: PIXEL" in str(caught.value.fix)
