"""Pipes, devices and folders where a flag takes a file or a folder: the error tells what is there, and does not call it missing."""
from __future__ import annotations

import os
import pathlib

import pytest
from PIL import Image

import ocaffe
from ocaffe.cli import main
from tests.cli.test_limits import NET

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
COMMANDS = """
fit photos --out g --weights X | fit X --out g | fit photos --out g --net X | fit photos --out g --val X
new lenet --data photos --out g --weights X | new lenet --data X --out g | new X --data photos --out g | new ssd300_vgg16 --data X --out g
new unet --data X --out g | new crnn --data X --out g
predict X i.png | predict --model n.prototxt --weights X i.png | predict --model X --weights w.caffemodel i.png
predict --model n.prototxt --weights w.caffemodel i.png --resize 8,8 --scale 1 --mean X
predict --model n.prototxt --weights w.caffemodel i.png --resize 8,8 --scale 1 --mean 1 --labels X
predict --model n.prototxt --weights w.caffemodel X --resize 8,8 --scale 1 --mean 1
test --model X --weights w.caffemodel | test --model n.prototxt --weights X
dataset folder X g | dataset voc X g | dataset coco X g | dataset yolo X g | dataset labelme X g | dataset show X --out s.png
dataset show photos --augment X --out s.png | dataset anchors X | dataset masks X photos g | dataset masks photos X g
dataset masks photos photos g --colors X | dataset masks photos photos g --labels X | dataset masks photos photos g --lists X
dataset shapes g --mnist X | dataset mnist g --from X
"""
KINDS = {"pipe": "a pipe", "device": "a device"}


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.symlink("/dev/zero", "device")
    os.mkdir("folder")
    pathlib.Path("n.prototxt").write_text(NET)
    with ocaffe.Net("n.prototxt", ocaffe.TEST) as net:
        net.save("w.caffemodel")
    for name in ("i.png", "photos/a/1.png", "photos/a/2.png", "photos/b/1.png", "photos/b/2.png"):
        pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 7)).save(name)
    return tmp_path


@pytest.mark.parametrize("command", [each.strip() for line in COMMANDS.strip().splitlines() for each in line.split("|")])
def test_the_cause(command: str, here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kind in KINDS.items():
        assert main(command.replace("X", name).split()) == 1
        told = capsys.readouterr().err
        wanted = f"it is {kind}, not a plain file", f"{name} is {kind}, not a folder", "is no folder", "is not a folder", "Not a directory", "is no list"
        assert any(text in told for text in (*wanted, "is a file, and a database")), told
        assert "does not exist" not in told and "do not exist" not in told and "no such file" not in told and "there is no " not in told
    assert not (here / "g").exists()


WEIGHTS = ["fit photos --out g --weights X", "new lenet --data photos --out g --weights X", "predict --model n.prototxt i --weights X"]


@pytest.mark.parametrize("command", WEIGHTS)
def test_weights(command: str, here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.replace("X", "folder").split()) == 1
    assert "error: --weights\n  the weights folder cannot be read: Is a directory" in capsys.readouterr().err
    assert main(command.replace("X", "none.caffemodel").split()) == 1
    assert "error: --weights\n  the weights none.caffemodel do not exist" in capsys.readouterr().err
    assert main(command.replace("X", "i.png/w").split()) == 1
    assert "error: --weights\n  the weights i.png/w cannot be read: Not a directory" in capsys.readouterr().err
