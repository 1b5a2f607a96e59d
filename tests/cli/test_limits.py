"""Sizes, numbers and memory that a command cannot have: flags, files beside weights, and means."""
from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ocaffe
from ocaffe.cli import main
from ocaffe.cli.parsers import NESTED, parser_of
from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.data.decoding.decode import MAX_PIXELS
from ocaffe.data.sources.rois import scaled
from ocaffe.errors import Error
from ocaffe.formats.blob import write_blobproto
from ocaffe.support.finite import LARGEST, singles

LIMIT = f"the limit is {MAX_PIXELS:,}"
NET = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 weight_filler { type: "gaussian" std: 0.01 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
SIDECAR: dict[str, Any] = {"size": [3, 8, 8], "resize": [10, 10], "mean": [1], "scale": 1, "channel_order": "BGR", "labels": ["a", "b"]}
FLAGS = ["--resize=10,10", "--mean=1", "--scale=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A net with weights, an image, class folders, and means with NaN and infinity."""
    made = tmp_path_factory.mktemp("limits")
    (made / "deploy.prototxt").write_text(NET)
    with ocaffe.Net(str(made / "deploy.prototxt"), ocaffe.TEST) as net:
        net.save(str(made / "w.caffemodel"))
    for name in ("i.png", "photos/a/1.png", "photos/a/2.png", "photos/b/1.png", "photos/b/2.png"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 7)).save(made / name)
    for name, value in (("nan", np.nan), ("inf", -np.inf), ("large", 1e300)):
        mean = np.zeros((3, 10, 10))
        mean[1, 2, 3] = value
        np.save(made / f"{name}.npy", mean)
        if name != "large":
            write_blobproto(made / f"{name}.binaryproto", mean.astype(np.float32))
    return made


@pytest.fixture(autouse=True)
def _here(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def predict(*flags: str) -> int:
    """Run predict with FLAGS; later ones count."""
    return main(["predict", "--model", "deploy.prototxt", "--weights", "w.caffemodel", "i.png", *FLAGS, *flags])


def test_usual_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert predict() == predict("--resize=3000,3000") == predict("--scale=-1e-30", "--mean=-1e30") == predict("--threshold=-1") == 0
    assert "nan" not in capsys.readouterr().out


@pytest.mark.parametrize("size", ["40000,40000", "2147483647,2147483647", f"{MAX_PIXELS + 1},1", "9,999999999999999999"])
def test_predict_with_a_large_size(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(f"--resize={size}") == 1
    told = capsys.readouterr().err
    assert size.replace(",", " x ") in told and LIMIT in told and "fix: --resize=" in told


@pytest.mark.parametrize("size", ["0,0", "-1,8", "8", "8,8,8", "x,8", "9" * 5000 + ",8", "nan,8", ","])
def test_predict_with_no_size(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(f"--resize={size}") == 1
    assert "fix: --resize=HEIGHT,WIDTH" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"resize": [40000, 40000]}, LIMIT),
        ({"size": [3, 100000, 100000], "resize": [100000, 100000]}, LIMIT),
        ({"resize": [0, 10]}, "have no pixel"),
        ({"mean": [float("nan")]}, "mean[0] is NaN, not a number"),
        ({"mean": "nan.npy"}, "nan.npy has nan"),
        ({"mean": "large.npy"}, "large.npy has 1e+300"),
        ({"scale": 1e39}, "scale has 1e+39"),
    ],
)
def test_a_file_beside_weights(changes: dict[str, Any], fact: str, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "w.json").write_text(json.dumps(SIDECAR | changes))
    try:
        assert main(["predict", "--model", "deploy.prototxt", "--weights", "w.caffemodel", "i.png"]) == 1
    finally:
        (folder / "w.json").unlink()
    told = capsys.readouterr().err
    assert told.startswith("error: w.json") and fact in told and "fix: remove the file" in told


@pytest.mark.parametrize(
    "command",
    [
        "dataset folder photos OUT --resize-height 40000 --resize-width 40000", "convert_imageset ./ none.txt OUT --resize-height 40000 --resize-width 40000",
        "dataset voc photos OUT --resize-height 40000 --resize-width 40000", "fit photos --out OUT --size 40000",
        "new resnet20 --data photos --out OUT --size 40000",
        "classify --mean_file= --model_def=deploy.prototxt --pretrained_model=w.caffemodel --images_dim=40000,40000 i.png OUT",
    ],
)  # fmt: skip
def test_other_commands_with_a_large_size(command: str, folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.replace("OUT", str(tmp_path / "out")).split()) == 1
    told = capsys.readouterr().err
    assert "40000 x 40000 = 1,600,000,000 pixels" in told and LIMIT in told and "fix: --" in told and not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", list(Interpolation))
def test_resizing(method: Interpolation) -> None:
    """A size can come from the image: a narrow one whose shorter side grows."""
    with pytest.raises(Error, match="an image of 1 x 60, resized, would be 20000 x 1200000") as caught:
        resize(np.zeros((3, 1, 60), np.uint8), 20_000, 1_200_000, method)
    assert LIMIT in caught.value.fact and caught.value.fix
    with pytest.raises(Error, match=LIMIT):
        scaled((1, 60), 20_000, 1e9)


VALUES = ("nan", "NaN", "inf", "-inf", "1e400", "1e39", "9" * 5000)


@pytest.mark.parametrize("value", VALUES)
def test_every_flag_with_a_number_is_finite(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN and infinity have a meaning for none of them. Whole numbers have at most 18 digits."""
    commands = [("predict",), ("fit",), ("new",), ("convert",), ("classify",), ("detect",), ("selftest",), ("report",), ("test",), ("train",), ("time",),
                ("sweep",), ("tune",), ("convert_imageset",), ("extract_features",), *(("dataset", each) for each in NESTED["dataset"])]  # fmt: skip
    checked = set()
    for command in commands:
        parser = parser_of(*command)
        for action in parser._actions:
            if isinstance(action.default, (int, float)) and not isinstance(action.default, bool) and action.option_strings:
                with pytest.raises(Error, match=r"is '.*', which is not|is '.*' is not|is '.*'") as caught:
                    parser.parse_args([f"{action.option_strings[0]}={value}"])
                assert len(caught.value.fact) < 200 and caught.value.fix
                checked.add(f"{command[-1]} {action.dest}")
    assert {"predict scale", "predict threshold", "fit test", "classify raw_scale", "selftest timeout", "convert tolerance", "predict top"} <= checked


@pytest.mark.parametrize("value", VALUES)
def test_predict_with_a_mean(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in (value, f"1,{value},3"):
        assert predict(f"--mean={text}") == 1
        told = capsys.readouterr().err
        assert re.match(r"error: --mean\n  the mean has '[\w.+-]+', which is no finite float", told) and value[:50] in told and len(told) < 300


@pytest.mark.parametrize("file", ["nan.npy", "inf.npy", "large.npy", "nan.binaryproto", "inf.binaryproto"])
def test_a_mean_file(file: str, folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(f"--mean={file}") == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: {file}\n  the mean has ") and "fix: make it with compute_image_mean" in told
    flags = f"--mean_file={file} --model_def=deploy.prototxt --pretrained_model=w.caffemodel i.png {tmp_path}/out"
    assert main(["classify", *flags.split()]) == 1
    assert capsys.readouterr().err.startswith(f"error: {file}\n  the mean has ")
    layer = f'name: "d" type: "ImageData" top: "x" top: "y" transform_param {{ mean_file: "{file}" }} image_data_param {{ source: "photos" batch_size: 1 }}'
    (tmp_path / "net.prototxt").write_text(f"layer {{ {layer} }}")
    with pytest.raises(Error, match="the mean has "):
        ocaffe.Net(str(tmp_path / "net.prototxt"), ocaffe.TEST)


def test_values_beyond_floats(capsys: pytest.CaptureFixture[str]) -> None:
    assert predict("--scale=1e38") == predict("--scale=-1e10", "--mean=-1e30") == 1
    assert capsys.readouterr().err.count("and floats of 32 bits end at 3.40282e+38") == 2


@pytest.mark.parametrize("command", ["selftest --only=nothing", "report --nets=none --output=r"])
@pytest.mark.parametrize("seconds", ["1e30", "1e10", "0", "-1"])
def test_a_timeout(command: str, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Python's clocks end at about 1e10 seconds."""
    assert main([*command.split(), f"--timeout={seconds}"]) == 1
    told = capsys.readouterr().err
    assert f"--timeout is {float(seconds):g}" in told and "fix: --timeout 300" in told


def test_singles() -> None:
    assert singles("x", [LARGEST, -LARGEST, 0]).dtype == np.float32
    with pytest.raises(ValueError, match="x has 1e"):
        singles("x", np.array([1, 1e39]))


def test_too_little_memory_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def large(*args: object) -> int:
        raise MemoryError("Unable to allocate 16.0 GiB for an array")

    monkeypatch.setattr("ocaffe.cli.summary.main", large)
    assert main(["summary", "x"]) == 1
    told = capsys.readouterr().err
    assert "needs more memory than there is: Unable to allocate 16.0 GiB" in told and "fix: give a smaller" in told and "Traceback" not in told
