"""`ocaffe convert` on the command line: the kinds of files select the conversion."""
from __future__ import annotations

import pathlib

import numpy as np
import pytest

from ocaffe.cli import main
from ocaffe.formats.weights import read_weights

pytestmark = pytest.mark.quick

FILES = pathlib.Path(__file__).resolve().parent.parent / "golden" / "files"
ZOO = pathlib.Path(__file__).resolve().parent.parent.parent / "zoo"


def test_to_onnx_and_back(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, net, weights = (str(tmp_path / name) for name in ("model.onnx", "net.prototxt", "net.caffemodel"))
    assert main(["convert", str(ZOO / "lenet/deploy.prototxt"), model, "--fillers", "--noverify"]) == 0
    assert main(["convert", model, net, weights]) == 0
    assert main(["convert", net, weights, str(tmp_path / "again.onnx"), "--noverify"]) == 0
    for file in (model, net, weights):
        assert main(["convert", "--summary", file]) == 0
    assert "500" in capsys.readouterr().out


def test_weights_to_hdf5_and_back(tmp_path: pathlib.Path) -> None:
    source = str(FILES / "init.caffemodel")
    hdf5, again = str(tmp_path / "init.caffemodel.h5"), str(tmp_path / "again.caffemodel")
    assert main(["convert", source, hdf5]) == 0 and main(["convert", hdf5, again]) == 0
    first, last = ({layer.name: layer.blobs for layer in read_weights(file).layers if layer.blobs} for file in (source, again))
    assert first.keys() == last.keys()
    assert all(np.array_equal(a.reshape(-1), b.reshape(-1)) for name in first for a, b in zip(first[name], last[name]))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "no files are given"),
        (["a.onnx", "b.onnx"], "no conversion takes the kinds onnx onnx"),
        (["a.txt", "b.onnx"], "the name 'a.txt' ends with none of .prototxt"),
        (["a.pth", "a.prototxt", "a.caffemodel"], "'a.pth' is a PyTorch file, which ocaffe does not read"),
        (["a.prototxt", "--summary", "b.onnx"], "--summary is given with files"),
        (["none.onnx", "net.prototxt", "net.caffemodel"], "none.onnx"),
    ],
)
def test_mistakes(args: list[str], said: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *args]) == 1
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())
