"""The preprocessing beside the weights."""
from __future__ import annotations

import io
import json
import os
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.errors import Error
from ocaffe.evaluation.preprocessing import Preprocessing, of_layer
from ocaffe.evaluation.sidecar import read_sidecar, sidecar_of, write_sidecar
from ocaffe.formats.text import read_net
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
    write_sidecar("none/net", [read_net("net.prototxt")])
    assert "the preprocessing is not written beside the snapshots" in capfd.readouterr().err


ASPECT = """layer { name: "d" type: "AnnotatedData" top: "data" top: "label" data_param { source: "db" }
  transform_param { resize_param { prob: 1 resize_mode: %s height: 30 width: 40 interp_mode: LINEAR pad_value: 7 } } }"""


def test_images_of_a_smallest_side(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not warped silently. --resize warps them."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("net.prototxt").write_text(ASPECT % "FIT_SMALL_SIZE")
    message = read_net("net.prototxt")
    write_sidecar("net", [message])
    assert read_sidecar("net.caffemodel") is None
    for shape in (None, (3, 30, 40)):
        with pytest.raises(Error, match=r"(?s)net\.prototxt.*resize_mode of layer 'd' is FIT_SMALL_SIZE.*--resize"):
            of_layer(message.layer[0], shape, None, "net.prototxt")
    assert of_layer(message.layer[0], None, (20, 25), "net.prototxt").shape == (3, 20, 25)


def test_padded_images(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of 10 x 40 pixels fits into 30 x 40 as it is, with 10 rows of padding above and below. Boxes are shares of the image again."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("net.prototxt").write_text(ASPECT % "FIT_LARGE_SIZE_AND_PAD")
    message = read_net("net.prototxt")
    write_sidecar("net", [message])
    found = read_sidecar("net.caffemodel")
    assert found is not None and isinstance(found[0], Preprocessing)
    assert found[0].padding == of_layer(message.layer[0], None, None, "net.prototxt").padding == ("CONSTANT", (7.0,))
    pixels = np.random.default_rng(0).integers(0, 256, (10, 40, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    (given,) = found[0](content.getvalue())
    assert given.shape == (3, 30, 40) and (given[:, :10] == 7).all() and (given[:, 20:] == 7).all()
    assert (given[:, 10:20] == pixels[:, :, ::-1].transpose(2, 0, 1)).all()
    np.testing.assert_allclose(found[0].in_image(np.float32([[0.25, 1 / 3, 0.5, 0.5]]), (10, 40)), [[0.25, 0, 0.5, 0.5]], atol=1e-6)
    assert of_layer(message.layer[0], None, (20, 25), "net.prototxt").padding is None  # --resize warps


@pytest.mark.parametrize("text", ["{", "[]", '{"size": [3, 8, 8]}', TWO_CHANNELS])
def test_a_damaged_file_is_named(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(Error, match=r"a\.json\s+(is not the preprocessing of a training|the preprocessing cannot be read)"):
        read_sidecar(str(tmp_path / "a.caffemodel"))


SETTINGS = {"size": [3, 2, 2], "resize": [2, 2], "mean": [1, 2, 3], "scale": 1, "channel_order": "BGR", "labels": ["a"]}


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes")
@pytest.mark.parametrize(("mean", "told"), [
    ("../private.npy", "no name of a .npy file in its folder"),
    ("ABSOLUTE", "no name of a .npy file in its folder"),
    ("sub/private.npy", "no name of a .npy file in its folder"),
    ("..", "no name of a .npy file in its folder"),
    ("", "no name of a .npy file in its folder"),
    ("notes.txt", "no name of a .npy file in its folder"),
    ("1,2,3", "no name of a .npy file in its folder"),
    ("a\0.npy", "outside of the folder"),
    ("link.npy", "leads out of the folder"),
    ("pipe.npy", "it is a pipe, not a plain file"),
    ("folder.npy", "Is a directory"),
    ("none.npy", "No such file"),
    ("text.npy", "cannot be read as .npy"),
])  # fmt: skip
def test_the_mean_of_a_stranger(tmp_path: pathlib.Path, mean: str, told: str) -> None:
    """The mean is a plain file beside the weights: its values go into exported nets."""
    folder = tmp_path / "weights"
    (folder / "folder.npy").mkdir(parents=True)
    np.save(tmp_path / "private.npy", np.full((3, 2, 2), 1234.5, np.float32))
    (folder / "link.npy").symlink_to(tmp_path / "private.npy")
    os.mkfifo(folder / "pipe.npy")
    (folder / "text.npy").write_text("1, 2, 3")
    (folder / "a.json").write_text(json.dumps({**SETTINGS, "mean": mean.replace("ABSOLUTE", str(tmp_path / "private.npy"))}))
    with pytest.raises(Error) as caught:
        read_sidecar(str(folder / "a.caffemodel"))
    assert told in caught.value.fact and caught.value.fix and str(folder) in str(caught.value.place)


@pytest.mark.parametrize("change", [
    {"size": [3, 2]}, {"size": [2, 2, 2]}, {"size": [3, 0, 2]}, {"size": [3, -1, 2]}, {"size": [3, 1 << 40, 2]}, {"size": [3, 9, 9]}, {"size": "3, 2, 2"},
    {"resize": [2]}, {"resize": []}, {"resize": [2, float("inf")]}, {"mean": [1, 2]}, {"mean": [[1], [2], [3]]}, {"mean": {}},
    {"mean": [1e308, 0, 0]}, {"mean": [float("nan")]}, {"scale": 1e308}, {"padding": {"mode": "CONSTANT", "values": [-1e308]}},
    {"scale": None}, {"scale": "1"}, {"scale": float("inf")}, {"scale": 10**400}, {"channel_order": "RGB"}, {"channel_order": []}, {"labels": "ab"},
    {"labels": [1]}, {"labels": {"a": 1}}, {"padding": 1}, {"padding": {}}, {"padding": {"mode": "SPIRAL", "values": []}}, {"padding": {"mode": "CONSTANT"}},
    {"shorter_side": "600", "longest": 1000}, {"shorter_side": 0, "longest": 1000}, {"shorter_side": 600, "longest": 1e3, "mean": [1, 2]},
])  # fmt: skip
def test_values_of_other_types(tmp_path: pathlib.Path, change: dict[str, object]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(SETTINGS))
    assert read_sidecar(str(tmp_path / "a.caffemodel")) is not None
    (tmp_path / "a.json").write_text(json.dumps({**SETTINGS, **change}))
    with pytest.raises(Error) as caught:
        read_sidecar(str(tmp_path / "a.caffemodel"))
    assert caught.value.fix and caught.value.place == str(tmp_path / "a.json")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e308, float("nan"), float("-inf")])
def test_a_mean_image_that_is_no_floats(value: Any, tmp_path: pathlib.Path) -> None:
    np.save(tmp_path / "m.npy", np.full((3, 2, 2), value))
    (tmp_path / "a.json").write_text(json.dumps({**SETTINGS, "mean": "m.npy"}))
    with pytest.raises(Error, match=r"m\.npy has (-?inf|nan|1e\+308), which is no finite float"):
        read_sidecar(str(tmp_path / "a.caffemodel"))
