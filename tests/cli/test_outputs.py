"""A file to write must not be one that the same command reads: the net would be lost."""
from __future__ import annotations

import pathlib

import pytest

from ocaffe.cli import main
from ocaffe.cli.flags import check_outputs
from ocaffe.errors import Error

pytestmark = pytest.mark.quick

NET = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }\n'


@pytest.fixture
def net(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    (tmp_path / "link").symlink_to(path)
    return path


@pytest.mark.parametrize("name", ["net.prototxt", "./net.prototxt", "link"])
@pytest.mark.parametrize(
    "words",
    ["plan --model net.prototxt --html", "plan --model net.prototxt --json",
     "time --model net.prototxt --profile --json", "time --model net.prototxt --profile --html",
     "train --solver net.prototxt --log_json", "test --model net.prototxt --weights w.caffemodel --scores",
     "compare net.prototxt w.caffemodel --dump d.npz --html"],
)  # fmt: skip
def test_an_input_is_no_output(words: str, name: str, net: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), name]) == 1
    told = capsys.readouterr().err
    assert f"is {name}, which is also read" in told and "fix: give --" in told
    assert net.read_text() == NET


def test_files_in_a_folder_that_is_read(tmp_path: pathlib.Path) -> None:
    inside, beside = tmp_path / "dump" / "conv1.txt", tmp_path / "page.html"
    inside.parent.mkdir()
    for path in (inside, beside):
        path.write_text("1")
    with pytest.raises(Error, match="which is also read"):
        check_outputs("compare", ["", str(inside.parent)], html=str(inside))
    check_outputs("compare", ["", str(inside.parent)], html=str(beside))
    check_outputs("compare", [str(tmp_path / "none")], html=str(inside.parent / "new.html"), json="")
