"""`Classifier` and `Detector` on a net whose scores are simple sums. tests/cli/test_recognise.py tests the commands that use them."""
from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe.errors import Error

pytestmark = pytest.mark.quick

IMAGES = pathlib.Path(__file__).resolve().parents[1] / "golden" / "files" / "images"
DEPLOY = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 12 dim: 12 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.1 } } }
"""
MEAN = np.array([104, 117, 123], np.float32)
OPTIONS: dict[str, Any] = dict(mean=MEAN, raw_scale=255, channel_swap=(2, 1, 0))


@pytest.fixture
def files(device: Any, tmp_path: pathlib.Path) -> tuple[str, str]:
    """Write a deploy net and its weights."""
    deploy, weights = tmp_path / "deploy.prototxt", tmp_path / "w.caffemodel"
    deploy.write_text(DEPLOY)
    caffe.Net(str(deploy), caffe.TEST, device=device, seed=3).save(str(weights))
    return str(deploy), str(weights)


def scores(net: caffe.Net, crops: list[np.ndarray]) -> np.ndarray:
    inputs = (np.stack(crops)[..., ::-1].astype(np.float64) * 255 - MEAN).transpose(0, 3, 1, 2)
    return inputs.reshape(len(crops), -1) @ net.params["ip"][0].data.T.astype(np.float64)


def pictures() -> list[np.ndarray]:
    return [caffe.io.load_image(str(path)) for path in sorted(IMAGES.glob("im*.png"))[:3]]


def test_ten_crops_and_the_centre(device: Any, files: tuple[str, str]) -> None:
    net = caffe.Classifier(*files, image_dims=(16, 20), device=device, **OPTIONS)
    assert list(net.image_dims) == [16, 20] and list(net.crop_dims) == [12, 12] and isinstance(net, caffe.Net)
    resized = [caffe.io.resize_image(image, (16, 20)) for image in pictures()]
    ten = caffe.io.oversample(resized, (12, 12))
    found = net.predict(pictures())
    assert found.shape == (3, 5)
    np.testing.assert_allclose(found, scores(net, list(ten)).reshape(3, 10, 5).mean(1), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(net.predict(iter(pictures()), oversample=False), scores(net, [image[2:14, 4:16] for image in resized]), rtol=1e-4, atol=1e-3)
    net.blobs["data"].reshape(1, 3, 12, 12)  # as in scripts that classify single images
    np.testing.assert_allclose(net.predict(pictures()), found, rtol=1e-4, atol=1e-3)
    plain = caffe.Classifier(*files, device=device, **OPTIONS)
    whole = [caffe.io.resize_image(image, (12, 12)) for image in pictures()]
    np.testing.assert_allclose(plain.predict(pictures(), False), scores(net, whole), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "images", "told"),
    [
        ({"image_dims": (8, 8)}, [np.zeros((20, 20, 3))], "12 x 12"),
        ({}, [np.zeros((20, 20, 1))], "the net takes height x width x 3"),
        ({}, [], "no image"),
        ({"channel_swap": (1, 0)}, [], "2 channels"),
    ],
)
def test_refused(device: Any, files: tuple[str, str], options: dict[str, Any], images: list[np.ndarray], told: str) -> None:
    with pytest.raises(Error, match=told):
        caffe.Classifier(*files, device=device, **options).predict(images)


def test_windows(device: Any, files: tuple[str, str]) -> None:
    net = caffe.Detector(*files, device=device, **OPTIONS)
    paths = [str(path) for path in sorted(IMAGES.glob("im*.png"))[:2]]
    windows = [[(0, 0, 12, 12), (3, 2, 20, 18)], [(5, 5, 17, 17)]]
    found = net.detect_windows(zip(paths, windows))
    assert [(one["filename"], tuple(one["window"])) for one in found] == [(p, w) for p, part in zip(paths, windows) for w in part]
    parts = [caffe.io.load_image(p)[w[0] : w[2], w[1] : w[3]] for p, part in zip(paths, windows) for w in part]
    expected = scores(net, [caffe.io.resize_image(part, (12, 12)) for part in parts])
    np.testing.assert_allclose([one["prediction"] for one in found], expected, rtol=1e-4, atol=1e-3)


def test_context_and_crop(device: Any, files: tuple[str, str]) -> None:
    net = caffe.Detector(*files, device=device, context_pad=2, **OPTIONS)
    image = pictures()[0]
    seen = net.crop(image, (0, 0, 10, 10))
    assert seen.shape == (12, 12, 3)
    corner = net.transformer.preprocess("data", seen)[:, 0, 0]
    np.testing.assert_allclose(corner, 0, atol=1e-3)  # pixels outside the image are the mean
    net.configure_crop(0)
    np.testing.assert_array_equal(net.crop(image, (1, 2, 8, 9)), image[1:8, 2:9])
    for call, told in (
        (lambda: net.configure_crop(6), "0 to 5"),
        (lambda: net.crop(image, (5, 5, 5, 9)), "covers no pixel"),
        (lambda: net.detect_windows([(str(IMAGES / "im00.png"), [(900, 0, 950, 9)])]), "im00"),
        (lambda: net.detect_selective_search([str(IMAGES / "im00.png")]), "selective_search_ijcv_with_python"),
    ):
        with pytest.raises(Error, match=told):
            call()


def test_proposals_of_a_module(device: Any, files: tuple[str, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "selective_search_ijcv_with_python.py").write_text("def get_windows(names):\n    return [[(0, 0, 9, 9)] for _ in names]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = caffe.Detector(*files, device=device).detect_selective_search([str(IMAGES / "im00.png")])
    del sys.modules["selective_search_ijcv_with_python"]
    assert len(found) == 1 and found[0]["prediction"].shape == (5,)
