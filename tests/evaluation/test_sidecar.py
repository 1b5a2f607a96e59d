"""The preprocessing beside the weights."""
from __future__ import annotations

import pathlib

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.writer import LmdbWriter
from ocaffe.errors import Error
from ocaffe.evaluation.preprocessing import of_layer
from ocaffe.evaluation.sidecar import read_sidecar, sidecar_of, write_sidecar
from ocaffe.model.text import read_net
from tests.zoo.digits import write_folders

NET = """layer { name: "d" type: "ImageData" top: "data" top: "label"
  image_data_param { source: "photos" batch_size: 2 new_height: 12 new_width: 14 %s } transform_param { crop_size: 8 scale: 0.5 %s } }"""


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ("a_iter_10.caffemodel", "a.json"),
        ("x/a_best_iter_7.caffemodel.h5", "x/a.json"),
        ("a_iter_3.ema.caffemodel", "a.json"),
        ("best.caffemodel", "best.json"),
    ],
)
def test_names(weights: str, name: str) -> None:
    assert sidecar_of(weights) == name


@pytest.mark.parametrize(("gray", "channels"), [("is_color: false", 1), ("", 3)])
@pytest.mark.parametrize("image", [False, True])
def test_written_and_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, gray: str, channels: int, image: bool) -> None:
    monkeypatch.chdir(tmp_path)
    write_folders(tmp_path / "photos", 1, classes=2)
    mean = np.arange(channels * 12 * 14, dtype=np.float32).reshape(channels, 12, 14)
    np.save("mean.npy", mean)
    given = 'mean_file: "mean.npy"' if image else "mean_value: 7"
    pathlib.Path("net.prototxt").write_text(NET % (gray, given))
    write_sidecar("net", [read_net("net.prototxt")])
    found = read_sidecar("net_iter_5.caffemodel")
    assert found is not None
    settings, labels = found
    assert (settings.shape, settings.resized, settings.scale, list(labels)) == ((channels, 8, 8), (12, 14), 0.5, ["digit0", "digit1"])
    np.testing.assert_array_equal(settings.mean, mean if image else [7])
    write_sidecar("net", [proto.NetParameter(name="without images")])
    assert read_sidecar("net_iter_5.caffemodel") is None  # the older file described another training


TWO_CHANNELS = '{"size": [2, 8, 8], "resize": [8, 8], "mean": [0], "scale": 1, "channel_order": "BGR", "labels": []}'


def test_a_training_can_do_without(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    with LmdbWriter("two") as out:  # its records have two channels
        out.put(b"0", proto.Datum(channels=2, height=3, width=4, data=bytes(24)).SerializeToString())
    pathlib.Path("net.prototxt").write_text('layer { name: "d" type: "Data" top: "data" data_param { source: "two" batch_size: 1 backend: LMDB } }')
    write_sidecar("net", [read_net("net.prototxt")])
    assert read_sidecar("net.caffemodel") is None
    write_folders(tmp_path / "photos", 1, classes=2)
    pathlib.Path("net.prototxt").write_text(NET % ("", ""))
    monkeypatch.setattr("ocaffe.log.minimum", 0)
    write_sidecar("none/net", [read_net("net.prototxt")])
    assert "the preprocessing is not written beside the snapshots" in capfd.readouterr().err


@pytest.mark.parametrize("mode", ["FIT_LARGE_SIZE_AND_PAD", "FIT_SMALL_SIZE"])
def test_images_that_keep_their_aspect_ratio(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """They are not warped silently. --resize warps them."""
    monkeypatch.chdir(tmp_path)
    resized = f"resize_param {{ prob: 1 resize_mode: {mode} height: 30 width: 40 interp_mode: LINEAR }}"
    net = f'layer {{ name: "d" type: "AnnotatedData" top: "data" top: "label" transform_param {{ {resized} }} data_param {{ source: "db" }} }}'
    pathlib.Path("net.prototxt").write_text(net)
    message = read_net("net.prototxt")
    write_sidecar("net", [message])
    assert read_sidecar("net.caffemodel") is None
    for shape in (None, (3, 30, 40)):
        with pytest.raises(Error, match=rf"(?s)net\.prototxt.*resize_mode of layer 'd' is {mode}.*--resize"):
            of_layer(message.layer[0], shape, None, "net.prototxt")
    assert of_layer(message.layer[0], None, (20, 25), "net.prototxt").shape == (3, 20, 25)


@pytest.mark.parametrize("text", ["{", "[]", '{"size": [3, 8, 8]}', TWO_CHANNELS])
def test_a_damaged_file_is_named(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(Error, match=r"a\.json\s+the preprocessing cannot be read"):
        read_sidecar(str(tmp_path / "a.caffemodel"))
