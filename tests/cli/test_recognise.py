"""`ocaffe classify` and `detect` on a net whose scores are simple sums."""
from __future__ import annotations

import csv
import pathlib
import shutil
from typing import Any

import h5py
import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cli import main
from ocaffe.formats.blob import write_blobproto
from ocaffe.io import load_image, oversample, resize_image

pytestmark = pytest.mark.quick

IMAGES = pathlib.Path(__file__).resolve().parents[1] / "golden" / "files" / "images"
DEPLOY = """
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 4 dim: {channels} dim: 12 dim: {width} }} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param {{ num_output: 5 weight_filler {{ type: "gaussian" std: 0.1 }} }} }}
"""
MEAN = np.array([104, 117, 123], np.float32)


@pytest.fixture
def flags(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write a deploy net with weights to the current folder and return the flags for it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(IMAGES, "images")
    make(device, "deploy", 3, 12)
    np.save("mean.npy", MEAN[:, None, None])
    return [f"--device={device.number}", "--model_def", "deploy.prototxt", "--pretrained_model", "deploy.caffemodel"]


def make(device: Any, name: str, channels: int, width: int) -> None:
    pathlib.Path(f"{name}.prototxt").write_text(DEPLOY.format(channels=channels, width=width))
    net = Net(f"{name}.prototxt", phase=proto.TEST, device=device, seed=3)
    net.save(f"{name}.caffemodel")
    np.save(f"{name}_weights.npy", net.params["ip"][0].data)
    net.close()


def scores(crops: np.ndarray, mean: Any = MEAN, raw: float = 255, swap: tuple[int, ...] = (2, 1, 0), scale: float = 1, net: str = "deploy") -> np.ndarray:
    """Compute the net in numpy from images of n x height x width x channels, RGB, 0 to 1."""
    inputs = (crops[..., swap].astype(np.float64) * raw - mean) * scale
    return inputs.transpose(0, 3, 1, 2).reshape(len(crops), -1) @ np.load(f"{net}_weights.npy").T.astype(np.float64)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_folder_in_ten_crops(flags: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", *flags, "--mean_file=mean.npy", "--images_dim=20,16", "--ext=jpg", "images", "out"]) == 0
    images = [load_image(str(path)) for path in sorted(IMAGES.glob("*.jpg"))]
    crops = oversample([resize_image(image, (20, 16)) for image in images], (12, 12))
    close(np.load("out.npy"), scores(crops).reshape(len(images), 10, 5).mean(1))
    assert "Classifying 6 inputs." in capfd.readouterr().out


@pytest.mark.parametrize(
    ("extra", "change"),
    [
        ([], {}),
        (["--raw_scale", "2"], {"raw": 2}),
        (["--input_scale=0.25"], {"scale": 0.25}),
        (["--channel_swap="], {"swap": (0, 1, 2)}),
        (["-channel_swap", "1,0,2"], {"swap": (1, 0, 2)}),
        (["--mean_file=mean.binaryproto"], {}),
        (["--mean_file="], {"mean": 0}),
    ],
)
def test_flags_on_one_image(flags: list[str], extra: list[str], change: dict[str, Any]) -> None:
    write_blobproto("mean.binaryproto", np.broadcast_to(MEAN[:, None, None], (3, 24, 24)))
    assert main(["classify", *flags, "--mean_file", "mean.npy", "--center_only", "--images_dim=20,16", *extra, "images/im03.png", "out.npy"]) == 0
    image = resize_image(load_image("images/im03.png"), (20, 16))
    close(np.load("out.npy"), scores(image[None, 4:16, 2:14], **change))


def test_array_and_gray_net(flags: list[str], device: Any) -> None:
    make(device, "gray", 1, 12)
    gray = [*flags[:1], "--model_def=gray.prototxt", "--pretrained_model=gray.caffemodel", "--mean_file=", "--center_only", "--images_dim=12,12"]
    assert main(["classify", *gray, "images/im03.png", "out"]) == 0
    close(np.load("out.npy"), scores(resize_image(load_image("images/im03.png", False), (12, 12))[None], 0, swap=(0,), net="gray"))
    images = np.random.default_rng(1).random((5, 12, 12, 3)).astype(np.float32)
    np.save("in.npy", images)
    assert main(["classify", *flags, "--mean_file=", "--center_only", "--images_dim=12,12", "in.npy", "out"]) == 0
    close(np.load("out.npy"), scores(images, 0))


def test_names_of_the_best_classes(flags: list[str], capfd: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    settings = [*flags, "--mean_file=", "--center_only", "--images_dim=12,12", "--ext=jpg"]
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "labels.txt").write_text("ant\nbee\ncrane\ncrane\nemu\n")  # two of ImageNet's classes have one name
    shutil.copy("db/labels.txt", "names of mine.txt")
    said = []
    for path in ("db", "db/labels.txt", "names of mine.txt"):
        assert main(["classify", *settings, "--labels", path, "images", "out"]) == 0
        said.append([line for line in capfd.readouterr().out.splitlines() if "Prediction" in line or " - " in line])
    assert said[0] == said[1] == said[2]
    names = ["ant", "bee", "crane", "crane", "emu"]
    expected = []
    for path, row in zip(sorted(IMAGES.glob("*.jpg")), np.load("out.npy")):
        expected.append(f"---------- Prediction for images/{path.name} ----------")
        expected += [f'{row[best]:.4f} - "{names[best]}"' for best in np.argsort(-row)]
    assert said[0] == expected
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "images" / "data.mdb").touch()
    for path, fact in (
        ("none", "none does not exist"),
        ("images", "images has no names of classes"),
        ("two.txt", "two.txt has 2 names of classes, and the net gives 5 scores"),
    ):
        assert main(["classify", *settings, "--labels", path, "images", "out"]) == 1
        assert fact in capfd.readouterr().err


WINDOWS = [("images/im00.png", (2, 3, 20, 25)), ("images/odd0.png", (0, 0, 12, 12)), ("images/im00.png", (1, 1, 10, 24))]


def windows_file() -> None:
    with open("windows.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["xmin", "ymin", "filename", "xmax", "ymax"])
        writer.writerows([w[1], w[0], name, w[3], w[2]] for name, w in WINDOWS)


@pytest.mark.parametrize("out", ["out.csv", "out.h5"])
def test_windows_as_they_are(flags: list[str], out: str) -> None:
    windows_file()
    assert main(["detect", *flags, "--crop_mode=list", "--context_pad=0", "--mean_file=mean.npy", "windows.csv", out]) == 0
    ordered = [WINDOWS[0], WINDOWS[2], WINDOWS[1]]  # sorted by image
    crops = np.stack([resize_image(load_image(name)[y:bottom, x:right], (12, 12)) for name, (y, x, bottom, right) in ordered])
    if out.endswith("csv"):
        with open(out) as stream:
            rows = list(csv.reader(stream))
        assert rows[0] == ["filename", "ymin", "xmin", "ymax", "xmax", *(f"class{n}" for n in range(5))]
        assert [(row[0], tuple(map(int, row[1:5]))) for row in rows[1:]] == ordered
        found = np.array([row[5:] for row in rows[1:]], float)
    else:
        with h5py.File(out) as file:
            assert [(name.decode(), tuple(window)) for name, window in zip(file["filename"], file["window"][()])] == ordered
            found = file["prediction"][()]
    close(found, scores(crops))


def test_context_is_padded_with_the_mean(flags: list[str]) -> None:
    """If a window's context exceeds the image on all sides, the image is in the middle and is surrounded by the mean."""
    height, width = load_image("images/im00.png").shape[:2]
    with open("windows.csv", "w") as stream:
        stream.write(f"filename,ymin,xmin,ymax,xmax\nimages/im00.png,0,0,{height - 1},{width - 1}\n")
    assert main(["detect", *flags, "--crop_mode", "list", "--context_pad", "3", "--mean_file=mean.npy", "windows.csv", "out.csv"]) == 0
    crop = np.broadcast_to(MEAN[::-1] / 255, (12, 12, 3)).copy()
    crop[3:9, 3:9] = resize_image(load_image("images/im00.png"), (6, 6))
    with open("out.csv") as stream:
        found = np.array(list(csv.reader(stream))[1][5:], float)
    close(found, scores(crop[None])[0])


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("classify images/im00.png out", ["ilsvrc_2012_mean.npy does not exist", "--mean_file="]),
        ("classify --mean_file= --images_dim=20 images/im00.png out", ["--images_dim is '20'", "2 whole numbers"]),
        ("classify --mean_file= --images_dim=8,8 images/im00.png out", ["12 x 12 does not fit into an image of 8 x 8"]),
        ("classify --mean_file= --images_dim=8,8 --center_only images/im00.png out", ["the net takes 12 x 12", "of at least 12 x 12"]),
        ("classify --mean_file= --channel_swap=2,1 images/im00.png out", ["--channel_swap is '2,1'"]),
        ("classify --mean_file= --ext=bmp images out", ["no file in it ends in .bmp", "--ext"]),
        ("classify --mean_file= none.png out", ["none.png", "No such file"]),
        ("classify --mean_file= none.npy out", ["none.npy"]),
        *((f"classify --mean_file= axes{axes}.npy out", [f"axes{axes}.npy", "the array is", "n x height x width x channels"]) for axes in (0, 1, 2, 5)),
        ("classify --mean_file= axes4.npy out", ["axes4.npy", "the array is 0 x 4 x 4 x 3"]),
        ("classify --mean_file= --images_dim=100000,100000 images/im00.png out", ["10,000,000,000", "the limit is 178,956,970"]),
        ("detect --crop_mode=list endless.csv out.csv", ["endless.csv:2", "'1,2,inf,4' is no window"]),
        ("detect images.txt out.csv", ["selective_search", "--crop_mode list"]),
        ("detect --crop_mode=list windows.csv out.txt", ["out.txt", ".csv or .h5"]),
        ("detect --crop_mode=list --context_pad=6 windows.csv out.csv", ["context_pad is 6", "0 to 5"]),
        ("detect --crop_mode=list none.csv out.csv", ["none.csv", "No such file"]),
        ("detect --crop_mode=list bad.csv out.csv", ["bad.csv:2", "'1,2,x,4' is no window"]),
        ("detect --crop_mode=list short.csv out.csv", ["short.csv:1", "no column xmax"]),
        ("detect --crop_mode=list empty.csv out.csv", ["empty.csv", "has no window"]),
        ("detect --crop_mode=list --context_pad=0 beyond.csv out.csv", ["images/im00.png", "90, 1, 95, 20 covers no pixel"]),
    ],
)
def test_refused(flags: list[str], command: str, told: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    windows_file()
    header = "filename,ymin,xmin,ymax,xmax\n"
    pathlib.Path("bad.csv").write_text(f"{header}a.png,1,2,x,4\n")
    pathlib.Path("endless.csv").write_text(f"{header}a.png,1,2,inf,4\n")
    for shape in ((), (3,), (4, 3), (0, 4, 4, 3), (1, 1, 4, 4, 3)):
        np.save(f"axes{len(shape)}.npy", np.ones(shape, np.float32))
    pathlib.Path("short.csv").write_text("filename,ymin,xmin,ymax\n")
    pathlib.Path("empty.csv").write_text(header)
    pathlib.Path("beyond.csv").write_text(f"{header}images/im00.png,90,1,95,20\n")
    name, *rest = command.split()
    assert main([name, *flags, *rest]) == 1
    said = capfd.readouterr().err
    assert all(text in said for text in told), said
    assert not list(pathlib.Path().glob("out*"))


def test_net_for_training_and_wide_net(flags: list[str], device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    make(device, "wide", 3, 14)
    windows_file()
    wide = [flags[0], "--model_def=wide.prototxt", "--pretrained_model=wide.caffemodel"]
    assert main(["detect", *wide, "--crop_mode=list", "--context_pad=2", "windows.csv", "out.csv"]) == 1
    assert "12 x 14 is not square" in capfd.readouterr().err
    pathlib.Path("deploy.prototxt").write_text('layer { name: "d" type: "DummyData" top: "data" dummy_data_param { shape { dim: 1 } } }')
    assert main(["classify", *flags, "--mean_file=", "images/im00.png", "out"]) == 1
    assert "no input" in capfd.readouterr().err
